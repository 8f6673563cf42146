"""Policies that draw pictures, as the commands see them."""

import math
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.modality.base import EvaluationTable, ExportKind, Modality, PolicyNeeds, VariantConfig
from mmrl.app.modality.flow_checks import (
    check_objective,
    check_parts,
    check_taught,
    refuse_comparison_of_sizes,
    refuse_plans,
    refuse_sizes,
    warn_of_clip_ranges,
    warn_of_guidance,
    warn_of_half_precision,
    warn_of_idle_network,
    warn_of_stretching,
)
from mmrl.app.modality.merge import merge_lora
from mmrl.app.modality.taught import follows_teachers, measured_apart, refuse_comparisons
from mmrl.app.modality.templates import draw_again, flow_template
from mmrl.core.types import Prompt
from mmrl.flow.layout import lay_out
from mmrl.flow.plan import RolloutPlan, evaluation_plan
from mmrl.policies.flow.settings import SINGLE, FlowPolicyConfig
from mmrl.policies.flow.sizes import Size, own_size
from mmrl.policies.shared.teachers import refuse_missing_teachers, refuse_no_teachers
from mmrl.runtime.blame import refuse_where

if TYPE_CHECKING:
    from mmrl.policies.flow.families.base import FlowFamily
    from mmrl.policies.flow.policy import FlowPolicy
    from mmrl.policies.shared.dry_run import DryRun

EVALUATION_STEPS = 28
LOOK_AHEAD = 100
"""Training steps whose plans are looked at before the first one."""


