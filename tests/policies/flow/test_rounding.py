"""What a network rounds differently in forwards of another size, and how much of it is left in a log-probability."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.readings import LOGPROBS, MEAN, ROLLOUT_LOGPROBS
from mmrl.flow.dynamics import DDIM
from mmrl.flow.schedules import Full
from mmrl.flow.sigmas import DiffusionTable
from mmrl.policies.flow.policy import FlowPolicy
from tests.support.flow_policies import requests
from tests.support.late_families import CASES, policy_of

LEVEL, GUIDANCE, TRAINED = 0.7, 3.0, 2


@dataclass
class Forwards:
    """What a UNet was shown and what it answered, forward by forward; `noise` is added to its answers."""

    noise: float = 0.0
    shown: list[Tensor] = field(default_factory=list[Tensor])
    answered: list[Tensor] = field(default_factory=list[Tensor])

    @contextmanager
    def of(self, policy: FlowPolicy):
        generator = torch.Generator().manual_seed(0)

        def note(module: Any, args: tuple[Any, ...], out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            noisy = out[0] + self.noise * torch.randn(out[0].shape, generator=generator)
            self.shown.append(args[0].double())
            self.answered.append(noisy.detach().double())
            return (noisy,)

        handle = policy.net.transformer.register_forward_hook(note)
        yield
        handle.remove()


def by_step(both: Tensor) -> Tensor:
    """A reading's one forward of both passes, (2 * rows * steps, ...), as (2, steps, rows, ...)."""
    return both.unflatten(0, (2, -1, TRAINED)).transpose(1, 2)


def means_per_output(sigmas: Tensor) -> Tensor:
    """By how much each step's mean moves with the network's prediction of noise, from DDIM's formula alone."""
    noise = sigmas / ((1 - sigmas) ** 2 + sigmas**2).sqrt()
    signal = (1 - noise**2).sqrt()
    std = LEVEL * noise[1:] / noise[:-1] * (1 - (signal[:-1] / signal[1:]) ** 2).clamp(min=0).sqrt()
    moved = (noise[1:] ** 2 - std**2).clamp(min=0).sqrt() - signal[1:] / signal[:-1] * noise[:-1]
    return moved / (signal[1:] + noise[1:])


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_the_unets_answer_alone_moves_a_log_probability(tiny, noise):
    """Its difference d between 8 rows and 16 moves the mean by m = c d, that the log-probability by z . m / S - |m / S|^2 / 2.

    d is what this machine rounds, about 1e-7, or far larger noise besides: nothing else is added but float32's own rounding.
    """
    policy = policy_of(tiny, CASES["sd15"], height=16, width=16, guidance=GUIDANCE)
    sampling, reading = Forwards(), Forwards(noise)
    with sampling.of(policy):
        rollouts = policy.rollout(requests(count=2), Full(num_steps=3, dynamics="ddim", level=LEVEL).at(0))
    trace: Any = rollouts.trace
    with reading.of(policy), torch.no_grad():
        found = policy.read(trace, [LOGPROBS, MEAN], rollouts.action_mask)
    shown, answered = (
        torch.stack([part.unflatten(0, (2, -1)) for part in parts[:TRAINED]], 1) for parts in (sampling.shown, sampling.answered)
    )
    assert torch.equal(by_step(reading.shown[0]), shown), "the network sees the same latents, bit for bit"
    without, with_prompt = by_step(reading.answered[0]) - answered
    assert noise or max(without.abs().max(), with_prompt.abs().max()) < 5e-6
    guided = without + GUIDANCE * (with_prompt - without)
    sigmas, deviations = (values.double() for values in (trace.sigma_tables[0].sigmas, trace.sigma_tables[0].deviations))
    for step, c in enumerate(means_per_output(sigmas)[:TRAINED]):
        std = deviations[step]
        noted = trace.latents[trace.means[:, step]].double()
        moved = found[MEAN][:, step] - noted
        assert (moved - c * guided[step]).abs().max() < 1e-5
        assert not noise or moved.abs().max() > 1e-3
        z = (trace.latents[trace.after[:, step]] - noted) / std
        expected = (z * moved / std - (moved / std) ** 2 / 2).flatten(1).mean(1)
        seen = (found[LOGPROBS] - rollouts.recorded[ROLLOUT_LOGPROBS])[:, step]
        assert (seen - expected).abs().max() < 1e-6


def test_few_steps_make_the_unets_rounding_count_thirty_times():
    """DDIM's step to the first time of the table has little noise S: c / S is 31 at three steps, 4 at the fifty of DDPO."""
    found = {
        steps: (means_per_output(table) / DDIM(LEVEL).deviation(table, torch.arange(steps))).abs()
        for steps in (3, 50)
        for table in [DiffusionTable().sigmas(DiffusionTable().grid(steps)).double()]
    }
    assert found[3].max() == pytest.approx(31.36, abs=0.01)
    assert found[50].max() == pytest.approx(4.00, abs=0.01)
    assert found[50].median() < 0.5
