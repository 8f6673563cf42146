"""Evaluating recorded completions again, behind their prompts under a view: log-probabilities, entropies; with gradient."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmrl.core.protocols import View
from mmrl.core.readings import SCORE, VALUE
from mmrl.core.samples import KINDS
from mmrl.policies.text.families import Media
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.packed.row import PackedRow, pack_row
from mmrl.policies.text.prompt.encode import Encoded, Encoder, PromptBatch, collate_prompts
from mmrl.policies.text.read.score import scores_of, values_of
from mmrl.policies.text.trace import Insets, TextTrace, numbers_of, offsets_of, types_of
from mmrl.runtime.tensors import pad_actions, to_device

QUANTITIES = frozenset({"logprobs", "entropy", "group_divergence", "lead"})
CLAMP = 11.0


@dataclass(frozen=True)
class RowEvaluation:
    """Completions to evaluate: row i answers prompt `prompt_index[i]`. `RowEvaluation(...)(net)` gives {quantity: (n, t)}.

    Two exact ways, one forward each. Packed: one row holds every prompt once, followed by its completions. Repeated: every row
    holds its prompt and padding. Logits exist only where `mask` is True; elsewhere values are 0. `group_divergence` takes all
    rows for one group.
    """

    prompts: PromptBatch
    prompt_index: Int[Tensor, " n"]
    tokens: Int[Tensor, "n t"]
    lengths: Int[Tensor, " n"]
    temperature: Float[Tensor, " n"]
    mask: Bool[Tensor, "n t"]
    chosen: Int[Tensor, " m"]
    """Where `mask`, as one row, is True; found by the host, which would have to wait for a device."""
    quantities: tuple[str, ...] = ("logprobs",)
    row: PackedRow | None = None
    """None: prompts are repeated."""
    chunk: int = 512
    insets: Insets = ()
    """Pictures and clips within completions."""

    def __call__(self, net: TextNet) -> dict[str, Float[Tensor, "n t"]]:
        # In the same order as on processes that do have pictures: the vision part first.
        idle = net.idle_vision(self.media)
        hidden, place = self.read(net)
        # Wrappers for many processes wait for every gradient, also from a part that does not train.
        chosen = self.chosen if len(self.chosen) else self.chosen.new_zeros(1)
        heat = self.temperature[chosen // self.mask.shape[1]]
        predicted_by = place.flatten()[chosen]
        out: dict[str, Tensor] = {}
        if self.token_quantities:
            values = self.evaluate(net, hidden[predicted_by], self.tokens.flatten()[chosen], heat) + idle
            out = {name: self.spread(chosen, column) for name, column in zip(self.token_quantities, values, strict=True)}
        if scored := [name for name in self.quantities if name.startswith(SCORE)]:
            out |= scores_of(net.model.score_head, hidden + idle, place, self.lengths, scored)
        if VALUE.quantity in self.quantities:
            out[VALUE.quantity] = self.spread(chosen, values_of(net.model.score_head, hidden[predicted_by]) + idle)
        if "group_divergence" in self.quantities:
            with torch.no_grad():
                allowed, states = ~net.banned, hidden[place]
                out["group_divergence"] = group_divergence(net.logits, states, self.temperature, self.mask, allowed, self.chunk)
        return out

    def spread(self, chosen: Int[Tensor, " m"], values: Float[Tensor, " m"]) -> Float[Tensor, "n t"]:
        """The values of the chosen tokens in their places, and 0 elsewhere."""
        return values.new_zeros(self.mask.numel()).index_put((chosen,), values).view(self.mask.shape)

    @property
    def token_quantities(self) -> tuple[str, ...]:
        """Quantities of single tokens."""
        return tuple(name for name in self.quantities if name in ("logprobs", "entropy", "lead"))

    @property
    def media(self) -> tuple[Media, ...]:
        """Those of the prompts, then those within completions, row after row."""
        return (*self.prompts.media, *(one.media for row in self.insets for one in row))

    @property
    def fed(self) -> Int[Tensor, "n r"]:
        """The tokens that predict another one: all but the last."""
        return self.tokens[:, :-1]

    @property
    def positions_fed(self) -> int:
        """Tokens that the forward is given, padding included."""
        if self.row is not None:
            return self.row.token_ids.numel()
        return len(self.tokens) * (self.prompts.token_ids.shape[1] + self.fed.shape[1])

    def attention(self) -> Int[Tensor, "n k"]:
        steps = torch.arange(self.fed.shape[1], device=self.fed.device)
        return torch.cat([self.prompts.attention[self.prompt_index], (steps < self.lengths[:, None]).long()], dim=1)

    def positions(self) -> Real[Tensor, "a n r"]:
        begin = self.prompts.next_positions[:, self.prompt_index]
        return begin + offsets_of(self.insets, (len(begin), *self.fed.shape), begin.device)

    def read(self, net: TextNet) -> tuple[Float[Tensor, "s d"], Int[Tensor, "n t"]]:
        """Hidden states, and which of them predicts each token."""
        if self.row is not None:
            return net.read_packed(self.row, self.media), self.row.place
        hidden = self.after_repeated_prompts(net)
        places = torch.arange(self.tokens.numel(), device=hidden.device)
        return hidden.flatten(0, 1), places.reshape(self.tokens.shape)

    def after_repeated_prompts(self, net: TextNet) -> Float[Tensor, "n t d"]:
        """Hidden states that predict each token; the first one's is the end of the prompt."""
        index, prompts = self.prompt_index, self.prompts
        types, own = prompts.type_ids, types_of(self.insets, self.fed.shape, self.fed.device)
        numbers = numbers_of(self.insets, len(index), len(prompts.media))
        shown = [number for prompt, within in zip(index.tolist(), numbers, strict=True) for number in (prompt, *within)]
        out = net.through(
            prompts.token_ids[index],
            self.fed,
            self.attention(),
            torch.cat([prompts.positions[:, index], self.positions()], dim=2),
            use_cache=False,
            **net.types(None if types is None else torch.cat([types[index], own], dim=1)),
            **net.vision(self.media, shown),
        )
        return out.last_hidden_state[:, prompts.token_ids.shape[1] - 1 :]

    def evaluate(
        self, net: TextNet, hidden: Float[Tensor, "m d"], tokens: Int[Tensor, " m"], temperature: Float[Tensor, " m"]
    ) -> Float[Tensor, "q m"]:
        """The quantities of m tokens, chunk by chunk; of several chunks, the backward pass computes the logits again."""

        def some(hidden: Tensor, tokens: Tensor, temperature: Tensor, places: Tensor) -> Tensor:
            return self.values(net.logits(hidden, temperature), tokens, temperature, places)

        pieces = [x.split(self.chunk) for x in (hidden, tokens, temperature, torch.arange(len(tokens), device=hidden.device))]
        if len(tokens) <= self.chunk:
            return some(*(piece[0] for piece in pieces))
        return torch.cat([checkpoint(some, *piece, use_reentrant=False) for piece in zip(*pieces, strict=True)], dim=1)

    def values(
        self, logits: Float[Tensor, "k v"], tokens: Int[Tensor, " k"], temperature: Float[Tensor, " k"], places: Int[Tensor, " k"]
    ) -> Float[Tensor, "q k"]:
        """The quantities of some of the tokens; `places`: theirs among all."""
        return token_values(logits, tokens, self.token_quantities)


