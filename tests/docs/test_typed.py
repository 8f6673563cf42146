"""What pages tell a reader to type works as typed, on tiny models in place of the big ones, in an empty folder."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from PIL import Image

from mmrl.lab.tiny.text.vlms import build
from mmrl.policies.shared.quantized.table import tensors_in
from tests.docs.test_blocks import block_with, parsed, ran
from tests.support.blocks import ROOT, blocks, commands
from tests.support.forked import run

CARDS, DRIVE, FIRST_DAY = (f"docs/how_to/{name}.md" for name in ("cards", "drive", "first_day"))


def lines_of(page: str, inside: str | None = None) -> list[list[str]]:
    """The commands of a page, or of those blocks that stand in this text, in their order."""
    shell = [block.text for block in blocks() if block.doc == page and block.language == "sh"]
    return [words for text in shell if inside is None or text in inside for words in commands(text)]


SMALL = [
    *("steps=1", "prompts_per_step=2", "algorithm.group_size=2", "policy.lora.rank=2", "policy.max_pixels=12544"),
    *("policy.sampling.max_new_tokens=4", "evaluate_every=0", "evaluation.num_prompts=2", "max_unparsed=1.0"),
    *("ratio_bound=1.0", "mean_ratio_bound=1.0"),
]
"""In bfloat16 a tiny model is too rough for the usual bounds."""


@pytest.mark.slow
def test_cards_are_run_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The commands under "A 7B model on a card of 12 or 16 GB", with a tiny model of the same class."""
    monkeypatch.chdir(tmp_path)
    model = str(build("qwen2_5_vl", tmp_path / "tiny"))
    (tmp_path / "data").mkdir()
    row = {"image": "a.png", "question": "which?", "box": [10, 20, 60, 50]}
    Image.new("RGB", (96, 64)).save("data/a.png")
    rows = [json.dumps({**row, "id": str(i), "split": split}) for i in range(4) for split in ("train", "val")]
    Path("data/refcoco.jsonl").write_text("\n".join(rows))
    said = dict[str, str]()
    for words in lines_of(CARDS):
        found = [model if word.startswith("Qwen/") else word for word in words[1:]]
        name, context = parsed([*found, *([f"policy.model={model}", *SMALL] if found[0] == "train" else [])])
        code, said[name] = ran(context)
        assert code == 0, words
    assert list(said) == ["plan", "cp", "train", "export"] and re.search(r"at most\s+[\d.]+", said["plan"])
    last = json.loads(Path("runs/mine/metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 1 and 'weights = "nf4"' in Path("runs/mine/config.toml").read_text()
    assert not any(name.endswith("absmax") for name in tensors_in(Path("mine").glob("*.safetensors")))


TEXT = (ROOT / DRIVE).read_text(encoding="utf-8")
KEYS = {name: set(re.findall(r"`(\w+)`", keys)) for name, keys in re.findall(r"^\| `mmrl (\w+)` \| (.*) \|$", TEXT, re.MULTILINE)}
LISTS = ("ls", "show")


def refuse(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Command -> the JSON that it printed."""
    found: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("driven"))
        for words in lines_of(DRIVE):
            if words[0] == "touch":
                Path(words[1]).touch()
                continue
            name, context = parsed(words[1:])
            code, output = ran(context)
            assert code == 0, words
            if "--json" in words:
                found[name] = json.loads(output, parse_constant=refuse)
        assert not Path("runs/first/checkpoint.request").exists()
    return found


def test_every_command_with_json_is_on_the_page(said: dict[str, object]):
    assert set(said) == set(KEYS) == {"ls", "show", "plan", "report", "eval", "compare", "ask"}


@pytest.mark.parametrize("name", [name for name in KEYS if name not in LISTS])
def test_the_page_names_the_keys(said: dict[str, object], name: str):
    found = said[name]
    assert isinstance(found, dict) and set(found) <= KEYS[name]


@pytest.mark.parametrize("name", LISTS)
def test_the_page_names_what_entries_have(said: dict[str, object], name: str):
    found = said[name]
    assert isinstance(found, list) and found
    assert KEYS[name] - {"file", "not_set", "document", "card", "parts", "label", "rewards"} <= set(found[0])


def test_an_entry_of_changes_has_what_the_page_says(said: dict[str, object]):
    compared = said["compare"]
    assert isinstance(compared, dict)
    words = TEXT.partition("An entry of `changes` has")[2].partition("\n\n")[0]
    assert set(compared["changes"][0]) == set(re.findall(r"`(\w+)`", words))


def test_numbers_are_those_of_the_run(said: dict[str, object]):
    report, evaluation = said["report"], said["eval"]
    assert isinstance(report, dict) and isinstance(evaluation, dict)
    assert report["steps"] == report["steps_wanted"] == 3
    assert report["training"]["reward/total"]["steps"] == [1, 2, 3] and len(report["training"]["loss"]["values"]) == 3
    assert evaluation["prompts"] == 2 and {one["figure"] for one in evaluation["numbers"]} >= {"Mean IoU", "Reward"}


JOBS = {"boxes": "1. Grounding", "pictures": "2. Pictures", "clips": "3. Clips"}
EXPECTED = {
    "boxes": ("iou", "model.safetensors"),
    "pictures": ("colourful", "model_index.json"),
    "clips": ("temporal_iou", "model.safetensors"),
}
"""Job -> a reward of it, and a file of its export."""
PROGRAM = """
import json, runpy, sys
from mmrl.app.cli import main
for words in json.loads(sys.argv[1]):
    print("$", *words, flush=True)
    if words[0] == "python":
        sys.argv = words[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
        continue
    sys.argv = words
    try:
        main()
    except SystemExit as left:
        if left.code:
            sys.exit(f"{words} left with {left.code}")
"""
"""The commands one after the other as the program `mmrl` runs them, in one process: the large libraries are loaded once."""


def page_commands(heading: str = "") -> list[list[str]]:
    """The commands of the first day, or of its chapter with this heading."""
    chapters = (ROOT / FIRST_DAY).read_text().split("\n## ")
    return lines_of(FIRST_DAY, "".join(chapter for chapter in chapters if chapter.startswith(heading)))


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which all jobs were done, and what they printed."""
    folder = tmp_path_factory.mktemp("day")
    (folder / "examples").symlink_to(ROOT / "examples")
    done = run("-c", PROGRAM, json.dumps(page_commands()), cwd=folder, variables=[{"MMRL_CACHE": str(folder / "cache")}])
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    return folder, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_job_runs_by_copying_its_commands(job: str, day: tuple[Path, str]):
    folder, said = day
    reward, file = EXPECTED[job]
    config = tomllib.loads((folder / "own" / f"{job}.toml").read_text())
    assert config["evaluate_every"] == 1 and "save_every" not in config
    assert config["evaluation"]["data"]["path"].startswith("own/")
    assert config["policy"]["dtype"] == "float32" and "lora" not in config["policy"]
    metrics = [json.loads(line) for line in (folder / "runs" / job / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if f"reward/{reward}" in line] == [1, 2]
    assert [line["step"] for line in metrics if f"eval/{reward}" in line] == [0, 1, 2]
    assert "million weights" in said and f"config: own/{job}.toml" in said
    assert (folder / "runs" / job / "report.html").stat().st_size > 1000
    assert list((folder / "own" / f"{job}_model").rglob(file))


def test_every_command_of_the_page_belongs_to_a_job():
    found = [words for heading in JOBS.values() for words in page_commands(heading)]
    assert page_commands() == [["python", "examples/toy_day.py", "own"], *found] and len(found) == 23


def test_a_newcomer_trains_by_the_line_with_an_own_reward(tmp_path: Path):
    """Of the README, beside its data file, its picture and its own reward."""
    row = json.loads(block_with("json", '"boxes"').text)
    (tmp_path / row["image"]).parent.mkdir()
    Image.new("RGB", (320, 400), "green").save(tmp_path / row["image"])
    (tmp_path / "boxes.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "mine.py").write_text(block_with("python", "def short").text)
    [line] = [words for words in lines_of("README.md") if "./mine.py:short=0.2" in words]
    small = ["steps=1", "prompts_per_step=1", "policy.sampling.max_new_tokens=4", "output=run"]
    done = run("-m", *["tiny:qwen3_vl" if word == "M" else word for word in line], *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert 0 < next(one for one in metrics if "reward/short" in one)["reward/short"] <= 1
