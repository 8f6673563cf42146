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
