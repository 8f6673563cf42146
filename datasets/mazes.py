"""Generated mazes to walk through, step by step: "Walk to the green square." No download.

For [environment] use = "maze", which moves the red disc and shows the maze again. Column `difficulty` is the length of the
shortest way. Mazes are always the same for the same seed; held-out mazes are of a series of their own.
Licence: own drawing, Apache-2.0.
"""

from collections.abc import Sequence
from typing import Annotated

from mmrl import Prompt
from mmrl.data.drawn.mazes import draw_maze, make_maze
from mmrl.data.sources import lazily
from mmrl.runtime.ranges import Count, Range, Seed

__all__ = ["load"]
QUESTION = "Walk the red disc to the green square. Say one step at a time: up, down, left or right."


def load(split: str = "train", size: Count = 4096, seed: Seed = 0, cells: Annotated[int, Range(2, 16)] = 4) -> Sequence[Prompt]:
    """Prompts without an answer: the world knows when the goal is reached.

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other mazes.
        cells: cells along a side.

    Raises:
        ValueError: no such split.
    """

    def prompt(index: int) -> Prompt:
        maze = make_maze(seed, index, split, cells)
        columns = {"maze": f"{seed} {index} {split} {cells}", "difficulty": len(maze.way(maze.start))}
        return Prompt(f"{split}-{seed}-{index}", QUESTION, (draw_maze(maze, maze.start),), columns=columns)

    return lazily(size, prompt)
