"""Sampling completions: prompts are read once, their cache is expanded to the samples, one loop decodes all rows."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from mmrl.policies.shared.compiled import compiled, uncompiled
from mmrl.policies.shared.weights import FollowsWeights
from mmrl.policies.shared.workers.remote import Remote, refuse_mixed
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.kept import Keeping, Past, layers_of
from mmrl.policies.text.net import Cache, TextNet
from mmrl.policies.text.packed.room import SharedRoom
from mmrl.policies.text.prompt.encode import Encoded, PromptBatch, collate_prompts
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.write.read_on import read_on
from mmrl.runtime.spans import in_span
from mmrl.runtime.tensors import to_device


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


Seed = tuple[int, int]
"""(seed, sample): all that a completion depends on besides its prompt, weights and settings."""
Part = tuple[Sequence[Encoded], Sequence[int], Sequence[Seed], Sampling]
"""What `Generator.write` is asked for, in its order."""


@dataclass(frozen=True)
class HotSampling(Sampling):
    """Settings under which every token has a temperature of its own."""

    rule: Callable[[Float[Tensor, "n v"]], Float[Tensor, "n v"]] | None = None
    """Log-probabilities that tokens are drawn with, from those at the temperature."""


class Generator(FollowsWeights):
    """Writes completions: with the policy's own network, as a dry run, or in an engine that has a copy of the weights."""

    def write(
        self, prompts: Sequence[Encoded], prompt_index: Sequence[int], seeds: Sequence[Seed], sampling: Sampling
    ) -> "Completions":
        """n completions: row i continues prompts[prompt_index[i]] and depends on seeds[i] = (seed, sample) alone.

        It writes under the weights that are swapped in, `weights.active`. Without rows it only takes part in what other processes
        do, and its result is ignored.

        Raises:
            ValueError: settings it cannot follow.
            RuntimeError: an engine that is gone, or answers with other weights than it was given.
        """
        raise NotImplementedError

    def write_all(self, parts: Iterable[Part]) -> Iterable["Completions"]:
        """The completions of several chunks, together where it can; else each is made when it is asked for."""
        return (self.write(*part) for part in parts)

    def wake(self) -> None:
        """Rows will be written now. Every process calls this and `rest` equally often."""

    def rest(self) -> None:
        """No rows will be written until `wake`: memory that only writing needs may be given back."""


@dataclass(frozen=True)
class Completions:
    """Written completions, on the CPU."""

    tokens: Int[Tensor, "n t"]
    logprobs: Float[Tensor, "n t"]
    """Under the temperature, before top_k, top_p, min_p and heat: what a reading of the same tokens gives again."""
    lengths: Int[Tensor, " n"]
    stopped: Bool[Tensor, " n"]
    """False where max_new_tokens cut the completion."""
    weights_version: int = 0
    """The number of updates behind the weights that wrote them."""
    noted: bool = True
    """False: whoever wrote them does not know the log-probabilities, which are NaN."""
    pasts: tuple[Past, ...] = ()
    """What each row has read, where its prompt has a past and whoever wrote it keeps such."""


LOOK_EVERY = 16
"""Tokens between two looks at which rows are done, on an accelerator: at most this many are written in vain at the end."""


def noise(seeds: Sequence[Seed], length: int) -> Float[Tensor, "n t"]:
    """One uniform number per token, each row from its own generator: a sample depends on its own (seed, index) only."""
    rows = torch.empty(len(seeds), length)
    for row, seed in zip(rows, seeds, strict=True):
        state = np.random.SeedSequence([part % 2**64 for part in seed]).generate_state(1, np.uint64)
        row.uniform_(generator=torch.Generator().manual_seed(int(state[0]) % 2**63))
    return rows


def filter_probabilities(logprobs: Float[Tensor, "n v"], sampling: Sampling) -> Float[Tensor, "n v"]:
    """Probabilities after top_k, top_p (of what top_k left) and min_p; not normalized."""
    if sampling.top_k == 0 and sampling.top_p == 1 and sampling.min_p == 0:
        return logprobs.exp()
    ranked, order = logprobs.exp().sort(dim=-1, descending=True, stable=True)
    if 0 < sampling.top_k < ranked.shape[-1]:
        ranked[:, sampling.top_k :] = 0
    if sampling.top_p < 1:
        before = ranked.cumsum(-1) - ranked
        ranked = ranked.where(before < sampling.top_p * ranked.sum(-1, keepdim=True), 0)
    ranked = ranked.where(ranked >= sampling.min_p * ranked[:, :1], 0)
    return torch.zeros_like(ranked).scatter(-1, order, ranked)


