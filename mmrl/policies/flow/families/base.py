"""The facts of flow-matching pipelines and the questions they answer differently, with the answers most of them share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor, nn

from mmrl.core.types import Prompt
from mmrl.flow.dynamics import EulerMaruyama, name_of
from mmrl.flow.path import nearest_multiple, no_longer_than, velocity_with_guidance
from mmrl.flow.plan import RolloutPlan
from mmrl.flow.sigmas import LinearShift, Spacing, StaticShift, spacing_of
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.sizes import Grid, Size, own_size
from mmrl.runtime.tensors import to_device

EULER = "FlowMatchEulerDiscreteScheduler"


@dataclass(frozen=True)
class FamilyFacts:
    """The facts of a family, with the answers most of them share: class variables, which `FlowFamily` and its subclasses set."""

    networks: ClassVar[tuple[str, ...]] = ("transformer",)
    """The pipeline's names of what trains; a pipeline may have the first ones only."""
    schedulers: ClassVar[frozenset[str]] = frozenset({EULER})
    """Classes of the pipeline's scheduler whose steps are those taken here."""
    left_out: ClassVar[frozenset[str]] = frozenset()
    """Parts of the pipeline that are not loaded."""
    sources: ClassVar[tuple[int, int]] = (0, 0)
    """Fewest and most pictures in a prompt."""
    source_step: ClassVar[int] = 1
    """Pixels to a multiple of which the sides of a prompt's pictures are rounded, beside those of a token."""
    side_of_token: ClassVar[int] = 2
    """Latents per token along one side, unless the transformer's config says it."""
    packed: ClassVar[bool] = True
    """Does the transformer take a token for every `patch` x `patch` latents? False: latents as they are."""
    source_least: ClassVar[int] = 1
    """The shortest side of a prompt's pictures that the model's processor takes."""
    usual_guidance: ClassVar[float]
    """Guidance of a run that names none; 1 = without."""
    usual_prompt_tokens: ClassVar[int]
    """Tokens that the long text encoder takes where a run says nothing."""
    lora_targets: ClassVar[tuple[str, ...]]
    """Linear layers of the transformer that adapters sit on with policy.lora.targets = "auto"."""
    reads: ClassVar[tuple[str, ...]] = ("embeds",)
    """Names of what the pipeline's encode_prompt answers, in its order; "": it is left out."""
    read_with: ClassVar[Mapping[str, object]] = {}
    """Arguments of encode_prompt besides the text, the device and the most tokens."""
    text_width: ClassVar[str] = "joint_attention_dim"
    """What the transformer's config calls the width of a token's embedding."""
    lists_steps: ClassVar[bool] = True
    """Does its pipeline list even steps, which the scheduler shifts? False: the scheduler lists them."""
    guided_by: ClassVar[Literal["guidance_scale", "true_cfg_scale", ""]] = ""
    """The argument of its pipeline for a second pass; "": the pipeline does not take an evaluation's sigmas."""
    guided_from: ClassVar[float] = 0.0
    """Our guidance where that argument is 0: 1 of a pipeline that adds so many times the difference to the conditional pass."""
    sums_alike: ClassVar[bool] = False
    """Does its pipeline compute a single prompt, in its usual way, in the same order as the policy?"""
    empty_prompt: ClassVar[str] = ""
    """The text that stands for no prompt in guidance."""
    dead_ends: ClassVar[tuple[str, ...]] = ()
    """Modules of the last block that lead nowhere; training them is of no use, and wrappers wait for their gradients in vain."""
    idle_modules: ClassVar[tuple[str, ...]] = ()
    """Modules of every block that nothing here asks; they do not train either."""
    told_by: ClassVar[tuple[str, ...]] = ()
    """Parts whose config files tell sizes, besides the networks that train, the autoencoder and the scheduler."""
    own_negatives: ClassVar[bool] = False
    """Each condition holds what guidance leads away from; see `negative`."""
    one_length: ClassVar[bool] = False
    """Prompts of different length have forwards of their own: padding between them would change what is drawn."""
    keep_norm: ClassVar[bool] = False
    """Guided velocities keep the norm of the conditional one."""
    draws_clips: ClassVar[bool] = False
    """May policy.frames be above 1?"""
    draws_sound: ClassVar[bool] = False
    """Does it draw sounds of policy.seconds?"""
    sound_beside: ClassVar[bool] = False
    """Are its clips drawn with a sound, which policy.sound decodes?"""

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """Elements of each of several latents that are one vector, end to end: a log-probability is the mean of theirs."""
        return ()

    @property
    def rate(self) -> int | None:
        """Samples per second of sounds."""
        return None

    @property
    def embeds_guidance(self) -> bool:
        """Does the transformer take the guidance as an input, so that one forward is enough?"""
        return False

    @property
    def boundary(self) -> float | None:
        """The time below which the second network draws, 1000 = noise; None: one network for all times."""
        return None

    @property
    def is_distilled(self) -> bool:
        """Was it distilled, as far as is known, to draw in a few steps?"""
        return False

    def start(self, noise: Float[Tensor, "n ..."], sigma: float) -> Float[Tensor, "n ..."]:
        """The packed latents at the plan's first sigma, of standard normal noise."""
        return noise

    def finish(self, latents: Float[Tensor, "n ..."], sigma: float) -> Float[Tensor, "n ..."]:
        """The packed latents to decode, from those at the plan's last sigma."""
        return latents


