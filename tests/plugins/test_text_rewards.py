"""Rewards of texts, of episodes and of spans without labels: numbers by hand, and what models write about tools counts not."""

from dataclasses import replace
from math import exp

import pytest

from mmrl.core.types import Group, Prompt, Sample


@pytest.mark.parametrize(
    ("template", "text", "value"),
    [
        ("think", "<think>a</think><answer>[1, 2, 3, 4]</answer>\n", 1),
        ("think", "a</think><answer>[1, 2, 3, 4]</answer>", 1),
        ("think", "<answer>[1, 2, 3, 4]</answer>", 0),
        ("direct", "<answer>[1, 2, 3, 4]</answer>", 1),
        ("direct", "[1, 2, 3, 4]", 0),
        ("json", '{"bbox_2d": [1, 2, 3, 4]}', 1),
        ("json", "box: [1, 2, 3, 4]", 0),
    ],
)
def test_format(template, text, value, reward, group_of):
    assert reward("format", template=template)(group_of(None, text)) == [value]


def test_format_can_demand_a_box(reward, group_of):
    texts = [f"<answer>{inside}</answer>" for inside in ("[1, 2, 3, 4]", "left of the tree", "None", "[3, 4, 1, 2]")]
    assert reward("format", template="direct", needs_box=True)(group_of(None, *texts)) == [1, 0, 1, 0]


def test_format_of_a_picture_is_an_error(reward):
    with pytest.raises(ValueError, match="'p7' has no text"):
        reward("format")(Group(0, Prompt("p7"), (Sample(image=object()),)))


def lengths(*counts):
    return Group(0, Prompt("p7"), tuple(Sample("x", tuple(range(n))) for n in counts))


def test_length_band(reward):
    scores = reward("length", low=4, high=8, slope=4)(lengths(0, 2, 3, 4, 8, 9, 10, 12, 99))
    assert scores == [0, 0.5, 0.75, 1, 1, 0.75, 0.5, 0, 0]
    assert reward("length", low=4, high=8, slope=0)(lengths(3, 4, 8, 9)) == [0, 1, 1, 0]


def test_length_mistakes_are_named(reward):
    with pytest.raises(ValueError, match="low <= high"):
        reward("length", low=9, high=8)
    with pytest.raises(ValueError, match="'p7' has no tokens"):
        reward("length")(Group(0, Prompt("p7"), (Sample("x"),)))


@pytest.mark.parametrize(
    ("text", "value", "levels"),
    [
        ("body/hand/six fingers", 1.0, [1, 1, 1]),
        ("Body > Hand > Six Fingers", 1.0, [1, 1, 1]),
        ("body/hand/four fingers", 2 / 3, [1, 1, 0]),
        ("body/foot", 1 / 3, [1, 0, 0]),
        ("body", 1 / 3, [1, 0, 0]),
        ("text", 0.0, [0, 0, 0]),
        ("body/hand/six fingers; text", (2 / 3 + 1 + 1) / 3, [2 / 3, 1, 1]),
        ("", 0.0, [0, 0, 0]),
    ],
)
def test_labels_count_by_level(reward, group_of, text, value, levels):
    (found,) = reward("label_levels")(group_of("body/hand/six fingers", text))
    assert found.value == pytest.approx(value)
    assert [found.parts[f"level_{i}"] for i in (1, 2, 3)] == pytest.approx(levels)


def test_levels_of_labels_may_weigh_more(reward, group_of):
    (found,) = reward("label_levels", weights=(1.0, 3.0))(group_of("body/hand", "body/foot"))
    assert found.value == pytest.approx(1 / 4)
    (deeper,) = reward("label_levels", weights=(1.0, 3.0))(group_of("a/b/c", "a/b/d"))
    assert deeper.value == pytest.approx(4 / 7), "the last weight counts for finer levels"
    with pytest.raises(ValueError, match="weights are all 0, so nothing would count"):
        reward("label_levels", weights=(0.0,))


def span_group(*texts: str, **columns: float) -> Group:
    return Group(0, Prompt("clip", "when?", answer=None, columns=columns), tuple(Sample(text) for text in texts))


def test_agreement_with_the_mean_is_trusted_the_less_the_more_spans_spread(reward):
    # mean 2 to 6, deviations 1 and 1: u = 2 seconds = 0.2 of the clip
    found = reward("pseudo_span")(span_group("from 1 to 5", "from 3 to 7", duration=10.0))
    assert [one.parts["agreement"] for one in found] == [pytest.approx(3 / 5)] * 2
    assert found[0].value == pytest.approx(3 / 5 * exp(-0.2))
    assert reward("pseudo_span")(span_group("from 1 to 5", "from 3 to 7"))[0].value == pytest.approx(3 / 5 * exp(-2))
    assert reward("pseudo_span", gamma=0.0)(span_group("from 1 to 5", "from 3 to 7"))[0].value == pytest.approx(3 / 5)


def test_the_nearer_to_the_mean_the_better(reward):
    near, far, none = reward("pseudo_span")(span_group("2 to 6", "5 to 6", "no idea", duration=10.0))
    assert near.value > far.value > none.value == 0  # the mean is 3.5 to 6
    assert [one.parts["unparsed"] for one in (near, far, none)] == [0, 0, 1]


def test_one_span_says_nothing(reward):
    assert reward("pseudo_span")(span_group("2 to 6", "no idea")) == [None, None]


def test_picture_samples_have_no_say(reward):
    plain = span_group("1 to 5", "3 to 7", "8 to 9", duration=10.0)
    given = replace(plain, samples=(*plain.samples[:2], replace(plain.samples[2], role="injected")))
    assert reward("pseudo_span")(given)[0].value == pytest.approx(3 / 5 * exp(-0.2))
    assert reward("pseudo_span")(plain)[0].value != pytest.approx(3 / 5 * exp(-0.2))
