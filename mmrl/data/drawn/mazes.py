"""Mazes on a grid: corridors between cells, one way or more to the goal, drawn with the one who walks.

A maze is a pure function of (seed, index, split, size). Cells are (column, row), counted from the left and from the top.
"""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw

from mmrl.data.drawn.scenes import key_of

Cell = tuple[int, int]
MOVES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
CELL, WALL = 32, 3
"""Pixels of a cell, and of a wall."""
LOOPS = 0.1
"""Share of the remaining walls that are open, too."""
_STREAM = 91


@dataclass(frozen=True)
class Maze:
    """A grid of size x size cells, the passages between neighbours, and where a walk begins and ends."""

    size: int
    passages: frozenset[frozenset[Cell]]
    start: Cell
    goal: Cell

    def after(self, cell: Cell, move: str) -> Cell:
        """The cell that a move leads to: the same one where a wall is in the way."""
        across, down = MOVES[move]
        there = (cell[0] + across, cell[1] + down)
        return there if frozenset((cell, there)) in self.passages else cell

    def way(self, cell: Cell) -> list[str]:
        """The moves of a shortest way from a cell to the goal."""
        found: dict[Cell, list[str]] = {cell: []}
        queue = deque([cell])
        while self.goal not in found:
            here = queue.popleft()
            for move in MOVES:
                there = self.after(here, move)
                if there not in found:
                    found[there] = [*found[here], move]
                    queue.append(there)
        return found[self.goal]


def make_maze(seed: int, index: int, split: str = "train", size: int = 4) -> Maze:
    """Maze `index` of the endless series `seed`; ValueError for an unknown split."""
    rng = np.random.default_rng([*key_of(seed, index, split), size, _STREAM])
    cells = [(x, y) for y in range(size) for x in range(size)]
    walls = [frozenset((one, (one[0] + x, one[1] + y))) for one in cells for x, y in ((1, 0), (0, 1))]
    walls = [wall for wall in walls if all(max(cell) < size for cell in wall)]
    group, passages = {cell: i for i, cell in enumerate(cells)}, set[frozenset[Cell]]()
    for i in rng.permutation(len(walls)):
        one, other = sorted(group[cell] for cell in walls[int(i)])
        if one != other:
            group = {cell: one if number == other else number for cell, number in group.items()}
        if one != other or rng.uniform() < LOOPS:
            passages.add(walls[int(i)])
    start, goal = (cells[int(i)] for i in rng.choice(len(cells), 2, replace=False))
    return Maze(size, frozenset(passages), start, goal)


def draw_maze(maze: Maze, at: Cell) -> Image.Image:
    """The maze from above: dark walls, a green goal, and a red disc in the cell of the one who walks."""
    side = maze.size * CELL + WALL
    image = Image.new("RGB", (side, side), (245, 245, 240))
    pen = ImageDraw.Draw(image)
    x, y = (CELL * i for i in maze.goal)
    pen.rectangle((x + 9, y + 9, x + CELL - 7, y + CELL - 7), (40, 160, 70))
    x, y = (CELL * i for i in at)
    pen.ellipse((x + 10, y + 10, x + CELL - 8, y + CELL - 8), (210, 40, 40))
    edges = [i * CELL for i in range(maze.size + 1)]
    for column, (left, right) in enumerate(pairwise(edges)):
        for row in range(maze.size + 1):
            if frozenset(((column, row - 1), (column, row))) not in maze.passages:
                pen.rectangle((left, edges[row], right + WALL - 1, edges[row] + WALL - 1), (40, 40, 60))
            if frozenset(((row - 1, column), (row, column))) not in maze.passages:
                pen.rectangle((edges[row], left, edges[row] + WALL - 1, right + WALL - 1), (40, 40, 60))
    return image
