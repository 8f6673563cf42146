"""The vocabulary: what flows from one room to the next.

Letters in shapes: n rollouts (rows), t actions of a rollout (tokens of a completion, or denoising transitions), k rewards.
The order of rows is free: a row finds its group by id, never by position, and groups may differ in size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.core.samples import Ended, Role, Seen, Segment, Who, complete, segments_of
from mmrl.core.samples import Group as Group
from mmrl.core.samples import MediaSize as MediaSize
from mmrl.core.samples import Observation as Observation
from mmrl.core.samples import Prompt as Prompt
from mmrl.core.samples import Sample as Sample
from mmrl.core.samples import Scored as Scored
from mmrl.core.samples import Status as Status
from mmrl.core.samples import Turn as Turn
from mmrl.core.samples import Video as Video

Scope = Literal["action", "rollout", "group", "batch"]
"""How much a value depends on, from one action to the whole minibatch: a policy never cuts a batch finer than this."""


@dataclass(frozen=True)
class Piece:
    """A part of a completion that is given: `Piece((5, 9), logprobs=(-0.1, -2.3))`, `Piece(text="So:", who="forced")`."""

    tokens: tuple[int, ...] = ()
    text: str | None = None
    """In place of tokens, which the policy makes of it."""
    who: Who = "policy"
    """Its writer; what the policy wrote trains."""
    logprobs: tuple[float, ...] = ()
    """As noted when it was sampled; empty: not known."""
    share: float = 1.0
    """Share of its tokens that is kept, rounded down."""
    before: str = ""
    """Only tokens in front of this text count, where it occurs."""


@dataclass(frozen=True)
class Given:
    """A completion that is given, or its beginning, piece by piece: `Given((Piece(text="yes"),))`. `Prefix`, `Branch`, `Dialogue`
    and `StoredRow` make others."""

    pieces: tuple[Piece, ...]
    turns: tuple[Turn, ...] = ()
    """Of an episode: its turns, with what was answered to each; a piece of the policy for every turn."""
    world: tuple[int, int] | None = None
    """Of an episode that goes on: Request.seed and number of the sample for which its world was opened first."""
    whole: bool = True
    """False: what follows is sampled."""
    truncated: bool = False
    """True: it was cut before it ended."""
    ended: Ended | None = None
    """Of an episode of an earlier step: why it ended."""
    seen: Seen | None = None
    """Of a row of an earlier step: what its group was like."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for piece in self.pieces for token in piece.tokens)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Those noted when it was sampled; empty: not known."""
        return tuple(noted for piece in self.pieces for noted in piece.logprobs)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Who wrote which of its tokens."""
        return segments_of((piece.who, len(piece.tokens)) for piece in self.pieces)

    @property
    def text(self) -> str:
        """The whole completion, where it is one text; else empty."""
        return self.pieces[0].text or "" if self.whole and self.pieces and not self.turns else ""

    @property
    def is_row(self) -> bool:
        """Is it a row of an earlier step, token by token?"""
        return self.whole and all(piece.text is None for piece in self.pieces)


def Prefix(  # noqa: N802 - the name of a thing that is given
    token_ids: tuple[int, ...], share: float = 1.0, before: str = "", forced: str = "", trained: bool = False
) -> Given:
    """The beginning of an earlier completion, which a new one goes on from. `Prefix(sample.token_ids, 0.5, forced="So:")`.

    Args:
        token_ids: of the earlier completion; a stop token at its end is left out.
        share: of these tokens that is kept, rounded down.
        before: only tokens in front of this text count, where it occurs: `</think>` keeps a cut inside of the thought.
        forced: a text after them that was not sampled.
        trained: the kept tokens train as if they had been sampled again; the forced text never does.
    """
    kept = Piece(token_ids, who="policy" if trained else "forced", share=share, before=before)
    return Given((kept, Piece(text=forced, who="forced")) if forced else (kept,), whole=False)


def Branch(  # noqa: N802 - the name of a thing that is given
    turns: tuple[Turn, ...], token_ids: tuple[int, ...], logprobs: tuple[float, ...], world: tuple[int, int]
) -> Given:
    """The first turns of an episode of this step, which another one goes on from. Its world is opened as the earlier one was and
    given the same turns, so it must repeat.

    Args:
        turns: with what was answered to each.
        token_ids: of these turns and answers: the last are what the world said before the turn that is written anew.
        logprobs: as noted when they were sampled, 0 where they were not: the turns train again.
        world: Request.seed and number of the sample for which the world was opened first.
    """
    places = [0, *(place for turn in turns for place in turn.span), len(token_ids)]
    segments = [Segment("policy" if i % 2 else "environment", *span) for i, span in enumerate(pairwise(places))]
    return Given(cut(token_ids, logprobs, segments), turns, world, whole=False)


def Dialogue(turns: tuple[Turn, ...], last_only: bool = False) -> Given:  # noqa: N802 - the name of a thing that is given
    """A whole completion of several turns: `Dialogue((Turn("?", (0, 0), Observation("7")), Turn("B", (0, 0))))`.

    Args:
        turns: texts of the policy, each but the last with the answer to it; their spans are found when they are written down.
        last_only: the last turn trains alone.
    """
    answered = max((i for i, turn in enumerate(turns) if turn.observation is not None), default=-1)
    pieces = (Piece(text=turn.text, who="forced" if last_only and i <= answered else "policy") for i, turn in enumerate(turns))
    return Given(tuple(pieces), turns)


def StoredRow(  # noqa: N802 - the name of a thing that is given
    tokens: tuple[int, ...],
    logprobs: tuple[float, ...] = (),
    *,
    truncated: bool = False,
    seen: Seen | None = None,
    segments: tuple[Segment, ...] = (),
) -> Given:
    """A row of an earlier step, to be trained again: `StoredRow((5, 9, 2), (-0.1, -2.3, -0.7))`.

    Args:
        tokens: the completion's, the stop token included.
        logprobs: as noted when it was sampled; empty: to be evaluated before the first update, as if the row were new.
        truncated: it was cut before it ended.
        seen: what its group was like.
        segments: who wrote which of its tokens, as `Sample.segments`; ValueError where they do not cover the tokens.
    """
    return Given(cut(tokens, logprobs, complete(segments, tokens)), truncated=truncated, seen=seen)


def cut(tokens: tuple[int, ...], logprobs: tuple[float, ...], segments: Sequence[Segment]) -> tuple[Piece, ...]:
    """Tokens as one piece per segment that is not empty."""
    spans = [(one, slice(one.start, one.stop)) for one in segments if len(one)]
    return tuple(Piece(tokens[span], None, one.who, logprobs[span]) for one, span in spans)


@dataclass(frozen=True)
class Shown:
    """The prompt that a completion is sampled behind: `Shown(with_hint)`, `Shown(with_hint, trained=True)`."""

    prompt: Prompt | None = None
    """In place of the request's prompt, with the same id: a hint under it, an answer to be improved; None: the prompt itself."""
    trained: bool = False
    """True: training reads the completion after this prompt too, under the request's view. False: after the plain prompt."""