def draw(
    logits: Float[Tensor, "n v"], uniform: Float[Tensor, " n"] | None, sampling: Sampling
) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
    """Next tokens by inverting the cumulative distribution at `uniform` (None: greedy), and their log-probabilities."""
    logprobs = logits.log_softmax(-1)
    if uniform is None:
        chosen = logprobs.argmax(-1)
    else:
        rule = sampling.rule if isinstance(sampling, HotSampling) else None
        drawn = logprobs if rule is None else rule(logprobs)
        cumulative = filter_probabilities(drawn, sampling).cumsum(-1)
        total = cumulative[:, -1]
        # Rounding must not lift the target to the total: no token lies beyond it.
        target = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
        # beyond the last token only where all is NaN, which `Draft.cut` refuses
        chosen = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp(max=logprobs.shape[-1] - 1)
    return chosen, logprobs.gather(-1, chosen[:, None])[:, 0]


Drawn = tuple[Float[Tensor, "n d"], Int[Tensor, " n"], Float[Tensor, " n"]]
"""Hidden states, and the tokens that were drawn from them with their log-probabilities."""

Around = tuple[Real[Tensor, "a n 1"], Tensor | None, Float[Tensor, " n"], Float[Tensor, " n"] | None, Sampling]
"""Positions of the tokens that are fed, the mask, temperatures, uniform numbers (None: greedy), and settings."""


def draw_next(net: TextNet, cache: Cache | SharedRoom, fed: Int[Tensor, " n"], around: Around) -> Drawn:
    """Feed a token to every row, and draw the next one."""
    if not (net.compiled and isinstance(cache, SharedRoom)) or isinstance(around[-1], HotSampling):
        return step(net, net.extend, cache, fed, around)
    with cache, uncompiled(net.compiled):
        return program()(net, net.behind, cache, fed, around)


def step(
    net: TextNet, forward: Callable[..., Tensor], cache: Cache | SharedRoom, fed: Int[Tensor, " n"], around: Around
) -> Drawn:
    """A token of every row, by `extend` of a net or what is in it."""
    positions, mask, temperature, uniform, sampling = around
    hidden = forward(cache, fed[:, None], positions, mask)[:, -1]
    return hidden, *draw(net.logits(hidden, temperature), uniform, sampling)


@functools.cache
def program() -> Callable[..., Drawn]:
    """The step as one graph, for rooms of any width, which is compiled once for all nets of a kind."""
    return compiled(step, "the step that writes a token", whole=True)


@dataclass(frozen=True)
class Generation:
    """Completions to draw: row i continues prompt `prompt_index[i]`. `Generation(...)(net)` draws them."""

    prompts: PromptBatch
    prompt_index: Int[Tensor, " n"]
    seeds: Sequence[Seed]
    sampling: Sampling
    stops: Stops
    anyone: Callable[[bool], bool] = bool
    """Is any process still decoding? Sharded weights need all of them to make the same number of forwards."""
    idle: bool = False
    """No rows of its own: decode as long as other processes do."""
    look_every: int = 1
    """Tokens between two looks at which rows are done. On an accelerator each look waits for all work before it."""
    shown: tuple[Encoded, ...] = ()
    """The prompts, where they have pasts: these are gone on from, and what rows have read is kept."""
    ends: tuple[int, ...] = ()
    """Tokens of every prompt, known on the host without asking the device."""
    shares: bool = False
    """Keep prompts once while their rows are written, in storage that stays."""

    @torch.no_grad()
    def __call__(self, net: TextNet) -> Completions:
        longest, read = self.sampling.max_new_tokens, self.prompts.token_ids.shape[1]
        hidden, cache, keeping, order = self.read(net)
        rows = self.first_rows(net, to_device(self.prompt_index, net.device))
        if order:
            lie = to_device(torch.tensor(order), net.device)
            hidden, rows = hidden[lie], rows.take(lie, order)
        draft = Draft(len(rows), longest, net.pad_token_id, self.stops, net.device)
        temperature = torch.full((len(rows),), self.sampling.temperature or 1.0, device=net.device)
        chosen, logprob = draw(net.logits(hidden, temperature), rows.noise(0), self.sampling)
        for t in range(longest):
            rows = replace(rows, live=draft.note(chosen, logprob, rows.live))
            last_token = t + 1 == longest
            if last_token or (t + 1) % self.look_every == 0:
                rows = replace(rows, live=draft.look(rows.ids, rows.live))
                alive = [i for i, is_live in enumerate(rows.live.tolist()) if is_live]
                stay = cache.rectangle(alive or [0]) if isinstance(cache, SharedRoom) else alive or [0]
                over, shrinks = last_token or not self.anyone(bool(alive)), 2 * len(stay) <= len(rows)
                if keeping is not None and (over or shrinks):
                    gone = range(len(rows)) if over else sorted({*range(len(rows))} - {*stay})
                    keeping.leave(cache, rows.ids.tolist(), gone, draft.lengths.tolist())
                if over:
                    break
                if shrinks:
                    keep = torch.tensor(stay).to(net.device)
                    cache.reorder_cache(keep)
                    chosen, rows = chosen[keep], rows.take(keep, stay)
            mask = None if isinstance(cache, SharedRoom) else rows.mask(read + t + 1)
            around = (rows.positions + t, mask, temperature[: len(rows)], rows.noise(t + 1), self.sampling)
            _, chosen, logprob = draw_next(net, cache, chosen, around)
        return Completions(*draft.cut(), pasts=() if keeping is None else tuple(keeping.pasts))

    def read(self, net: TextNet) -> tuple[Float[Tensor, "n d"], Cache | SharedRoom, Keeping | None, list[int]]:
        """Read the prompts: the hidden state after each row's, the cache of all rows, what they keep, and the order in which they
        lie in the cache, where it is another one."""
        keeping, index = None, to_device(self.prompt_index, net.device)
        if self.shown:
            last, cache, index, keeping = read_on(net, self.shown, self.prompt_index.tolist())
        else:
            net.idle_vision(self.prompts.media)
            last, cache = net.prefill(self.prompts)
        if self.shares:
            ends = [self.ends[i] for i in self.prompt_index.tolist()]
            room, order = SharedRoom.of(layers_of(cache), index.tolist(), ends, self.sampling.max_new_tokens)
            return last[index], room, keeping, order
        cache.reorder_cache(index)
        return last[index], cache, keeping, []

    def first_rows(self, net: TextNet, index: Int[Tensor, " n"]) -> "Rows":
        """All rows, before their first token."""
        longest, n = self.sampling.max_new_tokens, len(index)
        uniform = to_device(noise(self.seeds, longest), net.device) if self.sampling.temperature > 0 else None
        attention = torch.nn.functional.pad(self.prompts.attention[index], (0, longest), value=1)
        # Kernels take such masks as they are; given others, models first check whether they hide anything, and wait for it.
        mask = attention.bool()[:, None, None] if net.masks_are_plain else attention
        return Rows(
            ids=torch.arange(n, device=net.device),
            live=torch.full((n,), not self.idle, device=net.device),
            positions=self.prompts.next_positions[:, index],
            attention=mask,
            padded=tuple(self.ends[i] < self.prompts.token_ids.shape[1] for i in self.prompt_index.tolist()),
            uniform=uniform,
        )


