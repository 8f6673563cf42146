import csv
import json
from pathlib import Path

import numpy as np
import pytest

from mmrl.app.plugins.resolve import load
from mmrl.core.types import Prompt
from mmrl.data.files.mp4 import write_mp4
from mmrl.data.inversion import LETTERS, NEGATED, Inversion, negate
from mmrl.data.video_rows import VideoRow
from tests.support.refused import refused

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


@pytest.mark.parametrize("name", FILES)
def test_data_sets_refuse_a_share_that_is_none(name: str, videos: Path):
    refused(r"probability is 2\.0: it must be 0 to 1", load(name, "datasets"), videos / FILES[name], invert=2.0)


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