@dataclass(frozen=True)
class Tempering:
    """How a sample is drawn otherwise than the run's are: at another temperature, in fewer steps, or again.

    Completions at another temperature are read at the run's.
    """

    temperature: float | None = None
    """To sample with instead of the run's; log-probabilities are then evaluated before the first update."""
    rule: Callable[[Float[Tensor, "n v"]], Float[Tensor, "n v"]] | None = None
    """Log-probabilities that tokens are drawn with, from those at the temperature, which are noted."""
    num_steps: int | None = None
    """Of image generators: denoising steps of samples that are only looked at; None: the schedule's."""
    samples: tuple[int, ...] = ()
    """Of image generators: the numbers of the samples to draw, `count` of them; (): from 0 on."""


@dataclass(frozen=True)
class Request:
    """Asks for `count` samples of `prompt`, into group `group_id`."""

    prompt: Prompt
    count: int
    group_id: int
    view: str = "plain"
    """How the prompt is shown while sampling; training reads the plain prompt, unless `shown` or a Reading says otherwise."""
    role: Role = "policy"
    model: str = "policy"
    """Under which weights to sample: policy, old, ref or ema."""
    seed: int = 0
    """Sample i of this request is drawn from a generator seeded by (seed, i): it can be drawn again alone."""
    shown: Shown = Shown()
    """What is shown while sampling, and whether training reads it too."""
    written: str | Given | None = None
    """What is given of the completion. All of it: a text or a `Dialogue`, for role `injected`, whose log-probabilities are
    evaluated before the first update, or a `StoredRow`, for role `replayed`, one per request, whose group may be a known one, or
    a new one of negative id. Or its beginning: the `Prefix` of every completion, which `max_new_tokens` counts, with room for one
    more token at least, or the `Branch` of every episode."""
    tempering: Tempering = Tempering()
    """What is sampled otherwise than in the rest of the run."""
    turns: int | None = None
    """The most turns of an episode, where the run has an environment; 1: it is not asked. None: as its limits say."""

    @property
    def shown_prompt(self) -> Prompt:
        """The prompt that sampling is shown, before its view."""
        return self.prompt if self.shown.prompt is None else self.shown.prompt

    @property
    def given(self) -> Given | None:
        """`written`, a text as one piece."""
        return Given((Piece(text=self.written),)) if isinstance(self.written, str) else self.written

    @property
    def text(self) -> str:
        """The whole completion, where it is given as a text; else empty."""
        return "" if self.given is None else self.given.text

    @property
    def numbers(self) -> Sequence[int]:
        """Those of its samples: with the seed they decide what is drawn."""
        return self.tempering.samples or range(self.count)

    @property
    def is_written(self) -> bool:
        """Is the whole completion given, so that nothing is sampled?"""
        return self.given is not None and self.given.whole


