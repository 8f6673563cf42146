"""From requests to rollouts: which rows to draw, which text is given, and how samples are gathered into groups."""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mmrl.core.episodes import Worlds
from mmrl.core.protocols import View
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import Ended, Segment, Turn, Who, last_turn, segments_of, turn_ids
from mmrl.core.types import Group, Prompt, Reading, Request, Rollouts, Sample, Target
from mmrl.policies.shared.weights import check_reading
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.packed.row import worth_packing
from mmrl.policies.text.prompt.encode import Encoded, Encoder
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.trace import Inset, TextTrace
from mmrl.policies.text.write.generate import Completions
from mmrl.runtime.tensors import stack_ragged


@dataclass
class CompletionRow:
    """One completion of a request: planned first, written later."""

    request: Request
    index: int
    """Which of the request's samples."""
    prompt: int
    """The prompt that training reads."""
    shown: int
    """The prompt that is shown while sampling."""
    segments: tuple[Segment, ...] = ()
    """Who wrote which of its tokens so far."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of all tokens: NaN for given ones that train, 0 for others that were not sampled."""
    noted_from: int = 0
    """The first token of which a sampler noted the log-probability."""
    stopped: bool = True
    insets: tuple[Inset, ...] = ()
    """Of an episode: the pictures of its observations."""
    turns: tuple[Turn, ...] = ()
    """Of an episode: its turns, with the world's answers."""
    ended: Ended | None = None
    """Of an episode: why it ended."""
    world_seed: int | None = None
    """Of an episode: the seed of its world."""

    def put(self, tokens: Sequence[int], logprobs: Sequence[float] = (), who: Who = "policy") -> None:
        """Put tokens behind the row; without log-probabilities they were not sampled, and those of the policy train."""
        self.tokens += tokens
        self.logprobs += logprobs or [math.nan if who == "policy" else 0.0] * len(tokens)
        self.segments = segments_of([*((one.who, len(one)) for one in self.segments), (who, len(tokens))])

    def say(self, completions: Completions, i: int, room: int) -> None:
        """Take over what was sampled: at most `room` tokens, but at least one."""
        written = int(completions.lengths[i])
        length = min(written, max(1, room))
        self.put(completions.tokens[i, :length].tolist(), completions.logprobs[i, :length].tolist())
        if not completions.noted:
            self.noted_from = len(self.tokens)
        self.stopped = bool(completions.stopped[i]) and length == written

    @property
    def is_recorded(self) -> bool:
        """Were its tokens sampled behind the prompt as training reads it, at the run's temperature?"""
        given = self.request.given
        if given is not None and given.whole:
            return len(given.logprobs) > 0
        return self.request.view == "plain" and self.request.tempering.temperature is None and self.shown == self.prompt


@dataclass
class PromptCache:
    """Prompts, each encoded once, and not before it is needed: clips that workers decode arrive meanwhile."""

    encode: Callable[[Prompt, int], Encoded]
    wanted: list[tuple[Prompt, int]] = field(default_factory=list[tuple[Prompt, int]])
    """Prompts, and the seeds of their views."""
    done: dict[int, Encoded] = field(default_factory=dict[int, Encoded])

    def __getitem__(self, place: int) -> Encoded:
        if place not in self.done:
            self.done[place] = self.encode(*self.wanted[place])
        return self.done[place]


def rows_of(
    requests: Sequence[Request], encode: Encoder, models: frozenset[str], views: Mapping[str, View], worlds: Worlds | None
) -> tuple[list[CompletionRow], PromptCache]:
    """A row per sample, and every prompt once; raises ValueError for requests that cannot be served."""
    check_requests(requests, models, frozenset({"plain", *views}))
    requests = [show_as_trained(request, views) for request in requests]
    check_episodes(requests, worlds)
    shelf = PromptCache(encode)
    place: dict[int, int] = {}
    rows: list[CompletionRow] = []

    def place_of(prompt: Prompt, seed: int) -> int:
        if id(prompt) not in place:
            place[id(prompt)] = len(shelf.wanted)
            shelf.wanted.append((prompt, seed))
        return place[id(prompt)]

    for request in requests:
        seed = view_seed(request)
        shown = place_of(request.shown_prompt, seed)
        read = shown if request.shown.trained else place_of(request.prompt, seed)
        rows += [CompletionRow(request, i, read, shown) for i in range(request.count)]
    encode.prefetch(request.shown_prompt for request in requests)
    return rows, shelf


def show_as_trained(request: Request, views: Mapping[str, View]) -> Request:
    """The request with its view applied, if training reads completions under that view as well."""
    if request.view == "plain" or not request.shown.trained or request.role in ("probe", "note"):
        return request
    shown = views[request.view](request.shown_prompt, view_seed(request))
    return replace(request, shown=replace(request.shown, prompt=shown), view="plain")


def view_seed(request: Request) -> int:
    """A seed from a prompt and its group, which belongs to one step: the same in all its readings, another in the next step."""
    return number_of(f"{request.prompt.id}/{request.group_id}")


