"""Hooks do nothing by default, and what inherits none of them is asked for those that it defines."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from mmrl.algorithms.algorithm import Algorithm, part_with_length
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.replay import ReplayGroups
from mmrl.app.config.slots import SLOTS, kinds
from mmrl.core.hooks import AdvantageHooks, PartHooks, PlannerHooks, TermHooks, WeightHooks, defines, with_hooks
from mmrl.core.types import ClipRange, Prompt
from mmrl.runtime.ranges import NonNegative
from tests.support.each import for_each

CLIPPED = ClipRange(0.1, 0.2)
HOOKS: Mapping[str, type[PartHooks]] = {"objective": TermHooks, "advantage": AdvantageHooks, "planner": PlannerHooks} | {
    slot: WeightHooks for slot in ("aggregation", "importance")
}


@dataclass(frozen=True)
class Foreign:
    """A user's part that inherits nothing."""

    clip_range: ClipRange = CLIPPED
    seen: list[int] = field(default_factory=list[int])

    def adapt(self, step: int, metrics: Mapping[str, float]) -> None:
        self.seen.append(step)


def test_what_a_part_does_not_define_does_nothing():
    hooks = with_hooks(object(), TermHooks)
    assert hooks.views == {} and hooks.clip_range is None and hooks.rebase_after == 0 and not hooks.silent_without_advantage
    hooks.adapt(1, {})
    hooks.check_prompts([Prompt("p")])


def test_what_a_part_defines_is_asked_of_it():
    part = Foreign()
    hooks = with_hooks(part, TermHooks)
    hooks.adapt(3, {})
    assert hooks.clip_range == ClipRange(0.1, 0.2) and hooks.at_first_update is None and part.seen == [3]


def test_a_part_that_inherits_its_hooks_is_itself():
    planner = Once()
    assert with_hooks(planner, PlannerHooks) is planner


def test_an_error_inside_a_hook_is_the_users():
    class Broken:
        def begin(self, *_: Any) -> None:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        with_hooks(Broken(), PlannerHooks).begin([], "letters")


def test_replaying_is_defining_begin():
    class Own:
        def begin(self, *_: Any) -> None: ...

    assert not Algorithm().replays and Algorithm(planner=ReplayGroups()).replays
    assert defines(Own(), PlannerHooks.begin) and not defines(object(), PlannerHooks.begin)


def test_a_length_that_is_not_the_runs_stays():
    @dataclass(frozen=True)
    class Own:
        length: int | None = None

    part = Own()
    assert part_with_length(part, 9) is part


def test_a_part_that_inherits_hooks_has_its_ranges_checked():
    @dataclass(frozen=True)
    class Own(PartHooks):
        weight: NonNegative = 1.0

    with pytest.raises(ValueError, match=r"Own\.weight is -1\.0: it must be 0 or more"):
        Own(-1.0)


@for_each("slot", sorted({*SLOTS} - {"sampler", "schedule", "ema_decay"}))
def test_a_shipped_hook_is_called_as_it_is_declared(slot: str):
    """A slip in a hook's name or arguments would be silent: the part would merely do nothing."""
    for name, part in kinds(slot).items():
        for hook, declared in inspect.getmembers(HOOKS.get(slot, PartHooks), inspect.isfunction):
            own = inspect.getattr_static(part, hook, None)
            if own is not None and hook != "__post_init__":
                assert [*inspect.signature(own).parameters] == [*inspect.signature(declared).parameters], (name, hook)
