"""Sampling completions: prompts are read once, their cache is expanded to the samples, one loop decodes all rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.policies.shared.weights import Weights
from mmrl.policies.text.encode import Encoded, PromptBatch, collate_prompts
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.net import Cache, TextNet
from mmrl.policies.text.settings import Sampling


@runtime_checkable
class Generator(Protocol):
    """Writes completions: with the policy's own network, as a dry run, or in an engine that has a copy of the weights."""

    @property
    def exact(self) -> bool:
        """Are its log-probabilities those that the policy reads, up to rounding? An engine with other kernels says no."""
        ...

    def follow(self, weights: Weights, version: int) -> None:
        """Take over the live weights, which have had `version` updates, before the next `write`.

        The policy calls it before it samples for the first time, and again once the weights have moved (an update, a state
        that was loaded). Every process calls it, equally often, so it may gather what is sharded (`weights.state_dict()`).
        """
        ...

    def write(
        self,
        prompts: Sequence[Encoded],
        prompt_index: Sequence[int],
        seeds: Sequence[tuple[int, int]],
        sampling: Sampling,
    ) -> "Completions":
        """n completions: row i continues prompts[prompt_index[i]] and depends on seeds[i] = (seed, sample) alone.

        It writes under the weights that are swapped in, `weights.active`; an engine that holds the live ones alone hands other
        requests to a LocalGenerator. Without rows it only takes part in what other processes do, and its answer is not
        looked at.

        Raises:
            ValueError: settings it cannot follow.
            RuntimeError: an engine that is gone, or answers with other weights than it was given.
        """
        ...


@dataclass(frozen=True)
class Completions:
    """Written completions, on the CPU."""

    tokens: Int[Tensor, "n t"]
    logprobs: Float[Tensor, "n t"]
    """Under the temperature, before top_k, top_p and min_p: what a reading of the same tokens gives again."""
    lengths: Int[Tensor, " n"]
    stopped: Bool[Tensor, " n"]
    """False where max_new_tokens cut the completion."""
    weights_version: int = 0
    """How many updates the weights had that wrote."""


