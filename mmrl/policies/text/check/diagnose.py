"""Why a text policy may evaluate other log-probabilities than it noted while sampling: one controlled reading per reason."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.core.protocols import Hypothesis
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts
from mmrl.policies.shared.hypotheses import (
    BATCH,
    LIVE,
    SHIFT,
    WEIGHTS,
    adapters,
    dropout,
    layers_that_drop,
    move_columns,
    precision,
    repetition,
)
from mmrl.policies.shared.interventions import distance, holding, in_precision, nearest_reading, without_dropout
from mmrl.policies.text.families.qwen_vl import QwenVL, mrope_positions
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.read.evaluate import Evaluation, evaluation_of
from mmrl.policies.text.trace import TextTrace
from mmrl.runtime.tensors import pad_actions, stack_ragged

TRIES = 8
"""Other prompts whose media are shown instead of a row's own."""
PIXELS, POSITIONS, PROMPT = "wrong pixel rows", "wrong positions", "prompt tokens"
TEMPERATURE, BANNED, PREFIX, CACHE = "temperature", "forbidden tokens", "shared prefixes", "decoding from the cache"


@dataclass(frozen=True)
class TextDiagnostics:
    """Says why readings of a TextPolicy may differ."""

    policy: TextHost

    def hypotheses(self, rollouts: Rollouts) -> Iterator[Hypothesis]:
        trace = rollouts.trace
        assert isinstance(trace, TextTrace)
        again = Again(self.policy, rollouts, trace.compact(), trace.prompts)
        yield from model_hypotheses(again)
        yield from row_hypotheses(again)
        yield from prompt_hypotheses(again)
        yield from reading_hypotheses(again)


@dataclass(frozen=True)
class Again:
    """Evaluates rows again with one thing changed."""

    policy: TextHost
    rollouts: Rollouts
    trace: TextTrace
    """The record of these rows alone."""
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
        packed: bool | None = None,
        single: bool = False,
        calm: bool = False,
    ) -> Float[Tensor, "n t"]:
        """Log-probabilities as the policy reads them.

        Args:
            trace: other rows than these, or these with something changed.
            packed: prompts are read once each; None: as the policy does.
            single: token after token is fed, as sampling does.
            calm: in evaluation mode always.
        """
        net, config, grad = self.policy.net, self.policy.config, torch.is_grad_enabled()
        trace, mask = (trace or self.trace).compact(), self.mask if mask is None else mask
        trace = replace(trace, packed=not single and (self.policy.reads_packed(trace) if packed is None else packed))
        # Sharded weights need all processes to make the same number of forwards.
        least = self.policy.ranks.forwards(max(1, trace.tokens.shape[1])) if single else 1
        work = evaluation_of(net, trace, trace.prompts, mask, ("logprobs",), config.logit_chunk, least)
        net.train(not calm and grad and config.gradient_checkpointing)
        try:
            values = self.policy.run(Replay(**vars(work)) if single else work)["logprobs"]
        finally:
            net.eval()
        width = self.mask.shape[1]
        return pad_actions(values.detach().cpu(), width)[:, :width]

    def under(self, change: AbstractContextManager[object], *, single: bool = False, calm: bool = False) -> Float[Tensor, "n t"]:
        """Log-probabilities read while something is changed."""
        with change:
            return self(single=single, calm=calm)

    def under_prompts(self, change: Callable[[Encoded], Encoded]) -> Float[Tensor, "n t"]:
        """Log-probabilities with other prompts in place of the rows' own."""
        return self(replace(self.trace, prompts=tuple(map(change, self.trace.prompts))))

    def nearest(self, changes: list[Callable[[Encoded], Encoded]]) -> Float[Tensor, "n t"]:
        """Log-probabilities of every row with the change that suits it best."""
        return nearest_reading(
            [partial(self.under_prompts, change) for change in changes], self.rollouts.recorded[ROLLOUT_LOGPROBS], self.mask
        )

    def encode_again(self, prompt: Encoded) -> Encoded:
        """The prompt, encoded from its files again."""
        assert prompt.prompt is not None
        return self.policy.encode(prompt.prompt, prompt.seed)

    def noise_between_readings(self, calm: bool = False) -> float:
        """How far two readings with nothing changed are apart, over how far they are from what was noted."""
        with without_dropout(self.policy.net) if calm else nullcontext():
            one, two = self(calm=calm), self(calm=calm)
        return distance(one, two, self.rollouts.recorded[ROLLOUT_LOGPROBS], self.mask)

    def one_by_one(self) -> Float[Tensor, "n t"]:
        """Log-probabilities read one row at a time."""
        rows = torch.arange(len(self.trace)).split(1)
        return torch.cat([self(self.trace.take(row), self.mask[row]) for row in rows])


