"""A run with an environment: trained, drawn again, resumed and reported; what samples of several turns cannot have is refused."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.app.commands import train as jobs
from mmrl.app.commands.options import SampleOptions
from mmrl.app.commands.sample import resample
from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.config import run as configs
from mmrl.app.report.page import write_report
from mmrl.app.report.timing import read_steps
from mmrl.app.run.build import build
from mmrl.app.run.folder import Line, RunDir, read_lines
from mmrl.runtime.blame import PLUGIN
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.metric_names import metric_of
from tests.support import forked

ENVIRONMENT = '''
"""Shows a part of the picture again, and says what it thinks of each turn."""
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from mmrl import Observation


@dataclass(frozen=True)
class Part:
    share: float = 0.5

    def open(self, prompt, seed):
        return _World(self, prompt.media[0], seed)


@dataclass
class _World:
    part: Part
    picture: object
    seed: int
    said: list = field(default_factory=list)

    def step(self, turn):
        self.said.append(turn.text)
        if os.environ.get("DIES") and len(self.said) == 2 and Path("killed/checkpoints/step-1").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        size = [int(side * self.part.share) for side in self.picture.size]
        crop = self.picture.crop((0, 0, *size))
        return Observation(f"Look {len(self.said)}:", (crop,), reward=self.seed % 7 / 7, facts={"looks": 1.0})

    def close(self):
        self.said.clear()


def answer(prompt, turns, seed):
    return Observation("And?") if len(turns) == 1 else None
'''
REWARD = "def letters(group):\n    return [len(set(sample.text + sample.earlier)) / 100 for sample in group.samples]\n"
FLAT = (
    "def flat(group):\n    return [sum(map(ord, group.prompt.id)) % 2 * len(sample.earlier) / 100 for sample in group.samples]\n"
)
STOPS = [chr(code) for code in range(33, 127) if chr(code) not in "\"'\\"]
"""So many texts end a turn that a random model is rarely cut."""
COMMON = [
    *("steps=3", "evaluate_every=3", "evaluation.num_prompts=2", "save_every=1", "checkpoint.keep=0", "samples_every=1"),
    *("prompts_per_step=2", "algorithm.group_size=2", "optimizer.lr=1e-2", "deterministic=true"),
    *('reward=[{use = "./reward.py"}]', "policy.sampling.max_new_tokens=40", f"policy.sampling.stop={STOPS}".replace("'", '"')),
    *("environment.use=./world.py:Part", "environment.limits.turns=3", 'evaluation.also=[{name = "alone", turns = 1}]'),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    (folder / "world.py").write_text(ENVIRONMENT)
    (folder / "reward.py").write_text(REWARD)
    (folder / "flat.py").write_text(FLAT)
    return folder


@pytest.fixture
def here(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MMRL_CACHE", str(desk / "cache"))
    monkeypatch.chdir(desk)
    return desk


def trained(folder: Path, *words: str) -> RunDir:
    """A run of the tiny config in this folder, trained when it is first asked for."""
    if not folder.exists():
        jobs.run_training(configs.load("tiny/image", [*COMMON, *words, f"output={folder.name}"]))
    return RunDir(folder)


@pytest.fixture
def run(here: Path) -> RunDir:
    return trained(here / "run")


def lines(run: RunDir, step: int, split: str = "train") -> list[Line]:
    return read_lines(run.samples_file(split, step)).lines


def test_samples_and_metrics_tell_the_turns(run: RunDir):
    found = lines(run, 2)
    assert len(found) == 4 and any(len(line["turns"]) == 3 for line in found)
    line = next(line for line in found if len(line["turns"]) == 3)
    first = line["turns"][0]
    assert line["ended"] in ("turns", "length") and first["observation"]["text"] == "Look 1:"
    assert first["facts"] == {"looks": 1.0} and 0 <= first["reward"] < 1
    [shown] = first["observation"]["media"]
    assert (run.samples / shown["file"]).is_file()
    own = [piece[1:] for piece in line["segments"] if piece[0] == "policy"]
    assert own == [turn["span"] for turn in line["turns"]]
    metrics = next(line for line in run.read_metrics().lines if "rollout/turns" in line)
    names = ("rollout/turns", "rollout/pictures", "rollout/observed_tokens", "environment/looks", "time/environment/p50_s")
    assert all(name in metrics and metric_of(name) is not None for name in names)
    ends = [value for name, value in metrics.items() if name.startswith("rollout/ended_")]
    assert sum(ends) == pytest.approx(1.0)
    evaluated = next(line for line in run.read_metrics().lines if "eval/alone/total" in line)
    assert evaluated["eval/alone/completion_length"] <= evaluated["eval/completion_length"]
    assert all(line.get("turns") for line in lines(run, 3, "eval")), "held-out prompts are played too"


@pytest.mark.parametrize(("split", "step"), [("train", 1), ("train", 3), ("eval", 3)])
def test_an_episode_is_drawn_again(run: RunDir, split: Any, step: int):
    line = lines(run, step, split)[-1]
    found = resample(run.path, SampleOptions(step, line["prompt"], split))
    assert {verdict.is_same for verdict in found.verdicts} == {True}
    assert "turn 1: " in found.text and "ended: " in found.text


def test_other_pictures_are_another_sample(run: RunDir, here: Path):
    line = next(line for line in lines(run, 1) if len(line["turns"]) > 1)
    world = here / "world.py"
    world.write_text(ENVIRONMENT.replace("(0, 0, *size)", "(*size, *self.picture.size)"))
    try:
        forget_plug_ins()
        found = resample(run.path, SampleOptions(1, line["prompt"], index=line["sample"]))
        assert found.differs
    finally:
        world.write_text(ENVIRONMENT)
        forget_plug_ins()


def forget_plug_ins() -> None:
    """Let files be read again."""
    for name in [name for name in sys.modules if name.startswith(f"{PLUGIN}environments__")]:
        del sys.modules[name]


def test_a_run_killed_inside_an_episode_plays_the_same_ones_when_it_is_resumed(run: RunDir, here: Path):
    done = forked.run("-m", "mmrl", "train", "tiny/image", *COMMON, "output=killed", variables=[{"DIES": "1"}])
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    killed = RunDir(here / "killed")
    assert not (killed.checkpoints / "step-2").exists()
    jobs.run_training(configs.load(str(killed.config_file)), resume=killed.path)
    for step in (1, 2, 3):
        assert [line["digest"] for line in lines(killed, step)] == [line["digest"] for line in lines(run, step)]
    told, again = (
        [{name: x for name, x in line.items() if not name.startswith("time/")} for line in one.read_metrics().lines]
        for one in (run, killed)
    )
    assert told == again and all(line["rollout/kept_tokens"] > 0.1 for line in told if "rollout/turns" in line)
    first, second = (Checkpoints(one.checkpoints).load(3)["policy"]["weights"] for one in (run, killed))
    assert first.keys() == second.keys() and all(torch.equal(x, second[name]) for name, x in first.items())


def test_episodes_branch_in_a_run_and_are_drawn_again(here: Path):
    """Half of the four samples are whole; whatever another one shares stands in both with its noted log-probabilities."""
    changes = ["algorithm.preset=arpo", "algorithm.minibatches=1", "algorithm.group_size=4", "algorithm.planner.chance=1"]
    run, shared = trained(here / "branched", *changes, "steps=2", "evaluate_every=0"), 0
    for step in (1, 2):
        for line in (found := lines(run, step)):
            others = [one for one in found if one["group"] == line["group"] and one["sample"] < min(2, line["sample"])]
            own = [turn["text"] for turn in line["turns"][:1]]
            shared += any([turn["text"] for turn in one["turns"][:1]] == own for one in others)
    assert len(found) == 8 and shared > 0
    check_drawn_again(run, found[0])


def test_halves_of_a_group_are_asked_otherwise_and_drawn_again(here: Path):
    """Each episode is read behind the request that it answers, or the gate would stop the run."""
    words = ["algorithm.preset=geometry_zero", "algorithm.group_size=4", 'algorithm.planner.with_text="Look again."']
    run = trained(here / "halves", *words, "steps=2", "evaluate_every=0")
    found = lines(run, 2)
    assert len(found) == 8 and any(len(line["turns"]) > 1 for line in found)
    check_drawn_again(run, found[0])


def check_drawn_again(run: RunDir, line: Line) -> None:
    """All four samples of the line's prompt are what they were in the second step."""
    again = resample(run.path, SampleOptions(2, line["prompt"], whole=True))
    assert len(again.verdicts) == 4 and all(verdict.is_same for verdict in again.verdicts)