@dataclass(frozen=True)
class Stops:
    """The ends of a completion: tokens, or texts."""

    token_ids: tuple[int, ...]
    decode: Callable[[list[list[int]]], list[str]]
    texts: tuple[str, ...] = ()

    def __call__(self, tokens: Int[Tensor, "n t"], rows: Bool[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Which rows end with their last token; text is only looked for where `rows` is True."""
        ended = torch.isin(tokens[:, -1], torch.tensor(self.token_ids, device=tokens.device))
        if self.texts:
            # A token holds at least one byte, so the stop lies within its own number of bytes of tokens, plus a cut letter.
            window = max(len(text.encode()) for text in self.texts) + 3
            looked = rows.nonzero()[:, 0]
            tails = self.decode(tokens[looked, -window:].tolist())
            found = [any(text in tail for text in self.texts) for tail in tails]
            ended[looked] |= torch.tensor(found, dtype=torch.bool, device=tokens.device)
        return ended


def noise(seeds: Sequence[tuple[int, int]], length: int) -> Float[Tensor, "n t"]:
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
        cumulative = filter_probabilities(logprobs, sampling).cumsum(-1)
        total = cumulative[:, -1]
        # Rounding must not lift the target to the total: no token lies beyond it.
        target = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
        chosen = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return chosen, logprobs.gather(-1, chosen[:, None])[:, 0]


@dataclass(frozen=True)
class Generation:
    """Completions to draw: row i continues prompt `prompt_index[i]`. `Generation(...)(net)` draws them."""

    prompts: PromptBatch
    prompt_index: Int[Tensor, " n"]
    seeds: Sequence[tuple[int, int]]
    sampling: Sampling
    stops: Stops
    anyone: Callable[[bool], bool] = bool
    """Is any process still decoding? Sharded weights need all of them to make the same number of forwards."""
    idle: bool = False
    """Nothing is wanted: decode as long as others do."""

    @torch.no_grad()
    def __call__(self, net: TextNet) -> Completions:
        sampling, index, n = self.sampling, self.prompt_index.to(net.device), len(self.prompt_index)
        longest = sampling.max_new_tokens
        uniform = noise(self.seeds, longest).to(net.device) if sampling.temperature > 0 else None
        tokens = torch.full((n, longest), net.pad_token_id, device=net.device)
        logprobs = torch.zeros(n, longest, device=net.device)
        lengths = torch.zeros(n, dtype=torch.long, device=net.device)
        stopped = torch.zeros(n, dtype=torch.bool, device=net.device)
        net.idle_vision(self.prompts.media)
        last, cache = net.prefill(self.prompts)
        cache.reorder_cache(index)
        state = Rows(
            ids=torch.arange(n, device=net.device),
            live=torch.full((n,), not self.idle, device=net.device),
            hidden=last[index],
            positions=self.prompts.next_positions[:, index],
            attention=torch.nn.functional.pad(self.prompts.attention[index], (0, longest), value=1),
        )
        read = self.prompts.token_ids.shape[1]
        for t in range(longest):
            ids, live = state.ids, state.live
            temperature = state.hidden.new_full((len(ids),), sampling.temperature or 1.0, dtype=torch.float32)
            logits = net.logits(state.hidden, temperature)
            chosen, logprob = draw(logits, None if uniform is None else uniform[ids, t], sampling)
            tokens[ids, t] = chosen.where(live, net.pad_token_id)
            logprobs[ids, t] = logprob.where(live, 0)
            lengths[ids] += live
            ended = self.stops(tokens[ids, : t + 1], live) & live
            stopped[ids] |= ended
            state = replace(state, live=live & ~ended)
            num_live = int(state.live.sum())
            if t + 1 == longest or not self.anyone(num_live > 0):
                break
            if 2 * num_live <= len(ids):
                chosen, state = state.drop_finished(cache, chosen)
            positions = state.positions + t
            hidden = net.extend(cache, chosen[:, None], positions, state.attention[:, : read + t + 1])
            state = replace(state, hidden=hidden[:, -1])
        t = int(lengths.max())
        return Completions(tokens[:, :t].cpu(), logprobs[:, :t].cpu(), lengths.cpu(), stopped.cpu())


@dataclass(frozen=True)
class Rows:
    """The rows still in the cache; finished ones stay until half of them can leave together."""

    ids: Int[Tensor, " m"]
    live: Bool[Tensor, " m"]
    hidden: Float[Tensor, "m d"]
    positions: Int[Tensor, "a m 1"]
    attention: Int[Tensor, "m k"]

    def drop_finished(self, cache: Cache, chosen: Int[Tensor, " m"]) -> tuple[Tensor, "Rows"]:
        """Drop finished rows here and in the cache; one row stays in any case."""
        keep = self.live.nonzero()[:, 0] if bool(self.live.any()) else torch.zeros(1, dtype=torch.long, device=self.live.device)
        cache.reorder_cache(keep)
        kept = Rows(self.ids[keep], self.live[keep], self.hidden[keep], self.positions[:, keep], self.attention[keep])
        return chosen[keep], kept


@dataclass(frozen=True)
class LocalGenerator:
    """Writes with the network that trains, so its log-probabilities are exact and its weights never late."""

    host: TextHost
    exact: bool = True

    def follow(self, weights: Weights, version: int) -> None:
        """Nothing has to be taken over."""

    def write(
        self,
        prompts: Sequence[Encoded],
        prompt_index: Sequence[int],
        seeds: Sequence[tuple[int, int]],
        sampling: Sampling,
    ) -> Completions:
        generation = self.generation(prompts, prompt_index, seeds, sampling)
        return replace(self.host.run(generation), weights_version=self.host.weights.num_updates)

    def generation(
        self,
        prompts: Sequence[Encoded],
        prompt_index: Sequence[int],
        seeds: Sequence[tuple[int, int]],
        sampling: Sampling,
    ) -> Generation:
        """The work of one forward; without rows, of keeping up with other processes that have some."""
        host, idle = self.host, not prompt_index
        return Generation(
            prompts=collate_prompts([host.stand_in()] if idle else prompts, host.net.pad_token_id, host.net.device),
            prompt_index=torch.tensor([0] if idle else list(prompt_index)),
            seeds=[(0, 0)] if idle else seeds,
            sampling=sampling,
            stops=Stops(host.eos_token_ids, host.decode, sampling.stop),
            anyone=host.ranks.anyone,
            idle=idle,
        )