class FlowModality(Modality[FlowPolicyConfig, "FlowPolicy"]):
    """Image generators that integrate noise to pictures along a schedule."""

    name = "flow"
    settings = FlowPolicyConfig
    evaluation_keys = ("num_steps", "guidance", "base_from")
    output = "image"
    index_file = "model_index.json"
    library, adapter_library = "diffusers", "diffusers"
    adapter_note = (
        "This needs the base model; to run without it, export with --merge. Its scale is in its weights. Tried with diffusers "
        "and peft; not tried in ComfyUI or kohya's scripts."
    )
    rates = (3e-4, 1e-5)
    idle_columns = ("guidance", "guidance_scale", "num_steps", "num_inference_steps", "negative_prompt", "seed", "resolution")

    def output_of(self, policy: FlowPolicyConfig) -> str:
        if policy.seconds is not None:
            return "sound"
        if policy.frames == 1:
            return "image"
        return "video with sound" if policy.sound else "video"

    def stand_ins(self, policy: FlowPolicyConfig) -> tuple[object, object]:
        """Clips have the policy's number of frames."""
        if policy.frames == 1:
            return super().stand_ins(policy)
        one = np.zeros((policy.frames, 2, 2, 3), np.uint8)
        return one, one + 1

    def evaluation_defaults(self, policy: FlowPolicyConfig) -> dict[str, Any]:
        return {"num_steps": EVALUATION_STEPS}

    def eval_sampling(self, evaluation: EvaluationTable, one: VariantConfig | None = None) -> RolloutPlan:
        """The steps; what a further way leaves out is as in [evaluation]."""
        own = evaluation if one is None else one
        guidance = evaluation.guidance if own.guidance is None else own.guidance
        base_from = evaluation.base_from if own.base_from is None else own.base_from
        steps = own.num_steps or evaluation.num_steps or EVALUATION_STEPS
        return evaluation_plan(steps, guidance=guidance, base_from=base_from)

    def check_prompts(self, policy: FlowPolicyConfig, prompts: Sequence[Prompt]) -> None:
        from mmrl.policies.flow.families.sources import refuse_sources

        kind, sketch = sketch_of_model(policy)
        refuse_sources(prompts, kind.sources, f"policy.model {policy.model!r}")
        refuse_sizes(prompts, sketch)

    def check_plans(
        self, policy: FlowPolicyConfig, algorithm: Algorithm, evaluation: EvaluationTable, prompts: Sequence[Prompt]
    ) -> None:
        _, sketch = sketch_of_model(policy)
        if sketch is not None:
            refuse_plans(self.plans(algorithm, evaluation), families_by_size(sketch, prompts))

    def plans(self, algorithm: Algorithm, evaluation: EvaluationTable) -> Mapping[str, RolloutPlan]:
        """How pictures are drawn at the first step, and how held-out ones are, by the table of the config that says so."""
        trained = {} if algorithm.schedule is None else {"algorithm.schedule": algorithm.schedule.at(0)}
        also = {f"evaluation.also.{i}": self.eval_sampling(evaluation, one) for i, one in enumerate(evaluation.also)}
        return {**trained, "evaluation": self.eval_sampling(evaluation), **also}

    def warn_after_load(
        self, policy: "FlowPolicy", algorithm: Algorithm, evaluation: EvaluationTable, prompts: Sequence[Prompt]
    ) -> None:
        families = families_by_size(policy.family, prompts)
        refuse_plans(self.plans(algorithm, evaluation), families)
        policy.encoder.warn([prompt.text for prompt in prompts])
        for size, family in families.items():
            own = [prompt for prompt in prompts if policy.family.size_of(prompt) == size]
            warn_of_stretching(own, family.source_size, policy.config.source_fit)
        warn_of_guidance(policy.config, policy.family.default_guidance, algorithm)
        super().warn_after_load(policy, algorithm, evaluation, prompts)
        warn_of_half_precision(algorithm, policy.config)
        if algorithm.schedule is not None:
            plans = [algorithm.schedule.at(step) for step in range(LOOK_AHEAD)]
            warn_of_idle_network(policy.family.boundary, [(plan, policy.sigmas(plan)) for plan in plans])
        warn_of_clip_ranges(algorithm, min(math.prod(family.latent_shape) for family in families.values()))

    def adapt_algorithm(
        self, algorithm: Algorithm, policy: FlowPolicyConfig, label: str, prompts: Sequence[Prompt] = ()
    ) -> Algorithm:
        """Lays out a group of the first step, so that a group size that fills no tree is refused here."""
        reasons = {
            "has no schedule, but policy.kind is 'flow', and an image generator samples along one: take a preset for flow models "
            'such as flow_grpo, or set [algorithm.schedule] with kind = "Full"': algorithm.schedule is None,
            f"shows prompts in other ways ({', '.join(algorithm.views)}), but policy.kind is 'flow', whose prompts are texts: "
            "take a preset for flow models such as flow_grpo": bool(algorithm.views),
        }
        refuse_where(f"algorithm {label} ", reasons)
        assert algorithm.schedule is not None
        plan = algorithm.schedule.at(0)
        lay_out(plan, [algorithm.group_size], [0])
        check_objective(algorithm, plan, label)
        refuse_comparisons(algorithm, label, self.name)
        if follows_teachers(algorithm):
            refuse_no_teachers(len(policy.teachers), label, "adapter")
            refuse_missing_teachers(prompts, [one.name for one in policy.teachers])
        sketch = sketch_of_model(policy)[1] if policy.frames > 1 else None
        check_taught(algorithm, policy, prompts, sketch)
        check_parts(algorithm, policy, sketch, label)
        refuse_comparison_of_sizes(algorithm, {own_size(prompt) or (policy.width, policy.height) for prompt in prompts})
        return measured_apart(algorithm, label)

    def able(self, policy: FlowPolicyConfig) -> "tuple[type[FlowPolicy], Set[str]]":
        from mmrl.policies.flow.policy import QUANTITIES, FlowPolicy

        return FlowPolicy, QUANTITIES

    def build(self, policy: FlowPolicyConfig, needs: PolicyNeeds) -> "FlowPolicy":
        from diffusers.utils import logging

        from mmrl.app.modality.samplers import drawing_generator
        from mmrl.policies.flow.parts import FlowParts
        from mmrl.policies.flow.policy import FlowPolicy
        from mmrl.policies.shared.weights import USUAL_DECAY

        if not sys.stderr.isatty():
            logging.disable_progress_bar()
        parts = FlowParts() if needs.samplers is None else FlowParts(generator=drawing_generator(needs.samplers))
        return FlowPolicy(policy, needs.shadows, needs.ema_decay or USUAL_DECAY, parts)

    def build_dry_run(self, policy: FlowPolicyConfig, needs: PolicyNeeds) -> "DryRun":
        from mmrl.policies.flow.dry_run import FlowDryRun

        return FlowDryRun(policy, needs.shadows)

    def alone(self, policy: FlowPolicyConfig, rows: int) -> FlowPolicyConfig:
        return replace(policy, equal_forwards=True, forward_rows=rows, decode_rows=1)

    def parts(self, policy: "FlowPolicy") -> Sequence[nn.Module]:
        from mmrl.policies.flow.loading import parts_of

        return parts_of(policy.pipeline)

    def tokens_read(self, policy: "FlowPolicy", text: str) -> tuple[int, int]:
        return policy.family.count_tokens(text)

    def task(self, policy: "FlowPolicy") -> str:
        """Models that draw from text alone as well as from pictures count as drawing from text."""
        output = {"sound": "audio", "video with sound": "video"}.get(made := self.output_of(policy.config), made)
        return f"{'image' if policy.family.sources[0] else 'text'}-to-{output}"

    def snippet(self, policy: "FlowPolicy", base: str, adapter: bool) -> Sequence[str]:
        return ("from diffusers import DiffusionPipeline", "", *self.loading_code(policy, base, adapter))

    def loading_code(self, policy: "FlowPolicy", base: str, adapter: bool, *options: str) -> Sequence[str]:
        """Parts that the pipeline was saved without, such as SD3's T5, are named: diffusers refuses to leave them out itself."""
        pipeline = policy.pipeline
        absent = [name for name, part in pipeline.components.items() if part is None]
        further = list(policy.family.trained)[1:]
        given = [f"{name}=None" for name in absent if name not in pipeline._optional_components]
        variant = [f'variant="{policy.config.variant}"'] if adapter and policy.config.variant else []
        words = ", ".join([f'"{base if adapter else "THIS_FOLDER"}"', *given, *variant, *options])
        loading = [f"pipeline = DiffusionPipeline.from_pretrained({words})"]
        if adapter and policy.config.model.endswith(SINGLE):
            loading = file_code(policy, base, given, options)
        return (
            *loading,
            *(adapter_code(pipeline, policy.family.networks[0]) if adapter else []),
            *(f'pipeline.load_lora_weights("THIS_FOLDER/{name}", load_into_{name}=True)' for name in further if adapter),
        )

    def template(self, policy: "FlowPolicy", evaluation: EvaluationTable) -> dict[str, object]:
        return flow_template(policy, evaluation, self.eval_sampling(evaluation))

    def again(self, policy: "FlowPolicy", evaluation: EvaluationTable, base: str, kind: ExportKind) -> Sequence[str]:
        plan = self.eval_sampling(evaluation)
        # Left out, text encoders would come in the dtype of their files.
        loading = self.loading_code(policy, base, kind == "adapter", f"torch_dtype=torch.{policy.config.dtype}")
        return draw_again(policy, evaluation, plan, loading, kind)

    def merge(self, folder: Path, policy: FlowPolicyConfig) -> None:
        merge_lora(folder, policy)


