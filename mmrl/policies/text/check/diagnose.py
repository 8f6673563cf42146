"""Why a text policy's log-probabilities may differ from those it noted: one controlled reading per reason; and how it rounds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.core.protocols import Hypothesis
from mmrl.core.samples import turn_ids
from mmrl.core.types import Rollouts, Sample
from mmrl.policies.shared import hypotheses as shared
from mmrl.policies.shared.holding import holding
from mmrl.policies.shared.hypotheses import BATCH, COMPILED, ROWS, SHIFT, Suspects
from mmrl.policies.text.check.audit import observe_again
from mmrl.policies.text.families.qwen_vl import QwenVL, mrope_positions
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.kept import layers_of
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.packed.room import SharedRoom
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.read.evaluate import RowEvaluation, evaluation_of
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.trace import Inset, TextTrace
from mmrl.policies.text.write.episodes import inset_of
from mmrl.policies.text.write.generate import draw_next, step
from mmrl.runtime.tensors import pad_actions, stack_ragged

Shown = TypeVar("Shown", Encoded, Inset)
"""Holds media: a prompt, or what an observation shows."""
TRIES = 8
"""Other prompts whose media are shown instead of a row's own."""
PIXELS, POSITIONS, PROMPT = "wrong pixel rows", "wrong positions", "prompt tokens"
TURNS = "turns tokenized again"
TEMPERATURE, BANNED, PREFIX, CACHE = "temperature", "forbidden tokens", "shared prefixes", "decoding from the cache"
PIECES = "rows that several processes read together"
SHARED = "prompts that are shared while completions are written"
REMEDIES = {
    **shared.REMEDIES,
    PIXELS: "Media must belong to their prompt: look for code that concatenates, permutes or indexes pixel rows",
    POSITIONS: "Positions must be those that the model's own rule gives: look for code that computes, scales or shifts them",
    PROMPT: "Prompts must be encoded once, by policy.encode: look for code that changes their tokens afterwards",
    TURNS: "Hand the sampler the tokens of earlier turns, never their text: tokenizing it again may give other tokens",
    TEMPERATURE: "Read at the temperature that sampled: the trace keeps it of every row",
    BANNED: "Sampling must forbid the tokens that reading forbids: media tokens, padding and ids that cannot be written",
    PREFIX: "Set policy.prefix = 'repeated', and tell the makers of mmrl which model reads a packed row otherwise",
    PIECES: "Leave policy.context out, and tell the makers of mmrl which model, card and backend exchange other numbers",
    SHARED: "Set policy.decode = 'plain', and tell the makers of mmrl which model writes otherwise behind a shared prompt",
    CACHE: "The model's cache and its full forward differ: try another policy.attn_implementation",
}


