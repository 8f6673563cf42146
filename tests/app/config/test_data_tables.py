"""Several [[data]] tables: read, refused, shown, saved, and trained with rewards of their own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmrl import Prompt
from mmrl.algorithms.samplers.base import Shuffled, Streamed
from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.config.data import MixedData
from mmrl.app.config.plug_ins import Prompts, read_plug_ins
from mmrl.app.config.run import Resolved
from mmrl.app.inspect.show import description
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir
from mmrl.training.checkpoints.save import Checkpoints

ONE = 'use = "digits_grounding"\nsize = 6\n'
BOTH = f'[[data]]\nname = "a"\nWEIGHT_A{ONE}[[data]]\nname = "b"\nWEIGHT_B{ONE}asked = [3]\n'
REST = """
steps = 3
prompts_per_step = 4
save_every = 1
[algorithm]
preset = "grpo"
group_size = 2
[policy]
kind = "text"
model = "tiny:qwen3_vl"
[policy.sampling]
max_new_tokens = 4
[[reward]]
use = "length"
high = 2
slope = 4
"""


def load(
    folder: Path, more: str = "", weights: tuple[str, str] = ("", ""), data: str = BOTH, words: tuple[str, ...] = ()
) -> Resolved:
    text = data.replace("WEIGHT_A", weights[0]).replace("WEIGHT_B", weights[1])
    (folder / "mix.toml").write_text(REST + more + text)
    return configs.load(str(folder / "mix.toml"), [f"output={folder / 'run'}", *words])


def weighed(a: float | None, b: float | None) -> tuple[str, str]:
    return "" if a is None else f"weight = {a}\n", "" if b is None else f"weight = {b}\n"


def test_rewards_are_of_known_sources(tmp_path: Path):
    with pytest.raises(ValueError, match=r"reward.1.sources names 'c': did you mean 'a'\? \(known: a, b\)"):
        load(tmp_path, '[[reward]]\nuse = "iou"\nsources = ["c"]\n')
    for more in ('[sampler]\nkind = "Thompson"\n', "[evaluation]\nnum_prompts = 0\n"):
        load(tmp_path, more)


def test_a_single_table_is_a_source_too(tmp_path: Path):
    job = build(load(tmp_path, data=f"[[data]]\n{ONE}"))
    assert {one.source for one in job.trainer.sampler.draw(4)} == {"digits_grounding"}


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
    resolved = load(tmp_path, weights=weighed(0.75, 0.25))
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
    resolved = load(tmp_path, more, weighed(0.75, 0.25), words=("checkpoint.keep=0",))
    run = run_training(resolved)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    [first] = [line for line in lines if "source/a/share" in line and line["step"] == 1]
    assert (first["source/a/share"], first["source/b/share"]) == (0.75, 0.25)
    assert first["reward/iou/na"] == 0.25, "no sample of the source b has this reward"
    [held] = [line for line in lines if "eval/source/a/iou" in line and line["step"] == 0]
    assert "eval/source/b/iou" not in held
    mean = (held["eval/source/a/total"] + held["eval/source/b/total"]) / 2
    assert mean == pytest.approx(held["eval/total"])
    states = [Checkpoints(run.checkpoints).load(step)["sampler"] for step in (1, 2, 3)]
    assert [state["counts"] for state in states] == [{"a": 3, "b": 1}, {"a": 6, "b": 2}, {"a": 9, "b": 3}]
    half = run_training(load(tmp_path, more, weighed(0.75, 0.25), words=("steps=2", f"output={tmp_path / 'half'}")))
    train(TrainArguments(["steps=3"], resume=half.path))
    assert Checkpoints(RunDir.open(half.path).checkpoints).load(3)["sampler"] == states[2]


ROOT = Path(__file__).parents[3]
MINE = ROOT / "examples" / "my_sampler.py"
PROMPTS = [Prompt("a"), Prompt("b")]
STREAM = """
from mmrl import Prompt

class Stream:
    def __iter__(self):
        return (Prompt(f"{i}") for i in range(50))

def load_sampler():
    return Stream()
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stream.py").write_text(STREAM)


def load_sampler(*words: str) -> Resolved:
    return configs.load("tiny/image", words)


def sampler(resolved: Resolved, prompts: Prompts) -> Any:
    return read_plug_ins(resolved).sampler(prompts, 3)


def test_by_data_unless_told():
    plain = load_sampler()
    assert isinstance(sampler(plain, PROMPTS), Shuffled)
    assert isinstance(sampler(plain, iter(PROMPTS)), Streamed)
    chosen = sampler(load_sampler("sampler.kind=Streamed", "sampler.buffer_size=2"), PROMPTS)
    assert isinstance(chosen, Streamed) and (chosen.buffer_size, chosen.seed) == (2, 3)
    with pytest.raises(ValueError, match=r"Shuffled needs all prompts at once, and the data set is a stream: take"):
        sampler(load_sampler("sampler.kind=Shuffled"), iter(PROMPTS))


def test_show_says_where_it_comes_from():
    text = description("tiny/image", ["sampler.kind=Streamed", "sampler.buffer_size=8"])
    rows = [line.split() for line in text.splitlines() if line.startswith("sampler.")]
    assert ["sampler.buffer_size", "8", "1", "to", "1048576", "command", "line"] in rows
    assert ["sampler.kind", "Streamed", "command", "line"] in rows


def test_the_saved_config_names_the_one_that_was_taken(tmp_path: Path):
    job = build(load_sampler())
    configs.save(job.config, tmp_path / "saved.toml")
    again = configs.load(str(tmp_path / "saved.toml")).config
    assert again.sampler.kind == "Shuffled" and again == job.config


def test_ones_own_goes_on_where_its_run_stopped(tmp_path: Path):
    words = [f"sampler.use={MINE}:HardOnesMore", "sampler.ease=0.5", "save_every=1", "evaluation.num_prompts=0", "steps=3"]
    resolved = load_sampler(*words, f"output={tmp_path / 'whole'}", "checkpoint.keep=0")
    run = run_training(resolved)
    assert f'use = "{MINE}:HardOnesMore"' in run.config_file.read_text() and "ease = 0.5" in run.config_file.read_text()
    states = [Checkpoints(run.checkpoints).load(step)["sampler"] for step in (1, 2, 3)]
    assert [state["num_drawn"] for state in states] == [4, 8, 12]
    assert states[0]["rewards"]
    half = run_training(replace(resolved, config=replace(resolved.config, steps=2, output=str(tmp_path / "half"))))
    train(TrainArguments(["steps=3"], resume=half.path))
    again = Checkpoints(RunDir.open(half.path).checkpoints).load(3)["sampler"]
    assert again == states[2]