class Replay(Evaluation):
    """Evaluates as sampling does: the prompt once, then token after token from the cache; pictures within rows are read whole."""

    def after_repeated_prompts(self, net: TextNet) -> Float[Tensor, "n t d"]:
        if self.insets:
            return super().after_repeated_prompts(net)
        last, cache = net.prefill(self.prompts)
        hidden = [last.index_select(0, self.prompt_index)[:, None]]
        cache.reorder_cache(self.prompt_index)
        read, positions, attention = self.prompts.token_ids.shape[1], self.positions(), self.attention()
        for t in range(self.fed.shape[1]):
            here = slice(t, t + 1)
            hidden.append(net.extend(cache, self.fed[:, here], positions[:, :, here], attention[:, : read + t + 1]))
        return torch.cat(hidden, dim=1)


def row_hypotheses(again: Again) -> Iterator[Hypothesis]:
    """Reasons in the rows: tokens and columns that moved against each other."""
    remedy = "Look for code that cuts, pads or rolls tokens, masks or recorded log-probabilities"
    yield Hypothesis(SHIFT, "with the tokens that rewards saw and the mask of their length", remedy, partial(read_samples, again))
    for by in (1, -1):
        yield Hypothesis(SHIFT, f"with columns moved by {by:+d}", remedy, partial(read_shifted, again, by))


def read_samples(again: Again) -> Float[Tensor, "n t"]:
    """Log-probabilities of the samples' tokens instead of the trace's."""
    samples = [sample for _, sample in again.rollouts.samples()]
    tokens = stack_ragged([torch.tensor(sample.token_ids or (), dtype=torch.long) for sample in samples])
    lengths = torch.tensor([len(sample.token_ids or ()) for sample in samples])
    proper = torch.arange(again.mask.shape[1]) < lengths[:, None]
    values = again(replace(again.trace, tokens=tokens, lengths=lengths), proper)
    return values.masked_fill(~proper, torch.nan)


def read_shifted(again: Again, by: int) -> Float[Tensor, "n t"]:
    """Log-probabilities with every value `by` columns later; NaN where none came from."""
    proper = torch.arange(again.mask.shape[1]) < again.trace.lengths[:, None]
    return move_columns(again(mask=proper), proper, by)


def model_hypotheses(again: Again) -> Iterator[Hypothesis]:
    """Reasons within the model: repetition, dropout, precision, batches, weights."""
    net, policy = again.policy.net, again.policy
    yield repetition(again)
    yield from dropout(
        lambda: again.under(without_dropout(net), calm=True),
        lambda: (again.noise_between_readings(), again.noise_between_readings(calm=True)),
    )
    yield rounding(again, "float32")
    packed = policy.reads_packed(again.trace)
    if policy.packs:
        yield Hypothesis(
            PREFIX,
            f"with prompts read {'once per row' if packed else 'once per prompt'}",
            "Set policy.prefix = 'repeated', and tell the makers of mmrl which model reads a packed row otherwise",
            partial(again, packed=not packed),
        )
    remedy = "Remove what mixes rows (batch statistics, padding that is attended to), or use float32"
    if policy.packs:
        # A packed row is alone in its batch, so nothing that mixes rows shows in it.
        change = "with every completion in a row of its own"
        yield Hypothesis(BATCH, change, remedy, partial(again, packed=False), must_equal="reading")
    # Sampling in one's own precision is another question: whether decoding from the cache differs, see reading_hypotheses.
    own = "bfloat16" if net.half_precision else "float32"
    yield from (rounding(again, name) for name in ("bfloat16", "float16") if name != own)
    for change, read in (("one row at a time", again.one_by_one), ("all together", again)):
        yield Hypothesis(BATCH, change, remedy, read, must_equal="reading")
    for name in sorted(policy.weights.shadows):
        yield Hypothesis(
            WEIGHTS, f"under the {name} weights", LIVE, lambda name=name: again.under(policy.weights.swapped_in(name))
        )
    yield from adapters(net, again.under)


