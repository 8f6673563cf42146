"""Data of a run: named in the line of a task, in several [[data]] tables with rewards of their own, and drawn by a sampler."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest

from mmrl import Prompt
from mmrl.algorithms.samplers.base import Shuffled, Streamed
from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.config.data import MixedData
from mmrl.app.config.plug_ins import Prompts, read_plug_ins
from mmrl.app.config.run import Resolved
from mmrl.app.config.tasks import EXAMPLES, SCORING, TASKS, one_line
from mmrl.app.inspect.show import description
from mmrl.app.plugins.resolve import listing
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir
from mmrl.flow.schedules import RandomSubset
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.refused import refused

pytestmark = pytest.mark.usefixtures("empty_desk")


@pytest.fixture
def folder(empty_desk: None, tmp_path: Path) -> Path:
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


def test_clips_and_sounds_are_drawn_by_a_word(folder: Path):
    policy = one_line("t2v", "m", "parts/train.jsonl", ["smooth_motion"], []).config.policy
    assert isinstance(policy, FlowPolicyConfig) and (policy.frames, policy.width, policy.height) == (33, 448, 256)
    config = one_line("t2a", "m", "parts/train.jsonl", ["band_energy"], []).config
    assert isinstance(config.policy, FlowPolicyConfig) and (config.policy.seconds, config.policy.frames) == (10.0, 1)
    schedule = config.algorithm.algorithm.schedule
    assert isinstance(schedule, RandomSubset) and min(schedule.candidates) > schedule.num_steps / 2


def test_held_out_prompts_that_are_named_come_first_and_others_lie_beside_those_to_train_on(folder: Path):
    train, val = ({"path": f"parts/{name}.jsonl"} for name in ("train", "val"))
    assert data_of("grounding", "parts/train.jsonl") == (("grounding_jsonl", train), ("grounding_jsonl", val))
    whole = {"path": "parts", "split": "train"}, {"path": "parts", "split": "val"}
    assert data_of("grounding", "parts") == (("grounding_jsonl", whole[0]), ("grounding_jsonl", whole[1]))
    assert data_of("edit", "edits") == (("edits", {"path": "edits", "split": "train"}), None)
    assert data_of("grounding", "boxes.jsonl") == (("grounding_jsonl", {"path": "boxes.jsonl"}), None)
    Path("train").mkdir()
    Path("train/boxes.jsonl").touch()
    assert data_of("grounding", "train/boxes.jsonl")[1] is None, "the name of the file counts, not its folder's"
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
    Path("rows.jsonl").write_text('{"image": "a.png", "question": "Where?", "box": [1, 2, 3, 4]}\n')
    said = r"is read as boxes .* grounding_jsonl \(--task grounding\), and --task video takes questions about clips"
    refused(said, one_line, "video", "m", "rows.jsonl", ["by_type"], [])


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
    assert TASKS[task]["data"]["use"] in [listed.name for listed in listing("datasets")]
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


ONE = 'use = "digits_grounding"\nsize = 6\n'
BOTH = f'[[data]]\nname = "a"\n{ONE}[[data]]\nname = "b"\n{ONE}asked = [3]\n'
WEIGHED = f'[[data]]\nname = "a"\nweight = 0.75\n{ONE}[[data]]\nname = "b"\nweight = 0.25\n{ONE}asked = [3]\n'
REST = """
steps = 3
prompts_per_step = 4
save_every = 1
algorithm = { preset = "grpo", group_size = 2 }
policy = { kind = "text", model = "tiny:qwen3_vl", sampling = { max_new_tokens = 4 } }
[[reward]]
use = "length"
high = 2
slope = 4
"""


def load(folder: Path, more: str = "", data: str = BOTH, *words: str) -> Resolved:
    (folder / "mix.toml").write_text(REST + more + data)
    return configs.load(str(folder / "mix.toml"), [f"output={folder / 'run'}", *words])


def states_of_samplers(resolved: Resolved, folder: Path) -> tuple[RunDir, list[Any]]:
    """A run, and its sampler's state after each of three steps; one that stopped after two ends alike."""
    run = run_training(resolved)
    states = [Checkpoints(run.checkpoints).load(step)["sampler"] for step in (1, 2, 3)]
    half = run_training(replace(resolved, config=replace(resolved.config, steps=2, output=str(folder / "half"))))
    train(TrainArguments(["steps=3"], resume=half.path))
    assert Checkpoints(RunDir.open(half.path).checkpoints).load(3)["sampler"] == states[2]
    return run, states


def test_a_single_table_is_a_source_too_and_rewards_are_of_known_ones(tmp_path: Path):
    job = build(load(tmp_path, data=f"[[data]]\n{ONE}"))
    assert {one.source for one in job.trainer.sampler.draw(4)} == {"digits_grounding"}
    with pytest.raises(ValueError, match=r"reward.1.sources names 'c': did you mean 'a'\? \(known: a, b\)"):
        load(tmp_path, '[[reward]]\nuse = "iou"\nsources = ["c"]\n')
    for more in ('[sampler]\nkind = "Thompson"\n', "[evaluation]\nnum_prompts = 0\n"):
        load(tmp_path, more)


