"""An image generator that goes through all motions of a run without its weights: it counts forwards and draws nothing.

Latents are four numbers each while it counts; the largest forward is then taken in full size through networks without weights.
"""

import math
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
from mmrl.policies.flow.families.base import Condition, FlowFamily, Index
from mmrl.policies.flow.families.known import family_of, own_family
from mmrl.policies.flow.families.sources import SOURCE, kind_of
from mmrl.policies.flow.generate import LocalGenerator, Sampled
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.loading import add_trainable, load_index, make_family
from mmrl.policies.flow.parts import FlowParts
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.trace import SigmaPlan
from mmrl.policies.shared.call_log import CallLog, NoDiagnostics, StillWeights, make_gradients
from mmrl.policies.shared.meta_models import count_bytes, fake_weights, size_of
from mmrl.policies.shared.weights import Weights


def load_meta(config: FlowPolicyConfig, own: type[FlowFamily] | None = None) -> FlowFamily:
    """The family as `loading.load` gives it, without weights, tokenizers and text encoders: it needs the folder's configs alone.

    Raises:
        FileNotFoundError: no such folder or hub model, or a part of it without a config.
        ValueError: a pipeline that is no flow-matching one known here, or a picture size it cannot draw.
    """
    own = own or own_family(config)
    index = load_index(config.model, own)
    kind = family_of(index, config.model, own)
    kind.refuse(index, config)
    vae = part_of(config.model, index, "vae")
    present = [name for name in kind.networks if index.get(name, [None, None]) != [None, None]]
    networks = {name: part_of(config.model, index, name) for name in present}
    half = config.dtype == "bfloat16" and config.lora is not None
    for network in networks.values():
        # The class's own `to` warns, and there is nothing to warn of.
        nn.Module.to(network, torch.bfloat16 if half else torch.float32)
    nn.Module.to(vae, torch.bfloat16 if config.vae_dtype == "bfloat16" else torch.float32)
    for part in (vae, *networks.values()):
        part.requires_grad_(False).eval()
    pipeline = SimpleNamespace(
        **networks,
        vae=vae,
        config=SimpleNamespace(_name_or_path=config.model, **facts_of(index)),
        vae_scale_factor=scale_of(vae),
        scheduler=part_of(config.model, index, "scheduler"),
        image_processor=None,
        encoder_configs={name: config_of(config.model, index, name) for name in encoder_names(index)},
    )
    with torch.device("meta"):
        add_trainable(pipeline, kind, None if config.lora is None else replace(config.lora, adapter=None))
    if config.gradient_checkpointing:
        for network in networks.values():
            network.enable_gradient_checkpointing()
    if config.vae_slicing:
        vae.enable_slicing()
    if config.vae_tiling:
        vae.enable_tiling()
    fake_weights(vae, *networks.values())
    return make_family(kind, pipeline, config)


def facts_of(index: Index) -> dict[str, object]:
    """The plain values in a model_index.json, such as boundary_ratio."""
    return {name: value for name, value in index.items() if not isinstance(value, list) and not name.startswith("_")}


def encoder_names(index: Index) -> list[str]:
    """The parts of a pipeline that read prompts."""
    return [name for name, part in index.items() if name.startswith("text_encoder") and part != [None, None]]


def scale_of(vae: Any) -> int:
    """Pixels per latent along one side, as the pipelines have it."""
    for name in ("block_out_channels", "encoder_block_out_channels"):
        if channels := getattr(vae.config, name, None):
            return 2 ** (len(channels) - 1)
    return 2 ** len(vae.temperal_downsample)


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
        # A scheduler's tables are numbers that are looked at.
        with torch.device("cpu" if name == "scheduler" else "meta"):
            if library == "transformers":
                return cls(config_of(model, index, name))
            return cls.from_config(cls.load_config(model, subfolder=name))
    except OSError as error:
        raise FileNotFoundError(
            f"policy.model {model!r} names a part {name!r} whose config could not be had: download its configs, weights are not "
            f"needed, and give the folder ({str(error).splitlines()[0]})"
        ) from None