def evaluation_of(
    net: TextNet,
    trace: TextTrace,
    prompts: Sequence[Encoded],
    mask: Bool[Tensor, "n t"],
    quantities: tuple[str, ...],
    logits: int,
    least: int = 1,
) -> RowEvaluation:
    """The work of evaluating a compact trace shown as `prompts`, padded to `least` tokens; `logits` exist at the same time."""
    device, tokens = net.device, pad_actions(trace.tokens, least)
    mask = pad_actions(mask, tokens.shape[1])[:, : tokens.shape[1]]
    return RowEvaluation(
        prompts=collate_prompts(prompts, net.pad_token_id, device),
        prompt_index=to_device(trace.prompt_index, device),
        tokens=to_device(tokens, device),
        lengths=to_device(trace.lengths, device),
        temperature=to_device(trace.temperature, device),
        mask=to_device(mask, device),
        chosen=to_device(mask.flatten().nonzero()[:, 0], device),
        quantities=quantities,
        row=pack_row(prompts, trace.prompt_index, tokens, trace.lengths, trace.insets).to(device) if trace.packed else None,
        chunk=max(1, logits // len(net.banned)),
        insets=trace.insets,
    )


Evaluator = Callable[[RowEvaluation], dict[str, Float[Tensor, "n t"]]]
"""Evaluates completions, by the network or a dry run: {quantity: (n, t)}, with a gradient where gradients are on."""


@dataclass(frozen=True)
class LocalEvaluator:
    """Evaluates with the network that trains."""

    host: TextHost

    def __call__(self, work: RowEvaluation) -> dict[str, Float[Tensor, "n t"]]:
        net, turns = self.host.net, turns_of(work, self.host)
        if not (torch.is_grad_enabled() and self.host.config.gradient_checkpointing):
            return self.host.run(turns)
        # Layers are checkpointed in training mode only; with every dropout off the two modes compute the same.
        net.train()
        try:
            return self.host.run(turns)
        finally:
            net.eval()


@dataclass(frozen=True)
class InTurn:
    """The work of all processes of a team, one after the other: `InTurn(...)(net)` gives what this process's own work gives."""

    own: RowEvaluation
    idle: RowEvaluation
    """Brought along where others have their turn."""
    busy: bool
    """Has this process a token to evaluate?"""
    leaders: tuple[int, ...]

    def __call__(self, net: TextNet) -> dict[str, Float[Tensor, "n t"]]:
        assert net.team is not None
        found = {name: torch.zeros(self.own.mask.shape, device=net.device) for name in self.own.quantities}
        link = torch.zeros((), device=net.device)
        for leader in self.leaders:
            with net.team.led_by(leader):
                if self.busy and leader == net.team.index:
                    found = self.own(net)
                else:
                    # Its gradient is 0, and its backward pass the way on which the leader's comes back.
                    link = link + sum(0 * x.sum() for x in self.idle(net).values())
        return {name: x + link for name, x in found.items()}


def turns_of(work: RowEvaluation, host: TextHost) -> RowEvaluation | InTurn:
    """The work, among that of a team which reads packed rows together."""
    team = host.net.team
    if team is None or work.row is None:
        return work
    busy = len(work.chosen) > 0
    asked = host.ranks.gather(busy)
    leaders = tuple(number for number in range(team.size) if any(asked[number :: team.size]))
    trace, mask = trace_of_nothing(host, packed=True)
    nothing = evaluation_of(host.net, trace, trace.prompts, mask, work.quantities, host.config.logit_chunk)
    return InTurn(work, replace(work, **vars(nothing)), busy, leaders or (0,))


def trace_of_nothing(host: TextHost, packed: bool) -> tuple[TextTrace, Bool[Tensor, "1 1"]]:
    """One token that was not sampled, behind the prompt that stands for nothing, and the mask that leaves it out."""
    zero, one = torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.long)
    token = torch.tensor([[next(iter(host.eos_token_ids), 0)]])
    trace = TextTrace((host.stand_in,), zero, token, one, torch.ones(1), one, host.family, packed=packed)
    return trace, torch.zeros(1, 1, dtype=torch.bool)


