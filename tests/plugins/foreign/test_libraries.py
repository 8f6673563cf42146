"""Environments of other libraries with the real packages, where these are installed; none of them is needed to test mmrl."""

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.types import Prompt
from mmrl.lab.tiny.text import vlms
from tests.plugins.foreign.test_foreign import call, play, texts_of
from tests.support.ports import free_ports
from tests.support.refused import refused
from tests.support.shelves import foreign_module

Gymnasium = foreign_module("gymnasium_style").Gymnasium
TrlStyle = foreign_module("trl_style").TrlStyle
OpenEnv = foreign_module("openenv_sessions").OpenEnv
McpTools = foreign_module("mcp_tools").McpTools
VerifiersTurns = foreign_module("verifiers_turns").VerifiersTurns

pytestmark = pytest.mark.evidence


def test_frozen_lake_of_gymnasium():
    pytest.importorskip("gymnasium", reason="the package gymnasium is not installed")
    lake = Gymnasium("FrozenLake-v1", make={"is_slippery": False}, actions=("left", "down", "right", "up"))
    prompt = Prompt("lake", "You stand at 0 of a lake of 4 x 4. Go to 15.", columns={"seed": 0})
    way = ["down", "down", "right", "right", "down", "Right"]
    answers = play(lake, prompt, "swim", *way)
    assert texts_of(answers) == ["Error: the actions are left, down, right, up.", "4", "8", "9", "10", "14", "15"]
    last = answers[-1]
    assert last is not None and last.done and last.reward == 1.0
    refused("begins with '0', which the prompt does not say", lake.check_prompts, [Prompt("lake", "Go.")])
    refused("gymnasium cannot make 'NoLake-v1'", Gymnasium("NoLake-v1").open, prompt, 0)


def test_cart_pole_of_gymnasium():
    pytest.importorskip("gymnasium", reason="the package gymnasium is not installed")
    pole = Gymnasium("CartPole-v1")
    world = pole.session()
    first = str(world.reset(seed=5)[0].tolist())
    answers = play(pole, Prompt("pole", f"The state is {first}.", columns={"seed": 5}), "1", "<tool_call>[1]</tool_call>", "2")
    assert texts_of(answers)[:2] == [str(world.step(1)[0].tolist()) for _ in range(2)]
    assert texts_of(answers)[2] == "Error: the action is none of Discrete(2)."


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[str]:
    """The environment that `openenv init` makes, served on this machine."""
    pytest.importorskip("openenv", reason="the package openenv-core is not installed")
    subprocess.run([str(Path(sys.executable).with_name("openenv")), "init", "echo_demo"], cwd=tmp_path, check=True)
    port = free_ports(1)
    words = [sys.executable, "-m", "uvicorn", "echo_demo.server.app:app", "--port", str(port)]
    process = subprocess.Popen(words, cwd=tmp_path)
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_the_environment_that_openenv_init_makes(echo: str):
    world = OpenEnv(echo, shown=("echoed_message", "message_length"), begins=False)
    answers = play(world, Prompt("echo", "Say something."), "Hello", call("echo", '{"message": "Hi"}'))
    assert texts_of(answers) == ["echoed_message: Hello\nmessage_length: 5", "echoed_message: Hi\nmessage_length: 2"]
    rewards = [one.reward for one in answers if one is not None]
    assert rewards[0] is not None and rewards[0] > 0
    shown = OpenEnv(echo, shown=("echoed_message",))
    refused("which the prompt does not say", play, shown, Prompt("echo", "Say something."), "Hello")


def test_the_time_server_of_mcp():
    pytest.importorskip("mcp_server_time", reason="the packages mcp and mcp-server-time are not installed")
    server = McpTools(f"{sys.executable} -m mcp_server_time --local-timezone UTC", tools=("convert_time",))
    convert = '{"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}'
    answers = play(
        server,
        Prompt("time", "When it is noon in Berlin, what time is it in Tokyo?"),
        call("get_current_time", '{"timezone": "UTC"}'),
        call("convert_time", convert),
        call("convert_time", convert.replace("12:00", "noon")),
        "It is 20:00.",
    )
    assert answers[0] is not None and answers[0].text == "Error: the tools are convert_time."
    assert "T19:00" in texts_of(answers)[1] or "T20:00" in texts_of(answers)[1], "by summer time, or not"
    assert answers[2] is not None and answers[2].text.startswith("Error: ") and answers[2].facts == {"error": 1.0}
    assert answers[3] is None


