"""How different pictures of one prompt are."""

import pytest
from PIL import Image

from mmrl.core.types import Group, Prompt, Sample
from mmrl.training.measure import distinct, diversity, fingerprints, first_pictures, prompt_distance, sameness


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


def texts(prompt: str, *answers: str) -> Group:
    return Group(0, Prompt(prompt), tuple(Sample(text=answer) for answer in answers))


def test_distinct_texts_of_a_prompt():
    assert distinct([texts("p", "a", "a", "b", "a"), texts("q", "a"), group(1, 2)]) == [0.5]


def test_sameness_is_the_chance_that_texts_of_two_prompts_coincide():
    groups = [texts("p", "a", "a", "b"), texts("q", "a", "c")]
    # of 3 x 2 pairs, the two a of p meet the a of q
    assert sameness(fingerprints(groups)) == pytest.approx(2 / 6)
    assert sameness(fingerprints([texts("p", "a"), texts("q", "a"), texts("r", "a")])) == 1
    assert sameness(fingerprints([texts("p", "a"), texts("q", "b")])) == 0


def test_sameness_needs_two_prompts():
    assert sameness(fingerprints([texts("p", "a", "a"), texts("p", "a")])) is None
    assert sameness(fingerprints([group(1), group(2)])) is None


def drawn(prompt: str, grey: int, size: int = 8) -> Group:
    return Group(0, Prompt(prompt), (Sample(image=Image.new("L", (size, size), grey)), Sample(image=Image.new("L", (9, 9)))))


def test_pictures_of_different_prompts_are_compared_by_their_first():
    assert prompt_distance(first_pictures([drawn("p", 0), drawn("q", 51), drawn("r", 102)])) == pytest.approx(
        (0.2 + 0.4 + 0.2) / 3
    )
    assert prompt_distance(first_pictures([drawn("p", 0), drawn("p", 255)])) is None
    assert prompt_distance(first_pictures([drawn("p", 0), drawn("q", 51, size=4)])) is None
    assert prompt_distance(first_pictures([texts("p", "a"), texts("q", "b")])) is None
