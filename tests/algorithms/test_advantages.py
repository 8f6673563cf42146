"""Advantages by hand and against slow sums: of rewards, of steps, of modalities, and which rows and tokens of a step train."""

import math
import statistics
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mmrl.algorithms.advantages.decoupled import Decoupled, PerModality
from mmrl.algorithms.advantages.entropy import MostSpread, largest, most_spread
from mmrl.algorithms.advantages.experts import AnchoredNorm
from mmrl.algorithms.advantages.flow import StepRewards
from mmrl.algorithms.advantages.group import (
    GroupNorm,
    LeaveOneOut,
    LengthBaseline,
    MedianNorm,
    NonZeroScaled,
    PassK,
    ReinforcePlusPlus,
)
from mmrl.algorithms.objectives.forward import NegativeAware
from mmrl.core.protocols import Advantage
from mmrl.core.readings import OLD_ENTROPY, SIGMA, SOUND_ADVANTAGE, SOUND_FROM, TARGET_VELOCITY, VELOCITY
from mmrl.core.types import Reading, Rollouts, Scores
from mmrl.policies.flow.read.evaluate import weigh_parts
from tests.support.presets import FLOW, VIDEO
from tests.support.refused import refused
from tests.support.rows import FEW, make_batch, rollouts, scores, with_fields

