"""Rows with questions: the kind of each answer, letters of options, parts of clips, and keys that nothing reads."""

import json
from pathlib import Path

import pytest
from PIL import Image

from mmrl.answers.spans.interval import Interval
from mmrl.app.commands.data import check
from mmrl.app.plugins.resolve import load
from mmrl.core.samples import Audio, Video
from mmrl.core.types import Group, Sample
from mmrl.data.layouts.base import note_unused, refuse_keys
from mmrl.data.layouts.table import LAYOUTS
from mmrl.data.questions import LETTER, LETTERS_WANTED, guess_kind
from mmrl.data.validate import Report
from tests.support.grounding import convert
from tests.support.grounding import load_questions as read
from tests.support.refused import refused
from tests.support.sounds import tone, write_wav
from tests.support.videos import even, write_video

OPTIONS = ["a cat", "a dog", "a fox"]
by_type = load("by_type", "rewards")()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (3, "number"), (2.5, "number"), ("12", "number"), ("-1,250.5", "number"), ("50 %", "number"), ("$12", "number"),
        ("3/4", "number"), ("1e3", "number"), ("\\frac{1}{2}", "math"), ("x^2", "math"), ("x = 3", "math"), ("2x + 1", "math"),
        ("sqrt(2)", "math"), ("$\\pi$", "math"), ("12 km", "text"), ("left", "text"), ("A", "text"), ("", "text"), (None, "text"),
        ("10:10", "text"), ("%", "text"), ("2024 was warm", "text"),
    ],
)  # fmt: skip
def test_kinds_by_the_looks_of_answers(answer, kind):
    assert guess_kind("what?", answer) == kind


def test_letters_are_a_choice_only_where_letters_are_offered():
    assert guess_kind("what?\nA. cat\nB. dog", "B") == "choice"
    assert guess_kind("what?\n(A) cat\n(B) dog", "(B)") == "choice"
    assert guess_kind("what?\nA. cat\nB. dog", "A, B") == "choice"
    assert guess_kind("what?\nA. cat\nB. dog", "cat") == "text"
    assert guess_kind("what?", "B", OPTIONS) == "choice"


@pytest.mark.parametrize(
    ("answer", "settings", "letters"),
    [
        ("B", {}, "B"), ("a dog", {}, "B"), ("A Dog", {}, "B"), ("(B)", {}, "B"), (["A", "C"], {}, "A,C"), ("A,C", {}, "A,C"),
        (1, {"numbering": "zero"}, "B"), ("1", {"numbering": "one"}, "A"),
    ],
)  # fmt: skip
def test_right_options(answer, settings, letters, jsonl):
    [prompt] = read(jsonl({"question": "What?", "options": OPTIONS, "answer": answer}), **settings)
    assert prompt.answer == letters and prompt.columns["options"] == tuple(OPTIONS)
    form = LETTERS_WANTED if "," in letters else LETTER
    assert prompt.text == form.replace("{question}", "What?\nA. a cat\nB. a dog\nC. a fox")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answer": 1}, r"the answer 1 may count options from zero or from one: set numbering"),
        ({"answer": "D"}, r"the answer 'D' is none of the options \(A\. a cat"),
        ({"answer": "A", "options": ["B", "A"]}, "both a letter and the wording of option B"),
        ({"answer": "x", "options": ["x", "X"]}, "is the wording of options A and B"),
        ({"answer": "A", "options": ["A. cat", "B. dog", "C. cat"]}, "options A and C are alike .'cat'.*write other wordings"),
        ({"answer": "A", "options": ["x"]}, r"options must be a list of 2 to 26 texts"),
        ({"answer": "A", "options": {"A": "x", "C": "y"}}, "options are called A, C: call them A, B, .. without a gap"),
        ({"answer": "A", "options": {"text": ["x", "y"], "label": ["B", "A"]}}, "labels of options are B, A: write the options"),
        ({"box": [1, 2, 30, 40]}, "the row's answer is boxes: take the data set grounding_jsonl"),
        ({"answer": True}, "the answer is True: write it as the text"),
        ({"answer": {"a": 1}}, r"the answer is .*: it must be a text or a number"),
        ({"answer": "B", "kind": "riddle"}, "column problem_type is 'riddle', which no reward is for"),
        ({"answer": "B", "ground_truth": "C"}, "answer, ground_truth say the same .* columns.answer=ground_truth"),
        ({"question": " ", "answer": "B"}, r"column question is ' '"),
        ({"answer": "B", "image": "a.png", "video": "b.mp4"}, "both pictures and clips"),
        ({"answer": "B", "question": "<|im_end|>"}, r"the text spells <\|im_end\|>"),
        ({"answer": "B", "question": "<image>what?"}, "1 <image> markers for 0 pictures"),
        ({"answer": "B", "image": "gone.png"}, r"picture .*gone\.png does not exist"),
    ],
)
def test_rows_that_are_wrong_are_named_by_file_and_line(row, words, jsonl):
    good = {"question": "fine?", "answer": "yes", "kind": "text"}
    with pytest.raises(ValueError, match=rf"boxes\.jsonl:2: .*{words}"):
        read(jsonl(good, {"question": "What?", "options": OPTIONS, **row}), layout="questions")


