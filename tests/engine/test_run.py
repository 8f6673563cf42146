"""Steps that vLLM writes: from a config, beside updates and over its death, with the right weights and the right distribution."""

import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency

from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.app.commands.train import TrainArguments, train
from mmrl.core.readings import WEIGHTS_VERSION
from mmrl.core.types import Group, Prompt, Request, Rollouts
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import Sampling, TextPolicy
from tests.engine.servers import CLOSE, gap, move, renew, server_of
from tests.support.faults import trainer_of
from tests.support.text_policies import ids_of

pytestmark = pytest.mark.engine
REWARD = '''
def letters(group):
    """The share of small letters."""
    return [sum("a" <= c <= "z" for c in sample.text) / max(1, len(sample.text)) for sample in group.samples]
'''
CONFIG = """
steps = 3
prompts_per_step = 4
[algorithm]
preset = "grpo"
group_size = 4
[policy]
kind = "text"
model = "{model}"
answer_format = "direct"
[policy.sampling]
max_new_tokens = 16
[policy.engine]
url = ["{url}"]
folder = "{here}/shared"
{lora}
[data]
use = "digits_grounding"
size = 16
[[reward]]
use = "{here}/reward.py:letters"
[evaluation]
seen = 0
[optimizer]
lr = 1e-2
"""


@pytest.mark.parametrize("lora", ["", "[policy.lora]\nrank = 4\nalpha = 64"], ids=["all weights", "an adapter"])
def test_three_steps(lora: str, owner: TextPolicy, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    server = server_of(owner).server
    assert server is not None
    renew(owner)
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(model=model, url=server.url, here=tmp_path, lora=lora))
    (tmp_path / "reward.py").write_text(REWARD)
    gaps, late, kept, write = list[float](), list[float](), list[Rollouts](), TextPolicy.rollout

    def rollout(policy: TextPolicy, requests: Sequence[Request], sampling: Sampling | None = None) -> Rollouts:
        late.extend(gap(policy, earlier) for earlier in kept[-1:])
        kept.append(write(policy, requests, sampling))
        gaps.append(gap(policy, kept[-1]))
        return kept[-1]

    monkeypatch.setattr(TextPolicy, "rollout", rollout)
    run = train(TrainArguments([str(config)], output=tmp_path / "run"))
    steps = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert min(step["policy/grad_norm"] for step in steps) > 0
    assert max(gaps) < CLOSE, "every step is written with the weights that were trained so far"
    assert min(late) > 100 * CLOSE, "which each update has moved"
    assert [rollouts.weights_version for rollouts in kept[:3]] == [0, 1, 2]


SAMPLING = Sampling(max_new_tokens=256)


def engine_process(group: int) -> int:
    """The process of a server's group that computes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # the command's name may hold spaces and brackets, so what follows the last bracket is read
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and b"EngineCore" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    (one,) = found
    return one


def wait_until_it_writes(policy: TextPolicy) -> None:
    generator = server_of(policy)
    assert generator.fleet is not None
    for _ in range(10_000):
        text = str(generator.fleet.members[0].client.get("/metrics"))
        running = re.search(r"^vllm:num_requests_running\{.*?\} (\d+)", text, re.M)
        if running and int(running[1]) > 0:
            return
        time.sleep(0.02)
    raise AssertionError("it was never seen writing")


def test_it_is_started_again_with_the_weights_of_the_step(owner: TextPolicy, asked: Sequence[Prompt]):
    requests = [Request(prompt, 2, group_id=i, seed=41 + i) for i, prompt in enumerate(asked)]
    move(owner, by=0.2)
    undisturbed = owner.rollout(requests, SAMPLING)
    assert gap(owner, undisturbed) < CLOSE
    server, found, killed = server_of(owner).server, list[Rollouts](), threading.Event()
    assert server is not None
    before = server.process.pid

    def write() -> None:
        """Steps after steps, so that the kill falls into one; the last begins before it and ends after it."""
        while not killed.is_set():
            found.append(owner.rollout(requests, SAMPLING))

    writing = threading.Thread(target=write)
    writing.start()
    wait_until_it_writes(owner)
    os.kill(engine_process(before), signal.SIGKILL)
    killed.set()
    writing.join()
    found.append(owner.rollout(requests, SAMPLING))
    assert server.process.pid != before, "another server has answered"
    assert all(rollouts.groups == undisturbed.groups for rollouts in found), "the same seeds and weights: the same samples"
    assert gap(owner, found[-1]) < CLOSE
    assert found[-1].weights_version == undisturbed.weights_version


STEPS = 3


def early(group: Group) -> list[float]:
    """The share of a text's letters before m."""
    return [sum(letter < "m" for letter in sample.text or "") / max(1, len(sample.text or "")) for sample in group.samples]


