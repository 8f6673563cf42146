"""A run whose completions an engine writes: three optimizer steps from a config, a kill within one of them, and a resumed run."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.app.config.run import Resolved, resolve, without_engine
from mmrl.app.run.build import Job, build
from mmrl.app.toml.tables import Table
from mmrl.engine.generator import VllmGenerator
from mmrl.engine.sync import AdapterSync, Update
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.checkpoints.state import copy_state
from tests.support.fake_engines import ask, engines, make_environment
from tests.support.forked import heard

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
PROMPTS = '''
from mmrl import Prompt
from tests.support.text_policies import picture

def load():
    """Four questions, each with a picture of its own."""
    return [Prompt(str(i), f"what is {i}?", (picture(i),)) for i in range(4)]
'''
REWARD = '''
def early_letters(group):
    """The share of a text's bytes that are small numbers."""
    return [sum(letter < "m" for letter in sample.text) / max(1, len(sample.text)) for sample in group.samples]
'''


@pytest.fixture
def config(tiny: Callable[[str], str], tmp_path: Path) -> Callable[..., Resolved]:
    """A run with these overrides."""
    (tmp_path / "early.py").write_text(REWARD)
    (tmp_path / "questions.py").write_text(PROMPTS)
    text = CONFIG.replace("MODEL", tiny("qwen3_vl")).replace("PROMPTS", f"{tmp_path}/questions.py")
    text = text.replace("REWARD", f"{tmp_path}/early.py:early_letters")
    (tmp_path / "run.toml").write_text(text)

    def read(*overrides: str) -> Resolved:
        return resolve(Table.read(tmp_path / "run.toml"), overrides)

    return read


def generator_of(job: Job) -> VllmGenerator:
    assert isinstance(job.policy, TextPolicy) and isinstance(job.policy.generator, VllmGenerator)
    return job.policy.generator


def weights_of(job: Job) -> dict[str, torch.Tensor]:
    return job.policy.state_dict()["weights"]


def kill_in_a_request(url: str) -> None:
    """SIGKILL to the server's process, which is not the one that mmrl started but its child, while a request is under way."""
    while not ask(url, "/fake")["waiting"]:
        time.sleep(0.05)
    os.kill(ask(url, "/fake")["pid"], signal.SIGKILL)


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
    other, wanted = build(config(there)), weights_of(job)
    for _ in range(3):
        other.trainer.step()
    assert all(torch.equal(weight, wanted[name]) for name, weight in weights_of(other).items()), "the kill left no trace"
    other.trainer.load_state_dict(state)
    other.trainer.step()
    assert all(torch.equal(weight, wanted[name]) for name, weight in weights_of(other).items()), "nor did the resume"
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
        job.trainer.collector.close()
        assert [one["rollout/staleness"] for one in metrics] == [0, 1, 1]
        assert engine.told()["calls"].count("/update_weights") == 2, "the weights that nobody would write with are not sent"
        other.trainer.load_state_dict(state)
        other.trainer.step()
        other.trainer.collector.close()
        wanted = weights_of(job)
        assert all(torch.equal(weight, wanted[name]) for name, weight in weights_of(other).items())
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
    with pytest.raises(ValueError, match=words):
        build(config(*(() if alone else (environment,)), *overrides))
