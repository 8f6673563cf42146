"""Files as people have them: recognised, said in our words, and read as prompts."""

import base64
import json

import pytest

from mmrl.algorithms.planners.taught import Pairs
from mmrl.answers.boxes.box import Box
from mmrl.core.types import Video
from mmrl.data.layouts.base import DataLayout
from mmrl.data.layouts.files import look_at
from mmrl.data.layouts.source import candidates, guess
from mmrl.data.layouts.table import LAYOUTS, NAMES, Columns
from tests.support.grounding import convert, load_boxes, load_questions
from tests.support.refused import refused
from tests.support.videos import even, write_video

BOX = Box(1, 2, 30, 40)
FOUR = [1, 2, 30, 40]
WHERE = "Where is the cat?"
OPENAI = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": WHERE}, {"type": "image_url", "image_url": {"url": "cat.png"}}]},
    {"role": "assistant", "content": json.dumps(FOUR)},
]
TRL_TURNS = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": WHERE}]}]
SWIFT_ASKS = {"role": "user", "content": "<image>" + WHERE}
LLAVA_ASKS = {"from": "human", "value": "<image>\n" + WHERE}


def swift(asks, says, *names, boxes=(FOUR,), **more):
    """A row of ms-swift's with objects."""
    turns = [{"role": "user", "content": f"<image>Find {asks}"}, {"role": "assistant", "content": says}]
    return {"messages": turns, "images": ["cat.png"], "objects": {"ref": [*names], "bbox": [*boxes], **more}}


def llava(answer):
    return {"image": "cat.png", "conversations": [LLAVA_ASKS, {"from": "gpt", "value": answer}]}


NAMED = swift("all", "<ref-object><bbox>" * 2, "cat", "dog", boxes=([0.1, 0.1, 0.5, 0.5], [0.5, 0.5, 1, 1]), bbox_type="norm1")
CAT_AND_DOG = (Box(0.1, 0.1, 0.5, 0.5, "norm1", "cat"), Box(0.5, 0.5, 1, 1, "norm1", "dog"))
ROWS = {
    "openai": ({"messages": OPENAI}, "messages", WHERE + "<image>", BOX),
    "swift": ({"messages": [SWIFT_ASKS], "images": ["cat.png"], "solution": "[1, 2, 30, 40]"}, "messages", WHERE, BOX),
    "swift objects": (swift("<ref-object>", "<bbox>", "the cat"), "messages", "Find the cat", BOX),
    "swift, the mark": (swift("<ref-object>", "<bbox>", "<ref-object>"), "messages", "Find <ref-object>", BOX),
    "swift names": (NAMED, "messages", "Find all", CAT_AND_DOG),
    "trl turns": ({"prompt": TRL_TURNS, "images": ["cat.png"], "solution": FOUR}, "messages", WHERE, BOX),
    "trl": ({"prompt": WHERE, "images": ["cat.png"], "solution": FOUR}, "trl", WHERE, BOX),
    "llava": (llava('```json\n[{"bbox_2d": [1, 2, 30, 40]}]\n```'), "llava", WHERE, BOX),
    "vlm-r1 lines": (llava(FOUR), "llava", WHERE, BOX),
    "vlm-r1": ({"image": "cat.png", "problem": WHERE, "solution": FOUR, "normal_caption": "cat"}, "problem", WHERE, BOX),
    "own": ({"image": "cat.png", "question": WHERE, "box": FOUR}, "boxes", WHERE, BOX),
}
"""Name -> a row, its layout, and the text and answer of its prompt."""


@pytest.fixture(autouse=True)
def cat(picture):
    """The picture that rows name."""
    picture("cat.png")


MIXED = ("openai", "swift objects", "swift names", "vlm-r1 lines")
"""Rows whose columns hold several types, which parquet cannot."""
FILES = [(name, suffix) for name in ROWS for suffix in ("jsonl", "json", "parquet") if suffix != "parquet" or name not in MIXED]


@pytest.mark.parametrize(("name", "suffix"), FILES)
def test_boxes_of_every_layout(name, suffix, tmp_path):
    row, layout, text, answer = ROWS[name]
    path = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps([row] if suffix == "json" else row))
    found = guess(path)
    assert (found.layout, found.data_set) == (layout, "grounding_jsonl")
    [prompt] = load_boxes(path)
    assert (prompt.text, prompt.media, prompt.answer) == (text, (str(tmp_path / "cat.png"),), answer)


QUESTIONS = {
    "messages": ({"messages": [SWIFT_ASKS, {"role": "assistant", "content": "left"}], "images": ["cat.png"]}, "left"),
    "llava": (llava("<answer>left</answer>"), "left"),
    "trl": ({"prompt": WHERE, "images": ["cat.png"], "completion": "left"}, "left"),
    "problem": ({"problem": WHERE, "images": ["cat.png"], "answer": "left", "solution": "so left"}, "left"),
    "questions": ({"question": WHERE, "image": "cat.png", "answer": "left", "solution": "so left"}, "left"),
}


