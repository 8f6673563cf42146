"""DDPO's advantage: rewards against the last ones of the same prompt, remembered in one order on any number of processes."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms.advantages.remembered import PromptHistory
from mmrl.algorithms.presets import PRESETS
from mmrl.core.ranks import Ranks
from mmrl.core.types import Credit, Group, Prompt, Rollouts, Sample
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.trainer import Trainer
from tests.flow.test_learning import small
from tests.support.rows import FEW, Nothing, scores
from tests.support.trainers import make_trainer, weights

Step = Sequence[tuple[str, float]]
"""A prompt's name and a reward, for every row."""
STEPS: list[Step] = [
    [("cat", 1.0), ("dog", 5.0), ("cat", 3.0)],
    [("cat", 2.0), ("dog", 7.0), ("owl", 4.0)],
    [("cat", 8.0), ("cat", 6.0), ("dog", 7.0), ("dog", 7.5)],
]


def rows(step: Step, order: Sequence[int] | None = None) -> Rollouts:
    """Every row a group of its own, in some order."""
    places = list(range(len(step)) if order is None else order)
    groups = tuple(Group(i, Prompt(name, name), (Sample(),)) for i, (name, _) in enumerate(step))
    mask = torch.ones(len(step), 2, dtype=torch.bool)
    return Rollouts(groups, torch.tensor(places), torch.zeros(len(step), dtype=torch.long), mask, Nothing())


def credit(part: PromptHistory, step: Step, order: Sequence[int] | None = None) -> Credit:
    places = list(range(len(step)) if order is None else order)
    rewards = torch.tensor([step[i][1] for i in places], dtype=torch.float64)
    return part(scores(rewards[:, None]), rows(step, order))


def slow(steps: Sequence[Step], size: int, least: int, eps: float) -> list[list[float]]:
    """The formula with a list per prompt."""
    known: dict[str, list[float]] = {}
    answers: list[list[float]] = []
    for step in steps:
        for name in dict.fromkeys(name for name, _ in step):
            known[name] = (known.get(name, []) + [reward for own, reward in step if own == name])[-size:]
        own: list[float] = []
        for name, reward in step:
            seen = known[name] if len(known[name]) >= least else [reward for _, reward in step]
            spread = statistics.pstdev(seen)
            own.append((reward - statistics.fmean(seen)) / (spread + eps) if spread > 1e-6 else 0.0)
        answers.append(own)
    return answers


def test_by_hand():
    part = PromptHistory(size=3, least=3, eps=0.0, clip=None)
    assert credit(part, [("cat", 1.0), ("cat", 3.0)]).values[:, 0].tolist() == [-1.0, 1.0], "two rewards: the step's 1 and 3"
    # the cat's 1, 3 and 5 have mean 3 and deviation sqrt(8 / 3); the dog's one is compared with 5 and 9
    found = credit(part, [("cat", 5.0), ("dog", 9.0)]).values
    torch.testing.assert_close(found[:, 0].tolist(), [2 / (8 / 3) ** 0.5, 1.0])
    assert found[:, 0].tolist() == found[:, 1].tolist()
    assert part.rewards == {"cat": [1.0, 3.0, 5.0], "dog": [9.0]}
    credit(part, [("cat", 7.0)])
    assert part.rewards["cat"] == [3.0, 5.0, 7.0], "the oldest goes"


@pytest.mark.parametrize(("size", "least"), [(4, 2), (3, 3), (16, 16)])
def test_it_is_the_slow_formula(size: int, least: int):
    part = PromptHistory(size=size, least=least, clip=None)
    found = [credit(part, step).values[:, 0].tolist() for step in STEPS]
    assert found == [pytest.approx(own, abs=1e-12) for own in slow(STEPS, size, least, part.eps)]


def test_advantages_are_clamped_and_equal_rewards_teach_nothing():
    step = [("cat", 0.0)] * 99 + [("cat", 1.0)]
    assert float(credit(PromptHistory(size=100, least=2), step).values.max()) == 5.0
    assert not credit(PromptHistory(size=4, least=2), [("cat", 0.1), ("cat", 0.1 + 1e-9)]).values.any()


def test_rows_without_a_reward_are_not_remembered():
    part = PromptHistory(size=4, least=2, clip=None)
    found = credit(part, [("cat", 1.0), ("cat", float("nan")), ("cat", 3.0)])
    assert found.keep.tolist() == [True, False, True] and part.rewards == {"cat": [1.0, 3.0]}
    assert found.values[:, 0].tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)


@FEW
@given(st.permutations(range(4)))
def test_the_order_of_rows_is_no_matter(order: list[int]):
    """Processes hand their rows in another order; with a short memory the last ones must be the same."""
    plain, other = PromptHistory(size=1, least=1), PromptHistory(size=1, least=1)
    first, second = credit(plain, STEPS[2]), credit(other, STEPS[2], order)
    assert plain.rewards == other.rewards == {"cat": [6.0], "dog": [7.5]}
    assert torch.equal(first.values[order], second.values)


def test_more_rewards_than_are_remembered_are_refused():
    with pytest.raises(ValueError, match=r"least is 20, but only 16 rewards of a prompt are remembered: set advantage\.least"):
        PromptHistory(least=20)


def test_resumed_is_uninterrupted(tmp_path: Path):
    def fresh() -> Trainer:
        return make_trainer(replace(small("ddpo"), advantage=PromptHistory(size=20, least=20), group_size=6), steps=4, lr=1e-2)

    whole, first, second, forgetful = (fresh() for _ in range(4))
    for _ in range(4):
        whole.step()
    for _ in range(2):
        first.step()
    Checkpoints(tmp_path).save(2, first.state_dict(), Ranks())
    second.load_state_dict(Checkpoints(tmp_path).load())
    state = Checkpoints(tmp_path).load()
    state["parts"]["advantage"]["rewards"] = {}
    forgetful.load_state_dict(state)
    for trainer in (second, forgetful):
        for _ in range(2):
            trainer.step()
    assert torch.equal(weights(whole), weights(second))
    assert not torch.equal(weights(whole), weights(forgetful)), "the memory matters"


def test_a_prompt_alone_in_its_step_learns_from_earlier_ones():
    """Groups of one have no spread of their own."""
    algorithm = replace(small("ddpo"), group_size=1, minibatches=1, advantage=PromptHistory(size=6, least=3))
    trainer = make_trainer(algorithm, prompts_per_step=3, steps=4, lr=1e-2)
    spread = [trainer.step()["policy/grad_norm"] for _ in range(4)]
    assert min(spread) > 0 and PRESETS["ddpo"].group_size == 1
