"""Planners that train rows of earlier steps again, from a buffer that is bounded, held in checkpoints, the same on all ranks."""

import logging
import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from math import isnan
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmrl.algorithms.notes import Held
from mmrl.algorithms.planners.base import PromptByPrompt
from mmrl.core.protocols import State
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import MediaSize, Observation, Seen, Segment, Turn
from mmrl.core.types import Credit, Given, Group, Prompt, Request, Revision, Rollouts, Scores, StoredRow
from mmrl.runtime.pictures import open_upright
from mmrl.runtime.ranges import BelowOne, Count, Large, LargeOrNone, NonNegative, Number, Positive, check_ranges
from mmrl.runtime.tensors import masked_mean

log = logging.getLogger("mmrl")
UNKNOWN = Seen(0, 0.0, 0.0)


class Kept(NamedTuple):
    """A row in the buffer: whose answer it is, and in which group it was sampled."""

    prompt: str
    group: int
    row: Given
    step: int = 0
    """The training step that sampled it, from 1 on."""
    reward: float = 0.0
    """Its total."""
    advantage: float = 0.0
    """The mean over its actions."""


@dataclass
class RowBuffer:
    """Rows by age, the newest last; beyond `capacity` rows, `per_prompt` of a prompt, or `picture_mib` the oldest leave."""

    capacity: int
    per_prompt: int | None = None
    picture_mib: int = 1024
    """Most MiB of pictures that worlds showed in these rows."""
    rows: list[Kept] = field(default_factory=list[Kept])
    step: int = 0
    """The last step whose rows were added."""
    vocabulary: str = ""
    """A name for the vocabulary that rows are written in."""
    prompts: Sequence[Prompt] = field(default=(), repr=False)
    """All prompts of the run, in which rows look up their own."""
    _places: dict[str, int] = field(default_factory=dict[str, int], init=False, repr=False)

    def begin(self, prompts: Sequence[Prompt], vocabulary: str) -> None:
        """Raises ValueError when it holds rows of another vocabulary."""
        if self.rows and self.vocabulary != vocabulary:
            raise ValueError(
                f"the replay buffer holds {len(self.rows)} rows of another vocabulary than this policy's: resume with the model "
                "and tokenizer of the saved run, or start a new run from the checkpoint's weights"
            )
        self.prompts, self.vocabulary = prompts, vocabulary

    def add(self, rows: Sequence[Kept], step: int, max_age: int | None = None) -> None:
        """Add the rows of a step, and drop rows older than `max_age` steps or in excess of the limits."""
        self.step = step
        fresh = filter(None, map(with_pictures, rows))
        held = [kept for kept in (*self.rows, *fresh) if max_age is None or kept.step > step - max_age]
        if self.per_prompt is not None:
            room: dict[str, int] = {}
            newest: list[Kept] = []
            for kept in reversed(held):
                room[kept.prompt] = room.get(kept.prompt, self.per_prompt) - 1
                newest += [kept] * (room[kept.prompt] >= 0)
            held = newest[::-1]
        sizes = list(accumulate(size_of(kept) for kept in reversed(held[-self.capacity :])))
        fitting = bisect_right(sizes, self.picture_mib << 20)
        if sizes and not fitting:
            raise ValueError(
                f"prompt {held[-1].prompt!r}: the pictures of one episode take {sizes[0] / 2**20:.1f} MiB, and "
                f"algorithm.planner.picture_mib is {self.picture_mib}: raise it, or have the world show smaller pictures"
            )
        self.rows = held[len(held) - fitting :]

    def of(self, prompt_id: str) -> list[Kept]:
        """The rows that answer a prompt, the newest last."""
        return [kept for kept in self.rows if kept.prompt == prompt_id]

    def groups(self) -> dict[int, list[Kept]]:
        """The rows by the group that they were sampled in."""
        found: dict[int, list[Kept]] = {}
        for kept in self.rows:
            found.setdefault(kept.group, []).append(kept)
        return found

    def prompt(self, prompt_id: str) -> Prompt:
        """The prompt of that id, with its pictures; ValueError if the run's data have no such prompt any more."""
        if not self._places:
            self._places = {prompt.id: i for i, prompt in enumerate(self.prompts)}
        if prompt_id not in self._places:
            raise ValueError(
                f"the replay buffer holds an answer to prompt {prompt_id!r}, which the data do not have: resume with the data "
                "of the saved run"
            )
        return self.prompts[self._places[prompt_id]]

    def request(self, kept: Kept, group_id: int, keep_old: bool = True) -> Request:
        """The row's request; without `keep_old` its log-probabilities are evaluated anew, as if it were a new row."""
        row = kept.row if keep_old else replace(kept.row, pieces=tuple(replace(one, logprobs=()) for one in kept.row.pieces))
        return Request(self.prompt(kept.prompt), 1, group_id, role="replayed", written=row)

    def state_dict(self) -> Held:
        return Held(partial(pack_rows, tuple(self.rows), self.step, self.vocabulary))

    def load_state_dict(self, state: State | Held) -> None:
        """Raises ValueError when the rows are of another vocabulary than the policy's."""
        own, self.rows = self.vocabulary, list(rows_of(state))
        self.step, self.vocabulary = state["step"], state["vocabulary"]
        if own:
            self.begin(self.prompts, own)