def test_options_of_other_spellings(jsonl):
    spellings = [
        ["A. a cat", "B. a dog", "C. a fox"],
        {"A": "a cat", "B": "a dog", "C": "a fox"},
        {"text": OPTIONS, "label": ["A", "B", "C"]},
    ]
    rows = [{"question": f"What {i}?", "choices": options, "answer": "C"} for i, options in enumerate(spellings)]
    assert [prompt.columns["options"] for prompt in read(jsonl(*rows))] == [tuple(OPTIONS)] * 3
    for right in (["A"], ["B", "C"]):
        assert read(jsonl({"question": "What?", "choices": ["x", "y", "y"], "answer": right}))[0].answer == ",".join(right)


def test_kinds_are_said_forced_or_guessed(jsonl, caplog):
    caplog.set_level("INFO", logger="mmrl.loading")
    rows = [
        {"question": "How many?", "answer": 3},
        {"question": "Solve.", "answer": "12", "kind": "math"},
        {"question": "Who?", "answer": "the dog"},
    ]
    path = jsonl(*rows)
    assert [prompt.columns["problem_type"] for prompt in read(path)] == ["number", "math", "text"]
    assert "answers are compared as 1 number (guessed), 1 as rows say, 1 text (guessed); kind = NAME" in caplog.text
    assert {prompt.columns["problem_type"] for prompt in read(path, kind="text")} == {"text"}
    words = r"boxes\.jsonl:3: the answer of prompt 'boxes-3' is 'the dog': this reward needs one number"
    refused(words, read, path, kind="number")


def test_splits_choose_rows_and_stay_among_the_columns_and_labels_may_lack(jsonl):
    rows = [{"question": f"{split}?", "answer": "yes", "split": split} for split in ("train", "val")]
    [prompt] = read(jsonl(*rows), split="val")
    assert (prompt.text, prompt.columns["split"]) == ("val?", "val")
    with pytest.raises(ValueError, match=r"boxes\.jsonl:3: column split is missing or empty"):
        read(jsonl(*rows, {"question": "none?", "answer": "yes"}), split="val")
    [prompt] = read(jsonl({"question": "Why?"}), layout="questions", template="Q: {question}")
    assert prompt.answer is None and prompt.text == "Q: Why?"
    refused(r"must contain \{question\}", read, jsonl({"question": "Why?"}), template="no")


def test_clips_are_looked_at(tmp_path, jsonl):
    write_video(tmp_path / "a.mp4", even(8))
    (tmp_path / "b.mp4").write_bytes(b"no clip")
    good = {"video": "a.mp4", "question": "How many?", "answer": 3}
    assert len(read(jsonl(good))) == 1
    refused(r"boxes\.jsonl:2: .*b\.mp4", read, jsonl(good, good | {"video": "b.mp4"}))


def test_system_messages_are_said_aloud(jsonl, caplog):
    caplog.set_level("INFO", logger="mmrl.loading")
    turns = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}]
    read(jsonl({"messages": turns, "answer": "so"}))
    assert "1 system messages are not shown to the model: set policy.system_prompt = 'Be short.'" in caplog.text
    assert "is read as messages: conversations as" in caplog.text and 'guessed, layout = "NAME" in its table' in caplog.text


