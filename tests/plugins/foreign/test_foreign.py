"""Environments written for gymnasium and TRL as the documentation has them, and what all adapters share."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.app.config.plug_ins import read_environment
from mmrl.app.config.run import EnvironmentConfig
from mmrl.app.plugins.resolve import load
from mmrl.app.toml.tables import Table
from mmrl.core.episodes import Environment, Limits
from mmrl.core.types import Observation, Prompt, Turn
from mmrl.data.tools.foreign import Shown, check_start, show
from mmrl.training.worlds.runner import WorldCalling, WorldRunner
from tests.support.blocks import blocks
from tests.support.refused import refused
from tests.support.shelves import foreign_module

Gymnasium = foreign_module("gymnasium_style").Gymnasium
TrlStyle = foreign_module("trl_style").TrlStyle


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def documented(name: str, folder: Path) -> str:
    """The file of the documentation that defines this class."""
    (block,) = (one for one in blocks() if one.doc.endswith("environments.md") and re.search(rf"^class {name}:", one.text, re.M))
    file = folder / f"{name.lower()}.py"
    file.write_text(block.text)
    return str(file)


def made(use: str, **args: object) -> Environment:
    config = EnvironmentConfig(use, args=args)
    return read_environment(config, Table({"environment": {"use": use, **args}}))()


def play(environment: Any, prompt: Prompt, *texts: str, where: Any = "thread", seed: int = 3) -> list[Observation | None]:
    runner = WorldRunner(environment, Limits(timeout_s=60.0), WorldCalling(where=where, workers=1))
    number = runner.open(prompt, seed)
    try:
        return [runner.step(number, Turn(text, (0, 1))).result(timeout=90) for text in texts]
    finally:
        runner.close(number)
        runner.end()


def texts_of(answers: list[Observation | None]) -> list[str]:
    return [one.text for one in answers if one is not None]


def rewards_of(answers: list[Observation | None]) -> list[float | None]:
    return [one.reward for one in answers if one is not None]


@pytest.mark.parametrize("where", ["thread", "process"])
def test_the_documented_class_for_gymnasium_runs_as_it_is_written(tmp_path: Path, where: str):
    file = documented("Corridor", tmp_path)
    corridor: Any = made(f"gymnasium:{file}:Corridor", actions=["left", "right"])
    prompts: list[Prompt] = load(f"{file}:starts", "datasets")()
    assert isinstance(corridor, Gymnasium)
    corridor.check_prompts(prompts)
    answers = play(corridor, prompts[1], "<think>left</think> Right", "jump", "right", where=where)
    assert texts_of(answers)[1] == "Error: the actions are left, right."
    assert [one.facts for one in answers if one is not None] == [{"tool": 1.0}, {"error": 1.0}, {"tool": 1.0}]
    assert rewards_of(answers) == [0.0, None, 1.0] and [one.done for one in answers if one is not None] == [False, False, True]
    assert texts_of(play(corridor, prompts[0], "left"))[0] == "You stand at 1 of 0 to 4, and the door is at 0."
    with pytest.raises(ValueError, match=r"prompt 'x' begins with .* which the prompt does not say: let your data set reset it"):
        corridor.check_prompts([Prompt("x", "Go to the door.")])


@pytest.mark.parametrize("where", ["thread", "process"])
def test_the_documented_class_for_trl_runs_as_it_is_written(tmp_path: Path, where: str):
    counter = made(f"trl:{documented('Counter', tmp_path)}:Counter")
    prompt = Prompt("count", "Count to 5.", columns={"target": 5})
    calls = [call("increment", f'{{"by": {by}}}') for by in (2, 0, 3, 1)]
    answers = play(counter, prompt, *calls, "Done.", where=where)
    at = "The counter is at {}."
    assert texts_of(answers) == [at.format(2), "Error: by must be positive.", at.format(5), at.format(6), ""]
    assert rewards_of(answers) == [0.0, 0.0, 1.0, -1.0, 0.0], "the sum so far is what get_reward() says"
    assert answers[-1] is not None and answers[-1].done
    wrong = play(counter, prompt, call("decrement", "{}"), call("increment", '{"step": 1}'), "<tool_call>")
    assert texts_of(wrong)[0] == "Error: the tools are increment."
    assert texts_of(wrong)[1] == "Error: increment: missing a required argument: 'by'."
    assert [one.facts for one in wrong if one is not None] == [{"error": 1.0}] * 3


SLOW = """
from PIL import Image