def numbers_of(kept: Kept) -> list[float]:
    """Reward, advantage, and what the group was like; a count of 0 stands for unknown."""
    return [kept.reward, kept.advantage, *map(float, kept.row.seen or UNKNOWN)]


def pack_rows(held: Sequence[Kept], step: int, vocabulary: str) -> State:
    """The state of a buffer: tensors, numbers and texts."""
    rows = [kept.row for kept in held]
    return {
        "vocabulary": vocabulary,
        "step": step,
        "prompts": [kept.prompt for kept in held],
        "groups": [kept.group for kept in held],
        "lengths": [len(row.tokens) for row in rows],
        "tokens": torch.tensor([token for row in rows for token in row.tokens], dtype=torch.long),
        "logprobs": torch.tensor([x for row in rows for x in row.logprobs], dtype=torch.float32),
        "steps": [kept.step for kept in held],
        "truncated": [row.truncated for row in rows],
        "segments": [[(one.who, one.start, one.stop) for one in row.segments] for row in rows],
        "turns": [pack_turns(row.turns) for row in rows],
        "ended": [row.ended for row in rows],
        "numbers": torch.tensor([numbers_of(kept) for kept in held], dtype=torch.float64),
    }


def rows_of(state: State | Held) -> Iterator[Kept]:
    """The rows of a state."""
    lengths: list[int] = state["lengths"]
    tokens, logprobs = (state[name].split(lengths) for name in ("tokens", "logprobs"))
    one_turn: State = {"turns": [()] * len(lengths), "ended": [None] * len(lengths)}
    names = ("prompts", "groups", "steps", "truncated", "segments", "turns", "ended")
    beside = zip(*({**one_turn, **state}[name] for name in names), strict=True)
    for (prompt, group, step, truncated, parts, turns, ended), mine, noted, numbers in zip(
        beside, tokens, logprobs, state["numbers"].tolist(), strict=True
    ):
        reward, advantage, count, mean, deviation = numbers
        seen = Seen(int(count), mean, deviation) if count else None
        segments = tuple(Segment(*part) for part in parts)
        row = StoredRow(tuple(mine.tolist()), tuple(noted.tolist()), truncated=truncated, seen=seen, segments=segments)
        yield Kept(prompt, group, replace(row, turns=unpack_turns(turns), ended=ended), step, reward, advantage)


def rows_to_keep(step: int, rollouts: Rollouts, scores: Scores, credit: Credit) -> list[Kept]:
    """The rows of a step as a buffer keeps them: those of the policy with every log-probability noted and a total."""
    noted = rollouts.recorded.get(ROLLOUT_LOGPROBS)
    if noted is None:
        return []
    totals, mask = scores.total().double(), rollouts.action_mask
    advantages = list(map(float, masked_mean(credit.values.double(), mask, dim=1)))
    seen = {group.id: group_summary(group, totals[rollouts.group_ids == group.id]) for group in rollouts.groups}
    found: list[Kept] = []
    for i, (group, sample) in enumerate(rollouts.samples()):
        tokens, total = sample.token_ids, float(totals[i])
        if sample.role != "policy" or tokens is None or math.isnan(total):
            continue
        logprobs = noted[i, : len(tokens)]
        if bool(logprobs.isfinite().all()):
            own, cut = tuple(map(float, logprobs)), sample.truncated
            row = StoredRow(tokens, own, truncated=cut, seen=seen[group.id], segments=sample.segments)
            row = replace(row, turns=sample.turns, ended=sample.ended)
            found.append(Kept(group.prompt.id, group.id, row, step, total, advantages[i]))
    return found


def group_summary(group: Group, totals: Tensor) -> Seen | None:
    """Three statistics of all samples of a group."""
    known = totals[~totals.isnan()]
    if group.seen is not None or not len(known):
        return group.seen
    return Seen(len(known), float(known.mean()), float(known.std()) if len(known) > 1 else 0.0)


