"""Settings that a one-line run takes from its model, before their sizes are fitted to a card; each with its reason.

A setting that the command line speaks of is left as it is.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from mmrl.app.config.algorithm import part_table
from mmrl.app.config.run import Resolved, is_free, with_values
from mmrl.app.modality.flow import sketch_of_model
from mmrl.app.modality.flow_checks import fitting_clip
from mmrl.app.modality.registry import PolicyConfig
from mmrl.app.planning.memory import Device, size_text
from mmrl.core.hooks import TermHooks, with_hooks
from mmrl.core.samples import IMAGE, kind_of
from mmrl.core.types import Prompt
from mmrl.data.files.pictures import picture_size
from mmrl.policies.codes.janus import family_of as codes_of
from mmrl.policies.codes.settings import CodePolicyConfig
from mmrl.policies.flow.dry_run import encoders_of, size_of_generator
from mmrl.policies.flow.settings import SINGLE, FlowPolicyConfig
from mmrl.policies.shared.quantized.layer import count_weights, is_tied
from mmrl.policies.text.dry_run import meta_model
from mmrl.policies.text.families.base import Family
from mmrl.policies.text.loading import layers_to_quantize
from mmrl.policies.text.settings import TextPolicyConfig

CHOSEN = "fitted to model and card"
FEW_WEIGHTS = 100_000_000
"""Models up to this size train all their weights in float32: 16 bytes a weight are 1.5 GiB there."""
TRAINED_WHOLE = 16
"""Bytes a weight: itself, its gradient, and two numbers of AdamW, in float32."""
MOST_PIXELS = 1_003_520
"""Area of a picture: 1,280 tokens of 28 x 28 pixels."""
CLIP_PIXELS = 3_211_264
"""Area of a clip's frames together: 2,048 tokens, one for 28 x 28 pixels of two frames."""
TOKENS_A_SIDE = 8
"""Side, in tokens, of the pictures that a tiny generator draws."""


@dataclass(frozen=True)
class PlannedSetting:
    """A setting, and why it is so: `PlannedSetting("policy.dtype", "bfloat16", "2 bytes a weight in place of 4")`."""

    key: str
    value: object
    why: str


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a model that its config tells, and about the prompts that it will see."""

    weights: int
    """Numbers of the network that trains."""
    area: int = 0
    """Pixels of the largest picture of a prompt."""
    limits_pixels: bool = False
    """May pictures be shrunk by policy.max_pixels?"""
    token_side: int = 0
    """Pixels of a generator's token along one side."""
    most_side: int | None = None
    """The longest side that it draws; None: there is no bound."""
    token_elements: int = 0
    """Numbers of a latent of one token."""
    parts: tuple[str, ...] = ()
    """Parts whose linear layers may rest in 4 bits, the one that adapters train in first."""
    has_own_head: bool = False
    """Of a model that writes: are its input embeddings a table of their own, which may rest on the host?"""

    @property
    def is_tiny(self) -> bool:
        return self.weights <= FEW_WEIGHTS

    @classmethod
    def of(cls, policy: PolicyConfig, prompts: Sequence[Prompt]) -> "ModelFacts":
        """The facts of a model, here or on the hub, from its configs.

        Raises FileNotFoundError without it, ValueError for one of an unknown kind.
        """
        area = max((area_of(prompt) for prompt in prompts), default=0)
        if isinstance(policy, TextPolicyConfig):
            model, family = meta_model(policy)
            limits = type(family).limit_pixels is not Family.limit_pixels
            own_head = not is_tied(model)
            return cls(count_weights(model), area, limits, parts=small_parts(model, family), has_own_head=own_head)
        if isinstance(policy, CodePolicyConfig):
            return cls(count_weights(meta_model(TextPolicyConfig(policy.model), codes_of)[0]), area)
        weights, side = size_of_generator(policy)
        kind, family = sketch_of_model(replace(policy, height=side, width=side) if policy.seconds is None else policy)
        parts = (
            () if policy.model.endswith(SINGLE) else ("transformer", *(["text_encoders"] if encoders_of(policy, kind) else []))
        )
        if family is None:
            return cls(weights, area, token_side=side, parts=parts)
        return cls(weights, area, False, side, family.grid.most, math.prod(family.latent_shape), parts)


