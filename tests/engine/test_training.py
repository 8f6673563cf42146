"""Runs whose completions an engine writes: a kill within a step, a resumed run, and a server that two processes share."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.app.config.run import Resolved, resolve, without_engine
from mmrl.app.run.build import Job, build
from mmrl.app.toml.tables import Table
from mmrl.engine.facts import ask_facts
from mmrl.engine.fleet import Fleet, Member, Probe, limits_of
from mmrl.engine.generator import VllmGenerator
from mmrl.engine.sync import AdapterSync, FileSync, Update
from mmrl.engine.wire.client import EngineClient
from mmrl.engine.wire.completions import AnswerFacts, Ask, WirePrompt, sampling_params, share_rows
from mmrl.engine.wire_prompts import wire_prompts
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import EngineConfig
from mmrl.runtime.blame import EngineUnavailableError
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.checkpoints.state import copy_state
from tests.engine.servers import QUESTIONS
from tests.support.fake_engines import FakeEngine, ask, engines, kill_in_a_request, make_environment
from tests.support.forked import heard
from tests.support.launcher import results
from tests.support.ports import free_ports
from tests.support.refused import refused
from tests.support.text_policies import prompts
from tests.support.trainers import weights

CONFIG = """
steps = 3
prompts_per_step = 2
[algorithm]
preset = "grpo"
group_size = 4
[optimizer]
lr = 1e-3
[policy]
model = "MODEL"
box_space = "norm1000"
sampling = { max_new_tokens = 5 }
[policy.engine]
timeout_s = 120.0
[data]
use = "PROMPTS"
[[reward]]
use = "REWARD"
"""
REWARD = '''
def early_letters(group):
    """The share of a text's bytes that are small numbers."""
    return [sum(letter < "m" for letter in sample.text) / max(1, len(sample.text)) for sample in group.samples]
