import pytest
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.core.types import Prompt
from mmrl.data.validate import FILE_ROW, Report, check


class Lazy:
    """Rows by number, like a torch Dataset. Raises when a prompt is asked for, as a data set does that reads late."""

    def __init__(self, prompts):
        self.prompts = prompts

    def __len__(self):
        return len(self.prompts)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index):
        if self.prompts[index] is None:
            raise ValueError("this row is bad")
        return self.prompts[index]


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
    report = check(
        Lazy(
            [
                prompt(1, cat, answer=Box(0, 0, 65, 48), **{FILE_ROW: "boxes.jsonl:12"}),
                prompt(1, cat),
                None,
                prompt(2, str(broken)),
                prompt(3, str(tmp_path / "dog.mp4")),
                prompt(4, cat, text="<image> <image>"),
                prompt(5, text=" "),
                prompt(6, cat),
            ]
        )
    )
    says = [
        "outside its space",
        "'1' was used before",
        "this row is bad",
        "cut short",
        "dog.mp4",
        "2 <image> markers",
        "neither text",
    ]
    places = ["boxes.jsonl:12", "row 2", "row 3", "row 4", "row 5", "row 6", "row 7"]
    assert [problem.place for problem in report.problems] == places
    assert all(part in problem.text for part, problem in zip(says, report.problems, strict=True))
    with pytest.raises(ValueError, match=r"boxes\.jsonl:12: box"):
        report.raise_if_bad()


def test_a_stream_ends_at_a_row_that_cannot_be_built():
    report = check(iter(Lazy([prompt(1), prompt(2), None, prompt(3)])))
    assert report.num_rows == 2
    assert str(report.problems[0]) == "the row after row 2: this row is bad"


def test_a_text_that_is_no_text():
    wrong = prompt(1)
    object.__setattr__(wrong, "text", None)
    assert "must be a string" in str(check([wrong]))


def test_nothing_is_a_problem():
    assert "holds no rows" in str(check([]))
    with pytest.raises(ValueError, match="x: holds no rows"):
        Report("x").raise_if_bad()