def number_of(words: str) -> int:
    """A seed of 63 bits."""
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "big") >> 1


def check_requests(requests: Sequence[Request], models: frozenset[str], views: frozenset[str]) -> None:
    """Raise ValueError for a request that cannot be served."""
    owners: dict[int, str] = {}
    for request in requests:
        name = f"a request for prompt {request.prompt.id!r}"
        if request.view not in views:
            raise ValueError(f"{name} names the view {request.view!r}; this text policy has {', '.join(sorted(views))}")
        if request.model not in models:
            raise ValueError(f"{name} asks for the weights {request.model!r}; this policy keeps {', '.join(sorted(models))}")
        if request.role == "injected" and not request.is_written and request.shown.prompt is None:
            raise ValueError(f"{name} has the role 'injected' but no text: give Request.written, or Request.shown to sample it")
        if request.shown_prompt.id != request.prompt.id:
            raise ValueError(
                f"{name} shows prompt {request.shown_prompt.id!r}: what is shown must keep the id of what is trained"
            )
        if request.is_written and request.role == "note":
            raise ValueError(f"{name} gives the whole completion, and asks for one to be written: leave Request.written out")
        is_stored = request.given is not None and request.given.is_row
        if (request.role == "replayed") != is_stored or (is_stored and request.count != 1):
            raise ValueError(f"{name} replays a row of an earlier step: give it as Request.written, role 'replayed' and count 1")
        if owners.setdefault(request.group_id, request.prompt.id) != request.prompt.id:
            raise ValueError(f"group {request.group_id} holds prompts {owners[request.group_id]!r} and {request.prompt.id!r}")


def check_episodes(requests: Sequence[Request], worlds: Worlds | None) -> None:
    """Refuse branches without a world that repeats, and, where there are worlds, completions that are no plain samples of the
    prompt that training reads, or branches."""
    for request in requests:
        branches = request.given is not None and request.given.world is not None
        if branches and (worlds is None or not worlds.repeats):
            raise ValueError(
                f"the request for prompt {request.prompt.id!r} goes on from a turn of another episode, which takes a world that "
                "repeats: take an algorithm that does not branch, or worlds that answer the same to the same seed"
            )
        names = ("view", "shown", "tempering", "written")[: 3 if branches else 4]
        odd = [name for name in names if getattr(request, name) != getattr(Request, name)]
        odd = [name for name in odd if name != "shown" or not request.shown.trained]
        if odd and worlds is not None and not request.is_written:
            raise ValueError(
                f"the request for prompt {request.prompt.id!r} sets {odd[0]!r}, which samples of several turns cannot "
                "have: take an algorithm that samples plain prompts, or leave [environment] out"
            )


def tokens_of(text: str, prompt_id: str, tokenizer: Any, stop: int, banned: frozenset[int]) -> list[int]:
    """A given completion as tokens, with the one that ends it; ValueError for a token that none may hold, or its end inside."""
    tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    found = sorted((banned & set(tokens)) | ({stop} & set(tokens[:-1])))
    if found:
        raise ValueError(f"the text given for prompt {prompt_id!r} holds the tokens {found}, which no answer may hold")
    return tokens if tokens[-1:] == [stop] else [*tokens, stop]


def vocabulary_of(tokenizer: Any) -> str:
    """A fingerprint of the tokens and their numbers; rows of an earlier run with the same one mean the same."""
    tokens: dict[str, int] = tokenizer.get_vocab()
    spelled = "\n".join(f"{number} {token}" for token, number in sorted(tokens.items(), key=lambda pair: (pair[1], pair[0])))
    return hashlib.blake2b(spelled.encode(), digest_size=16).hexdigest()


def check_sampling(sampling: object, usual: Sampling) -> Sampling:
    """The settings to sample with; raise ValueError for those of another kind of policy."""
    if sampling is None:
        return usual
    if not isinstance(sampling, Sampling):
        raise ValueError(f"a text policy samples with mmrl.policies.text.Sampling, not with {type(sampling).__name__}")
    return sampling


def by_weights(
    readings: Iterable[Reading], offers: frozenset[str], models: frozenset[str], views: frozenset[str]
) -> dict[tuple[str, str, float | None, Target | None], list[Reading]]:
    """Readings by weights, view, temperature and target, which share one pass; ValueError for one that cannot be evaluated.

    Those without a target ride along with one that has.
    """
    found: dict[tuple[str, str, float | None, Target | None], list[Reading]] = {}
    for reading in readings:
        check_reading(reading, "text", offers, models, views)
        found.setdefault((reading.model, reading.view, reading.temperature, reading.target), []).append(reading)
    for key in [key for key in found if key[3] is not None]:
        found[key] += found.pop((*key[:3], None), [])
    return found


