"""Images that other processes draw, with the policy's own weights of some version, equal to the bit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol, cast, runtime_checkable

from mmrl.core.types import Request
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.trace import SigmaTable
from mmrl.policies.flow.write.generate import Generator, LocalGenerator, Sampled
from mmrl.policies.shared.workers.remote import Remote, refuse_mixed
from mmrl.runtime.spans import in_span

Part = tuple[Sequence[Request], SigmaTable]


class RemoteGenerator(Remote[FlowHost, LocalGenerator]):
    """Draws in other processes. Chunks are whole requests, as many as fill a forward, whatever the number of processes."""

    def write(self, requests: Sequence[Request], sigma_table: SigmaTable) -> Sampled:
        """All samples of requests that fit into one chunk."""
        return self._draw([(requests, sigma_table)])[0]

    @in_span("generate")
    def write_all(self, parts: Sequence[Part]) -> list[Sampled]:
        """The samples of several parts, chunk by chunk; raises what `ask` raises."""
        if self.host.weights.active != "policy":
            return [self.local.write(*part) for part in parts]
        family, most = self.host.family, self.host.config.forward_rows
        return self._draw([(own, table) for asked, table in parts for own in chunks_of(asked, family.rows_at(most, table.size))])

    def _draw(self, chunks: Sequence[Part]) -> list[Sampled]:
        if self.host.weights.active != "policy" or any(table.plan.base_from is not None for _, table in chunks):
            return [self.local.write(*chunk) for chunk in chunks]
        found = [replace(cast(Sampled, one), requests=own) for one, (own, _) in zip(self.ask(chunks), chunks, strict=True)]
        for one in found:
            refuse_mixed([(request.seed, i) for request in one.requests for i in request.numbers], one.keys)
        return found


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