@dataclass(frozen=True)
class TextDiagnostics:
    """Says why readings of a TextPolicy may differ."""

    policy: TextHost

    def hypotheses(self, rollouts: Rollouts) -> Iterator[Hypothesis]:
        policy, trace = self.policy, rollouts.trace
        assert isinstance(trace, TextTrace)
        again = Again(policy, rollouts, trace.compact(), trace.prompts)
        suspect = Suspects(policy.net, policy.weights, rollouts, again, REMEDIES)
        if policy.net.team is not None:
            yield suspect(PIECES, "by one process, which has whole rows", again)
        yield from suspect.of_model(
            again.one_by_one,
            "one row at a time",
            sampled=partial(again, replay=CachedReplay),
            still=lambda: holding([policy], "config", replace(policy.config, gradient_checkpointing=False)),
            others=of_forwards(suspect, again),
        )
        yield from of_rows(suspect, again)
        yield from of_prompts(suspect, again)
        yield from of_observations(suspect, again)
        yield from of_reading(suspect, again)


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
        replay: Callable[..., RowEvaluation] | None = None,
        width: int | None = None,
    ) -> Float[Tensor, "n t"]:
        """Log-probabilities as the policy reads them.

        Args:
            trace: other rows than these, or these with something changed.
            packed: prompts are read once each; None: as the policy does.
            replay: makes an evaluation feed token after token, as sampling does.
            width: the number of columns; None: as many as these rows have.
        """
        net, config, grad = self.policy.net, self.policy.config, torch.is_grad_enabled()
        trace, mask = (trace or self.trace).compact(), self.mask if mask is None else mask
        trace = replace(trace, packed=replay is None and (self.policy.reads_packed(trace) if packed is None else packed))
        # Sharded weights need all processes to make the same number of forwards.
        least = self.policy.ranks.forwards(max(1, trace.tokens.shape[1])) if replay else 1
        work = evaluation_of(net, trace, trace.prompts, mask, ("logprobs",), config.logit_chunk, least)
        # Checkpointed layers keep no cache.
        net.train(grad and config.gradient_checkpointing and replay is None)
        try:
            values = self.policy.run(replay(**vars(work)) if replay else work)["logprobs"]
        finally:
            net.eval()
        width = width or self.mask.shape[1]
        return pad_actions(values.detach().cpu(), width)[:, :width]

    def with_prompts(self, change: Callable[[Encoded], Encoded]) -> Callable[[], Float[Tensor, "n t"]]:
        """Reads with other prompts in place of the rows' own."""
        return lambda: self(replace(self.trace, prompts=tuple(map(change, self.trace.prompts))))

    def encode_again(self, prompt: Encoded) -> Encoded:
        """The prompt, encoded from its files again."""
        assert prompt.prompt is not None
        return self.policy.encode(prompt.prompt, prompt.seed)

    def one_by_one(self) -> Float[Tensor, "n t"]:
        """Log-probabilities read one row at a time."""
        rows = torch.arange(len(self.trace)).split(1)
        return torch.cat([self(self.trace.take(row), self.mask[row]) for row in rows])


class CachedReplay(RowEvaluation):
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


@dataclass(frozen=True)
class SharedReplay(RowEvaluation):
    """Evaluates as sampling does where completions share prompts."""

    sampling: Sampling = field(default_factory=Sampling)
    compiled: bool = False

    @torch.no_grad()
    def after_repeated_prompts(self, net: TextNet) -> Float[Tensor, "n t d"]:
        if self.insets:
            return super().after_repeated_prompts(net)
        last, cache = net.prefill(self.prompts)
        index, ends = self.prompt_index.tolist(), self.prompts.attention.sum(1).tolist()
        room, order = SharedRoom.of(layers_of(cache), index, [ends[i] for i in index], self.fed.shape[1])
        hidden, places, positions = [last[self.prompt_index[order]]], self.fed[order], self.positions()[:, order]
        warm, noise = self.temperature[order], torch.zeros_like(self.temperature) if self.sampling.temperature else None
        for t in range(self.fed.shape[1]):
            fed, around = places[:, t].contiguous(), (positions[:, :, t : t + 1], None, warm, noise, self.sampling)
            drawn = draw_next(net, room, fed, around) if self.compiled else step(net, net.extend, room, fed, around)
            hidden.append(drawn[0])
        return torch.stack(hidden, 1)[torch.tensor(order, device=last.device).argsort()]


def of_forwards(suspect: Suspects, again: Again) -> Iterator[Hypothesis]:
    """Reasons in the kinds of forwards: token after token, packed, row by row. Nothing that mixes rows shows in a packed row."""
    if again.policy.packs:
        packed = again.policy.reads_packed(again.trace)
        change = f"with prompts read {'once per row' if packed else 'once per prompt'}"
        yield suspect(PREFIX, change, partial(again, packed=not packed))
        change = "with every completion in a row of its own"
        yield suspect(BATCH, change, partial(again, packed=False), must_equal="reading")
    yield suspect(CACHE, "token after token from the cache", partial(again, replay=CachedReplay))
    if again.policy.net.shares:
        change, replay = "token after token behind shared prompts", partial(SharedReplay, sampling=again.policy.config.sampling)
        yield suspect(SHARED, change, partial(again, replay=replay))
        if again.policy.net.compiled:
            yield suspect(COMPILED, f"{change}, as compiled", partial(again, replay=partial(replay, compiled=True)))


