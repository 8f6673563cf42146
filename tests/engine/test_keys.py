"""A run whose engine, judge and reward server repeat their keys: none is in any message, log, report or file."""

import io
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.errors import Screen, sentence
from mmrl.app.report.page import write_report
from mmrl.policies.text.settings import EngineConfig
from mmrl.serving import wire
from tests.attacks.client import overheard
from tests.engine.servers import QUESTIONS
from tests.support.fake_engines import FakeEngine, engines, impatient
from tests.support.rude_servers import Script, answers, echoes, rude

KEYS = {
    "MMRL_ENGINE_TOKEN": "sk-engine-0123456789",
    "MMRL_REWARD_TOKEN": "sk-reward-0123456789",
    "JUDGE_KEY": "sk-judge-0123456789",
    "HF_TOKEN": "hf_0123456789abcdef",
}
CONFIG = """
steps = 2
prompts_per_step = 2
save_every = 1
[algorithm]
preset = "grpo"
group_size = 2
[policy]
model = "{model}"
box_space = "norm1000"
sampling = {{ max_new_tokens = 3 }}
[policy.engine]
url = ["{engine}"]
timeout_s = 60.0
retries = 0
[data]
use = "{here}/questions.py"
[[reward]]
use = "{here}/judged.py:judged"
max_failed = 1.0
[[reward]]
use = "{server}/length"
deadline_s = 60.0
max_failed = 1.0
"""
JUDGED = '''
import logging
import os
from mmrl import Scored
from mmrl.serving.judges.judge import Endpoint, Question, ask_for_scores

def judged(group):
    """What the judge says; a plug-in that writes its key down as if it were an answer."""
    logging.getLogger("mmrl").warning("the hub said %s", os.environ["HF_TOKEN"])
    endpoint = Endpoint("JUDGE", "m", "JUDGE_KEY", retries=0, deadline_s=60.0)
    return ask_for_scores(endpoint, [Question("x")] * len(group.samples), lambda reply: Scored(1.0, {reply.text[-30:]: 1.0}))
'''


def reward_server(score: Script) -> Script:
    """Offers a reward, and does what it will with requests for scores."""
    offer = b'{"protocol": %d, "rewards": {"length": {"fingerprint": "f", "pointwise": true, "space": null}}}' % wire.PROTOCOL
    return lambda connection, request: (score if b"/v1/score" in request[:40] else answers(200, offer))(connection, request)


def scores(connection: object, request: bytes) -> None:
    """Two scores, each with a part that is named like the key."""
    part = {KEYS["MMRL_REWARD_TOKEN"]: 1.0}
    reply = wire.pack_reply(wire.ServedScores((1.0, 2.0), (wire.Status.OK,) * 2, (part, part), "f"))
    answers(200, reply)(connection, request)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine(tiny: Callable[[str], str]) -> Iterator[FakeEngine]:
    with engines(tiny("qwen3_vl")) as (one,):
        yield one


GENERATE, CALM = "/inference/v1/generate", {"/pause": 200, "/resume": 200, "/reset_prefix_cache": 200}
TALES: dict[str, tuple[dict[str, int], Script, Script]] = {
    "answers that are right": (CALM, echoes(200), scores),
    "a pause that is refused": ({"/pause": 401}, echoes(200), scores),
    "a pause that breaks": ({"/pause": 500}, echoes(200), scores),
    "completions that are refused": (CALM | {GENERATE: 401}, echoes(200), scores),
    "completions that break": (CALM | {GENERATE: 500}, echoes(200), scores),
    "completions that are none": (CALM | {GENERATE: 200}, echoes(200), scores),
    "a judge that refuses": (CALM, echoes(401), scores),
    "a judge and a reward server that break": (CALM, echoes(500, escape=True), echoes(500)),
    "a reward server that refuses": (CALM, echoes(200), echoes(401)),
}


@pytest.mark.parametrize("name", TALES)
def test_no_key_is_shown_or_written(
    name: str, engine: FakeEngine, tiny: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    repeated, judge, reward = TALES[name]
    impatient(monkeypatch)
    for variable, key in KEYS.items():
        monkeypatch.setenv(variable, key)
    engine.order(repeat=repeated)
    seen = io.StringIO()
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, Screen(seen))  # type: ignore[arg-type]
    with rude(judge) as judging, rude(reward_server(reward)) as rewarding, overheard() as heard:
        logging.getLogger("mmrl").setLevel(logging.DEBUG)
        (tmp_path / "questions.py").write_text(QUESTIONS)
        (tmp_path / "judged.py").write_text(JUDGED.replace('JUDGE"', f'{judging.url}"'))
        values = {"model": tiny("qwen3_vl"), "engine": engine.url, "here": tmp_path, "server": rewarding.url}
        (tmp_path / "run.toml").write_text(CONFIG.format(**values))
        ended = ""
        try:
            train(TrainArguments([str(tmp_path / "run.toml")], output=tmp_path / "run"))
        except Exception as error:  # noqa: BLE001 - what is said of it must not hold a key
            traceback.print_exc()
            ended = f"{sentence(error)} {error}"
        logging.getLogger("mmrl").setLevel(logging.NOTSET)
    engine.order()
    if (tmp_path / "run" / "metrics.jsonl").exists():
        write_report(tmp_path / "run")
    shown = {"terminal": seen.getvalue(), "log": heard.getvalue(), "error": ended}
    files = {str(file): file.read_bytes().decode(errors="replace") for file in tmp_path.rglob("*") if file.is_file()}
    found = [(place, key) for place, text in (shown | files).items() for key in KEYS.values() if key in text]
    assert found == []
    assert name == "completions that are none" or any("[the key]" in text for text in (shown | files).values())
    assert ended or name == "answers that are right"


def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_ENGINE_TOKEN", "sk-01 234")
    with pytest.raises(ValueError, match="MMRL_ENGINE_TOKEN holds no key: character 6 of 9") as caught:
        EngineConfig()
    assert "sk-" not in str(caught.value)