def encoders_of(config: FlowPolicyConfig, family: type[FlowFamily]) -> dict[str, int]:
    """Text encoder -> bytes of its weights, as `loading.load` keeps them."""
    index = load_index(config.model, family)
    each = 2 if config.dtype == "bfloat16" else 4
    found: dict[str, int] = {}
    for name, part in index.items():
        if isinstance(part, list) and part != [None, None] and name not in (*family.networks, "vae"):
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
        "start": lambda self, noise, sigma: noise,
        "finish": lambda self, latents, sigma: latents,
        "encode": lambda self, text, device: {},
        "encode_with": lambda self, text, pictures, device: {SOURCE: torch.zeros(len(pictures), 0)},
        "count_tokens": lambda self, text: (0, 0),
    }
    kind = cast("type[FlowFamily]", type("DryFamily", (type(family),), answers))
    return kind(family.pipeline, family.height, family.width, family.prompt_tokens, family.settings)


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
            sampled = self.inner.write(requests, sigma_plan)
        trajectory = sampled.trajectory
        states = {id(one): len(one) for one in (*trajectory.states, *trajectory.means)}
        self.log.latents += sum(states.values()) + len(sampled.trace.latents)
        self.log.samples += len(sampled.images)
        return sampled


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
        shown = kind_of(conditions[int(index[0])]) * self.host.family.source_tokens
        if self.log.note(1, 0, count, count * (self.image_tokens + shown)):
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

    def __init__(self, config: FlowPolicyConfig, shadows: Iterable[str] = (), own: type[FlowFamily] | None = None) -> None:
        self.family, self.log, still = load_meta(config, own), CallLog(), StillWeights()
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
        encoders = {} if config.rest_text_encoders else encoders_of(config, type(self.family))
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
        rows = 1 if config.vae_slicing else config.rows_per_decode
        with torch.no_grad():
            dtype = torch.bfloat16 if config.vae_dtype == "bfloat16" else torch.float32
            latents = torch.zeros(rows, *self.family.latent_shape, dtype=dtype)
            found["decode"] = peak_bytes(partial(self.family.decode, latents))
        if config.rest_text_encoders:
            found["encode"] = sum(encoders_of(config, type(self.family)).values())
        return found

    def parts_of_activations(self) -> Mapping[str, int]:
        """Nothing: latents are kept in the memory of the host."""
        return {}

    def host_bytes(self) -> Mapping[str, int]:
        """States and means of every step while samples are drawn, with what the trace keeps of them, and the samples' pixels."""
        config, log = self.policy.config, self.log
        pixels = 3 * config.frames * config.height * config.width
        return {
            "latents of a step's rollouts": 4 * math.prod(self.family.latent_shape) * log.latents,
            "decoded samples": pixels * log.samples,
        }


def peak_bytes(work: Callable[[], object]) -> int:
    """Most bytes that live at a time while this works."""
    with count_bytes() as live:
        work()
    return live.peak


def forward(dry_run: FlowDryRun, count: int, guidance: float | None, with_gradient: bool) -> None:
    """One forward in full size, and the backward pass that follows it."""
    family, net, config = dry_run.family, dry_run.policy.net, dry_run.policy.config
    rows = config.forward_rows if config.equal_forwards else count
    condition = family.blank_condition(torch.bfloat16 if config.dtype == "bfloat16" else torch.float32)
    x = family.pack(torch.zeros(rows, *family.latent_shape))
    pictures = max((kind_of(known) for known in dry_run.policy.encoder.known.values()), default=0)
    if pictures:
        condition = {**condition, SOURCE: torch.zeros(pictures * family.source_tokens, x.shape[-1])}
    empty = condition if net.passes(guidance) == 2 and not family.own_negatives else None
    with torch.set_grad_enabled(with_gradient):
        v = net(x, torch.full((rows,), 500.0), [condition], torch.zeros(rows, dtype=torch.long), empty, guidance)
        if with_gradient:
            v.sum().backward()
