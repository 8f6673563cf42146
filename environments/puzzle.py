"""Puzzles on pictures, solved turn by turn: a turn says a command, and is shown what came of it. Take the data set `puzzles`.

A command is a word and numbers, as the task says: "turn 5 90", or `<tool_call>{"name": "turn", "arguments": {"by": [5, 90]}}
</tool_call>`. Who solves the puzzle is given 1 in all, often in shares, and it ends with the last turn that the puzzle allows.

Facts: acted (1 for a command that was followed), error (1 for one that could not be), solved (1 where all was given).

Source: own
Licence: own code Apache-2.0
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmrl import Observation, Prompt, Turn
from mmrl.answers.calls import CallError
from mmrl.data.drawn.puzzles.kinds import KINDS, make_puzzle
from mmrl.data.drawn.puzzles.puzzle import Puzzle, command
from mmrl.data.tools.foreign import mistake

__all__ = ["Puzzles"]


@dataclass(frozen=True)
class Puzzles:
    """Opens the puzzle of a prompt."""

    def open(self, prompt: Prompt, seed: int, /) -> "_Play":
        return _Play(puzzle_of(prompt))

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError for prompts of another data set."""
        for prompt in prompts:
            puzzle_of(prompt)


@dataclass
class _Play:
    puzzle: Puzzle
    turns: int = 0
    given: float = 0.0

    def step(self, turn: Turn, /) -> Observation | None:
        self.turns += 1
        try:
            answer = self.puzzle.act(command(turn.text, self.puzzle.words))
            facts = {"acted": 1.0}
        except CallError as error:
            answer = mistake(error)
            facts = dict(answer.facts)
        self.given += answer.reward or 0.0
        if answer.done:
            facts["solved"] = float(self.given > 1 - 1e-9)
        return replace(answer, reward=answer.reward or 0.0, done=answer.done or self.turns == self.puzzle.turns, facts=facts)

    def close(self) -> None:
        """There is nothing to give back."""


def puzzle_of(prompt: Prompt) -> Puzzle:
    """The puzzle that a prompt shows; ValueError for a prompt of another data set."""
    name = prompt.columns.get("puzzle")
    kind, _, rest = str(name).partition(" ")
    if kind not in KINDS:
        raise ValueError(f"prompt {prompt.id!r} shows no puzzle: take [data] use = 'puzzles'")
    seed, index, split, level = rest.split()
    return make_puzzle(kind, int(seed), int(index), split, int(level))
