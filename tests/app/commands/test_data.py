"""`mmrl data filter` on a real, tiny model."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmrl.algorithms.miners import Difficulty
from mmrl.answers.boxes.box import Box
from mmrl.app.chain import rows as filtering
from mmrl.app.chain.rows import filter_data
from mmrl.app.cli.groups import data
from mmrl.app.commands.data import CheckOptions, ConvertOptions, SplitOptions, check, convert_file, split_by_shares
from mmrl.app.config.data import DataConfig
from mmrl.app.config.tasks import OF_CLIPS, one_line
from mmrl.app.plugins.resolve import load
from mmrl.app.run.build import load_data
from mmrl.core.samples import kind_of
from mmrl.core.types import Group, MediaSize, Prompt, Sample
from mmrl.data.files.pictures import content_hash
from mmrl.data.layouts.source import guess
from mmrl.data.layouts.table import LAYOUTS as KNOWN
from tests.support import layout_files
from tests.support.refused import refused
from tests.support.videos import even, write_video


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pictures; a reward that is always right for the first, never for the second, every other time for the third."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for i, color in enumerate(("red", "green", "blue")):
        Image.new("RGB", (60, 40), color).save(tmp_path / f"{color}.png")
        rows.append({"id": str(i), "image": f"{color}.png", "question": "Where?", "boxes": [[1, 2, 30, 20]], "note": color})
    Path("boxes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("lucky.py").write_text(
        "def lucky(group):\n"
        "    share = {'0': 1, '1': 0, '2': 2}[group.prompt.id]\n"
        "    return [float(share == 1 or (share == 2 and i % 2)) for i in range(len(group.samples))]\n"
    )
    file = tmp_path / "run.toml"
    file.write_text(
        '[algorithm]\npreset = "grpo"\n[policy]\nmodel = "tiny:qwen3_vl"\nsampling = {max_new_tokens = 2}\n'
        '[data]\nuse = "grounding_jsonl"\npath = "boxes.jsonl"\n[[reward]]\nuse = "./lucky.py"\n'
    )
    return file


def test_keeps_what_is_right_sometimes(config: Path):
    said = filter_data(str(config), Path("kept/easy.jsonl"), [], Difficulty(4))
    assert said == "1 of 3 prompts kept, 1 too easy, 1 too hard"
    [row] = map(json.loads, Path("kept/easy.jsonl").read_text().splitlines())
    blue = {"id": "2", "image": str(config.parent / "blue.png"), "question": "Where?", "note": "blue"}
    assert row == {**blue, "boxes": [[1, 2, 30, 20]], "space": "pixel"}


def test_a_file_without_prompts_is_not_written_and_a_prompt_without_scores_is_named(config: Path):
    said = r"no prompt is left for none.jsonl \(0 of 3 .*: the best total reward was 1, and 1.5 counts as right; set --success-at"
    refused(said, filter_data, str(config), Path("none.jsonl"), [], Difficulty(4, success_at=1.5))
    assert not Path("none.jsonl").exists()
    Path("silent.py").write_text("def silent(group):\n    return [None] * len(group.samples)\n")
    with pytest.raises(ValueError, match="prompt '0': only 0 of 4 samples have a total reward"):
        filter_data(str(config), Path("none.jsonl"), ["reward.0.use=./silent.py"], Difficulty(4))


ODD = {
    "Prompt('a', 'when?', (Video('a.mp4', start=0.1),), 'b')": "which is not a whole file: cut clips into files before",
    "Prompt('a', 'which?', answer={1, 2})": "which is no box, span, text or number and cannot be written as JSONL",
}


@pytest.mark.parametrize("prompt", ODD)
def test_what_no_file_can_say_is_refused_before_the_model_loads(prompt: str, config: Path):
    write_video(Path("a.mp4"), even(10))
    Path("odd.py").write_text(f"from mmrl import Prompt, Video\ndef load():\n    return [{prompt}]\n")
    with pytest.raises(ValueError, match=ODD[prompt]):
        filter_data(str(config), Path("out.jsonl"), ["data={use='./odd.py'}", "policy.model=nowhere"], Difficulty(2))


PARTS = [{"type": "image_url", "image_url": {"url": "RED"}}, {"type": "text", "text": "Which colour?"}]
TURNS = [{"from": "human", "value": "<image>\nHow many?"}, {"from": "gpt", "value": "3"}]
COCO = {
    "images": [{"id": 1, "file_name": "red.png", "width": 60, "height": 40}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 29, 18], "iscrowd": 0}],
    "categories": [{"id": 3, "name": "cat"}],
}
FILTERED = {
    "messages": (
        [{"id": "m", "messages": [{"role": "user", "content": PARTS}], "answer": "red"}],
        "qa_jsonl",
        {"question": "Which colour?", "answer": "red", "kind": "text"},
    ),
    "llava": (
        [{"id": "m", "image": "red.png", "conversations": TURNS}],
        "qa_jsonl",
        {"image": "red.png", "question": "How many?", "answer": "3", "kind": "number"},
    ),
    "coco": (COCO, "grounding_jsonl", {"image": "red.png", "boxes": [{"bbox": [1, 2, 30, 20], "label": "cat"}]}),
}
"""Layout -> what its file says, the data set that reads it, and entries of the line that is kept."""


@pytest.mark.parametrize("layout", FILTERED)
def test_other_peoples_layouts_are_kept_in_our_words(config: Path, layout: str, caplog: pytest.LogCaptureFixture):
    rows, data_set, line = FILTERED[layout]
    red = "data:image/png;base64," + base64.b64encode(Path("red.png").read_bytes()).decode()
    Path("rows.json").write_text(json.dumps(rows).replace("RED", red))
    words = [f"data.use={data_set}", "data.path=rows.json"]
    Path("lucky.py").write_text("def lucky(group):\n    return [float(i % 2) for i in range(len(group.samples))]\n")
    with caplog.at_level("INFO", "mmrl.loading"):
        said = filter_data(str(config), Path("kept.jsonl"), words, Difficulty(2))
    assert said.startswith("1 of 1 prompts kept") and f"is read as {layout}: " in caplog.text
    [row] = map(json.loads, Path("kept.jsonl").read_text().splitlines())
    assert {name: row[name] for name in line} == line
    loading = [record.getMessage() for record in caplog.records]
    # the prompts to filter, and those of the job that samples
    assert sum("is read as" in line for line in loading) == 2
    # what was kept is what the run had
    [before], [after] = (load(data_set, "datasets")(path) for path in ("rows.json", "kept.jsonl"))
    assert (after.text, after.answer, content_hash(after.media[0])) == (before.text, before.answer, content_hash(before.media[0]))


R1 = {"problem_id": 1, "problem": "what?", "data_type": "video", "path": "a.mp4"}
R1 |= {"problem_type": "free-form", "solution": "<answer>a</answer>"}
LAYOUTS = {
    "r1.json": (json.dumps([R1]), "video_r1"),
    "prompts.jsonl": ('{"prompt": "a red fox"}', "prompts"),
    "boxes.jsonl": ('{"image": "a.png", "question": "q", "box": [0, 0, 1, 1]}', "boxes"),
    "boxes.json": ('[{"image": "a.png", "prompt": "x", "question": "q", "bbox": [0, 0, 1, 1]}]', "boxes"),
}
"""Beside those that tests/support/layout_files.py writes."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_recognised(tmp_path: Path, name: str):
    text, known = LAYOUTS[name]
    (tmp_path / name).write_text(text)
    assert guess(tmp_path / name).layout == known
    assert guess(tmp_path / name).data_set == ("grounding_jsonl" if known == "boxes" else known)


