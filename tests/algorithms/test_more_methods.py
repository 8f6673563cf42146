"""RLPR's shaping, attention's rhythm and the weight of small targets: numbers by hand, and prompts that they cannot work with."""

from dataclasses import replace

import pytest
import torch

from mmrl.algorithms.advantages.spread import WhereSpread
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.shaping.reference import ReferenceProbability
from mmrl.algorithms.weights.prompts import SmallTarget
from mmrl.algorithms.weights.rhythm import AttentionRhythm
from mmrl.answers.boxes.box import Box
from mmrl.core.readings import ATTENTION_DISTANCE, ATTENTION_INFLUENCE, BASE_PROBABILITY, REFERENCE_PROBABILITY
from mmrl.core.types import MediaSize, Prompt
from tests.support.rows import counts_of, make_batch, rollouts, scores


def test_a_thought_earns_what_it_adds_to_the_probability_of_the_truth():
    mask = torch.ones(4, 3, dtype=torch.bool)
    frozen = {
        REFERENCE_PROBABILITY: torch.tensor([0.7, 0.2, 0.5, -1.0])[:, None].expand(4, 3),
        BASE_PROBABILITY: torch.tensor([0.3, 0.4, -1.0, -1.0])[:, None].expand(4, 3),
    }
    before = scores(torch.tensor([[1.0], [1.0], [0.0], [0.0]]))
    found = ReferenceProbability()(before, rollouts(mask), frozen)
    assert found.names[-1] == "reference_probability"
    # max(p - b, 0): a thought that makes the truth less likely earns nothing; without tags nothing; b without tags is 0
    torch.testing.assert_close(found.values[:, -1], torch.tensor([0.4, 0.0, 0.5, 0.0]))
    assert float(found.weights[-1]) == pytest.approx(0.9)
    plain = ReferenceProbability(debias=False)
    assert plain.reads == (REFERENCE_PROBABILITY,)
    torch.testing.assert_close(plain(before, rollouts(mask), frozen).values[:, -1], torch.tensor([0.7, 0.2, 0.5, 0.0]))
    with pytest.raises(ValueError, match="a reward is named 'reference_probability' already"):
        plain(found, rollouts(mask), frozen)


def test_only_credit_is_amplified_and_only_where_tokens_are():
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    distance = torch.tensor([[0.0, 1.0, 5.0, 5.0, 4.0, 9.0]]).expand(3, 6)
    influence = torch.tensor([[0.1, 0.9, 0.8, 0.2, 0.0, 9.0]]).expand(3, 6)
    advantages = torch.tensor([1.0, -1.0, 1.0])
    batch = make_batch(mask, advantages, {ATTENTION_DISTANCE: distance, ATTENTION_INFLUENCE: influence})
    local = AttentionRhythm("local")(batch, counts_of(batch))
    # steps of the first five: 1 4 0 1 0, and 40 % of five tokens are two: the jump of 4 and the first of 1
    assert local.tolist() == [[1.5, 1.5, 1.0, 1.0, 1.0, 1.0], [1.0] * 6, [1.0] * 6]
    wide = AttentionRhythm("global", amplify=2.0)(batch, counts_of(batch))
    assert wide[0].tolist() == [1.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    assert AttentionRhythm()(batch, counts_of(batch)).min() == 1.0


@pytest.mark.parametrize(("share", "kappa"), [(0.01, 1.0), (0.0025, 2.0), (0.0001, 2.0), (0.02, 2**-0.5), (0.5, 0.5)])
def test_a_small_target_weighs_more(share: float, kappa: float):
    mask = torch.ones(2, 2, dtype=torch.bool)
    batch = make_batch(mask, torch.ones(2), {})
    [group] = batch.rollouts.groups
    side = 100 * share**0.5
    prompt = Prompt("p", answer=(Box(10, 10, 10 + 2 * side, 10 + side, "pixel"),))
    samples = tuple(replace(sample, media_sizes=(MediaSize(200, 100, 56, 28),)) for sample in group.samples)
    group = replace(group, prompt=prompt, samples=samples)
    batch = replace(batch, rollouts=replace(batch.rollouts, groups=(group,)))
    torch.testing.assert_close(SmallTarget()(batch, counts_of(batch)), torch.full((2, 2), kappa))


def test_every_new_preset_reads_what_it_says():
    assert PRESETS["rlpr"].all_reads[-2:] == (REFERENCE_PROBABILITY, BASE_PROBABILITY)
    assert {ATTENTION_DISTANCE, ATTENTION_INFLUENCE} <= set(PRESETS["attention_rhythm"].all_reads)


def spread(part: WhereSpread, *groups: list[float]) -> list[int]:
    """The groups that stay after a step with these rewards."""
    ids = [i for i, rewards in enumerate(groups) for _ in rewards]
    table = scores(torch.tensor([reward for rewards in groups for reward in rewards])[:, None])
    credit = part(table, rollouts(torch.ones(len(ids), 2), ids))
    plain = part.inner(table, rollouts(torch.ones(len(ids), 2), ids))
    assert torch.equal(credit.values, plain.values)
    return sorted({i for i, stays in zip(ids, credit.keep.tolist(), strict=True) if stays})


def test_prompts_of_little_spread_leave_once_the_usual_one_is_known():
    part, wide, narrow = WhereSpread(hold=1, start=2, follow=0.5), [0.0, 1.0], [0.0, 0.1]
    assert spread(part, wide, narrow) == [0, 1] and "mean" not in part.notes
    assert spread(part, wide, narrow) == [0, 1]
    # deviations 0.707 and 0.071: the mean is 0.389 and half of it lies between
    assert part.notes["mean"] == pytest.approx(0.55 / 2**0.5)
    assert spread(part, wide, narrow, [float("nan"), 0.4]) == [0], "a single reward has no deviation"
    assert part.notes["mean"] == pytest.approx(0.55 / 2**0.5)
    assert spread(part, narrow, narrow) == [0, 1], "a step is never left empty"
    again = WhereSpread(hold=1, start=2, follow=0.5)
    again.load_state_dict(part.state_dict())
    assert spread(again, wide, narrow) == spread(part, wide, narrow) == [0]
