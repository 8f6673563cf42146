"""An image generator that goes through the motions of a run without its weights: it counts forwards and draws nothing.

Latents are four numbers each while it counts; the largest forward is then taken in full size through networks without weights.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmrl.core.types import Prompt
from mmrl.policies.flow.adapters import teacher_bytes
from mmrl.policies.flow.families.base import SOURCE, Condition, FlowFamily, Index
from mmrl.policies.flow.families.sources import kind_of
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.in_4_bits import parts_in_4_bits, reader_bytes
from mmrl.policies.flow.loading import DECODERS, add_trainable, describe, load_index, save_memory
from mmrl.policies.flow.parts import FlowParts
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.single_file import pipeline_of
from mmrl.policies.flow.sizes import Size
from mmrl.policies.flow.trace import NoisyLatents
from mmrl.policies.flow.write.generate import Generator, LocalGenerator, Part, Sampled
from mmrl.policies.flow.write.given import picture_samples
from mmrl.policies.flow.write.sketch import facts_of, make_family, scale_of, sketch_of
from mmrl.policies.shared.dry_run import CallLog, DryRun, StillWeights, fake_weights, no_audit, size_of
from mmrl.policies.shared.quantized.layer import put_layers
from mmrl.policies.shared.quantized.load import linear_names
from mmrl.runtime.pretrained import readable, refuse_absurd_sizes

READER = "text_encoder"
"""How names of the networks that read prompts begin."""


def load_meta(config: FlowPolicyConfig, own: type[FlowFamily] | None = None) -> FlowFamily:
    """The family as `loading.load` gives it, from configs alone: without weights, tokenizers and text encoders.

    Raises what `load` raises, and FileNotFoundError for a part without a config.
    """
    config, index, kind = describe(config, own)
    sketch_of(kind, index, config)
    vae = part_of(config.model, index, "vae")
    networks = {name: part_of(config.model, index, name) for name in kind.present(index)}
    half = config.dtype == "bfloat16" and config.lora is not None
    small = parts_in_4_bits(config, index, networks)
    for network in networks.values():
        # The class's own `to` warns, needlessly here.
        nn.Module.to(network, torch.bfloat16 if half else torch.float32)
    further = {name: part_of(config.model, index, name) for name in kind.told_by}
    for decoder in (vae, *(part for name, part in further.items() if name in DECODERS)):
        nn.Module.to(decoder, getattr(torch, config.vae_dtype))
    for name, network in networks.items():
        if name in small:
            put_layers(network, linear_names(network), config.quantized.double)
    for part in (vae, *further.values(), *networks.values()):
        part.requires_grad_(False).eval()
    encoders = [name for name, part in index.items() if name.startswith(READER) and isinstance(part, list) and any(part)]
    pipeline = SimpleNamespace(
        **networks,
        **further,
        vae=vae,
        config=SimpleNamespace(_name_or_path=config.model, **facts_of(index)),
        vae_scale_factor=scale_of(vae.config),
        scheduler=part_of(config.model, index, "scheduler"),
        image_processor=None,
        components={},
        encoder_configs={name: config_of(config.model, index, name) for name in encoders},
    )
    with torch.device("meta"):
        add_trainable(pipeline, kind, None if config.lora is None else replace(config.lora, adapter=None))
    save_memory(pipeline, kind, config)
    fake_weights(vae, *further.values(), *networks.values())
    return make_family(kind, pipeline, config)


def size_of_generator(config: FlowPolicyConfig) -> tuple[int, int]:
    """Numbers of the networks that train, and pixels of a token along one side, from configs alone; raises as `load_meta`."""
    config, index, kind = describe(config)
    networks = [part_of(config.model, index, name) for name in kind.present(index)]
    weights = sum(weight.numel() for network in networks for weight in network.parameters())
    patch = getattr(networks[0].config, "patch_size", 2)
    least = max(patch) if isinstance(patch, tuple | list) else patch
    vae = part_of(config.model, index, "vae").config
    scale = vae.get("scale_factor_spatial") or vae.get("spatial_compression_ratio") or scale_of(vae)
    return weights, scale * max(2, least)


def config_of(model: str, index: Index, name: str) -> Any:
    """The config of a part that transformers wrote."""
    library, class_name = index[name]
    with readable(f"policy.model {model!r} ({name})", model):
        return getattr(import_module(library), class_name).config_class.from_pretrained(model, subfolder=name)


def part_of(model: str, index: Index, name: str) -> Any:
    """A network on the meta device, or a scheduler; raises FileNotFoundError where it has no config."""
    (library, class_name), place = index[name], f"policy.model {model!r} ({name})"
    with readable(place, model):
        cls = getattr(import_module(library), class_name)
    try:
        settings = config_of(model, index, name) if library == "transformers" else None
        if settings is not None:
            refuse_absurd_sizes(settings.to_dict(), place)
        # A scheduler's tables must hold real numbers, because code looks at them.
        with torch.device("cpu" if name == "scheduler" else "meta"), readable(place, model):
            if settings is not None:
                return cls(settings)
            return cls.from_config(cls.load_config(model, subfolder=name))
    except OSError as error:
        raise FileNotFoundError(
            f"policy.model {model!r} names a part {name!r} whose config could not be had: download its configs, weights are not "
            f"needed, and give the folder ({str(error).splitlines()[0]})"
        ) from None


def encoders_of(config: FlowPolicyConfig, family: type[FlowFamily]) -> dict[str, int]:
    """Text encoder, or another network that never trains -> bytes of its weights, as `loading.load` keeps them."""
    config = pipeline_of(config)
    index = load_index(config.model, family)
    each, decoding = (2 if dtype == "bfloat16" else 4 for dtype in (config.dtype, config.vae_dtype))
    found: dict[str, int] = {}
    small = parts_in_4_bits(config, index, ())
    for name, part in index.items():
        if isinstance(part, list) and part != [None, None] and name not in (*family.networks, "vae"):
            library, class_name = cast("tuple[str, str]", tuple(part))
            cls = getattr(import_module(library), class_name, None)
            if isinstance(cls, type) and issubclass(cls, nn.Module):
                reader = part_of(config.model, index, name)
                bytes_each = decoding if name in DECODERS else each
                found[name] = reader_bytes(reader, bytes_each, config.quantized.double if name in small else None)
    return found


def without_latents(family: FlowFamily) -> FlowFamily:
    """The same family with latents of four numbers and prompts without embeddings."""
    answers: dict[str, object] = {
        "latent_shape": (1, 2, 2),
        "part_sizes": (),
        "image_tokens": property(lambda self: family.at((self.width, self.height)).image_tokens),
        "pack": lambda self, latents: latents,
        "start": lambda self, noise, sigma: noise,
        "finish": lambda self, latents, sigma: latents,
        "encode": lambda self, text, device: {},
        "encode_with": lambda self, text, pictures, device: {SOURCE: torch.zeros(len(pictures), 0)},
        "count_tokens": lambda self, text: (0, 0),
        "decode": lambda self, latents: latents.flatten(1).sum(1).view(-1, 1, 1, 1).expand(-1, 3, 1, 1),
    }
    kind = cast("type[FlowFamily]", type("DryFamily", (type(family),), answers))
    return kind(family.pipeline, family.height, family.width, family.prompt_tokens, family.settings)


@dataclass
class DryGenerator(Generator):
    """Draws nothing; its forwards are counted as those of sampling."""

    inner: LocalGenerator
    log: CallLog
    family: FlowFamily
    """With latents in full size."""

    def write(self, parts: Sequence[Part]) -> list[Sampled]:
        with self.log.rollout():
            sampled = self.inner.write(parts)
        for one, (_, table) in zip(sampled, parts, strict=True):
            states = {id(state): len(state) for state in (*one.trajectory.states, *one.trajectory.means)}
            count, family = len(one.images), self.family.at(table.size)
            self.log.latents += 4 * math.prod(family.latent_shape) * (sum(states.values()) + len(one.trace.latents))
            each = table.plan.num_steps if table.plan.previews else 1
            self.log.decoded += 3 * family.settings.frames * math.prod(table.size) * count * each
            self.log.drawn[table.size] = self.log.drawn.get(table.size, 0) + count
        return sampled


@dataclass(frozen=True)
class LargestForward:
    """The largest work that the network is given at one time."""

    seen: int
    """Latents that the network sees, both passes of guidance included."""
    rows: int
    pictures: int
    """Pictures in every prompt."""
    size: Size
    guidance: float | None

    @property
    def order(self) -> tuple[int, int]:
        """Larger for more work, among forwards of one size."""
        return self.seen, self.pictures


@dataclass
class DryForward:
    """Velocities of 0; counts the forwards that a network would have made."""

    host: FlowHost
    log: CallLog
    still: StillWeights
    largest: dict[tuple[str, Size], LargestForward] = field(default_factory=dict[tuple[str, Size], LargestForward])
    """By phase and size of pictures: prompts take room too, so the most tokens of pictures need not be the most bytes."""

    def __call__(
        self, asked: NoisyLatents, conditions: Sequence[Condition], guidance: float | None = None
    ) -> Float[Tensor, "m ..."]:
        config, own = self.host.config, self.host.family
        size = asked.size
        family, rows = own.at(size), own.rows_at(config.forward_rows, size) if config.equal_forwards else len(asked.x)
        count = self.host.net.passes(guidance) * rows
        pictures = kind_of(conditions[int(asked.index[0])])
        self.log.note(1, 0, count, count * (family.image_tokens + pictures * family.source_tokens))
        found, place = LargestForward(count, rows, pictures, size, guidance), (self.log.phase, size)
        if place not in self.largest or found.order > self.largest[place].order:
            self.largest[place] = found
        return torch.zeros_like(asked.x) + self.still.zero()


class FlowDryRun(DryRun):
    """A FlowPolicy that answers requests with no picture and velocities with 0. Raises what `load_meta` and FlowPolicy raise."""

    policy: FlowPolicy

    def __init__(self, config: FlowPolicyConfig, shadows: Iterable[str] = (), own: type[FlowFamily] | None = None) -> None:
        self.family, self.log, still = load_meta(config, own), CallLog(), StillWeights()
        small = without_latents(self.family)
        parts = FlowParts(
            load=lambda config: small,
            generator=lambda host: DryGenerator(LocalGenerator(host), self.log, self.family),
            # pictures of the data are not opened
            given=partial(picture_samples, pictures=lambda own, of: (torch.zeros(len(of), *own.latent_shape), [None] * len(of))),
            forward=lambda host: DryForward(host, self.log, still),
            decoder=lambda host: lambda latents, size=None: [None] * len(latents),
            embeddings=lambda config, family: None,
            weights=still.keeper(),
            audit=no_audit,
        )
        self.policy = FlowPolicy(config, shadows, parts=parts)
        # Counting never reaches the network; the one forward that does is in full size, with every place of a latent.
        self.policy.net.family = self.family

    @property
    def network(self) -> nn.Module:
        """The transformer that trains, and what it is built on, without weights."""
        return self.policy.net.transformer

    def largest_of(self, prompts: Sequence[Prompt], count: int) -> Sequence[Prompt]:
        """The first n prompts by pixels of their pictures; none where all have one size."""
        sizes = [self.family.size_of(prompt) for prompt in prompts]
        order = sorted(range(len(prompts)), key=lambda i: math.prod(sizes[i]), reverse=True)
        return [prompts[i] for i in order[:count]] if len(set(sizes)) > 1 else ()

    def beside(self) -> dict[str, int]:
        """Part -> bytes of further networks."""
        config = self.policy.config
        others = encoders_of(config, type(self.family))
        if config.rest_text_encoders:
            others = {name: size for name, size in others.items() if not name.startswith(READER)}
        if config.teachers:
            others["adapters of teachers"] = teacher_bytes(config.teachers, type(self.family).networks)
        return {"vae": size_of(self.policy.pipeline.vae.parameters()), **others}

    def activations(self) -> dict[str, int]:
        """With text encoders that come to the card for new prompts alone."""
        found, config = dict(super().activations()), self.policy.config
        if config.rest_text_encoders:
            others = encoders_of(config, type(self.family))
            found["encode"] = sum(size for name, size in others.items() if name.startswith(READER))
        return found

    def largest_work(self) -> Iterator[tuple[str, Callable[[], object]]]:
        config, asked, family = self.policy.config, self.policy.forward, self.family
        assert isinstance(asked, DryForward)
        for (phase, _), largest in asked.largest.items():
            if phase in self.log.largest:
                yield phase, partial(forward, self, largest)
        sizes = {size for _, size in asked.largest} or {(config.width, config.height)}
        most = 1 if config.vae_slicing else config.rows_per_decode
        shapes = [(family.rows_at(most, size), *family.at(size).latent_shape) for size in sizes]
        latents = torch.zeros(max(shapes, key=math.prod), dtype=getattr(torch, config.vae_dtype))
        yield "decode", lambda: (family.decode(latents), family.sound_of(latents))

    def host_bytes(self) -> Mapping[str, int]:
        """States and means of every step while samples are drawn, with what the trace keeps of them, and the samples' pixels."""
        return {"latents of a step's rollouts": self.log.latents, "decoded samples": self.log.decoded}


def forward(dry_run: FlowDryRun, largest: LargestForward) -> None:
    """One forward in full size, and where gradients are on the backward pass that follows it."""
    net, config, rows = dry_run.policy.net, dry_run.policy.config, largest.rows
    family, guidance = dry_run.family.at(largest.size), largest.guidance
    condition = family.blank_condition(getattr(torch, config.dtype))
    x = family.pack(torch.zeros(rows, *family.latent_shape))
    if largest.pictures:
        condition = {**condition, **family.blank_sources(largest.pictures)}
    empty = condition if net.passes(guidance) == 2 and not family.own_negatives else None
    places = torch.zeros(rows, dtype=torch.long)
    v = net(x, torch.full((rows,), 500.0), [condition], places, empty, guidance, largest.size)
    if torch.is_grad_enabled():
        v.sum().backward()