@pytest.mark.parametrize("preset", ["mobile_agent_v3", "remix", "ssr"])
def test_episodes_of_earlier_steps_train_again(here: Path, preset: str):
    """They tell the same turns, pictures and reward as in the step that played them."""
    planner = {"mobile_agent_v3": ["algorithm.planner.mean_below=9", "algorithm.planner.std_below=9"]}.get(preset, [])
    flat = ['reward=[{use = "./flat.py"}]'] if preset == "ssr" else []
    changes = [f"algorithm.preset={preset}", "algorithm.minibatches=1", "algorithm.epochs=2", *planner, *flat]
    run = trained(here / f"again_{preset}", *changes, "evaluate_every=0", "prompts_per_step=4", "data.size=4")
    known, old = dict[str, Line](), list[Line]()
    for step in (1, 2, 3):
        found = lines(run, step)
        old += [line for line in found if line["role"] == "replayed"]
        for line in found:
            first = known.setdefault(line["digest"], line)
            assert line["total"] == first["total"] and line["ended"] == first["ended"]
        assert all(line["digest"] in known for line in old)
    assert any(len(line["turns"]) > 1 and line["turns"][0]["observation"]["media"] for line in old)
    assert write_report(run.path).exists()


def test_a_report_shows_the_dialogue(run: RunDir):
    page = write_report(run.path).read_text()
    assert "Look 1:" in page and 'class="answered"' in page and page.count("shown after turn") > 0


