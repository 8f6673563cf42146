"""Coloured shapes that are to be changed: states, instructions, and the pictures a tiny editor is taught by.

    "make it blue"    a red circle on the left    ->    a blue circle on the left

`Edits` are the examples an uncurated collection would have: many targets follow another instruction, and many are stained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmrl.data.drawn.shapes import COLOURS, SHAPES, SIDES, Collection, Jitter, Picture, Wish, draw_on, jitter_of, stain, to_bytes


class State(NamedTuple):
    """A picture of one shape, in words."""

    colour: str
    shape: str
    side: str
    ground: str = "light"


class Instruction(NamedTuple):
    """The part of a state that is to change, and to what."""

    part: str
    value: str

    @property
    def text(self) -> str:
        if self.part == "side":
            return f"move it to the {self.value}"
        if self.part == "ground":
            return f"make the background {self.value}"
        return f"make it {'a ' if self.part == 'shape' else ''}{self.value}"

    def after(self, state: State) -> State:
        """The state after the edit."""
        return state._replace(**{self.part: self.value})


class Task(NamedTuple):
    """A state and what is to be changed in it."""

    state: State
    instruction: Instruction


INSTRUCTIONS = tuple(
    Instruction(part, value)
    for part, values in (("colour", COLOURS), ("shape", SHAPES), ("side", SIDES), ("ground", ("dark",)))
    for value in values
)
WORDS = tuple(dict.fromkeys(word for instruction in INSTRUCTIONS for word in instruction.text.split()))


def _is_held_out(task: Task) -> bool:
    colour, shape, side, _ = task.state
    places = list(COLOURS).index(colour), SHAPES.index(shape), list(SIDES).index(side), INSTRUCTIONS.index(task.instruction)
    return sum(places) % 4 == 0


TASKS = tuple(
    Task(State(*words), instruction)
    for words in product(COLOURS, SHAPES, SIDES)
    for instruction in INSTRUCTIONS
    if getattr(State(*words), instruction.part) != instruction.value
)
"""Instructions that would change nothing are left out."""
HELD_OUT = tuple(task for task in TASKS if _is_held_out(task))
"""Pairs of a state and an instruction that are held out; all states and all instructions occur among the others."""
TRAIN = tuple(task for task in TASKS if not _is_held_out(task))


def draw(state: State, jitter: Jitter, size: int) -> Picture:
    """The picture of a state, (size, size, 3) in [0, 1]."""
    return draw_on(Wish(*state[:3]), state.ground, jitter, size)


@dataclass(frozen=True)
class Edits(Collection):
    """Sources, instructions and targets; only targets are stained or follow another instruction."""

    @property
    def words(self) -> Sequence[str]:
        return WORDS

    @property
    def tasks(self) -> Sequence[Task]:
        """The pairs that examples show."""
        return TRAIN

    def batch(self, rng: np.random.Generator, size: int) -> tuple[NDArray[np.uint8], list[str]]:
        """Targets (size, side, side, 3) and their instructions."""
        _, texts, targets = self.triples(rng, size)
        return targets, texts

    def triples(self, rng: np.random.Generator, size: int) -> tuple[NDArray[np.uint8], list[str], NDArray[np.uint8]]:
        """Sources (size, side, side, 3), instructions, and targets of the sources' shape."""
        tasks, of_state = self.tasks, dict[State, list[Instruction]]()
        for state, instruction in tasks:
            of_state.setdefault(state, []).append(instruction)
        sources: list[NDArray[np.uint8]] = []
        texts: list[str] = []
        targets: list[NDArray[np.uint8]] = []
        for state, instruction in (tasks[i] for i in rng.integers(len(tasks), size=size)):
            jitter, known = jitter_of(rng), of_state[state]
            done = known[rng.integers(len(known))] if rng.random() < self.confused else instruction
            target = draw(done.after(state), jitter, self.side)
            targets.append(to_bytes(stain(target, rng) if rng.random() < self.stained else target))
            sources.append(to_bytes(draw(state, jitter, self.side)))
            texts.append(instruction.text)
        return np.stack(sources), texts, np.stack(targets)
