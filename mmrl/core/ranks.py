"""The processes of a run and every collective of training; one process needs none of them and pays for none."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mmrl.core.types import Group, Prompt, Rollouts, Sample, Scores, Turn
from mmrl.runtime.accelerator import Accelerator, Engine, is_sharded
from mmrl.runtime.spans import in_span
from mmrl.runtime.tensors import pad_actions

T = TypeVar("T")


class OwnState(dict[str, Any]):
    """A state whose tensors are exclusive copies on the CPU: it can be kept as it is."""


class NoTrace:
    """Stands for the trace of rows that may live on another rank: advantages never look at it."""

    def take(self, rows: Tensor, steps: slice) -> "NoTrace":
        return self


class Ranks:
    """The processes of a run, and what all of them must do equally often, since wrapped modules communicate.

    `Ranks(accelerator)` is many, `Ranks()` one, which waits for none. If one process makes a call, all of them must.
    """

    def __init__(self, accelerator: Accelerator | None = None, engine: Engine | None = None, group: Any = None) -> None:
        """`engine` owns the update where a library does; `gather` goes through `group` in place of training's own."""
        self.accelerator, self.engine, self._group = accelerator, engine, group
        self.world: int = accelerator.num_processes if accelerator is not None else 1
        self.rank: int = accelerator.process_index if accelerator is not None else 0

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """True where every process holds a part of every weight."""
        return self.accelerator is not None and is_sharded(self.accelerator)

    def gather(self, x: T) -> list[T]:
        """One object per rank, in rank order, on every rank."""
        if self.world == 1:
            return [x]
        gathered = [x] * self.world
        torch.distributed.all_gather_object(gathered, x, group=self._group)
        return gathered

    def apart(self) -> "Ranks":
        """The same processes, who gather in a group of their own: for a thread beside the one that trains."""
        return self if self.world == 1 else Ranks(self.accelerator, self.engine, torch.distributed.new_group(backend="gloo"))

    def sum(self, values: Sequence[float | int]) -> list[float]:
        """Elementwise over ranks."""
        return [float(sum(column)) for column in zip(*self.gather(list(values)), strict=True)]

    def most(self, value: int) -> int:
        """The largest value of any rank."""
        return max(self.gather(value))

    def forwards(self, count: int) -> int:
        """How many forwards all ranks make, given how many this one needs. Replicas talk only where there is a gradient."""
        return self._most_quickly(count) if self.is_sharded or torch.is_grad_enabled() else count

    def anyone(self, flag: bool) -> bool:
        """True if a loop of forwards must go on, for this rank or for another one with a part of its weights."""
        return self._most_quickly(int(flag)) > 0 if self.is_sharded else flag

    def passes(self, count: int) -> int:
        """How often a forward passes the vision part. Replicas wait for a gradient of every weight, so once at least."""
        return self._most_quickly(count) if self.is_sharded else max(count, int(self.world > 1))

    def _most_quickly(self, value: int) -> int:
        """`most` by a tensor instead of an object: it is asked at every token."""
        if self.world == 1 or self.accelerator is None:
            return value
        return int(self.accelerator.gather(torch.tensor([value], device=self.accelerator.device)).max())

    def share_out(self, items: Sequence[T]) -> list[T]:
        """This rank's contiguous part of a list that is the same on all ranks."""
        each, rest = divmod(len(items), self.world)
        if rest:
            raise ValueError(
                f"{len(items)} prompts do not divide over {self.world} processes: "
                f"set prompts_per_step to a multiple of {self.world}"
            )
        return list(items[self.rank * each : (self.rank + 1) * each])

    @in_span("backward")
    def backward(self, loss: Tensor, last: bool = True) -> None:
        """Gradients are averaged over ranks by the wrapper; shares are global, so the loss is multiplied back."""
        if self.accelerator is None:
            torch.autograd.backward(loss)
        elif self.engine is not None:
            self.engine.backward(loss * self.world, last)
        else:
            self.accelerator.backward(loss * self.world)

    def clip(self, parameters: Iterable[nn.Parameter], max_norm: float) -> float:
        """Clip and return the norm of the gradient before clipping."""
        if self.engine is not None:
            return self.engine.norm(max_norm)
        limit = max_norm if max_norm > 0 else float("inf")
        clip = torch.nn.utils.clip_grad_norm_ if self.accelerator is None else self.accelerator.clip_grad_norm_
        norm = clip(list(parameters), limit)
        whole = getattr(norm, "full_tensor", None)
        return float(norm if whole is None else whole())

    @in_span("optimizer")
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.engine is None:
            optimizer.step()
        else:
            self.engine.step()

    def agree(self, problem: str | None) -> None:
        """Raise ValueError on all processes when one of them has a problem, so that none waits for it."""
        found = [text for text in self.gather(problem) if text is not None]
        if found:
            raise ValueError(found[0])

    @contextmanager
    def main_first(self, when: bool = True) -> Generator[None]:
        """Let one process of every node go first: what it downloads inside, the others find."""
        if self.world == 1 or self.accelerator is None or not when:
            yield
        else:
            with self.accelerator.local_main_process_first():
                yield

    def wait(self) -> None:
        if self.world > 1 and self.accelerator is not None:
            self.accelerator.wait_for_everyone()

    def close(self) -> None:
        """Leave together: a rank that exits while another still communicates with it kills the other one."""
        if self.world > 1 and self.accelerator is not None:
            self.wait()
            self.accelerator.end_training()

    def all_rows(self, rollouts: Rollouts) -> tuple[Rollouts, slice]:
        """The rows of all ranks without their traces and media, and where this rank's own rows stand among them.

        What was recorded comes along, as far as all ranks recorded it. One process gets no more of its own rows, so that a part
        which looks at them works on any number of processes or on none.
        """
        recorded = {reading: x.cpu() for reading, x in rollouts.recorded.items()}
        light = replace(rollouts, groups=tuple(map(without_media, rollouts.groups)), trace=NoTrace(), recorded=recorded)
        parts = self.gather(light)
        longest = max(part.action_mask.shape[1] for part in parts)
        start = sum(len(part) for part in parts[: self.rank])
        nodes = [pad_actions(part.node_ids, longest) for part in parts if part.node_ids is not None]
        noted = [reading for reading in light.recorded if all(reading in part.recorded for part in parts)]
        everyone = Rollouts(
            groups=tuple(group for part in parts for group in part.groups),
            group_ids=torch.cat([part.group_ids for part in parts]),
            sample_ids=torch.cat([part.sample_ids for part in parts]),
            action_mask=torch.cat([pad_actions(part.action_mask, longest) for part in parts]),
            trace=NoTrace(),
            recorded={reading: torch.cat([pad_actions(part.recorded[reading], longest) for part in parts]) for reading in noted},
            node_ids=torch.cat(nodes) if len(nodes) == len(parts) else None,
            weights_version=min(part.weights_version for part in parts),
        )
        return everyone, slice(start, start + len(rollouts))

    def all_scores(self, scores: Scores) -> Scores:
        """The scores of the rows of all ranks."""
        values, status = torch.cat(self.gather(scores.values)), torch.cat(self.gather(scores.status))
        return replace(scores, values=values, status=status)


def gathered(x: Tensor) -> Tensor:
    """A tensor on the CPU, whole, in memory of its own."""
    spread: Any = x.detach()
    if not hasattr(spread, "full_tensor"):
        return spread.to("cpu", copy=True)
    whole, local = spread.full_tensor(), spread.to_local()
    # Where every process has all of it, gathering copies nothing.
    return whole.to("cpu", copy=whole.untyped_storage().data_ptr() == local.untyped_storage().data_ptr())


def without_media(group: Group) -> Group:
    """The same group without pictures, light enough to send."""
    prompt = Prompt(group.prompt.id, group.prompt.text, (), group.prompt.answer, group.prompt.columns)
    return Group(group.id, prompt, tuple(map(as_words, group.samples)), notes=group.notes, seen=group.seen)


def as_words(sample: Sample) -> Sample:
    """The same sample without what was drawn or shown."""
    if sample.output is None and not sample.previews and not sample.turns:
        return sample
    return replace(sample, image=None, video=None, sound=None, previews=(), turns=blind(sample.turns))


def blind(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The same turns without the pictures of observations."""
    seen = [(turn, turn.observation) for turn in turns]
    return tuple(turn if one is None else replace(turn, observation=replace(one, media=())) for turn, one in seen)