def with_pictures(kept: Kept) -> Kept | None:
    """The row with what its world answered last, which was logged alone, in memory that nobody writes over as the pictures before
    it are; None, which is said, where that is no picture."""
    *before, last = kept.row.turns or (None,)
    if last is None or last.observation is None or not last.observation.media:
        return kept
    try:
        media = tuple(open_upright(one) for one in last.observation.media)
    except (ValueError, OSError) as error:
        log.warning("prompt %r: an episode cannot be kept to be trained again: at its end %s", kept.prompt, error)
        return None
    turns = (*before, replace(last, observation=replace(last.observation, media=media)))
    return kept._replace(row=replace(kept.row, turns=turns))


def size_of(kept: Kept) -> int:
    """The bytes of the pictures that its world showed."""
    seen = [turn.observation for turn in kept.row.turns]
    return sum(3 * one.width * one.height for heard in seen if heard is not None for one in heard.media)


def pack_turns(turns: Sequence[Turn]) -> list[State]:
    """Turns as tensors, numbers and texts."""
    return [
        {
            **vars(turn),
            "media_sizes": list(map(tuple, turn.media_sizes)),
            "shown": list(map(tuple, turn.shown)),
            "observation": None if turn.observation is None else pack(turn.observation),
        }
        for turn in turns
    ]


def pack(heard: Observation) -> State:
    return {**vars(heard), "done": bool(heard.done), "media": [torch.as_tensor(np.array(one)) for one in heard.media]}


def unpack_turns(packed: Sequence[State]) -> tuple[Turn, ...]:
    """The turns that were packed."""
    return tuple(
        Turn(
            one["text"],
            tuple(one["span"]),
            None if one["observation"] is None else unpack(one["observation"]),
            tuple(MediaSize(*size) for size in one["media_sizes"]),
            tuple(MediaSize(*size) for size in one["shown"]),
        )
        for one in packed
    )


def unpack(packed: State) -> Observation:
    opened: State = {**packed, "media": tuple(Image.fromarray(one.numpy()) for one in packed["media"])}
    return Observation(**opened)


