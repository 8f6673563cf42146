"""An image generator that goes through all motions of a run without its weights: it counts forwards and draws nothing.

Latents are four numbers each while it counts; the largest forward is then taken in full size through networks without weights.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmrl.policies.flow.families.base import Condition, FlowFamily
from mmrl.policies.flow.families.sd3 import StableDiffusion3
from mmrl.policies.flow.loading import FAMILIES, add_trainable, load_index
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.call_log import Diary, Unexamined, with_gradients
from mmrl.policies.shared.meta_models import counting, pretended, size_of


def pretended_load(config: FlowPolicyConfig) -> FlowFamily:
    """What `flow_loading.load` gives, without weights, tokenizers and text encoders: it needs the folder's configs alone.

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
    pretended(transformer, vae)
    tokens = kind.usual_prompt_tokens if config.max_prompt_tokens is None else config.max_prompt_tokens
    return kind(pipeline, config.height, config.width, tokens)


def scale_of(vae: Any) -> int:
    """Pixels per latent along one side, as the pipelines have it."""
    channels = getattr(vae.config, "block_out_channels", None)
    return 2 ** (len(channels) - 1) if channels else 2 ** len(vae.temperal_downsample)


def tokens_of(model: str, index: dict[str, Any], name: str) -> int:
    """The longest text that an encoder reads, 0 where it does not say."""
    return getattr(config_of(model, index, name), "max_position_embeddings", 0)


def config_of(model: str, index: dict[str, Any], name: str) -> Any:
    """The config of a part that transformers wrote."""
    library, class_name = index[name]
    return getattr(import_module(library), class_name).config_class.from_pretrained(model, subfolder=name)


def part_of(model: str, index: dict[str, Any], name: str) -> Any:
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
    """Text encoder -> bytes of its weights, as `flow_loading.load` keeps them."""
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


class FewLatents:
    """The family with latents of four numbers."""

    latent_shape = (1, 2, 2)

    def __init__(self, family: FlowFamily) -> None:
        self.full = family

    def __getattr__(self, name: str) -> Any:
        return getattr(self.full, name)

    def pack(self, latents: Tensor) -> Tensor:
        return latents


class Nothing:
    """Weights that are never looked at."""

    def __init__(self, shadows: Iterable[str], weight: nn.Parameter) -> None:
        self.shadows = dict.fromkeys(sorted(shadows))
        self.named = {"nothing": weight}

    def swapped_in(self, model: str) -> AbstractContextManager[Any]:
        return nullcontext() if model == "policy" else torch.no_grad()

    def follow(self) -> None:
        """Nothing moves."""


class FlowRehearsal(FlowPolicy):
    """Answers every request with no picture, and every velocity with 0.

    Raises:
        FileNotFoundError: a config is missing.
        ValueError: as FlowPolicy.
    """

    load = staticmethod(pretended_load)

    def __init__(self, config: FlowPolicyConfig, shadows: Iterable[str] = ()) -> None:
        super().__init__(config, shadows)
        self.diagnostics: Any = Unexamined()
        self.diary = Diary()
        self.nothing = nn.Parameter(torch.zeros(()))
        self.full_family = self.family
        self.family = cast("FlowFamily", FewLatents(self.family))
        self.weights = Nothing(self.shadows, self.nothing)  # type: ignore[assignment] - all of Weights that a rehearsal needs
        self.encoder = cast(Any, NoPrompts())
        self.sampling = False

    def rollout(self, requests: Sequence[Any], sampling: Any = None) -> Any:
        self.sampling = True
        try:
            return super().rollout(requests, sampling)
        finally:
            self.sampling = False

    def _forward(
        self, x: Tensor, timesteps: Tensor, conditions: Sequence[Condition], index: Tensor, guidance: float | None = None
    ) -> Tensor:
        count = self.net.passes(guidance) * (self.config.forward_rows if self.config.equal_forwards else len(x))
        grad = torch.is_grad_enabled()
        phase = "rollout" if self.sampling else "update" if grad else "read"
        self.diary.note(phase, (len(x), guidance), 1, 0, count, count * self.full_family.image_tokens)
        return torch.zeros_like(x) + (0.0 * self.nothing if grad else 0.0)

    def _images(self, samples: Tensor) -> list[Any]:
        return [None] * len(samples)

    @property
    def network(self) -> nn.Module:
        """What trains, and what it is built on."""
        return self.net.transformer

    def beside(self) -> dict[str, int]:
        """Part -> bytes of further networks."""
        return {"vae": size_of(self.pipeline.vae.parameters()), **encoders_of(self.config)}

    def activations(self) -> dict[str, int]:
        """Phase -> most bytes that its largest forward keeps at a time; `decode` turns latents into pictures."""
        with_gradients(self.network)
        found: dict[str, int] = {}
        for phase, (_, (count, guidance)) in self.diary.largest.items():
            found[phase] = measured(partial(forward, self, count, guidance, phase == "update"))
        rows = 1 if self.config.vae_slicing else self.config.decode_rows
        with torch.no_grad():
            found["decode"] = measured(partial(self.full_family.decode, torch.zeros(rows, *self.full_family.latent_shape)))
        return found

    def parts_of_activations(self) -> dict[str, int]:
        """Latents are kept in the memory of the host."""
        return {}


class NoPrompts:
    """Encodes nothing."""

    def __call__(self, texts: Sequence[str], device: torch.device) -> list[Condition]:
        return [{} for _ in texts]

    def empty(self, device: torch.device) -> Condition:
        return {}


def condition_of(family: FlowFamily, dtype: torch.dtype) -> Condition:
    """Embeddings of the longest prompt, in their shapes."""
    config = family.config
    # Stable Diffusion 3 reads the tokens of CLIP before those of T5.
    extra = family.pipeline.summary_tokens if isinstance(family, StableDiffusion3) else 0
    embeds = torch.zeros(extra + max(1, family.prompt_tokens), config.joint_attention_dim, dtype=dtype)
    pooled = getattr(config, "pooled_projection_dim", None)
    return {"embeds": embeds} if pooled is None else {"embeds": embeds, "pooled": torch.zeros(pooled, dtype=dtype)}


def measured(work: Callable[[], Any]) -> int:
    with counting() as live:
        work()
    return live.peak


def forward(policy: FlowRehearsal, count: int, guidance: float | None, with_gradient: bool) -> None:
    """One forward in full size, and the backward pass that follows it."""
    family, net = policy.full_family, policy.net
    rows = policy.config.forward_rows if policy.config.equal_forwards else count
    condition = condition_of(family, torch.bfloat16 if policy.config.dtype == "bfloat16" else torch.float32)
    x = family.pack(torch.zeros(rows, *family.latent_shape))
    empty = condition if net.passes(guidance) == 2 else None
    with torch.set_grad_enabled(with_gradient):
        v = net(x, torch.full((rows,), 500.0), [condition], torch.zeros(rows, dtype=torch.long), empty, guidance)
        if with_gradient:
            v.sum().backward()
