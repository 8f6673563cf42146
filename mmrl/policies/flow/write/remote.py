"""Images that other processes draw, with the policy's own weights of some version, equal to the bit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from mmrl.core.types import Request
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.write.generate import LocalGenerator, Part, Sampled
from mmrl.policies.shared.workers.remote import Remote, refuse_mixed
from mmrl.runtime.spans import in_span


class RemoteGenerator(Remote[FlowHost, LocalGenerator]):
    """Draws in other processes. Chunks are whole requests, as many as fill a forward, whatever the number of processes."""

    @in_span("generate")
    def write(self, parts: Sequence[Part]) -> list[Sampled]:
        """The samples of several parts, chunk by chunk; raises what `ask` raises."""
        if self.host.weights.active != "policy":
            return self.local.write(parts)
        family, most = self.host.family, self.host.config.forward_rows
        chunks = [(own, table) for asked, table in parts for own in chunks_of(asked, family.rows_at(most, table.size))]
        if any(table.plan.base_from is not None for _, table in chunks):
            return self.local.write(chunks)
        found = [replace(cast(Sampled, one), requests=own) for one, (own, _) in zip(self.ask(chunks), chunks, strict=True)]
        for one in found:
            refuse_mixed([(request.seed, i) for request in one.requests for i in request.numbers], one.keys)
        return found


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