def test_each_kind_accepts_its_own_answer(jsonl):
    rows = [
        {"question": "Which?", "options": OPTIONS, "answer": "a dog"},
        {"question": "How many?", "answer": "1,250"},
        {"question": "Solve.", "answer": "\\frac{1}{2}"},
        {"question": "Who?", "answer": "the small dog"},
    ]
    wrong = ["A", "1251", "\\frac{1}{3}", "nobody"]
    right = ["<answer>B</answer>", "1250.0", "$0.5$", "the small dog"]
    reward = load("by_type", "rewards")(limit_s=30.0)
    for prompt, no, yes in zip(read(jsonl(*rows)), wrong, right, strict=True):
        scores = reward(Group(0, prompt, (Sample(yes), Sample(no))))
        assert [score.value for score in scores] == [1, 0], (prompt.answer, scores)


def test_bad_rows_at_the_end_of_many(tmp_path):
    lines = (json.dumps({"question": f"{i} + 1?", "answer": i + 1}) for i in range(5_000))
    (tmp_path / "many.jsonl").write_text("\n".join([*lines, '{"question": "why?"', '{"question": 7, "answer": 1}']))
    error = refused("5002 rows, 2 problems", read, tmp_path / "many.jsonl")
    assert "many.jsonl:5001: this is not JSON" in str(error.value) and "many.jsonl:5002: column question" in str(error.value)


def test_columns_of_letters_are_options(jsonl):
    row = {"question": "What is it?", "A": "a cat", "B": "a dog", "C": None, "answer": "dog", "D": "left"}
    file = jsonl(row | {"answer": "B"}, row | {"C": 3, "answer": "C"}, {"question": "Which grade?", "A": "x", "answer": "A"})
    with pytest.warns(UserWarning, match="1 answers are single letters, and their rows list no options"):
        two, four, alone = read(file)
    assert (two.answer, two.columns["options"], two.columns["problem_type"]) == ("B", ("a cat", "a dog"), "choice")
    assert two.text == "What is it?\nA. a cat\nB. a dog\nAnswer with the letter of the right option."
    assert four.answer == "C" and four.columns["options"] == ("a cat", "a dog", "3", "left")
    assert not {"A", "B", "C", "D"} & two.columns.keys()
    assert (alone.text, alone.columns["A"], alone.columns["problem_type"]) == ("Which grade?", "x", "text")


@pytest.mark.filterwarnings("error")
def test_letters_that_someone_calls_texts_or_choices_are_no_warning(jsonl):
    row = {"question": "Which grade?", "answer": "A"}
    assert read(jsonl(row), kind="text")[0].answer == "A"
    assert read(jsonl(row | {"kind": "choice"}))[0].answer == "A"
    assert read(jsonl(row | {"question": "Which?\nA. one\nB. two"}))[0].answer == "A"


def test_a_marker_that_begins_a_question_goes_where_it_says_nothing(jsonl, picture):
    names = [picture("a.png"), picture("b.png")]
    texts = ["<image>\nHow many?", "<image><image>\n How many?", "How many?\n<image>", "<image>How <image>many?", "<image>\n"]
    rows = [{"images": names[: max(1, text.count("<image>"))], "question": text, "answer": 3} for text in texts]
    found = [prompt.text for prompt in read(jsonl(*rows))]
    assert found == ["How many?", "How many?", *texts[2:4], "<image>"]
    refused("the text has 1 <image> markers for 0 pictures", read, jsonl({"question": "<image>\nHow many?", "answer": 3}))


def test_spans_of_a_clip(jsonl, tmp_path):
    write_video(tmp_path / "a.mp4", even(50))
    row = {"video": "a.mp4", "question": "the ball falls"}
    one, two = read(jsonl(row | {"span": [0.5, 1]}, row | {"spans": [[0, 0.5], [1, 2.4]]}))
    assert one.answer == Interval(0.5, 1) and two.answer == (Interval(0, 0.5), Interval(1, 2))
    assert one.text.startswith("the ball falls\nWhen does this happen?") and one.columns["problem_type"] == "span"
    assert (one.columns["duration"], one.columns["fps"], "span" in one.columns) == (2.0, 25.0, False)