Pipeline = Any
"""A pipeline of diffusers, whose parts have no types."""
Index = dict[str, Any]
"""A pipeline's model_index.json."""
Condition = Mapping[str, Tensor]
"""The embeddings of one prompt, by the name the family gives it; no dimension for a batch."""
Conditions = Mapping[str, Tensor]
"""The same of a batch, as `collate` gives it."""
Times = Float[Tensor, " n"]
"""Of rows, from 1000 (noise) to 0."""
SOURCE = "source"
"""A prompt's pictures in its Condition: tokens (tokens, channels), or the channels (d, f, h, w) that a first frame adds."""
ATTENTION = tuple(
    f"attn.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
)
"""The linear layers of attention over text and image together, as diffusers names them."""
ONE_PASS = {"do_classifier_free_guidance": False}
"""Has encode_prompt read one text, without another one to lead away from."""


@dataclass(frozen=True)
class PipelineCall:
    """The arguments with which a model's own pipeline draws a prompt as an evaluation does."""

    arguments: Mapping[str, object]
    sums_alike: bool = False
    """Does it compute a single prompt in the same order as the policy, so that pixels are equal?"""


@dataclass(frozen=True)
class FlowFamily(FamilyFacts):
    """One kind of pipeline. Latents here are (n, c, h, w), of clips (n, c, f, h, w); what the transformer takes may be packed.

    It draws one size; `at` gives the family that draws another one. Raises ValueError for a size that the model cannot draw.
    """

    pipeline: Pipeline
    height: int
    width: int
    prompt_tokens: int
    """Tokens that the long text encoder takes."""
    settings: FlowPolicyConfig = field(default_factory=lambda: FlowPolicyConfig(""))
    """[policy] of the run."""

    def __post_init__(self) -> None:
        refuse_other_output(self.settings, type(self))
        refuse_settings(self)

    @classmethod
    def present(cls, index: Index) -> list[str]:
        """The networks that train and that a pipeline with this model_index.json has."""
        return [name for name in cls.networks if index.get(name, [None, None]) != [None, None]]

    @classmethod
    def refuse(cls, index: Index, settings: FlowPolicyConfig) -> None:
        """Raise ValueError for settings that no model with this model_index.json can take; nothing is loaded yet."""
        refuse_other_output(settings, cls)

    @classmethod
    def refuse_scheduler(cls, name: str, config: Mapping[str, object]) -> None:
        """Raise ValueError where the scheduler's class is right and its settings are not; nothing is loaded yet."""
        if name != EULER and not (config.get("use_flow_sigmas") and config.get("prediction_type") == "flow_prediction"):
            raise ValueError(
                f"the model's {name} does not follow flow matching (use_flow_sigmas, prediction_type = flow_prediction): take "
                "a model whose scheduler does"
            )

    @property
    def trained(self) -> dict[str, Any]:
        """The networks that train, by the pipeline's names of them."""
        return networks_of(self.pipeline, type(self))

    @property
    def network(self) -> nn.Module:
        """The one module that answers `velocity`: a family whose pipeline has several networks joins them here."""
        (module,) = self.trained.values()
        return module

    def split(self, network: nn.Module) -> dict[str, nn.Module]:
        """The networks that `network` was joined of, by the pipeline's names of them."""
        return {self.networks[0]: network}

    @property
    def config(self) -> Any:
        """The first network's."""
        return getattr(self.pipeline, self.networks[0]).config

    @property
    def text_encoders(self) -> dict[str, nn.Module]:
        """The networks that read prompts, by the pipeline's names of them."""
        parts = self.pipeline.components.items()
        return {name: part for name, part in parts if name.startswith("text_encoder") and isinstance(part, nn.Module)}

    @property
    def scale(self) -> int:
        """Pixels per latent along one side."""
        return self.pipeline.vae_scale_factor

    @property
    def patch(self) -> int:
        """Latents per token along one side."""
        return self.side_of_token

    @property
    def grid(self) -> Grid:
        """The sizes of pictures that the model draws."""
        return Grid(self.scale * self.patch)

    def size_of(self, prompt: Prompt) -> Size:
        """Width and height that a prompt is drawn at: its own, or the run's. Raises ValueError for one that cannot be drawn."""
        return own_size(prompt, self.grid) or (self.width, self.height)

    def at(self, size: Size) -> "FlowFamily":
        """The family that draws pictures of this width and height."""
        width, height = size
        return self if size == (self.width, self.height) else replace(self, width=width, height=height)

    def rows_at(self, most: int, size: Size) -> int:
        """How many latents of a size have the tokens of `most` of the run's size; at least one, and 1 stays 1."""
        return max(1, most * self.image_tokens // self.at(size).image_tokens) if most > 1 else most

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Channels, perhaps frames, rows and columns."""
        channels = self.config.in_channels // (self.patch**2 if self.packed else 1)
        return (channels, self.height // self.scale, self.width // self.scale)

    @property
    def image_tokens(self) -> int:
        *_, height, width = self.latent_shape
        return (height // self.patch) * (width // self.patch)

    @property
    def fps(self) -> float | None:
        """Frames per second of clips."""
        return self.settings.fps

    @property
    def seconds(self) -> float:
        """The length of a sound."""
        return self.settings.seconds or 0.0

    @property
    def default_guidance(self) -> float:
        """The default guidance; 1 for models that were made to be drawn without."""
        return 1.0 if self.is_distilled else self.usual_guidance

    def guide(self, conditional: Tensor, unconditional: Tensor, scale: float, timesteps: Times) -> Float[Tensor, "n ..."]:
        """The guided velocity of every row, by policy.guidance_rule, with policy.guidance_low below the boundary."""
        rule, low = self.settings.guidance_rule, self.settings.guidance_low
        keep_norm = self.keep_norm if rule == "family" else rule == "norm"
        if rule == "zero_star":
            unconditional = nearest_multiple(conditional, unconditional)
        scales: Tensor | float = scale
        if low is not None and self.boundary is not None:
            scales = torch.where(timesteps < self.boundary, low, scale).to(conditional)
        v = velocity_with_guidance(conditional, unconditional, scales, keep_norm)
        return no_longer_than(conditional, v) if rule == "cap" else v

    def spacing(self) -> Spacing:
        """How the pipeline spaces its steps."""
        scheduler = self.pipeline.scheduler
        found = spacing_of({**scheduler.config, "_class_name": type(scheduler).__name__})
        if self.lists_steps and isinstance(found, StaticShift):
            return LinearShift(found.shift, "float64", found.terminal)
        return found

    def check_plan(self, plan: RolloutPlan) -> None:
        """Raise ValueError for a plan along which this model cannot draw, or leaves noise in what it draws."""
        noisy = [step.dynamics for step in plan.steps if step.trained and isinstance(step.dynamics, EulerMaruyama)]
        if noisy and self.is_distilled:
            raise ValueError(
                f"schedule.dynamics is {name_of(noisy[0])!r}, but {self.settings.model} was distilled to few steps, at which its "
                'noise stays in the picture: set algorithm.preset = "few_step", or schedule.dynamics = "cps" with level = 1'
            )

    def sigmas(self, plan: RolloutPlan) -> Float[Tensor, " t1"]:
        """The sigmas of a plan's steps. Raises ValueError where the model cannot draw along it, or its spacing has no answer."""
        self.check_plan(plan)
        return plan.sigmas(plan.spacing or self.spacing(), self.image_tokens)

    def pack(self, latents: Float[Tensor, "n ..."]) -> Tensor:
        """Latents in the form that the transformer takes: a token for every `patch` x `patch` of them, or as they are."""
        if not self.packed:
            return latents
        (n, c, h, w), p = latents.shape, self.patch
        return latents.view(n, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5).reshape(n, h * w // p**2, c * p**2)

    def unpack(self, x: Tensor) -> Float[Tensor, "n ..."]:
        if not self.packed:
            return x
        (c, h, w), p = self.latent_shape, self.patch
        return x.view(-1, h // p, w // p, c, p, p).permute(0, 3, 1, 4, 2, 5).reshape(-1, c, h, w)

    def encode(self, text: str, device: torch.device) -> Condition:
        """The embeddings of one prompt, on the CPU."""
        found = self.pipeline.encode_prompt(text, device=device, max_sequence_length=self.prompt_tokens, **self.read_with)
        return {name: value[0].cpu() for name, value in zip(self.reads, found[: len(self.reads)], strict=True) if name}

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        """The embeddings of a prompt that holds pictures, which already have `source_size`, on the CPU."""
        raise NotImplementedError

    @property
    def source_size(self) -> tuple[int, int]:
        """Width and height of a prompt's pictures as the model sees them: the drawn pictures' shape at the area asked for."""
        step, area = math.lcm(self.scale * self.patch, self.source_step), self.settings.source_pixels
        share = 1.0 if area is None else math.sqrt(area / (self.width * self.height))
        least = -(-self.source_least // step) * step
        width, height = (max(least, round(side * share / step) * step) for side in (self.width, self.height))
        return width, height

    @property
    def source_tokens(self) -> int:
        """Tokens of one picture of a prompt."""
        width, height = self.source_size
        return (width // self.scale // self.patch) * (height // self.scale // self.patch)

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        """The embeddings of the longest prompt in their shapes, all 0: what a dry run counts with."""
        embeds = torch.zeros(max(1, self.prompt_tokens), getattr(self.config, self.text_width), dtype=dtype)
        pooled = getattr(self.config, "pooled_projection_dim", None)
        return {"embeds": embeds} if pooled is None else {"embeds": embeds, "pooled": torch.zeros(pooled, dtype=dtype)}

    def blank_sources(self, count: int) -> Condition:
        """`count` pictures in the shapes that a Condition holds them in, all 0."""
        return {SOURCE: torch.zeros(count * self.source_tokens, self.pack(torch.zeros(1, *self.latent_shape)).shape[-1])}

    def negative(self, condition: Condition) -> Condition:
        """The condition that guidance leads away from where `own_negatives` says that each prompt has its own."""
        raise NotImplementedError

    def count_tokens(self, text: str) -> tuple[int, int]:
        """Tokens of a prompt, and how many of them the model sees."""
        return token_count(self.pipeline.tokenizer, text), self.prompt_tokens

    def collate(self, conditions: Sequence[Condition], full: bool) -> dict[str, Tensor]:
        """One batch; `full` pads prompts of different length to `prompt_tokens`."""
        return {name: torch.stack([condition[name] for condition in conditions]) for name in conditions[0]}

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        """The transformer's output at latents x; timesteps run from 1000 (noise) to 0."""
        return self.ask(transformer, x, timesteps, prompts)

    def ask(self, transformer: nn.Module, x: Tensor, times: Tensor, prompts: Conditions, **more: Tensor) -> Tensor:
        """The same at times of rows, or of tokens."""
        raise NotImplementedError

    @property
    def shift(self) -> float:
        """The number that is taken off the autoencoder's latents before they are scaled."""
        return self.pipeline.vae.config.get("shift_factor") or 0.0

    def normalize(self, latents: Float[Tensor, "n c h w"]) -> Float[Tensor, "n ..."]:
        """The latents that `decode` takes, from those that the autoencoder makes of pictures."""
        return (latents - self.shift) * self.pipeline.vae.config.scaling_factor

    def decode(self, latents: Float[Tensor, "n ..."]) -> Float[Tensor, "n 3 ..."]:
        """Pixels, mostly in [-1, 1]."""
        vae = self.pipeline.vae
        return vae.decode(latents / vae.config.scaling_factor + self.shift, return_dict=False)[0]

    def sound_of(self, latents: Float[Tensor, "n ..."]) -> Float[Tensor, "n channels samples"] | None:
        """The sound of clips in [-1, 1]; None where none is asked for."""

    def pipeline_call(self, guidance: float) -> PipelineCall | None:
        """How its own pipeline draws what an evaluation draws; None for one that cannot, as below 1, where it makes one pass."""
        if not self.guided_by or (guidance < 1 and not self.embeds_guidance):
            return None
        length = {"max_sequence_length": self.prompt_tokens}
        if self.embeds_guidance or self.guided_by == "guidance_scale":
            return PipelineCall({"guidance_scale": guidance - self.guided_from, **length}, self.sums_alike)
        if guidance == 1:
            return PipelineCall(length, self.sums_alike)
        return PipelineCall({self.guided_by: guidance, "negative_prompt": self.empty_prompt, **length})


@dataclass(frozen=True)
class Distillable(FlowFamily):
    """A model whose model_index.json says whether it was distilled to be drawn without guidance."""

    called: ClassVar[tuple[str, str]]
    """The names of the model, and of the one that guidance may be asked of."""

    @classmethod
    def refuse(cls, index: Index, settings: FlowPolicyConfig) -> None:
        super().refuse(index, settings)
        if index.get("is_distilled") and settings.guidance not in (None, 1):
            raise ValueError(
                f"policy.guidance is {settings.guidance:g}, but {settings.model!r} is a distilled {cls.called[0]}, which is "
                f"drawn without: leave policy.guidance out, or take {cls.called[1]}"
            )

    @property
    def is_distilled(self) -> bool:
        return bool(self.pipeline.config.is_distilled)


def refuse_settings(family: FlowFamily) -> None:
    """Raise ValueError for settings that a model of the family cannot take."""
    for name in ("height", "width"):
        family.grid.refuse_setting(f"policy.{name}", getattr(family, name))
    if family.settings.guidance_low is not None and family.boundary is None:
        raise ValueError(
            f"policy.guidance_low is {family.settings.guidance_low:g}, but {family.settings.model!r} has one network for all "
            "times: leave it out, or take a model of two such as Wan 2.2 A14B"
        )
    for name in ("guidance_low", "guidance_sound"):
        if getattr(family.settings, name) is not None and family.settings.guidance == 1:
            raise ValueError(
                f"policy.guidance is 1, which draws in one pass, so policy.{name} cannot be had: set guidance above 1 or leave "
                f"{name} out"
            )
    if family.settings.guidance_rule != "family" and family.embeds_guidance:
        raise ValueError(
            f"policy.guidance_rule is {family.settings.guidance_rule!r}, but {family.settings.model!r} takes the guidance as an "
            "input and makes one pass, so there is nothing to join: leave it out"
        )
    if not family.sources[1] and (family.settings.source_pixels is not None or family.settings.source_fit != "resize"):
        raise ValueError(
            "policy.source_pixels and policy.source_fit are for pictures in prompts, but this model draws from text alone: "
            "leave them out"
        )


def refuse_other_output(settings: FlowPolicyConfig, family: type[FlowFamily]) -> None:
    """Raise ValueError if a model is to draw clips or sounds and draws something else, or sounds without a length."""
    if not family.sound_beside and (settings.sound or settings.guidance_sound is not None):
        key = "sound" if settings.sound else "guidance_sound"
        raise ValueError(f"policy.{key} is set, but this model draws no clips with sound: leave it out, or take an LTX-2")
    if settings.sound and settings.frames == 1:
        raise ValueError("policy.sound goes with clips, and policy.frames is 1: set frames, such as 121, or leave sound out")
    if not family.draws_clips and (settings.frames != 1 or settings.fps is not None):
        what = "sounds" if family.draws_sound else "pictures"
        given = f"fps is {settings.fps:g}" if settings.frames == 1 else f"frames is {settings.frames}"
        raise ValueError(f"policy.{given}, but this model draws {what}: leave it out, or take a Wan for clips")
    if settings.seconds is not None and not family.draws_sound:
        what = "clips" if family.draws_clips else "pictures"
        raise ValueError(
            f"policy.seconds is {settings.seconds:g}, but this model draws {what}: leave it out, or take "
            "a Stable Audio 3 for sounds"
        )
    for side in ("height", "width") if family.draws_sound else ():
        if (given := getattr(settings, side)) != getattr(FlowPolicyConfig, side):
            raise ValueError(f"policy.{side} is {given}, but this model draws sounds, whose size is policy.seconds: leave it out")
    if settings.seconds is None and family.draws_sound:
        raise ValueError("this model draws sounds, and policy.seconds does not say how long they are: set it, such as 10.0")


def networks_of(pipeline: Pipeline, family: type[FlowFamily]) -> dict[str, Any]:
    """The networks of a pipeline that train, by its names of them."""
    return {name: part for name in family.networks if (part := getattr(pipeline, name, None)) is not None}


def token_count(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text).input_ids)


def grid_places(first: float, rows: int, columns: int, x: Tensor) -> Float[Tensor, "tokens 3"]:
    """Row and column of every token of a picture behind the same first number, in the type of x."""
    axes = (torch.arange(count, device=x.device, dtype=x.dtype) for count in (rows, columns))
    return torch.cartesian_prod(x.new_full((1,), first), *axes)


def moments(vae: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of an autoencoder's latents by channel, which its config tells, or it keeps beside its weights."""
    kept = vae.config if "latents_mean" in vae.config else vae
    mean, std = (torch.as_tensor(x).to(like).view(1, -1, *[1] * (like.ndim - 2)) for x in (kept.latents_mean, kept.latents_std))
    return mean, std


def side_by_side(
    texts: Sequence[Tensor], length: int | None = None
) -> tuple[Float[Tensor, "n tokens ..."], Bool[Tensor, "n tokens"]]:
    """Embeddings (tokens, ...) padded at their ends to the longest or to `length`, and a mask that is True at tokens."""
    most = max(len(text) for text in texts) if length is None else length
    padded = torch.stack([torch.cat([text, text.new_zeros(most - len(text), *text.shape[1:])]) for text in texts])
    mask = torch.arange(most) < torch.tensor([len(text) for text in texts])[:, None]
    return padded, to_device(mask, padded.device)
