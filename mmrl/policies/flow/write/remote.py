"""Images that other processes draw, with the policy's own weights of some version, equal to the bit."""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from mmrl.core.types import Request
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.trace import SigmaTable
from mmrl.policies.flow.write.generate import Generator, LocalGenerator, Sampled
from mmrl.policies.shared.weights import Publication, Weights
from mmrl.policies.shared.workers.crew import Crew
from mmrl.policies.shared.workers.settings import Place, SamplerSettings
from mmrl.policies.shared.workers.slots import Slots
from mmrl.runtime.spans import in_span
from mmrl.runtime.workers import WorkerProcess

Part = tuple[Sequence[Request], SigmaTable]


class FlowSampler:
    """The call that a sampling process answers: a policy of the same config, with the weights that a slot holds."""

    def __init__(self, config: FlowPolicyConfig, slots: Slots, place: Place) -> None:
        self.config, self.slots, self.place = config, slots, place

    def prepare(self) -> None:
        """Load the model, once the process has started."""
        self.place.enter()
        from accelerate import Accelerator
        from diffusers.utils import logging as drawing
        from tqdm import tqdm
        from transformers.utils import logging as words

        from mmrl.policies.flow.policy import FlowPolicy

        # tqdm's own lock is a semaphore of the machine, which stays behind where a process is killed
        tqdm.set_lock(threading.RLock())
        for library in (words, drawing):
            library.disable_progress_bar()
        self.policy = FlowPolicy(self.config)
        self.policy.prepare(Accelerator(cpu=not self.place.card))

    @torch.no_grad()
    def __call__(self, place: int, version: int, requests: Sequence[Request], sigma_table: SigmaTable) -> Sampled:
        """A chunk, drawn with the weights of a version; what only the drawing itself needs stays behind."""
        policy = self.policy
        self.slots.read(place, version, list(policy.weights.named.values()))
        policy.weights.num_updates = version
        policy.net.uploads.clear()
        drawn = policy.generator.write(requests, sigma_table)
        return replace(drawn, requests=(), trajectory=replace(drawn.trajectory, states=(), means=()))


class RemoteGenerator:
    """Draws in other processes; under weights other than the live ones with the network that trains.

    Chunks are whole requests, as many as fill a forward, whatever the number of processes.
    """

    exact = True

    def __init__(self, host: FlowHost, settings: SamplerSettings) -> None:
        self.host, self.settings, self.local = host, settings, LocalGenerator(host)
        self.crew: Crew | None = None
        self.slots: Slots | None = None
        self.version, self.place = -1, 0
        """The weights that are drawn with, and the slot that holds them."""
        self._publishes = False

    def follow(self, weights: Weights, version: int) -> None:
        """Draw with the live weights, unless the run publishes weights itself."""
        if not self._publishes:
            self._open().begin()
            self._hold(version, list(weights.named.values()))

    def publish(self, version: int) -> Publication:
        """See Publishing."""
        self._publishes = True
        crew, kept = self._open(), [weight.detach().clone() for weight in self.host.weights.named.values()]
        crew.begin()
        return version, partial(self._hold, version, kept), crew.leave

    def write(self, requests: Sequence[Request], sigma_table: SigmaTable) -> Sampled:
        """All samples of requests that fit into one chunk."""
        return self._draw([(requests, sigma_table)])[0]

    @in_span("generate")
    def write_all(self, parts: Sequence[Part]) -> list[Sampled]:
        """The samples of several parts, chunk by chunk.

        Raises:
            UnavailableError: processes died too often, or hold other weights.
        """
        if self.host.weights.active != "policy":
            return [self.local.write(*part) for part in parts]
        family, most = self.host.family, self.host.config.forward_rows
        return self._draw([(own, table) for asked, table in parts for own in chunks_of(asked, family.rows_at(most, table.size))])

    def close(self) -> None:
        """End the processes, and give their shared memory back."""
        if self.crew is not None and self.slots is not None:
            close(self.crew, self.slots)
        self.crew = self.slots = None

    def _draw(self, chunks: Sequence[Part]) -> list[Sampled]:
        if self.host.weights.active != "policy" or any(table.plan.base_from is not None for _, table in chunks):
            return [self.local.write(*chunk) for chunk in chunks]
        assert self.crew is not None
        answers = self.crew.ask([(self.place, self.version, *chunk) for chunk in chunks])
        found = [replace(cast(Sampled, one), requests=own) for one, (own, _) in zip(answers, chunks, strict=True)]
        for one in found:
            expected = [(request.seed, i) for request in one.requests for i in request.numbers]
            if list(one.keys) != expected:
                raise RuntimeError(f"a sampler was asked for the samples {expected[:3]} ..., and drew {list(one.keys)[:3]} ...")
        return found

    def _hold(self, version: int, weights: Sequence[Tensor]) -> None:
        assert self.slots is not None
        self.version, self.place = version, 1 - self.place
        self.slots.write(self.place, version, weights)

    def _open(self) -> Crew:
        if self.crew is None:
            places = self.settings.places()
            self.slots = Slots.for_weights(list(self.host.weights.named.values()))
            samplers = [FlowSampler(self.host.config, self.slots, place) for place in places]
            self.crew = Crew([WorkerProcess(one) for one in samplers], self.settings.restarts)
            weakref.finalize(self, close, self.crew, self.slots)
        return self.crew


@runtime_checkable
class WritesParts(Protocol):
    """A generator that draws several parts at the same time."""

    def write_all(self, parts: Sequence[Part]) -> list[Sampled]: ...


def write_all(generator: Generator, parts: Sequence[Part]) -> list[Sampled]:
    """The samples of several parts, together where the generator can."""
    if isinstance(generator, WritesParts):
        return generator.write_all(parts)
    return [generator.write(*part) for part in parts]


def chunks_of(requests: Sequence[Request], most: int) -> Iterator[list[Request]]:
    """Whole requests in their order, of at most so many rows together, or one alone."""
    chunk, rows = list[Request](), 0
    for request in requests:
        if chunk and rows + request.count > most:
            yield chunk
            chunk, rows = [], 0
        chunk.append(request)
        rows += request.count
    if chunk:
        yield chunk


def remote_generator(settings: SamplerSettings) -> Callable[[FlowHost], Generator]:
    """The part of a policy whose images these processes draw."""
    return lambda host: RemoteGenerator(host, settings)


def close(crew: Crew, slots: Slots) -> None:
    """The run is over."""
    crew.close()
    slots.free()