class Camera:
    reward = 0.0

    async def reset(self, scene):
        self.scene = scene
        return f"You look at {scene}."

    async def photograph(self, width: int):
        self.reward = 0.5
        return [{"type": "text", "text": self.scene}, {"type": "image", "image": Image.new("RGB", (width, 40))}]

class Shared:
    one = None

    def __new__(cls):
        cls.one = cls.one or super().__new__(cls)
        return cls.one

    def reset(self):
        pass
"""


def test_methods_that_take_their_time_and_show_pictures(tmp_path: Path):
    (tmp_path / "slow.py").write_text(SLOW)
    camera: Any = made(f"trl:{tmp_path}/slow.py:Camera", role="tool")
    prompt = Prompt("p", "You look at the sea. Describe it.", columns={"scene": "the sea"})
    assert isinstance(camera, TrlStyle)
    camera.check_prompts([prompt])
    answers = play(camera, prompt, call("photograph", '{"width": 60}'), call("photograph", '{"width": -1}'))
    first, second = answers
    assert first is not None and (first.text, first.role, first.reward) == ("the sea", "tool", 0.5)
    assert [one.size for one in first.media] == [(60, 40)]
    assert second is not None and second.text.startswith("Error: ") and second.reward == 0.0
    with pytest.raises(ValueError, match=r"begins with 'You look at the sea\.', which the prompt does not say"):
        camera.check_prompts([Prompt("p", "Describe it.", columns={"scene": "the sea"})])


ECHO = """
class Echo:
    def reset(self):
        pass

    def say(self, text: str):
        if not text.endswith("."):
            raise ValueError(text)
        return {"said": text, "parts": [{"type": "text", "text": text}], text: 1}

class Corridor:
    def reset(self, seed=None):
        return "", {}

    def step(self, action):
        return action, 0.0, False, False, {}

def read(text):
    if "?" in text:
        raise ValueError(f"{text} is no action")
    return text
