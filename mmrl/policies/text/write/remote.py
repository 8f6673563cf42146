"""Completions that other processes write, with the policy's own weights of some version, equal to the bit."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import cast

from mmrl.policies.shared.workers.remote import Remote, refuse_mixed
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.write.generate import Completions, Generator, LocalGenerator, Part, Seed
from mmrl.runtime.spans import in_span


class RemoteGenerator(Remote[TextHost, LocalGenerator], Generator):
    """Writes in other processes, chunk by chunk as the policy cuts them."""

    def write(
        self, prompts: Sequence[Encoded], prompt_index: Sequence[int], seeds: Sequence[Seed], sampling: Sampling
    ) -> Completions:
        """The completions of one chunk."""
        return next(self.write_all([(prompts, prompt_index, seeds, sampling)]))

    @in_span("generate")
    def write_all(self, parts: Iterable[Part]) -> Iterator[Completions]:
        """The completions of several chunks; raises what `ask` raises."""
        if self.host.weights.active != "policy":
            return (self.local.write(*part) for part in parts)
        chunks = [([bare(one) for one in prompts], list(index), list(seeds), how) for prompts, index, seeds, how in parts]
        answers = [cast("tuple[list[Seed], Completions]", one) for one in self.ask(chunks)]
        for (_, _, seeds, _), (wrote, _) in zip(chunks, answers, strict=True):
            refuse_mixed(seeds, wrote)
        return (completions for _, completions in answers)


def bare(prompt: Encoded) -> Encoded:
    """A prompt as the network reads it, without what it was made of."""
    return replace(prompt, prompt=None, views={}, pictures=(), short_ids=None, past=None)