def test_spans_counts_and_choices_of_a_sound(jsonl, tmp_path):
    """The last row has the columns of MMAU, whose answers are wordings and whose paths have a name of their own."""
    write_wav(tmp_path / "a.wav", [tone(2.0)])
    rung = {"audio": "a.wav", "question": "the bell rings", "span": [0.5, 1]}
    count = {"audios": ["a.wav", "a.wav"], "question": "<audio> or <audio>: how often?", "answer": 3}
    one, two = read(jsonl(rung, count))
    assert one.media == (Audio(str(tmp_path / "a.wav")),) and one.answer == Interval(0.5, 1)
    assert one.columns["duration"] == 2.0 and "fps" not in one.columns and "audio" not in one.columns
    score = by_type(Group(0, one, (Sample("<answer>0.5 to 1.0</answer>"), Sample("1 to 1.5"), Sample("never"))))
    assert [scored.value for scored in score] == [1.0, 0.0, 0.0]
    assert len(two.media) == 2 and two.columns["problem_type"] == "number"
    mmau = {"id": "7", "audio_id": "./a.wav", "question": "Which?", "choices": ["a bell", "a dog"], "answer": "a bell"}
    [asked] = read(jsonl(mmau | {"task": "sound"}), columns={"audio": "audio_id"})
    assert (asked.id, asked.answer, asked.columns["task"], len(asked.media)) == ("7", "A", "sound", 1)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"audio": "gone.wav"}, "there is no sound .*gone.wav"),
        ({"audio": "a.txt"}, "cannot be opened"),
        ({"audio": {"bytes": "x"}}, "a sound must be a path"),
        ({"audio": "a.wav", "video": "a.mp4"}, "both clips and sounds"),
        ({"audio": "a.wav", "span": [1, 9]}, r"\[1.00, 9.00\] s lies outside|lies outside the clip, which lasts 2.00 seconds"),
    ],
)
def test_sounds_that_no_row_can_have_are_named(columns, words, jsonl, tmp_path):
    write_wav(tmp_path / "a.wav", [tone(2.0)])
    (tmp_path / "a.txt").write_text("not a sound")
    row = {"question": "what?"} | ({} if "span" in columns else {"answer": "yes"}) | columns
    refused(rf"boxes\.jsonl:1: .*{words}", read, jsonl(row))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"video": "a.mp4", "span": [1, 9]}, "lies outside the clip, which lasts 2.00 seconds"),
        ({"video": "a.mp4", "span": [1]}, r"spans are \[1\]: write pairs of seconds"),
        ({"video": "a.mp4", "span": "soon"}, "spans are soon: write pairs of seconds"),
        ({"video": "a.mp4", "span": [1, 2], "spans": [[1, 2]]}, "columns span, spans say the same twice"),
        ({"span": [1, 2]}, "the row has a span and 0 pictures or clips: a span is of one clip, column video"),
    ],
)
def test_spans_that_no_clip_has_are_named(columns, words, jsonl, tmp_path):
    write_video(tmp_path / "a.mp4", even(50))
    refused(rf"boxes\.jsonl:1: .*{words}", read, jsonl({"question": "the ball falls"} | columns))


KNOWN = {"": ("a", "b"), "b": ("c",), "b.c": ("d",)}
CLIP = {"type": "video", "video": "a.mp4"}
BOUNDS = ("min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width", "min_frames", "max_frames")
DETAILED = {"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}


def asked(*parts: object, **turn: object) -> list[object]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}], **turn}]


def swift(**objects: object) -> dict[str, object]:
    turns = [{"role": "user", "content": "<image>Find <ref-object>"}, {"role": "assistant", "content": "<bbox>"}]
    return {"messages": turns, "images": ["a.png"], "objects": {"ref": ["it"], "bbox": [[1, 2, 30, 40]], **objects}}


def written(folder: Path, *rows: object) -> str:
    """A file of these rows beside the picture and the clip that they may name."""
    Image.new("RGB", (64, 64)).save(folder / "a.png")
    if not (folder / "a.mp4").exists():
        write_video(folder / "a.mp4", even(80, 10.0))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


def loaded(folder: Path, *rows: object, by: str = "qa_jsonl"):
    return list(load(by, "datasets")(written(folder, *rows)))


