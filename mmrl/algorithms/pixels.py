"""Rewards that take pixels and give a gradient, and the term that trains on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.objectives.flow import RewardGradient
from mmrl.algorithms.objectives.terms import Penalty, actions_only
from mmrl.core.protocols import Term
from mmrl.core.types import Batch, Prompt, Reading

TRIAL = 64
"""Pixels along a side of the picture that rewards are tried with."""


@runtime_checkable
class TakesPixels(Protocol):
    """A reward with a gradient: it scores pictures that are tensors, and its scores depend on them smoothly."""

    def of_pixels(self, pixels: Float[Tensor, "n 3 y x"], prompts: Sequence[Prompt], /) -> Float[Tensor, " n"]:
        """One score per picture, of pixels in [0, 1], on any device; the same as its other scores but for rounding."""
        ...


@dataclass(frozen=True)
class BoundGradient(Penalty, scope="rollout"):
    """A RewardGradient with the rewards of its run: name, weight and what scores pixels."""

    term: RewardGradient
    rewards: tuple[tuple[str, float, TakesPixels], ...]

    def __deepcopy__(self, memo: object) -> "BoundGradient":
        return self  # a copy would hold the scoring models twice

    @property
    def reads(self) -> tuple[Reading, ...]:
        return self.term.reads

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        mask, pixels = batch.rollouts.action_mask, readings[self.reads[0]]
        live = mask.any(1)
        prompts = [group.prompt for (group, _), own in zip(batch.rollouts.samples(), map(bool, live), strict=True) if own]
        total = pixels.flatten(1).sum(1).float().cpu() * 0
        if prompts:
            shown = pixels[live.to(pixels.device)]
            scores = [weight * score_of(name, one, shown, prompts) for name, weight, one in self.rewards]
            total = total.index_add(0, live.nonzero()[:, 0], torch.stack(scores).sum(0))
        loss = -total if self.term.top is None else (self.term.top - total).clamp(min=0)
        spread = actions_only(loss[:, None].expand(mask.shape), mask)
        return spread, {"policy/reward": actions_only(total.detach()[:, None].expand(mask.shape), mask)}


def score_of(name: str, reward: TakesPixels, pixels: Float[Tensor, "n 3 y x"], prompts: Sequence[Prompt]) -> Float[Tensor, " n"]:
    """A reward's scores of pictures, on the CPU.

    Raises:
        ValueError: they are not one finite number per picture, or have no gradient, or one that is not finite, which shows in
            the backward pass; names the reward.
    """
    own = pixels.view_as(pixels)
    found = reward.of_pixels(own, prompts).float().cpu()
    if found.shape != (len(prompts),) or not bool(found.isfinite().all()):
        raise ValueError(
            f"reward {name!r} gave {found.detach()!s:.80} for {len(prompts)} pictures, and must give a finite number each: look "
            "at its of_pixels"
        )
    if pixels.requires_grad and not found.requires_grad:
        raise ValueError(
            f"reward {name!r} gave scores without a gradient: leave out detach, numpy, PIL and inference_mode in its of_pixels"
        )
    if own.requires_grad:
        own.register_hook(partial(refuse_broken, name))  # pyright: ignore[reportUnknownMemberType] - torch types it in part
    return found


def refuse_broken(name: str, gradient: Tensor) -> None:
    """Raise ValueError for the gradient of a reward that is not finite."""
    if not bool(gradient.isfinite().all()):
        raise ValueError(
            f"the gradient of reward {name!r} with respect to pixels is not finite: look for a root, a logarithm or a norm at 0 "
            "in its of_pixels; the weights were not updated"
        )


def try_gradient(name: str, reward: TakesPixels, prompt: Prompt) -> None:
    """Ask a reward for the gradient at a picture of noise, and take a small step along it, before a run begins.

    Raises:
        ValueError: what `score_of` raises, or the score falls by half or more of what the gradient says that it rises; names the
            reward.
    """
    noise = torch.rand(1, 3, TRIAL, TRIAL, generator=torch.Generator().manual_seed(0))
    with torch.enable_grad():
        pixels = noise.clone().requires_grad_()
        here = score_of(name, reward, pixels, [prompt])
        (slope,) = torch.autograd.grad(here.sum(), pixels)
    steep = float(slope.square().sum().sqrt())
    if steep == 0:
        return
    size = min(1e-2 * max(1.0, abs(here.item())) / steep, 0.02 * noise.numel() ** 0.5)
    with torch.no_grad():
        found = (score_of(name, reward, noise + size * slope / steep, [prompt]) - here).item()
    if found < -0.5 * size * steep:
        raise ValueError(
            f"the gradient of reward {name!r} points away from better pictures: along it the score should rise by "
            f"{size * steep:.2g}, and changes by {found:.2g}: look for a sign, or a backward of your own, in its of_pixels"
        )


def with_rewards(
    objective: Sequence[tuple[float, Term]], rewards: Sequence[tuple[str, float, object]]
) -> tuple[tuple[float, Term], ...]:
    """The objective with RewardGradient bound to the run's rewards (name, weight, function); those of weight 0 are left out.

    Raises:
        ValueError: a weighted reward has no gradient; names it.
    """
    if not any(isinstance(term, RewardGradient) for _, term in objective):
        return tuple(objective)
    weighted = [(name, weight, one) for name, weight, one in rewards if weight]
    without = [name for name, _, one in weighted if not isinstance(one, TakesPixels)]
    if without or not weighted:
        raise ValueError(
            f"RewardGradient trains on the gradient of rewards, and {', '.join(map(repr, without)) or 'no reward'} has none: "
            "take rewards that score pixels (clip_score, pick_score, hps_v2, aesthetic, or your own with a method of_pixels), "
            "and give others weight = 0"
        )
    bound = tuple((name, weight, one) for name, weight, one in weighted if isinstance(one, TakesPixels))
    return tuple((coef, BoundGradient(term, bound) if isinstance(term, RewardGradient) else term) for coef, term in objective)
