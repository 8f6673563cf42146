"""`mmrl check` and `mmrl environment test`: what is wrong is said before a run; a person plays a world; one step is profiled."""

import gzip
import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from mmrl.app.cli import program as cli
from mmrl.app.cli.groups import environment as commands
from mmrl.app.commands import check
from mmrl.app.commands import environment as tools
from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.inspect.ls import listing
from mmrl.app.inspect.show import description
from mmrl.app.run.beforehand import contents
from mmrl.core.types import Prompt
from tests.support.command import run_here
from tests.support.each import for_each
from tests.support.flow_runs import Make
from tests.support.forked import heard
from tests.support.refused import refused


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_a_sound_config_and_a_card_that_is_too_small(make: Make, tmp_path: Path, capsys):
    """Image generator: a picture is left to look at, but no run."""
    assert check.check("tiny/flow", card="24GB")
    text = said(capsys)
    for what in (
        "6 prompts to train on",
        "none of which is trained on",
        "|log ratio| 0.0e+00 at most",
        "of 24.00 GiB",
        "fit each",
        "evaluation ok 2 prompts, 4 samples, total -8.",
        "reward test ok every reward answers for pictures",
        "mmrl reward score jpeg_size FOLDER",
    ):
        assert what in text
    file = Path(text.split("sample.png")[0].split()[-1] + "sample.png")
    assert file.is_file() and "FAIL" not in text
    assert not list(tmp_path.iterdir())
    assert not check.check("tiny/flow", card="0.5GB")
    text = said(capsys)
    assert "memory FAIL it needs about" in text and "model and rewards" not in text


def test_prompts_that_have_no_answers_by_nature_are_no_fault(make: Make, capsys):
    words = ['data={use = "prompts", texts = ["tell a tale", "sing"]}', 'evaluation.data={use = "prompts", texts = ["hum"]}']
    words += ["reward=[{use = 'length'}, {use = 'repetition', weight = 0.1}]", "policy.answer_format=none"]
    assert check.check("tiny/image", words, card="24GB")
    text = said(capsys)
    assert "reward test note not for prompts without answers" in text and "FAIL" not in text
    assert not check.check("tiny/image", [*words, "reward=[{use = 'choice'}]"], card="24GB")
    assert "FAIL" in said(capsys), "a reward that needs answers has none"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["evaluation.data.texts=['a red fox', 'an owl']"], "1 of 2 prompts are trained on, too"),
        (["policy.model=./missing"], "there is no folder './missing'"),
        (["algorithm.preset=branch_grpo", "algorithm.group_size=3"], "FAIL"),
    ],
    ids=["overlap", "model", "geometry"],
)
def test_what_is_wrong_is_one_line_and_exit_code_two(words, what, make: Make, capsys):
    with pytest.raises(typer.Exit) as left:
        cli.check("tiny/flow", words)
    assert left.value.exit_code == 2
    text = said(capsys)
    assert what in text and "FAIL" in text and "a sample" not in text


@pytest.mark.slow
def test_sampling_and_training_that_disagree(make: Make, capsys, monkeypatch):
    rollout = check.build

    def wrong(*args, **kwargs):
        job = rollout(*args, **kwargs)
        inner = job.policy.rollout

        def other(requests, sampling=None):
            rollouts = inner(requests, sampling)
            for noted in rollouts.recorded.values():
                noted += 0.5
            return rollouts

        job.policy.rollout = other
        return job

    monkeypatch.setattr(check, "build", wrong)
    assert not check.check("tiny/flow")
    assert "ratio FAIL before the first update" in said(capsys)


@pytest.mark.parametrize(
    ("answer", "what"),
    [("None", "it applies to none of these prompts"), ("float('nan')", "100% failed: find out why it fails")],
    ids=["never", "fails"],
)
def test_rewards_that_do_not_answer(answer, what, make: Make, tmp_path: Path, capsys):
    (tmp_path / "odd.py").write_text(f"def odd(group, scale=1.0):\n    return [{answer} for _ in group.samples]\n")
    assert not check.check("tiny/flow", ["reward.0.use=./odd.py", "reward.0.max_failed=1.0"])
    text = said(capsys)
    assert "reward odd FAIL mean nan" in text and what in text


def test_groups_without_spread_and_samples_that_were_not_read_are_shares_of_all(make: Make, tmp_path: Path, capsys):
    body = "flat = group.id % 2\n    return [Scored(0.0 if flat else i, {'unparsed': 1.0} if i == 0 else {}) for i in range(4)]\n"
    (tmp_path / "odd.py").write_text(f"from mmrl import Scored\n\ndef odd(group, scale):\n    {body}")
    check.check("tiny/flow", ["reward.0.use=./odd.py", "algorithm.group_size=4", "prompts_per_step=2"])
    text = said(capsys)
    assert "in 50% of the groups all samples have the same total" in text and "25% of the samples unparsed" in text


