"""How far the next token's distribution is from another one's, over the whole vocabulary, and without keeping either."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmrl.core.types import Target
from mmrl.policies.text.net import NEVER, TextNet
from mmrl.policies.text.read.evaluate import RowEvaluation, token_values

DIVERGENCE, OVERLAP, STATES = "divergence", "overlap", "states"
COMPARED = frozenset({DIVERGENCE, OVERLAP})
"""The quantities that need a target."""
Head = Callable[[Float[Tensor, "k d"], Float[Tensor, " k"]], Float[Tensor, "k v"]]
"""(states, temperatures) -> logits."""


class Divergence(torch.autograd.Function):
    """beta KL(T || M) + (1 - beta) KL(S || M), M = (1 - beta) S + beta T; at beta 0 KL(T || S), at 1 KL(S || T). T is held fixed.

    Its gradient in S's logits is s (g - sum s g), g = (1 - beta) log(s / m), or log(s / t) at 1; at 0 it is s - t: exactly 0
    where both logits are the same. Autograd would keep five tensors of this size, and leave roundings there.
    """

    @staticmethod
    def forward(ctx: Any, logits: Float[Tensor, "m v"], other: Float[Tensor, "m v"], beta: float) -> Float[Tensor, " m"]:
        s, t = logits.log_softmax(-1), other.log_softmax(-1)
        p = s.exp()
        if beta == 0:
            q = t.exp()
            value, grad = (q * (t - s)).sum(-1), p - q
        else:
            d = t - s
            g = -d if beta == 1 else above_mixture(d, beta)
            value = mean = (p * g).sum(-1)
            if beta < 1:
                value = beta * (t.exp() * (g + d)).sum(-1) + (1 - beta) * mean
            grad = g.sub_(mean[:, None]).mul_(p).mul_(1.0 if beta == 1 else 1 - beta)
        ctx.save_for_backward(grad)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Float[Tensor, "m v"], None, None]:
        (grad,) = ctx.saved_tensors
        return grad * grads[0][:, None], None, None


def above_mixture(d: Float[Tensor, "m v"], beta: float) -> Float[Tensor, "m v"]:
    """log s - log((1 - beta) s + beta t) from d = log t - log s: 0 where d is, and finite wherever d is."""
    below = torch.log1p(beta * torch.expm1(d.clamp(max=0)))
    above = torch.log1p((1 - beta) * torch.expm1(d.neg().clamp(max=0)))
    return torch.where(d <= 0, -below, -above - d)


def coarse(logits: Float[Tensor, "m v"], ids: Int[Tensor, "m k"]) -> Float[Tensor, "m k1"]:
    """Log-probabilities of some tokens, and behind them that of all others together."""
    logprobs = logits.log_softmax(-1)
    return torch.cat([logprobs.gather(-1, ids), logprobs.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)], -1)


def divergence(logits: Float[Tensor, "m v"], other: Float[Tensor, "m v"], beta: float, top: int = 0) -> Float[Tensor, " m"]:
    """The divergence of every token; `top`: the likeliest tokens of `logits` are compared one by one, the rest as one."""
    if 0 < top < logits.shape[-1] - 1:
        ids = logits.detach().topk(top, -1).indices
        logits, other = coarse(logits, ids), coarse(other, ids)
    return Divergence.apply(logits, other, beta)  # type: ignore[no-untyped-call] - torch gives `apply` no types


def overlap(logits: Float[Tensor, "m v"], other: Float[Tensor, "m v"]) -> Float[Tensor, " m"]:
    """sum_v min(s, t): the chance that a token of the one is accepted by the other; 1 where they are the same."""
    return torch.minimum(logits.detach().softmax(-1), other.softmax(-1)).sum(-1)


@dataclass(frozen=True)
class TeachersPart:
    """The tokens that one teacher is asked about."""

    places: Int[Tensor, " k"]
    """Their places among all that are compared, in order."""
    states: Float[Tensor, "k d"]
    """What the teacher predicts them from."""
    head: Head


@dataclass(frozen=True)
class ToldPart:
    """The tokens of which a teacher tells its likeliest ones alone."""

    places: Int[Tensor, " k"]
    """As in TeachersPart."""
    ids: Int[Tensor, "k n"]
    logprobs: Float[Tensor, "k n1"]
    """Of these tokens, without those that the policy may not write, and behind them of all others together."""

    @classmethod
    def of(cls, places: Tensor, told: Sequence[Mapping[int, float]], top: int, banned: Bool[Tensor, " v"]) -> "ToldPart":
        """`told`: token -> log-probability, of every place."""
        best = [sorted(one.items(), key=lambda pair: -pair[1])[:top] for one in told]
        ids, known = torch.tensor(best, dtype=torch.float64, device=banned.device).view(-1, top, 2).unbind(-1)
        rest = (1 - known.exp().sum(-1, keepdim=True)).clamp(min=1e-12).log()
        ids = ids.long().clamp(max=len(banned))
        known = known.masked_fill(nn.functional.pad(banned, (0, 1), value=True)[ids], NEVER)
        return cls(places.to(banned.device), ids, torch.cat([known, rest], -1).float())


@dataclass(frozen=True)
class Other:
    """The other side of a comparison: teachers' states, of which logits are made piece by piece, or what they tell."""

    target: Target
    parts: Sequence[TeachersPart]
    banned: Bool[Tensor, " v"]
    told: Sequence[ToldPart] = ()

    def compare(
        self, names: Sequence[str], logits: Float[Tensor, "m v"], places: Int[Tensor, " m"], temperature: Float[Tensor, " m"]
    ) -> list[Float[Tensor, " m"]]:
        """How far the policy is from the other at these places, by the name of a quantity."""
        beside, target = self.logits(places, temperature), self.target
        values = [
            divergence(logits, beside, target.beta, target.top) if name == DIVERGENCE else overlap(logits, beside)
            for name in names
        ]
        for part in self.told:
            mine = torch.isin(places, part.places).nonzero()[:, 0]
            rows = torch.searchsorted(part.places, places[mine])
            own, theirs = coarse(nn.functional.pad(logits[mine], (0, 1), value=NEVER), part.ids[rows]), part.logprobs[rows]
            for i, name in enumerate(names):
                apart = divergence(own, theirs, target.beta) if name == DIVERGENCE else overlap(own, theirs)
                values[i] = values[i].index_put((mine,), apart)
        return values

    @torch.no_grad()
    def logits(self, places: Int[Tensor, " m"], temperature: Float[Tensor, " m"]) -> Float[Tensor, "m v"]:
        """The other's logits at these places, without the tokens that the policy may not write.

        Heads of one tokenizer differ in their number of rows: those beyond the policy's are left out, missing ones are no tokens.
        """
        out = temperature.new_full((len(places), len(self.banned)), NEVER)
        for part in self.parts:
            mine = torch.isin(places, part.places)
            if bool(mine.any()):
                rows = torch.searchsorted(part.places, places[mine])
                found = part.head(part.states[rows], temperature[mine])[:, : out.shape[1]]
                out[mine.nonzero()[:, 0], : found.shape[1]] = found.to(out)
        return out.masked_fill_(self.banned, NEVER)


class States(RowEvaluation):
    """The states from which the tokens in the mask are predicted, row after row: (m, d), in place of logits."""

    @torch.no_grad()
    def __call__(self, net: TextNet) -> dict[str, Tensor]:
        idle = net.idle_vision(self.media)
        hidden, place = self.read(net)
        return {STATES: hidden[place.flatten()[self.chosen]] + idle.to(hidden)}


@dataclass(frozen=True)
class ComparedRows(RowEvaluation):
    """Completions whose tokens are compared with another's besides: `divergence` and `overlap` are among the quantities."""

    other: Other | None = None

    @property
    def token_quantities(self) -> tuple[str, ...]:
        return (*super().token_quantities, *(name for name in self.quantities if name in COMPARED))

    def values(
        self, logits: Float[Tensor, "k v"], tokens: Int[Tensor, " k"], temperature: Float[Tensor, " k"], places: Int[Tensor, " k"]
    ) -> Float[Tensor, "q k"]:
        plain = super().token_quantities
        assert self.other is not None
        rows = [*token_values(logits, tokens, plain)] if plain else []
        return torch.stack([*rows, *self.other.compare(self.token_quantities[len(plain) :], logits, places, temperature)])
