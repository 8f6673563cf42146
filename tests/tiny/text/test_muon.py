"""Muon in float32 against torch's and against a singular value decomposition."""

import pytest
import torch

from mmrl.tiny.text.muon import Muon, orthogonalize

SHAPES = [(12, 5), (5, 12), (8, 8), (8, 8)]


def random(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(2, 12, 5), (3, 5, 12), (1, 8, 8)])
def test_it_is_the_polynomial_of_the_singular_values(shape):
    """In float64, the singular vectors stay and each singular value goes through the quintic five times."""
    matrices = random(shape, 0).double()
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    values = values / values.norm(dim=-1, keepdim=True)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    torch.testing.assert_close(orthogonalize(matrices), left * values[:, None] @ right, atol=1e-9, rtol=0)


def test_its_steps_are_those_of_torch_up_to_bfloat16():
    start = [random(shape, seed) for seed, shape in enumerate(SHAPES)]
    ours, theirs = ([weight.clone().requires_grad_() for weight in start] for _ in range(2))
    optimizers = Muon(ours, 0.1), torch.optim.Muon(theirs, 0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for seed in range(10, 14):
        for a, b, shape in zip(ours, theirs, SHAPES, strict=True):
            a.grad = random(shape, seed)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b, before in zip(ours, theirs, start, strict=True):
        assert (a - b).norm() < 0.05 * (b - before).norm()


def test_a_weight_without_gradient_stays():
    weight = random((4, 4), 0).requires_grad_()
    before = weight.detach().clone()
    Muon([weight], 0.1).step()
    assert torch.equal(weight, before)
