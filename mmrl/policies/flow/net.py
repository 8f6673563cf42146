"""The one module that every forward of the transformer goes through, so that wrappers for many processes see all of them; and
what goes between the host's memory and the device's: latents that a trace keeps, embeddings that forwards share."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.policies.flow.families.base import SOURCE, Condition, FlowFamily
from mmrl.policies.flow.sizes import Size
from mmrl.policies.shared.compiled import PolicyNet
from mmrl.runtime.tensors import to_device


class FlowNet(PolicyNet):
    """The guided velocity of a transformer. With a gradient it flows through both passes of guidance."""

    def __init__(self, transformer: Any, family: FlowFamily, guidance: float, half: bool = False, full: bool = False) -> None:
        super().__init__()
        self.transformer, self.family, self.guidance, self.half_precision, self.full = transformer, family, guidance, half, full
        self.uploads = Uploads()
        # accelerate looks here for the layers it may shard.
        self._no_split_modules = getattr(transformer, "_no_split_modules", None)

    def passes(self, guidance: float | None = None) -> int:
        """Latents that the transformer sees per latent asked for."""
        chosen = self.guidance if guidance is None else guidance
        return 1 if chosen == 1 or self.family.embeds_guidance else 2

    @property
    def device(self) -> torch.device:
        return next(self.transformer.parameters()).device

    def forward(
        self,
        x: Float[Tensor, "m ..."],
        timesteps: Float[Tensor, " m"],
        conditions: Sequence[Condition],
        index: Int[Tensor, " m"],
        empty: Condition | None = None,
        guidance: float | None = None,
        size: Size | None = None,
    ) -> Float[Tensor, "m ..."]:
        """Velocities in float32 at latents of one size (None: the run's) with conditions[index]; `empty` is for a second pass."""
        family = self.family if size is None else self.family.at(size)
        scale = self.guidance if guidance is None else guidance
        used, places = index.unique(return_inverse=True)
        shown = self.uploads([conditions[i] for i in used.tolist()], x.device)
        if self.passes(scale) == 1:
            return self._plain(family, x, timesteps, shown, places, scale)
        if family.own_negatives:
            negatives, away = [family.negative(one) for one in shown], places + len(shown)
        else:
            assert empty is not None
            (no_words,) = self.uploads([empty], x.device)
            negatives, away = [no_words], torch.full_like(places, len(shown))
            if any(SOURCE in one for one in shown):
                negatives, away = [{**one, **no_words} for one in shown], places + len(shown)
        if family.one_length:
            without, with_prompt = (
                self._plain(family, x, timesteps, shown_words, places, scale) for shown_words in (negatives, shown)
            )
            return family.guide(with_prompt, without, scale, timesteps)
        both = self._plain(
            family, torch.cat([x, x]), torch.cat([timesteps, timesteps]), [*shown, *negatives], torch.cat([away, places]), scale
        )
        without, with_prompt = both.chunk(2)
        return family.guide(with_prompt, without, scale, timesteps)

    def _plain(
        self, family: FlowFamily, x: Tensor, timesteps: Tensor, shown: Sequence[Condition], index: Tensor, guidance: float
    ) -> Tensor:
        prompts = family.collate(shown, self.full)
        chosen = to_device(index, x.device)
        prompts = {name: value[chosen] for name, value in prompts.items()}
        with self._precision():
            return family.velocity(self.transformer, x, timesteps, prompts, guidance).float()


def send_home(x: Tensor) -> Tensor:
    """The tensor in the host's memory, which CUDA writes while other work goes on: wait for the device before reading it."""
    if x.device.type != "cuda" or not torch.cuda.is_available():
        return x.cpu()
    home = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    return home.copy_(x, non_blocking=True)


class Uploads:
    """The embeddings of prompts on the network's device, each sent there once between two calls of `clear`."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[Condition, Condition]] = {}
        """By `id`: the embeddings, kept alive so that no other object gets their id, and their copy."""

    def clear(self) -> None:
        """Free the copies, before other prompts come."""
        self.sent.clear()

    def __call__(self, conditions: Sequence[Condition], device: torch.device) -> list[Condition]:
        """The same embeddings on this device."""
        if device.type == "cpu":
            return list(conditions)
        for condition in conditions:
            if id(condition) not in self.sent:
                self.sent[id(condition)] = condition, {name: to_device(value, device) for name, value in condition.items()}
        return [self.sent[id(condition)][1] for condition in conditions]
