"""The vocabulary: totals of rewards, rows that are taken, and the segments of completions."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from mmrl.core.samples import Sample, Segment, Who, last_turn, segments_of, turn_ids
from mmrl.core.types import ClipRange, Scores, Status, StoredRow
from mmrl.runtime.tensors import masked_mean, pad_actions, stack_ragged, within

OK, NA, FAILED = int(Status.OK), int(Status.NA), int(Status.FAILED)


def scores(values: list[list[float]], status: list[list[int]], weights: list[float]) -> Scores:
    names = tuple("abc"[: len(weights)])
    return Scores(names, torch.tensor(values), torch.tensor(status), torch.tensor(weights))


def test_a_reward_of_negative_weight_is_subtracted():
    # 1 * 2 - 0.5 * 4 = 0; -0.5 * 3 = -1.5 where the first does not apply
    total = scores([[2.0, 4.0], [torch.nan, 3.0]], [[OK, OK], [NA, OK]], [1.0, -0.5]).total()
    assert total.tolist() == [0.0, -1.5]


def test_a_weighted_failure_takes_the_row_out_and_a_logged_one_does_not():
    values, status = [[1.0, torch.nan, 1.0], [1.0, 1.0, torch.nan]], [[OK, FAILED, OK], [OK, OK, FAILED]]
    total = scores(values, status, [1.0, 2.0, 0.0]).total()
    assert total[0].isnan() and total[1] == 3.0


def test_a_row_for_which_nothing_weighted_applies_has_no_total():
    assert scores([[torch.nan, 1.0]], [[NA, OK]], [1.0, 0.0]).total().isnan().all()


def test_rows_are_taken_in_the_order_given():
    taken = scores([[1.0], [2.0], [3.0]], [[OK], [NA], [FAILED]], [1.0]).take(torch.tensor([2, 0]))
    assert taken.values[:, 0].tolist() == [3.0, 1.0] and taken.status[:, 0].tolist() == [FAILED, OK]


def test_groups_are_found_by_id():
    ids, x = torch.tensor([7, 3, 7, 0]), torch.tensor([[1.0], [5.0], [3.0], [8.0]])
    assert within(ids, x, lambda rows: rows - rows.mean())[:, 0].tolist() == [-1.0, 0.0, 1.0, 0.0]


def test_masked_means_and_padding():
    x, mask = torch.tensor([[1.0, torch.nan], [3.0, 5.0]]), torch.tensor([[True, False], [True, True]])
    assert masked_mean(x, mask) == 3.0 and masked_mean(x, mask, dim=1).tolist() == [1.0, 4.0]
    assert masked_mean(x, torch.zeros_like(mask)) == 0.0
    assert pad_actions(torch.ones(1, 2), 3, -1.0).tolist() == [[1.0, 1.0, -1.0]]
    assert stack_ragged([torch.ones(1), torch.ones(2)]).tolist() == [[1.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize(("given", "narrowest"), [(ClipRange(0.2, 0.28), 0.2), (ClipRange(4e-4, 3e-4, "rollout"), 3e-4)])
def test_the_narrow_side_of_a_clip_range(given: ClipRange, narrowest: float):
    assert given.narrowest == narrowest


TURNS: list[tuple[Who, int]] = [
    ("policy", 2),
    ("environment", 3),
    ("policy", 1),
    ("environment", 1),
    ("forced", 2),
    ("policy", 1),
]


def test_turns_count_what_the_policy_wrote_between_environments():
    segments = segments_of(TURNS)
    assert turn_ids(segments) == [0, 0, -1, -1, -1, 1, -1, -1, -1, 2]
    assert last_turn(segments) == 7, "what was forced in the last turn belongs to it"


def test_what_is_forced_within_a_turn_does_not_end_it():
    assert turn_ids(segments_of([("policy", 1), ("forced", 2), ("policy", 1)])) == [0, -1, -1, 0]


def test_turns_begin_with_the_policy():
    both = segments_of([("environment", 1), ("forced", 1), ("policy", 1), ("environment", 1), ("forced", 1), ("environment", 1)])
    assert turn_ids((*both, Segment("policy", 6, 8))) == [-1, -1, 0, -1, -1, -1, 1, 1]


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
    with pytest.raises(ValueError, match="do not cover the 3 tokens one after the other"):
        StoredRow((1, 2, 3), segments=segments)


def test_the_policy_has_the_last_word():
    with pytest.raises(ValueError, match="the policy has the last word"):
        replace(Sample("a", (1, 2, 3)), segments=segments_of([("policy", 2), ("environment", 1)]))


def test_a_stored_row_refuses_facts_in_an_order():
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments"):
        StoredRow((5, 6), (), 4)  # type: ignore[misc] - a step
