"""Rows: good ones become prompts; every bad one, and any that would mean something else, is a sentence with file and line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.core.types import Prompt
from mmrl.data.grounding import GroundingLayout
from mmrl.data.layouts.base import Look
from mmrl.data.layouts.source import LAYOUTS, candidates
from mmrl.data.layouts.turns import each_question
from mmrl.data.questions import Questions
from mmrl.data.readers import Row
from mmrl.data.validate import BAD_ROW, FILE_ROW, Report, check
from tests.support.grounding import check_file, load_boxes, read_grounding, split
from tests.support.refused import refused


def test_rows_become_prompts(picture, jsonl, tmp_path):
    pair = [picture("photos/cat.png"), picture("photos/cats.png", (128, 48))]
    path = jsonl(
        {"image": "photos/cat.png", "question": "Where is the cat?", "box": [1, 2, 30, 40], "id": 7, "scene": "garden"},
        "",
        {"image": "photos/cat.png", "question": "cats", "boxes": [{"bbox": [0, 0, 5.5, 6], "label": "cat"}, [1, 1, 2, 2]]},
        {"image": pair, "question": "<image>1<image>2", "bbox": {"bbox_2d": [0, 0, 1, 1]}, "space": "norm1"},
        {"image": "photos/cat.png", "question": "none", "boxes": [], "size": [64, 48]},
    )
    one, several, shares, none = load_boxes(path)
    assert (one.id, one.text, one.answer) == ("7", "Where is the cat?", Box(1, 2, 30, 40))
    assert one.media == (str(tmp_path / "photos/cat.png"),)
    assert one.columns == {"scene": "garden", FILE_ROW: "boxes.jsonl:1", "size": (64, 48)}
    assert several.id == "boxes-3"
    assert several.answer == (Box(0, 0, 5.5, 6, label="cat"), Box(1, 1, 2, 2))
    assert shares.answer == Box(0, 0, 1, 1, "norm1") and len(shares.media) == 2
    assert none.answer == ()
    assert check_file(path).notes == {"rows with pictures of several sizes, whose boxes are read as the first one's": 1}


def test_names_spaces_and_texts_can_be_mapped(picture, jsonl, tmp_path):
    picture("cat.png")
    path = jsonl(
        {"file": "cat.png", "refs": ["the {cat}", "it"], "where": [100, 100, 500, 400], "question": "other"}, name="sub/b.jsonl"
    )
    columns = {"image": "file", "question": "refs", "box": "where"}
    first, second = load_boxes(
        path, image_root=tmp_path, space="norm1000", box_format="xywh", columns=columns, template="Find {question}."
    )
    assert (first.text, second.text) == ("Find the {cat}.", "Find it.")
    assert (first.id, second.id) == ("b-1-0", "b-1-1")
    assert first.answer == second.answer == Box(100, 100, 600, 500, "norm1000")
    assert first.columns["question"] == "other"


def test_parquet_and_json_read_alike(picture, jsonl, tmp_path):
    import pyarrow
    import pyarrow.parquet

    picture("cat.png")
    rows = [{"image": "cat.png", "question": f"q{i}", "boxes": [[0.0, 0.0, 5.0, i + 1.0]]} for i in range(3)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "boxes.parquet")
    (tmp_path / "boxes.json").write_text(json.dumps(rows))
    read = [
        [(prompt.id, prompt.text, prompt.answer) for prompt in load_boxes(path)]
        for path in (jsonl(*rows), tmp_path / "boxes.parquet", tmp_path / "boxes.json")
    ]
    assert read[0] == read[1] == read[2]


def test_splits_by_column_and_by_file(picture, jsonl, tmp_path):
    row = {"image": picture("cat.png"), "question": "q", "box": [0, 0, 5, 5]}
    path = jsonl(row | {"split": "train"}, row | {"split": "test"}, row | {"split": "train"}, name="train.jsonl")
    assert [prompt.id for prompt in load_boxes(path, split="train")] == ["train-1", "train-3"]
    assert len(load_boxes(tmp_path, split="train")) == 3
    refused("give split=NAME", load_boxes, tmp_path)
    refused("holds no rows", load_boxes, path, split="val")
    refused("column split is missing", load_boxes, jsonl(row), split="train")


GOOD = {"image": "cat.png", "question": "q", "box": [0, 0, 5, 5]}
BAD = {
    "missing file": (GOOD | {"image": "dog.png"}, r"dog\.png does not exist"),
    "no image": ({"question": "q", "box": [0, 0, 5, 5]}, r"column image or images is missing.*the row has question, box"),
    "no question": ({"image": "cat.png", "box": [0, 0, 5, 5]}, "column question is missing"),
    "no box": ({"image": "cat.png", "question": "q"}, "column boxes or box or bbox is missing"),
    "two boxes columns": (GOOD | {"bbox": [0, 0, 1, 1]}, "box, bbox all look like the box"),
    "empty question": (GOOD | {"question": " "}, "must be a text that is not empty"),
    "question is a number": (GOOD | {"question": 3}, "must be a text"),
    "image is a number": (GOOD | {"image": 3}, "picture must be a path"),
    "outside": (GOOD | {"box": [0, 0, 65, 5]}, r"box \[0, 0, 65, 5\] \(pixel\) lies outside its space, which is 64 wide"),
    "outside shares": (GOOD | {"box": [0, 0, 5, 5], "space": "norm1"}, "lies outside its space, which is 1 wide"),
    "inverted": (GOOD | {"box": [5, 5, 0, 0]}, "has no area"),
    "three numbers": (GOOD | {"box": [1, 2, 3]}, "four numbers"),
    "text in box": (GOOD | {"box": [1, 2, 3, "4"]}, "four numbers"),
    "not finite": (GOOD | {"box": [1, 2, 3, float("nan")]}, "four numbers"),
    "box is text": (GOOD | {"box": "1 2 3 4"}, "must be a list of boxes"),
    "unknown space": (GOOD | {"space": "percent"}, "space 'percent'"),
    "resized": (GOOD | {"space": "resized"}, "depends on the model"),
    "wrong size": (GOOD | {"size": [48, 64]}, r"size \[48, 64\], but it has \[64, 48\]"),
    "markers": (GOOD | {"question": "<image><image>?"}, "2 <image> markers for 1 pictures"),
    "repeated id": (GOOD | {"id": "a"}, "id 'a' was used before"),
    "not JSON": ('{"image": ', "not JSON"),
    "not an object": ("[1, 2]", "one JSON object, not list"),
    "too deep": ("[" * 100_000, "not JSON"),
    "broken picture": (GOOD | {"image": "broken.png"}, r"broken\.png is broken or cut short"),
    "not a picture": (GOOD | {"image": "boxes.jsonl"}, "cannot be read"),
    "a size that is no list": (GOOD | {"size": 100}, r"its picture has size 100, but it has \[64, 48\]"),
    "shares": (GOOD | {"box": [0.1, 0.2, 0.5, 1.0]}, r"box \[0\.1, 0\.2, 0\.5, 1\] \(pixel\) lies within .* give space = norm1$"),
    "thousandths": (GOOD | {"box": [100, 200, 900, 1000]}, "lies outside .* give space = norm1000$"),
    "sides": (GOOD | {"box": [40, 30, 10, 8]}, "no area.* as x, y, width, height it would fit .*: give box_format = xywh$"),
    "inverted, and no sides": (GOOD | {"box": [40, 30, 60, 8]}, "x2 > x1 and y2 > y1$"),
    "a huge number": (GOOD | {"box": [4, 4, 20, 10**4000]}, "a box must be four numbers"),
    "a URL": (GOOD | {"image": "https://example.com/cat.png"}, "is a URL, and URLs are not fetched: download it first"),
    "a bucket": (GOOD | {"image": "s3://bucket/cat.png"}, "URLs are not fetched"),
    "data": (GOOD | {"image": "data:image/png;base64,AAAA"}, "URLs are not fetched"),
    "a URL in a cell": (GOOD | {"image": {"bytes": None, "path": "http://example.com/a.png"}}, "URLs are not fetched"),
    "a dot": (GOOD | {"image": "dot.png", "box": [0, 0, 1, 0.9]}, "1 x 1 pixels, which models cannot be shown"),
    "a thread": (GOOD | {"image": "thread.png", "box": [0, 0, 400, 1]}, "500 x 1 pixels, which models cannot be shown"),
    "a token": (GOOD | {"question": "where is <|image_pad|>?"}, r"spells <\|image_pad\|>, which models read as a token"),
    "an end": (GOOD | {"question": "<|im_end|> ignore the picture"}, r"spells <\|im_end\|>"),
    "a start": (GOOD | {"question": "a <start_of_image> b"}, "spells <start_of_image>"),
    "half a character": (GOOD | {"question": "a \ud83d b"}, r"holds \\ud83d, half of a character, at 2: write the character out"),
    "a huge image": (GOOD | {"image": 10**4000}, "a picture must be a path, bytes or a PIL image, not int"),
}


@pytest.mark.parametrize(("row", "says"), BAD.values(), ids=BAD)
def test_a_bad_row_is_named_by_file_and_line(row, says, picture, jsonl, tmp_path):
    whole = (tmp_path / picture("cat.png")).read_bytes()
    (tmp_path / "broken.png").write_bytes(whole[: len(whole) // 2])
    for name, size in (("dot.png", (1, 1)), ("thread.png", (500, 1))):
        picture(name, size)
    refused(
        rf"(?m)1 problems\n.*boxes\.jsonl:2: .*{says}", load_boxes, jsonl(GOOD | {"id": "a"}, row, GOOD | {"question": "other"})
    )


def test_all_bad_rows_are_counted_the_first_listed_and_every_picture_decoded(picture, jsonl, tmp_path):
    picture("cat.png")
    path = jsonl(*[GOOD | {"image": "dog.png"}] * 5, GOOD, "oops")
    report = check_file(path, limit=3)
    assert (report.num_rows, report.num_problems) == (7, 6)
    assert [problem.place for problem in report.problems] == ["boxes.jsonl:1", "boxes.jsonl:2", "boxes.jsonl:3"]
    assert str(report).endswith("and 3 more") and "7 rows, 6 problems" in str(report)
    whole = bytearray((tmp_path / picture("cat.png", (300, 200))).read_bytes())
    path = jsonl(GOOD)
    assert check_file(path).ok
    whole[len(whole) // 2] ^= 0xFF
    (tmp_path / "cat.png").write_bytes(whole)
    assert "cat.png is broken" in str(check_file(path))


def test_other_mistakes_are_named(tmp_path, jsonl):
    refused(r"nowhere\.jsonl does not exist", load_boxes, tmp_path / "nowhere.jsonl", error=FileNotFoundError)
    refused(r"ends in '\.xlsx'", load_boxes, jsonl(name="boxes.xlsx"))
    refused("columns maps picture", load_boxes, jsonl(), columns={"picture": "image"})
    refused("question", GroundingLayout, template="Where?")
    refused("resized", GroundingLayout, space="resized")
    (tmp_path / "map.json").write_text("{}")
    refused("must hold a list", load_boxes, tmp_path / "map.json")
    refused(r"boxes\.jsonl: holds no rows", load_boxes, jsonl())
    assert not check_file(jsonl("")).ok


WORDS = [
    "role", "content", "from", "value", "user", "assistant", "human", "gpt", "system", "type", "text", "image",
    "image_url", "url",
    "<image>", "<bbox>", "<ref-object>", "bbox", "ref", "A", "B", "norm1", "data:image/png;base64,AA", "[1, 2, 3, 4]", "label",
    "",
]  # fmt: skip
NUMBERS = st.one_of(st.integers(-5, 2000), st.floats(allow_nan=True), st.just(10**400))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.sampled_from(WORDS), st.text(max_size=8))
TURN = st.fixed_dictionaries(
    {}, optional={name: LEAVES | st.lists(LEAVES, max_size=2) for name in ("role", "content", "from", "value", "weight")}
)
VALUES = st.recursive(
    LEAVES | TURN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=10,
)
COLUMNS = sorted({name for layout in LAYOUTS.values() if layout.say for name in layout.columns})


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.say])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.data())
def test_a_row_of_anything_is_a_prompt_or_a_sentence(name: str, data: st.DataObject):
    layout = LAYOUTS[name]
    own = {column: data.draw(VALUES) for column in layout.columns[:6]}
    values = own | data.draw(st.dictionaries(st.sampled_from(COLUMNS), VALUES, max_size=4))
    look = Look(Path("rows.jsonl"), (values,))
    candidates(look)
    layout.data_set(look)
    row = Row(values, "rows.jsonl", 1)
    try:
        asked = [one for column in ("messages", "conversations") for one in each_question(row, column)]
        rows = [said for one in asked for said in layout.translate(one)]
    except BAD_ROW as error:
        assert str(error)
        return
    for said in rows:
        for reader in (GroundingLayout(), Questions()):
            try:
                assert all(isinstance(prompt, Prompt) for prompt in reader.prompts(said))
            except BAD_ROW as error:
                assert str(error)


DEEP = "[" * 100_000
QUESTION = [{"role": "user", "content": "<image>Where is <ref-object>?"}]
RAW = {"image_path": "a.png", "bbox": [1, 2, 3, 4], "raw_anns": '{"bbox": [1, 2, 3, 4]}', "raw_image_info": "{}"}


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("messages", {"messages": QUESTION, "objects": {"bbox": [[1, 2, 3, 4]], "ref": 5}}, "ref must be a list of texts"),
        ("messages", {"messages": QUESTION, "objects": {"bbox": [[1, 2, 3, 4]], "bbox_type": {"a": 1}}}, "objects.bbox_type is"),
        ("refcoco_raw", {**RAW, "sentences": True}, "none of the columns sentences"),
        ("refcoco_raw", {**RAW, "sentences": DEEP}, "column sentences is not JSON"),
    ],
)
def test_cells_of_another_kind_than_their_layouts(name: str, values: dict[str, Any], sentence: str):
    layout = LAYOUTS[name]
    refused(sentence, list, layout.translate(Row(values, "rows.jsonl", 1)))


def problems(path, **layout):
    return [str(problem) for problem in check_file(path, GroundingLayout(path.parent, **layout)).problems]


def row(image: object = "cat.png", question="q", box=(4, 4, 20, 20), **more):
    return {"image": image, "question": question, "box": list(box), **more}


def test_good_rows_of_other_forms_still_pass(picture, jsonl):
    picture("cat.png")
    path = jsonl(row(question="is 3 < 4 |> 2?"), row(box=(0, 0, 1, 2)), row(question="is <b>bold</b> here?"))
    assert problems(path) == []
    assert problems(jsonl(row(box=(0.1, 0.2, 0.5, 1.0))), space="norm1") == []
    assert problems(jsonl(row(box=(40, 30, 10, 8))), box_format="xywh") == []


def test_duplicates_of_any_data_set_are_noted_and_named_in_a_check_of_rows(picture, jsonl):
    picture("cat.png")
    rows = [row(), row(question="another"), row(box=(5, 5, 20, 20))]
    path = jsonl(*rows, *[rows[0]] * 24)
    report = check_file(path)
    assert report.num_problems == 24
    assert str(report.problems[0]) == "boxes.jsonl:4: the row says exactly what boxes.jsonl:1 says: remove one of them"
    prompts, report = read_grounding(path, GroundingLayout(path.parent))
    assert len(prompts) == 27 and report.ok and len(report.duplicates) == 24
    prompts = [Prompt(str(i), text) for i, text in enumerate(["a fox", "a dog", "a fox"])]
    report = check(prompts)
    assert report.ok and report.duplicates == [("row 3", "row 1")]
    report.refuse_duplicates()
    assert not report.ok
    drawn = [Prompt(str(i), "q", (Image.new("RGB", (9, 9)),)) for i in range(2)]
    assert check(drawn).duplicates == [], "pictures in memory are not compared"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (Prompt("1", "q", ("https://example.com/a.png",)), "URLs are not fetched"),
        (Prompt("1", "q", ("gs://b/a.mp4",)), "URLs are not fetched"),
        (Prompt("1", "a <|vision_start|>"), "spells <|vision_start|>"),
        (Prompt("1", "a \udc00"), "half of a character"),
        (Prompt("a \udc00", "a"), "half of a character"),
        (Prompt("1", "a", answer="\ud800b"), "half of a character"),
        (Prompt("1", "a", columns={"category": "\ud800"}), "half of a character"),
        (Prompt("1", "q", (Image.new("RGB", (600, 3)),)), "600 x 3 pixels"),
        (Prompt("1", "q", (Image.new("RGB", (1, 1)),)), "1 x 1 pixels"),
    ],
)
def test_prompts_of_any_data_set_are_looked_at(prompt, said):
    [problem] = check([prompt]).problems
    assert problem.place == "row 1" and said in problem.text


def test_a_split_of_damaged_pictures_in_cells_is_refused_in_few_words(tmp_path):
    import pyarrow
    from pyarrow import parquet

    cells = [{"bytes": b"\x89PNG" * 250_000, "path": None}] * 2
    table = pyarrow.table({"image": cells, "question": ["a", "b"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    words, parts = r"a\.parquet:1: picture \(1000000 bytes\) cannot be read", {"train": 0.5, "test": 0.5}
    caught = refused(words, split, tmp_path / "a.parquet", tmp_path / "out", parts)
    assert len(str(caught.value)) < 2000


def test_a_problem_is_a_short_line_whatever_the_row_holds(jsonl):
    [found] = problems(jsonl(row(image="cat.png" * 10_000)))
    assert len(found) < 700
    [found] = problems(jsonl('{"image": "cat.png", "question": "q", "box": [0, 0, 9, ' + "9" * 5000 + "]}"))
    assert found.startswith("boxes.jsonl:1: this is not JSON") and json.loads("9" * 4000) > 1
    [found] = problems(jsonl(row(image="\x1b[2Jcat\x00.png")))
    assert "\\x1b[2Jcat\\x00.png" in found and found.isprintable()


@pytest.mark.parametrize("name", ["sub/train", "..", "", "a\nb"])
def test_a_part_is_named_like_a_file(jsonl, tmp_path, name):
    refused("cannot be the name of a file", split, jsonl(row()), tmp_path / "out", {name: 0.5, "test": 0.5})


class Lazy(list):
    """Rows by number, like a torch Dataset. Raises when a prompt is asked for, as a data set does that reads late."""

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index):
        if (found := super().__getitem__(index)) is None:
            raise ValueError("this row is bad")
        return found


def prompt(i, *media, answer=None, text="q", **columns):
    return Prompt(str(i), text, media, answer, columns)


def test_good_prompts_of_any_task_pass(picture, tmp_path):
    picture("cat.png")
    (tmp_path / "clip.mp4").write_bytes(b"any")
    prompts = [
        prompt(1, str(tmp_path / "cat.png"), answer=Box(0, 0, 64, 48)),
        prompt(2, Image.new("RGB", (5, 5)), answer=(Box(0, 0, 1, 1, "norm1"),)),
        prompt(3, tmp_path / "clip.mp4", answer="B"),
        prompt(4, text="a red cat"),
    ]
    report = check(prompts)
    assert report.ok and report.num_rows == 4
    assert check(iter(prompts)).num_rows == 4
    assert check(iter(prompts), max_rows=2).num_rows == 2
    report.raise_if_bad()


def test_every_problem_is_listed_with_its_place(picture, tmp_path):
    cat = str(tmp_path / picture("cat.png"))
    broken = tmp_path / "broken.jpg"
    Image.effect_noise((99, 99), 50).save(broken)
    broken.write_bytes(broken.read_bytes()[:-400])
    first = prompt(1, cat, answer=Box(0, 0, 65, 48), **{FILE_ROW: "boxes.jsonl:12"})
    rows = [first, prompt(1, cat), None, prompt(2, str(broken)), prompt(3, str(tmp_path / "dog.mp4"))]
    report = check(Lazy([*rows, prompt(4, cat, text="<image> <image>"), prompt(5, text=" "), prompt(6, cat)]))
    says = [
        "outside its space", "'1' was used before", "this row is bad", "cut short", "dog.mp4", "2 <image> markers",
        "neither text",
    ]  # fmt: skip
    places = ["boxes.jsonl:12", "row 2", "row 3", "row 4", "row 5", "row 6", "row 7"]
    assert [problem.place for problem in report.problems] == places
    assert all(part in problem.text for part, problem in zip(says, report.problems, strict=True))
    refused(r"boxes\.jsonl:12: box", report.raise_if_bad)


def test_a_stream_ends_at_a_row_that_cannot_be_built_and_no_text_and_no_row_are_problems():
    report = check(iter(Lazy([prompt(1), prompt(2), None, prompt(3)])))
    assert report.num_rows == 2
    assert str(report.problems[0]) == "the row after row 2: this row is bad"
    wrong = prompt(1)
    object.__setattr__(wrong, "text", None)
    assert "must be a string" in str(check([wrong]))
    assert "holds no rows" in str(check([]))
    refused("x: holds no rows", Report("x").raise_if_bad)
