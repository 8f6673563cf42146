"""A policy that learns in a second: letters a b c d and a stop, conditioned on a vector; it keeps the protocol's promises."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.protocols import View
from mmrl.core.ranks import Ranks
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import Segment, segments_of
from mmrl.core.types import Batch, Given, Group, Piece, Prompt, Reading, Request, Rollouts, Sample, Scope, Trace, Video
from mmrl.policies.text.read.evaluate import disagreement
from mmrl.runtime.tensors import pad_actions

LETTERS = "abcd."
KNOWN = {"reference_accuracy": 0.3, "difficulty": 1.0}
"""Columns that methods ask for."""


class FakeAccelerator:
    """What mmrl looks at of accelerate's Accelerator, for processes that are not there; `more` are further attributes."""

    def __init__(self, world: int = 1, kind: str = "NO", **more: Any) -> None:
        self.num_processes, self.process_index, self.is_main_process = world, 0, True
        self.device = torch.device("cpu")
        self.deepspeed_plugin: Any = None
        self.distributed_type: Any = SimpleNamespace(value=kind)
        self.mixed_precision, self.gradient_accumulation_steps = "no", 1
        vars(self).update(more)

    def prepare(self, *args: Any) -> Any:
        return args[0] if len(args) == 1 else args

    def unwrap_model(self, model: Any) -> Any:
        return model

    def gather(self, tensor: Any) -> Any:
        return tensor.repeat(self.num_processes)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def clip_grad_norm_(self, parameters: Any, max_norm: float) -> Any:
        return nn.utils.clip_grad_norm_(parameters, max_norm)

    def local_main_process_first(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wait_for_everyone(self) -> None: ...
    def end_training(self) -> None: ...


class PlayedRanks(Ranks):
    """One of `world` processes that are not there: what is gathered is made of this one's own object."""

    def __init__(self, gathered: Callable[[Any], list[Any]], rank: int = 0, world: int = 2) -> None:
        super().__init__()
        self.gathered, self.rank, self.world = gathered, rank, world

    def gather(self, x: Any) -> list[Any]:
        return self.gathered(x)


@dataclass(frozen=True)
class Steps:
    """A trace whose tensors all carry (n, t) in front."""

    tensors: dict[str, Tensor]

    def take(self, rows: Tensor, steps: slice) -> "Steps":
        return Steps({name: x[rows][:, steps] for name, x in self.tensors.items()})


class OfNets:
    """What policies of a few small networks do alike; `policy` is the one that trains."""

    nets: dict[str, nn.Module]
    accelerator: Any

    def parameters(self) -> Iterable[nn.Parameter]:
        return self.nets["policy"].parameters()

    def state_dict(self) -> dict[str, Any]:
        return {name: net.state_dict() for name, net in self.nets.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, net in self.nets.items():
            net.load_state_dict(state[name])

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), folder / "policy.pt")

    def prepare(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.nets["policy"] = accelerator.prepare(self.nets["policy"])


@dataclass
class FakeTextPolicy(OfNets):
    """Autoregressive over LETTERS, at most `length` of them, given the three numbers in prompt.columns["vector"].

    Clips are not opened: a prompt whose frames are shuffled shows its numbers shuffled.
    """

    length: int = 4
    shadows: frozenset[str] = frozenset({"ref"})
    ema_decay: float = 0.9
    offers: frozenset[str] = frozenset(
        {"logprobs", "entropy", "lead", "group_divergence", "answer_mask", "attention_distance", "attention_influence"}
    )
    views: Mapping[str, View] = field(default_factory=dict)
    nets: dict[str, nn.Module] = field(default_factory=dict)
    accelerator: Any = None
    vocabulary: str = LETTERS
    reads_at_temperatures: bool = True

    def __post_init__(self) -> None:
        for name in ("policy", "ref", "ema", "previous", "start"):
            torch.manual_seed(0)
            size = 3 + len(LETTERS) + self.length
            self.nets[name] = nn.Sequential(nn.Linear(size, 32), nn.Tanh(), nn.Linear(32, len(LETTERS)))

    def _logprobs(self, model: str, trace: Steps, view: str, temperature: float | Tensor | None = None) -> Tensor:
        tokens = trace.tensors["tokens"]
        previous = nn.functional.one_hot(tokens, len(LETTERS)).float().roll(1, dims=1)
        previous[:, 0] = 0
        position = trace.tensors["position"]
        logits = self.nets[model](torch.cat([trace.tensors[view], previous, position], -1))
        return (logits if temperature is None else logits / temperature).log_softmax(-1)

    @torch.no_grad()
    def rollout(self, requests: Sequence[Request], sampling: Any = None) -> Rollouts:
        rows = [(request, i) for request in requests for i in range(request.count)]
        tokens = torch.zeros(len(rows), self.length, dtype=torch.long)
        begun = [begun_by(request.given, self.length) for request, _ in rows]
        trace = Steps({"tokens": tokens, **self._seen(requests)})
        draws = uniform(rows, self.length)
        heat = torch.tensor([request.tempering.temperature or 1.0 for request, _ in rows]).view(-1, 1, 1)
        for t in range(self.length):
            probs = warmed(self._logprobs("policy", trace, "shown", heat)[:, t], [request for request, _ in rows]).exp()
            drawn = (probs.cumsum(-1) < draws[:, t, None]).sum(-1).clamp(max=len(LETTERS) - 1)
            letters = (probs.argmax(-1) if sampling == "greedy" else drawn).tolist()
            for row, ((request, _), given) in enumerate(zip(rows, begun, strict=True)):
                letters[row] = letter_at(t, request, given, letters[row])
            tokens[:, t] = torch.tensor(letters, dtype=torch.long)
        stop = tokens == len(LETTERS) - 1
        mask = stop.long().cumsum(1) - stop.long() == 0
        logprobs = self._logprobs("policy", trace, "shown").gather(-1, tokens[..., None])[..., 0]
        logprobs[torch.tensor([not is_recorded(request) for request, _ in rows], dtype=torch.bool)] = torch.nan
        groups, group_ids, sample_ids = self._groups(rows, tokens, mask, begun)
        for row, ((request, _), letters) in enumerate(zip(rows, begun, strict=True)):
            if (given := request.given) is None:
                continue
            logprobs[row, : len(letters)] = torch.nan
            if given.is_row:
                logprobs[row] = torch.nan
                logprobs[row, : len(given.logprobs)] = torch.tensor(given.logprobs)
            mask[row, : len(letters)] = False
            mask[row, : len(begun_by(given, self.length, "policy"))] = True
        kept = (sample_ids >= 0).nonzero()[:, 0]
        everything = Rollouts(groups, group_ids, sample_ids, mask, trace, {ROLLOUT_LOGPROBS: logprobs})
        return everything if len(kept) == len(rows) else everything.take(kept)

    def _seen(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """What the net sees besides letters, in a row for each sample."""
        owners = torch.tensor([i for i, request in enumerate(requests) for _ in range(request.count)], dtype=torch.long)
        seen = {name: x[owners] for name, x in self._vectors(list(requests)).items()}
        return {**seen, "position": torch.eye(self.length).expand(len(owners), -1, -1)}

    def _vectors(self, requests: list[Request]) -> dict[str, Tensor]:
        """What the net sees of every request's prompt: as shown while sampling, plain, and under each view."""
        prompts = self._prompts(requests)
        vectors = {name: torch.tensor([vector(prompt) for prompt in some]).view(-1, 3) for name, some in prompts.items()}
        return {name: x[:, None].expand(-1, self.length, -1) for name, x in vectors.items()}

    def _prompts(self, requests: list[Request]) -> dict[str, list[Prompt]]:
        """Every request's prompt: as shown while sampling, as training reads it, and under each view."""
        asked = [request.shown_prompt for request in requests]
        read = [one if r.shown.trained else r.prompt for one, r in zip(asked, requests, strict=True)]
        prompts = {"plain": read}
        for name, view in self.views.items():
            prompts[name] = [view(one, request.seed) for one, request in zip(read, requests, strict=True)]
        prompts["shown"] = [
            one if request.view == "plain" else self.views[request.view](one, request.seed)
            for one, request in zip(asked, requests, strict=True)
        ]
        return prompts

    def _groups(
        self, rows: list[tuple[Request, int]], tokens: Tensor, mask: Tensor, begun: list[list[int]]
    ) -> tuple[tuple[Group, ...], Tensor, Tensor]:
        samples: dict[int, list[Sample]] = {}
        probes: dict[int, dict[str, tuple[Sample, ...]]] = {}
        prompts: dict[int, Prompt] = {}
        notes: dict[int, list[str]] = {}
        sample_ids: list[int] = []
        for (request, _), row, kept, given in zip(rows, tokens.tolist(), mask.tolist(), begun, strict=True):
            text = "".join(LETTERS[token] for token, keep in zip(row, kept, strict=True) if keep)
            prompts[request.group_id] = request.prompt
            own, drawn = samples.setdefault(request.group_id, []), probes.setdefault(request.group_id, {})
            if request.role == "note":
                notes.setdefault(request.group_id, []).append(self.note(text, request))
                sample_ids.append(-1)
                continue
            sample = Sample(
                text,
                tuple(row[: sum(kept)]),
                truncated="." not in text,
                role=request.role,
                segments=self._segments(request, len(given), sum(kept)),
                temperature=request.tempering.temperature,
            )
            if request.role == "probe":
                sample_ids.append(-1)
                drawn[request.view] = (*drawn.get(request.view, ()), sample)
                continue
            sample_ids.append(len(own))
            own.append(sample)
        groups = tuple(Group(i, prompts[i], tuple(own), probes[i], tuple(notes.get(i, ()))) for i, own in samples.items())
        ids = torch.tensor([request.group_id for request, _ in rows], dtype=torch.long)
        return groups, ids, torch.tensor(sample_ids, dtype=torch.long)

    def _segments(self, request: Request, num_given: int, length: int) -> tuple[Segment, ...]:
        """Who wrote a row of `length` letters, of which the first were given.

        Of a forced text that has no room, the last given letter is left.
        """
        row, given = request.given, min(num_given, length)
        if row is not None and row.is_row:
            return row.segments
        kept = 0
        if given and row is not None and row.pieces[0].who == "policy":
            kept = min(given - (len(row.pieces) > 1), len(kept_letters(row.pieces[0])))
        forced = given - kept
        return segments_of([("policy", kept), ("forced", forced), ("policy", length - kept - forced)])

    def note(self, text: str, request: Request) -> str:
        """What was written for the planner."""
        return text

    def read(self, trace: Trace, readings: Iterable[Reading], mask: Tensor) -> dict[Reading, Tensor]:
        assert isinstance(trace, Steps)
        out: dict[Reading, Tensor] = {}
        for reading in readings:
            logprobs = self._logprobs(reading.model, trace, reading.view, reading.temperature)
            chosen = logprobs.gather(-1, trace.tensors["tokens"][..., None])[..., 0]
            uniform = torch.full_like(logprobs, -math.log(len(LETTERS)))
            out[reading] = {
                "logprobs": lambda chosen=chosen: chosen,
                "entropy": lambda logprobs=logprobs: -(logprobs.exp() * logprobs).sum(-1),
                "lead": lambda logprobs=logprobs: logprobs.exp().topk(2).values.diff(dim=-1).neg()[..., 0],
                "group_divergence": lambda x=torch.where(mask[..., None], logprobs, uniform): disagreement(x).expand(mask.shape),
                "answer_mask": lambda: (torch.arange(mask.shape[1]) == 0).float().expand(mask.shape),
                # the first letter is looked at, and the others look back at it
                "attention_distance": lambda: torch.arange(mask.shape[1]).float().expand(mask.shape),
                "attention_influence": lambda: (torch.arange(mask.shape[1]) == 0).float().expand(mask.shape),
            }[reading.quantity]()
        return out

    def split(self, batch: Batch, micro_batch: int, scope: Scope) -> Iterator[Batch]:
        if scope == "batch":
            yield batch
            return
        yield from in_units(batch, scope, micro_batch // self.length)

    def join(self, traces: Sequence[Trace]) -> Steps:
        steps = [trace for trace in traces if isinstance(trace, Steps)]
        return Steps({name: torch.cat([pad_actions(t.tensors[name], self.length) for t in steps]) for name in steps[0].tensors})

    @torch.no_grad()
    def advance(self) -> None:
        for slow, live in zip(self.nets["ema"].parameters(), self.nets["policy"].parameters(), strict=True):
            slow.lerp_(live, 1 - self.ema_decay)

    @torch.no_grad()
    def end_step(self, rebase: bool = False) -> None:
        for follower, leader in (("previous", "start"), ("start", "policy"), *([("ref", "policy")] if rebase else [])):
            for slow, live in zip(self.nets[follower].parameters(), self.nets[leader].parameters(), strict=True):
                slow.copy_(live)


def in_units(batch: Batch, scope: Scope, most: int) -> Iterator[Batch]:
    """Parts of so many groups each, or of so many rows."""
    units = batch.rollouts.group_ids if scope == "group" else torch.arange(len(batch))
    for chosen in units.unique().split(max(1, most)):
        yield batch.take(torch.isin(units, chosen).nonzero()[:, 0])


def warmed(logprobs: Tensor, requests: Sequence[Request]) -> Tensor:
    """With each row's own rule for its tokens' temperatures."""
    if not any(one.tempering.rule for one in requests):
        return logprobs
    pairs = zip(logprobs.split(1), requests, strict=True)
    return torch.cat([(one.tempering.rule or torch.Tensor.clone)(row) for row, one in pairs])


def is_recorded(request: Request) -> bool:
    """Does training read what was sampled behind the prompt that was shown?"""
    if request.role == "injected" or request.tempering.temperature is not None:
        return False
    return request.shown.prompt is None or request.shown.trained


def letter_at(t: int, request: Request, given: Sequence[int], drawn: int) -> int:
    """The letter at place t: of a row of an earlier step, of a given text, of a beginning, or the drawn one."""
    if request.given is not None and request.given.whole:
        letters = [LETTERS.index(letter) for letter in request.text] if request.text else request.given.tokens
        return letters[t] if t < len(letters) else len(LETTERS) - 1
    return given[t] if t < len(given) else drawn


def begun_by(given: Given | None, length: int, *who: str) -> list[int]:
    """The letters that a completion begins with, by these writers or by all; one at least is left to sample."""
    if given is None or given.whole or given.world is not None:
        return []
    return [letter for piece in given.pieces if piece.who in who or not who for letter in kept_letters(piece)][: length - 1]


def kept_letters(piece: Piece) -> list[int]:
    """The letters of a text, or those of the earlier completion that stay."""
    text = "".join(LETTERS[token] for token in piece.tokens) if piece.text is None else piece.text
    kept = known_letters(text.partition(piece.before)[0] if piece.before else text)
    return kept[: int(piece.share * len(kept))]


def known_letters(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text if letter in LETTERS[:-1]]


def uniform(rows: list[tuple[Request, int]], length: int) -> Tensor:
    """A number per action, by the request's seed and the sample's number alone."""
    draws = torch.empty(len(rows), length)
    for row, (request, i) in zip(draws, rows, strict=True):
        row.uniform_(generator=torch.Generator().manual_seed((request.seed * 1009 + i) % 2**63))
    return draws


def vector(prompt: Prompt) -> list[float]:
    numbers = [float(x) for x in prompt.columns["vector"]]
    shuffles = [clip.shuffle for clip in prompt.media if isinstance(clip, Video) and clip.shuffle is not None]
    return random.Random(shuffles[0]).sample(numbers, len(numbers)) if shuffles else numbers


def prompts(count: int = 8) -> list[Prompt]:
    """The answer is the letter of the largest number."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(count, 3, generator=generator)
    return [
        Prompt(str(i), f"which? {i}", answer=LETTERS[int(vector.argmax())], columns={**KNOWN, "vector": vector.tolist()})
        for i, vector in enumerate(vectors)
    ]


def right_letter(group: Group) -> list[float]:
    """1 for the answer's letter first, 0.2 more for stopping."""
    return [float((sample.text or "").startswith(group.prompt.answer)) + 0.2 * (not sample.truncated) for sample in group.samples]