ADVANTAGES: dict[str, Advantage] = {
    "group": GroupNorm(),
    "batch": GroupNorm(scale="batch"),
    "none": GroupNorm(scale="none"),
    "leave_one_out": LeaveOneOut(),
    "length_baseline": LengthBaseline(),
    "pass_k": PassK(),
    "reinforce_pp": ReinforcePlusPlus(),
    "reinforce_pp_baseline": ReinforcePlusPlus(baseline=True),
    "non_zero": NonZeroScaled(),
    "median": MedianNorm(),
    "decoupled": Decoupled(),
    "decoupled_by_action": Decoupled(whiten="action"),
}
WITHIN_GROUPS = ["group", "none", "leave_one_out", "length_baseline", "pass_k", "median"]
"""Nothing outside a group changes these."""
every = pytest.mark.parametrize("name", ADVANTAGES)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Tensor, list[int], Tensor]:
    """Rewards (n, 2) that differ, group ids in any order with unequal sizes, and an action mask (n, 4)."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=2, max_size=4))
    ids = draw(st.permutations([10 * i + 3 for i, size in enumerate(sizes) for _ in range(size)]))
    n = len(ids)
    numbers = draw(st.lists(st.integers(-1000, 1000), min_size=2 * n, max_size=2 * n, unique=True))
    lengths = torch.tensor(draw(st.lists(st.integers(1, 4), min_size=n, max_size=n)))
    return torch.tensor(numbers, dtype=torch.float64).view(n, 2) / 100, list(ids), torch.arange(4) < lengths[:, None]


def of_rows(advantage: Advantage, rewards: Tensor, ids: list[int], mask: Tensor, **options: object) -> Tensor:
    """The advantage of every row: that of its first action."""
    return advantage(scores(rewards, **options), rollouts(mask, ids)).values[:, 0]  # type: ignore[arg-type]


@FEW
@given(tables())
@pytest.mark.parametrize("name", ["group", "batch", "none", "leave_one_out"])
def test_advantages_of_a_group_add_up_to_zero(name, table):
    rewards, ids, mask = table
    values = of_rows(ADVANTAGES[name], rewards, ids, mask)
    for i in set(ids):
        assert abs(float(values[torch.tensor(ids) == i].sum())) < 1e-9


@FEW
@given(tables())
def test_weighted_baselines_leave_nothing_over_all_actions(table):
    rewards, ids, mask = table
    for advantage in (ReinforcePlusPlus(), ReinforcePlusPlus(baseline=True), Decoupled(whiten="action")):
        assert abs(float(advantage(scores(rewards), rollouts(mask, ids)).values.sum())) < 1e-9
    values = LengthBaseline()(scores(rewards), rollouts(mask, ids)).values
    for i in set(ids):
        assert abs(float(values[torch.tensor(ids) == i].sum())) < 1e-9


@FEW
@given(tables(), st.integers(-5, 5))
@pytest.mark.parametrize("name", [name for name in ADVANTAGES if name != "non_zero"])
def test_a_shift_of_all_rewards_changes_nothing(name, table, shift):
    rewards, ids, mask = table
    before, after = (of_rows(ADVANTAGES[name], r, ids, mask) for r in (rewards, rewards + shift))
    torch.testing.assert_close(after, before, atol=1e-8, rtol=1e-8)


@FEW
@given(tables(), st.randoms(use_true_random=False))
@every
def test_permuted_rows_give_permuted_advantages(name, table, rng):
    rewards, ids, mask = table
    order = list(range(len(ids)))
    rng.shuffle(order)
    before = ADVANTAGES[name](scores(rewards), rollouts(mask, ids))
    after = ADVANTAGES[name](scores(rewards[order]), rollouts(mask[order], [ids[i] for i in order]))
    torch.testing.assert_close(after.values, before.values[order], atol=1e-9, rtol=1e-9)
    assert after.keep.tolist() == before.keep[order].tolist()


@FEW
@given(tables())
@every
def test_rows_without_a_score_are_as_if_never_sampled(name, table):
    rewards, ids, mask = table
    n = len(ids)
    failed = torch.zeros(n, 2, dtype=torch.bool)
    failed[0, 0] = True
    without = rewards.clone()
    without[1] = torch.nan
    found = ADVANTAGES[name](scores(without, failed=failed), rollouts(mask, ids))
    expected = ADVANTAGES[name](scores(rewards[2:]), rollouts(mask[2:], ids[2:]))
    assert not found.keep[:2].any()
    assert not found.values[:2].any()
    torch.testing.assert_close(found.values[2:], expected.values, atol=1e-9, rtol=1e-9)
    assert found.keep[2:].tolist() == expected.keep.tolist()


@FEW
@given(tables())
@pytest.mark.parametrize("name", WITHIN_GROUPS)
def test_what_happens_in_one_group_stays_there(name, table):
    rewards, ids, mask = table
    others = torch.tensor(ids) != ids[0]
    changed = rewards.clone()
    changed[~others] = torch.tensor([77.0, torch.nan], dtype=torch.float64)
    changed[0] = torch.nan
    before, after = (ADVANTAGES[name](scores(r), rollouts(mask, ids)) for r in (rewards, changed))
    assert torch.equal(after.values[others], before.values[others])
    assert torch.equal(after.keep[others], before.keep[others])


@every
def test_nothing_scored_gives_zeros_and_keeps_nothing(name):
    credit = ADVANTAGES[name](scores(torch.full((4, 2), torch.nan)), rollouts(torch.ones(4, 3), [0, 0, 1, 1]))
    assert not credit.values.any()
    assert not credit.keep.any()


@every
def test_equal_rewards_teach_nothing(name):
    rewards = torch.full((8, 1), 0.1)  # 8 x 0.1 / 8 is not 0.1 in float32
    credit = ADVANTAGES[name](scores(rewards), rollouts(torch.ones(8, 3), [0] * 8))
    if name == "non_zero":
        torch.testing.assert_close(credit.values, torch.zeros(8, 3), atol=1e-7, rtol=0)
    else:
        assert credit.values.abs().max() < 1e-7


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("mode", ["add", "max", "variance"])
@pytest.mark.parametrize("scale", ["group", "batch"])
def test_group_norm_says_its_convention(ddof, mode, scale):
    rewards, ids, eps = [0.3, 1.0, -0.4, 2.0, 2.5], [7, 7, 7, 2, 2], 0.2
    deviation = statistics.pstdev if ddof == 0 else statistics.stdev
    expected = []
    for reward, i in zip(rewards, ids, strict=True):
        group = [r for r, j in zip(rewards, ids, strict=True) if j == i]
        spread = deviation(group if scale == "group" else rewards)
        divisor = {"add": spread + eps, "max": max(spread, eps), "variance": math.sqrt(spread**2 + eps)}[mode]
        expected.append((reward - statistics.mean(group)) / divisor)
    advantage = GroupNorm(scale=scale, ddof=ddof, eps=eps, eps_mode=mode)
    found = of_rows(advantage, torch.tensor(rewards, dtype=torch.float64)[:, None], ids, torch.ones(5, 2))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=1e-12)


def test_group_norm_bounds():
    rewards = torch.tensor([0.25, 0.25 + 1e-7, 0.0, 1.0], dtype=torch.float64)[:, None]
    ids, mask = [0, 0, 1, 1], torch.ones(4, 1)
    blown_up = of_rows(GroupNorm(eps=1e-8, zero_below=0.0), rewards, ids, mask)
    assert blown_up.abs().min() > 0.6, "parity with code that has no threshold makes a real advantage of rounding"
    assert of_rows(GroupNorm(eps=1e-8), rewards, ids, mask)[:2].tolist() == [0, 0]
    assert of_rows(GroupNorm(clip=0.5), rewards, ids, mask)[2:].tolist() == [-0.5, 0.5]


@pytest.mark.parametrize(
    ("advantage", "rewards", "lengths", "expected"),
    [
        (LeaveOneOut(), [1.0, 4.0, 7.0], [1, 1, 1], [1 - 5.5, 4 - 4.0, 7 - 2.5]),
        (LengthBaseline(), [1.0, 5.0], [3, 1], [-1, 3]),  # (3 x 1 + 1 x 5) / 4 = 2
        (PassK(eps=0.0), [1.0, 3.0, 2.0], [1, 1, 1], [0, 1, 0]),  # a lead of 3 - 2 over a deviation of 1
        (PassK(scale=False), [0.0, 5.0], [1, 1], [0, 5]),
        (MedianNorm(eps=0.0, floor=0.25), [0.0, 0.0, 1.0], [1, 1, 1], [0, 0, 4]),
        (GroupNorm(), [2.0], [1], [0]),
        (GroupNorm(eps=1.0, singleton="reward"), [2.0], [1], [2 / (1 + 1.0)]),
        (LeaveOneOut(singleton="reward"), [2.0], [1], [2]),
    ],
    ids=lambda value: repr(value) if isinstance(value, Advantage) else "",
)
def test_by_hand(advantage: Advantage, rewards: list[float], lengths: list[int], expected: list[float]):
    mask = torch.arange(3) < torch.tensor(lengths)[:, None]
    assert of_rows(advantage, torch.tensor(rewards)[:, None], [0] * len(rewards), mask).tolist() == expected


def test_the_median_is_dropped_and_groups_of_one_are_refused_where_samples_are_compared():
    credit = MedianNorm()(scores(torch.tensor([[0.3], [0.1], [0.9]])), rollouts(torch.ones(3, 1)))
    assert credit.keep.tolist() == [False, True, True]
    assert GroupNorm(scale="none", singleton="reward").min_group_size == 1
    assert all(part.min_group_size == 2 for part in (GroupNorm(), LeaveOneOut(), Decoupled(), ReinforcePlusPlus(baseline=True)))


def test_decoupled_hears_the_reward_with_little_variance():
    rewards = torch.tensor([[100.0, 0.0], [0.0, 1.0], [100.0, 1.0], [0.0, 0.0]])
    summed, apart = (of_rows(part, rewards, [0] * 4, torch.ones(4, 1)) for part in (GroupNorm(), Decoupled()))
    assert summed[0] > 0 > summed[1]
    torch.testing.assert_close(apart[:2], torch.zeros(2), atol=1e-3, rtol=0)
    assert apart[2] > 0 > apart[3]


def test_a_reward_that_does_not_apply_stays_out_of_its_column():
    rewards = torch.tensor([[1.0, 5.0], [0.0, torch.nan], [0.5, 3.0]], dtype=torch.float64)
    found = of_rows(Decoupled(eps=0.0, whiten="none"), rewards, [0, 0, 0], torch.ones(3, 1))
    second = (5 - 4) / math.sqrt(2)
    torch.testing.assert_close(found, torch.tensor([1 + second, -1, 0 - second], dtype=torch.float64))


def test_a_logged_reward_trains_nothing():
    rewards = torch.tensor([[1.0, 9.0], [0.0, torch.nan], [1.0, -5.0], [0.0, 2.0]])
    failed = torch.tensor([[False, False], [False, True], [False, False], [False, False]])
    rows = rollouts(torch.ones(4, 1), [0, 0, 1, 1])
    for name, advantage in ADVANTAGES.items():
        alone, logged = advantage(scores(rewards[:, :1]), rows), advantage(scores(rewards, [1.0, 0.0], failed), rows)
        assert torch.equal(alone.values, logged.values), name
        assert torch.equal(alone.keep, logged.keep), name


def test_advantages_are_zero_where_nothing_was_done():
    mask = torch.tensor([[True, False], [True, True]])
    for advantage in ADVANTAGES.values():
        credit = advantage(scores(torch.tensor([[0.0], [1.0]])), replace(rollouts(mask), action_mask=mask))
        assert credit.values[0, 1] == 0


@pytest.mark.parametrize("reward", [0.28, 3.0, 80.0])
@pytest.mark.parametrize("injected", [False, True])
def test_rewards_one_rounding_apart_teach_nothing(reward, injected):
    values = torch.full((8, 1), reward, dtype=torch.float32)
    values[::2] = torch.nextafter(values[0], torch.tensor(2 * reward))
    rows = with_fields(rollouts(torch.ones(8, 1)), role=["policy"] * 7 + ["injected" if injected else "policy"])
    parts = (FLOW["mix_grpo"].advantage, FLOW["branch_grpo"].advantage, VIDEO["reg_grpo"].advantage, AnchoredNorm(), PassK())
    for part in (*parts, GroupNorm(eps=1e-8), Decoupled(eps=1e-8)):
        assert not part(scores(values), rows).values.any(), part
    apart = Decoupled(ddof=1, eps=1e-8, whiten="none", zero_below=0.0)(scores(values), rows).values
    assert apart.abs().max() > 0.5, "the official code's own, where parity is asked for"


def test_small_rewards_that_do_differ_still_teach():
    values = torch.tensor([[2e-5], [3e-5], [4e-5]], dtype=torch.float64)
    found = of_rows(Decoupled(eps=1e-8, whiten="none"), values, [0, 0, 0], torch.ones(3, 1))
    torch.testing.assert_close(found, torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64), atol=1e-2, rtol=0)


PROCESS = StepRewards(gamma=0.0, anchor=0.0, weigh=False)
REWARDS = torch.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 3.0], [2.0, 4.0, 3.0], [1.0, 2.0, 3.0], [5.0, 1.0, 0.0], [7.0, 1.0, 4.0]])
IDS = [0, 0, 0, 0, 1, 1]


def rows(rewards: Tensor) -> tuple[Scores, Rollouts]:
    """One row per line of rewards; the total is that of the last step."""
    found = rollouts(torch.ones_like(rewards), IDS[: len(rewards)])
    status = torch.where(rewards[:, -1:].isnan(), 2, 0)
    values = [tuple(enumerate(line)) for line in rewards.tolist()]
    return Scores(("r",), rewards[:, -1:], status, torch.ones(1)), with_fields(found, values=values)


def credit(advantage: Advantage, rewards: Tensor) -> Tensor:
    return advantage(*rows(rewards)).values


def test_each_step_is_compared_with_the_same_step_of_its_group():
    found = credit(PROCESS, REWARDS)
    # step 1 of group 0: 1 0 2 1 have mean 1 and deviation sqrt(1/2); step 3 has no spread; group 1: +-1
    first = torch.tensor([0.0, -1.0, 1.0, 0.0]) / (0.5**0.5 + 1e-4)
    torch.testing.assert_close(found[:4, 0], first)
    assert not found[:4, 2].any()
    torch.testing.assert_close(found[4:], torch.tensor([[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]]), atol=1e-3, rtol=0)


def test_without_gamma_and_anchor_equal_rewards_are_grpo():
    """With weights of steps, too: all are 1."""
    same = REWARDS[:, :1].expand(-1, 3)
    wanted = credit(GroupNorm(ddof=0, eps=1e-4), same)
    for one in (PROCESS, replace(PROCESS, weigh=True)):
        torch.testing.assert_close(credit(one, same), wanted)


def test_an_anchor_leaves_a_signal_where_rewards_are_equal():
    same = torch.full((4, 3), 2.0)
    assert not credit(StepRewards(gamma=0.0, anchor=0.0), same).any()
    found = credit(StepRewards(gamma=0.0, anchor=0.5, anchor_share=0.6), same)
    assert found.tolist() == [[1.0, 1.0, 0.0]] * 4


def test_a_row_that_failed_leaves_its_group():
    broken = REWARDS.clone()
    broken[0, 1] = torch.nan
    found = PROCESS(*rows(broken))
    assert found.keep.tolist() == [False, True, True, True, True, True] and not found.values[0].any()
    without = credit(PROCESS, REWARDS[1:4])
    torch.testing.assert_close(found.values[1:4], without)


def test_what_is_refused():
    refused(r"reach -1, below 0: set algorithm\.advantage\.weigh = false", credit, StepRewards(gamma=0.0), REWARDS - 1)
    made, found = rows(REWARDS)
    bare = with_fields(found, values=[()] * len(found))
    refused(r"rewards of 0 of 3 steps, .*: set algorithm\.schedule\.previews = true", PROCESS, made, bare)


@pytest.mark.parametrize("count", [1, 3, 6, 7])
def test_no_other_rows_have_more_spread(count: int):
    x = torch.randn(7, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    best = max(float(x[list(some)].var(correction=0)) for some in combinations(range(7), count))
    found = most_spread(x, count)
    assert len(set(found)) == count and float(x[found].var(correction=0)) == pytest.approx(best)


def test_of_equal_tokens_the_earliest_train_and_none_beside_the_mask():
    found = largest(torch.ones(2, 3), torch.tensor([[True, True, False], [False, True, True]]), 0.5)
    assert found.tolist() == [[True, True, False], [False, False, False]]


def step(entropy: float = 1.0) -> tuple[Scores, Rollouts]:
    """Two groups; the second one is of one mind, and a reward of the first is missing."""
    values = torch.tensor([[1.0], [0.0], [0.2], [float("nan")], [1.0], [1.0], [1.0], [1.0]], dtype=torch.float64)
    rows = rollouts(torch.ones(8, 2), [0] * 4 + [1] * 4)
    rows.recorded[OLD_ENTROPY] = torch.tensor([[entropy, 0.0]]).expand(8, 2)  # type: ignore[index] - a dict here
    return scores(values, failed=values.isnan()), rows


def test_rows_and_tokens_leave_all_counts_and_come_back_as_training_goes_on():
    part = MostSpread(GroupNorm(), rows=0.3, tokens=0.5, over=3)
    credit = part(*step())
    assert credit.keep.tolist() == [True, True, *[False] * 6], "2 of the 7 rows that have a total"
    assert credit.mask.tolist()[:2] == [[True, False], [True, False]], "sure tokens leave"
    part.adapt(2, {})
    credit = part(*step())
    assert credit.keep.tolist() == [True, True, True, False, *[True] * 4] and bool(credit.mask[credit.keep].all())
    again = MostSpread(GroupNorm(), rows=0.3, tokens=0.5, over=3)
    again.load_state_dict(part.state_dict())
    assert again(*step()).keep.tolist() == credit.keep.tolist()


CLIP, SOUND = 7, 3
TERM = NegativeAware(beta=0.5, parts=True)


def readings(seed: int = 0, rows: int = 2, moved: float = 1.0) -> dict[Reading, torch.Tensor]:
    """Of latents whose parts are scaled as a policy gives them."""
    draw = torch.Generator().manual_seed(seed)
    plain = torch.randn(3, rows, 2, CLIP + SOUND, generator=draw, dtype=torch.float64)
    live, old, target = (weigh_parts(x.flatten(0, 1), (CLIP, SOUND)).unflatten(0, (rows, 2)) for x in plain)
    sigma = torch.rand(rows, 2, generator=draw, dtype=torch.float64)
    named = {
        VELOCITY: (old + moved * (live - old)).requires_grad_(),
        VELOCITY._replace(model="ema"): old,
        TARGET_VELOCITY: target,
    }
    beside = {
        SOUND_FROM: torch.full((rows, 2), float(CLIP)),
        SOUND_ADVANTAGE: torch.tensor([[1.0], [-2.0]]).expand(rows, 2).double(),
    }
    return named | beside | {SIGMA: sigma}


def test_the_loss_is_the_sum_of_both_parts_own():
    """Each as a term of its own would have it, of latents without the scale."""
    given, mask = readings(), torch.ones(2, 2)
    clip = torch.tensor([3.0, -1.0], dtype=torch.float64)
    batch = make_batch(mask, clip, {})
    values, _ = TERM(given, batch)
    whole = CLIP + SOUND
    alone = torch.zeros_like(values)
    for part, size, advantages in ((slice(CLIP), CLIP, clip), (slice(CLIP, None), SOUND, given[SOUND_ADVANTAGE][:, 0])):
        own = {name: x[..., part] * (2 * size / whole) ** 0.5 if x.ndim == 3 else x for name, x in given.items()}
        alone += replace(TERM, parts=False)(own, make_batch(mask, advantages, {}))[0]
    torch.testing.assert_close(values, alone)


def test_a_part_without_an_advantage_is_not_moved():
    given = readings(moved=0.0)
    values, _ = TERM(given, make_batch(torch.ones(2, 2), torch.zeros(2, dtype=torch.float64), {}))
    (gradient,) = torch.autograd.grad(values.sum(), given[VELOCITY])
    assert gradient[..., :CLIP].abs().max() < 1e-12 < gradient[..., CLIP:].abs().min()


def test_samples_without_a_sound_are_refused():
    given = readings() | {SOUND_FROM: torch.zeros(2, 2)}
    refused("draws no sound beside its clips: take LTX-2", TERM, given, make_batch(torch.ones(2, 2), torch.zeros(2), {}))


def test_a_modality_without_a_reward_has_no_advantage_and_a_failed_reward_takes_the_row_out():
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, float("nan")]], dtype=torch.float64)
    made = replace(scores(values, failed=values.isnan()), names=("light", "loud"))
    rows = rollouts(torch.ones(3, 1))
    credit = PerModality(of_clip=("light",), of_sound=("loud",))(made, rows)
    assert credit.keep.tolist() == [True, True, False] and float(credit.values[1, 0]) < 0
    silent = PerModality(of_clip=("light", "loud"))
    assert not silent.of_the_sound(made, rows).any()


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (PerModality(of_clip=("lihgt",)), r"of_clip names the reward 'lihgt', and the run has light, loud"),
        (PerModality(), "names no reward of either: set algorithm.advantage.of_clip and of_sound to some of light, loud"),
    ],
)
def test_names_of_no_reward_are_refused(part: PerModality, said: str):
    refused(said, part.check_names, ("light", "loud"))
    refused("'x' is in of_clip and of_sound", PerModality, of_clip=("x",), of_sound=("x",))
