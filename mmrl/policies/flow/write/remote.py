"""Images that other processes draw, with the policy's own weights of some version, equal to the bit."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, cast, runtime_checkable

from torch import Tensor

from mmrl.core.types import Request
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.trace import SigmaTable
from mmrl.policies.flow.write.generate import Generator, LocalGenerator, Sampled
from mmrl.policies.shared.weights import Publication, Weights
from mmrl.policies.shared.workers.crew import Crew
from mmrl.policies.shared.workers.settings import Place, SamplerSettings
from mmrl.policies.shared.workers.slots import Slots
from mmrl.runtime.spans import in_span
from mmrl.runtime.workers import WorkerProcess

Part = tuple[Sequence[Request], SigmaTable]


class RemoteGenerator:
    """Draws in other processes; under weights other than the live ones with the network that trains.

    Chunks are whole requests, as many as fill a forward, whatever the number of processes.
    """

    exact = True

    def __init__(self, host: FlowHost, settings: SamplerSettings, make: Callable[[Slots, Place], Callable[..., Sampled]]) -> None:
        """`make` gives the call that a process at a place answers, with the weights of these slots."""
        self.host, self.settings, self.make, self.local = host, settings, make, LocalGenerator(host)
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
            self.crew = Crew([WorkerProcess(self.make(self.slots, place)) for place in places], self.settings.restarts)
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
    """Whole requests in their order, of at most `most` rows together, or one alone."""
    chunk, rows = list[Request](), 0
    for request in requests:
        if chunk and rows + request.count > most:
            yield chunk
            chunk, rows = [], 0
        chunk.append(request)
        rows += request.count
    if chunk:
        yield chunk


def close(crew: Crew, slots: Slots) -> None:
    """The run is over."""
    crew.close()
    slots.free()
