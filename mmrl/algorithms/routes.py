"""Rows that a teacher has to itself, which rewards decide: known after scoring, and before anything is read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.readings import TAUGHT
from mmrl.core.types import Rollouts, Scores, Trace

Told = TypeVar("Told", bound=Trace)


@runtime_checkable
class Routes(Protocol):
    """A term whose teacher may have some rows to itself, and be told something of each."""

    @property
    def routes(self) -> bool:
        """Has it?"""
        ...

    def route(self, rollouts: Rollouts, scores: Scores) -> tuple[Bool[Tensor, " n"], Sequence[str]]:
        """The rows that it has, and a text for every row; no texts: it is told nothing."""
        ...


@runtime_checkable
class Tellable(Protocol):
    """A record of rows, which may carry a text for each."""

    def tell(self, texts: Sequence[str]) -> Trace:
        """The same with these texts."""
        ...


def routed(algorithm: Algorithm, rollouts: Rollouts, scores: Scores) -> Rollouts:
    """The rows with TAUGHT recorded, and with what their teacher is told; as they are where no term routes them."""
    for _, term in algorithm.objective:
        if isinstance(term, Routes) and term.routes:
            taught, texts = term.route(rollouts, scores)
            recorded = {**rollouts.recorded, TAUGHT: taught[:, None].expand(rollouts.action_mask.shape).float()}
            rollouts = replace(rollouts, recorded=recorded)
            if texts and isinstance(rollouts.trace, Tellable):
                rollouts = replace(rollouts, trace=rollouts.trace.tell(texts))
    return rollouts


def refuse_routes(algorithm: Algorithm, label: str) -> None:
    """Raise ValueError for rows that nobody routes, or several do; and for rows that rewards cannot tell apart."""
    routing = [term for _, term in algorithm.objective if isinstance(term, Routes) and term.routes]
    if not routing and TAUGHT in algorithm.all_reads:
        raise ValueError(
            f'a part of algorithm {label} asks which rows a teacher has to itself, and no term says so: set rows = "wrong" or '
            'view.column = "told" of a FollowTeacher'
        )
    if len(routing) > 1:
        raise ValueError(f"{len(routing)} terms of algorithm {label} take rows for a teacher of their own: leave one of them")
    if not routing:
        return
    if algorithm.unscored:
        raise ValueError(
            f"rewards say which rows of algorithm {label} a teacher has, and its advantage asks for none: set "
            "algorithm.advantage.unscored = false, or take another advantage"
        )
    if algorithm.replays:
        raise ValueError(
            f"algorithm {label} trains rows of earlier steps again, of which the samples beside them are gone: set "
            'algorithm.planner.kind = "Once", or rows = "all" and another view of FollowTeacher'
        )
