"""The sampler slot: by data unless told, one's own by `use`, and what it remembers in checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmrl import Prompt
from mmrl.algorithms.samplers.base import Shuffled, Streamed
from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.config.plug_ins import Prompts, read_plug_ins
from mmrl.app.config.run import Resolved
from mmrl.app.inspect.show import description
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir
from mmrl.training.checkpoints.save import Checkpoints

ROOT = Path(__file__).parents[3]
MINE = ROOT / "examples" / "my_sampler.py"
PROMPTS = [Prompt("a"), Prompt("b")]
STREAM = """
from mmrl import Prompt

class Stream:
    def __iter__(self):
        return (Prompt(f"{i}") for i in range(50))

def load():
    return Stream()
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stream.py").write_text(STREAM)


def load(*words: str) -> Resolved:
    return configs.load("tiny/image", words)


def sampler(resolved: Resolved, prompts: Prompts) -> Any:
    return read_plug_ins(resolved).sampler(prompts, 3)


def test_by_data_unless_told():
    plain = load()
    assert isinstance(sampler(plain, PROMPTS), Shuffled)
    assert isinstance(sampler(plain, iter(PROMPTS)), Streamed)
    chosen = sampler(load("sampler.kind=Streamed", "sampler.buffer_size=2"), PROMPTS)
    assert isinstance(chosen, Streamed) and (chosen.buffer_size, chosen.seed) == (2, 3)


def test_a_stream_cannot_be_shuffled_whole():
    stream = iter(PROMPTS)
    with pytest.raises(ValueError, match=r"Shuffled needs all prompts at once, and the data set is a stream: take"):
        sampler(load("sampler.kind=Shuffled"), stream)


def test_show_says_where_it_comes_from():
    text = description("tiny/image", ["sampler.kind=Streamed", "sampler.buffer_size=8"])
    rows = [line.split() for line in text.splitlines() if line.startswith("sampler.")]
    assert ["sampler.buffer_size", "8", "1", "to", "1048576", "command", "line"] in rows
    assert ["sampler.kind", "Streamed", "command", "line"] in rows


def test_the_saved_config_names_the_one_that_was_taken(tmp_path: Path):
    job = build(load())
    configs.save(job.config, tmp_path / "saved.toml")
    again = configs.load(str(tmp_path / "saved.toml")).config
    assert again.sampler.kind == "Shuffled" and again == job.config


def test_ones_own_goes_on_where_its_run_stopped(tmp_path: Path):
    words = [f"sampler.use={MINE}:HardOnesMore", "sampler.ease=0.5", "save_every=1", "evaluation.num_prompts=0", "steps=3"]
    resolved = load(*words, f"output={tmp_path / 'whole'}", "checkpoint.keep=0")
    run = run_training(resolved)
    assert f'use = "{MINE}:HardOnesMore"' in run.config_file.read_text() and "ease = 0.5" in run.config_file.read_text()
    states = [Checkpoints(run.checkpoints).load(step)["sampler"] for step in (1, 2, 3)]
    assert [state["num_drawn"] for state in states] == [4, 8, 12]
    assert states[0]["rewards"]
    half = run_training(replace(resolved, config=replace(resolved.config, steps=2, output=str(tmp_path / "half"))))
    train(TrainArguments(["steps=3"], resume=half.path))
    again = Checkpoints(RunDir.open(half.path).checkpoints).load(3)["sampler"]
    assert again == states[2]
