"""The part of a model card that lets others answer held-out prompts again without mmrl: how far it agrees, and the code."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mmrl.app.modality.base import EvaluationTable, ExportKind
from mmrl.app.modality.templates import answers_with, call_of, dtype_to_load, pipeline_call
from mmrl.flow.plan import RolloutPlan
from mmrl.policies.text.families.base import Family, parameters_of
from mmrl.training.evaluate import SEED_STEP

if TYPE_CHECKING:
    from mmrl.policies.codes.policy import CodePolicy
    from mmrl.policies.flow.policy import FlowPolicy
    from mmrl.policies.text.policy import TextPolicy

FACTS = "prompt_template.json"
MERGED: Mapping[ExportKind, str] = {
    "merged": "adding the adapter to the weights rounded them",
    "onto original": "the run's own weights were in 4 bits, and these are not",
}
"""Why the weights of an export are not those of its run."""
READ_FACTS = f'template = json.load(open("THIS_FOLDER/{FACTS}", encoding="utf-8"))'


def write_again(policy: "TextPolicy", evaluation: EvaluationTable, kind: ExportKind) -> list[str]:
    """Transformers code that writes the answer to a held-out question, greedily as an evaluation does."""
    reasons = [
        *(["the run computed in bfloat16"] if policy.config.dtype != "float32" else []),
        *([MERGED[kind]] if kind in MERGED else []),
    ]
    temperature = answers_with(policy, evaluation).temperature
    if temperature > 0:
        words = (
            f"Held-out answers were drawn at temperature {temperature:g} with mmrl's own random numbers, so these lines draw "
            "others; answers at temperature 0 could be written again."
        )
    elif reasons:
        facts = ", and ".join(reasons)
        words = f"These lines write what `mmrl eval` writes, save where two tokens are about equally likely: {facts}."
    else:
        words = "These lines write what `mmrl eval` writes, token by token (same versions, same kind of device)."
    clips = " Clips become frames as its `video` says, which `mmrl eval` does." if "video" in policy.family.sees else ""
    return [
        f"{words} `{FACTS}` says what stands around a question.{clips}",
        "",
        "```python",
        *writing_code(policy, evaluation, kind),
        "```",
    ]


def writing_code(policy: "TextPolicy", evaluation: EvaluationTable, kind: ExportKind) -> Iterator[str]:
    """Load, write the chat, generate."""
    model, other = auto_classes(policy.family)
    seeing, reader = other == "Processor", other.lower()
    yield from ("import json", "", f"from transformers import AutoModelFor{model}, Auto{other}", "")
    options = f', variant="{policy.config.variant}"' if kind == "adapter" and policy.config.variant else ""
    yield f'model = AutoModelFor{model}.from_pretrained("THIS_FOLDER", dtype="{dtype_to_load(policy)}"{options})'
    yield f'{reader} = Auto{other}.from_pretrained("THIS_FOLDER")'
    if seeing and "chat_template" not in parameters_of(type(policy.processor).__init__):
        # transformers loads such a processor without the template
        yield "processor.chat_template = processor.tokenizer.chat_template"
    yield from (READ_FACTS, "", 'text = template["prefix"] + "QUESTION" + template["suffix"]')
    if seeing and "image" not in policy.family.sees:
        yield f'# SOUND is the path of a file; transformers reads it with: pip install "{policy.family.sounds_read_by}"'
    yield f"chat = [{', '.join(turns(policy))}]"
    if seeing:
        options = 'add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"'
        yield f"inputs = processor.apply_chat_template(chat, {options})"
    else:
        yield "chat = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)"
        yield f'inputs = tokenizer(chat, add_special_tokens={not begins_by_itself(policy)}, return_tensors="pt")'
    stop = "" if not answers_with(policy, evaluation).stop else f", tokenizer={'processor.tokenizer' if seeing else reader}"
    yield f'written = model.generate(**inputs, **template["generate"]{stop})'
    yield f'print({reader}.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))'


def auto_classes(family: Family) -> tuple[str, str]:
    """The classes that transformers loads a family by: `AutoModelFor...`, and `Auto...` for what reads its prompts."""
    if "image" in family.sees:
        return "ImageTextToText", "Processor"
    return ("MultimodalLM", "Processor") if family.sees else ("CausalLM", "Tokenizer")


def turns(policy: "TextPolicy") -> Iterator[str]:
    """The messages of a chat, as Python."""
    seeing = bool(policy.family.sees)
    if policy.config.system_prompt:
        phrase = '[{"type": "text", "text": template["system"]}]' if seeing else 'template["system"]'
        yield f'{{"role": "system", "content": {phrase}}}'
    kind, key, shown = ("image", "image", "PICTURE") if "image" in policy.family.sees else ("audio", "path", "SOUND")
    asked = f'[{{"type": "{kind}", "{key}": "{shown}"}}, {{"type": "text", "text": text}}]' if seeing else "text"
    yield f'{{"role": "user", "content": {asked}}}'


def begins_by_itself(policy: "TextPolicy") -> bool:
    """Does the chat template write the token that begins a text?"""
    bos = policy.tokenizer.bos_token
    chat = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
    return bos is not None and policy.processor.apply_chat_template(chat, tokenize=False).startswith(bos)


def draw_codes_again(policy: "CodePolicy") -> list[str]:
    """Transformers code that draws a picture with the run's guidance."""
    if policy.drawing.plan is not None:
        return [f"A plan is written before a picture, by a call of its own: `{FACTS}` has its words, `mmrl eval` draws it."]
    return [
        "These lines draw a picture as the run does, with random numbers of their own: "
        f"`{FACTS}` says how codes are drawn, and `mmrl eval` draws the run's again.",
        "",
        "```python",
        "import json",
        "",
        "from PIL import Image",
        "from transformers import AutoProcessor, JanusForConditionalGeneration",
        "",
        f'model = JanusForConditionalGeneration.from_pretrained("THIS_FOLDER", dtype="{dtype_to_load(policy)}")',
        'processor = AutoProcessor.from_pretrained("THIS_FOLDER")',
        READ_FACTS,
        "",
        'chat = [{"role": "user", "content": [{"type": "text", "text": "PROMPT"}]}]',
        "text = processor.apply_chat_template(chat, add_generation_prompt=True)",
        'inputs = processor(text=[text], generation_mode="image", return_tensors="pt")',
        'codes = model.generate(**inputs, **template["generate"])',
        "pixels = model.decode_image_tokens(codes).float()",
        'bytes = processor.postprocess(list(pixels), return_tensors="pt")["pixel_values"]',
        "picture = Image.fromarray(bytes[0].permute(1, 2, 0).numpy())",
        "```",
    ]