def of_rows(suspect: Suspects, again: Again) -> Iterator[Hypothesis]:
    """Reasons in the rows: tokens, columns and prompts that shifted against each other."""
    trace, samples = again.trace, list(again.rollouts.samples())
    written = [tuple(row[:length].tolist()) for row, length in zip(trace.tokens, trace.lengths.tolist(), strict=True)]
    known = {sample.token_ids for group in again.rollouts.groups for sample in group.samples}
    tokens = ROWS if known.issuperset(written) else SHIFT
    yield suspect(tokens, "with the tokens that rewards saw and the mask of their length", partial(read_samples, again))
    proper = own_tokens(again)
    yield from suspect.of_columns(partial(again, mask=proper), proper)
    prompts = [trace.prompts[i] for i in trace.prompt_index.tolist()]
    if any(own.prompt_id != group.prompt.id for own, (group, _) in zip(prompts, samples, strict=True)):
        yield suspect(ROWS, "with the prompts of the rows' groups", partial(read_own_prompts, again))


def own_tokens(again: Again) -> Bool[Tensor, "n t"]:
    """Where completions have tokens; of episodes, those that the policy wrote."""
    proper = torch.arange(again.mask.shape[1]) < again.trace.lengths[:, None]
    for row, (_, sample) in zip(proper, again.rollouts.samples(), strict=True):
        if sample.turns:
            ids = turn_ids(sample.segments)
            row[: len(ids)] &= torch.tensor(ids) >= 0
    return proper


def read_samples(again: Again) -> Float[Tensor, "n t"]:
    """Log-probabilities of the samples' tokens instead of the trace's."""
    samples = [sample for _, sample in again.rollouts.samples()]
    tokens = stack_ragged([torch.tensor(sample.token_ids or (), dtype=torch.long) for sample in samples])
    lengths = torch.tensor([len(sample.token_ids or ()) for sample in samples])
    proper = own_tokens(again)
    values = again(replace(again.trace, tokens=tokens, lengths=lengths), proper)
    return values.masked_fill(~proper, torch.nan)


def read_own_prompts(again: Again) -> Float[Tensor, "n t"]:
    """Log-probabilities behind the prompts that the rows' groups are about."""
    owners = {group.prompt.id: group.prompt for group, _ in again.rollouts.samples()}
    place = {name: i for i, name in enumerate(owners)}
    index = torch.tensor([place[group.prompt.id] for group, _ in again.rollouts.samples()])
    prompts = tuple(again.policy.encode(prompt, 0) for prompt in owners.values())
    return again(replace(again.trace, prompts=prompts, prompt_index=index))


def of_prompts(suspect: Suspects, again: Again) -> Iterator[Hypothesis]:
    """Reasons in the prompts: media, positions, tokens; sampling may have seen them wrong, or training sees them wrong."""

    try:
        fresh = {id(prompt): again.encode_again(prompt) for prompt in again.trace.prompts}
    except (ValueError, OSError):
        return

    def afresh(name: str) -> Callable[[], Tensor]:
        return again.with_prompts(lambda prompt: replace(prompt, **{name: getattr(fresh[id(prompt)], name)}))

    if any(not torch.equal(prompt.token_ids, fresh[id(prompt)].token_ids) for prompt in again.trace.prompts):
        # Media and positions of other tokens cannot be put into these prompts.
        yield suspect(PROMPT, "with prompts encoded afresh", again.with_prompts(lambda prompt: fresh[id(prompt)]))
        return
    yield suspect(PIXELS, "with pictures and clips encoded afresh", afresh("media"))
    swaps = [again.with_prompts(partial(with_media_of, again.everyone, offset)) for offset in range(TRIES)]
    yield suspect.nearest(PIXELS, "with the media of other prompts of the step", swaps)
    yield suspect(POSITIONS, "with positions computed afresh", afresh("positions"))
    rules: list[Callable[[Encoded], Encoded]] = [with_one_axis, partial(without_times, again.policy)]
    rules += [partial(with_time_scaled, again.policy, factor) for factor in (0.0, 0.5, 2.0)]
    change = "with positions on one axis, or with time scaled"
    yield suspect.nearest(POSITIONS, change, list(map(again.with_prompts, rules)))


