"""A run's prompts and answers for others: prompt_template.json, and how a model card has held-out ones answered without mmrl."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from mmrl.app.modality.base import EvaluationTable, ExportKind
from mmrl.flow.plan import RolloutPlan
from mmrl.policies.flow.families.base import PipelineCall
from mmrl.policies.text.families.base import Family, parameters_of
from mmrl.policies.text.prompt.templates import QUESTION, template_name
from mmrl.policies.text.settings import Sampling
from mmrl.training.evaluate import SEED_STEP

if TYPE_CHECKING:
    from mmrl.policies.codes.policy import CodePolicy
    from mmrl.policies.flow.policy import FlowPolicy
    from mmrl.policies.text.policy import TextPolicy

Facts = Mapping[str, object]
"""Values that JSON holds."""


def text_template(policy: "TextPolicy", evaluation: EvaluationTable) -> dict[str, object]:
    """The facts of a model that writes: `prefix + question + suffix` after `system`, and what `generate` is given."""
    config, sampling = policy.config, answers_with(policy, evaluation)
    prefix, suffix = policy.encode.template.split(QUESTION, 1)
    return {
        "template": template_name(config.answer_format),
        "system": config.system_prompt,
        "prefix": prefix,
        "suffix": suffix,
        "chat_template_sha256": hashlib.sha256(str(policy.processor.chat_template).encode()).hexdigest(),
        "box_space": policy.encode.box_space,
        "min_pixels": config.min_pixels,
        "max_pixels": config.max_pixels,
        "video": asdict(config.video),
        "dtype": dtype_to_load(policy),
        "sampling": asdict(config.sampling),
        "evaluation_sampling": asdict(sampling),
        "generate": generate_arguments(policy, sampling),
    }


def answers_with(policy: "TextPolicy", evaluation: EvaluationTable) -> Sampling:
    """The sampling of held-out answers."""
    return evaluation.sampling or policy.config.sampling


def dtype_to_load(policy: "TextPolicy") -> str:
    """The dtype in which the run held the weights: an adapter's base in half precision, all else in float32."""
    return policy.config.dtype if policy.config.lora is not None else "float32"


def generate_arguments(policy: "TextPolicy", sampling: Sampling) -> dict[str, object]:
    """The arguments of transformers' `generate` that make it draw as the policy does.

    They also switch off what a model's own generation_config.json may ask for, such as Qwen2.5-VL's penalty on repetitions.
    """
    given: dict[str, object] = {
        "do_sample": sampling.temperature > 0,
        "num_beams": 1,
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "max_new_tokens": sampling.max_new_tokens,
        "eos_token_id": list(policy.eos_token_ids),
        "pad_token_id": policy.net.pad_token_id,
        "suppress_tokens": sorted(policy.banned),
    }
    if sampling.temperature > 0:
        given |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
    return given | ({"stop_strings": list(sampling.stop)} if sampling.stop else {})


def code_template(policy: "CodePolicy", evaluation: EvaluationTable) -> dict[str, object]:
    """The facts of a model that draws by tokens: its chat template alone is around prompts, and words that ask for a plan."""
    sampling, plan = answers_with(policy, evaluation), policy.drawing.plan
    before, behind = policy.encode.template.split(QUESTION, 1)
    return {
        "template": "none" if plan is None else "plan",
        "system": "",
        "prefix": before,
        "suffix": behind,
        **({} if plan is None else {"plan": asdict(plan)}),
        "chat_template_sha256": hashlib.sha256(str(policy.processor.chat_template).encode()).hexdigest(),
        "side": policy.family.side,
        "dtype": dtype_to_load(policy),
        "guidance": policy.drawing.guidance,
        "sampling": asdict(policy.drawing.sampling),
        "evaluation_sampling": asdict(sampling),
        "generate": {
            "generation_mode": "image",
            "guidance_scale": policy.drawing.guidance,
            "do_sample": sampling.temperature > 0,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            **({"temperature": sampling.temperature} if sampling.temperature > 0 else {}),
        },
    }


