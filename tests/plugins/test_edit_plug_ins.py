"""Edits: their data, the rewards that compare with source, mask and target, and the demo's own reward."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from mmrl.core.types import Group, Prompt, Sample
from mmrl.data.drawn.shape_edits import HELD_OUT, INSTRUCTIONS, TASKS, TRAIN, Instruction, State, draw, jitter_of, to_bytes
from mmrl.data.drawn.shapes import stain
from mmrl.data.validate import FILE_ROW, check

RED = State("red", "square", "top")
STILL = (0.2, -0.4, 0.1)
NOISE = np.random.default_rng(0).random((32, 32, 3))


def picture(pixels: Any) -> Image.Image:
    return Image.fromarray(to_bytes(np.asarray(pixels, np.float32)))


def task(instruction: Instruction, state: State = RED) -> Prompt:
    columns = {**state._asdict(), **instruction._asdict(), "jitter": list(STILL)}
    return Prompt("p1", instruction.text, (picture(draw(state, STILL, 32)),), columns=columns)


@pytest.fixture
def score(reward):
    """An instruction for a red square on top, and pixels -> (value, parts)."""

    def score_pixels(instruction: Instruction, pixels: Any):
        (found,) = reward("shape_edits")(Group(0, task(instruction), (Sample(image=picture(pixels)),)))
        return found.value, found.parts

    return score_pixels


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda instruction: instruction.text)
def test_the_edit_that_was_asked_for_scores_near_one_and_doing_nothing_near_zero(score, instruction):
    if getattr(RED, instruction.part) == instruction.value:
        pytest.skip("it would change nothing")
    value, parts = score(instruction, draw(instruction.after(RED), STILL, 32))
    assert value > 0.75 and parts["idle"] == 0
    value, parts = score(instruction, draw(RED, STILL, 32))
    # A red square has a tenth of yellow's colour, and nearly half of a circle's shape.
    assert value < (0.5 if instruction.part == "shape" else 0.15) and parts["idle"] == 1


def test_each_part_that_is_lost_costs_its_third(score):
    instruction = Instruction("side", "left")
    whole, _ = score(instruction, draw(instruction.after(RED), STILL, 32))
    for other in ({"colour": "blue"}, {"shape": "triangle"}):
        value, parts = score(instruction, draw(instruction.after(RED)._replace(**other), STILL, 32))
        assert parts["fulfilled"] > 0.9 and value == pytest.approx(2 / 3 * whole, abs=0.12)
    stained, parts = score(instruction, stain(draw(instruction.after(RED), STILL, 32), np.random.default_rng(1)))
    assert parts["ground"] < 0.5 and stained < 0.85 * whole


@pytest.mark.parametrize("pixels", [np.full((32, 32, 3), 0.92), np.zeros((32, 32, 3)), NOISE], ids=["blank", "black", "noise"])
def test_nothing_and_noise_score_zero(score, pixels):
    value, parts = score(Instruction("colour", "blue"), pixels)
    assert value == 0 and parts["fulfilled"] == parts["kept"] == 0


def test_mistakes_of_the_demos_reward_are_named(reward):
    blank = Sample(image=picture(np.zeros((32, 32, 3))))
    with pytest.raises(ValueError, match=r"prompt 'p1' has no column 'part'.*data set 'shape_edits'"):
        reward("shape_edits")(Group(0, Prompt("p1", "x"), (blank,)))
    with pytest.raises(ValueError, match="asks for the colour 'purple', which cannot be drawn here"):
        reward("shape_edits")(Group(0, task(Instruction("colour", "purple")), (blank,)))
    with pytest.raises(ValueError, match=r"is not square: set policy\.height"):
        reward("shape_edits")(Group(0, task(INSTRUCTIONS[2]), (Sample(image=picture(np.zeros((32, 16, 3)))),)))


def test_pairs_of_the_two_splits(dataset):
    train, held_out = dataset("shape_edits")(times=2), dataset("shape_edits")(split="held_out")
    assert (len(TASKS), len(TRAIN), len(HELD_OUT)) == (432, 324, 108)
    assert (len(train), len(held_out)) == (648, 108)

    def pair(prompt: Prompt) -> tuple[str, ...]:
        return (*(prompt.columns[name] for name in State._fields), prompt.text)

    assert not set(map(pair, train)) & set(map(pair, held_out))
    assert {prompt.text for prompt in held_out} == {instruction.text for instruction in INSTRUCTIONS}
    assert check(train).ok and train[0].media[0].size == (32, 32)
    again, other = dataset("shape_edits")(times=2), dataset("shape_edits")(times=2, seed=1)
    assert [p.id for p in again] == [p.id for p in train] != [p.id for p in other]
    assert np.array_equal(np.asarray(again[3].media[0]), np.asarray(train[3].media[0]))
    drawn = draw(State(*(train[3].columns[name] for name in State._fields)), tuple(train[3].columns["jitter"]), 32)
    assert np.array_equal(to_bytes(drawn), np.asarray(train[3].media[0]))
    with pytest.raises(ValueError, match=r"data\.split is 'test': choose one of train, held_out"):
        dataset("shape_edits")(split="test")


SOURCE = picture(draw(RED, jitter_of(np.random.default_rng(3)), 32))


def changed(left: int, right: int) -> Image.Image:
    """The source with a black stripe from column `left` to `right`."""
    found = SOURCE.copy()
    found.paste((0, 0, 0), (left, 0, right, 32))
    return found


def keeps(reward: Any, image: Image.Image, mask: Any = None, source: Any = SOURCE, **settings: Any) -> Any:
    prompt = Prompt("p7", "x", (source,) if source else (), columns={} if mask is None else {"mask": mask})
    return reward("keeps_rest", **settings)(Group(0, prompt, (Sample(image=image),)))[0]


def test_what_lies_under_the_mask_may_change_and_nothing_else(reward, tmp_path):
    mask = Image.new("L", (32, 32))
    mask.paste(255, (0, 0, 16, 32))
    mask.save(tmp_path / "mask.png")
    for given in (mask, str(tmp_path / "mask.png")):
        assert keeps(reward, changed(0, 16), given).value == 1
        assert keeps(reward, changed(16, 32), given).value < 0.1
    without = keeps(reward, changed(0, 16))
    assert without.value < 0.1 and without.parts["difference"] > 0.3
    half = keeps(reward, changed(16, 20), mask)
    assert 0 < half.value < 1 and half.value == pytest.approx(1 - half.parts["difference"] / 0.25)


def test_a_picture_left_as_it_was_earns_nothing_and_is_counted(reward):
    still = keeps(reward, SOURCE)
    assert still.value == 0 and still.parts == {"difference": 0.0, "idle": 1.0}
    assert keeps(reward, SOURCE, same=0.0, source=changed(0, 1)).parts["idle"] == 0


def test_grain_costs_less_at_less_detail_and_sources_of_another_size_are_fitted(reward):
    rng = np.random.default_rng(0)
    grainy = picture(np.asarray(SOURCE, np.float32) / 255 + rng.normal(0, 0.2, (32, 32, 3)))
    assert keeps(reward, grainy, detail=4).value > keeps(reward, grainy).value + 0.2
    wide = Image.new("RGB", (64, 32), "white")
    wide.paste(SOURCE, (16, 0))
    assert keeps(reward, changed(0, 2), source=wide, fit="crop").value > 0.7 > keeps(reward, changed(0, 2), source=wide).value


def test_faults_of_masks_and_sources_are_named(reward):
    for mask, words in (
        (Image.new("L", (16, 32)), r"the mask of prompt 'p7' is 16 x 32 pixels, but its picture has 32 x 32: cut them alike"),
        (Image.new("L", (32, 32), 255), r"the mask of prompt 'p7' is white all over"),
        ("nowhere.png", r"prompt 'p7': column mask: there is no picture 'nowhere.png'"),
        (3, r"prompt 'p7': column mask: a picture is a path or a PIL image, not int"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            keeps(reward, changed(0, 4), mask)
    with pytest.raises(ValueError, match=r"prompt 'p7' has no picture: this reward is for prompts with a column image"):
        keeps(reward, changed(0, 4), source=None)


def test_the_way_to_a_target(reward):
    def gone(image: Image.Image, target: Any = changed(0, 16)) -> Any:
        prompt = Prompt("p7", "x", (SOURCE,), columns={} if target is None else {"target": target})
        return reward("toward_target")(Group(0, prompt, (Sample(image=image),)))[0]

    assert gone(changed(0, 16)).value == 1
    assert gone(changed(0, 8)).value == pytest.approx(0.5, abs=0.15)
    assert gone(SOURCE).value == 0 and gone(SOURCE).parts["idle"] == 1
    assert gone(changed(16, 32)).value == 0 and gone(changed(16, 32)).parts["idle"] == 0
    with pytest.raises(ValueError, match="the target of prompt 'p7' is its source: remove the row"):
        gone(SOURCE, SOURCE)
    with pytest.raises(ValueError, match="prompt 'p7' has no column 'target'"):
        gone(SOURCE, None)


def test_rows_of_edits_become_prompts(dataset, tmp_path):
    for name in ("cat.png", "mask.png", "after.png", "dog.png"):
        SOURCE.save(tmp_path / name)
    rows = [
        {
            "image": "cat.png",
            "instruction": "make it black",
            "mask": "mask.png",
            "target": "after.png",
            "id": "c",
            "kind": "b",
        },
        {"images": ["cat.png", "dog.png"], "instruction": "put the dog beside the cat", "split": "test"},
    ]
    (tmp_path / "edits.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one, two = dataset("edits")(tmp_path / "edits.jsonl")
    assert (one.id, one.text, one.media) == ("c", "make it black", (str(tmp_path / "cat.png"),))
    assert one.columns == {
        "kind": "b", "mask": str(tmp_path / "mask.png"), "target": str(tmp_path / "after.png"), FILE_ROW: "edits.jsonl:1"
    }  # fmt: skip
    assert (two.id, len(two.media)) == ("2", 2)
    assert [prompt.id for prompt in dataset("edits")(tmp_path / "edits.jsonl", split="test")] == ["2"]
    assert check([one, two]).ok


def test_bad_rows_of_edits_are_listed_with_their_lines(dataset, tmp_path):
    SOURCE.save(tmp_path / "cat.png")
    SOURCE.resize((16, 32)).save(tmp_path / "narrow.png")
    good = {"image": "cat.png", "instruction": "x"}
    bad = [{"instruction": " "}, {"image": "no.png"}, {"image": None}, {"mask": "narrow.png"}, {"target": 3}]
    rows = [{**good, **one} for one in bad]
    (tmp_path / "edits.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match="cannot be trained on") as caught:
        dataset("edits")(tmp_path / "edits.jsonl")
    for sentence in (
        "edits.jsonl:1: column instruction is ' ': it must say what is to be changed",
        "edits.jsonl:2: picture",
        "edits.jsonl:3: column image is None: it must be the path of a picture",
        "edits.jsonl:4: column mask is 16 x 32 pixels, but the picture 32 x 32: cut them alike",
        "edits.jsonl:5: column target is 3: it must be the path of a picture",
    ):
        assert sentence in str(caught.value)


def test_a_prompt_may_say_what_is_to_be_changed(dataset, tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    rows = [
        {"image": "a.png", "prompt": "<image>\nmake it blue"},
        {"image": {"bytes": (tmp_path / "a.png").read_bytes()}, "prompt": "x"},
    ]
    (tmp_path / "a.csv").write_text("image,prompt\na.png,make it green\n")
    (tmp_path / "a.jsonl").write_text(json.dumps(rows[0]))
    assert [(p.text, p.media) for p in dataset("edits")(tmp_path / "a.jsonl")] == [("make it blue", (str(tmp_path / "a.png"),))]
    assert [p.text for p in dataset("edits")(tmp_path / "a.csv")] == ["make it green"]
    with pytest.raises(ValueError, match=r"a\.jsonl:1: columns instruction, prompt say the same twice"):
        (tmp_path / "a.jsonl").write_text(json.dumps(rows[0] | {"instruction": "x"}))
        dataset("edits")(tmp_path / "a.jsonl")
    parquet.write_table(pa.Table.from_pylist([rows[1]]), tmp_path / "a.parquet")
    assert dataset("edits")(tmp_path / "a.parquet")[0].media[0].size == (8, 8)
