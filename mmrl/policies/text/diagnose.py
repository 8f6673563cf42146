"""Why a text policy may evaluate other log-probabilities than it noted while sampling: one controlled reading per reason."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.core.protocols import Hypothesis
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.tensors import pad_actions, stack_ragged
from mmrl.core.types import Rollouts
from mmrl.policies.shared.interventions import (
    RANDOM,
    adapters_switched,
    best_of,
    distance,
    dropouts,
    holding,
    in_precision,
    without_dropout,
)
from mmrl.policies.text.audit import audit_rollouts
from mmrl.policies.text.encode import Encoded
from mmrl.policies.text.evaluate import Score, score_of
from mmrl.policies.text.families.qwen_vl import QwenVL, mrope_positions
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.trace import TextTrace

TRIES = 8
"""Other prompts whose media are shown instead of a row's own."""
SHIFT, PRECISION, DROPOUT = "mask shift", "precision (dtype or autocast)", "dropout or training mode"
WEIGHTS, PIXELS, POSITIONS = "EMA or adapter state", "wrong pixel rows", "wrong positions"
PROMPT, TEMPERATURE, BANNED = "prompt tokens", "temperature", "forbidden tokens"
BATCH, PREFIX, CACHE = "batch-size dependence", "shared prefixes", "decoding from the cache"
REPEAT = "reading is not repeatable"


@dataclass(frozen=True)
class TextDiagnostics:
    """Looks closer at rollouts of a TextPolicy."""

    policy: Any

    def audit(self, rollouts: Rollouts) -> None:
        """Raises ValueError, naming prompt and sample, where record and prompts do not fit together."""
        audit_rollouts(self.policy, rollouts)

    def hypotheses(self, rollouts: Rollouts) -> Iterator[Hypothesis]:
        trace = rollouts.trace
        assert isinstance(trace, TextTrace)
        again = Again(self.policy, rollouts, trace.compact(), trace.prompts)
        yield from of_the_model(again)
        yield from of_rows(again)
        yield from of_prompts(again)
        yield from of_the_way(again)


@dataclass(frozen=True)
class Again:
    """Evaluates rows again with one thing changed."""

    policy: Any
    rollouts: Rollouts
    trace: TextTrace
    """Of these rows alone."""
    everyone: tuple[Encoded, ...]
    """The prompts of all rows of the step."""

    @property
    def mask(self) -> Bool[Tensor, "n t"]:
        return self.rollouts.action_mask

    def __call__(
        self,
        trace: TextTrace | None = None,
        mask: Tensor | None = None,
        *,
        shared: bool | None = None,
        single: bool = False,
        calm: bool = False,
    ) -> Float[Tensor, "n t"]:
        """As the policy reads; `single` feeds token after token, as sampling does, `calm` is in evaluation mode always."""
        net, config, grad = self.policy.net, self.policy.config, torch.is_grad_enabled()
        trace, mask = (trace or self.trace).compact(), self.mask if mask is None else mask
        once: bool = self.policy._shares(grad) if shared is None else shared
        least, logits = (2 if self.policy.ranks.is_sharded else 1), config.logit_chunk
        if single:
            # Sharded weights need all processes to make the same number of forwards.
            once, least = True, self.policy.ranks.forwards(max(least, trace.tokens.shape[1]))
        score = score_of(net, trace, trace.prompts, mask, ("logprobs",), shared=once, logits=logits, least=least)
        net.train(not calm and grad and config.gradient_checkpointing)
        try:
            values = self.policy._run(Replay(**vars(score)) if single else score)["logprobs"]
        finally:
            net.eval()
        width = self.mask.shape[1]
        return pad_actions(values.detach().cpu(), width)[:, :width]

    def under(self, change: AbstractContextManager[Any], **sampling: Any) -> Float[Tensor, "n t"]:
        with change:
            return self(**sampling)

    def shown(self, change: Callable[[Encoded], Encoded]) -> Float[Tensor, "n t"]:
        """With other prompts in place of the rows' own."""
        return self(replace(self.trace, prompts=tuple(map(change, self.trace.prompts))))

    def nearest(self, changes: list[Callable[[Encoded], Encoded]]) -> Float[Tensor, "n t"]:
        """Every row with the change that suits it best."""
        return best_of([partial(self.shown, change) for change in changes], self.rollouts.recorded[ROLLOUT_LOGPROBS], self.mask)

    def fresh(self, prompt: Encoded) -> Encoded:
        """Encoded from the files again."""
        assert prompt.prompt is not None
        return self.policy.encode(prompt.prompt, prompt.seed)

    def spread(self, calm: bool = False) -> float:
        """How far two readings with nothing changed are distance, over how far they are from what was noted."""
        with without_dropout(self.policy.net) if calm else nullcontext():
            one, two = self(calm=calm), self(calm=calm)
        return distance(one, two, self.rollouts.recorded[ROLLOUT_LOGPROBS], self.mask)

    def one_by_one(self) -> Float[Tensor, "n t"]:
        rows = torch.arange(len(self.trace)).split(1)
        return torch.cat([self(self.trace.take(row), self.mask[row]) for row in rows])


