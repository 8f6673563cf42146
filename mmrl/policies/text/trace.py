"""The record that a text policy keeps of its rollouts: prompts, and completions behind them with their pictures and clips."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from mmrl.policies.text.families import Family, Media
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.runtime.tensors import pad_actions


@dataclass(frozen=True)
class Inset:
    """The tokens of a completion, from its token `start` on, that show pictures or clips."""

    start: int
    media: Media
    positions: Real[Tensor, "a k"]
    """Counted from the first of them; the token that follows is read behind the largest."""
    type_ids: Int[Tensor, " k"] | None = None
    """As `Encoded.type_ids`."""

    @property
    def stop(self) -> int:
        return self.start + self.positions.shape[1]


COLUMNS = ("lengths", "temperature", "noted_from")
"""The fields of a trace with one number per row."""
Insets = tuple[tuple[Inset, ...], ...]
"""Row -> those of its completion, in order; empty where no row has any."""


@dataclass(frozen=True)
class TextTrace:
    """Completions, and the prompts they answer. Prompts are kept once, however many rows answer them."""

    prompts: tuple[Encoded, ...]
    prompt_index: Int[Tensor, " n"]
    """Row -> its prompt."""
    tokens: Int[Tensor, "n t"]
    """Padded at the end."""
    lengths: Int[Tensor, " n"]
    """Tokens of each completion, the stop token included."""
    temperature: Float[Tensor, " n"]
    """The number that logits are divided by; greedy rows are read at 1."""
    noted_from: Int[Tensor, " n"]
    """The first token of each completion that was drawn as training reads it, so that its log-probability is known."""
    family: Family
    media_token_ids: frozenset[int] = frozenset()
    """Tokens that no completion may hold."""
    packed: bool = False
    """Rows of a prompt are read behind it in one packed row. It is settled for a whole rollout, so that old, new and reference
    log-probabilities are rounded alike however rows are cut into parts."""
    insets: Insets = ()
    """Pictures and clips within completions; those of a prompt, which come before, are in its `Encoded.media`."""
    world_seeds: tuple[int | None, ...] = ()
    """Row -> the seed of the world that answered it, None where none did; empty where no row is an episode."""
    told: tuple[str, ...] = ()
    """Row -> what a teacher is told of it beside its prompt; empty where no row has any."""

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: Tensor, steps: slice = slice(None)) -> "TextTrace":
        """Some rows. A completion cannot be cut: every token depends on all before it."""
        if range(self.tokens.shape[1])[steps] != range(self.tokens.shape[1]):
            raise ValueError(f"completions are read whole: rows of a text trace can be taken, steps {steps} cannot")
        places: list[int] = torch.arange(len(self))[rows].tolist()
        insets = tuple(self.insets[i] for i in places) if self.insets else ()
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in ("prompt_index", "tokens", *COLUMNS)},
            insets=insets if any(insets) else (),
            world_seeds=tuple(self.world_seeds[i] for i in places) if self.world_seeds else (),
            told=tuple(self.told[i] for i in places) if self.told else (),
        )

    def tell(self, texts: Sequence[str]) -> "TextTrace":
        """The same, with what a teacher is told of every row."""
        return replace(self, told=tuple(texts) if any(texts) else ())

    def at(self, temperature: float | None) -> "TextTrace":
        """The same, to be read at another temperature than it was sampled with; None: at its own."""
        if temperature is None:
            return self
        return replace(self, temperature=torch.full_like(self.temperature, temperature))

    def compact(self) -> "TextTrace":
        """Only the prompts that some row answers, and no padding that all rows share."""
        used, index = self.prompt_index.unique(return_inverse=True)
        longest = int(self.lengths.max()) if len(self) else 0
        return replace(
            self, prompts=tuple(self.prompts[i] for i in used.tolist()), prompt_index=index, tokens=self.tokens[:, :longest]
        )


def join(traces: Sequence[TextTrace]) -> TextTrace:
    """The rows of all, in order; a prompt that occurs in several is kept once, and all are packed if any are."""
    place: dict[int, int] = {}
    prompts: list[Encoded] = []
    index: list[Tensor] = []
    for trace in traces:
        for prompt in trace.prompts:
            if place.setdefault(id(prompt), len(prompts)) == len(prompts):
                prompts.append(prompt)
        places = torch.tensor([place[id(prompt)] for prompt in trace.prompts], dtype=torch.long)
        index.append(places[trace.prompt_index])
    longest = max(trace.tokens.shape[1] for trace in traces)
    insets = tuple(row for trace in traces for row in trace.insets or [()] * len(trace))
    seeds = tuple(seed for trace in traces for seed in trace.world_seeds or [None] * len(trace))
    told = tuple(text for trace in traces for text in trace.told or [""] * len(trace))
    return replace(
        traces[0],
        packed=any(trace.packed for trace in traces),
        prompts=tuple(prompts),
        prompt_index=torch.cat(index),
        tokens=torch.cat([pad_actions(trace.tokens, longest) for trace in traces]),
        **{name: torch.cat([getattr(trace, name) for trace in traces]) for name in COLUMNS},
        insets=insets if any(insets) else (),
        world_seeds=seeds if any(trace.world_seeds for trace in traces) else (),
        told=told if any(told) else (),
    )


def append(prompt: Encoded, begun: Sequence[int], insets: Sequence[Inset] = ()) -> Encoded:
    """The prompt with the beginning of a completion behind it, at the positions where training reads it."""
    offsets = offsets_of((tuple(insets),), (len(prompt.positions), 1, len(begun)))[:, 0]
    types = prompt.type_ids
    if types is not None:
        types = torch.cat([types, types_of((tuple(insets),), (1, len(begun)))[0].to(types)])
    return replace(
        prompt,
        token_ids=torch.cat([prompt.token_ids, torch.tensor(list(begun))]),
        positions=torch.cat([prompt.positions, prompt.positions[:, -1:] + 1 + offsets], dim=1),
        type_ids=types,
        begun=tuple(begun),
        more=tuple(one.media for one in insets),
        views={},
    )


def offsets_of(insets: Insets, shape: Sequence[int], device: torch.device | None = None) -> Real[Tensor, "a n t"]:
    """How far behind its completion's first token each token is read, on every axis."""
    offsets = torch.arange(shape[-1], device=device).expand(tuple(shape))
    if not insets:
        return offsets
    positions = [one.positions for row in insets for one in row]
    offsets = offsets.to(positions[0] if positions else offsets).clone()
    for i, row in enumerate(insets):
        for one in row:
            offsets[:, i, one.stop :] += one.positions.max() + 1 - one.positions.shape[1]
            offsets[:, i, one.start : one.stop] = offsets[:, i, one.start, None] + one.positions.to(offsets)
    return offsets


def types_of(insets: Insets, shape: Sequence[int], device: torch.device | None = None) -> Int[Tensor, "n t"]:
    """0 text, 1 image, 2 video: what each token of each completion is."""
    types = torch.zeros(tuple(shape), dtype=torch.long, device=device)
    for i, row in enumerate(insets):
        for one in row:
            if one.type_ids is not None:
                types[i, one.start : one.stop] = one.type_ids.to(types)
    return types


def numbers_of(insets: Insets, rows: int, first: int) -> list[range]:
    """Row -> the numbers of its media, where those of all rows are counted from `first` on."""
    counts = [len(row) for row in insets] or [0] * rows
    return [range(start, stop) for start, stop in pairwise(accumulate(counts, initial=first))]