def sketch_of_model(policy: FlowPolicyConfig) -> "tuple[type[FlowFamily], FlowFamily | None]":
    """The family of a model by its config files, and what these tell of it; errors as in `load_index` and `sketch_of`."""
    from mmrl.policies.flow.loading import describe
    from mmrl.policies.flow.write.sketch import sketch_of
    from mmrl.policies.shared.published import refuse_variant, variants_in

    described, index, kind = describe(policy)
    if described is policy:
        folder = Path(policy.model).expanduser()
        variants = {name: variants_in(folder / name) for name, part in index.items() if isinstance(part, list)}
        refuse_variant(variants, policy.variant, f"policy.model {policy.model!r}")
    return kind, sketch_of(kind, index, described)


def adapter_code(pipeline: Any, network: str) -> list[str]:
    """The lines that put an adapter on a pipeline, whose class may not know how; nor may its network's."""
    if hasattr(pipeline, "load_lora_weights"):
        return ['pipeline.load_lora_weights("THIS_FOLDER")']
    load = f'pipeline.{network}.load_lora_adapter("THIS_FOLDER", prefix=None, use_safetensors=True)'
    kind = type(getattr(pipeline, network))
    # The class in use may have been given it here; the one that diffusers has counts.
    if hasattr(getattr(import_module(kind.__module__), kind.__name__), "load_lora_adapter"):
        return [load]
    return [
        "from diffusers.loaders import PeftAdapterMixin",
        f"network = pipeline.{network}  # diffusers gives adapters to its class only so",
        "network.__class__ = type(type(network).__name__, (type(network), PeftAdapterMixin), {})",
        load,
    ]


def file_code(policy: "FlowPolicy", file: str, given: Sequence[str], options: Sequence[str]) -> list[str]:
    """Python that loads the pipeline of a single file: text encoders inside only a pipeline's own loader finds there."""
    from mmrl.policies.flow.single_file import SingleFile, pipeline_of

    base = pipeline_of(policy.config).model
    config = f'config="{Path(base).name if Path(base).expanduser().is_dir() else base}"'
    parts = {name: type(part) for name, part in policy.pipeline.components.items() if isinstance(part, nn.Module)}
    inside = SingleFile(policy.config).parts(parts, policy.family.networks)
    if any(not hasattr(parts[name], "from_single_file") for name in inside):
        words = ", ".join([f'"{file}"', config, *given, *options])
        return ["import diffusers", f"pipeline = diffusers.{type(policy.pipeline).__name__}.from_single_file({words})"]
    lines = ["import diffusers"]
    for name in inside:
        words = ", ".join([f'"{file}"', config, f'subfolder="{name}"', *options])
        lines.append(f"{name} = diffusers.{parts[name].__name__}.from_single_file({words})")
    words = ", ".join([config.removeprefix("config="), *(f"{name}={name}" for name in inside), *given, *options])
    return [*lines, f"pipeline = DiffusionPipeline.from_pretrained({words})"]


def families_by_size(family: "FlowFamily", prompts: Sequence[Prompt]) -> "dict[Size, FlowFamily]":
    """The family for every size that prompts are drawn at."""
    asked = {family.size_of(prompt) for prompt in prompts} or {(family.width, family.height)}
    return {size: family.at(size) for size in sorted(asked)}