def draw_again(
    policy: "FlowPolicy", evaluation: EvaluationTable, plan: RolloutPlan, loading: Sequence[str], kind: ExportKind
) -> list[str]:
    """Diffusers code that draws a held-out picture, from the same noise by the same steps as an evaluation does.

    `loading` are the lines that load the pipeline, imports aside.
    """
    if pipeline_call(policy, plan) is None:
        return [
            "An evaluation takes steps that this pipeline's arguments cannot express, so that its own pictures differ; "
            "`mmrl eval` draws the run's again."
        ]
    if plan.base_from is not None and kind != "adapter":
        return [
            f"Held-out pictures were finished with the weights from before training, from step {plan.base_from} on, and this "
            "folder holds the trained ones alone: `mmrl eval` draws them again, and so do the lines of an exported adapter."
        ]
    reasons = list(reasons_to_differ(policy, evaluation, plan, kind))
    if reasons:
        words = f"These lines draw a held-out picture of that size again up to rounding, since {'; '.join(reasons)}."
    else:
        words = "These lines draw a held-out picture of that size again, pixel for pixel (same versions, same kind of device)."
    phrase = f"`{FACTS}` has the steps, and says how the noise is drawn."
    sized = "A prompt with a size of its own (columns `width` and `height`) takes other steps: `mmrl eval` draws it again."
    return [f"{words} {phrase} {sized}", "", "```python", *drawing_code(loading, plan.base_from), "```"]


def drawing_code(loading: Sequence[str], base_from: int | None) -> list[str]:
    """Load, seed the noise, draw; from a step on without the adapter."""
    switch = [
        "def finish_with_base(pipeline, step, time, given):",
        f"    if step + 1 == {base_from}:",
        "        pipeline.disable_lora()",
        "    return given",
        "",
    ]
    call = "" if base_from is None else ", callback_on_step_end=finish_with_base"
    return [
        "import hashlib",
        "import json",
        "",
        "import torch",
        "from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler",
        "",
        *loading,
        "pipeline.scheduler = FlowMatchEulerDiscreteScheduler()  # it shifts nothing: the sigmas below are the run's",
        READ_FACTS,
        "",
        'prompt, place, sample = "PROMPT", 0, 0  # a held-out prompt, its place among them, and which of its pictures, from 0 on',
        f"""name = f"{{template['seed'] * {SEED_STEP} + place}}/{{sample}}/0".encode()""",
        'seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1',
        'noise = torch.Generator("cpu").manual_seed(seed)',
        *([] if base_from is None else ["", "", *switch]),
        f'picture = pipeline(prompt=prompt, generator=noise, **template["pipeline_call"]{call}).images[0]',
    ]


def reasons_to_differ(policy: "FlowPolicy", evaluation: EvaluationTable, plan: RolloutPlan, kind: ExportKind) -> Iterator[str]:
    """The facts that keep a pipeline's pixels from being those of an evaluation."""
    config = policy.config
    if "bfloat16" in (config.dtype, config.vae_dtype):
        yield "the run computed in bfloat16, with latents in float32"
    if kind in MERGED:
        yield MERGED[kind]
    if config.vae_tiling:
        yield "the run decoded in tiles"
    call = call_of(policy, plan)
    if call is None or not call.sums_alike:
        yield "the pipeline adds in another order"
    together = min(evaluation.batch_size * evaluation.num_samples, max(config.forward_rows, config.rows_per_decode))
    if together > 1:
        yield (
            f"up to {together} pictures were drawn side by side, and one alone rounds otherwise (`mmrl eval RUN "
            "evaluation.batch_size=1 evaluation.num_samples=1` draws each alone)"
        )
