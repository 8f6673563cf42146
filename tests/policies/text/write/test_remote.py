"""Completions that another process writes: the same bits as the trainer's own, beside its updates and after a resume."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mmrl.app.config.run import load
from mmrl.app.run.build import Job, build
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts
from mmrl.policies.shared.workers.crew import Job as Asked
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.policies.text.write.generate import LocalGenerator, RemoteGenerator
from mmrl.runtime.blame import UnavailableError
from mmrl.training.checkpoints.state import copy_state
from tests.support.text_policies import mixed
from tests.support.trainers import weights

TINY = [
    "steps=3",
    "prompts_per_step=2",
    "evaluation.num_prompts=0",
    "policy.rollout_rows=3",
    "policy.lora.rank=2",
    "optimizer.lr=0.1",
    "policy.sampling.max_new_tokens=8",
    f"reward.0.use={Path(__file__).parents[3] / 'support' / 'even_letters.py'}",
]


def generator_of(job: Job) -> RemoteGenerator:
    assert isinstance(job.policy, TextPolicy) and isinstance(job.policy.generator, RemoteGenerator)
    return job.policy.generator


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    made = build(load("tiny/image", [*TINY, "ahead=1", "cluster.samplers=1"]))
    yield made
    made.trainer.producer.close()
    generator_of(made).close()


def test_steps_beside_training_equal_those_after_a_resume(job: Job):
    metrics = [job.trainer.step() for _ in range(2)]
    state = copy_state(job.trainer.state_dict())
    metrics.append(job.trainer.step())
    assert [one["rollout/staleness"] for one in metrics] == [0, 1, 1]
    whole = weights(job)
    job.trainer.load_state_dict(state)
    assert not torch.equal(weights(job), whole)
    job.trainer.step()
    assert torch.equal(weights(job), whole)


def test_another_process_writes_the_same_bits(job: Job, monkeypatch: pytest.MonkeyPatch):
    policy, generator = job.policy, generator_of(job)
    assert isinstance(policy, TextPolicy)
    job.trainer.producer.close()
    _, hold, _ = policy.publish()
    hold()
    asked, ask = list[Asked](), generator.ask
    monkeypatch.setattr(generator, "ask", lambda chunks: asked.extend(chunks) or ask(chunks))
    there = policy.rollout(mixed())
    assert len(asked) == 3, "chunks of three rows, whoever writes them"
    monkeypatch.setattr(policy, "generator", LocalGenerator(policy))
    assert same(there, policy.rollout(mixed()))
    monkeypatch.undo()
    held, generator.version = generator.version, generator.version + 1
    words = rf"was to use weights of version {held + 1}, and the memory .* holds {held} to {held}"
    try:
        with pytest.raises(UnavailableError, match=words):
            policy.rollout(mixed())
    finally:
        generator.version = held


def same(one: Rollouts, other: Rollouts) -> bool:
    both = [[sample.token_ids for _, sample in rollouts.samples()] for rollouts in (one, other)]
    return both[0] == both[1] and torch.equal(one.recorded[ROLLOUT_LOGPROBS], other.recorded[ROLLOUT_LOGPROBS])


@pytest.mark.parametrize(("where", "temperature"), [("here", 0.0), ("here", 1.0), ("in a sampler", 1.0)])
def test_weights_that_are_nan_are_a_sentence(job: Job, where: str, temperature: float, monkeypatch: pytest.MonkeyPatch):
    policy = job.policy
    assert isinstance(policy, TextPolicy)
    if where == "here":
        monkeypatch.setattr(policy, "generator", LocalGenerator(policy))
    kept = [weight.detach().clone() for weight in policy.parameters()]
    with torch.no_grad():
        for weight in policy.parameters():
            weight.fill_(torch.nan)
    policy.advance()
    if where == "in a sampler":
        _, hold, _ = policy.publish()
        hold()
    try:
        with pytest.raises(ValueError, match=r"the model's logits are NaN in \d+ of \d+ completions: look for weights that div"):
            policy.rollout(mixed(), Sampling(temperature=temperature, max_new_tokens=3))
    finally:
        with torch.no_grad():
            for weight, value in zip(policy.parameters(), kept, strict=True):
                weight.copy_(value)
        policy.advance()
