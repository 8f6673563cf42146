"""Data to draw from, to be taught pictures by, and conversations: rows as people have them, and what is refused."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from mmrl.algorithms.planners.flow import TaughtPairs, TaughtPictures
from mmrl.app.config.tasks import one_line
from mmrl.app.plugins.resolve import load
from mmrl.app.run.build import build
from mmrl.core.samples import Video
from mmrl.data.drawn.moving import ClipStyle, draw, plan_clip
from mmrl.data.files.mp4 import write_mp4
from mmrl.data.validate import FILE_ROW, check
from tests.support.refused import refused


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name, size, colour in (("a.png", (32, 32), "red"), ("b.png", (64, 32), "blue")):
        Image.new("RGB", size, colour).save(tmp_path / name)
    return tmp_path / "rows.jsonl"


def write(file: Path, *rows: dict[str, Any] | str) -> str:
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(file)


def test_lines_of_a_text_file_and_objects_of_a_jsonl_file_with_their_columns(dataset, tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffa red fox\n\n  two dogs \r\na red fox\n", encoding="utf-8")
    prompts = dataset("prompts")(tmp_path / "a.txt")
    assert [(prompt.id, prompt.text) for prompt in prompts] == [("1", "a red fox"), ("3", "two dogs"), ("4", "a red fox")]
    assert [prompt.columns[FILE_ROW] for prompt in prompts] == ["a.txt:1", "a.txt:3", "a.txt:4"]
    assert not prompts[0].media and prompts[0].answer is None
    assert check(prompts).ok
    (tmp_path / "a.jsonl").write_text('{"prompt": "a fox", "animal": "fox"}\n{"prompt": "dogs", "id": "d", "number": 2}\n')
    first, second = dataset("prompts")(str(tmp_path / "a.jsonl"))
    assert (first.id, first.columns) == ("1", {"animal": "fox", FILE_ROW: "a.jsonl:1"})
    assert (second.id, second.text, second.columns["number"]) == ("d", "dogs", 2)
    (tmp_path / "b.jsonl").write_text('{"caption": "a fox"}\n')
    assert dataset("prompts")(tmp_path / "b.jsonl", column="caption")[0].text == "a fox"


def test_what_cannot_be_read_is_said(dataset, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    refused("holds no rows", dataset("prompts"), tmp_path / "empty.txt")
    refused(r"nope\.txt does not exist", dataset("prompts"), tmp_path / "nope.txt", error=FileNotFoundError)
    for both_or_none in ({}, {"path": "a.txt", "texts": ["x"]}, {"texts": ["x"], "writer": "numbers"}):
        refused(r"set data\.path, data\.texts or data\.writer", dataset("prompts"), **both_or_none)


def test_texts_of_a_config_and_prompts_that_a_writer_makes_up(dataset):
    prompts = dataset("prompts")(writer="lettering", size=20, split="held_out", seed=3)
    assert len(prompts) == 20 and all(f'"{prompt.columns["target"]}"' in prompt.text for prompt in prompts)
    assert len(dataset("prompts")(writer="numbers")) == 72
    for name, value in {"size": 1, "split": "test", "seed": 3, "column": "caption"}.items():
        refused(f"data.{name} is not read here", partial(dataset("prompts"), **{name: value}), texts=["a fox"])
    assert [(prompt.id, prompt.text) for prompt in dataset("prompts")(texts=["a fox", "dogs"])] == [("1", "a fox"), ("2", "dogs")]


@pytest.mark.parametrize("column", ["prompt", "caption", "text"])
def test_prompts_of_tables_and_of_folders_with_pictures(dataset, tmp_path, column):
    (tmp_path / "a.csv").write_text(f'{column},width,height\n"a fox, red",512,256\n')
    [prompt] = dataset("prompts")(tmp_path / "a.csv")
    assert prompt.text == "a fox, red" and (prompt.columns["width"], prompt.columns["height"]) == (512, 256)
    for split in ("train", "test"):
        (tmp_path / "pictures" / split).mkdir(parents=True)
        (tmp_path / "pictures" / split / "metadata.jsonl").write_text(json.dumps({"file_name": "a.png", column: f"a {split}"}))
    assert [prompt.text for prompt in dataset("prompts")(tmp_path / "pictures")] == ["a train"]
    [prompt] = dataset("prompts")(tmp_path / "pictures", split="test")
    assert (prompt.text, prompt.media, "image" in prompt.columns) == ("a test", (), False)


def test_rows_with_a_caption_or_a_pair(dataset, file):
    a, b = (str(file.with_name(name)) for name in ("a.png", "b.png"))
    captioned = {"image": "a.png", "caption": "a red square", "kind": "x"}
    one, pair = dataset("pictures")(write(file, captioned, {"prompt": "red", "chosen": a, "rejected": "b.png", "id": "pair"}))
    assert (one.id, one.text, one.media) == ("1", "a red square", ())
    assert one.columns == {"kind": "x", FILE_ROW: "rows.jsonl:1", "picture": a}
    assert (pair.id, pair.columns["chosen"], pair.columns["rejected"]) == ("pair", a, b)
    TaughtPictures().check_prompts([one])
    TaughtPairs().check_prompts([pair])


def test_pairs_as_pickapic_has_them(dataset, file):
    shown = {f"jpg_{i}": file.with_name(name).read_bytes() for i, name in enumerate(("a.png", "b.png"))}
    rows = [{"caption": "red", **shown, "best_image_uid": "u", "label_0": label} for label in (1.0, 0.0, 0.5)]
    file, ties = file.with_suffix(".parquet"), file.with_name("ties.parquet")
    parquet.write_table(pa.Table.from_pylist(rows), file)
    first, second = dataset("pictures")(file)
    found = [[one.columns[name].getpixel((0, 0)) for name in ("chosen", "rejected")] for one in (first, second)]
    assert found == [[(255, 0, 0), (0, 0, 255)], [(0, 0, 255), (255, 0, 0)]]
    assert first.columns["best_image_uid"] == "u" and "jpg_0" not in first.columns
    assert [one.id for one in dataset("pictures")(file, size=1)] == ["1"]
    parquet.write_table(pa.Table.from_pylist(rows[2:]), ties)
    refused("no row with a picture or a pair of which one is preferred", dataset("pictures"), ties)


def test_rows_of_edits_become_prompts(dataset, file):
    a, mask, after = (str(file.with_name(name)) for name in ("a.png", "mask.png", "after.png"))
    for copy in (mask, after):
        shutil.copy(a, copy)
    row = {"image": "a.png", "instruction": "make it black", "mask": "mask.png", "target": "after.png", "id": "c", "kind": "b"}
    write(file, row | {"split": "train"}, {"images": ["a.png", "b.png"], "instruction": "put b beside a", "split": "test"})
    one, two = dataset("edits")(file)
    assert (one.id, one.text, one.media) == ("c", "make it black", (a,))
    assert one.columns == {"kind": "b", "mask": mask, "target": after, "split": "train", FILE_ROW: "rows.jsonl:1"}
    assert (two.id, len(two.media)) == ("2", 2)
    assert [prompt.id for prompt in dataset("edits")(file, split="test")] == ["2"]
    refused(r"rows\.jsonl:1: column split is missing", dataset("edits"), write(file, row), split="test")
    assert check([one, two]).ok


def test_a_prompt_may_say_what_is_to_be_changed(dataset, file):
    row = {"image": "a.png", "prompt": "<image>\nmake it blue"}
    assert [(p.text, p.media) for p in dataset("edits")(write(file, row))] == [("make it blue", (str(file.with_name("a.png")),))]
    file.with_suffix(".csv").write_text("image,prompt\na.png,make it green\n")
    assert [p.text for p in dataset("edits")(file.with_suffix(".csv"))] == ["make it green"]
    twice = write(file, row | {"instruction": "x"})
    refused(r"rows\.jsonl:1: columns instruction, prompt say the same twice", dataset("edits"), twice)
    cell = {"image": {"bytes": file.with_name("a.png").read_bytes()}, "prompt": "x"}
    parquet.write_table(pa.Table.from_pylist([cell]), file.with_suffix(".parquet"))
    assert dataset("edits")(file.with_suffix(".parquet"))[0].media[0].size == (32, 32)


EDIT, RANKED = {"image": "a.png", "instruction": "x"}, {"caption": "x", "jpg_0": "a.png", "jpg_1": "a.png"}
BAD: dict[str, list[tuple[Any, str]]] = {
    "prompts": [
        ({"prompt": "x", "id": 1}, ""),
        ("nonsense", "this is not JSON"),
        ({"words": "y"}, "column prompt is missing, and must hold the text of the prompt (the row has words)"),
        ({"prompt": "z", "id": "1"}, "id '1' was used before"),
        ({"prompt": " "}, "column prompt is ' '"),
    ],
    "pictures": [
        ({"caption": "x"}, "the row has caption, and no picture: it needs image, video, chosen and rejected, or jpg_0, jpg_1"),
        ({"image": "a.png"}, "column prompt is missing, and must hold the text of the prompt"),
        ({"image": "no.png", "caption": "x"}, "picture"),
        ({"image": 3, "caption": "x"}, "column image is '3': it must be the path of a picture or clip"),
        (RANKED | {"label_0": 2}, "column label_0 is 2: it must be 1 where jpg_0 is preferred, 0 or 0.5"),
    ],
    "edits": [
        (EDIT | {"instruction": " "}, "column instruction is ' ': it must say what is to be changed"),
        (EDIT | {"image": "no.png"}, "picture"),
        (EDIT | {"image": None}, "column image is None: it must be the path of a picture"),
        (EDIT | {"mask": "b.png"}, "column mask is 64 x 32 pixels, but the picture 32 x 32: cut them alike"),
        (EDIT | {"target": 3}, "column target is 3: it must be the path of a picture"),
    ],
}
"""Data set -> rows, and what is said of each."""


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_listed_with_their_lines(dataset, file, name):
    said = str(refused("cannot be trained on", dataset(name), write(file, *(row for row, _ in BAD[name]))).value)
    for number, (_, words) in enumerate(BAD[name], start=1):
        assert words == "" or f"rows.jsonl:{number}: {words}" in said, words


def test_clips_begin_where_a_row_says_and_may_follow_a_first_frame(dataset, file):
    write_mp4(file.with_name("a.mp4"), np.zeros((8, 16, 16, 3), np.uint8), 8)
    clip, plain = str(file.with_name("a.mp4")), {"video": "a.mp4", "caption": "night"}
    framed = {"clip": "a.mp4", "caption": "night", "start": 0.5, "first_frame": "a.png"}
    rows = write(file, plain, framed, {"chosen": "a.mp4", "rejected": "a.png", "caption": "night"})
    whole, part, pair = dataset("pictures")(rows)
    assert (whole.media, whole.columns["clip"], pair.columns["chosen"]) == ((), clip, clip)
    assert part.columns["clip"] == Video(clip, start=0.5) and part.media == (str(file.with_name("a.png")),)
    TaughtPictures().check_prompts([whole, part])
    for start, words in ((1.0, "it asks for 1 s to 1 s"), ("x", "column start is 'x'")):
        refused(words, dataset("pictures"), write(file, plain | {"start": start}))


def test_shapes_draws_what_its_captions_ask_for(dataset):
    plain, drawn = dataset("shapes")(size=3), dataset("shapes")(size=3, pictures=True)
    assert [one.text for one in plain] == [one.text for one in drawn] and "picture" not in plain[0].columns
    assert all(one.columns["chosen"].tobytes() != one.columns["rejected"].tobytes() for one in drawn)
    assert drawn[0].columns["picture"].tobytes() == dataset("shapes")(size=3, pictures=True)[0].columns["picture"].tobytes()
    TaughtPairs().check_prompts(drawn)


LLAVA = {
    "id": "1",
    "image": "a.png",
    "conversations": [
        {"from": "human", "value": "<image>\nWhat is it?"},
        {"from": "gpt", "value": "A square."},
        {"from": "human", "value": "Which colour?"},
        {"from": "gpt", "value": "Red."},
    ],
}
TOOLS = {
    "id": "2",
    "images": ["a.png", "b.png"],
    "messages": [
        {"role": "user", "content": "Look closer."},
        {"role": "assistant", "content": "<tool_call>zoom</tool_call>"},
        {"role": "tool", "content": "<image>"},
        {"role": "assistant", "content": "A line."},
    ],
}
PARTS = {
    "id": "3",
    "messages": [
        {"role": "user", "content": [{"type": "image", "image": "b.png"}, {"type": "text", "text": "And this?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A bar."}]},
    ],
}
BOXED = {
    "messages": [{"role": "user", "content": "Find <ref-object>"}, {"role": "assistant", "content": "<bbox>"}],
    "objects": {"ref": ["the cat"], "bbox": [[1, 2, 30, 31]]},
}
SHOWS = {"messages": [TOOLS["messages"][0], {"role": "assistant", "content": "<image>"}]}


def first_turn(row: dict[str, Any], **change: object) -> dict[str, Any]:
    """The row with its first message changed."""
    return {**row, "messages": [{**row["messages"][0], **change}, *row["messages"][1:]]}


def test_public_layouts_are_read_with_pictures_at_their_markers(file: Path):
    shown = first_turn(TOOLS, content="<image>Look closer.")
    llava, tools, parts = load("dialogues", "datasets")(write(file, LLAVA, shown, PARTS))
    a, b = str(file.with_name("a.png")), str(file.with_name("b.png"))
    assert (llava.text, llava.media) == ("<image>\nWhat is it?", (a,))
    assert [(one["role"], one["content"], one["images"]) for one in llava.columns["completion"]] == [
        ("assistant", "A square.", ()),
        ("user", "Which colour?", ()),
        ("assistant", "Red.", ()),
    ]
    assert tools.media == (a,) and tools.columns["completion"][1] == {"role": "tool", "content": "<image>", "images": (b,)}
    assert (parts.text, parts.media, parts.columns["completion"]) == ("<image>And this?", (b,), "A bar.")


def test_clips_and_pictures_without_markers_belong_to_the_first_question(file: Path):
    style = ClipStyle(side=32, glyph=(12, 16), seconds=6.0)
    write_mp4(file.with_name("c.mp4"), draw(plan_clip(0, 0, "train", style, ("which",))), style.fps)
    [prompt] = load("dialogues", "datasets")(write(file, first_turn({**PARTS, "video": "c.mp4", "image": "a.png"}, content="?")))
    assert prompt.media == (str(file.with_name("a.png")), Video(str(file.with_name("c.mp4"))))


@pytest.mark.parametrize(
    "row, words",
    [
        (first_turn(TOOLS, role="system"), "system message.*policy.system_prompt"),
        (first_turn(TOOLS, role="critic"), "a turn is by 'critic'"),
        (first_turn(TOOLS, role="assistant"), "the turns are by assistant, assistant, tool, assistant: user begins"),
        (first_turn(TOOLS, content=" "), "turn 1, of user, is ' '"),
        ({**TOOLS, "images": []}, "show more pictures than the row lists"),
        (first_turn(TOOLS, content="<image><image>?"), "show more pictures than the row lists"),
        ({**TOOLS, "images": ["a.png", "b.png", "a.png"]}, "lists 2 pictures and 0 clips that no turn shows"),
        ({**TOOLS, "images": ["gone.png"]}, "gone.png"),
        ({**TOOLS, "messages": TOOLS["messages"][:3]}, "has the last word"),
        ({**TOOLS, "messages": "hello"}, "column messages must be a list of turns"),
        ({"id": "1", "question": "?"}, r"the row has id, question"),
        (
            {**TOOLS, "messages": [TOOLS["messages"][0], {**TOOLS["messages"][1], "tool_calls": [{}]}]},
            "write the call in the turn's content",
        ),
        (SHOWS, "turn 2, of assistant, shows a picture"),
        (BOXED, "turn 1, of user, has <ref-object> or <bbox>, .*: take the data set grounding_jsonl, with written = 'truth'"),
    ],
)
def test_bad_rows_are_refused_with_file_and_line(file: Path, row: dict[str, Any], words: str):
    refused(rf"(?s)rows\.jsonl.*{words}", load("dialogues", "datasets"), write(file, row))


def test_a_line_on_the_command_line_teaches_every_turn(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    look, call, shown, answer = TOOLS["messages"]
    data = write(file, LLAVA, {**TOOLS, "images": ["b.png"], "messages": [look, call, {**shown, "role": "user"}, answer]})
    words = ["data.use=dialogues", "steps=1", "prompts_per_step=2", "optimizer.lr=1e-2"]
    trainer = build(one_line("sft", "tiny:qwen3_vl", data, (), words)).trainer
    first = trainer.step()
    rollouts = trainer.collect().rollouts
    own = [sample.num_written for group in rollouts.groups for sample in group.samples]
    assert sum(own) == int(rollouts.action_mask.sum()) < rollouts.action_mask.numel()
    assert {len(sample.turns) for group in rollouts.groups for sample in group.samples} == {2}
    later = [trainer.step()["loss"] for _ in range(3)]
    assert later[-1] < 0.9 * first["loss"]