@pytest.mark.parametrize("layout", QUESTIONS)
def test_questions_of_every_layout(layout, jsonl, tmp_path):
    row, answer = QUESTIONS[layout]
    path = jsonl(row)
    assert (guess(path).layout, guess(path).data_set) == (layout, "qa_jsonl")
    [prompt] = load_questions(path)
    assert prompt.text.replace("<image>", "").strip() == WHERE
    assert (prompt.answer, prompt.media) == (answer, (str(tmp_path / "cat.png"),))
    assert (prompt.columns["problem_type"], prompt.columns.get("solution")) == ("text", row.get("solution"))


def said(text):
    return [{"role": "assistant", "content": text}]


def pair_of(*asked):
    return {"chosen": [*asked, *said("left")], "rejected": [*asked, *said("right")]}


TRL_PAIRS = {
    "texts": ({"prompt": WHERE, "chosen": "left", "rejected": "right"}, "trl"),
    "a prompt beside conversations": ({"prompt": WHERE, **pair_of({"role": "user", "content": WHERE})}, "trl"),
    "turns": ({"prompt": TRL_TURNS, **pair_of(), "images": ["cat.png"]}, "messages"),
    "whole conversations": ({**pair_of(*TRL_TURNS), "images": ["cat.png"]}, "messages"),
}


@pytest.mark.parametrize("name", TRL_PAIRS)
def test_pairs_as_trl_writes_them(name, jsonl):
    row, layout = TRL_PAIRS[name]
    path = jsonl(row)
    assert [one.name for one in candidates(look_at(path, {}))] == [layout]
    [prompt] = load_questions(path)
    assert prompt.text.replace("<image>", "").strip() == WHERE and len(prompt.media) == len(row.get("images", ()))
    Pairs().check_prompts([prompt])
    assert [request.written for request in Pairs().first([prompt], 2, 0, 0)] == ["left", "right"]


def test_pairs_of_pictures_and_pairs_of_other_questions_are_no_pairs_of_texts(jsonl):
    assert guess(jsonl({"prompt": "a red fox", "chosen": "7.png", "rejected": "8.jpg"})).data_set == "prompts"
    row = pair_of(*TRL_TURNS) | {"rejected": [{"role": "user", "content": "Who?"}, *said("right")]}
    refused("chosen and rejected must begin with the same turns and end with a completion each", load_questions, jsonl(row))


def test_columns_of_any_layout_may_have_other_names(jsonl):
    path = jsonl({"chat": [SWIFT_ASKS], "pics": ["cat.png"], "label": FOUR, "messages": "a note"})
    refused(r"has none of the layouts that are known \(chat, label, messages, pics\): .*columns.question", guess, path)
    columns = {"messages": "chat", "images": "pics", "solution": "label"}
    assert guess(path, columns).layout == "messages"
    [prompt] = load_boxes(path, columns=columns)
    assert prompt.answer == BOX
    with pytest.raises(ValueError, match=r"columns\.solution is 'lable', which no row at the beginning of .* has \("):
        load_boxes(path, columns=columns | {"solution": "lable"})
    with pytest.raises(ValueError, match="columns maps colour, which the layout messages does not have: use messages, prompt"):
        load_boxes(path, columns=columns | {"colour": "red"})


def test_layouts_that_are_two_none_or_another_data_sets_are_refused(jsonl):
    path = jsonl({"image": "cat.png", "messages": OPENAI[1:], "conversations": [LLAVA_ASKS]})
    refused(r'may be messages or llava: say which, with --as messages or --as llava .*layout = "messages"', guess, path)
    refused("may be messages or llava", load_boxes, path)
    both = jsonl({"image": "cat.png", "question": WHERE, "box": FOUR, "answer": "left"}, name="both.jsonl")
    refused("may be boxes or questions", guess, both)
    assert guess(both, name="boxes").data_set == "grounding_jsonl"
    assert load_boxes(both)[0].answer == BOX
    assert load_questions(both)[0].answer == "left"
    path = jsonl({"prompt": "a red fox"})
    assert guess(path).data_set == "prompts"
    refused("no layout is called 'lava': choose one of boxes, ", guess, path, name="lava")
    refused("the data set qa_jsonl does not read the layout coco: use questions", load_questions, path, layout="coco")