def test_prompts_are_told_apart_by_what_they_show_and_spread_is_taken_inside_groups():
    assert contents(Prompt("a", "hi")) == contents(Prompt("b", "hi"))
    assert contents(Prompt("a", "hi", ("x.png",))) != contents(Prompt("a", "hi", ("y.png",)))
    ids = torch.tensor([0, 0, 1, 1])
    assert check.spread(torch.tensor([0.0, 2.0, 5.0, 5.0]), ids) == 0.5


def test_a_real_step_is_recorded_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    train(TrainArguments(["tiny/flow", "steps=2", "evaluation.num_prompts=0"], output=run, profile="2"))
    file = run / "profile" / "step-2.json.gz"
    assert f"trace of step 2: {file}" in capsys.readouterr().err.replace("\n", "")
    with gzip.open(file, "rt") as lines:
        events = json.load(lines)["traceEvents"]
    spans = {event["name"]: event for event in events if event.get("cat") == "user_annotation"}
    assert {"step", "rollout", "generate", "decode", "reward", "read", "update", "forward", "backward", "optimizer"} <= set(spans)
    inside, around = spans["generate"], spans["rollout"]
    assert around["ts"] <= inside["ts"] and inside["ts"] + inside["dur"] <= around["ts"] + around["dur"]
    refused("the run goes on after step 2: choose steps from 3 on", train, TrainArguments(["steps=4"], resume=run, profile="2"))


@pytest.mark.parametrize(("steps", "message"), [("4", "the run ends after step 3"), ("1..2", "write a step such as 3")])
def test_steps_that_the_run_does_not_take_are_refused_at_once(tmp_path: Path, steps: str, message: str):
    words = ["tiny/flow", "steps=3", "policy.model=nowhere"]
    refused(message, train, TrainArguments(words, output=tmp_path / "run", profile=steps))
    assert not (tmp_path / "run").exists()


WORLDS = """
import random
from itertools import count
from PIL import Image
from mmrl import Observation

def fine(prompt, turns, seed, most: int = 2):
    return Observation(f"{seed}: {len(turns[-1].text)}", reward=0.5) if len(turns) < most else None

def moody(prompt, turns, seed):
    return Observation(str(random.random()))

class Shared:
    def __init__(self):
        self.turns = 0
    def open(self, prompt, seed):
        self.turns = 0
        return self
    def step(self, turn):
        self.turns += 1
        return Observation(f"turn {self.turns}")
    def close(self): ...

class Once:
    repeats = False
    numbers = count()
    def open(self, prompt, seed):
        return self
    def step(self, turn):
        return Observation(str(next(self.numbers)))
    def close(self): ...

def number(prompt, turns, seed):
    return Observation(facts={"looks": float("nan")})

def empty(prompt, turns, seed):
    return Observation(media=(Image.new("RGB", (0, 8)),))

def unmarked(prompt, turns, seed):
    return Observation("<image> and <image>", (Image.new("RGB", (8, 8)),))

def words(prompt, turns, seed):
    return "Here it is."

def broken(prompt, turns, seed):
    return turns[-1].text[99999]

def interrupted(prompt, turns, seed):
    raise KeyboardInterrupt("mine")

def chatty(prompt, turns, seed):
    return Observation("x" * 50, (Image.new("RGB", (40, 10)),))
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(WORLDS)
    (tmp_path / "ways.py").write_text(WAYS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoked(*words: str, text: str | None = None) -> Result:
    """`mmrl environment test` with these words, to which a person says a text."""
    return CliRunner().invoke(commands, ["test", *words], input=text)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("moody", "opened again with the same seed"),
        ("Shared", "let worlds share nothing"),
        ("number", "are finite numbers"),
        ("empty", "a picture of 0 x 8 pixels"),
        ("unmarked", "2 <image> markers and 0"),
        ("words", "TypeError: "),
        ("broken", "IndexError"),
    ],
)
def test_a_world_that_runs_could_not_use_is_named(desk: Path, name: str, fault: str):
    result = invoked(f"mine.py:{name}", "--prompts", "2", "--say", "a", "call.where=inline")
    said = " ".join(result.output.split())
    assert result.exit_code == 2 and "fault (as given, prompt 'drawn-0', and 1 more): " in said and fault in said, said


def test_a_worlds_own_interrupt_is_its_fault_and_ends_nothing(desk: Path):
    result = invoked("mine.py:interrupted", "--prompts", "2", "--say", "a")
    assert result.exit_code == 2 and "its world broke after turn 1: KeyboardInterrupt: mine" in " ".join(result.output.split())


WAYS = """
import sys, time
class World:
    def open(self, prompt, seed): return self
    def step(self, turn): return None
    def close(self): ...
