"""Every layout is read by every command, with the same option for the folder of pictures, and what they write may move."""

from pathlib import Path
from typing import Any

import pytest

from mmrl.algorithms.miners import Difficulty
from mmrl.answers.boxes.box import Box
from mmrl.app.chain import rows as filtering
from mmrl.app.commands.data import CheckOptions, ConvertOptions, SplitOptions, check, convert_file, split_by_shares
from mmrl.app.config.data import DataConfig
from mmrl.app.config.tasks import OF_CLIPS, one_line
from mmrl.app.plugins.resolve import load
from mmrl.app.run.build import load_data
from mmrl.core.samples import kind_of
from mmrl.core.types import Group, MediaSize, Prompt, Sample
from mmrl.data.files.pictures import content_hash
from mmrl.data.layouts.source import guess
from mmrl.data.layouts.table import LAYOUTS
from tests.support import layout_files

TASKS = {"grounding_jsonl": "grounding", "qa_jsonl": "qa", "edits": "edit", "prompts": "t2i", "pictures": "t2i"} | dict.fromkeys(
    OF_CLIPS, "video"
)
ALL = layout_files.LAYOUTS | layout_files.KINDS


class Case:
    """A layout's file, the folder of its pictures, and the prompts that a run has of it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        media = layout_files.lay_media(folder)
        self.path = ALL[name](folder)
        self.guess = guess(self.path)
        self.root = None if self.guess.data_set == "prompts" else media
        task = TASKS[self.guess.data_set]
        resolved = one_line(task, "m", str(self.path), ["iou"], [], image_root=None if task == "t2i" else self.root)
        self.data = resolved.config.data
        self.trained = list(load_data(self.data, ("data",), resolved.table))

    def written(self, *files: Path) -> list[Prompt]:
        """The prompts of files whose folder was moved, without the pictures where they were."""
        (self.folder / "media").rename(self.folder / "gone")
        (self.folder / "out").rename(self.folder / "moved")
        moved = [self.folder / "moved" / file.name for file in files]
        return [prompt for file in moved for prompt in load(guess(file).data_set, "datasets")(path=file)]


@pytest.fixture(params=ALL)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return Case(request.param, tmp_path)


def facts(prompts: list[Prompt]) -> list[tuple[str, str]]:
    """Questions or prompts, and answers, in order of these; templates of data sets differ."""
    texts = [(str(prompt.columns.get("question", prompt.text)), repr(in_pixels(prompt.answer))) for prompt in prompts]
    # a tuple of one span is that span
    return sorted((text, answer.removeprefix("(").removesuffix(",)")) for text, answer in texts)


def in_pixels(answer: Any) -> Any:
    """Boxes as pixels of the pictures, which are 64 x 48, rounded as they are written."""
    if isinstance(answer, tuple):
        return tuple(map(in_pixels, answer))
    return answer.to("pixel", MediaSize(64, 48, 64, 48)).rounded(2) if isinstance(answer, Box) else answer


def shown(prompts: list[Prompt]) -> list[str]:
    """The pictures' pixels and the clips' bytes."""
    files = [kind_of(media).file_of(media) for prompt in prompts for media in prompt.media]
    clips = [Path(file).read_bytes().hex() for file in files if file is not None and file.endswith(".mp4")]
    pictures = [media for prompt in prompts for media in prompt.media if kind_of(media).name == "image"]
    return sorted([*clips, *map(content_hash, pictures)])


def test_every_layout_is_in_the_list():
    assert layout_files.LAYOUTS.keys() == LAYOUTS.keys()


def test_layouts_are_what_they_are_called(tmp_path: Path):
    for name, make in layout_files.LAYOUTS.items():
        (tmp_path / name / "media").mkdir(parents=True)
        assert guess(make(tmp_path / name)).layout == name


def test_train_reads_it(case: Case):
    assert len(case.trained) == (2 if case.guess.layout != "refcoco_lmms" else 4)


def test_check_reads_it(case: Case):
    assert "0 problems" in check(str(case.path), [], CheckOptions(image_root=case.root))


def test_convert_reads_it_and_its_output_moves(case: Case):
    before = shown(case.trained), facts(case.trained)
    out = case.folder / "out/rows.jsonl"
    assert "lie outside" not in convert_file(case.path, out, [], ConvertOptions(image_root=case.root, copy=True))
    after = case.written(out)
    assert (shown(after), facts(after)) == before


def test_split_reads_it_and_its_parts_move(case: Case):
    before = shown(case.trained), facts(case.trained)
    split_by_shares(case.path, case.folder / "out", ["a=0.5", "b=0.5"], SplitOptions(0, case.root, None, copy=True))
    after = case.written(Path("a.jsonl"), Path("b.jsonl"))
    assert (shown(after), facts(after)) == before


def test_filter_reads_it(case: Case, monkeypatch: pytest.MonkeyPatch):
    """Without a model: every prompt is right every other time."""
    drawn = Group(0, Prompt(""), (Sample("a"), Sample("b")))
    monkeypatch.setattr(filtering, "build", lambda resolved: None)
    monkeypatch.setattr(filtering, "samples_with_totals", lambda job, requests: [(drawn, [0.0, 1.0])])
    assert isinstance(case.data, DataConfig)
    words = [f"data={{use = '{case.data.use}', path = '{case.path}'}}", "evaluate_every=0", "evaluation={}"]
    words += ["data.split=train"] if case.data.args.get("split") else []
    out = case.folder / "out/rows.jsonl"
    filtering.filter_data("tiny/image", out, words, Difficulty(2), None if case.data.use == "prompts" else case.root)
    after = list(load(guess(out).data_set, "datasets")(path=out))
    assert (shown(after), facts(after)) == (shown(case.trained), facts(case.trained))
