"""Where tokens look, which of them are the answer, and how likely true answers are behind a thought."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmrl.core.readings import ATTENTION_DISTANCE, ATTENTION_INFLUENCE, BASE_PROBABILITY, REFERENCE_PROBABILITY
from mmrl.core.samples import answer_text
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.packed.attention import Pretrained, install, language_configs, set_attention
from mmrl.policies.text.read.evaluate import RowEvaluation
from mmrl.policies.text.trace import TextTrace
from mmrl.runtime.tensors import pad_actions

ANSWERS = "answer_mask"
"""The quantity's name."""
OPEN, CLOSE = "<answer>", "</answer>"


def answer_span(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> tuple[int, int]:
    """First token after the last `<answer>`, and the one where `</answer>` begins, or the end; (0, 0) without an answer."""
    text = decode(tokens)
    opened = text.rfind(OPEN)
    if opened < 0:
        return 0, 0
    begin = opened + len(OPEN)
    closed = text.find(CLOSE, begin)
    return reaching(tokens, decode, begin), len(tokens) if closed < 0 else reaching(tokens, decode, closed)


def reaching(tokens: Sequence[int], decode: Callable[[Sequence[int]], str], letters: int) -> int:
    """The smallest number of tokens whose text has n letters."""
    return bisect_left(range(len(tokens)), letters, key=lambda n: len(decode(tokens[:n])))


def last_turns(trace: TextTrace, own: Bool[Tensor, "n t"]) -> list[int]:
    """The token at which each row's last turn begins; 0 where no world answers."""
    seeds = trace.world_seeds or [None] * len(trace)
    rows = [
        [] if seed is None else (~actions[:length]).nonzero()[:, 0].tolist()
        for seed, length, actions in zip(seeds, trace.lengths.tolist(), own, strict=True)
    ]
    return [others[-1] + 1 if others else 0 for others in rows]


def answer_mask(
    trace: TextTrace, decode: Callable[[list[list[int]]], list[str]], own: Bool[Tensor, "n t"]
) -> Float[Tensor, "n t"]:
    """1 where a token belongs to the answer, else 0; of an episode, only its last turn is looked at.

    Args:
        own: the actions of each row; false where an environment wrote.
    """
    mask = torch.zeros(own.shape)
    for row, length, start, kept in zip(trace.tokens.tolist(), trace.lengths.tolist(), last_turns(trace, own), mask, strict=True):
        begin, end = answer_span(row[start:length], lambda tokens: decode([list(tokens)])[0])
        kept[start + begin : start + end] = 1.0
    return mask


NAME = "mmrl_rhythm"
DISTANCE, INFLUENCE = ATTENTION_DISTANCE.quantity, ATTENTION_INFLUENCE.quantity
RHYTHM = frozenset({DISTANCE, INFLUENCE})
"""The quantities' names."""
LAYERS = 5
"""Layers that are looked at, evenly spaced in the middle third."""
HEADS = 0.3
"""Share of the heads that count as local, and as global; ours."""
WINDOW = 10
"""Most tokens back that a look counts for."""
NEAREST, FARTHEST = 10, 50
"""From how many tokens after it to how many a token's influence is measured."""


@dataclass
class Recording:
    """The maps of the chosen layers, of the positions from `first` on."""

    layers: tuple[int, ...]
    first: int
    maps: list[Float[Tensor, "n h t t"]] = field(default_factory=list[Tensor])


CURRENT: ContextVar[Recording | None] = ContextVar("recording", default=None)


@dataclass(frozen=True)
class RhythmEvaluation(RowEvaluation):
    """Completions behind their repeated prompts, every token fed, without gradient: `attention_distance`, `attention_influence`.

    Of all heads of the chosen layers, those that look least far on average within a completion are its local ones, those
    that look farthest its global ones.
    """

    @classmethod
    def of(cls, work: RowEvaluation) -> "RhythmEvaluation":
        """The same rows with one more place, because the last token looks back too."""
        length = work.tokens.shape[1] + 1
        tokens, mask = pad_actions(work.tokens, length), pad_actions(work.mask, length)
        rows = work.prompts, work.prompt_index, tokens, work.lengths, work.temperature, mask, mask.flatten().nonzero()[:, 0]
        return cls(*rows, (DISTANCE, INFLUENCE), None, work.chunk, work.insets)

    @torch.no_grad()
    def __call__(self, net: TextNet) -> dict[str, Float[Tensor, "n t"]]:
        """Raises RuntimeError for a model whose layers do not compute attention by transformers' interface."""
        net.idle_vision(self.media)
        count = net.core.config.get_text_config().num_hidden_layers
        with record(net.model, middle_layers(count), self.prompts.token_ids.shape[1]) as recording:
            self.after_repeated_prompts(net)
        if len(recording.maps) != len(recording.layers):
            raise RuntimeError(
                f"{len(recording.maps)} of {len(recording.layers)} layers of {net.model.config.model_type} showed their "
                "attention: take a method that does not read it, or another model"
            )
        maps = torch.stack(recording.maps, 1).flatten(1, 2)
        out = {name: maps.new_zeros(self.mask.shape) for name in (DISTANCE, INFLUENCE)}
        for i, length in enumerate(self.lengths.tolist()):
            local, wide = local_and_global(maps[i, :, :length, :length])
            out[DISTANCE][i, :length] = backward_distance(local, WINDOW)
            out[INFLUENCE][i, :length] = future_influence(wide, NEAREST, FARTHEST)
        return {name: torch.where(self.mask, x, 0.0) for name, x in out.items()}


def middle_layers(count: int) -> tuple[int, ...]:
    """Five of n layers, evenly spaced from a third to two thirds: `36 -> 12, 15, 18, 21, 24`."""
    begin, end = count // 3, min(2 * count // 3, count - 1)
    return tuple(sorted({begin + round(i * (end - begin) / (LAYERS - 1)) for i in range(LAYERS)}))


def local_and_global(maps: Float[Tensor, "h t t"]) -> tuple[Float[Tensor, "t t"], Float[Tensor, "t t"]]:
    """The mean maps of the heads that look least far, and of those that look farthest."""
    reach = backward_distance(maps, maps.shape[-1]).mean(-1)
    order, some = reach.argsort(stable=True), max(1, round(HEADS * len(maps)))
    return maps[order[:some]].mean(0), maps[order[-some:]].mean(0)


def backward_distance(maps: Float[Tensor, "*h t t"], window: int) -> Float[Tensor, "*h t"]:
    """WAAD_t = sum_s A[t, s] min(t - s, window): how far back a token looks among those of its completion (arXiv:2510.13554)."""
    places = torch.arange(maps.shape[-1], device=maps.device)
    return (maps * (places[:, None] - places).clamp(0, window)).sum(-1)


def future_influence(maps: Float[Tensor, "t t"], nearest: int, farthest: int) -> Float[Tensor, " t"]:
    """FAI_s = mean over t = s + nearest ... s + farthest of A[t, s]: how much it is looked at; 0 where no token is that late."""
    places = torch.arange(len(maps), device=maps.device)
    apart = places[:, None] - places
    later = (apart >= nearest) & (apart <= farthest)
    return torch.where(later, maps, 0.0).sum(0) / later.sum(0).clamp(min=1)


def shows_attention(model: Pretrained) -> bool:
    """Does the config of this model allow its attention to be recorded?"""
    text = model.config.get_text_config()
    sinks = any(name.endswith(".sinks") for name, _ in model.named_parameters())
    return bool(language_configs(model)) and getattr(text, "attn_logit_softcapping", None) is None and not sinks


@contextmanager
def record(model: Pretrained, layers: tuple[int, ...], first: int) -> Iterator[Recording]:
    """A block in which a model's language layers compute attention as SDPA, and the chosen ones note it as well."""
    from transformers.masking_utils import sdpa_mask

    usual, recording = model.config.get_text_config()._attn_implementation, Recording(layers, first)
    install(model, NAME, attend, sdpa_mask)
    token = CURRENT.set(recording)
    try:
        yield recording
    finally:
        CURRENT.reset(token)
        set_attention(model, usual)


def attend(
    module: nn.Module,
    query: Float[Tensor, "n h q d"],
    key: Float[Tensor, "n g k d"],
    value: Float[Tensor, "n g k e"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Transformers' SDPA; a chosen layer's weights of the last positions to each other are noted, in float32."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    recording = CURRENT.get()
    if recording is not None and getattr(module, "layer_idx", None) in recording.layers:
        recording.maps.append(weights_from(recording.first, query, key, attention_mask, scaling))
    usual = cast(Any, ALL_ATTENTION_FUNCTIONS["sdpa"])
    return usual(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)


def weights_from(first: int, query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None) -> Float[Tensor, "n h t t"]:
    """softmax(q k' scale) of the positions from `first` on to each other; shares of earlier ones are left out."""
    late, count = query[:, :, first:].float(), key.shape[2]
    keys = key.float().repeat_interleave(query.shape[1] // key.shape[1], 1)
    logits = late @ keys.transpose(2, 3) * (query.shape[-1] ** -0.5 if scale is None else scale)
    places = torch.arange(count, device=query.device)
    seen = places <= places[first:, None] if mask is None else mask[:, :, first:]
    if seen.dtype != torch.bool:
        return (logits + seen).softmax(-1)[..., first:]
    # a row of padding sees nothing, and is cut off later
    return logits.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num(0.0)[..., first:]


REFERENCE, BASE = REFERENCE_PROBABILITY.quantity, BASE_PROBABILITY.quantity
REWRITTEN = frozenset({REFERENCE, BASE})
"""Names of the quantities that need rows with the true answer."""
LOOKS = REWRITTEN | RHYTHM
"""Names of all quantities of this folder."""
Evaluate = Callable[[TextTrace, Bool[Tensor, "n t"], tuple[str, ...]], dict[str, Tensor]]
"""The policy's own way to evaluate rows."""
Rewritten = tuple[TextTrace, Bool[Tensor, "n r"], Bool[Tensor, " n"]]
"""Rows as they would be with the true answer, a mask of its tokens, and False for completions without an answer to replace."""


@torch.no_grad()
def look(
    names: Collection[str],
    trace: TextTrace,
    mask: Bool[Tensor, "n t"],
    evaluate: Evaluate,
    tokenizer: Any,
    decode: Callable[[list[list[int]]], list[str]],
) -> dict[str, Tensor]:
    """Those of the quantities that were asked for, (n, t) each.

    Of rewritten rows the mean over the answer's tokens of their probability; -1 where there is no answer to replace.
    """
    wanted, found = set(names), dict[str, Tensor]()
    if wanted & RHYTHM:
        found = evaluate(trace, mask, (DISTANCE, INFLUENCE))
    for name in sorted(wanted & REWRITTEN):
        rows, answers, replaced = rewrite(trace, tokenizer, decode, name == REFERENCE, mask)
        total = torch.where(answers, evaluate(rows, answers, ("logprobs",))["logprobs"].exp(), 0.0).sum(1)
        mean = torch.where(replaced, total / answers.sum(1).clamp(min=1), -1.0)
        found[name] = mean[:, None].expand(mask.shape)
    return found


def rewrite(
    trace: TextTrace, tokenizer: Any, decode: Callable[[list[list[int]]], list[str]], thought: bool, own: Bool[Tensor, "n t"]
) -> Rewritten:
    """Every completion up to its last `<answer>`, or with no `thought` that tag alone, and then the true answer.

    Of an episode the last turn is looked at; without thought, or without an answer there, what worlds showed is left out.

    Args:
        own: the actions of each row; false where an environment wrote.

    Raises ValueError for a prompt without a true answer that is a text or a number.
    """
    truths = [token_ids(tokenizer, answer_text(one.prompt)) for one in trace.prompts if one.prompt is not None]
    bare, written, found = token_ids(tokenizer, OPEN), list[list[int]](), list[bool]()
    insets, starts = list(trace.insets), last_turns(trace, own)
    for i, (row, length, start) in enumerate(zip(trace.tokens.tolist(), trace.lengths.tolist(), starts, strict=True)):
        before = up_to_answer(row[start:length], tokenizer, lambda tokens: decode([list(tokens)])[0])
        found.append(before is not None)
        written.append([*row[:start], *before] if before is not None and thought else bare)
        if insets and (before is None or not thought):
            insets[i] = ()
    rows = [truths[prompt] for prompt in trace.prompt_index.tolist()]
    longest = max((len(before) + len(truth) for before, truth in zip(written, rows, strict=True)), default=1)
    tokens, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, (before, truth) in enumerate(zip(written, rows, strict=True)):
        tokens[i, : len(before) + len(truth)] = torch.tensor(before + truth)
        mask[i, len(before) : len(before) + len(truth)] = True
    lengths = torch.tensor([len(b) + len(t) for b, t in zip(written, rows, strict=True)], dtype=torch.long)
    shown = tuple(insets) if any(insets) else ()
    return replace(trace, tokens=tokens, lengths=lengths, insets=shown), mask, torch.tensor(found, dtype=torch.bool)


def up_to_answer(tokens: Sequence[int], tokenizer: Any, decode: Callable[[Sequence[int]], str]) -> list[int] | None:
    """The tokens up to the last `<answer>` and with it; None where there is none."""
    text = decode(tokens)
    opened = text.rfind(OPEN)
    if opened < 0:
        return None
    kept = text[: opened + len(OPEN)]
    first = list(tokens[: reaching(tokens, decode, len(kept))])
    # a token may hold the end of the tag and the beginning of the answer
    return first if decode(first) == kept else token_ids(tokenizer, kept)


def token_ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
