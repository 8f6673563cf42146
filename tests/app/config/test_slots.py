"""Parts in the wrong slot are refused with the slot they fit; shipped ones by their folder, the user's own by their signature."""

import json
import shlex
from itertools import combinations
from pathlib import Path

import datasets
import pytest

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.config.slots import SLOTS, kinds, place
from mmrl.app.config.tasks import EXAMPLES, SCORING, TASKS, one_line
from mmrl.app.plugins.resolve import listing
from mmrl.flow.schedules import RandomSubset
from mmrl.policies.flow.settings import FlowPolicyConfig

OWN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Bonus:
    size: float = 1.0
    reads = ()

    def __call__(self, scores, rollouts, frozen): ...

@dataclass(frozen=True)
class Even:
    reads = ()
    scope = "action"

    def __call__(self, batch, counts): ...

@dataclass(frozen=True)
class Bare:
    def __call__(self, batch, counts): ...

@dataclass(frozen=True)
class OtherNames:
    def __call__(self, points, rows): ...

@dataclass(frozen=True)
class Reward:
    def __call__(self, group): ...

class Plain:
    def __init__(self, size=1.0):
        self.size = size

    def __call__(self, scores, rollouts): ...

class Careful:
    def __init__(self, prompts, seed, ease=1.0): ...
    def draw(self, num_prompts): ...

def advantage(scores, rollouts, size): ...

def mask(rollouts): ...
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)


def load(*words: str) -> Resolved:
    return configs.load("tiny/image", words)


def test_every_shipped_part_has_one_slot():
    for one, other in combinations(SLOTS, 2):
        assert not set(kinds(one)) & set(kinds(other)), (one, other)
    assert all(kinds(slot) for slot in SLOTS)
    assert {"TokenMean", "SequenceMean"} <= set(kinds("aggregation"))
    assert {"RolloutCorrection", "HighEntropy"} <= set(kinds("importance"))
    assert set(kinds("sampler")) == {
        "Balanced",
        "Bandit",
        "Curriculum",
        "Mixture",
        "NearestValue",
        "Prioritized",
        "Shuffled",
        "Streamed",
        "Thompson",
        "VarianceAware",
    }