class Replay(Score):
    """Evaluates as sampling does: the prompt once, then token after token from the cache."""

    def after_shared_prompts(self, net: TextNet) -> Float[Tensor, "n t d"]:
        last, cache = net.prefill(self.prompts)
        hidden = [last.index_select(0, self.prompt_index)[:, None]]
        cache.reorder_cache(self.prompt_index)
        read, positions, attention = self.prompts.token_ids.shape[1], self.positions(), self.attention()
        for t in range(self.fed.shape[1]):
            here = slice(t, t + 1)
            hidden.append(net.extend(cache, self.fed[:, here], positions[:, :, here], attention[:, : read + t + 1]))
        return torch.cat(hidden, dim=1)


def of_rows(again: Again) -> Iterator[Hypothesis]:
    """Tokens and columns that moved against each other."""
    remedy = "Look for code that cuts, pads or rolls tokens, masks or recorded log-probabilities"
    yield Hypothesis(SHIFT, "with the tokens that rewards saw and the mask of their length", remedy, partial(as_scored, again))
    for by in (1, -1):
        yield Hypothesis(SHIFT, f"with columns moved by {by:+d}", remedy, partial(shifted, again, by))


def as_scored(again: Again) -> Float[Tensor, "n t"]:
    """The tokens of the samples instead of the trace's."""
    samples = [sample for _, sample in again.rollouts.samples()]
    tokens = stack_ragged([torch.tensor(sample.token_ids or (), dtype=torch.long) for sample in samples])
    lengths = torch.tensor([len(sample.token_ids or ()) for sample in samples])
    proper = torch.arange(again.mask.shape[1]) < lengths[:, None]
    values = again(replace(again.trace, tokens=tokens, lengths=lengths), proper)
    return values.masked_fill(~proper, torch.nan)


def shifted(again: Again, by: int) -> Float[Tensor, "n t"]:
    """Every value `by` columns later; NaN where none came from."""
    proper = torch.arange(again.mask.shape[1]) < again.trace.lengths[:, None]
    values = again(mask=proper).masked_fill(~proper, torch.nan).roll(by, 1)
    values[:, 0 if by > 0 else -1] = torch.nan
    return values


def of_the_model(again: Again) -> Iterator[Hypothesis]:
    """Repetition, dropout, precision, batches, weights."""
    net, policy = again.policy.net, again.policy
    remedy = "Look for code around policy.read that changes what it is asked or answers"
    yield Hypothesis(REPEAT, "with nothing changed", remedy, again, control=True)
    yield Hypothesis(
        DROPOUT,
        "in evaluation mode and with every dropout off",
        "Set every dropout of the model to 0 and keep it in evaluation mode while sampling and reading",
        lambda: again.under(without_dropout(net), calm=True),
    )
    moves, still = again.spread(), again.spread(calm=True)
    if moves > RANDOM and still <= RANDOM:
        what = "two readings of the same rows differ; with every dropout off they do not"
        yield Hypothesis(
            DROPOUT, what, "Set every dropout of the model to 0 and keep it in evaluation mode while sampling and reading"
        )
    for name in ("float32", "bfloat16", "float16"):
        single = name != "float32"
        yield Hypothesis(
            PRECISION,
            f"in {name}" + (" autocast" if single else " without autocast"),
            "Sample and train with the same policy.dtype, autocast and TF32 settings",
            lambda name=name, single=single: again.under(in_precision(net, name), single=single),
            shrinks=3.0,
        )
    remedy = "Remove what mixes rows (batch statistics, padding that is attended to), or use float32"
    for change, read in (("one row at a time", again.one_by_one), ("all together", again)):
        yield Hypothesis(BATCH, change, remedy, read, must_equal="reading")
    remedy = "Sample with the live weights: put averaged, reference or switched-off ones back before reading, and update copies"
    for name in sorted(policy.shadows):
        yield Hypothesis(WEIGHTS, f"under the {name} weights", remedy, lambda name=name: again.under(policy._weights(name)))
    for on in (False, True):
        change = f"with the adapter switched {'on' if on else 'off'}"
        yield Hypothesis(WEIGHTS, change, remedy, lambda on=on: again.under(adapters_switched(net, on)))