def texts_of(
    rows: Sequence[CompletionRow], decode: Callable[[list[list[int]]], list[str]], stops: Sequence[int]
) -> list[tuple[str, str]]:
    """The text in front of each row's last turn, and that of its last turn; given text stays as it was given."""
    halves = [split_turns(row.tokens, row.segments, stops) for row in rows]
    texts = decode([half for pair in halves for half in pair]) if rows else []
    return [(before, row.request.text or last) for before, last, row in zip(texts[::2], texts[1::2], rows, strict=True)]


def split_turns(tokens: Sequence[int], segments: Sequence[Segment], stops: Sequence[int]) -> tuple[list[int], list[int]]:
    """The tokens in front of the last turn, and those of the last turn without the one that ended it."""
    start, stop = last_turn(segments), len(tokens) - (len(tokens) > 0 and tokens[-1] in stops)
    return list(tokens[:start]), list(tokens[start:stop])


def groups_of(
    rows: Sequence[CompletionRow], texts: Sequence[tuple[str, str]], prompts: PromptCache
) -> tuple[tuple[Group, ...], list[int]]:
    """Groups in order of their first request, and the sample id of every row (-1 for probes and notes)."""
    samples: dict[int, list[Sample]] = {}
    probes: dict[int, dict[str, list[Sample]]] = {}
    notes: dict[int, list[str]] = {}
    owners: dict[int, Prompt] = {}
    sample_ids: list[int] = []
    for row, (earlier, text) in zip(rows, texts, strict=True):
        request = row.request
        owners.setdefault(request.group_id, request.prompt)
        mine = samples.setdefault(request.group_id, [])
        kept = probes.setdefault(request.group_id, {})
        written = notes.setdefault(request.group_id, [])
        if request.role == "note":
            written.append(text)
            sample_ids.append(-1)
            continue
        sample = Sample(
            text=text,
            token_ids=tuple(row.tokens),
            truncated=not row.stopped,
            media_sizes=prompts[row.prompt].sizes,
            role=request.role,
            clips=prompts[row.prompt].clips,
            segments=row.segments,
            temperature=request.tempering.temperature,
            earlier=earlier,
            turns=row.turns,
            ended=row.ended,
            # what was given stands as it was given
            opened="" if request.text else prompts[row.prompt].opened,
        )
        is_probe = request.role == "probe"
        sample_ids.append(-1 if is_probe else len(mine))
        (kept.setdefault(request.view, []) if is_probe else mine).append(sample)
    groups = [
        Group(id, prompt, tuple(samples[id]), {view: tuple(drawn) for view, drawn in probes[id].items()}, tuple(notes[id]))
        for id, prompt in owners.items()
    ]
    return tuple(groups), sample_ids


def assemble(rows: Sequence[CompletionRow], prompts: PromptCache, host: TextHost, temperature: float) -> Rollouts:
    """Groups of all samples; rows of all but the probes and notes.

    Log-probabilities are NaN where the text was not sampled behind the prompt as training reads it: given text, and what was
    written under a view, behind another prompt or at another temperature.
    """
    texts = texts_of(rows, host.decode, host.eos_token_ids)
    groups, sample_ids = groups_of(rows, texts, prompts)
    kept = [row for row, id in zip(rows, sample_ids, strict=True) if id >= 0]
    lengths = integer_tensor(len(row.tokens) for row in kept)
    tokens = stack_ragged([torch.tensor(row.tokens) for row in kept]) if kept else torch.zeros(0, 0, dtype=torch.long)
    logprobs = torch.zeros(tokens.shape)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for noted, trains, row in zip(logprobs, mask, kept, strict=True):
        trains[: len(row.tokens)] = torch.tensor(turn_ids(row.segments)) >= 0
        if row.is_recorded:
            noted[: len(row.logprobs)] = torch.tensor(row.logprobs)
        else:
            noted[:] = torch.nan
    used = sorted({row.prompt for row in kept})
    trace = TextTrace(
        prompts=tuple(prompts[place] for place in used),
        prompt_index=integer_tensor(used.index(row.prompt) for row in kept),
        tokens=tokens,
        lengths=lengths,
        temperature=torch.full((len(kept),), temperature or 1.0),
        noted_from=integer_tensor(row.noted_from if row.is_recorded else len(row.tokens) for row in kept),
        family=host.family,
        media_token_ids=host.media_token_ids,
        insets=tuple(row.insets for row in kept) if any(row.insets for row in kept) else (),
        world_seeds=tuple(row.world_seed for row in kept) if any(row.turns for row in kept) else (),
    )
    packed = host.packs and (host.config.prefix == "packed" or host.config.context > 1 or worth_packing(trace))
    return Rollouts(
        groups=groups,
        group_ids=integer_tensor(row.request.group_id for row in kept),
        sample_ids=integer_tensor(id for id in sample_ids if id >= 0),
        action_mask=mask,
        trace=replace(trace, packed=packed),
        recorded={ROLLOUT_LOGPROBS: logprobs},
    )


def integer_tensor(values: Iterable[int]) -> Int[Tensor, " n"]:
    return torch.tensor(list(values), dtype=torch.long)
