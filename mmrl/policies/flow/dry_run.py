"""An image generator that goes through all motions of a run without its weights: it counts forwards and draws nothing.

Latents are four numbers each while it counts; the largest forward is then taken in full size through networks without weights.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmrl.core.types import Request
from mmrl.policies.flow.families.base import Condition, FlowFamily
from mmrl.policies.flow.families.sd3 import StableDiffusion3
from mmrl.policies.flow.generate import LocalGenerator, Sampled
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.loading import FAMILIES, Index, add_trainable, load_index
from mmrl.policies.flow.parts import FlowParts
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.trace import SigmaPlan
from mmrl.policies.shared.call_log import CallLog, NoDiagnostics, StillWeights, make_gradients
from mmrl.policies.shared.meta_models import count_bytes, fake_weights, size_of
from mmrl.policies.shared.weights import Weights


def load_meta(config: FlowPolicyConfig) -> FlowFamily:
    """The family as `loading.load` gives it, without weights, tokenizers and text encoders: it needs the folder's configs alone.

    Raises:
        FileNotFoundError: no such folder or hub model, or a part of it without a config.
        ValueError: a pipeline that is no flow-matching one known here, or a picture size it cannot draw.
    """
    index = load_index(config.model)
    kind = FAMILIES[index["_class_name"]]
    transformer, vae = part_of(config.model, index, "transformer"), part_of(config.model, index, "vae")
    half = config.dtype == "bfloat16" and config.lora is not None
    # The class's own `to` warns, and there is nothing to warn of.
    nn.Module.to(transformer, torch.bfloat16 if half else torch.float32)
    nn.Module.to(vae, torch.bfloat16 if config.vae_dtype == "bfloat16" else torch.float32)
    pipeline = SimpleNamespace(
        transformer=transformer.requires_grad_(False).eval(),
        vae=vae.requires_grad_(False).eval(),
        vae_scale_factor=scale_of(vae),
        scheduler=part_of(config.model, index, "scheduler"),
        image_processor=None,
        summary_tokens=tokens_of(config.model, index, "text_encoder"),
    )
    with torch.device("meta"):
        add_trainable(pipeline, kind, None if config.lora is None else replace(config.lora, adapter=None))
    if config.gradient_checkpointing:
        transformer.enable_gradient_checkpointing()
    if config.vae_slicing:
        vae.enable_slicing()
    if config.vae_tiling:
        vae.enable_tiling()
    fake_weights(transformer, vae)
    tokens = kind.usual_prompt_tokens if config.max_prompt_tokens is None else config.max_prompt_tokens
    return kind(pipeline, config.height, config.width, tokens)


def scale_of(vae: Any) -> int:
    """Pixels per latent along one side, as the pipelines have it."""
    channels = getattr(vae.config, "block_out_channels", None)
    return 2 ** (len(channels) - 1) if channels else 2 ** len(vae.temperal_downsample)


def tokens_of(model: str, index: Index, name: str) -> int:
    """The longest text that an encoder reads, 0 where it does not say."""
    return getattr(config_of(model, index, name), "max_position_embeddings", 0)


def config_of(model: str, index: Index, name: str) -> Any:
    """The config of a part that transformers wrote."""
    library, class_name = index[name]
    return getattr(import_module(library), class_name).config_class.from_pretrained(model, subfolder=name)


def part_of(model: str, index: Index, name: str) -> Any:
    """A network on the meta device, or a scheduler.

    Raises:
        FileNotFoundError: the part has no config.
    """
    library, class_name = index[name]
    cls = getattr(import_module(library), class_name)
    try:
        with torch.device("meta"):
            if library == "transformers":
                return cls(config_of(model, index, name))
            return cls.from_config(cls.load_config(model, subfolder=name))
    except OSError as error:
        raise FileNotFoundError(
            f"policy.model {model!r} names a part {name!r} whose config could not be had: download its configs, weights are not "
            f"needed, and give the folder ({str(error).splitlines()[0]})"
        ) from None


def encoders_of(config: FlowPolicyConfig) -> dict[str, int]:
    """Text encoder -> bytes of its weights, as `loading.load` keeps them."""
    index = load_index(config.model)
    each = 2 if config.dtype == "bfloat16" else 4
    found: dict[str, int] = {}
    for name, part in index.items():
        if isinstance(part, list) and part != [None, None] and name not in ("transformer", "vae"):
            library, class_name = cast("tuple[str, str]", tuple(part))
            if is_network(library, class_name):
                found[name] = each * sum(weight.numel() for weight in part_of(config.model, index, name).parameters())
    return found


def is_network(library: str, class_name: str) -> bool:
    cls = getattr(import_module(library), class_name, None)
    return isinstance(cls, type) and issubclass(cls, nn.Module)


def without_latents(family: FlowFamily) -> FlowFamily:
    """The same family with latents of four numbers and prompts without embeddings."""
    answers: dict[str, object] = {
        "latent_shape": (1, 2, 2),
        "image_tokens": family.image_tokens,
        "pack": lambda self, latents: latents,
        "encode": lambda self, text, device: {},
        "count_tokens": lambda self, text: (0, 0),
    }
    kind = cast("type[FlowFamily]", type("DryFamily", (type(family),), answers))
    return kind(family.pipeline, family.height, family.width, family.prompt_tokens)


@dataclass
class DryGenerator:
    """Draws nothing, and has its forwards counted as those of sampling."""

    inner: LocalGenerator
    log: CallLog
    exact: bool = True

    def follow(self, weights: Weights, version: int) -> None:
        """There are no weights."""

    def write(self, requests: Sequence[Request], sigma_plan: SigmaPlan) -> Sampled:
        with self.log.rollout():
            return self.inner.write(requests, sigma_plan)


@dataclass
class DryForward:
    """Velocities of 0; counts the forwards that a network would have made."""

    host: FlowHost
    image_tokens: int
    log: CallLog
    still: StillWeights
    largest: dict[str, tuple[int, float | None]] = field(default_factory=dict[str, tuple[int, float | None]])
    """Phase -> latents and guidance of the largest forward."""

    def __call__(
        self,
        x: Float[Tensor, "m ..."],
        timesteps: Float[Tensor, " m"],
        conditions: Sequence[Condition],
        index: Int[Tensor, " m"],
        guidance: float | None = None,
    ) -> Float[Tensor, "m ..."]:
        config = self.host.config
        count = self.host.net.passes(guidance) * (config.forward_rows if config.equal_forwards else len(x))
        if self.log.note(1, 0, count, count * self.image_tokens):
            self.largest[self.log.phase] = (len(x), guidance)
        return torch.zeros_like(x) + self.still.zero()


class NoImages:
    """Decodes nothing."""

    def __init__(self, host: FlowHost) -> None:
        """`host` is not asked."""

    def __call__(self, latents: Float[Tensor, "n ..."]) -> list[object]:
        """No image for every row."""
        return [None] * len(latents)


class FlowDryRun:
    """A FlowPolicy of parts that answer every request with no picture and every velocity with 0.

    Raises:
        FileNotFoundError: a config is missing.
        ValueError: as FlowPolicy.
    """

    def __init__(self, config: FlowPolicyConfig, shadows: Iterable[str] = ()) -> None:
        self.family, self.log, still = load_meta(config), CallLog(), StillWeights()
        small = without_latents(self.family)
        parts = FlowParts(
            load=lambda config: small,
            generator=lambda host: DryGenerator(LocalGenerator(host), self.log),
            forward=lambda host: DryForward(host, self.family.image_tokens, self.log, still),
            decoder=NoImages,
            embeddings=lambda config, family: None,
            weights=still.keeper(),
            diagnostics=NoDiagnostics,
        )
        self.policy = FlowPolicy(config, shadows, parts=parts)
        # Counting never reaches the network; the one forward that does is in full size, with every place of a latent.
        self.policy.net.family = self.family

    @property
    def network(self) -> nn.Module:
        """The transformer that trains, and what it is built on, without weights."""
        return self.policy.net.transformer

    def beside(self) -> dict[str, int]:
        """Part -> bytes of further networks."""
        config = self.policy.config
        encoders = {} if config.rest_text_encoders else encoders_of(config)
        return {"vae": size_of(self.policy.pipeline.vae.parameters()), **encoders}

    def activations(self) -> dict[str, int]:
        """Phase -> most bytes that its largest forward keeps at a time; `decode` turns latents into pictures."""
        make_gradients(self.network)
        config, asked = self.policy.config, self.policy.forward
        assert isinstance(asked, DryForward)
        found: dict[str, int] = {}
        for phase in self.log.largest:
            count, guidance = asked.largest[phase]
            found[phase] = peak_bytes(partial(forward, self, count, guidance, phase == "update"))
        rows = 1 if config.vae_slicing else config.decode_rows
        with torch.no_grad():
            dtype = torch.bfloat16 if config.vae_dtype == "bfloat16" else torch.float32
            latents = torch.zeros(rows, *self.family.latent_shape, dtype=dtype)
            found["decode"] = peak_bytes(partial(self.family.decode, latents))
        if config.rest_text_encoders:
            found["encode"] = sum(encoders_of(config).values())
        return found

    def parts_of_activations(self) -> Mapping[str, int]:
        """Nothing: latents are kept in the memory of the host."""
        return {}


def condition_of(family: FlowFamily, dtype: torch.dtype) -> Condition:
    """Embeddings of the longest prompt, in their shapes."""
    config = family.config
    # Stable Diffusion 3 reads the tokens of CLIP before those of T5.
    extra = family.pipeline.summary_tokens if isinstance(family, StableDiffusion3) else 0
    embeds = torch.zeros(extra + max(1, family.prompt_tokens), config.joint_attention_dim, dtype=dtype)
    pooled = getattr(config, "pooled_projection_dim", None)
    return {"embeds": embeds} if pooled is None else {"embeds": embeds, "pooled": torch.zeros(pooled, dtype=dtype)}


def peak_bytes(work: Callable[[], object]) -> int:
    """Most bytes that live at a time while this works."""
    with count_bytes() as live:
        work()
    return live.peak


def forward(dry_run: FlowDryRun, count: int, guidance: float | None, with_gradient: bool) -> None:
    """One forward in full size, and the backward pass that follows it."""
    family, net, config = dry_run.family, dry_run.policy.net, dry_run.policy.config
    rows = config.forward_rows if config.equal_forwards else count
    condition = condition_of(family, torch.bfloat16 if config.dtype == "bfloat16" else torch.float32)
    x = family.pack(torch.zeros(rows, *family.latent_shape))
    empty = condition if net.passes(guidance) == 2 else None
    with torch.set_grad_enabled(with_gradient):
        v = net(x, torch.full((rows,), 500.0), [condition], torch.zeros(rows, dtype=torch.long), empty, guidance)
        if with_gradient:
            v.sum().backward()
