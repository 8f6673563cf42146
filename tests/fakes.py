"""A policy that learns in a second: letters a b c d and a stop, conditioned on a vector; it keeps the protocol's promises."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.tensors import pad_actions
from mmrl.core.types import Batch, Group, Prompt, Reading, Request, Rollouts, Sample, Scope, Trace

LETTERS = "abcd."
SAMPLED = Reading("logprobs", "sampler")


@dataclass(frozen=True)
class Steps:
    """A trace whose tensors all carry (n, t) in front."""

    tensors: Mapping[str, Tensor]

    def take(self, rows: Tensor, steps: slice) -> "Steps":
        return Steps({name: x[rows][:, steps] for name, x in self.tensors.items()})


@dataclass
class FakeTextPolicy:
    """Autoregressive over LETTERS, at most `length` of them, given the three numbers in prompt.columns["vector"]."""

    length: int = 4
    shadows: frozenset[str] = frozenset({"ref"})
    ema_decay: float = 0.9
    offers: frozenset[str] = frozenset({"logprobs", "entropy"})
    nets: dict[str, nn.Module] = field(default_factory=dict)
    accelerator: Any = None

    def __post_init__(self) -> None:
        for name in ("policy", "ref", "ema"):
            torch.manual_seed(0)
            size = 3 + len(LETTERS) + self.length
            self.nets[name] = nn.Sequential(nn.Linear(size, 32), nn.Tanh(), nn.Linear(32, len(LETTERS)))

    def _logprobs(self, model: str, trace: Steps) -> Tensor:
        tokens = trace.tensors["tokens"]
        previous = nn.functional.one_hot(tokens, len(LETTERS)).float().roll(1, dims=1)
        previous[:, 0] = 0
        position = trace.tensors["position"]
        return self.nets[model](torch.cat([trace.tensors["vector"], previous, position], -1)).log_softmax(-1)

    @torch.no_grad()
    def rollout(self, requests: Sequence[Request], how: Any = None) -> Rollouts:
        rows = [(request, i) for request in requests for i in range(request.count)]
        vector = torch.tensor([request.prompt.columns["vector"] for request, _ in rows], dtype=torch.float32)
        tokens = torch.zeros(len(rows), self.length, dtype=torch.long)
        spread = {"vector": vector[:, None].expand(-1, self.length, -1), "tokens": tokens}
        trace = Steps(spread | {"position": torch.eye(self.length).expand(len(rows), -1, -1)})
        draws = torch.stack(
            [
                torch.rand(self.length, generator=torch.Generator().manual_seed((request.seed * 1009 + i) % 2**63))
                for request, i in rows
            ]
        )
        for t in range(self.length):
            probs = self._logprobs("policy", trace)[:, t].exp()
            drawn = (probs.cumsum(-1) < draws[:, t, None]).sum(-1).clamp(max=len(LETTERS) - 1)
            tokens[:, t] = probs.argmax(-1) if how == "greedy" else drawn
        stop = tokens == len(LETTERS) - 1
        mask = stop.long().cumsum(1) - stop.long() == 0
        logprobs = self._logprobs("policy", trace).gather(-1, tokens[..., None])[..., 0]
        groups, group_ids, sample_ids = self._groups(rows, tokens, mask)
        return Rollouts(groups, group_ids, sample_ids, mask, trace, {SAMPLED: logprobs})

    def _groups(self, rows: list[tuple[Request, int]], tokens: Tensor, mask: Tensor) -> tuple[tuple[Group, ...], Tensor, Tensor]:
        samples: dict[int, list[Sample]] = {}
        prompts: dict[int, Prompt] = {}
        sample_ids = []
        for (request, _), row, kept in zip(rows, tokens.tolist(), mask.tolist(), strict=True):
            text = "".join(LETTERS[token] for token, keep in zip(row, kept, strict=True) if keep)
            prompts[request.group_id] = request.prompt
            own = samples.setdefault(request.group_id, [])
            sample_ids.append(len(own))
            own.append(Sample(text=text, token_ids=tuple(row[: sum(kept)]), truncated="." not in text))
        groups = tuple(Group(i, prompts[i], tuple(own)) for i, own in samples.items())
        return groups, torch.tensor([request.group_id for request, _ in rows]), torch.tensor(sample_ids)

    def read(self, trace: Trace, readings: Iterable[Reading], mask: Tensor) -> dict[Reading, Tensor]:
        assert isinstance(trace, Steps)
        out: dict[Reading, Tensor] = {}
        for reading in readings:
            logprobs = self._logprobs(reading.model, trace)
            chosen = logprobs.gather(-1, trace.tensors["tokens"][..., None])[..., 0]
            out[reading] = {"logprobs": chosen, "entropy": -(logprobs.exp() * logprobs).sum(-1)}[reading.quantity]
        return out

    def split(self, batch: Batch, budget: int, scope: Scope) -> Iterator[Batch]:
        if scope == "batch":
            yield batch
            return
        ids = batch.rollouts.group_ids
        units = ids if scope == "group" else torch.arange(len(batch))
        for chosen in units.unique().split(max(1, budget // self.length)):
            yield batch.take(torch.isin(units, chosen).nonzero()[:, 0])

    def join(self, traces: Sequence[Trace]) -> Steps:
        steps = [trace for trace in traces if isinstance(trace, Steps)]
        return Steps({name: torch.cat([pad_actions(t.tensors[name], self.length) for t in steps]) for name in steps[0].tensors})

    def parameters(self) -> Iterable[nn.Parameter]:
        return self.nets["policy"].parameters()

    @torch.no_grad()
    def advance(self) -> None:
        for slow, live in zip(self.nets["ema"].parameters(), self.nets["policy"].parameters(), strict=True):
            slow.lerp_(live, 1 - self.ema_decay)

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


def prompts(count: int = 8) -> list[Prompt]:
    """The answer is the letter of the largest number."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(count, 3, generator=generator)
    return [
        Prompt(str(i), f"which? {i}", answer=LETTERS[int(vector.argmax())], columns={"vector": vector.tolist()})
        for i, vector in enumerate(vectors)
    ]


def right_letter(group: Group) -> list[float]:
    """1 for the answer's letter first, 0.2 more for stopping."""
    return [float((sample.text or "").startswith(group.prompt.answer)) + 0.2 * (not sample.truncated) for sample in group.samples]