def test_keys_are_found_at_their_places():
    report = Report("rows")
    note_unused(report, {"a": 1, "x": 2, "y": None, "b": [{"c": {"d": 1, "e": 2}}, {"z": 3}, "text"]}, KNOWN)
    assert report.unused == {"x": 1, "b.c.e": 1, "b.z": 1}
    refuse_keys({"b": {"c": 1, "z": None}}, {"b.z": "drop it"})
    refused(r"the row has b\.z: drop it", refuse_keys, {"b": [{"z": 0}]}, {"b.z": "drop it"})


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (swift(width=640), "objects.width (1)"),
        ({"messages": asked(name="Ann"), "answer": "x"}, "messages.name (1)"),
        ({"prompt": asked({"type": "text", "text": "a", "cache": 1}), "answer": "x"}, "prompt.content.cache (1)"),
        ({"messages": asked(DETAILED), "answer": "x"}, "messages.content.image_url.detail (1)"),
        ({"conversations": [{"from": "human", "value": "q", "weight": 0}], "answer": "x"}, "conversations.weight (1)"),
        ({"problem": "where?", "image": "a.png", "solution": [{"bbox_2d": [1, 2, 3, 4], "angle": 9}]}, "solution.angle (1)"),
        ({"image": "a.png", "question": "where?", "box": {"bbox": [1, 2, 3, 4], "score": 0.5}}, "box.score (1)"),
    ],
)
def test_data_check_names_keys_that_are_not_read(row, named, tmp_path):
    assert f"keys that are not read: {named}" in check(written(tmp_path, row), [])


IMAGE = {"id": 1, "file_name": "a.png", "width": 64, "height": 64}
COCO = {
    "images": [IMAGE | {"license": 3}],
    "categories": [{"id": 1, "name": "cat", "supercategory": "animal"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9], "area": 81, "attributes": {"occluded": False}}
    ],
    "info": {},
}
SHAPE = {"label": "cat", "shape_type": "rectangle", "points": [[4, 4], [20, 20]], "group_id": 7, "flags": {}}
LABELME = {"imagePath": "a.png", "imageWidth": 64, "imageHeight": 64, "shapes": [SHAPE], "imageData": None, "version": "5"}
VOC = (
    "<annotation><filename>a.png</filename><size><width>64</width><height>64</height><depth>3</depth></size><object>"
    "<name>cat</name><difficult>1</difficult><bndbox><xmin>5</xmin><ymin>5</ymin><xmax>20</xmax><ymax>20</ymax><angle>9</angle></bndbox></object>"
    "</annotation>"
)


ENTRY = {"duration": 8.0, "timestamps": [[0, 1]], "sentences": ["a"], "url": "x"}
CHOICE = {"choice": "b", "answer": "correct", "program": []}
QUESTION = {"question_id": 0, "question_type": "explanatory", "question": "Why?", "choices": [CHOICE]}
CLEVRER = {"scene_index": 1, "video_filename": "a.mp4", "questions": [QUESTION]}
NEXT = "video_id,frame_count,question,answer,qid,type,a0,a1,a2,a3,a4\na,80,who,b,3,CW,a,b,c,d,e\n"


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        (
            "instances.json",
            json.dumps(COCO),
            "info (1), images.license (1), categories.supercategory (1), annotations.area (1), annotations.attributes",
        ),
        ("shapes.json", json.dumps(LABELME), "version (1), shapes.group_id (1), shapes.flags (1)"),
        ("a.xml", VOC, "size.depth (1), object.difficult (1), object.bndbox.angle (1)"),
        ("captions.json", json.dumps({"a": ENTRY}), "video.url (1)"),
        ("clevrer.json", json.dumps([CLEVRER]), "video.scene_index (1), question.question_id (1), question.choices.program (1)"),
        ("next.csv", NEXT, "frame_count (1)"),
    ],
)
def test_files_name_what_they_say_in_vain(name, text, named, tmp_path):
    written(tmp_path)
    (tmp_path / name).write_text(text)
    assert f"keys that are not read: {named}" in check(str(tmp_path / name), [])


def test_refs_name_what_they_say_in_vain(tmp_path):
    written(tmp_path)
    ref = {"ref_id": 1, "ann_id": 1, "image_id": 1, "split": "train", "sentences": [{"sent": "cat", "tokens": ["cat"]}]}
    (tmp_path / "instances.json").write_text(json.dumps(COCO))
    (tmp_path / "refs(unc).json").write_text(json.dumps([ref | {"file_name": "x.jpg"}]))
    assert "keys that are not read: file_name (1), sentences.tokens (1)" in check(str(tmp_path), [])