def test_every_slot_is_a_field_or_a_table():
    assert [slot for slot in SLOTS if not hasattr(Algorithm(), slot)] == ["sampler"]
    assert [place(slot) for slot in ("advantage", "shaping", "sampler")] == [
        "[algorithm.advantage]",
        "[[algorithm.shaping]]",
        "[sampler]",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ['algorithm.shaping=[{use="mine.py:Bonus", size=2.0}]'],
        ["algorithm.aggregation.use=mine.py:Even"],
        ['algorithm.importance=[{use="mine.py:Even"}]'],
        ["algorithm.advantage.use=mine.py:OtherNames"],
        ["algorithm.advantage.use=mine.py:Plain", "algorithm.advantage.size=2"],
        ["algorithm.advantage.use=mine.py:advantage", "algorithm.advantage.size=2"],
        ['algorithm.masks=[{use="mine.py:mask"}]'],
    ],
    ids=lambda words: words[0],
)
def test_ones_own_part_in_its_slot(words: list[str]):
    assert "mine.py" in str(load(*words).config.algorithm.uses)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("parts/train.jsonl", "parts/val.jsonl", "boxes.jsonl", "edits/train.jsonl"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("")
    return tmp_path


def data_of(task: str, data: str, *words: str, held_out: str | None = None) -> tuple[object, object]:
    """[data] and [evaluation.data] as name and settings."""
    config = one_line(task, "m", data, ["iou"], words, held_out).config
    found = [None if one is None else (one.use, dict(one.args)) for one in (config.data, config.evaluation.data)]
    return found[0], found[1]


def test_evaluations_come_with_held_out_prompts_only(folder: Path):
    often = [one_line("grounding", "m", data, ["iou"], ["steps=40"]).config for data in ("parts/train.jsonl", "boxes.jsonl")]
    assert [(one.save_every, one.evaluate_every) for one in often] == [(0, 4), (0, 0)]


def test_clips_are_drawn_by_a_word(folder: Path):
    policy = one_line("t2v", "m", "parts/train.jsonl", ["smooth_motion"], []).config.policy
    assert isinstance(policy, FlowPolicyConfig) and (policy.frames, policy.width, policy.height) == (33, 448, 256)


def test_sounds_are_drawn_by_a_word(folder: Path):
    config = one_line("t2a", "m", "parts/train.jsonl", ["band_energy"], []).config
    assert isinstance(config.policy, FlowPolicyConfig) and (config.policy.seconds, config.policy.frames) == (10.0, 1)
    schedule = config.algorithm.algorithm.schedule
    assert isinstance(schedule, RandomSubset) and min(schedule.candidates) > schedule.num_steps / 2


def test_held_out_prompts_lie_beside_those_to_train_on(folder: Path):
    train, val = ({"path": f"parts/{name}.jsonl"} for name in ("train", "val"))
    assert data_of("grounding", "parts/train.jsonl") == (("grounding_jsonl", train), ("grounding_jsonl", val))
    whole = {"path": "parts", "split": "train"}, {"path": "parts", "split": "val"}
    assert data_of("grounding", "parts") == (("grounding_jsonl", whole[0]), ("grounding_jsonl", whole[1]))
    assert data_of("edit", "edits") == (("edits", {"path": "edits", "split": "train"}), None)
    assert data_of("grounding", "boxes.jsonl") == (("grounding_jsonl", {"path": "boxes.jsonl"}), None)
    Path("train").mkdir()
    Path("train/boxes.jsonl").touch()
    assert data_of("grounding", "train/boxes.jsonl")[1] is None, "the name of the file counts, not its folder's"


def test_held_out_prompts_that_are_named_come_first(folder: Path):
    assert data_of("grounding", "parts/train.jsonl", held_out="boxes.jsonl")[1] == ("grounding_jsonl", {"path": "boxes.jsonl"})
    assert data_of("grounding", "parts/train.jsonl", "evaluation.data.use=shapes")[1] == ("shapes", {})
    assert data_of("grounding", "boxes.jsonl", held_out="digits_grounding")[1] == ("digits_grounding", {})
    with pytest.raises(FileNotFoundError, match=r"--held-out gone.jsonl is no file"):
        one_line("grounding", "m", "boxes.jsonl", ["iou"], [], "gone.jsonl")


def test_clips_are_read_by_their_layout(folder: Path):
    Path("train.txt").write_text("AO8RW 0.0 6.9##a person puts a book on a shelf.\n")
    Path("captions.json").write_text(json.dumps({"v_a": {"timestamps": [[0.0, 1.0]], "sentences": ["a"]}}))
    Path("rows.jsonl").write_text('{"problem": "What?", "path": "a.mp4"}\n')
    names = [
        one_line("video", "m", name, ["by_type"], []).config.data.use for name in ("train.txt", "captions.json", "rows.jsonl")
    ]
    assert names == ["charades_sta", "activitynet_captions", "video_r1"]


@pytest.mark.parametrize(("steps", "every"), [(100, 10), (7, 1), (500, 50)])
def test_every_run_is_saved_and_evaluated(folder: Path, steps: int, every: int):
    config = one_line("grounding", "m", "parts/train.jsonl", ["iou"], [f"steps={steps}"]).config
    assert config.saves_by_time and config.evaluate_every == every
    words = [f"steps={steps}", "checkpoint.keep_best=eval/total"]
    assert one_line("grounding", "m", "parts/train.jsonl", ["iou"], words).config.save_every == every
    said = one_line("grounding", "m", "parts/train.jsonl", ["iou"], ["save_every=3"])
    assert said.config.save_every == 3 and said.origin(("evaluate_every",)) == "task grounding"


@pytest.mark.parametrize(("words", "form"), [([], "direct"), (["policy.answer_format=think"], "think")])
def test_the_form_that_prompts_ask_for_is_the_one_that_is_rewarded(words: list[str], form: str, folder: Path):
    config = one_line("grounding", "m", "boxes.jsonl", ["iou", "format=0.1"], words).config
    assert [reward.args for reward in config.reward] == [{}, {"template": form}]
    said = one_line("grounding", "m", "boxes.jsonl", ["format"], ["reward.0.template=json"]).config
    assert said.reward[0].args == {"template": "json"}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_an_example_that_resolves(task: str, folder: Path):
    words = shlex.split(EXAMPLES[task])
    given = {name: [words[i + 1] for i, word in enumerate(words) if word == f"--{name}"] for name in ("model", "data", "reward")}
    (data,), (model,) = given["data"], given["model"]
    Path(data).write_text("")
    config = one_line(task, model, data, given["reward"], []).config
    assert config.policy.model == model and len(config.reward) == (0 if task in ("sft", *SCORING) else 2)
    if task in ("sft", *SCORING):
        return
    with pytest.raises(ValueError, match=f"--task {task} needs --reward, for example mmrl train --task {task} "):
        one_line(task, model, data, [], [])


def test_the_data_sets_of_tasks_are_shipped():
    assert {table["data"]["use"] for table in TASKS.values()} <= {listed.name for listed in listing("datasets")}


def test_a_split_of_any_folder_is_held_out(folder: Path):
    data = datasets.Dataset.from_list([{"question": "1 + 1?", "answer": "2"}])
    datasets.DatasetDict({"train": data, "other": data, "validation": data}).save_to_disk("saved")
    for name in ("yolo/labels/train", "yolo/labels/val", "voc/ImageSets/Main", "pictures/train", "pictures/test"):
        Path(name).mkdir(parents=True)
    for name in ("voc/ImageSets/Main/train.txt", "voc/ImageSets/Main/trainval.txt", "pictures/train/metadata.csv"):
        Path(name).write_text("file_name,text\n")
    held_out = {"saved": "validation", "yolo": "val", "voc": None, "pictures": "test"}
    tasks = {"saved": "qa", "yolo": "grounding", "voc": "grounding", "pictures": "t2i"}
    for name, split in held_out.items():
        use = str(TASKS[tasks[name]]["data"]["use"])
        evaluated = None if split is None else (use, {"path": name, "split": split})
        assert data_of(tasks[name], name) == ((use, {"path": name, "split": "train"}), evaluated)


def test_a_folder_of_pictures_goes_where_the_data_set_wants_it(folder: Path):
    Path("train.txt").write_text("AO8RW 0.0 6.9##a person puts a book on a shelf.\n")
    Path("spans.jsonl").write_text('{"video": "a.mp4", "question": "when?", "span": [0, 1]}\n')
    roots = {"boxes.jsonl": ("grounding", "image_root"), "train.txt": ("video", "videos"), "spans.jsonl": ("video", "image_root")}
    for file, (task, key) in roots.items():
        config = one_line(task, "m", file, ["iou"], [], held_out=file, image_root=folder).config
        assert config.evaluation.data is not None
        assert config.data.args[key] == config.evaluation.data.args[key] == str(folder)
        assert config.data.use == {"train.txt": "charades_sta", "spans.jsonl": "qa_jsonl"}.get(file, "grounding_jsonl")


def test_teaching_asks_for_no_reward_and_takes_one_to_evaluate_by(folder: Path):
    config = one_line("sft", "m", "parts/train.jsonl", [], []).config
    assert config.algorithm.algorithm.unscored and config.reward == () and config.evaluation.data is None
    scored = one_line("sft", "m", "parts/train.jsonl", ["by_type"], []).config
    assert scored.evaluation.data is not None and [reward.use for reward in scored.reward] == ["by_type"]
    with pytest.raises(ValueError, match=r"evaluation.data has prompts to evaluate on, and no reward says how good an answer is"):
        one_line("sft", "m", "parts/train.jsonl", [], [], "parts/val.jsonl")