@pytest.mark.parametrize("sync", ["file", "lora"])
def test_a_step_ahead(sync: str, owner: TextPolicy, join: Callable[..., TextPolicy], asked: Any, monkeypatch: pytest.MonkeyPatch):
    renew(owner)
    policy = join(sync, **({"lora": LoraSettings(rank=4, alpha=8)} if sync == "lora" else {}))
    importance = (RolloutCorrection(mode="token_truncate", high=2.0),)
    algorithm = replace(PRESETS["dr_grpo"], old="reread", importance=importance, group_size=4).with_length(12)
    trainer = trainer_of(policy, algorithm, asked[:3], early, steps=STEPS, prompts_per_step=2, ahead=1, micro_batch=4096)
    rows, audit = list[Rollouts](), trainer.audit
    monkeypatch.setattr(trainer, "audit", lambda rollouts, step: rows.append(rollouts) or audit(rollouts, step))
    metrics = [trainer.step() for _ in range(STEPS)]
    trainer.producer.close()
    versions = [one.recorded[WEIGHTS_VERSION].unique().tolist() for one in rows]
    assert versions == [[0.0], [0.0], [float(algorithm.updates)]], "and the gate has compared each with a reading under these"
    assert [one["rollout/staleness"] for one in metrics] == [0, 1, 1]
    assert all(torch.isfinite(weight).all() for weight in policy.parameters())


COUNT = 1024
"""Samples of a prompt, by each of the two."""
RARE = 10
"""Tokens that both wrote less often than so, together, count as one."""


def tokens_of(policy: TextPolicy, prompt: Prompt, temperature: float, seed: int) -> list[tuple[int, ...]]:
    """The first two tokens of every sample."""
    sampling = Sampling(temperature=temperature, max_new_tokens=2)
    (group,) = policy.rollout([Request(prompt, COUNT, group_id=0, seed=seed)], sampling).groups
    return [ids_of(sample) for sample in group.samples]


def probability(one: Sequence[int], other: Sequence[int]) -> float:
    """p of a chi-square test that both lists were drawn from one distribution."""
    counts = [Counter(one), Counter(other)]
    often = [token for token in sorted(set(one) | set(other)) if sum(count[token] for count in counts) >= RARE]
    rows = [[*(count[token] for token in often), sum(n for token, n in count.items() if token not in often)] for count in counts]
    table = np.array(rows)
    found: Any = chi2_contingency(table[:, table.sum(0) > 0])
    return float(found.pvalue)


@pytest.mark.parametrize("name", ["text", "picture"])
def test_samples_are_equal_in_distribution(name: str, join: Callable[..., TextPolicy], asked: Sequence[Prompt]):
    policy = join()
    with torch.no_grad():
        policy.net.model.get_output_embeddings().weight.mul_(2.0)  # far from even, so that a difference has where to show
    (prompt,) = (prompt for prompt in asked if prompt.id == name)
    there = tokens_of(policy, prompt, 1.0, seed=31)
    cold = tokens_of(policy, prompt, 0.7, seed=31)
    policy.generator = server_of(policy).local
    here = tokens_of(policy, prompt, 1.0, seed=32)
    for place in (0, 1):
        mine, theirs = ([tokens[place] for tokens in rows if len(tokens) > place] for rows in (here, there))
        assert probability(mine, theirs) > 1e-4
    assert probability([tokens[0] for tokens in here], [tokens[0] for tokens in cold]) < 1e-8, "another temperature would be seen"
