"""Does a step of a search ask what it should, and name the one place to look?

    r = .5 cos(query, true query) + .5 [exactly one retriever is named, and it is the right one]

    0 where a tag is missing, a retriever is unknown, or `none` stands beside others

A step is `<think>..</think><sub-question>..</sub-question><ret>..</ret>`, retrievers apart by commas. Cosines may be negative.

Modality: text
Range: [-.5, 1]
Source: OpenBMB/R1-Router@c0a0c1b step.py, arXiv:2505.22095
Licence: own code Apache-2.0; bge-m3's weights MIT
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from mmrl import Group, Need, Prompt, Scored
from mmrl.answers.block import completion_text
from mmrl.answers.needs import columns
from mmrl.runtime.ranges import Count, check_ranges
from mmrl.serving.scorers.sizes import ModelSize, hub_size

__all__ = ["SubQuestion"]
TAGS = ("<think>", "</think>", "<sub-question>", "</sub-question>", "<ret>", "</ret>")
"""In this order; of several the last ones count, as in the greedy expression of the code."""
NONE = "none"


def step_of(text: str, known: Collection[str]) -> tuple[str, list[str]] | None:
    """The query and the retrievers that a step names, in lower case; None where it is malformed."""
    inside, rest = list[str](), text.lower()
    for tag in reversed(TAGS):
        rest, found, behind = rest.rpartition(tag)
        if not found:
            return None
        inside.append(behind)
    query, named = inside[3], [name.strip() for name in inside[1].split(",")]
    malformed = not set(named) <= {*known} or (NONE in named and len(named) > 1)
    return None if malformed else (query.strip(), named)


def step_rewards(
    texts: Sequence[str],
    query: str,
    right: Sequence[str],
    known: Collection[str],
    cosines: Callable[[str, Sequence[str]], Sequence[float]],
) -> list[float]:
    """The rewards of several steps with one true query."""
    steps = [step_of(text, known) for text in texts]
    close = iter(cosines(query, [step[0] for step in steps if step is not None]))
    return [0.0 if step is None else 0.5 * next(close) + 0.5 * (len(step[1]) == 1 and step[1] == [*right]) for step in steps]


@dataclass(frozen=True)
class SubQuestion:
    """How close a step's query is to the true one, and whether it asks the right retriever."""

    model: str = "BAAI/bge-m3"
    """Hub id or folder of the model that compares queries: by the unit vector of its first token."""
    retrievers: tuple[str, ...] = ("text retriever", "text image retriever", "table retriever", NONE)
    """Names of all retrievers, in lower case."""
    query: str = "query"
    """The column with the true query."""
    retriever: str = "retriever"
    """The column with the right retriever."""
    device: str = "auto"
    """Where the model runs: auto (the GPU if there is one), cpu, cuda or cuda:1."""
    batch_size: Count = 32
    """Queries in one forward of the model."""
    needs = Need("columns with its query and retriever", lambda p, r, _: columns(r.query, r.retriever)(p, r, _) and r.truth(p))

    __post_init__ = check_ranges
    pointwise = True

    def models(self) -> Sequence[ModelSize]:
        return [hub_size(self.model, self.device)]

    def truth(self, prompt: Prompt) -> tuple[str, list[str]]:
        """The true query and retriever, in lower case; ValueError for a retriever that is none."""
        named = prompt.columns[self.retriever]
        right = [str(name).lower() for name in (named if isinstance(named, list | tuple) else [named])]
        if len(right) != 1 or right[0] not in self.retrievers:
            raise ValueError(f"prompt {prompt.id!r} names the retrievers {right}: name one of {', '.join(self.retrievers)}")
        return str(prompt.columns[self.query]).lower(), right

    def __call__(self, group: Group) -> list[float | Scored | None]:
        if group.prompt.columns.get(self.query) is None:
            return [None] * len(group.samples)
        query, right = self.truth(group.prompt)
        texts = [completion_text(group.prompt, sample) for sample in group.samples]
        return [*step_rewards(texts, query, right, self.retrievers, self._cosines)]

    def _cosines(self, query: str, others: Sequence[str]) -> list[float]:
        from mmrl.serving.scorers.encoders import unit_vectors

        vectors = unit_vectors(self.model, [query, *others], self.device, self.batch_size)
        return (vectors[1:] @ vectors[0]).tolist()