def test_an_argument_called_name_is_written_with_an_underscore(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "from mmrl import Prompt\ndef load(name: str, size: int = 1):\n    return [Prompt(f'{name}0', 'hi')] * size\n"
    )
    data = f'[[data]]\nuse = "{tmp_path / "mine.py"}"\nname = "texts"\nname_ = "x"\n'
    resolved = load(tmp_path, data=data)
    assert build(resolved).trainer.sampler.draw(1)[0].id == "texts/x0"
    configs.save(resolved.config, tmp_path / "saved.toml")
    assert configs.load(str(tmp_path / "saved.toml")).config == resolved.config


def test_a_mixture_is_shown_and_saved_whole(tmp_path: Path):
    resolved = load(tmp_path, data=WEIGHED)
    assert isinstance(resolved.config.data, MixedData) and resolved.config.data.weights == {"a": 0.75, "b": 0.25}
    text = description(str(tmp_path / "mix.toml"), everything=True)
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("data.")}
    assert rows["data.1.weight"][:5] == ["0.25", "above", "0", "and", "at"] and rows["data.1.name"][0] == "b"
    assert rows["data.0.num_distractors"][:1] == ["1"]
    job = build(resolved)
    configs.save(job.config, tmp_path / "saved.toml")
    again = configs.load(str(tmp_path / "saved.toml")).config
    assert again == job.config and again.sampler.kind == "Mixture"


def test_sources_have_their_rewards_their_figures_and_go_on_where_they_stopped(tmp_path: Path):
    more = (
        '[[reward]]\nuse = "iou"\nsources = ["a"]\n[evaluation]\nnum_prompts = 4\n'
        f'[[evaluation.data]]\nname = "a"\n{ONE}[[evaluation.data]]\nname = "b"\n{ONE}asked = [3]\n'
    )
    run, states = states_of_samplers(load(tmp_path, more, WEIGHED, "checkpoint.keep=0"), tmp_path)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    [first] = [line for line in lines if "source/a/share" in line and line["step"] == 1]
    assert (first["source/a/share"], first["source/b/share"]) == (0.75, 0.25)
    assert first["reward/iou/na"] == 0.25, "no sample of the source b has this reward"
    [held] = [line for line in lines if "eval/source/a/iou" in line and line["step"] == 0]
    assert "eval/source/b/iou" not in held
    mean = (held["eval/source/a/total"] + held["eval/source/b/total"]) / 2
    assert mean == pytest.approx(held["eval/total"])
    assert [state["counts"] for state in states] == [{"a": 3, "b": 1}, {"a": 6, "b": 2}, {"a": 9, "b": 3}]


MINE = Path(__file__).parents[3] / "examples" / "my_sampler.py"
PROMPTS = [Prompt("a"), Prompt("b")]


def sampler(prompts: Prompts, *words: str) -> Any:
    return read_plug_ins(configs.load("tiny/image", words)).sampler(prompts, 3)


def test_samplers_are_chosen_by_data_unless_told():
    assert isinstance(sampler(PROMPTS), Shuffled)
    assert isinstance(sampler(iter(PROMPTS)), Streamed)
    chosen = sampler(PROMPTS, "sampler.kind=Streamed", "sampler.buffer_size=2")
    assert isinstance(chosen, Streamed) and (chosen.buffer_size, chosen.seed) == (2, 3)
    with pytest.raises(ValueError, match=r"Shuffled needs all prompts at once, and the data set is a stream: take"):
        sampler(iter(PROMPTS), "sampler.kind=Shuffled")


def test_show_says_where_a_sampler_comes_from_and_the_saved_config_which_was_taken(tmp_path: Path):
    text = description("tiny/image", ["sampler.kind=Streamed", "sampler.buffer_size=8"])
    rows = [line.split() for line in text.splitlines() if line.startswith("sampler.")]
    assert ["sampler.buffer_size", "8", "1", "to", "1048576", "command", "line"] in rows
    assert ["sampler.kind", "Streamed", "command", "line"] in rows
    job = build(configs.load("tiny/image"))
    configs.save(job.config, tmp_path / "saved.toml")
    again = configs.load(str(tmp_path / "saved.toml")).config
    assert again.sampler.kind == "Shuffled" and again == job.config


def test_a_sampler_of_ones_own_goes_on_where_its_run_stopped(tmp_path: Path):
    words = [f"sampler.use={MINE}:HardOnesMore", "sampler.ease=0.5", "save_every=1", "evaluation.num_prompts=0", "steps=3"]
    resolved = configs.load("tiny/image", [*words, f"output={tmp_path / 'whole'}", "checkpoint.keep=0"])
    run, states = states_of_samplers(resolved, tmp_path)
    assert f'use = "{MINE}:HardOnesMore"' in run.config_file.read_text() and "ease = 0.5" in run.config_file.read_text()
    assert [state["num_drawn"] for state in states] == [4, 8, 12] and states[0]["rewards"]
