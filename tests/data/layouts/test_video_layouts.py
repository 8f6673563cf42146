"""Public layouts of video questions, on small files: good rows become prompts, bad ones are named, questions are turned round."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmrl.answers.spans.interval import Interval
from mmrl.app.commands import data as datatools
from mmrl.app.plugins.resolve import load
from mmrl.core.types import Prompt, Video
from mmrl.data.files.mp4 import write_mp4
from mmrl.data.inversion import LETTERS, NEGATED, Inversion, negate
from mmrl.data.validate import FILE_ROW, check
from mmrl.data.video_rows import VideoRow
from tests.support.refused import refused

NEXT_HEADER = "video_id,frame_count,width,height,question,answer,qid,type,a0,a1,a2,a3,a4"
LOADERS = ("charades_sta", "activitynet_captions", "next_gqa", "video_r1", "clevrer")


@pytest.fixture
def film(tmp_path):
    """Write a film of so many seconds at 5 frames per second; gives its path."""

    def write(name, seconds=4.0):
        frames = np.full((round(5 * seconds), 32, 32, 3), 60, np.uint8)
        return write_mp4(tmp_path / name, frames, 5)

    return write


@pytest.fixture
def save(tmp_path):
    """Write a text, or anything else as JSON; gives the path."""

    def write(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def read(name, *args, **fields):
    """What a shipped data set gives."""
    return load(name, "datasets")(*args, **fields)


def test_charades_sta(film, save, tmp_path):
    for name in ("AO8RW", "more/XX0", "more/XX1"):
        film(f"videos/{name}.mp4")
    path = save("sta.txt", "AO8RW 0.4 2.0##a person sits down.\n\nXX1  1  4.6##a person # reads\n")
    first, second = read("charades_sta", path, videos=tmp_path / "videos")
    assert first.answer == Interval(0.4, 2.0) and first.media == (Video(str(tmp_path / "videos/AO8RW.mp4")),)
    assert first.text.startswith("a person sits down.\nWhen does this happen?") and first.id == "AO8RW-1"
    columns = {"problem_type": "temporal grounding", "question": "a person sits down.", "duration": 4.0, "fps": 5.0}
    assert first.columns == columns | {FILE_ROW: "sta.txt:1"}
    # a span that ends 0.6 seconds after the film is cut at its end
    assert second.answer == Interval(1, 4) and second.media[0].source.endswith("more/XX1.mp4")
    own = read("charades_sta", path, videos=tmp_path / "videos", template="Find: {question}")
    assert own[0].text == "Find: a person sits down."
    assert check([first, second]).ok


def test_charades_rows_that_cannot_be_trained_on_are_named(film, save, tmp_path):
    for name in ("AO8RW", "a/TWICE", "b/TWICE"):
        film(f"{name}.mp4")
    (tmp_path / "CUT.mp4").write_bytes(film("WHOLE.mp4").read_bytes()[:-200])
    (tmp_path / "EMPTY.mp4").write_bytes(b"")
    lines = [
        "AO8RW 0.4 2.0##good", "AO8RW 2.0 0.4##inverted", "AO8RW 1 9##too long", "AO8RW 7 9##after the end", "GONE 0 1##no film",
        "TWICE 0 1##two films", "CUT 0 1##cut", "EMPTY 0 1##empty", "AO8RW x 1##no number", "AO8RW 0.4 2.0 no hashes",
        "AO8RW 0 1##  ",
    ]  # fmt: skip
    path = save("sta.txt", "\n".join(lines))
    error = refused("11 rows, 10 problems", read, "charades_sta", path)
    told = str(error.value)
    for number, words in enumerate(
        [
            "2 to 0.4", "1 to 9 (seconds) lies outside the clip, which lasts 4.00 seconds", "7 to 9",
            "video GONE is nowhere below", "video TWICE is in 2 folders", "CUT.mp4", "EMPTY.mp4", "start is 'x'",
            "is not like 'AO8RW 0.0 6.9##", "question is empty",
        ],
        start=2,
    ):  # fmt: skip
        line = next(line for line in told.splitlines() if f"sta.txt:{number}: " in line)
        assert words in line
    with pytest.warns(UserWarning, match=r"left out 10 bad rows of at most 10\n(.|\n)*sta.txt:2"):
        assert len(read("charades_sta", path, max_bad=10)) == 1
    refused("10 problems", read, "charades_sta", path, max_bad=9)


def test_activitynet_captions(film, save):
    film("v_abc.mp4")
    film("v_def.mp4", 10.0)
    entries = {
        "v_abc": {"duration": 4.0, "timestamps": [[0.83, 2.5], [1, 4]], "sentences": ["A woman sings.", " She bows. "]},
        "v_def": {"duration": 10.0, "timestamps": [[5, 9.5]], "sentences": ["A dog."]},
    }
    one, two, three = read("activitynet_captions", save("train.json", entries))
    assert (one.answer, two.answer, three.answer) == (Interval(0.83, 2.5), Interval(1, 4), Interval(5, 9.5))
    assert two.id == "v_abc-2" and two.columns[FILE_ROW] == "train.json:v_abc:2" and two.text.startswith("She bows.\n")
    entries["v_def"]["timestamps"] = [[5, 9.5, 11]]
    entries["v_abc"]["sentences"].pop()
    error = refused("both of one length", read, "activitynet_captions", save("bad.json", entries))
    assert "bad.json:v_def:1: a span must be two numbers" in str(error.value)
    refused("one object with a key per video", read, "activitynet_captions", save("list.json", []))


def test_next_gqa(film, save, tmp_path):
    film("vids/1164/42.mp4", 6.0)
    rows = [
        "42,180,640,480,why did the boy run,to get ball,3,CW,fun,to get ball,tired,angry,play",
        "42,180,640,480,what next,4,5,TN,a,b,c,d,e",
    ]
    path = save("val.csv", "\n".join([NEXT_HEADER, *rows]))
    spans = save("gsub_val.json", {"42": {"duration": 6, "location": {"3": [[1.2, 2], [4, 5.5]], "5": [[0, 1]]}, "fps": 5.0}})
    first, second = read("next_gqa", path, videos=tmp_path / "vids", spans=spans)
    assert first.answer == "B" and first.columns["options"] == ("fun", "to get ball", "tired", "angry", "play")
    assert first.columns["spans"] == (Interval(1.2, 2), Interval(4, 5.5)) and first.columns["question_kind"] == "CW"
    assert first.text.startswith("why did the boy run\nA. fun\nB. to get ball\n")
    assert first.columns["problem_type"] == "multiple choice"
    assert second.answer == "E" and second.id == "42-5" and second.columns[FILE_ROW] == "val.csv:3"
    (when, _) = read("next_gqa", path, videos=tmp_path / "vids", spans=spans, ask="when")
    assert when.answer == (Interval(1.2, 2), Interval(4, 5.5)) and "why did the boy run Answer: to get ball" in when.text
    assert read("next_gqa", path, videos=tmp_path / "vids")[0].columns["spans"] is None
    refused("set `spans`", read, "next_gqa", path, ask="when")
    bad = save("bad.csv", "\n".join([NEXT_HEADER, rows[0].replace("ball,3", "bat,3"), rows[1].replace(",5,TN", ",6,TN")]))
    with pytest.raises(ValueError, match=r"bad\.csv:2: the answer 'to get bat' is none of the options"):
        read("next_gqa", bad, videos=tmp_path / "vids", spans=spans)
    with pytest.raises(ValueError, match=r"bad\.csv:3: question 6 of video 42 has no span"):
        read("next_gqa", bad, videos=tmp_path / "vids", spans=spans, ask="when")


def video_r1_row(number, kind, solution, **others):
    return {
        "problem_id": number, "problem": "What is it?", "data_type": "video", "problem_type": kind, "options": [],
        "solution": f"<answer>{solution}</answer>", "path": "./clips/a.mp4", "data_source": "mine", **others,
    }  # fmt: skip


def test_video_r1(film, save, tmp_path):
    film("clips/a.mp4")
    Image.new("RGB", (20, 10)).save(tmp_path / "b.png")
    rows = [
        video_r1_row(2, "multiple choice", "B", options=["A. a cat", "B. a dog"]), video_r1_row(3, "numerical", "1,200"),
        video_r1_row(4, "regression", "3.5"), video_r1_row(5, "OCR", "STOP here", data_type="image", path="b.png"),
        video_r1_row(6, "free-form", "A dog runs."),
    ]  # fmt: skip
    prompts = read("video_r1", save("r1.json", rows))
    assert [prompt.answer for prompt in prompts] == ["B", "1,200", "3.5", "STOP here", "A dog runs."]
    assert [prompt.columns["problem_type"] for prompt in prompts] == [row["problem_type"] for row in rows]
    assert prompts[0].text.startswith("What is it?\nA. a cat\nB. a dog\n") and prompts[0].columns["options"] == ("a cat", "a dog")
    assert prompts[0].columns["data_source"] == "mine" and prompts[0].id == "2" and prompts[0].columns["duration"] == 4.0
    assert prompts[3].media == (str(tmp_path / "b.png"),) and "duration" not in prompts[3].columns
    renamed = [{("q" if key == "problem" else key): value for key, value in row.items()} for row in rows]
    lines = save("r1.jsonl", "\n".join(map(json.dumps, renamed)))
    assert [p.text for p in read("video_r1", lines, columns={"problem": "q"})] == [p.text for p in prompts]
    assert check(prompts).ok


def test_video_r1_rows_of_unknown_types_are_named(film, save):
    film("clips/a.mp4")
    rows = [
        video_r1_row(1, "multiple choice", "B", options=["A. x", "B. y"]), video_r1_row(2, "essay", "B"),
        video_r1_row(3, "multiple choice", "the dog", options=["A. x", "B. y"]), video_r1_row(4, "numerical", "many"),
        video_r1_row(5, "numerical", "3", path="gone.mp4"), video_r1_row(6, "numerical", "3", data_type="audio"),
        video_r1_row(1, "numerical", "3"),
    ]  # fmt: skip
    error = refused("7 rows, 6 problems", read, "video_r1", save("r1.json", rows))
    for number, words in enumerate(("essay", "'the dog'", "'many'", "gone.mp4", "audio", "'1'"), start=2):
        assert error.match(f"json:{number}: .*{words}")
    refused("which Video-R1's rows do not have", read, "video_r1", save("r1.json", rows), columns={"picture": "x"})


def test_clevrer(film, save):
    film("video_00000-01000/video_7.mp4")
    answers = ["correct", "wrong", "correct"]
    choices = [{"choice_id": i, "choice": f"event {i}", "answer": answer} for i, answer in enumerate(answers)]
    questions = [
        {"question_id": 0, "question": "How many cubes?", "question_type": "descriptive", "program": [], "answer": "2"},
        {"question_id": 1, "question": "What colour?", "question_type": "descriptive", "answer": "green"},
        {"question_id": 2, "question": "Without it, what happens?", "question_type": "counterfactual", "choices": choices},
    ]
    content = [{"scene_index": 7, "video_filename": "video_7.mp4", "questions": questions}]
    number, word, several = read("clevrer", save("train.json", content))
    assert (number.answer, word.answer, several.answer) == ("2", "green", "A,C")
    assert [p.columns["problem_type"] for p in (number, word, several)] == ["numerical", "free-form", "multiple choice"]
    assert several.columns["options"] == ("event 0", "event 1", "event 2")
    assert several.columns[FILE_ROW] == "train.json:video_7.mp4:3"
    assert [p.id for p in read("clevrer", save("train.json", content), kinds=["counterfactual"])] == ["video_7-3"]
    questions[1]["question_type"] = "poetic"
    questions[2]["choices"] = choices[1:2]
    error = refused(r"video_7\.mp4:2: question_type is 'poetic'", read, "clevrer", save("bad.json", content))
    assert error.match("video_7.mp4:3: no choice is correct")
    refused("choose from descriptive", read, "clevrer", save("bad.json", content), kinds=["poetic"])


@pytest.mark.parametrize("name", LOADERS)
def test_files_and_folders_that_are_not_there(name, save, tmp_path):
    refused("gone", read, name, tmp_path / "gone.json", error=FileNotFoundError)
    refused("set `videos`", read, name, save("a.json", "[]"), error=FileNotFoundError, videos=tmp_path / "nowhere")
    refused("must contain", read, name, save("a.json", "[]"), template="When?")


def test_data_check_reads_a_layout_and_its_videos(film, save, tmp_path):
    film("AO8RW.mp4")
    path = save("sta.txt", "AO8RW 0.4 2.0##a person sits down.\n")
    assert datatools.check(str(path), ["use=charades_sta"]).endswith("1 rows, 0 problems")
    assert datatools.check(str(path), ["use=charades_sta", f"videos={tmp_path}", "max_bad=2"]).endswith("1 rows, 0 problems")
    refused("folder", datatools.check, str(path), ["use=charades_sta", "folder=x"])


def test_any_prompt_with_a_video_is_looked_at(film, tmp_path):
    film("a.mp4")
    whole = Video(str(tmp_path / "a.mp4"))
    (tmp_path / "cut.mp4").write_bytes((tmp_path / "a.mp4").read_bytes()[:-200])
    Image.new("RGB", (20, 10)).save(tmp_path / "b.png")
    prompts = [
        Prompt("1", "When?", (whole,), Interval(1, 4.5)),
        Prompt("2", "When?", (whole,), Interval(1, 6)),
        Prompt("3", "When?", (Video(str(tmp_path / "cut.mp4")),)),
        Prompt("4", "When?", (Video(str(tmp_path / "gone.mp4")),)),
        Prompt("5", "<image> and <video>", (str(tmp_path / "b.png"), whole)),
        Prompt("6", "<video> and <video>", (whole,)),
    ]
    report = check(prompts)
    assert [problem.place for problem in report.problems] == ["row 2", "row 3", "row 4", "row 6"]
    told = [problem.text for problem in report.problems]
    assert "outside the clip, which lasts 4.00" in told[0] and "cut.mp4" in told[1] and "gone.mp4" in told[2]
    assert "2 <video> markers for 1 videos" in told[3]


SENTENCES = ["a person sits down.", "with impossible times", "with none ## at all"]
UNLABELLED = {
    "charades_sta": "".join(f"v_a{times}##{said}\n" for times, said in zip((" 0.4 2.0", " 9 1", ""), SENTENCES, strict=True)),
    "activitynet_captions": {"v_a": {"sentences": SENTENCES, "timestamps": [[0.4, 2.0], [9, 1], None]}},
}
"""Data set -> a file that may be read without labels, and not with them."""


@pytest.mark.parametrize("name", UNLABELLED)
def test_data_without_labels_has_no_answers(name, film, save):
    film("v_a.mp4")
    path = save("rows", UNLABELLED[name])
    prompts = read(name, path, labelled=False)
    assert [prompt.columns["question"] for prompt in prompts] == SENTENCES
    assert all(prompt.answer is None and prompt.columns["duration"] == 4.0 for prompt in prompts)
    assert not any("0.4" in repr(prompt) for prompt in prompts), "no label is left to be seen"
    assert check(prompts).ok
    refused("fix or remove these rows", read, name, path)


def test_rows_without_a_sentence_are_named_without_labels_too(film, save):
    film("v_a.mp4")
    refused("the question is empty", read, "charades_sta", save("sta.txt", "v_a##  \n"), labelled=False)
    unsaid = save("train.json", {"v_a": {"timestamps": [[0, 1]]}})
    refused("sentences", read, "activitynet_captions", unsaid, labelled=False)


OPTIONS = ("a dog", "a cat", "a cow", "a hen")


def ask(i: int = 0, answer: object = "B", question: str = "What is he holding now?", options=OPTIONS) -> VideoRow:
    return VideoRow(f"row {i}", "clip", question, "multiple choice", answer, options, {"kept": 7})


def test_what_was_right_is_the_only_wrong_one():
    sizes, places = set(), set()
    for row in map(Inversion(1.0), map(ask, range(60))):
        letters = str(row.answer).split(",")
        right = {row.options[LETTERS.index(letter)] for letter in letters}
        assert set(row.options) - right == {"a cat"}
        assert right <= set(OPTIONS) and letters == sorted(letters)
        assert row.question == "What isn't he holding now?"
        assert (row.id.partition(" ")[0], row.media, row.columns) == ("row", "clip", {"kept": 7, "inverted": True})
        sizes.add(len(right))
        places.add(row.options.index("a cat"))
    assert sizes == {1, 2, 3}
    assert places == {0, 1, 2, 3}


def test_about_half_are_inverted_and_always_the_same_ones():
    rows = [ask(i) for i in range(200)]
    some = [*map(Inversion(), rows)]
    changed = [one.id for one in some if one.columns.get("inverted")]
    assert 70 < len(changed) < 130
    assert [one for one in some if one.id not in changed] == [row for row in rows if row.id not in changed]
    assert [*map(Inversion(), rows[50:60])] == some[50:60]
    assert [*map(Inversion(seed=1), rows)] != some
    assert [*map(Inversion(0.0), rows)] == rows


@pytest.mark.parametrize(
    "row",
    [
        ask(answer="A,C"), ask(answer="E"), ask(answer=""), ask(answer=2), ask(question="Why?"),
        ask(question="Who broke the vase?"), ask(question="How many are there?"), ask(answer="A", options=("one",)),
        ask(answer="3", options=()),
    ],
)  # fmt: skip
def test_questions_that_cannot_be_turned_round_stay(row: VideoRow):
    assert [Inversion(1.0, seed)(row) for seed in range(20)] == [row] * 20


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), float("inf")])
def test_a_share_is_a_share(share: float):
    refused(r"Inversion.probability is .*: it must be .*0 to 1", Inversion, share)


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """A folder with a clip and thirty questions about it in the three layouts."""
    write_mp4(tmp_path / "clip.mp4", np.full((10, 32, 32, 3), 60, np.uint8), 5)
    numbers = range(30)
    next_rows = [
        {"video_id": "clip", "question": "what is he holding", "answer": "a cat", "qid": i, "type": "CW"} for i in numbers
    ]
    extra = {f"a{i}": option for i, option in enumerate((*OPTIONS, "a fox"))}
    with (tmp_path / "next_gqa.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*next_rows[0], *extra])
        writer.writeheader()
        writer.writerows({**row, **extra} for row in next_rows)
    choices = [{"choice": option, "answer": "correct" if option == "a cat" else "wrong"} for option in OPTIONS]
    questions = [{"question_type": "explanatory", "question": "What is he holding?", "choices": choices} for _ in numbers]
    (tmp_path / "clevrer.json").write_text(json.dumps([{"video_filename": "clip.mp4", "questions": questions}]))
    r1 = {"problem": "What is he holding?", "problem_type": "multiple choice", "options": [*OPTIONS], "path": "clip.mp4"}
    rows = [{**r1, "problem_id": i, "solution": "<answer>B</answer>", "data_type": "video"} for i in numbers]
    (tmp_path / "video_r1.json").write_text(json.dumps(rows))
    return tmp_path


FILES = {"next_gqa": "next_gqa.csv", "clevrer": "clevrer.json", "video_r1": "video_r1.json"}


def right(prompt: Prompt) -> set[str]:
    """The right options, from the letters of the answer and the lines of the text."""
    lines = {line[0]: line[3:] for line in prompt.text.splitlines() if line[1:3] == ". "}
    assert tuple(lines.values()) == prompt.columns["options"]
    return {lines[letter] for letter in str(prompt.answer).split(",")}


@pytest.mark.parametrize("name", FILES)
def test_data_sets_invert_what_they_ask(name: str, videos: Path):
    read = load(name, "datasets")
    plain, some = read(videos / FILES[name]), read(videos / FILES[name], invert=0.5)
    changed = [prompt for prompt in some if prompt.columns.get("inverted")]
    assert 5 < len(changed) < 25 and [prompt.id for prompt in some] == [prompt.id for prompt in plain]
    for before, after in zip(plain, some, strict=True):
        assert right(before) == {"a cat"}
        if after not in changed:
            assert after == before
            continue
        assert "isn't he holding" in after.text and "all right options" in after.text
        assert right(after) and "a cat" in set(after.columns["options"]) - right(after)
    assert read(videos / FILES[name], invert=0.0) == plain
    template = read(videos / FILES[name], invert=1.0, template="Look: {question}")[0]
    assert template.text.lower().startswith("look: what isn't he holding")


def test_spans_cannot_be_inverted_and_an_inverted_row_is_still_checked(videos: Path):
    (videos / "spans.json").write_text("{}")
    with pytest.raises(ValueError, match=r"ask = 'when' asks for spans.*set invert = 0 or ask = 'which'"):
        load("next_gqa", "datasets")(videos / "next_gqa.csv", spans=videos / "spans.json", ask="when", invert=0.5)
    file = videos / "next_gqa.csv"
    file.write_text(file.read_text().replace("holding,a cat", "holding,a bird"))
    refused(r"next_gqa\.csv:2: the answer 'a bird' is none of the options", load("next_gqa", "datasets"), file, invert=1.0)


NEGATIONS = {
    "what color is the cylinder?": "what color isn't the cylinder?",
    "Why did the boy pick up the toy?": "Why didn't the boy pick up the toy?",
    "what did the girl do after she sat down": "what didn't the girl do after she sat down",
    "What is the man holding?": "What isn't the man holding?",
    "what was the lady doing when the dog ran in?": "what wasn't the lady doing when the dog ran in?",
    "how did the baby get down from the chair?": "how didn't the baby get down from the chair?",
    "where are the people sitting?": "where aren't the people sitting?",
    "Which of the following is responsible for the collision?": "Which of the following isn't responsible for the collision?",
    "What will happen next?": "What won't happen next?",
    "Which event will happen if the red sphere is removed?": "Which event won't happen if the red sphere is removed?",
    "Without the gray cube, what will happen?": "Without the gray cube, what won't happen?",
    "If the cylinder is removed, which event will happen?": "If the cylinder is removed, which event won't happen?",
    "When the ball hits the cube, what does the cube do?": "When the ball hits the cube, what doesn't the cube do?",
    "when did the man stop?": "when didn't the man stop?",
    "In the video, what is he doing?": "In the video, what isn't he doing?",
    "In which room was the woman cooking?": "In which room wasn't the woman cooking?",
    "what has the man done with the cup?": "what hasn't the man done with the cup?",
    "Why were the children laughing while they were running?": "Why weren't the children laughing while they were running?",
    "what can the robot reach?": "what can't the robot reach?",
    "Which shape would the sphere hit first?": "Which shape wouldn't the sphere hit first?",
    "What should the player do after the whistle?": "What shouldn't the player do after the whistle?",
    "whose bag was stolen?": "whose bag wasn't stolen?",
    "To whom is the man talking?": "To whom isn't the man talking?",
    "what have the dogs been chasing?": "what haven't the dogs been chasing?",
    "when the man who is tall sits, what is he holding?": "when the man who is tall sits, what isn't he holding?",
}
KEPT = (
    "What's the man doing?", "Who broke the vase?", "what happens after the ball is thrown?", "How many balls are there?",
    "Is the man happy?", "Which of the following will not happen?", "Why isn't he running?", "Who has the ball?",
    "who did it?", "what do you think the man is doing?", "Why the man ran when the dog was barking?",
    "which man that is sitting will leave?", "what may he do?", "Describe what is happening.", "why?",
)  # fmt: skip


@pytest.mark.parametrize("question", NEGATIONS)
def test_the_auxiliary_of_the_main_clause_is_negated_and_nothing_twice(question: str):
    negated = NEGATIONS[question]
    assert negate(question) == negated and negate(negated) is None
    pairs = [(a, b) for a, b in zip(question.split(), negated.split(), strict=True) if a != b]
    assert len(pairs) == 1 and NEGATED[pairs[0][0]] == pairs[0][1]


@pytest.mark.parametrize("question", KEPT)
def test_what_has_no_plain_negation_stays(question: str):
    assert negate(question) is None
