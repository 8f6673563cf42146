"""Sizes that a model can draw, and those nearest to one that it cannot."""

import pytest

from mmrl.policies.flow.sizes import Grid


@pytest.mark.parametrize(
    ("grid", "size", "near"),
    [
        (Grid(16), (500, 512), [(496, 512), (512, 512)]),
        (Grid(16), (507, 511), [(512, 512), (496, 512)]),
        (Grid(16), (513, 512), [(512, 512), (528, 512)]),
        (Grid(16, 1024), (1030, 512), [(1024, 512)]),
        (Grid(64, 1000), (970, 64), [(960, 64)]),
        (Grid(32), (8, 100), [(32, 96), (32, 128)]),
    ],
)
def test_the_nearest_sizes_fit(grid: Grid, size: tuple[int, int], near: list[tuple[int, int]]):
    assert not grid.fits(size)
    assert list(grid.nearest(size)) == near and all(map(grid.fits, near))