@dataclass(frozen=True)
class Rows:
    """The rows still in the cache; finished ones stay until half of them can leave together."""

    ids: Int[Tensor, " m"]
    live: Bool[Tensor, " m"]
    positions: Real[Tensor, "a m 1"]
    attention: Tensor
    """(m, k) of 0 and 1, or as kernels take it, (m, 1, 1, k)."""
    padded: tuple[bool, ...]
    uniform: Float[Tensor, "m t"] | None

    def __len__(self) -> int:
        return len(self.ids)

    def noise(self, t: int) -> Float[Tensor, " m"] | None:
        """The uniform numbers of a token; None: greedy."""
        return None if self.uniform is None else self.uniform[:, t].contiguous()

    def mask(self, length: int) -> Tensor | None:
        """The mask of a new token over the first `length` positions; None: it attends to all of them."""
        return self.attention[..., :length] if any(self.padded) else None

    def take(self, keep: Int[Tensor, " k"], places: Sequence[int]) -> "Rows":
        """Some of the rows; `places` are those of `keep`, on the host."""
        return Rows(
            ids=self.ids[keep],
            live=self.live[keep],
            positions=self.positions[:, keep],
            attention=self.attention[keep],
            padded=tuple(self.padded[place] for place in places),
            uniform=None if self.uniform is None else self.uniform[keep],
        )


@dataclass(frozen=True)
class LocalGenerator(Generator):
    """Writes with the network that trains, so its log-probabilities are exact and its weights are never out of date."""

    host: TextHost
    kind: Callable[..., Generation] = Generation

    @in_span("generate")
    def write(
        self, prompts: Sequence[Encoded], prompt_index: Sequence[int], seeds: Sequence[Seed], sampling: Sampling
    ) -> Completions:
        generation = self.generation(prompts, prompt_index, seeds, sampling)
        return replace(self.host.run(generation), weights_version=self.host.weights.num_updates)

    def generation(
        self, prompts: Sequence[Encoded], prompt_index: Sequence[int], seeds: Sequence[Seed], sampling: Sampling
    ) -> Generation:
        """The work of one forward; without rows, of keeping up with other processes that have some."""
        host, idle = self.host, not prompt_index
        shown = [host.stand_in] if idle else prompts
        return self.kind(
            prompts=collate_prompts(shown, host.net.pad_token_id, host.net.device),
            prompt_index=torch.tensor([0] if idle else list(prompt_index)),
            seeds=[(0, 0)] if idle else seeds,
            sampling=sampling,
            stops=Stops(host.eos_token_ids, host.decode, sampling.stop),
            anyone=host.ranks.anyone,
            idle=idle,
            look_every=1 if host.net.device.type == "cpu" else LOOK_EVERY,
            ends=tuple(map(len, shown)),
            shares=host.net.shares,
            shown=tuple(shown) if all(one.past is not None for one in shown) else (),
        )


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