def test_a_function_is_an_environment_too(here: Path):
    overrides = ["environment.use=./world.py:answer", "steps=1", "evaluate_every=0", "evaluation.num_prompts=0"]
    job = build(configs.load("tiny/image", [*COMMON, *overrides]))
    metrics = job.trainer.step()
    assert 1 <= metrics["rollout/turns"] <= 2 and metrics["rollout/pictures"] == 0


QUESTIONS = [
    *("algorithm={preset = 'dr_grpo', group_size = 2, minibatches = 1}", "evaluation={}", "evaluate_every=0"),
    *("policy.system_prompt='Be [brief].'", "policy.sampling.max_new_tokens=4"),
    'reward=[{use = "by_type", limit_s = 60.0}, {use = "length", weight = 0.1, high = 4, slope = 32}]',
]


def ask(text: str, answer: object, *pictures: str) -> str:
    turns = [{"role": "user", "content": "<image>" * len(pictures) + text}]
    return json.dumps({"messages": turns, "images": list(pictures), "solution": answer, "id": text})


def test_questions_of_every_kind_are_trained_on_and_the_first_is_shown_with_all_that_was_added(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    caplog.set_level("INFO", logger="mmrl.loading")
    for name in ("a.png", "b.png"):
        Image.new("RGB", (64, 64), "red").save(tmp_path / name)
    rows = [
        ask("Which is <b>it</b>?\nA. red\nB. blue", "A", "a.png", "b.png"),
        ask("How many?", 2, "a.png"),
        ask("Solve 2x = 1.", "\\frac{1}{2}"),
        ask("Who?", "nobody at all"),
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    data = f"data={{use = 'qa_jsonl', path = '{tmp_path}/rows.jsonl'}}"
    train(TrainArguments(["tiny/image", *QUESTIONS, data], output=tmp_path / "run"))
    printed, run = "".join(capsys.readouterr()), RunDir(tmp_path / "run")
    steps = read_steps(run.spans_file)
    assert [step.number for step in steps] == [1, 2]
    assert {"rollout", "generate", "reward", "update", "forward", "backward", "optimizer"} <= {one.name for one in steps[1].spans}
    metrics = run.read_metrics().lines
    named = " ".join(key for line in metrics for key in line)
    assert {line["step"] for line in metrics} >= {1, 2} and "loss" in named
    assert all(f"by_type/{kind}" in named for kind in ("choice", "number", "math", "text")), named
    assert "is read as messages" in caplog.text
    assert "1 choice (guessed), 1 number (guessed), 1 math (guessed), 1 text (guessed)" in caplog.text
    kept = run.prompt_file.read_text()
    assert kept.startswith("prompt template direct: every prompt stands after the system message 'Be [brief].' with ")
    assert "\nfirst prompt, " in kept and "the model reads " in kept
    for part in ("Be [brief].", "<|image_pad|>*", "Which is <b>it</b>?", "Reply with the final answer only, inside <answer> and"):
        assert part in kept
    assert "Be [brief]." in printed and "Reply with the final answer only" in printed
    page = write_report(run.path).read_text()
    assert "prompt template direct" in page and "as the model reads it" in page and "Which is &lt;b&gt;it&lt;/b&gt;?" in page