def test_several_turns_are_refused_or_become_rows(jsonl, tmp_path):
    more = [{"from": "gpt", "value": "left"}, {"from": "human", "value": "How many legs?"}, {"from": "gpt", "value": "4"}]
    path = jsonl({"id": "7", "image": "cat.png", "conversations": [LLAVA_ASKS, *more]})
    words = r"boxes\.jsonl:1: the conversation has 2 questions, and a prompt is one: .*--turns each"
    refused(words, load_questions, path)
    done = convert(path, None, tmp_path / "each.jsonl", each=True)
    assert done.num_rows == 2 and "read as llava" in str(done)
    first, second = load_questions(done.out)
    assert (first.id, first.answer, second.id, second.answer) == ("7-0", "left", "7-1", "4")
    assert second.text == "How many legs?" and second.media == first.media
    assert second.columns["problem_type"] == "number"


TURNS = {
    "no question": ([{"role": "assistant", "content": "x"}], "no turn is by the user"),
    "another role": ([{"role": "tool", "content": "x"}], "a turn is by 'tool': only user, human"),
    "no content": ([{"role": "user"}], "a turn must be an object with role and content"),
    "a sound": ([{"role": "user", "content": [{"type": "audio"}]}], "a part of a turn is .*audio.*: only text, image and video"),
    "two answers": (
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}],
        "the turns are user, assistant, assistant: write a question and at most one answer",
    ),
}


@pytest.mark.parametrize("name", TURNS)
def test_turns_that_are_no_question_are_named_by_line(name, jsonl):
    turns, words = TURNS[name]
    path = jsonl({"messages": [{"role": "user", "content": "fine"}], "answer": 1}, {"messages": turns, "answer": 1})
    refused(rf"boxes\.jsonl:2: {words}", load_questions, path)


def test_pictures_inside_a_text_and_clips_of_messages(tmp_path, jsonl):
    inside = "data:image/png;base64," + base64.b64encode((tmp_path / "cat.png").read_bytes()).decode()
    parts = [{"type": "image_url", "image_url": {"url": inside}}, {"type": "text", "text": "Which colour?"}]
    rows = [{"messages": [{"role": "user", "content": parts}], "answer": "red"}]
    [prompt] = load_questions(jsonl(*rows))
    assert prompt.media[0].size == (64, 48) and prompt.text == "Which colour?"
    parts[0]["image_url"]["url"] = "data:image/png;base64,***"
    refused(r"boxes\.jsonl:1: the picture 'data:image/png;base64,\*\*\*'\.\. is not base64", load_questions, jsonl(*rows))
    parts[0]["image_url"]["url"] = "https://example.com/cat.png"
    refused(r"boxes\.jsonl:1: .*is a URL, and URLs are not fetched", load_questions, jsonl(*rows))
    write_video(tmp_path / "a.mp4", even(8))
    row = {"messages": [{"role": "user", "content": "<video>How many?"}], "videos": ["a.mp4"], "solution": 3}
    [prompt] = load_questions(jsonl(row))
    assert prompt.media == (Video(str(tmp_path / "a.mp4")),) and prompt.columns["problem_type"] == "number"


def test_a_turn_names_all_of_its_pictures_or_none_and_no_column_names_others(jsonl):
    parts = [{"type": "image", "image": "cat.png"}, {"type": "image"}, {"type": "text", "text": "Which is larger?"}]
    row = {"messages": [{"role": "user", "content": parts}], "answer": "the first"}
    refused("1 of 2 images in the turn have no source: name all or none", load_questions, jsonl(row))
    parts[1]["image"] = "cat.png"
    [prompt] = load_questions(jsonl(row))
    assert len(prompt.media) == 2
    with pytest.raises(ValueError, match="both the turn and a column name images: leave one of them out"):
        load_boxes(jsonl({"messages": OPENAI, "images": ["cat.png"]}))


def test_every_layout_says_what_it_is_and_one_with_columns_of_other_names_is_one_entry(jsonl, tmp_path, monkeypatch):
    screens = DataLayout("screens", "buttons", lambda look: look.has("click", "at"), ("click",), Columns("click", ("at",)))
    monkeypatch.setitem(LAYOUTS, "screens", screens)
    monkeypatch.setitem(NAMES, "grounding_jsonl", (*NAMES["grounding_jsonl"], "screens"))
    path = jsonl({"image": "cat.png", "click": " Send ", "at": [1, 2, 30, 40], "app": "mail"})
    assert str(guess(path)) == "read as screens: buttons; guessed, --as NAME says otherwise"
    assert guess(path).data_set == "grounding_jsonl"
    done = convert(path, None, tmp_path / "out.jsonl")
    [prompt] = load_boxes(done.out)
    assert (prompt.text, prompt.answer, prompt.columns["app"]) == ("Send", BOX, "mail") and "at" not in prompt.columns
    assert all(layout.name == name and layout.summary for name, layout in LAYOUTS.items())
    assert {name for names in NAMES.values() for name in names} <= set(LAYOUTS)
