"""Pictures that another process draws: the same bits as the trainer's own, beside its updates and after a kill."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch

from mmrl.app.config.run import load
from mmrl.app.run.build import Job, build
from mmrl.core.types import Prompt, Request
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.trace import SigmaTable
from mmrl.policies.flow.write.generate import RemoteGenerator, chunks_of
from mmrl.runtime.blame import UnavailableError
from mmrl.runtime.workers import WorkerProcess
from mmrl.training.checkpoints.state import copy_state
from tests.support.flow_policies import PLANS, requests, stir
from tests.support.trainers import weights

TINY = ["steps=3", "prompts_per_step=2", "evaluation.num_prompts=0", "policy.forward_rows=4", "policy.lora.rank=2"]


def generator_of(job: Job) -> RemoteGenerator:
    assert isinstance(job.policy, FlowPolicy) and isinstance(job.policy.generator, RemoteGenerator)
    return job.policy.generator


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    made = build(load("tiny/flow", [*TINY, "ahead=1", "cluster.samplers=1"]))
    yield made
    made.trainer.producer.close()
    generator_of(made).close()


def test_steps_beside_training_equal_those_after_a_kill_and_a_resume(job: Job):
    metrics = [job.trainer.step() for _ in range(2)]
    state = copy_state(job.trainer.state_dict())
    metrics.append(job.trainer.step())
    assert [one["rollout/staleness"] for one in metrics] == [0, 1, 1]
    whole = weights(job)
    job.trainer.load_state_dict(state)
    assert not torch.equal(weights(job), whole)
    crew = generator_of(job).crew
    assert crew is not None
    (sampler,) = crew.workers
    assert isinstance(sampler, WorkerProcess) and sampler.pid is not None
    os.kill(sampler.pid, signal.SIGKILL)
    job.trainer.step()
    assert torch.equal(weights(job), whole)


def test_another_process_draws_the_same_bits(job: Job):
    policy, generator = job.policy, generator_of(job)
    assert isinstance(policy, FlowPolicy)
    job.trainer.producer.close()
    stir(policy)
    _, hold, _ = policy.publish()
    hold()
    plan = PLANS["flow_grpo"]
    parts = [(requests(4, 3), SigmaTable(plan, (16, 16), policy.sigmas(plan)))]
    there = generator.write(parts)
    with torch.no_grad():
        here = generator.local.write([(chunk, parts[0][1]) for chunk in chunks_of(parts[0][0], 4)])
    assert [one.keys for one in there] == [one.keys for one in here] and len(there) == 3
    for other, own in zip(there, here, strict=True):
        assert torch.equal(other.trajectory.logprobs, own.trajectory.logprobs)
        assert [image.tobytes() for image in other.images] == [image.tobytes() for image in own.images]  # pyright: ignore
        assert other.weights_version == policy.weights.num_updates
    generator.version += 1
    with pytest.raises(UnavailableError, match=r"was to use weights of version 7, and the memory .* holds 6 to 6"):
        generator.write(parts)


def test_chunks_are_whole_requests_whatever_the_number_of_processes():
    asked = [Request(Prompt(str(i), "a dog"), count, i) for i, count in enumerate((2, 2, 3, 6, 1))]
    assert [[one.count for one in chunk] for chunk in chunks_of(asked, 4)] == [[2, 2], [3], [6], [1]]