def of_observations(suspect: Suspects, again: Again) -> Iterator[Hypothesis]:
    """Reasons in what was shown between turns: its tokens, pictures and their positions."""
    proper = own_tokens(again)
    if bool((again.mask & ~proper).any()):
        change = "with no token that an environment wrote, and none behind a completion's end"
        yield suspect(SHIFT, change, lambda: again(mask=again.mask & proper))
    if any(sample.turns[1:] for _, sample in again.rollouts.samples()):
        yield suspect(TURNS, "with earlier turns decoded and tokenized again", partial(read_tokenized_again, again))
    if not again.trace.insets:
        return
    insets = again.trace.insets
    every = [one for row in insets for one in row]

    def with_each(change: Callable[[Inset], Inset]) -> Callable[[], Tensor]:
        return lambda: again(replace(again.trace, insets=tuple(tuple(map(change, row)) for row in insets)))

    def fresh() -> Tensor:
        seen = (observe_again(again.policy, sample) for _, sample in again.rollouts.samples())
        found = ((inset_of(observed, start) for start, observed in row) for row in seen)
        return again(replace(again.trace, insets=tuple(tuple(one for one in row if one is not None) for row in found)))

    yield suspect(PIXELS, "with the pictures between turns encoded afresh", fresh)
    swaps = [with_each(partial(with_media_of, every, offset)) for offset in range(TRIES)]
    yield suspect.nearest(PIXELS, "with the pictures of other turns", swaps)
    flat = with_each(lambda one: replace(one, positions=torch.arange(one.positions.shape[1]).expand_as(one.positions)))
    yield suspect(POSITIONS, "with the pictures between turns on one axis", flat)


def read_tokenized_again(again: Again) -> Float[Tensor, "n t"]:
    """Log-probabilities of each turn behind earlier ones that were decoded and tokenized again, as a sampler has them that is
    given texts in place of tokens."""
    values, samples = again(), [sample for _, sample in again.rollouts.samples()]
    for turn in range(1, max(len(sample.turns) for sample in samples)):
        chosen = [row for row, sample in enumerate(samples) if len(sample.turns) > turn]
        written = [behind_text(again, row, samples[row], turn) for row in chosen]
        tokens = stack_ragged([torch.tensor(row) for row, _ in written])
        lengths = torch.tensor([len(row) for row, _ in written])
        insets = tuple(shown for _, shown in written)
        trace = replace(again.trace.take(torch.tensor(chosen)), tokens=tokens, lengths=lengths)
        spans = [samples[row].turns[turn].span for row in chosen]
        first = lengths - torch.tensor([stop - start for start, stop in spans])
        places = torch.arange(tokens.shape[1])
        mask = (places >= first[:, None]) & (places < lengths[:, None])
        found = again(replace(trace, insets=insets if any(insets) else ()), mask, width=tokens.shape[1])
        for row, (start, stop), read, own in zip(chosen, spans, found, mask, strict=True):
            values[row, start:stop] = read[own]
    return values * again.mask


def behind_text(again: Again, row: int, sample: Sample, turn: int) -> tuple[list[int], tuple[Inset, ...]]:
    """The tokens of a row up to the end of a turn, and its pictures; earlier turns are tokenized again, stop tokens kept."""
    host, (start, stop), tokens = again.policy, sample.turns[turn].span, list[int]()
    shown = {one.start: one for one in again.trace.insets[row]} if again.trace.insets else {}
    moved = list[Inset]()
    for segment in sample.segments:
        piece: list[int] = again.trace.tokens[row, segment.start : segment.stop].tolist()
        if segment.start >= stop:
            break
        if segment.start in shown:
            moved.append(replace(shown[segment.start], start=len(tokens)))
        if segment.who == "policy" and segment.start < start:
            end = len(piece) - (piece[-1] in host.eos_token_ids)
            piece = [*host.tokenizer(host.decode([piece[:end]])[0], add_special_tokens=False)["input_ids"], *piece[end:]]
        tokens += piece
    return tokens, tuple(moved)