@pytest.mark.parametrize(
    ("look", "name", "text", "said"),
    [
        (guess, "empty.jsonl", "", "has none of the layouts that are known"),
        (guess, "broken.json", "{", "is not JSON"),
        (guess, "other.csv", "a,b\n", "has none of the layouts that are known"),
        (lambda file: check(str(file), []), "broken.json", "{", "not JSON"),
        (lambda file: check(str(file), []), "r1.jsonl", json.dumps(R1) + "\n", r"r1\.jsonl:1: video .*a\.mp4"),
        (
            lambda file: check(str(file), []),
            "prompts.txt",
            "a fox\na dog\na fox\n",
            r"prompts\.txt:3: the row says exactly what prompts\.txt:1 says",
        ),
    ],
    ids=["empty", "broken", "other", "check of a broken one", "a video that is not there", "a prompt twice"],
)
def test_what_is_wrong_with_a_file_is_said_by_its_name(look: Callable[[Path], object], name: str, text: str, said: str, tmp_path):
    refused("does not exist", guess, tmp_path / name, error=FileNotFoundError)
    (tmp_path / name).write_text(text)
    refused(said, look, tmp_path / name)


def run(*words: str) -> str:
    result = CliRunner().invoke(data, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_words(tmp_path: Path):
    Image.new("RGB", (64, 48), "red").save(tmp_path / "a.png")
    turns = [{"from": "human", "value": "<image>Where?"}, {"from": "gpt", "value": [8, 6, 8, 12]}]
    row = {"image": "a.png", "chat": turns, "split": "train"}
    (tmp_path / "llava.json").write_text(json.dumps([row, row | {"split": "test", "chat": [*turns, *turns]}]))
    file, words = str(tmp_path / "llava.json"), ["columns.conversations=chat"]
    out = str(tmp_path / "right.jsonl")
    said = run("check", file, *words, "--as", "llava", "--boxes", "xywh", "--fix", out)
    assert "read as llava" in said and "1 rows written, 1 of 2 left out" in said and "1 x the conversation has .. quest" in said
    assert "read as boxes: a picture, a question and boxes in every row; guessed, --as NAME" in run("check", out)
    assert "1 rows, 0 problems" in run("check", out)
    assert json.loads(Path(out).read_text())["box"] == [8, 6, 16, 18]
    said = run("convert", file, str(tmp_path / "all.jsonl"), *words, "--turns", "each")
    assert "3 rows, 1 pictures" in said and "guessed, --as NAME says otherwise" in said
    (tmp_path / "p.txt").write_text("a fox\na dog\n")
    assert "; as you say)" in run("check", str(tmp_path / "p.txt"), "--as", "prompts")
    said = run("check", str(tmp_path / "p.txt"))
    assert "(read as prompts: " in said and "2 rows, 0 problems" in said


@pytest.mark.parametrize("name", ["boxes.jsonl", "prompts.jsonl"])
def test_half_a_character_is_found_by_file_and_line(tmp_path: Path, name: str):
    text = LAYOUTS[name][0].replace('"q"', '"q \\ud800"').replace("a red fox", "a red \\ud800").replace("1, 1]", "8, 8]")
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    (tmp_path / name).write_text(text + "\n")
    ended = CliRunner().invoke(data, ["check", str(tmp_path / name)])
    said = f"{ended.output} {ended.exception}"
    assert f"{name}:1" in said and "half of a character" in said


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


def test_layouts_are_all_in_the_list_and_what_they_are_called(tmp_path: Path):
    assert layout_files.LAYOUTS.keys() == KNOWN.keys()
    for name, make in layout_files.LAYOUTS.items():
        (tmp_path / name / "media").mkdir(parents=True)
        assert guess(make(tmp_path / name)).layout == name


def test_train_and_check_read_it(case: Case):
    assert len(case.trained) == (2 if case.guess.layout != "refcoco_lmms" else 4)
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
