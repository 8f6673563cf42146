"""A buffer of rows that earlier steps sampled: bounded, kept in checkpoints, the same on all ranks."""

import logging
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmrl.algorithms.notes import Held
from mmrl.core.protocols import State
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import MediaSize, Observation, Seen, Segment, Turn
from mmrl.core.types import Credit, Given, Group, Prompt, Request, Rollouts, Scores, StoredRow
from mmrl.runtime.pictures import open_upright
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