def test_data_check_names_columns_for_rewards(tmp_path):
    assert "1 rows, 0 problems" in check(written(tmp_path, swift(image_id=[0])), []), "the first picture's is read"
    row = {"question": "how many?", "answer": "3", "dificulty": 2, "source": "x", "empty": None}
    said = check(written(tmp_path, row, row | {"question": "and here?", "source": None}), [])
    assert "columns for rewards alone: dificulty (2), source (1)" in said and "keys that" not in said


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (swift(image_id=[1]), r"objects\.image_id says that a box lies in picture 1, counted from 0"),
        (swift(image_id=[0, "b"]), r"objects\.image_id says that a box lies in picture b"),
        ({"messages": asked(tool_calls=[{"name": "f"}]), "answer": "x"}, r"messages\.tool_calls: write the call"),
        *(({"prompt": asked(CLIP | {key: 9}), "answer": "x"}, rf"content\.{key}: leave it out: one rule") for key in BOUNDS),
        ({"messages": asked({"type": "video", "video_start": 1.0}), "answer": "x"}, "video_start and names no clip"),
        ({"messages": asked(CLIP | {"nframes": 2.5}), "answer": "x"}, "nframes .* a whole number"),
        ({"messages": asked(CLIP | {"fps": "2"}), "answer": "x"}, "fps .* must be a number"),
        ({"messages": asked(CLIP | {"fps": float("nan")}), "answer": "x"}, "fps .* must be a number"),
        ({"messages": asked(CLIP | {"video_end": 60}), "answer": "x"}, "asks for 0 s to 60 s"),
        ({"video": {"video": "a.mp4", "stop": 2}, "question": "q", "answer": "x"}, "asks for stop, which is not known"),
        ({"video": ["a.mp4", "a.mp4"], "video_start": 1.0, "question": "q", "answer": "x"}, "a part of one clip"),
        ({"video": "a.mp4", "video_start": 2.0, "question": "it falls", "span": [1.0, 2.0]}, "a span and shows a part of its"),
    ],
)
def test_keys_that_change_what_a_row_means_are_refused(row, words, tmp_path):
    refused(rf"rows\.jsonl:1: .*{words}", check, written(tmp_path, row), [])


PART = CLIP | {"video_start": 2.0, "video_end": 6.0, "fps": 2.0}


def test_parts_of_clips_are_shown_by_questions_and_dialogues_and_survive_a_conversion(tmp_path):
    rows = (
        {"messages": asked(PART), "answer": "x"},
        {"messages": asked({"type": "video", "video": f"file://{tmp_path}/a.mp4", "nframes": 8}), "answer": "x"},
        {"video": "a.mp4", "video_start": 2.0, "question": "What?", "answer": "x", "fps": 25},
        {"videos": [{"video": "a.mp4", "video_end": 6}, "a.mp4"], "question": "What?", "answer": "x"},
    )
    file = str(tmp_path / "a.mp4")
    assert [loaded(tmp_path, row)[0].media for row in rows] == [
        (Video(file, 2.0, 6.0, 2.0),),
        (Video(file, frames=8),),
        (Video(file, 2.0),),
        (Video(file, end=6), Video(file)),
    ]
    source = written(tmp_path, {"messages": asked(PART), "answer": "x"})
    convert(source, None, tmp_path / "out.jsonl")
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert row["video"] == {"video": "a.mp4", "video_start": 2.0, "video_end": 6.0, "fps": 2.0}
    row = {"messages": [*asked(PART), {"role": "assistant", "content": "It falls."}]}
    [prompt] = loaded(tmp_path, row, by="dialogues")
    assert prompt.media == (Video(str(tmp_path / "a.mp4"), 2.0, 6.0, 2.0),)


def test_every_layout_of_rows_says_what_it_reads_of_objects():
    """A layout with objects in its rows has the rule; flat ones have columns alone."""
    assert [name for name, one in LAYOUTS.items() if one.say is not None and not one.known] == ["questions", "prefix"]


def test_dialogues_refuse_the_same_keys(tmp_path):
    for key, turns in {
        r"messages\.content\.max_pixels": asked({"type": "image", "image": "a.png", "max_pixels": 9}),
        r"messages\.tool_calls": asked(tool_calls=[{"name": "f"}]),
    }.items():
        refused(f"the row has {key}: ", loaded, tmp_path, {"messages": turns}, by="dialogues")
