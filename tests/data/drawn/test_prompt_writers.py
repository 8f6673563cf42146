"""Prompts that are made up: the same for a seed, held-out tasks nowhere else, columns that say what the text says."""

import re

import pytest

from mmrl.data.drawn import digit_text
from mmrl.data.drawn.prompt_writers import AMOUNTS, COLOURS, OBJECTS, RELATIONS, TAGS, write


def texts(prompts):
    return [prompt.text for prompt in prompts]


@pytest.mark.parametrize("writer", ["lettering", "objects", "numbers"])
def test_deterministic_and_different(writer):
    prompts = write(writer, 60)
    assert prompts == write(writer, 60) and len(prompts) == 60
    assert len(set(texts(prompts))) == len({prompt.id for prompt in prompts}) == 60
    assert texts(write(writer, 60, seed=1)) != texts(prompts)
    assert texts(write(writer, 30)) == texts(prompts)[:30]


def objects(prompt):
    return sorted(str(sorted(clause.items())) for clause in prompt.columns["include"])


def test_no_task_is_in_both_splits():
    """Also under other templates, with other seeds, or named in another order."""
    for what, writer in ((lambda p: p.answer.lower(), "lettering"), (lambda p: p.text, "numbers")):
        train = {what(prompt) for seed in (0, 1) for prompt in write(writer, None, seed=seed)}
        held = {what(prompt) for prompt in write(writer, None, "held_out", seed=2)}
        assert train and held and not train & held
    train = {str(objects(prompt)) for prompt in write("objects", 4000)}
    held = {str(objects(prompt)) for prompt in write("objects", 1000, "held_out") if prompt.columns["tag"] != "position"}
    assert not train & held


def test_about_a_fifth_is_held_out():
    shares = [write("lettering", 500), write("lettering", 500, "held_out")]
    assert all(len(share) == 500 for share in shares)
    assert set(digit_text.HELD_OUT) == {int(prompt.answer) for prompt in write("numbers", None, "held_out")}
    assert set(digit_text.TRAIN) == {int(prompt.answer) for prompt in write("numbers")}
    assert len(digit_text.HELD_OUT) == 18
    digits = [str(number) for number in digit_text.HELD_OUT]
    assert {number[0] for number in digits} == set("123456789") and {number[1] for number in digits} == set("0123456789")


def test_lettering_quotes_its_target():
    for prompt in write("lettering", 300):
        assert re.findall(r'"([^"]+)"', prompt.text) == [prompt.answer] == [prompt.columns["target"]]


def test_the_clauses_of_objects_say_what_the_text_says():
    prompts = write("objects", 2000)
    assert {prompt.columns["tag"] for prompt in prompts} == set(TAGS)
    for prompt in prompts:
        tag, include = prompt.columns["tag"], prompt.columns["include"]
        assert all(clause["class"] in OBJECTS and clause["class"] in prompt.text for clause in include)
        assert len(include) == (2 if tag in ("two_object", "position", "color_attr") else 1)
        coloured = [clause for clause in include if "color" in clause]
        assert len(coloured) == {"colors": 1, "color_attr": 2}.get(tag, 0)
        assert all(f"{clause['color']} {clause['class']}" in prompt.text and clause["color"] in COLOURS for clause in coloured)
        assert [clause["count"] for clause in prompt.columns["exclude"]] == [clause["count"] + 1 for clause in include] * (
            tag == "counting"
        )
    (counted,) = [prompt for prompt in prompts if prompt.columns["tag"] == "counting" and "three clocks" in prompt.text][:1]
    assert counted.columns["include"] == [{"class": "clock", "count": 3}] and AMOUNTS[3] == "three"


def test_a_placed_object_is_the_one_named_first():
    placed = [prompt for prompt in write("objects", 600) if prompt.columns["tag"] == "position"]
    for prompt in placed:
        other, moved = prompt.columns["include"]
        relation, index = moved["position"]
        assert index == 0 and "position" not in other
        assert re.search(f"an? {moved['class']} {RELATIONS[relation]} an? {other['class']}", prompt.text)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="there is no writer 'poems' of prompts: choose one of lettering, objects, numbers"):
        write("poems")
    with pytest.raises(ValueError, match="choose train or held_out"):
        write("numbers", split="test")
    with pytest.raises(ValueError, match="only 72 of 100 different numbers prompts"):
        write("numbers", 100)
    with pytest.raises(ValueError, match="ask for 1 or more"):
        write("numbers", 0)
