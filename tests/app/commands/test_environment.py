"""`mmrl environment test` names what a world does wrong, and lets good worlds pass; a person plays by hand."""

import os
import re
import signal
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mmrl.app.cli.groups import environment as commands
from mmrl.app.commands import environment as tools
from mmrl.app.inspect.ls import listing
from mmrl.app.inspect.show import description
from tests.support.command import run_here
from tests.support.each import for_each
from tests.support.forked import heard

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


def tested(*words: str, text: str | None = None) -> Result:
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
    result = tested(f"mine.py:{name}", "--prompts", "2", "--say", "a", "call.where=inline")
    said = " ".join(result.output.split())
    assert result.exit_code == 2 and "fault (as given, prompt 'drawn-0', and 1 more): " in said and fault in said, said


def test_a_worlds_own_interrupt_is_its_fault_and_ends_nothing(desk: Path):
    result = tested("mine.py:interrupted", "--prompts", "2", "--say", "a")
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
    result = tested(name, "--prompts", "2", "call.where=inline")
    assert result.exit_code == 0 and said in " ".join(result.output.split()), result.output


def test_settings_and_limits_are_those_of_a_config(desk: Path, capsys: pytest.CaptureFixture[str]):
    assert tools.test("mine.py:fine", ["most=9", "limits.turns=3"], tools.EnvironmentOptions(say=["a", "b"], prompts=1))
    assert "1 episodes of 3 turns; ended turns (1)" in capsys.readouterr().out
    limits = ["limits.text=49", "limits.pixels=399"]
    assert tools.test("mine.py:chatty", limits, tools.EnvironmentOptions(say=["a"], prompts=1))
    told = " ".join(capsys.readouterr().out.split())
    assert "room (50 is more than limits.text = 49; 400 is more than limits.pixels = 399)" in told
    for wrong, message in (("mots=9", "mots"), ("limits.turns=0", r"limits\.turns")):
        with pytest.raises(ValueError, match=message):
            tools.test("mine.py:fine", [wrong])
    with pytest.raises(ValueError, match="--space is 'inches': use one of"):
        tools.test("zoom", [], tools.EnvironmentOptions(space="inches"))


def test_one_is_played_by_hand(desk: Path):
    words = ["zoom", "limits.turns=3", "--play", "shown"]
    result = tested(*words, text="<tool_call>[0,0,500,250]</tool_call>\n7\n")
    assert "Your answer?" in result.output and "tool 1" in result.output and "ended: stop" in result.output
    assert sorted(file.name for file in (desk / "shown").iterdir()) == ["prompt-0.png", "turn1-0.png"]
    assert "picture of 128 x 64 pixels" in result.output
    assert "ended: left" in tested(*words, text="").output


def test_environments_are_listed_and_shown(desk: Path):
    assert any("zoom" in line for line in listing("environments"))
    assert '[environment] use = "zoom" takes' in description("zoom")
    own = description("mine.py:fine")
    assert "most: " in own and "seed" not in own.partition("takes")[2]