@dataclass(frozen=True)
class Replay(PromptByPrompt):
    """The buffer of rows, common to the planners that replay."""

    capacity: Count = 4096
    """Most rows in the buffer; the oldest leave."""
    picture_mib: Count = 1024
    """Most MiB of the pictures that worlds showed in these rows, of a byte per pixel and colour; the oldest rows leave."""
    keep_old: bool = True
    """True: ratios of replayed rows are to the weights that sampled them. False: to the weights before the update, as if the row
    were new."""
    buffer: RowBuffer = field(init=False, compare=False, repr=False)
    seeds: list[int] = field(default_factory=list[int], init=False, compare=False, repr=False)
    """The run's seed, once it is known."""

    def __post_init__(self) -> None:
        check_ranges(self)
        object.__setattr__(self, "buffer", RowBuffer(self.capacity, picture_mib=self.picture_mib))

    max_rounds = 2

    def begin(self, prompts: Sequence[Prompt], vocabulary: str) -> None:
        """Raises ValueError when rows of other tokens are held."""
        self.buffer.begin(prompts, vocabulary)

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        self.seeds[:] = [seed]
        return super().first(prompts, group_size, first_id, seed)

    def generator(self, groups: Sequence[Group]) -> random.Random:
        """The random numbers of this step, the same on all ranks."""
        return random.Random(f"{self.seeds}/{max((group.id for group in groups), default=0)}/replay")

    def state_dict(self) -> State:
        return {"buffer": self.buffer.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the rows are of another vocabulary than the policy's."""
        self.buffer.load_state_dict(state["buffer"])


@dataclass(frozen=True)
class ReplayInformative(Replay):
    """Where groups have no spread, rows of the last steps take their place, drawn with P ~ (|A| + eps)^power (SSR).

    Selective sample replay of VL-Rethinker, arXiv:2504.08837; the weights are its code's, where the power is 1. As many rows are
    drawn, with replacement, as groups without spread have, at most the size of the buffer. A replayed row is a separate group
    that remembers the statistics of its first group: take the advantage AmongSeen with it. The code refills from the rows of the
    step under way only; the paper keeps a buffer, as here.
    """

    max_age: Large = 8
    """Rows older than this number of steps leave the buffer."""
    power: NonNegative = 1.0
    """How much large advantages are preferred; 0: all alike."""
    eps: Positive = 1e-4
    """Added to |A|."""
    min_spread: NonNegative = 1e-6
    """A group whose totals differ by no more has no advantage."""

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        if round_index or not self.buffer.rows:
            return Revision()
        totals = scores.total()
        lost = sum(len(own) for own in (totals[group_ids == group.id] for group in groups) if self.is_flat(own))
        count = min(lost, len(self.buffer.rows))
        weights = [(abs(kept.advantage) + self.eps) ** self.power for kept in self.buffer.rows]
        chosen = self.generator(groups).choices(self.buffer.rows, weights=weights, k=count)
        return Revision([self.buffer.request(kept, -1 - i, self.keep_old) for i, kept in enumerate(chosen)])

    def is_flat(self, totals: Tensor) -> bool:
        """True if the rewards of these samples have no spread."""
        known = totals[~totals.isnan()]
        return len(known) > 0 and float(known.max() - known.min()) <= self.min_spread

    def watch(self, step: int, rollouts: Rollouts, scores: Scores, credit: Credit) -> None:
        rows = [kept for kept in rows_to_keep(step, rollouts, scores, credit) if kept.advantage != 0]
        self.buffer.add(rows, step, self.max_age)


@dataclass(frozen=True)
class ReplayGroups(Replay):
    """A share of a step's rows comes from the policies of the last `window` steps, in whole groups (ReMix, arXiv:2507.06892).

    As many old groups are added as make up `share` with the new ones, drawn without replacement. Their stored rewards are used
    again, so that their advantages are those of their first group.
    """

    share: BelowOne = 0.4
    """Share of a step's groups that are old."""
    window: Count = 2
    """Groups of the last n steps may come back."""
    until: LargeOrNone = 0
    """The last step in which old groups come back; 0: they always do."""

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        if round_index or 0 < self.until <= self.buffer.step:
            return Revision()
        old = self.buffer.groups()
        count = min(len(old), round(self.share / (1 - self.share) * len(groups)))
        chosen = self.generator(groups).sample(sorted(old), count)
        return Revision([self.buffer.request(kept, -1 - i, self.keep_old) for i, one in enumerate(chosen) for kept in old[one]])

    def watch(self, step: int, rollouts: Rollouts, scores: Scores, credit: Credit) -> None:
        rows = [] if 0 < self.until <= step else rows_to_keep(step, rollouts, scores, credit)
        alive = {kept.group for kept in rows if kept.advantage != 0}
        self.buffer.add([kept for kept in rows if kept.group in alive], step, self.window)


@dataclass(frozen=True)
class ReplaySuccess(Replay):
    """Where deviation < std_below and mean < mean_below, an old success of the prompt takes the first sample's place (ARPO).

    ARPO for GUI agents, arXiv:2505.16282. Deviation and mean are of the group's total rewards, the deviation divides by their
    number. The success is drawn from the prompt's last `per_prompt`, which the policy sampled itself with a total above
    `success_above`; those that came back are not kept again.
    """

    per_prompt: Count = 8
    """Successes that are kept of a prompt, the newest."""
    success_above: Number = 0.1
    """Total reward above which a sample is kept."""
    std_below: NonNegative = 0.05
    """Deviation of a group's totals below which it teaches nothing."""
    mean_below: Number = 0.2
    """Mean total below which a group failed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "buffer", RowBuffer(self.capacity, self.per_prompt, self.picture_mib))

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        """Raises ValueError where a kept row's prompt is no longer in the data."""
        if round_index:
            return Revision()
        totals, draw = scores.total().double(), self.generator(groups)
        requests, dropped = list[Request](), set[tuple[int, int]]()
        for group in groups:
            known = self.buffer.of(group.prompt.id)
            if known and self.fails([float(total) for total in totals[group_ids == group.id]]):
                requests.append(self.buffer.request(draw.choice(known), group.id, self.keep_old))
                dropped.add((group.id, 0))
        return Revision(requests, drop_samples=frozenset(dropped))

    def fails(self, totals: Sequence[float]) -> bool:
        """True if the group failed as a whole; False if none of its samples has a reward."""
        known = [total for total in totals if not isnan(total)]
        mean = sum(known) / max(1, len(known))
        deviation = (sum((total - mean) ** 2 for total in known) / max(1, len(known))) ** 0.5
        return bool(known) and deviation < self.std_below and mean < self.mean_below

    def watch(self, step: int, rollouts: Rollouts, scores: Scores, credit: Credit) -> None:
        """Keep the successes of a step."""
        rows = rows_to_keep(step, rollouts, scores, credit)
        self.buffer.add([kept for kept in rows if kept.reward > self.success_above], step)