class Opens(World):
    def open(self, prompt, seed): raise KeyboardInterrupt
class Made(World):
    def __init__(self): raise KeyboardInterrupt
class Closes(World):
    def close(self): raise KeyboardInterrupt
class Leaves(World):
    def step(self, turn): sys.exit(3)
class Waits(World):
    def step(self, turn):
        print("here", flush=True)
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("tidied up")
"""


WORDS = ("--prompts", "1", "--say", "a", "call.where=inline")


@for_each(
    "name, code, said",
    [
        ("Opens", 2, r"its world broke after turn 1: KeyboardInterrupt:  \(.*line 8\)"),
        ("Made", 2, r"environment: ways.py:Made raised KeyboardInterrupt:  \(.*line 10\)"),
        ("Closes", 0, r"its world could not be closed: KeyboardInterrupt:  \(.*line 12\)"),
        ("Leaves", 2, r"its world broke after turn 1: SystemExit: 3 \(.*line 14\)"),
    ],
)
def test_under_the_command_a_worlds_interrupt_is_no_ctrl_c(desk: Path, caplog, name: str, code: int, said: str):
    done = run_here("environment", "test", f"ways.py:{name}", *WORDS, cwd=desk)
    assert done.returncode == code and re.search(said, done.stdout + done.stderr + caplog.text), done


def test_a_users_ctrl_c_leaves_even_where_the_world_raises_another_interrupt(desk: Path):
    lines = list[str]()
    with heard("-m", "mmrl", "environment", "test", "ways.py:Waits", *WORDS, cwd=desk) as (program, output):
        for line in output:
            lines.append(line)
            if line == "here\n":
                os.kill(program.pids[0], signal.SIGINT)
        code = program.wait()
    assert code == 130 and "here\n" in lines, (code, lines)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine.py:fine", "2 episodes of 2 turns; ended stop (2); 0 pictures; rewards 0.5 to 0.5"),
        ("mine.py:Once", "says that it does not repeat"),
        ("zoom", "ended turns (2); 8 pictures; tool 8; area 2"),
    ],
)
def test_good_worlds_pass_whatever_is_said(desk: Path, name: str, said: str):
    result = invoked(name, "--prompts", "2", "call.where=inline")
    assert result.exit_code == 0 and said in " ".join(result.output.split()), result.output


def test_settings_and_limits_are_those_of_a_config(desk: Path, capsys: pytest.CaptureFixture[str]):
    assert tools.test("mine.py:fine", ["most=9", "limits.turns=3"], tools.EnvironmentOptions(say=["a", "b"], prompts=1))
    assert "1 episodes of 3 turns; ended turns (1)" in capsys.readouterr().out
    limits = ["limits.text=49", "limits.pixels=399"]
    assert tools.test("mine.py:chatty", limits, tools.EnvironmentOptions(say=["a"], prompts=1))
    told = " ".join(capsys.readouterr().out.split())
    assert "room (50 is more than limits.text = 49; 400 is more than limits.pixels = 399)" in told
    for wrong, message in (("mots=9", "mots"), ("limits.turns=0", r"limits\.turns")):
        refused(message, tools.test, "mine.py:fine", [wrong])
    refused("--space is 'inches': use one of", tools.test, "zoom", [], tools.EnvironmentOptions(space="inches"))


def test_one_is_played_by_hand(desk: Path):
    words = ["zoom", "limits.turns=3", "--play", "shown"]
    result = invoked(*words, text="<tool_call>[0,0,500,250]</tool_call>\n7\n")
    assert "Your answer?" in result.output and "tool 1" in result.output and "ended: stop" in result.output
    assert sorted(file.name for file in (desk / "shown").iterdir()) == ["prompt-0.png", "turn1-0.png"]
    assert "picture of 128 x 64 pixels" in result.output
    assert "ended: left" in invoked(*words, text="").output


def test_environments_are_listed_and_shown(desk: Path):
    assert any("zoom" in line for line in listing("environments"))
    assert '[environment] use = "zoom" takes' in description("zoom")
    own = description("mine.py:fine")
    assert "most: " in own and "seed" not in own.partition("takes")[2]
