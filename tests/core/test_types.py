"""The vocabulary: totals of rewards, rows that are taken, segments of completions, and hooks, which do nothing by default."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import nan
from typing import Any

import pytest
import torch

from mmrl.algorithms.algorithm import Algorithm, part_with_length
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.replay import ReplayGroups
from mmrl.app.config.slots import SLOTS, kinds
from mmrl.core.hooks import AdvantageHooks, PartHooks, PlannerHooks, TermHooks, WeightHooks, defines, with_hooks
from mmrl.core.samples import Sample, Segment, Who, last_turn, segments_of, turn_ids
from mmrl.core.types import ClipRange, Prompt, Scores, Status, StoredRow
from mmrl.runtime.ranges import NonNegative
from mmrl.runtime.tensors import masked_mean, pad_actions, stack_ragged, within
from tests.support.each import for_each
from tests.support.refused import refused

OK, NA, FAILED = int(Status.OK), int(Status.NA), int(Status.FAILED)


def scores(values: list[list[float]], status: list[list[int]], weights: list[float]) -> Scores:
    names = tuple("abc"[: len(weights)])
    return Scores(names, torch.tensor(values), torch.tensor(status), torch.tensor(weights))


@pytest.mark.parametrize(
    ("values", "status", "weights", "total"),
    [
        # 1 * 2 - 0.5 * 4 = 0; -0.5 * 3 = -1.5 where the first does not apply
        ([[2.0, 4.0], [nan, 3.0]], [[OK, OK], [NA, OK]], [1.0, -0.5], [0.0, -1.5]),
        ([[1.0, nan, 1.0], [1.0, 1.0, nan]], [[OK, FAILED, OK], [OK, OK, FAILED]], [1.0, 2.0, 0.0], [nan, 3.0]),
        ([[nan, 1.0]], [[NA, OK]], [1.0, 0.0], [nan]),
    ],
    ids=["a negative weight", "a weighted failure and a logged one", "nothing weighted applies"],
)
def test_the_total_of_a_row(values: list[list[float]], status: list[list[int]], weights: list[float], total: list[float]):
    torch.testing.assert_close(scores(values, status, weights).total(), torch.tensor(total), equal_nan=True, atol=0, rtol=0)


def test_rows_are_taken_in_the_order_given_and_groups_found_by_id():
    taken = scores([[1.0], [2.0], [3.0]], [[OK], [NA], [FAILED]], [1.0]).take(torch.tensor([2, 0]))
    assert taken.values[:, 0].tolist() == [3.0, 1.0] and taken.status[:, 0].tolist() == [FAILED, OK]
    ids, x = torch.tensor([7, 3, 7, 0]), torch.tensor([[1.0], [5.0], [3.0], [8.0]])
    assert within(ids, x, lambda rows: rows - rows.mean())[:, 0].tolist() == [-1.0, 0.0, 1.0, 0.0]


def test_masked_means_and_padding():
    x, mask = torch.tensor([[1.0, torch.nan], [3.0, 5.0]]), torch.tensor([[True, False], [True, True]])
    assert masked_mean(x, mask) == 3.0 and masked_mean(x, mask, dim=1).tolist() == [1.0, 4.0]
    assert masked_mean(x, torch.zeros_like(mask)) == 0.0
    assert pad_actions(torch.ones(1, 2), 3, -1.0).tolist() == [[1.0, 1.0, -1.0]]
    assert stack_ragged([torch.ones(1), torch.ones(2)]).tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_the_narrow_side_of_a_clip_range():
    assert (ClipRange(0.2, 0.28).narrowest, ClipRange(4e-4, 3e-4, "rollout").narrowest) == (0.2, 3e-4)


TURNS: list[tuple[Who, int]] = [
    *(("policy", 2), ("environment", 3), ("policy", 1)),
    *(("environment", 1), ("forced", 2), ("policy", 1)),
]


AROUND: list[tuple[Who, int]] = [("environment", 1), ("forced", 1), ("policy", 1), ("environment", 1), ("forced", 1)]


@pytest.mark.parametrize(
    ("pieces", "turns"),
    [
        (TURNS, [0, 0, -1, -1, -1, 1, -1, -1, -1, 2]),
        ([("policy", 1), ("forced", 2), ("policy", 1)], [0, -1, -1, 0]),
        ([*AROUND, ("environment", 1), ("policy", 2)], [-1, -1, 0, -1, -1, -1, 1, 1]),
    ],
    ids=["between environments", "what is forced within ends none", "they begin with the policy"],
)
def test_turns_count_what_the_policy_wrote(pieces: list[tuple[Who, int]], turns: list[int]):
    assert turn_ids(segments_of(pieces)) == turns


def test_pieces_of_one_writer_become_one_segment_and_empty_ones_none():
    pieces: list[tuple[Who, int]] = [("policy", 0), ("forced", 2), ("policy", 0), ("forced", 1), ("policy", 4)]
    assert segments_of(pieces) == (Segment("forced", 0, 3), Segment("policy", 3, 7))
    assert segments_of([]) == () and turn_ids(()) == [] and last_turn(()) == 0


@pytest.mark.parametrize("trained", [False, True])
def test_what_begins_in_the_middle_trains_the_places_it_trained_as_one_interval(trained: bool):
    for kept, forced, written in product(range(3), range(3), range(1, 3)):
        begun = segments_of([("policy" if trained else "forced", kept), ("forced", forced)])
        whole = segments_of([*((one.who, len(one)) for one in begun), ("policy", written)])
        start, stop = (kept, kept + forced) if trained else (0, kept + forced)
        assert [turn >= 0 for turn in turn_ids(whole)] == [not start <= i < stop for i in range(kept + forced + written)]


def test_a_completion_without_turns_is_one_segment_of_the_policy():
    sample = Sample("yes", (5, 6))
    assert sample.segments == StoredRow((5, 6)).segments == (Segment("policy", 0, 2),)
    assert sample.transcript == "yes" and sample.num_written == 2
    assert Sample("yes").segments == Sample("", ()).segments == () and Sample().transcript is None


def test_a_sample_speaks_of_its_last_turn_and_of_all():
    sample = Sample("now", tuple(range(10)), segments=segments_of(TURNS), earlier="then? ")
    assert (sample.text, sample.transcript, sample.num_written) == ("now", "then? now", 4)
    assert last_turn(sample.segments) == 7, "what was forced in the last turn belongs to it"


@pytest.mark.parametrize(
    "segments",
    [
        (Segment("policy", 0, 2),),
        (Segment("policy", 0, 4),),
        (Segment("policy", 1, 3),),
        (Segment("forced", 0, 2), Segment("policy", 1, 3)),
        (Segment("policy", 0, 3), Segment("policy", 3, 3)),
        (Segment("policy", 0, 1), Segment("policy", 1, 3)),
    ],
    ids=str,
)
def test_segments_cover_the_tokens(segments: tuple[Segment, ...]):
    refused("do not cover the 3 tokens one after the other", StoredRow, (1, 2, 3), segments=segments)


def test_the_policy_has_the_last_word_and_a_stored_row_takes_no_facts_in_an_order():
    with pytest.raises(ValueError, match="the policy has the last word"):
        replace(Sample("a", (1, 2, 3)), segments=segments_of([("policy", 2), ("environment", 1)]))
    refused("takes from 1 to 2 positional arguments", StoredRow, (5, 6), (), 4, error=TypeError)


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


def test_what_a_part_defines_is_asked_of_it_and_one_that_inherits_its_hooks_is_itself():
    part = Foreign()
    hooks = with_hooks(part, TermHooks)
    hooks.adapt(3, {})
    assert hooks.clip_range == ClipRange(0.1, 0.2) and hooks.at_first_update is None and part.seen == [3]
    planner = Once()
    assert with_hooks(planner, PlannerHooks) is planner


def test_replaying_is_defining_begin_and_an_error_inside_a_hook_is_the_users():
    class Own:
        def begin(self, *_: Any) -> None:
            raise ValueError("mine")

    assert not Algorithm().replays and Algorithm(planner=ReplayGroups()).replays
    assert defines(Own(), PlannerHooks.begin) and not defines(object(), PlannerHooks.begin)
    refused("mine", with_hooks(Own(), PlannerHooks).begin, [], "letters")


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

    refused(r"Own\.weight is -1\.0: it must be 0 or more", Own, -1.0)


@for_each("slot", sorted({*SLOTS} - {"sampler", "schedule", "ema_decay"}))
def test_a_shipped_hook_is_called_as_it_is_declared(slot: str):
    """A slip in a hook's name or arguments would be silent: the part would merely do nothing."""
    for name, part in kinds(slot).items():
        for hook, declared in inspect.getmembers(HOOKS.get(slot, PartHooks), inspect.isfunction):
            own = inspect.getattr_static(part, hook, None)
            if own is not None and hook != "__post_init__":
                assert [*inspect.signature(own).parameters] == [*inspect.signature(declared).parameters], (name, hook)