VERIFIERS = """
import verifiers as vf
from datasets import Dataset

def add(a: int, b: int) -> int:
    "The sum of two numbers."
    return a + b

def right(completion, answer, **kwargs):
    return float(answer in completion[-1]["content"])

def load_environment(weight: float = 1.0):
    rows = Dataset.from_list([{"question": "What is 2 + 3?", "answer": "5"}])
    return vf.ToolEnv(tools=[add], dataset=rows, rubric=vf.Rubric(funcs=[right], weights=[weight]), max_turns=4)
"""


def test_a_tool_environment_of_verifiers(tmp_path: Path):
    verifiers = pytest.importorskip("verifiers", reason="the package verifiers is not installed")
    (tmp_path / "sums.py").write_text(VERIFIERS)
    sums = VerifiersTurns(f"{tmp_path}/sums.py:load_environment", make={"weight": 2.0})
    prompt = Prompt("sum", "What is 2 + 3?", answer="5")
    if not hasattr(verifiers, "MultiTurnEnv"):
        refused("has no MultiTurnEnv", sums.check_prompts, [prompt])
        return
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    sums.check_prompts([prompt])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    answers = play(sums, prompt, call("add", '{"a": 2, "b": 3}'), "<tool_call>{", call("add", '{"a": 2}'), "It is 5.")
    assert texts_of(answers)[0] == "5" and texts_of(answers)[1].startswith("Error: the call has no end")
    assert "missing" in texts_of(answers)[2]
    last = answers[3]
    assert last is not None and last.done and last.reward == 2.0 and last.facts == {"right": 1.0}


PAGE = Path(__file__).parents[4] / "docs" / "how_to" / "environments.md"


def trl_plays(environment: Any, scripts: list[list[str]], folder: Path) -> tuple[list[list[str]], list[float]]:
    """What TRL's own trainer answers to these turns of two samples, and its rewards."""
    from datasets import Dataset
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    trl: Any = __import__("trl")  # its names are made at run time
    vlms.build("qwen3_vl", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 16,
    }
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=1, **sizes))
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    class Scripted(trl.GRPOTrainer):
        turn, spoken, scores = 0, list[list[str]](), list[float]()

        def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
            live = [script[self.turn] for script in scripts if len(script) > self.turn]
            assert len(live) == len(prompt_ids)
            self.turn += 1
            return [[*tokenizer.encode(text), end] for text in live], None

        def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, *rest: Any, **__: Any) -> Any:
            self.spoken += [[part["content"] for part in one if part["role"] == "tool"] for one in completions]
            rewards = super()._calculate_rewards(inputs, prompts, completions, *rest, **__)
            self.scores += rewards[:, 0].tolist()
            return rewards

    rows = [{"prompt": [{"role": "user", "content": "Count to 3."}], "target": 3}] * 2
    settings = trl.GRPOConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=2, num_generations=2, max_completion_length=2000,
        use_cpu=True, bf16=False, max_steps=1, report_to=[],
    )  # fmt: skip
    trainer = Scripted(
        model=model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        environment_factory=environment,
    )  # fmt: skip
    trainer.train()
    return trainer.spoken, trainer.scores


def test_the_counter_of_the_page_in_trls_own_trainer(tmp_path: Path):
    pytest.importorskip("trl", reason="the package trl is not installed")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    place = tmp_path / "counter.py"
    place.write_text(next(block for block in blocks if "class Counter" in block))
    space: dict[str, Any] = {}
    exec(place.read_text(), space)
    first, zero, third = (call("increment", f'{{"by": {by}}}') for by in (2, 0, 1))
    scripts = [[first, zero, third, "Done."], [first, call("increment", '{"to": 2}'), "Done."]]
    spoken, scores = trl_plays(space["Counter"], scripts, tmp_path / "model")
    prompt = Prompt("count", "Count to 3.", columns={"target": 3})
    ours = [play(TrlStyle(f"{place}:Counter"), prompt, *script) for script in scripts]
    for answers, theirs in zip(ours, spoken, strict=True):
        assert len(texts_of(answers)) == len(theirs) + 1, "the last turn calls nothing"
        for mine, other in zip(texts_of(answers), theirs, strict=False):
            assert mine.startswith("Error: ") if other.startswith("{'error'") else mine == other
    assert "by must be positive" in texts_of(ours[0])[1] and "by must be positive" in spoken[0][1]
    assert [sum(one.reward or 0.0 for one in answers if one is not None) for answers in ours] == scores == [1.0, 0.0]