def flow_template(policy: "FlowPolicy", evaluation: EvaluationTable, plan: RolloutPlan) -> dict[str, object]:
    """The facts of a model that draws: nothing is put around its prompts; held-out ones are drawn along `plan`."""
    config, family = policy.config, policy.family
    return {
        "template": "none",
        "system": "",
        "prefix": "",
        "suffix": "",
        "negative_prompt": family.empty_prompt,
        "max_prompt_tokens": family.prompt_tokens,
        **({"height": config.height, "width": config.width, "frames": config.frames} if family.rate is None else {}),
        **({} if family.rate is None else {"seconds": family.seconds, "rate": family.rate}),
        "dtype": config.dtype,
        "num_steps": plan.num_steps,
        "guidance": guidance_of(policy, plan),
        **({} if plan.base_from is None else {"base_from_step": plan.base_from}),
        "seed": evaluation.seed,
        "noise": NOISE,
        "pipeline_call": pipeline_call(policy, plan),
    }


NOISE = (
    "standard normal, drawn in float32 on the CPU by torch.Generator().manual_seed(k): k is the 8 bytes of the BLAKE2b digest "
    "(digest_size=8) of the text '<seed * 1000003 + place of the prompt among the held-out ones>/<sample>/0', as a big-endian "
    "integer, halved"
)
"""The random numbers that a held-out picture begins with."""


def guidance_of(policy: "FlowPolicy", plan: RolloutPlan) -> float:
    return float(policy.net.guidance if plan.guidance is None else plan.guidance)


def call_of(policy: "FlowPolicy", plan: RolloutPlan) -> PipelineCall | None:
    """The family's own part of that call; None where its pipeline cannot express it."""
    return policy.family.pipeline_call(guidance_of(policy, plan))


def pipeline_call(policy: "FlowPolicy", plan: RolloutPlan) -> dict[str, object] | None:
    """The arguments with which a pipeline of diffusers draws along a plan of Euler steps, its scheduler shifting nothing.

    None where it cannot express it: clips, models that need a picture, other ways to join the passes of guidance, other steps.
    """
    config, family = policy.config, policy.family
    call = call_of(policy, plan)
    if call is None or config.frames > 1 or family.sources[0] or config.guidance_rule != "family":
        return None
    sigmas = policy.sigmas(plan)[:-1].tolist()
    return {
        "height": config.height,
        "width": config.width,
        "num_inference_steps": len(sigmas),
        "sigmas": sigmas,
        **call.arguments,
    }


def template_text(facts: Facts) -> str:
    """The facts as JSON, a list of numbers in one line."""
    text = json.dumps(facts, indent=2)
    return re.sub(r"(?<=[^\\]\": )\[[\d\s,.e-]+\]", lambda found: re.sub(r"\s+", " ", found[0]), text) + "\n"


def template_line(facts: Facts) -> str:
    """The template in a sentence: what is put around every question, and how to have it otherwise."""
    system = f" after the system message {facts['system']!r}" if facts["system"] else ""
    added = [f"{text!r} {place} it" for text, place in ((facts["prefix"], "before"), (facts["suffix"], "after")) if text]
    if not added:
        return f"prompt template {facts['template']}: nothing is put around a prompt{system}"
    if facts["template"] == "plan":
        return f"a plan is asked for with {' and '.join(added)} (policy.plan.ask)"
    boxes = f"; boxes are {facts['box_space']}" if str(facts["template"]).endswith("box") else ""
    return (
        f"prompt template {facts['template']}: every prompt stands{system} with {' and '.join(added)}{boxes} "
        '(policy.answer_format = "none" adds nothing)'
    )


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
        bos, least = policy.tokenizer.bos_token, [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
        begins = bos is not None and policy.processor.apply_chat_template(least, tokenize=False).startswith(bos)
        yield f'inputs = tokenizer(chat, add_special_tokens={not begins}, return_tensors="pt")'
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
