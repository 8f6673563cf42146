"""Attacks on samplers: weights that get lost, torn or replaced on their way to them, and samplers that answer something else."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor

from mmrl.app.config.run import load
from mmrl.app.run.build import build
from mmrl.policies.shared.workers.crew import Crew, Restarts
from mmrl.policies.shared.workers.remote import HEAD, NOTHING, Place, Remote, SamplingProcess, Slots, buffer_of
from mmrl.runtime.repeating import Kernels
from mmrl.training.stopping import TrainingStoppedError
from tests.attacks.attack import LOADING, Attack

STEPS = 4
WORDS = [f"steps={STEPS}", "prompts_per_step=2", "evaluation.num_prompts=0", "policy.lora.rank=2", "optimizer.lr=0.1"]
BESIDE = [*WORDS, "ahead=1", "cluster.samplers=2"]
EVEN = Path(__file__).parents[1] / "support" / "even_letters.py"
CONFIGS = {
    "flow": ("tiny/flow", "policy.forward_rows=8"),
    "text": ("tiny/image", "policy.rollout_rows=8", f"reward.0.use={EVEN}"),
}
HERE = Place("", Kernels.now())
Draw = Callable[..., Any]
"""What a sampler answers to a place, a version and what a chunk asks for."""
Twist = Callable[..., Any]
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

    def close(self) -> None:
        """Likewise."""


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


def plain(draw: Draw, *job: object) -> Any:
    """Draw what was asked for."""
    return draw(*job)


def run(twist: Twist = plain, fault: Fault = Slots.write, kind: str = "flow") -> Tensor:
    """The weights after a few steps whose samples two samplers draw."""
    config, *words = CONFIGS[kind]
    with LOADING:
        job = build(load(config, [*BESIDE, *words]))
        generator: Remote = getattr(job.policy, "generator")  # noqa: B009 - a policy's own part
        made = Slots.for_weights(list(job.policy.parameters()))
        slots = FaultySlots(made.name, made.dtypes, made.shapes)
        slots.__dict__["fault"] = fault
        samplers = [cast("SamplingProcess", generator.make(slots, HERE)) for _ in range(2)]
        for sampler in samplers:
            sampler.policy = sampler.make()
            sampler.policy.prepare(Accelerator(cpu=True))
    generator.slots = slots
    generator.crew = Crew([Here(sampler, twist) for sampler in samplers], Restarts(0))
    try:
        job.trainer.fit()
    finally:
        generator.close()
    return torch.cat([weight.detach().flatten() for weight in job.policy.parameters()])


def refuse(words: str, twist: Twist, fault: Fault, kind: str, folder: Path) -> str:
    """The run stops with a sentence that holds these words."""
    try:
        run(twist, fault, kind)
    except (TrainingStoppedError, RuntimeError) as error:
        if words not in str(error):
            raise AssertionError(f"it says {error}") from None
        return "the run stops"
    raise AssertionError("it trains")


def change_nothing(fault: Fault, folder: Path) -> str:
    """The weights are those of a run without the fault."""
    assert torch.equal(run(), run(fault=fault)), "the weights are others"
    return "the same weights"


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


def keep_first(draw: Draw, place: int, version: int, *asked: object) -> object:
    """It draws with weights of before, and says that they are those of now."""
    if version:
        sampler = cast("SamplingProcess", draw)
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


def otherwise(change: Callable[..., Sequence[object]]) -> Twist:
    """It draws with the weights it was told of, and something else than it was asked for."""
    return lambda draw, place, version, *asked: draw(place, version, *change(*asked))


def see_last(prompts: Sequence[Any], *asked: object) -> Sequence[object]:
    """Every prompt of a chunk has the picture of the last one, as if features were kept too long."""
    return [replace(one, media=prompts[-1].media) for one in prompts], *asked


MIXED = otherwise(lambda prompts, index, seeds, sampling: (prompts, index[::-1], seeds[::-1], sampling))
LOST = {
    "a publication is lost": ("a publication was lost", lambda *_: None),
    "a publication is torn": ("written in part", tear),
    "another trainer writes into its memory": ("replaced too early", overwrite),
}
WRONG = {
    "one names another version of the weights": (
        "and ahead = 1 says",
        lambda *job: replace(plain(*job), weights_version=job[2] + 1),
    ),
    "one keeps its first weights and denies it": ("|log ratio| is", keep_first),
    "one draws a chunk's prompts in another order": (
        "was asked for the samples",
        otherwise(lambda rows, *asked: (rows[::-1], *asked)),
    ),
    "one leaves prompts of a chunk out": ("was asked for the samples", otherwise(lambda rows, *asked: (rows[:1], *asked))),
}
WRITING = {
    "one that writes keeps its first weights and denies it": ("|log ratio| is", keep_first),
    "one that writes mixes the rows of a chunk": ("was asked for the samples", MIXED),
    "one that writes keeps features of another picture": ("|log ratio| is", otherwise(see_last)),
}
ATTACKS = [
    *(Attack("samplers", name, partial(refuse, words, plain, fault, "flow")) for name, (words, fault) in LOST.items()),
    *(Attack("samplers", name, partial(refuse, words, twist, Slots.write, "flow")) for name, (words, twist) in WRONG.items()),
    *(Attack("samplers", name, partial(refuse, words, twist, Slots.write, "text")) for name, (words, twist) in WRITING.items()),
    Attack("samplers", "a publication comes twice", partial(change_nothing, write_twice)),
]