class TokenValues(torch.autograd.Function):
    """log p(token) and H = -sum p log p, p = softmax(logits); d log p(y)/dz = 1[y] - p, dH/dz = -p (log p + H).

    Autograd would keep log p, p and p log p, and make as many more on its way back.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Float[Tensor, "m v"], tokens: Int[Tensor, " m"], with_entropy: bool
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Log-probabilities, and entropies or zeros."""
        logprobs = logits.log_softmax(-1)
        chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
        entropy = logprobs.exp().mul_(logprobs).sum(-1).neg_() if with_entropy else torch.zeros_like(chosen)
        ctx.save_for_backward(logprobs, tokens, entropy)
        ctx.with_entropy = with_entropy
        return chosen, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Float[Tensor, "m v"], None, None]:
        """The gradient of the logits."""
        logprobs, tokens, entropy = ctx.saved_tensors
        of_chosen, of_entropy = grads[0][:, None], grads[1][:, None]
        grad = logprobs.exp()
        if ctx.with_entropy:
            grad.mul_((logprobs + entropy[:, None]).mul_(of_entropy).add_(of_chosen)).neg_()
        else:
            grad.mul_(-of_chosen)
        return grad.scatter_add_(-1, tokens[:, None], of_chosen), None, None


def token_values(logits: Float[Tensor, "m v"], tokens: Int[Tensor, " m"], quantities: tuple[str, ...]) -> Float[Tensor, "q m"]:
    """`logprobs`, `entropy` and `lead` (without a gradient) of m tokens, in this order of quantities."""
    chosen, entropy = TokenValues.apply(logits, tokens, "entropy" in quantities)  # type: ignore[no-untyped-call] - torch gives it no types
    known = {"logprobs": chosen, "entropy": entropy}
    if "lead" in quantities:
        top = logits.detach().softmax(-1).topk(2).values
        known["lead"] = top[:, 0] - top[:, 1]
    return torch.stack([known[name] for name in quantities])