def small_parts(model: nn.Module, family: Family) -> tuple[str, ...]:
    """Parts of a model that may rest in 4 bits; none where most of the language model lies in no linear layer."""

    def has_linear_layers(part: str) -> bool:
        try:
            return bool(layers_to_quantize(model, family, (part,)))
        except ValueError:
            return False

    found = tuple(part for part in ("language", "vision", "projector") if has_linear_layers(part))
    return found if "language" in found else ()


def in_4_bits(resolved: Resolved, facts: ModelFacts, device: Device, need: int) -> Iterator[list[PlannedSetting]]:
    """Weights in 4 bits for a run that does not fit a card, `need` bytes, where adapters train beside; then further parts."""
    policy = resolved.config.policy
    may = device.is_card and facts.parts and is_free(resolved, "policy.weights") and policy.lora is not None
    if not may:
        return
    why = f"{size_text(need)} would be needed of {size_text(device.usable)} with weights in {policy.dtype}"
    weights = PlannedSetting("policy.weights", "nf4", why)
    yield [weights]
    first, *more = facts.parts
    if not is_free(resolved, "policy.quantized"):
        return
    every = {"parts": list(facts.parts)}
    if more:
        yield [weights, PlannedSetting("policy.quantized", every, f"with {first} alone in 4 bits it would not fit")]
    if facts.has_own_head:
        table = PlannedSetting(
            "policy.quantized", {**every, "embeddings": "host"}, "beside its input embeddings it would not fit"
        )
        yield [weights, table]


def area_of(prompt: Prompt) -> int:
    """Pixels of the largest picture of a prompt, 0 where it has none."""
    sizes = [picture_size(medium) for medium in prompt.media if kind_of(medium) is IMAGE]
    return max((width * height for width, height in sizes), default=0)


def with_choices(resolved: Resolved, choices: Sequence[PlannedSetting]) -> Resolved:
    """The run with these settings."""
    return with_values(resolved, {choice.key: choice.value for choice in choices}, CHOSEN)


def usual_choices(resolved: Resolved, facts: ModelFacts) -> list[PlannedSetting]:
    """The settings that do not depend on the card."""
    policy = resolved.config.policy
    if isinstance(policy, TextPolicyConfig):
        found = tiny_choices(facts) if facts.is_tiny else text_choices(resolved, policy, facts)
    elif isinstance(policy, CodePolicyConfig):
        found = tiny_choices(facts) if facts.is_tiny else real_choices(resolved, facts, rank=64)
    else:
        found = tiny_drawing(resolved, policy, facts) if facts.is_tiny else drawing_choices(resolved, facts)
    return [choice for choice in found if is_free(resolved, choice.key)]


def tiny_choices(facts: ModelFacts) -> Iterator[PlannedSetting]:
    few = f"{facts.weights / 1e6:.1f} million weights need {size_text(TRAINED_WHOLE * facts.weights)}"
    yield PlannedSetting("policy.dtype", "float32", f"a small model trains whole: its {few}")