"""


def test_the_models_words_in_an_answer_are_no_marks(tmp_path: Path):
    (tmp_path / "echo.py").write_text(ECHO)
    word, prompt = "<image><|im_end|>", Prompt("p", "Say it.")
    echo = made(f"trl:{tmp_path}/echo.py:Echo")
    asked = [call("say", f'{{"{key}": "{text}"}}') for key, text in ((word, "a"), ("text", word), ("text", f"{word}."))]
    answers = play(echo, prompt, *asked)
    corridor = made(f"gymnasium:{tmp_path}/echo.py:Corridor", action=f"{tmp_path}/echo.py:read")
    answers += play(corridor, prompt, word, f"{word}?")
    harmless = "< image>< |im_end|>"
    assert texts_of(answers)[1:] == [
        f"Error: {harmless}.",
        f"said: {harmless}.\nparts: {harmless}.\n{harmless}.: 1",
        harmless,
        f"Error: {harmless}? is no action.",
    ]
    assert texts_of(answers)[0].startswith("Error: say: ") and "<image>" not in texts_of(answers)[0]


def test_two_episodes_in_one_session_are_refused(tmp_path: Path):
    (tmp_path / "slow.py").write_text(SLOW)
    runner = WorldRunner(made(f"trl:{tmp_path}/slow.py:Shared"), Limits(timeout_s=60.0))
    first, second = runner.open(Prompt("a"), 1), runner.open(Prompt("b"), 2)
    assert runner.step(first, Turn("Done.", (0, 1))).result(timeout=60) is not None
    with pytest.raises(ValueError, match="a world in which another episode is played: let it open one for each"):
        runner.step(second, Turn("Done.", (0, 1))).result(timeout=60)
    runner.end()


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ("gymnasium:Nothing-v0", "needs the package gymnasium: pip install gymnasium"),
        ("verifiers:nothing", r"needs the package: pip install 'verifiers<0\.2'"),
        ("openenv:http://127.0.0.1:9", "needs the package openenv-core: pip install openenv-core"),
        ("mcp:python nothing.py", r"needs the package mcp, from 2\.0 on: pip install mcp"),
    ],
)
def test_a_package_that_is_not_there_is_named(use: str, words: str, monkeypatch: pytest.MonkeyPatch):
    for package in ("gymnasium", "verifiers", "openenv", "mcp"):
        monkeypatch.setitem(__import__("sys").modules, package, None)
    refused(words, play, made(use), Prompt("p"), "hello")


def test_keys_are_those_of_the_library_and_pictures_elsewhere_are_not_fetched():
    refused(r"environment\.action_list is unknown.*actions", made, "gymnasium:Nothing-v0", action_list=["left"])
    refused("role", made, "trl:./mine.py:Mine", role="system")
    refused("let it send the picture itself", show, [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}])


GREY = Image.new("RGB", (8, 6), "grey")


@pytest.mark.parametrize(
    ("value", "text", "sizes"),
    [
        (None, "", []),
        ("Hello", "Hello", []),
        (np.int64(5), "5", []),
        (np.array([0.5, 1.0]), "[0.5, 1.0]", []),
        (np.zeros((6, 8, 3), np.uint8), "", [(8, 6)]),
        ({"place": 3, "view": np.zeros((6, 8, 3), np.uint8), "way": [1, 2]}, "place: 3\nway: [1, 2]", [(8, 6)]),
        ([{"type": "image", "image": GREY}, {"type": "text", "text": "Look."}], "Look.", [(8, 6)]),
        ([{"role": "tool", "content": "5"}, {"role": "user", "content": [{"type": "text", "text": "Go on."}]}], "5\nGo on.", []),
    ],
)
def test_values_are_shown_as_text_and_pictures(value: Any, text: str, sizes: list[tuple[int, int]]):
    said, pictures = show(value)
    assert said == text and [picture.size for picture in pictures] == sizes


@pytest.mark.parametrize("prompt", [Prompt("p"), Prompt("p", media=(Image.new("RGB", (8, 6)),)), Prompt("p", media=(GREY, GREY))])
def test_a_prompt_shows_the_picture_that_an_episode_begins_with(prompt: Prompt):
    first: Shown = ("", (GREY,))
    check_start(Prompt("p", media=(GREY,)), first, "draw it")
    refused(r"begins with 1 picture\(s\), and the prompt shows others: draw it", check_start, prompt, first, "draw it")


@pytest.mark.parametrize("where", ["thread", "inline", "process"])
def test_the_end_of_a_run_closes_all_worlds(where: Any, tmp_path: Path):
    (tmp_path / "closing.py").write_text(CLOSING)
    log = tmp_path / "closed"
    make: Callable[..., Environment] = load(f"{tmp_path}/closing.py:Opening", "environments")
    runner = WorldRunner(make(str(log)), Limits(timeout_s=60.0), WorldCalling(where=where, workers=2))
    numbers = [runner.open(Prompt(str(i)), i) for i in range(3)]
    for number in numbers[:2]:
        runner.step(number, Turn("a", (0, 1))).result(timeout=60)
    runner.end()
    assert sorted(log.read_text().split()) == ["0", "1"], "the third was never asked"
    runner.end()


CLOSING = """
from dataclasses import dataclass
from mmrl import Observation

@dataclass
class _World:
    log: str
    seed: int

    def step(self, turn):
        return Observation("go on")

    def close(self):
        with open(self.log, "a") as file:
            file.write(f"{self.seed} ")

@dataclass(frozen=True)
class Opening:
    log: str

    def open(self, prompt, seed):
        return _World(self.log, seed)
"""


OWN = """
from dataclasses import dataclass

from mmrl import Observation

__all__ = ["Echo"]

class World:
    def step(self, turn):
        return Observation(turn.text.upper())

    def close(self):
        pass

@dataclass(frozen=True)
class Echo:
    place: str

    def open(self, prompt, seed):
        assert self.place == "anywhere"
        return World()
"""


def test_an_adapter_of_ones_own_is_found_by_the_word_before_the_colon(empty_desk: None):
    Path("environments/foreign").mkdir(parents=True)
    Path("environments/foreign/echo_style.py").write_text(OWN)
    assert texts_of(play(made("echo:anywhere"), Prompt("p"), "hello")) == ["HELLO"]
    refused("no environment is called 'other'", made, "other:anywhere")