class Target(NamedTuple):
    """Another distribution: whose, behind which view, its share of the mixture, tokens that count one by one (0: all)."""

    model: str
    view: str = "plain"
    beta: float = 1.0
    top: int = 0


class Reading(NamedTuple):
    """One quantity the objective needs evaluated: what, under which weights, on which view of the prompt.

    Model `old` is the weights that sampled; `rollout` is what was noted while sampling; `start` is the weights at the beginning
    of the step, which sampled all rows but replayed ones; `scores` is no model but the rewards. Those in use stand in
    mmrl.core.readings.
    """

    quantity: str
    model: str = "policy"
    view: str = "plain"
    temperature: float | None = None
    """What logits are divided by; None: as when the row was sampled."""
    guidance: float | None = None
    """Of image generators: the scale that velocities are guided with; None: the policy's."""
    target: Target | None = None


class ClipRange(NamedTuple):
    """How far a term lets something move from where an update begins, to either side: `ClipRange(0.2, 0.28)`.

    Infinite where a side is open.
    """

    low: float
    high: float
    level: Literal["action", "rollout"] = "action"
    """What is clipped: something of every action, or one mean per rollout."""
    of: Literal["ratio", "scaled_ratio", "probability"] = "ratio"
    """ratio: policy / old, or its log; scaled_ratio: a ratio whose log was multiplied by the step's deviation (GRPO-Guard);
    probability: policy - old."""

    @property
    def narrowest(self) -> float:
        return min(self.low, self.high)


