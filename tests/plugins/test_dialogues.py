"""Conversations as people write them: turns, pictures at their markers, bad rows refused, and a run that teaches them."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl import Video
from mmrl.app.config.tasks import one_line
from mmrl.app.plugins.resolve import load
from mmrl.app.run.build import build
from mmrl.data.drawn.moving import ClipStyle, draw, plan_clip
from mmrl.data.files.mp4 import write_mp4

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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name, size in (("a.png", (32, 32)), ("b.png", (64, 32))):
        Image.new("RGB", size, "red").save(tmp_path / name)
    return tmp_path / "rows.jsonl"


def write(file: Path, *rows: dict[str, Any]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


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
    with pytest.raises(ValueError, match=rf"(?s)rows\.jsonl.*{words}"):
        load("dialogues", "datasets")(write(file, row))


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
