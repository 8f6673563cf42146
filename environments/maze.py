"""A maze to walk through: each turn is a step, and the answer shows the maze after it. Take the data set `mazes`.

A turn says exactly one of up, down, left and right. Reaching the goal gives 1 and ends the episode, less `cost` for every step.

Facts: wall (1 for a step against a wall), error (1 for a turn that names no step, or several), goal (1 at the end).

Source: own
Licence: own code Apache-2.0
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mmrl import Observation, Prompt, Turn
from mmrl.data.drawn.mazes import Cell, Maze, draw_maze, make_maze
from mmrl.runtime.ranges import Share, check_ranges

__all__ = ["Walks"]
WORDS = re.compile(r"\b(up|down|left|right)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Walks:
    """Opens the maze of a prompt."""

    cost: Share = 0.0
    """Reward that every step takes."""

    __post_init__ = check_ranges

    def open(self, prompt: Prompt, seed: int, /) -> "_Walk":
        maze = maze_of(prompt)
        return _Walk(self, maze, maze.start)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError for prompts of another data set."""
        for prompt in prompts:
            maze_of(prompt)


@dataclass
class _Walk:
    walks: Walks
    maze: Maze
    cell: Cell

    def step(self, turn: Turn, /) -> Observation | None:
        said = {word.lower() for word in WORDS.findall(turn.text)}
        if len(said) != 1:
            return Observation("Error: say one of up, down, left and right.", reward=-self.walks.cost, facts={"error": 1.0})
        there = self.maze.after(self.cell, *said)
        hit, self.cell = there == self.cell, there
        done = self.cell == self.maze.goal
        return Observation(
            "A wall is in the way." if hit else "",
            (draw_maze(self.maze, self.cell),),
            reward=float(done) - self.walks.cost,
            done=done,
            key=f"{self.cell[0]},{self.cell[1]}",
            facts={"wall": float(hit), "goal": float(done)},
        )

    def close(self) -> None:
        """There is nothing to give back."""


def maze_of(prompt: Prompt) -> Maze:
    """The maze that a prompt shows; ValueError for a prompt of another data set."""
    name = prompt.columns.get("maze")
    if not isinstance(name, str):
        raise ValueError(f"prompt {prompt.id!r} shows no maze: take [data] use = 'mazes'")
    seed, index, split, cells = name.split()
    return make_maze(int(seed), int(index), split, int(cells))
