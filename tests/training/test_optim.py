import pytest
import torch

from mmrl.training.optim import OptimizerSettings, load_whole_state, whole_state


def test_warm_up_then_linear_to_zero():
    settings = OptimizerSettings(lr=1.0, lr_schedule="linear", warmup_steps=2)
    assert [settings.factor(step, 6) for step in range(7)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


def test_cosine_is_half_way_in_the_middle():
    assert OptimizerSettings(lr_schedule="cosine").factor(5, 10) == pytest.approx(0.5)


def test_built_schedule_sets_the_rate():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer, schedule = OptimizerSettings(kind="sgd", lr=2.0, warmup_steps=4).build([weight], 10)
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == [0.5, 1.0, 1.5, 2.0, 2.0]


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="no trainable parameter"):
        OptimizerSettings().build([], 10)


def test_rate_must_be_positive():
    with pytest.raises(ValueError, match=r"OptimizerSettings\.lr is 0"):
        OptimizerSettings(lr=0.0)


def test_the_optimizer_comes_back():
    weight = torch.nn.Parameter(torch.ones(3))
    first, second = (torch.optim.AdamW([weight], lr=0.1) for _ in range(2))
    weight.grad = torch.tensor([1.0, 2.0, 3.0])
    first.step()
    load_whole_state(second, whole_state(first))
    assert torch.equal(second.state[weight]["exp_avg"], first.state[weight]["exp_avg"])
    assert second.state[weight]["step"] == 1


@pytest.mark.parametrize("value", [torch.ones(1), torch.ones(3, 3)])
def test_moments_of_other_shapes_are_refused(value: torch.Tensor):
    weight = torch.nn.Parameter(torch.ones(3))
    first, second = (torch.optim.AdamW([weight], lr=0.1) for _ in range(2))
    weight.grad = torch.ones(3)
    first.step()
    state = whole_state(first)
    state["state"][0]["exp_avg"] = value
    with pytest.raises(ValueError, match=r"exp_avg of weight 0 is of shape .*, and the weight of \[3\]: resume with"):
        load_whole_state(second, state)
