"""Attacks on samplers: weights that get lost, torn or replaced on their way to them, and samplers that draw something else."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from accelerate import Accelerator
from torch import Tensor

from mmrl.app.config.run import load
from mmrl.app.modality.flow_sampler import FlowSampler
from mmrl.app.run.build import build
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.write.generate import Sampled
from mmrl.policies.flow.write.remote import RemoteGenerator
from mmrl.policies.shared.workers.crew import Crew
from mmrl.policies.shared.workers.settings import Place
from mmrl.policies.shared.workers.slots import HEAD, NOTHING, Slots, buffer_of
from mmrl.training.stopping import TrainingStoppedError
from tests.attacks.attack import Attack, BrokenError

STEPS = 4
TINY = [f"steps={STEPS}", "prompts_per_step=2", "evaluation.num_prompts=0", "policy.forward_rows=8", "policy.lora.rank=2"]
WORDS = [*TINY, "ahead=1", "cluster.samplers=2", "optimizer.lr=0.1"]
HERE = Place("", 1, False)
Draw = Callable[..., Sampled]
"""What a sampler answers to a place, a version, requests and a table of sigmas."""
Twist = Callable[..., Sampled]
"""What it answers instead, from its draw and the same."""
Fault = Callable[[Slots, int, int, Sequence[Tensor]], None]
"""What becomes of weights of a version that are to be written into a slot."""


class Here:
    """A sampler in this process, whose draws go through `twist` first."""

    def __init__(self, draw: Draw, twist: Twist) -> None:
        self.draw, self.twist = draw, twist

    def __call__(self, *job: object) -> object:
        return self.twist(self.draw, *job)

    def give_up(self) -> None:
        """It ends by itself."""


class FaultySlots(Slots):
    """Shared memory in which the first publication after an update goes wrong."""

    fault: Fault
    broken = 0
    """The version that goes wrong whenever it is published."""

    def write(self, place: int, version: int, weights: Sequence[Tensor]) -> None:
        if version and self.broken in (0, version):
            self.__dict__["broken"] = version
            self.fault(self, place, version, weights)
        else:
            super().write(place, version, weights)


def plain(draw: Draw, *job: object) -> Sampled:
    """Draw what was asked for."""
    return draw(*job)


def run(twist: Twist = plain, fault: Fault = Slots.write) -> Tensor:
    """The weights after a few steps whose pictures two samplers draw."""
    job = build(load("tiny/flow", WORDS))
    policy = job.policy
    assert isinstance(policy, FlowPolicy) and isinstance(policy.generator, RemoteGenerator)
    made = Slots.for_weights(list(policy.weights.named.values()))
    slots = FaultySlots(made.name, made.dtypes, made.shapes)
    slots.__dict__["fault"] = fault
    samplers = [FlowSampler(policy.config, slots, HERE) for _ in range(2)]
    for sampler in samplers:
        sampler.policy = FlowPolicy(policy.config)
        sampler.policy.prepare(Accelerator(cpu=True))
    policy.generator.slots = slots
    policy.generator.crew = Crew([Here(sampler, twist) for sampler in samplers], 0)
    try:
        job.trainer.fit()
    finally:
        policy.generator.close()
    return torch.cat([weight.detach().flatten() for weight in policy.parameters()])


def refuse(words: str, twist: Twist, fault: Fault, folder: Path) -> str:
    """The run stops with a sentence that holds these words."""
    try:
        run(twist, fault)
    except (TrainingStoppedError, RuntimeError) as error:
        if words not in str(error):
            raise BrokenError(f"it says {error}") from None
        return "the run stops"
    raise BrokenError("it trains")


def change_nothing(fault: Fault, folder: Path) -> str:
    """The weights are those of a run without the fault."""
    if not torch.equal(run(), run(fault=fault)):
        raise BrokenError("the weights are others")
    return "the same weights"


def lose(slots: Slots, place: int, version: int, weights: Sequence[Tensor]) -> None:
    """The weights do not arrive."""


def tear(slots: Slots, place: int, version: int, weights: Sequence[Tensor]) -> None:
    """The last weights are missing."""
    Slots.write(slots, place, version, weights)
    HEAD.pack_into(buffer_of(slots.name), place * slots.size, version, NOTHING)


def write_twice(slots: Slots, place: int, version: int, weights: Sequence[Tensor]) -> None:
    """The same weights go into both slots."""
    for one in (place, 1 - place):
        Slots.write(slots, one, version, weights)


def overwrite(slots: Slots, place: int, version: int, weights: Sequence[Tensor]) -> None:
    """Another trainer writes its weights over them."""
    Slots.write(slots, place, version, weights)
    Slots.write(slots, place, version + 40, [weight + 1 for weight in weights])


def name_other(draw: Draw, place: int, version: int, *asked: object) -> Sampled:
    """It names another version than it drew with."""
    return replace(draw(place, version, *asked), weights_version=version + 1)


def keep_first(draw: Draw, place: int, version: int, *asked: object) -> Sampled:
    """It draws with weights of before, and says that they are those of now."""
    if version:
        sampler = cast("FlowSampler", draw)
        kept = [torch.zeros_like(weight) for weight in sampler.policy.weights.named.values()]
        read, sampler.slots = sampler.slots, cast("Slots", Unread(kept))
        try:
            return draw(place, version, *asked)
        finally:
            sampler.slots = read
    return draw(place, version, *asked)


class Unread:
    """Shared memory that nothing is read from."""

    def __init__(self, kept: Sequence[Tensor]) -> None:
        self.kept = kept

    def read(self, place: int, version: int, into: Sequence[Tensor]) -> None:
        """Leave the weights as they were at the beginning: those of an adapter that changes nothing."""


def mix_rows(draw: Draw, place: int, version: int, requests: Sequence[object], *asked: object) -> Sampled:
    """It draws the requests of a chunk in another order."""
    return draw(place, version, list(requests)[::-1], *asked)


def leave_out(draw: Draw, place: int, version: int, requests: Sequence[object], *asked: object) -> Sampled:
    """It draws the first request of a chunk alone."""
    return draw(place, version, list(requests)[:1], *asked)


LOST = {
    "a publication is lost": ("a publication was lost", lose),
    "a publication is torn": ("written in part", tear),
    "another trainer writes into its memory": ("replaced too early", overwrite),
}
WRONG = {
    "one names another version of the weights": ("and ahead = 1 says", name_other),
    "one keeps its first weights and denies it": ("|log ratio| is", keep_first),
    "one draws a chunk's prompts in another order": ("was asked for the samples", mix_rows),
    "one leaves prompts of a chunk out": ("was asked for the samples", leave_out),
}
ATTACKS = [
    *(Attack("samplers", name, partial(refuse, words, plain, fault)) for name, (words, fault) in LOST.items()),
    *(Attack("samplers", name, partial(refuse, words, twist, Slots.write)) for name, (words, twist) in WRONG.items()),
    Attack("samplers", "a publication comes twice", partial(change_nothing, write_twice)),
]