def tiny_drawing(resolved: Resolved, policy: FlowPolicyConfig, facts: ModelFacts) -> Iterator[PlannedSetting]:
    yield from tiny_choices(facts)
    side = TOKENS_A_SIDE * facts.token_side
    side = side if facts.most_side is None else min(side, facts.most_side // facts.token_side * facts.token_side)
    area = 1
    for key, own in (("policy.height", policy.height), ("policy.width", policy.width)) if policy.seconds is None else ():
        area *= side if is_free(resolved, key) else own
        yield PlannedSetting(key, side, "small pictures for a small model")
    elements = facts.token_elements * (area // facts.token_side**2 if policy.seconds is None else 1)
    for i, (_, term) in enumerate(resolved.config.algorithm.algorithm.objective):
        clipped = with_hooks(term, TermHooks).clip_range
        wider = None if clipped is None or not elements else fitting_clip(clipped, elements)
        for name in ("low", "high") if wider is not None and is_free(resolved, "algorithm.objective") else ():
            why = f"ratios of latents of {elements} elements spread more than those of large pictures"
            yield PlannedSetting(f"algorithm.objective.{i}.{name}", float(f"{wider:.1g}"), why)


def real_choices(resolved: Resolved, facts: ModelFacts, rank: int, lr: float | None = None) -> Iterator[PlannedSetting]:
    """Adapters in bfloat16 whose activations are computed twice: what text and image models share."""
    half, whole = size_text(2 * facts.weights), size_text(TRAINED_WHOLE * facts.weights)
    yield PlannedSetting("policy.dtype", "bfloat16", f"weights take {half}, half of what float32 takes")
    yield PlannedSetting("policy.lora", {"rank": rank, "alpha": 2 * rank}, f"adapters train; all weights would take {whole}")
    yield PlannedSetting("policy.gradient_checkpointing", True, "activations are computed twice and not kept")
    if (objective := without_reference(resolved)) is not None:
        yield PlannedSetting(
            "algorithm.objective", objective, "no term compares with a reference, so no copy of it is kept or read"
        )
    if not is_free(resolved, "policy.lora") and resolved.config.policy.lora is None:
        return
    usual = resolved.config.modality.rates[0]
    yield PlannedSetting("optimizer.lr", usual if lr is None else lr, "the usual rate of adapters")
    yield PlannedSetting("optimizer.warmup_steps", min(10, resolved.config.steps // 10), "the first updates are small")


def text_choices(resolved: Resolved, policy: TextPolicyConfig, facts: ModelFacts) -> Iterator[PlannedSetting]:
    unscored = resolved.config.algorithm.algorithm.unscored
    yield from real_choices(resolved, facts, rank=64, lr=1e-4 if unscored else None)
    if policy.engine is None and not unscored:
        yield PlannedSetting("algorithm.old", "reread", "in bfloat16 the training forward decides what old log-probabilities are")
    if facts.limits_pixels and facts.area > MOST_PIXELS:
        why = f"the largest picture has {facts.area / 1e6:.1f} million pixels; shown with 1.0, a picture is 1,280 tokens at most"
        yield PlannedSetting("policy.max_pixels", MOST_PIXELS, why)
    if facts.limits_pixels and resolved.name == "video":
        yield PlannedSetting("policy.video.total_pixels", CLIP_PIXELS, "a clip is 2,048 tokens at most")


def drawing_choices(resolved: Resolved, facts: ModelFacts) -> Iterator[PlannedSetting]:
    yield from real_choices(resolved, facts, rank=32)
    yield PlannedSetting("policy.equal_forwards", True, "sampling and training run the same kernels, so that ratios begin at 1")
    yield PlannedSetting("ratio_bound", 1e-5, "what bfloat16 and equal forwards keep")


def without_reference(resolved: Resolved) -> list[Mapping[str, object]] | None:
    """The objective's terms that read no reference weights, as tables; None where all do without, or none does."""
    assembly = resolved.config.algorithm
    if not (is_free(resolved, "algorithm.preset") and is_free(resolved, "algorithm.objective")):
        return None
    terms = assembly.algorithm.objective
    kept = [(i, coef, term) for i, (coef, term) in enumerate(terms) if all(reading.model != "ref" for reading in term.reads)]
    if len(kept) in (0, len(terms)):
        return None
    return [{"coef": coef} | part_table(term, assembly.uses.get(f"algorithm.objective.{i}")) for i, coef, term in kept]