def rounding(again: Again, name: str) -> Hypothesis:
    """Rounding to this dtype: in half of them token by token, as sampling does."""
    return precision(name, lambda: again.under(in_precision(again.policy.net, name), single=name != "float32"))


def prompt_hypotheses(again: Again) -> Iterator[Hypothesis]:
    """Reasons in the prompts: media, positions, tokens; sampling may have seen them wrong, or training sees them wrong."""
    remedy = "Media must belong to their prompt: look for code that concatenates, permutes or indexes pixel rows"
    yield Hypothesis(
        PIXELS,
        "with pictures and clips encoded afresh",
        remedy,
        lambda: again.under_prompts(lambda prompt: replace(prompt, media=again.encode_again(prompt).media)),
    )
    change = "with the media of other prompts of the step"
    swaps = [partial(with_media_of, again.everyone, offset) for offset in range(TRIES)]
    yield Hypothesis(PIXELS, change, remedy, lambda: again.nearest(swaps))
    remedy = "Positions must be those that the model's own rule gives: look for code that computes, scales or shifts them"
    yield Hypothesis(
        POSITIONS,
        "with positions computed afresh",
        remedy,
        lambda: again.under_prompts(lambda prompt: replace(prompt, positions=again.encode_again(prompt).positions)),
    )
    rules: list[Callable[[Encoded], Encoded]] = [with_one_axis, partial(without_times, again.policy)]
    rules += [partial(with_time_scaled, again.policy, factor) for factor in (0.0, 0.5, 2.0)]
    change = "with positions on one axis, or with time scaled"
    yield Hypothesis(POSITIONS, change, remedy, lambda: again.nearest(rules))
    remedy = "Prompts must be encoded once, by policy.encode: look for code that changes their tokens afterwards"
    yield Hypothesis(PROMPT, "with prompts encoded afresh", remedy, lambda: again.under_prompts(again.encode_again))


def with_media_of(everyone: tuple[Encoded, ...], offset: int, prompt: Encoded) -> Encoded:
    """The media of the `offset`-th other prompt whose tensors have the same shapes; its own if there is none."""

    def shapes(one: Encoded) -> dict[str, tuple[int, ...]]:
        return {name: tuple(x.shape) for name, x in one.media.items()}

    others = [one for one in everyone if one is not prompt and one.media and shapes(one) == shapes(prompt)]
    return replace(prompt, media=others[offset % len(others)].media) if others else prompt


def with_one_axis(prompt: Encoded) -> Encoded:
    """The prompt with positions 0 1 2 ... on all axes: what models fall back to without token types."""
    return replace(prompt, positions=torch.arange(len(prompt)).expand_as(prompt.positions).clone())


def without_times(policy: TextHost, prompt: Encoded) -> Encoded:
    """The prompt with positions that know no times of clips."""
    if not isinstance(policy.family, QwenVL) or prompt.type_ids is None:
        return prompt
    grids = {name: prompt.media[name] for name in ("image_grid_thw", "video_grid_thw") if name in prompt.media}
    return replace(prompt, positions=mrope_positions(policy.net.core, prompt.token_ids, prompt.type_ids, **grids))


def with_time_scaled(policy: TextHost, factor: float, prompt: Encoded) -> Encoded:
    """The prompt with the time within every clip scaled."""
    if not isinstance(policy.family, QwenVL) or len(prompt.positions) == 1:
        return prompt
    video = prompt.token_ids == policy.family.config.video_token_id
    if not bool(video.any()):
        return prompt
    positions, first = prompt.positions.clone(), prompt.positions[0, video].min()
    positions[0, video] = (first + (positions[0, video] - first) * factor).long()
    return replace(prompt, positions=positions)


def reading_hypotheses(again: Again) -> Iterator[Hypothesis]:
    """Reasons in the way of reading: how logits become probabilities, and whether rows follow a shared prompt or the cache."""
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
    yield Hypothesis(
        CACHE,
        "token after token from the cache",
        "The model's cache and its full forward differ: try another policy.attn_implementation",
        lambda: again(single=True),
    )
    yield from layers_that_drop(net)