def disagreement(logprobs: Float[Tensor, "g t v"]) -> Float[Tensor, " t"]:
    """mean_g sum_v exp(d) - d - 1, d = clamp(mean_g log p - log p, -11, 11) (TW-GRPO's token divergence, arXiv:2505.24718).

    The mean of log p is no distribution and the sum over v is not weighted by one: this is the code's measure, not a KL.
    """
    d = (logprobs.mean(0) - logprobs).clamp(-CLAMP, CLAMP)
    return (d.exp() - d - 1).sum(-1).mean(0)


def group_divergence(
    logits: Callable[[Tensor, Tensor], Tensor],
    hidden: Float[Tensor, "g t d"],
    temperature: Float[Tensor, " g"],
    mask: Bool[Tensor, "g t"],
    allowed: Bool[Tensor, " v"],
    chunk: int,
) -> Float[Tensor, "g t"]:
    """The disagreement of all rows at every position, the same in every row; rows that have ended there count as uniform.

    `logits`: (m, d), (m,) -> (m, v); only `allowed` tokens are in the vocabulary; the logits of `chunk` tokens exist at a time.
    """
    rows, length = mask.shape
    steps, words = max(1, chunk // rows), int(allowed.sum())
    pieces: list[Tensor] = []
    for start in range(0, length, steps):
        some, alive = hidden[:, start : start + steps], mask[:, start : start + steps]
        heat = temperature[:, None].expand(alive.shape)
        logprobs = logits(some[alive], heat[alive])[:, allowed].log_softmax(-1)
        uniform = logprobs.new_full((*alive.shape, words), -math.log(words))
        pieces.append(disagreement(uniform.index_put((alive,), logprobs)))
    return torch.cat(pieces).expand(rows, length) if pieces else hidden.new_zeros(rows, length)


TOLD = "told"
"""The column of a prompt with what a teacher is told of a row."""
Shown = tuple[TextTrace, list[Encoded]]


def show(prompt: Encoded, view: str, views: Mapping[str, View], encode: Encoder, told: str = "", reader: str = "") -> Encoded:
    """The prompt under a view; drawn once, so a rollout and all readings see the same.

    Args:
        told: what is put into its column `told`.
        reader: a name for the model that `encode` is of, where it is another one than the prompt was encoded by.
    """
    if view == "plain" and not reader:
        return prompt
    key = f"{reader}{view}: {told}" if told else reader + view
    if key not in prompt.views:
        assert prompt.prompt is not None
        known = prompt.prompt
        if told:
            # whatever was sampled: no length is too large for it, and it shows nothing
            known = replace(known, columns={**known.columns, TOLD: unmarked(told, encode.processor.tokenizer.all_special_tokens)})
            encode = replace(encode, config=replace(encode.config, max_prompt_tokens=None))
        seen = known if view == "plain" else views[view](known, prompt.seed)
        changed = encode(seen, prompt.seed)
        if not reader and seen.media is prompt.prompt.media:
            # the same pictures: they are kept, and looked at, once
            changed = replace(changed, media=prompt.media)
        prompt.views[key] = replace(changed, view=view)
    return prompt.views[key]


def unmarked(text: str, special: Sequence[str]) -> str:
    """A text with a blank in whatever marks the place of media in a prompt, or is one of these special tokens."""
    for mark in (*(kind.marker for kind in KINDS.values()), *special):
        text = text.replace(mark, f"{mark[0]} {mark[1:]}")
    return text


def show_rows(trace: TextTrace, show: Callable[[Encoded, str], Encoded]) -> Shown:
    """The rows, and their prompts as `show` has them: other ones where a teacher is told of rows.

    Args:
        show: (prompt, what is told) -> the prompt as it is read.
    """
    if not any(trace.told):
        return trace, [show(prompt, "") for prompt in trace.prompts]
    pairs = list(zip(trace.prompt_index.tolist(), trace.told, strict=True))
    used = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
    rows = replace(
        trace,
        prompts=tuple(trace.prompts[i] for i, _ in used),
        prompt_index=torch.tensor([used[pair] for pair in pairs], dtype=torch.long),
    )
    return rows, [show(trace.prompts[i], told) for i, told in used]