def of_prompts(again: Again) -> Iterator[Hypothesis]:
    """Media, positions and tokens of prompts; what sampling saw may be wrong as well as what training sees."""
    remedy = "Media must belong to their prompt: look for code that concatenates, permutes or indexes pixel rows"
    yield Hypothesis(
        PIXELS,
        "with pictures and clips encoded afresh",
        remedy,
        lambda: again.shown(lambda prompt: replace(prompt, media=again.fresh(prompt).media)),
    )
    change = "with the media of other prompts of the step"
    swaps = [partial(with_media_of, again.everyone, offset) for offset in range(TRIES)]
    yield Hypothesis(PIXELS, change, remedy, lambda: again.nearest(swaps))
    remedy = "Positions must be those that the model's own rule gives: look for code that computes, scales or shifts them"
    yield Hypothesis(
        POSITIONS,
        "with positions computed afresh",
        remedy,
        lambda: again.shown(lambda prompt: replace(prompt, positions=again.fresh(prompt).positions)),
    )
    rules: list[Callable[[Encoded], Encoded]] = [one_axis, partial(untimed, again.policy)]
    rules += [partial(slowed, again.policy, factor) for factor in (0.0, 0.5, 2.0)]
    change = "with positions on one axis, or with time scaled"
    yield Hypothesis(POSITIONS, change, remedy, lambda: again.nearest(rules))
    remedy = "Prompts must be encoded once, by policy.encode: look for code that changes their tokens afterwards"
    yield Hypothesis(PROMPT, "with prompts encoded afresh", remedy, lambda: again.shown(again.fresh))


def with_media_of(everyone: tuple[Encoded, ...], offset: int, prompt: Encoded) -> Encoded:
    """The media of the `offset`-th other prompt whose tensors have the same shapes; its own if there is none."""

    def shapes(one: Encoded) -> dict[str, tuple[int, ...]]:
        return {name: tuple(x.shape) for name, x in one.media.items()}

    others = [one for one in everyone if one is not prompt and one.media and shapes(one) == shapes(prompt)]
    return replace(prompt, media=others[offset % len(others)].media) if others else prompt


def one_axis(prompt: Encoded) -> Encoded:
    """0 1 2 ... on all axes: what models fall back to without token types."""
    return replace(prompt, positions=torch.arange(len(prompt)).expand_as(prompt.positions).clone())


def untimed(policy: Any, prompt: Encoded) -> Encoded:
    """Without the times of clips."""
    if not isinstance(policy.family, QwenVL) or prompt.type_ids is None:
        return prompt
    grids = {name: prompt.media[name] for name in ("image_grid_thw", "video_grid_thw") if name in prompt.media}
    return replace(prompt, positions=mrope_positions(policy.net.core, prompt.token_ids, prompt.type_ids, **grids))


def slowed(policy: Any, factor: float, prompt: Encoded) -> Encoded:
    """With the time within every clip scaled."""
    if not isinstance(policy.family, QwenVL) or len(prompt.positions) == 1:
        return prompt
    video = prompt.token_ids == policy.family.config.video_token_id
    if not bool(video.any()):
        return prompt
    positions, first = prompt.positions.clone(), prompt.positions[0, video].min()
    positions[0, video] = (first + (positions[0, video] - first) * factor).long()
    return replace(prompt, positions=positions)


def of_the_way(again: Again) -> Iterator[Hypothesis]:
    """How logits become probabilities, and how rows are read: after a shared prompt, from the cache."""
    policy, net, trace = again.policy, again.policy.net, again.trace
    remedy = "Read at the temperature that sampled: the trace keeps it of every row"
    for value in sorted({1.0, policy.config.sampling.temperature or 1.0}):
        hot = replace(trace, temperature=torch.full_like(trace.temperature, value))
        yield Hypothesis(TEMPERATURE, f"at temperature {value:g}", remedy, partial(again, hot))
    yield Hypothesis(
        BANNED,
        "with no token forbidden",
        "Sampling must forbid the tokens that reading forbids: media tokens, padding and ids that cannot be written",
        lambda: again.under(holding(net, "banned", torch.zeros_like(net.banned))),
    )
    way = not policy._shares(torch.is_grad_enabled())
    yield Hypothesis(
        PREFIX,
        f"with prompts read {'once per prompt' if way else 'once per row'}",
        "Set policy.prefix so that both sides read prompts in one way, or try another policy.attn_implementation",
        lambda: again(shared=way),
    )
    yield Hypothesis(
        CACHE,
        "token after token from the cache",
        "The model's cache and its full forward differ: try another policy.attn_implementation",
        lambda: again(single=True),
    )
    dropping = dropouts(net)
    if dropping:
        what = f"{len(dropping)} layers drop something in training mode, such as {dropping[0]}; loading leaves none"
        yield Hypothesis(DROPOUT, what, "Set every dropout of the model to 0 and keep it in evaluation mode while sampling")
