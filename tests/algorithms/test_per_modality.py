"""A clip and its sound trained apart: each by its own rewards, and each by its own part of the latents."""

from dataclasses import replace

import pytest
import torch

from mmrl.algorithms.advantages.decoupled import PerModality
from mmrl.algorithms.objectives.forward import NegativeAware
from mmrl.core.readings import SIGMA, SOUND_ADVANTAGE, SOUND_FROM, TARGET_VELOCITY, VELOCITY
from mmrl.core.types import Reading
from mmrl.policies.flow.read.evaluate import weigh_parts
from tests.support.rows import make_batch, rollouts, scores

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
    with pytest.raises(ValueError, match="draws no sound beside its clips: take LTX-2"):
        TERM(given, make_batch(torch.ones(2, 2), torch.zeros(2), {}))


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
    with pytest.raises(ValueError, match=said):
        part.check_names(("light", "loud"))
    with pytest.raises(ValueError, match="'x' is in of_clip and of_sound"):
        PerModality(of_clip=("x",), of_sound=("x",))
