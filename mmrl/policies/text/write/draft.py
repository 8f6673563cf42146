"""Completions being written: on the device, and looked at from the host as seldom as possible."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Stops:
    """The ends of a completion: tokens, or texts."""

    token_ids: tuple[int, ...]
    decode: Callable[[list[list[int]]], list[str]]
    texts: tuple[str, ...] = ()

    @property
    def window(self) -> int:
        """How many of the latest tokens can hold a stop text that ends in the last one; 0 without texts."""
        # A token holds at least one byte, so the stop lies within its own number of bytes of tokens, plus a cut letter.
        return max(len(text.encode()) for text in self.texts) + 3 if self.texts else 0

    def first_ends(self, tokens: Sequence[Sequence[int]], alive: Sequence[Sequence[bool]]) -> list[int | None]:
        """Which of its new tokens, the last ones, completes a stop text first, for every row; None: none does.

        `tokens` (n, t) are the latest of every row, `alive` (n, s) says which of the s new ones are looked at.
        """
        looked = [(row, j) for row, flags in enumerate(alive) for j, flag in enumerate(flags) if flag]
        ends = [len(tokens[row]) - len(alive[row]) + j + 1 for row, j in looked]
        tails = [list(tokens[row][max(0, end - self.window) : end]) for (row, _), end in zip(looked, ends, strict=True)]
        found: list[int | None] = [None] * len(tokens)
        for (row, j), tail in zip(looked, self.decode(tails) if tails else [], strict=True):
            if found[row] is None and any(text in tail for text in self.texts):
                found[row] = j
        return found


class Draft:
    """n completions of at most `longest` tokens. Between two looks the host does not wait for the device.

    Tokens that a row is given between its end and the next look are dropped.
    """

    def __init__(self, n: int, longest: int, pad_token_id: int, stops: Stops, device: torch.device) -> None:
        self.stops = stops
        self.ends = torch.tensor(stops.token_ids, device=device)
        self.tokens = torch.full((n, longest), pad_token_id, device=device)
        self.logprobs = torch.zeros(n, longest, device=device)
        self.lengths = torch.zeros(n, dtype=torch.long, device=device)
        self.stopped = torch.zeros(n, dtype=torch.bool, device=device)
        self.read = 0
        """Tokens of every row that have been looked at."""
        self.new: list[tuple[Tensor, Tensor, Tensor]] = []
        """Of every token since: the tokens, their log-probabilities, and which rows were live when they were drawn."""

    def note(self, chosen: Int[Tensor, " m"], logprob: Float[Tensor, " m"], live: Bool[Tensor, " m"]) -> Bool[Tensor, " m"]:
        """Note the next token of the rows being written; returns which of them are live after it, stop texts ignored."""
        self.new.append((chosen, logprob, live))
        return live & ~torch.isin(chosen, self.ends)

    def look(self, ids: Int[Tensor, " m"], live: Bool[Tensor, " m"]) -> Bool[Tensor, " m"]:
        """Store what was noted since the last look, for rows `ids`; returns which of them are live, stop texts included."""
        chosen, logprob, wanted = (torch.stack(column, 1) for column in zip(*self.new, strict=True))
        self.new = []
        if self.stops.texts:
            wanted, live = self._cut_at_texts(ids, chosen, wanted, live)
        here = slice(self.read, self.read + chosen.shape[1])
        self.read = here.stop
        self.tokens[ids, here] = chosen.where(wanted, self.tokens[ids, here])
        self.logprobs[ids, here] = logprob.where(wanted, 0)
        self.lengths[ids] += wanted.sum(1)
        self.stopped[ids] = wanted.any(1) & ~live | self.stopped[ids]
        return live

    def _cut_at_texts(
        self, ids: Int[Tensor, " m"], chosen: Int[Tensor, "m s"], wanted: Bool[Tensor, "m s"], live: Bool[Tensor, " m"]
    ) -> tuple[Bool[Tensor, "m s"], Bool[Tensor, " m"]]:
        """Which of the new tokens belong to a row that ends with the first stop text, and which rows are live."""
        before = self.tokens[ids, max(0, self.read - self.stops.window + 1) : self.read]
        ends = self.stops.first_ends(torch.cat([before, chosen], 1).tolist(), wanted.tolist())
        new = chosen.shape[1]
        last = torch.tensor([new if end is None else end for end in ends]).to(chosen.device)
        return wanted & (torch.arange(new, device=chosen.device) <= last[:, None]), live & (last == new)

    def cut(self) -> tuple[Int[Tensor, "n t"], Float[Tensor, "n t"], Int[Tensor, " n"], Bool[Tensor, " n"]]:
        """Tokens, log-probabilities, lengths and which rows stopped, on the CPU, as wide as the longest row.

        Raises ValueError where the model's logits were NaN.
        """
        lengths = self.lengths.cpu()
        width = int(lengths.max())
        logprobs = self.logprobs[:, :width].cpu()
        broken = int(logprobs.isnan().any(1).sum())
        if broken:
            raise ValueError(
                f"the model's logits are NaN in {broken} of {len(lengths)} completions: look for weights that diverged (lower "
                "optimizer.lr), or set policy.dtype = 'float32'"
            )
        return self.tokens[:, :width].cpu(), logprobs, lengths, self.stopped.cpu()
