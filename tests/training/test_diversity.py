"""How different pictures of one prompt are."""

import pytest
from PIL import Image

from mmrl.core.types import Group, Prompt, Sample
from mmrl.training.diversity import diversity


def group(*greys: int, size: int = 8) -> Group:
    samples = tuple(Sample(image=Image.new("L", (size, size), grey)) for grey in greys)
    return Group(0, Prompt("p"), samples)


def test_it_is_the_mean_distance_of_pairs():
    # pairs 51, 102, 51 of 255
    assert diversity([group(0, 51, 102)]) == pytest.approx([(0.2 + 0.4 + 0.2) / 3])
    assert diversity([group(7, 7)]) == [0.0]


def test_large_pictures_are_compared_small():
    noisy = [Image.effect_noise((256, 256), 60) for _ in range(2)]
    assert diversity([Group(0, Prompt("p"), tuple(Sample(image=x) for x in noisy))])[0] < 0.1
    assert diversity([group(0, 255, size=256)]) == pytest.approx([1.0])


def test_groups_without_two_pictures_have_none():
    assert diversity([group(3), Group(1, Prompt("q"), (Sample(text="a"), Sample(text="b")))]) == []
    assert len(diversity([group(1, 2), group(1), group(2, 3)])) == 2