@runtime_checkable
class Trace(Protocol):
    """A policy's record, from which it can evaluate the same actions again; only that policy looks inside."""

    def take(self, rows: Tensor, steps: slice) -> "Trace": ...


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of one step: row i is sample `sample_ids[i]` of the group whose id is `group_ids[i]`."""

    groups: tuple[Group, ...]
    group_ids: Int[Tensor, " n"]
    sample_ids: Int[Tensor, " n"]
    action_mask: Bool[Tensor, "n t"]
    """True where an action was taken and may be trained."""
    trace: Trace
    recorded: Mapping[Reading, Float[Tensor, "n t"]] = field(default_factory=dict[Reading, Tensor])
    """What was noted while sampling; a row of NaN (injected) is evaluated again before the first update."""
    node_ids: Int[Tensor, "n t"] | None = None
    """Equal where rollouts share an action (trees); None: nothing is shared."""
    weights_version: int = 0
    """The number of updates behind the weights that sampled; of several writers the oldest."""

    def __len__(self) -> int:
        return len(self.group_ids)

    def take(self, rows: Tensor, steps: slice = slice(None)) -> "Rollouts":
        """Some rows, in the order given, and some actions of them."""
        return replace(
            self,
            group_ids=self.group_ids[rows],
            sample_ids=self.sample_ids[rows],
            action_mask=self.action_mask[rows][:, steps],
            trace=self.trace.take(rows, steps),
            recorded={reading: x[rows][:, steps] for reading, x in self.recorded.items()},
            node_ids=None if self.node_ids is None else self.node_ids[rows][:, steps],
        )

    def pairs(self) -> list[tuple[int, int]]:
        """Group id and sample id of every row."""
        return list(zip(map(int, self.group_ids), map(int, self.sample_ids), strict=True))

    def samples(self) -> Iterator[tuple[Group, Sample]]:
        """Group and sample of every row."""
        by_id = {group.id: group for group in self.groups}
        for group_id, sample_id in self.pairs():
            yield by_id[group_id], by_id[group_id].samples[sample_id]

    def truncated(self) -> Bool[Tensor, " n"]:
        """True for rows that were cut before they ended."""
        return torch.tensor([sample.truncated for _, sample in self.samples()], dtype=torch.bool)

    def is_replayed(self) -> Bool[Tensor, " n"]:
        """True for rows that an earlier step sampled."""
        return torch.tensor([sample.role == "replayed" for _, sample in self.samples()], dtype=torch.bool)


@dataclass(frozen=True)
class Scores:
    """Rewards of every row, kept apart: only an advantage may add them up."""

    names: tuple[str, ...]
    values: Float[Tensor, "n k"]
    """NaN where status is not OK."""
    status: Int[Tensor, "n k"]
    weights: Float[Tensor, " k"]
    """0 = logged, never trained on."""

    def total(self) -> Float[Tensor, " n"]:
        """sum_k w_k r_k over the rewards that answered.

        NaN (the row leaves every statistic) when a weighted reward failed, or none of the weighted ones applies.
        """
        weighted = self.weights != 0
        ok = (self.status == Status.OK) & weighted
        failed = ((self.status == Status.FAILED) & weighted).any(1)
        total = torch.where(ok, self.values * self.weights, 0.0).sum(1)
        return torch.where(failed | ~ok.any(1), torch.nan, total)

    def take(self, rows: Tensor) -> "Scores":
        return replace(self, values=self.values[rows], status=self.status[rows])


@dataclass(frozen=True)
class Credit:
    """An advantage's answer. A row with keep False leaves every count, as if it had never been sampled."""

    values: Float[Tensor, "n t"]
    keep: Bool[Tensor, " n"]
    actions: Bool[Tensor, "n t"] | None = None
    """False: the action leaves every count too (pruned branches of a tree); None: no action is left out."""

    @property
    def mask(self) -> Bool[Tensor, "n t"]:
        """Which actions train, apart from masks."""
        kept = self.keep[:, None].expand(self.values.shape)
        return kept if self.actions is None else kept & self.actions


@dataclass(frozen=True)
class Counts:
    """Over all ranks, the rows that train: what aggregations divide by."""

    rollouts: int
    """Rows with at least one trainable action."""
    actions: int
    groups: int
    pooled: Mapping[Reading, Tensor] = field(default_factory=dict[Reading, Tensor])
    """The values of all trainable actions, for weights that rank an action among them (`WeightHooks.pools`)."""


@dataclass(frozen=True)
class Batch:
    """The rows of one optimizer step, or a micro-batch cut from it."""

    rollouts: Rollouts
    advantages: Float[Tensor, "n t"]
    share: Float[Tensor, "n t"]
    """Share of every action in the loss, from global counts: any cut of the batch adds up to the same loss."""
    importance: Float[Tensor, "n t"]
    """The method's weight of every action; multiplies credited terms only."""
    frozen: Mapping[Reading, Tensor] = field(default_factory=dict[Reading, Tensor])
    """Readings under weights that do not move during the step, (n, t, ...)."""

    def __len__(self) -> int:
        return len(self.rollouts)

    def take(self, rows: Tensor, steps: slice = slice(None)) -> "Batch":
        return Batch(
            self.rollouts.take(rows, steps),
            self.advantages[rows][:, steps],
            self.share[rows][:, steps],
            self.importance[rows][:, steps],
            {reading: x[rows][:, steps] for reading, x in self.frozen.items()},
        )


@dataclass(frozen=True)
class Revision:
    """A planner's requests after seeing the scores of a round; none by default."""

    requests: Sequence[Request] = ()
    """Sample these too; a request with a known group id adds to that group."""
    fresh_prompts: int = 0
    """Draw n new prompts and plan them."""
    drop_groups: frozenset[int] = frozenset()
    drop_samples: frozenset[tuple[int, int]] = frozenset()
    """(group id, sample id) pairs."""
    values: Mapping[tuple[int, int], tuple[tuple[int, float], ...]] = field(
        default_factory=dict[tuple[int, int], tuple[tuple[int, float], ...]]
    )
    """(group id, sample id) -> its `Sample.values`, of the samples that have some now."""