def with_media_of(everyone: Sequence[Shown], offset: int, one: Shown) -> Shown:
    """With the media of the `offset`-th other one whose tensors have the same shapes; its own if there is none."""

    def shapes(other: Shown) -> dict[str, tuple[int, ...]]:
        return {name: tuple(x.shape) for name, x in other.media.items()}

    others = [other for other in everyone if other is not one and other.media and shapes(other) == shapes(one)]
    return replace(one, media=others[offset % len(others)].media) if others else one


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
    positions[0, video] = (first + (positions[0, video] - first) * factor).to(positions)
    return replace(prompt, positions=positions)


def of_reading(suspect: Suspects, again: Again) -> Iterator[Hypothesis]:
    """Reasons in the way of reading: how logits become probabilities, and whether rows follow a shared prompt or the cache."""
    policy, net, trace = again.policy, again.policy.net, again.trace
    for value in sorted({1.0, policy.config.sampling.temperature or 1.0}):
        hot = replace(trace, temperature=torch.full_like(trace.temperature, value))
        yield suspect(TEMPERATURE, f"at temperature {value:g}", partial(again, hot))
    change = "at {factor} times the temperature of the record"
    yield from suspect.fit(TEMPERATURE, change, lambda factor: again(replace(trace, temperature=factor * trace.temperature)))
    proper = torch.zeros_like(net.banned)
    proper[sorted(policy.banned)] = True
    for change, banned in (
        ("with no token forbidden", torch.zeros_like(proper)),
        ("with the policy's own tokens forbidden", proper),
    ):
        yield suspect(BANNED, change, lambda banned=banned: suspect.under(holding([net], "banned", banned)))
    yield from suspect.of_layers()


BOUND = 2e-5
"""Largest |log ratio| of two readings in float32, of the deepest models that were tried."""
FLOAT32_UNIT = 2.0**-24
TF32_UNIT = 2.0**-11
"""Half the spacing of the numbers that a GPU multiplies float32 matrices with, where TF32 is on."""
MOST_TOKENS = 64
"""Tokens at the start of a completion that are decoded again; each costs a forward."""


@dataclass(frozen=True)
class TextRounding:
    """How the network of a TextPolicy rounds."""

    policy: TextHost
    bound: float = BOUND

    @property
    def unit(self) -> float:
        """Relative error of one rounding."""
        half = self.policy.config.dtype == "bfloat16"
        return unit_of(torch.bfloat16 if half else torch.float32, self.policy.net.device)

    @property
    def depth(self) -> int:
        """Layers of the language model."""
        return int(self.policy.family.config.get_text_config().num_hidden_layers)

    @property
    def is_coarse(self) -> bool:
        return self.unit > FLOAT32_UNIT

    def readings(self, rollouts: Rollouts) -> Iterator[Float[Tensor, "n t"]]:
        """Decoded token after token from the cache; one row at a time. NaN after the first MOST_TOKENS tokens."""
        trace = rollouts.trace
        assert isinstance(trace, TextTrace)
        cut = replace(trace, tokens=trace.tokens[:, :MOST_TOKENS], lengths=trace.lengths.clamp(max=MOST_TOKENS))
        # A picture within a completion cannot be cut.
        begun = trace if trace.insets else cut
        again = Again(self.policy, rollouts, begun, trace.prompts)
        late = torch.arange(rollouts.action_mask.shape[1]) >= MOST_TOKENS
        for read in (partial(again, replay=CachedReplay), again.one_by_one):
            with torch.no_grad():
                values = read()
            yield values.masked_fill(late, torch.nan)


def unit_of(dtype: torch.dtype, device: torch.device) -> float:
    """Relative error of one rounding of a network that computes in this type on this device."""
    if dtype == torch.float32 and device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        return TF32_UNIT
    return torch.finfo(dtype).eps / 2