'''


@pytest.fixture
def config(tiny: Callable[[str], str], tmp_path: Path) -> Callable[..., Resolved]:
    """A run with these overrides."""
    (tmp_path / "early.py").write_text(REWARD)
    (tmp_path / "questions.py").write_text(QUESTIONS)
    text = CONFIG.replace("MODEL", tiny("qwen3_vl")).replace("PROMPTS", f"{tmp_path}/questions.py")
    text = text.replace("REWARD", f"{tmp_path}/early.py:early_letters")
    (tmp_path / "run.toml").write_text(text)

    def read(*overrides: str) -> Resolved:
        return resolve(Table.read(tmp_path / "run.toml"), overrides)

    return read


def generator_of(job: Job) -> VllmGenerator:
    assert isinstance(job.policy, TextPolicy) and isinstance(job.policy.generator, VllmGenerator)
    return job.policy.generator


def test_three_steps_with_a_kill_equal_three_without_and_a_resumed_run(config, tmp_path):
    job = build(config(f"policy.engine.environment={make_environment(tmp_path / 'vllm')}"))
    algorithm, generator = job.config.algorithm.algorithm, generator_of(job)
    assert algorithm.old == "reread" and algorithm.importance == (RolloutCorrection(mode="token_truncate"),)
    metrics = [job.trainer.step()]
    assert generator.server is not None
    url, first = generator.server.url, ask(generator.server.url, "/fake")["pid"]
    ask(url, "/fake", {"hold": True})
    killer = threading.Thread(target=kill_in_a_request, args=(url,))
    killer.start()
    metrics.append(job.trainer.step())
    killer.join()
    state = copy_state(job.trainer.state_dict())
    metrics.append(job.trainer.step())
    told = ask(url, "/fake")
    assert told["pid"] != first and told["calls"].count("/update_weights") == 2, "the weights of step 2 again, then of 3"
    assert all(one["policy/grad_norm"] > 0 for one in metrics)

    there = f'policy.engine.url=["{url}"]'
    other = build(config(there))
    for _ in range(3):
        other.trainer.step()
    assert torch.equal(weights(other), weights(job)), "the kill left no trace"
    other.trainer.load_state_dict(state)
    other.trainer.step()
    assert torch.equal(weights(other), weights(job)), "nor did the resume"
    generator_of(other).close()
    generator.close()
    assert generator.server is None and not generator.folder.exists()


def test_a_teacher_reads_what_an_engine_wrote_and_servers_never_see_its_adapter(config, tmp_path):
    taught = TextPolicy(TextPolicyConfig(config().config.policy.model, lora=LoraSettings(rank=2)))
    with torch.no_grad():
        for weight in taught.parameters():
            weight.add_(0.1)
    taught.save(tmp_path / "taught")
    words = ('algorithm={preset = "opd", group_size = 2}', "policy.lora={rank = 4}")
    teacher = f'policy.teachers=[{{name = "t", adapter = "{tmp_path / "taught"}"}}]'
    with engines(config().config.policy.model) as (engine,):
        job = build(config(f'policy.engine.url=["{engine.url}"]', *words, teacher))
        metrics = [job.trainer.step() for _ in range(2)]
        assert all(0 < one["teacher/agreement"] < 1 and one["policy/grad_norm"] > 0 for one in metrics)
        generator_of(job).close()
    assert isinstance(job.policy, TextPolicy)
    update = Update("x-1", tmp_path / "x-1")
    AdapterSync().save(job.policy, update)
    sent = load_file(update.path / "adapter_model.safetensors")
    assert len(sent) == len(job.policy.parameters()) and len([*update.path.rglob("*.safetensors")]) == 1


def test_steps_ahead_of_training_equal_those_of_a_resumed_run(config, tmp_path):
    with engines(config().config.policy.model) as (engine,):
        there = f'policy.engine.url=["{engine.url}"]', "ahead=1"
        job, other = build(config(*there)), build(config(*there))
        metrics = [job.trainer.step() for _ in range(2)]
        state = copy_state(job.trainer.state_dict())
        metrics.append(job.trainer.step())
        job.trainer.producer.close()
        assert [one["rollout/staleness"] for one in metrics] == [0, 1, 1]
        assert engine.told()["calls"].count("/update_weights") == 2, "the weights that nobody would write with are not sent"
        other.trainer.load_state_dict(state)
        other.trainer.step()
        other.trainer.producer.close()
        assert torch.equal(weights(other), weights(job))
        for one in (job, other):
            generator_of(one).close()


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_stop_does_not_wait_for_the_server(config, tmp_path, ahead):
    """The server holds the test question that follows new weights, or completions, far longer than this test waits."""
    folder = tmp_path / "run"
    with engines(config().config.policy.model) as (engine,):
        there = f'policy.engine.url=["{engine.url}"]', "policy.engine.timeout_s=6000.0", "steps=1000", "evaluation.seen=0"
        words = ["train", str(tmp_path / "run.toml"), *there, f"ahead={ahead}", f"output={folder}"]
        with heard("-m", "mmrl", *words) as (run, output):
            said = next(line for line in output if line.startswith("step 1/"))
            engine.order(hold=True)
            while not engine.told()["waiting"]:
                time.sleep(0.02)
            os.kill(run.pids[0], signal.SIGINT)
            code = run.wait(100)
            said += output.read()
        assert engine.told()["waiting"], "the server has answered nothing"
    assert code == 0 and "Traceback" not in said
    assert f"saved after step {Checkpoints(folder / 'checkpoints').steps()[-1]}" in said


def test_defaults_of_an_engine_give_way_to_what_the_config_says(config):
    resolved = config()
    assert resolved.config.algorithm.algorithm.old == "reread"
    assert resolved.origin(("algorithm", "old")) == "default with policy.engine"
    assert resolved.config.algorithm.label == "grpo + importance"
    mine = config("algorithm.importance=[]").config.algorithm.algorithm
    assert (mine.old, mine.importance) == ("reread", ())
    mine = config("algorithm.old=recorded").config.algorithm.algorithm
    assert (mine.old, mine.importance) == ("recorded", ()), "a correction would compare the record with itself"
    entropy = config("algorithm.preset=high_entropy").config.algorithm.algorithm.importance
    assert [type(weight).__name__ for weight in entropy] == ["HighEntropy", "RolloutCorrection"]


def test_a_look_at_what_was_trained_needs_no_server(config):
    looked = without_engine(config('policy.engine.url=["http://127.0.0.1:9"]')).config.policy
    assert isinstance(looked, TextPolicyConfig) and looked.engine is None


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("policy.sampling.top_p=0.9", "algorithm.old=recorded"), 'set algorithm.old = "reread", or leave the filter out'),
        (("policy.engine.environment=nowhere",), "run `mmrl engine install`"),
        (('policy.engine.url=["http://127.0.0.1:9"]',), "nothing answers at 127.0.0.1:9"),
        (('policy.engine.sync="lora"',), r"there is no \[policy.lora\]"),
        (('policy.engine.url=["http://node7:8000"]',), "policy.engine.folder"),
    ],
)
def test_what_cannot_work_is_refused_before_the_model_is_loaded(config, tmp_path, monkeypatch, overrides, words):
    monkeypatch.setattr(TextPolicy, "__init__", lambda *_, **__: pytest.fail("the model was loaded"))
    environment = f"policy.engine.environment={make_environment(tmp_path / 'vllm')}"
    alone = any("engine.url" in one or "environment" in one for one in overrides)
    refused(words, lambda: build(config(*(() if alone else (environment,)), *overrides)))


SHORT = Sampling(max_new_tokens=3)


def fleet_of(engine: FakeEngine, policy: TextPolicy, update: Update, rank: int, timeout_s: float = 20.0) -> Fleet:
    """The servers of a run as the process of this rank sees them, with the one server lost."""
    client = EngineClient(engine.url, 20.0)
    member = Member(client, ask_facts(client), alive=False, trouble="its caches were not reset")
    settings = EngineConfig(url=(engine.url,), timeout_s=timeout_s)
    return Fleet([member], FileSync(), settings, rank, update=update, probe=Probe.of(policy))


@pytest.fixture
def policy(tiny: Callable[[str], str]) -> TextPolicy:
    return TextPolicy(TextPolicyConfig(tiny("qwen2_5_vl")))


@pytest.fixture
def update(policy: TextPolicy, tmp_path: Path) -> Update:
    update = Update("one-1", tmp_path / "one-1")
    FileSync().save(policy, update)
    return update


def one_row(policy: TextPolicy) -> tuple[list[Ask], list[WirePrompt], dict[str, object], AnswerFacts]:
    params, asks = sampling_params(SHORT, policy.banned, policy.eos_token_ids), share_rows([0], [(1, 0)])
    return asks, wire_prompts(policy, [policy.encode(prompts()[0])]), params, limits_of(policy, SHORT)


def test_only_the_first_process_takes_a_server_back(policy: TextPolicy, update: Update):
    asked = one_row(policy)
    with engines(policy.config.model) as (engine,):
        first, second = fleet_of(engine, policy, update, 0), fleet_of(engine, policy, update, 1, timeout_s=0.6)
        engine.order(break_reset=2)
        refused(r"no engine answers \(its caches were not reset", second.write, *asked, error=EngineUnavailableError)
        assert not {"/pause?mode=wait", "/reset_prefix_cache", "/update_weights"} & set(engine.told()["calls"])
        first.write(*asked)
        calls = engine.told()["calls"]
        assert calls.count("/pause?mode=wait") == 2 and calls.count("/update_weights") == 1, "after a reset that failed, again"
        second.begin()
        second.members[0] = replace(second.members[0], alive=False)
        second.write(*asked)
        assert len(engine.told()["wrote"]) == 3, "a first question, and a row of each"


def test_a_server_that_lost_its_weights_gets_them_though_the_first_process_asks_nothing(
    policy: TextPolicy, update: Update, monkeypatch: pytest.MonkeyPatch
):
    """The first process may have its rows already, and wait for the others."""
    monkeypatch.setattr("mmrl.engine.fleet.LOOK_S", 0.01)
    port = free_ports(1)
    with engines(policy.config.model, port=port) as (engine,):
        first, second = (fleet_of(engine, policy, update, rank) for rank in (0, 1))
        first.update = None
        looking = threading.Thread(target=first.look_after_all)
        looking.start()
        time.sleep(0.3)
        first.update = update
        first.push()
    with engines(policy.config.model, port=port) as (engine,):
        second.write(*one_row(policy))
        first.is_over.set()
        looking.join()
        calls = engine.told()["calls"]
        assert calls.count("/update_weights") == 1 and len(engine.told()["wrote"]) == 2, "a first question, and the row"


@pytest.mark.slow
def test_two_processes_never_sample_with_stale_caches(tiny: Callable[[str], str], tmp_path: Path):
    with engines(tiny("qwen2_5_vl")) as (engine,):
        found = results("tests.engine.run_ranks", "replicated", tmp_path, tiny("qwen2_5_vl"), engine.url)
    assert len(found) == 2 and max(gap for one in found for gap in one["gaps"]) < 1e-4, found
    assert all(len(one["gaps"]) == 6 for one in found), "the last one of a thread, ahead of two updates"
