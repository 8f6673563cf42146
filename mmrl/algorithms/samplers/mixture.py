"""Several data sets in fixed shares, or the classes of one."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from mmrl.algorithms.samplers.base import Shuffled, Streamed
from mmrl.core.protocols import State
from mmrl.core.types import Prompt
from mmrl.runtime.ranges import Seed, check_ranges


@runtime_checkable
class Several(Protocol):
    """Prompts of several data sets."""

    @property
    def parts(self) -> Mapping[str, Iterable[Prompt]]:
        """By the names of the data sets."""
        ...

    @property
    def weights(self) -> Mapping[str, float] | None:
        """The share of each data set among the prompts that are drawn, adding up to 1; None: as large as the data set."""
        ...


@dataclass
class Mixture:
    """The next prompt is of the source with the largest weight_s (n + 1) - n_s, n_s of the n prompts drawn being its own.

    Weights are those of the `[[data]]` tables, or the sources' sizes. Whole prompts stay as close to the shares as they can, also
    within a step. Each source goes on by itself: a list in shuffled epochs, a stream shuffled within a buffer. The mixtures of
    MoDoMoDo (arXiv:2505.24871), whose search for the best one is `mmrl arena --mixtures`.
    """

    prompts: Sequence[Prompt] | Iterable[Prompt]
    """Of several data sets."""
    seed: Seed = 0
    counts: dict[str, int] = field(default_factory=dict[str, int], init=False)
    """Prompts drawn of each source."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not isinstance(self.prompts, Several):
            raise ValueError(
                'sampler.kind = "Mixture" mixes several data sets, and there is one: write a [[data]] table for each, with a name'
            )
        self._begin(self.prompts.parts, weights_of(self.prompts))

    def _begin(self, parts: Mapping[str, Iterable[Prompt]], weights: dict[str, float]) -> None:
        self.weights, self.counts = weights, dict.fromkeys(weights, 0)
        self._samplers = {name: self._sampler(name, part) for name, part in parts.items()}

    def _sampler(self, name: str, part: Iterable[Prompt]) -> Shuffled | Streamed:
        # sources of equal length would come in the same order
        seed = int.from_bytes(hashlib.sha256(f"{self.seed}/{name}".encode()).digest()[:4], "big")
        return Shuffled(part, seed) if isinstance(part, Sequence) else Streamed(part, seed)

    def draw(self, num_prompts: int) -> list[Prompt]:
        names, self.counts = self.choose(num_prompts)
        drawn = {name: iter(sampler.draw(names.count(name))) for name, sampler in self._samplers.items() if name in names}
        return [next(drawn[name]) for name in names]

    def choose(self, num_prompts: int) -> tuple[list[str], dict[str, int]]:
        """The sources of the next prompts, and how many of each were drawn then."""
        names, counts = list[str](), dict(self.counts)
        for _ in range(num_prompts):
            total = sum(counts.values()) + 1
            name = max(self.weights, key=lambda name: self.weights[name] * total - counts[name])
            counts[name] += 1
            names.append(name)
        return names, counts

    def peek(self, num_prompts: int) -> Iterator[Prompt]:
        """Yield the prompts of the next draw, up to the first of a stream."""
        names, _ = self.choose(num_prompts)
        lists = {name: one.peek(names.count(name)) for name, one in self._samplers.items() if isinstance(one, Shuffled)}
        for name in names:
            if name not in lists:
                return
            yield next(lists[name])

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        """Learns nothing from rewards."""

    def state_dict(self) -> State:
        parts = {name: sampler.state_dict() for name, sampler in self._samplers.items()}
        return {"weights": dict(self.weights), "counts": dict(self.counts), "parts": parts}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the state is of other sources, weights or seed."""
        if state["weights"] != self.weights:
            raise ValueError(
                f"the checkpoint's prompts were drawn from {state['weights']}, this run's are from {self.weights}: resume with "
                "the same [[data]] tables, or start a new run from the checkpoint's weights"
            )
        for name, sampler in self._samplers.items():
            sampler.load_state_dict(state["parts"][name])
        self.counts = dict(state["counts"])


@dataclass
class Balanced(Mixture):
    """The next prompt is of the class of which fewest were drawn, a class being a value of a column: rare ones come as often.

    Each class goes on by itself in shuffled epochs, so a prompt of a rare class comes again sooner.
    """

    column: str = "category"
    """The column with a prompt's class."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not isinstance(self.prompts, Sequence):
            raise ValueError('sampler.kind = "Balanced" needs all prompts at once, and the data set is a stream: take "Streamed"')
        parts: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            if self.column not in prompt.columns:
                raise ValueError(f"prompt {prompt.id!r} has no column {self.column!r}, which sampler.column names as its class")
            parts.setdefault(str(prompt.columns[self.column]), []).append(prompt)
        self._begin(parts, dict.fromkeys(parts, 1 / len(parts)))


def weights_of(prompts: Several) -> dict[str, float]:
    """The share of each source; ValueError for a stream without weights, for it has no size."""
    if prompts.weights is not None:
        return dict(prompts.weights)
    sizes = {name: len(part) for name, part in prompts.parts.items() if isinstance(part, Sequence)}
    streams = [name for name in prompts.parts if name not in sizes]
    if streams:
        raise ValueError(
            f"the source {streams[0]!r} of [[data]] is a stream, whose size is unknown: give every [[data]] table a weight, "
            "all of them adding up to 1"
        )
    return {name: size / sum(sizes.values()) for name, size in sizes.items()}
