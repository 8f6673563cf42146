"""A buffer of rows that earlier steps sampled: bounded, kept in checkpoints, the same on all ranks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mmrl.core.protocols import State
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import Seen, Segment
from mmrl.core.types import Credit, Given, Group, Prompt, Request, Rollouts, Scores, StoredRow
from mmrl.runtime.tensors import masked_mean

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
    """Rows by age, the newest last; beyond `capacity` rows, or `per_prompt` of a prompt, the oldest leave."""

    capacity: int
    per_prompt: int | None = None
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
        held = [kept for kept in (*self.rows, *rows) if max_age is None or kept.step > step - max_age]
        if self.per_prompt is not None:
            room: dict[str, int] = {}
            newest: list[Kept] = []
            for kept in reversed(held):
                room[kept.prompt] = room.get(kept.prompt, self.per_prompt) - 1
                newest += [kept] * (room[kept.prompt] >= 0)
            held = newest[::-1]
        self.rows = held[-self.capacity :]

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

    def state_dict(self) -> State:
        rows = [kept.row for kept in self.rows]
        return {
            "vocabulary": self.vocabulary,
            "step": self.step,
            "prompts": [kept.prompt for kept in self.rows],
            "groups": [kept.group for kept in self.rows],
            "lengths": [len(row.tokens) for row in rows],
            "tokens": torch.tensor([token for row in rows for token in row.tokens], dtype=torch.long),
            "logprobs": torch.tensor([x for row in rows for x in row.logprobs], dtype=torch.float32),
            "steps": [kept.step for kept in self.rows],
            "truncated": [row.truncated for row in rows],
            "segments": [[(one.who, one.start, one.stop) for one in row.segments] for row in rows],
            "numbers": torch.tensor([numbers_of(kept) for kept in self.rows], dtype=torch.float64),
        }

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the rows are of another vocabulary than the policy's."""
        own, self.rows = self.vocabulary, list(rows_of(state))
        self.step, self.vocabulary = state["step"], state["vocabulary"]
        if own:
            self.begin(self.prompts, own)


def numbers_of(kept: Kept) -> list[float]:
    """Reward, advantage, and what the group was like; a count of 0 stands for unknown."""
    return [kept.reward, kept.advantage, *map(float, kept.row.seen or UNKNOWN)]


def rows_of(state: State) -> Iterator[Kept]:
    """The rows of a state."""
    lengths: list[int] = state["lengths"]
    tokens, logprobs = (state[name].split(lengths) for name in ("tokens", "logprobs"))
    beside = zip(state["prompts"], state["groups"], state["steps"], state["truncated"], state["segments"], strict=True)
    for (prompt, group, step, truncated, parts), mine, noted, numbers in zip(
        beside, tokens, logprobs, state["numbers"].tolist(), strict=True
    ):
        reward, advantage, count, mean, deviation = numbers
        seen = Seen(int(count), mean, deviation) if count else None
        segments = tuple(Segment(*part) for part in parts)
        row = StoredRow(tuple(mine.tolist()), tuple(noted.tolist()), truncated=truncated, seen=seen, segments=segments)
        yield Kept(prompt, group, row, step, reward, advantage)


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
            found.append(Kept(group.prompt.id, group.id, row, step, total, advantages[i]))
    return found


def group_summary(group: Group, totals: Tensor) -> Seen | None:
    """Three statistics of all samples of a group."""
    known = totals[~totals.isnan()]
    if group.seen is not None or not len(known):
        return group.seen
    return Seen(len(known), float(known.mean()), float(known.std()) if len(known) > 1 else 0.0)
