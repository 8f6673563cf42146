"""Prompt templates of a run in words: prompt_template.json, with how held-out prompts are answered, and the run's first line."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from mmrl.app.modality.base import EvaluationTable
from mmrl.flow.plan import RolloutPlan
from mmrl.policies.flow.families.base import PipelineCall
from mmrl.policies.text.prompt.templates import QUESTION, template_name
from mmrl.policies.text.settings import Sampling

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
    space = policy.family.box_space if config.box_space == "auto" else config.box_space
    return {
        "template": template_name(config.answer_format),
        "system": config.system_prompt,
        "prefix": prefix,
        "suffix": suffix,
        "chat_template_sha256": hashlib.sha256(str(policy.processor.chat_template).encode()).hexdigest(),
        "box_space": space,
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
