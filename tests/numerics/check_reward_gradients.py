"""Surrogate paths against the code of DRaFT, ReFL and FlowBP: gradients of a toy model, and which steps are chosen."""

from collections.abc import Iterable

import torch
from torch import Tensor

from mmrl.algorithms.objectives.flow import RewardGradient
from mmrl.algorithms.pixels import with_rewards
from mmrl.core.readings import PIXELS
from mmrl.core.types import Prompt
from mmrl.flow.surrogate import SurrogatePath, shares_of, tail_of
from tests.numerics.check_flow import checks, each
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import make_batch


class Toy:
    """v = tanh(x W) + t b on its own path of Euler steps, and the reward sum(c x) - mean(x^2) / 2 of a row."""

    def __init__(self, vector: Vector) -> None:
        inputs = vector.inputs
        self.sigmas, self.x1, self.c = (tensor(inputs[name]) for name in ("sigmas", "x1", "c"))
        self.weights, self.bias = (tensor(inputs[name]).requires_grad_() for name in ("W", "b"))
        self.dt = self.sigmas[:-1] - self.sigmas[1:]
        with torch.no_grad():
            self.states = [self.x1]
            for step, dt in enumerate(self.dt):
                self.states.append(self.states[-1] - dt * self.velocity(self.states[-1], self.sigmas[step]))

    def velocity(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.tanh(x @ self.weights) + t[..., None] * self.bias

    def end(self, path: SurrogatePath, active: Iterable[int], through: dict[int, float]) -> Tensor:
        """The end of the path with these steps, the same for all rows."""
        n, t = len(self.x1), len(self.dt)
        mask, seen = torch.zeros(n, t, dtype=torch.bool), torch.zeros(n, t, dtype=torch.float64)
        mask[:, list(active)] = True
        for step, share in through.items():
            seen[:, step] = share

        def velocities(rows: Tensor, columns: Tensor, added: Tensor | None) -> Tensor:
            x = torch.stack([self.states[int(step)][int(row)] for row, step in zip(rows, columns, strict=True)])
            return self.velocity(x if added is None else x + added, self.sigmas[columns])

        return path.end(mask, seen, self.dt.expand(n, -1), self.states[-1], velocities)

    def agrees(self, end: Tensor, out: dict[str, Tensor], tolerance: float, what: str) -> None:
        loss = -((self.c * end).sum(1) - (end**2).mean(1) / 2).mean()
        for found, name in zip(torch.autograd.grad(loss, (self.weights, self.bias)), ("grad_W", "grad_b"), strict=True):
            close(found, out[name], tolerance, f"{what} {name}")


@checks(*each("reward_gradient.draft_refl.", "a", "b"))
def draft_and_refl(vector: Vector) -> None:
    toy, count = Toy(vector), vector.params["T"]
    for name, out in vector.outputs.items():
        if name == "refl":
            x, t = toy.states[out["step"]], toy.sigmas[out["step"]]
            end = x - t * toy.velocity(x, t)
        else:
            path = SurrogatePath("draft", steps=int(name.removeprefix("draft_")))
            active, through = path.choose(count, torch.Generator())
            steps = active.nonzero()[:, 0].tolist()
            end = toy.end(path, steps, {step: float(through[step]) for step in steps})
        close(end, out["x0"], vector.tolerance, f"{name} x0")
        toy.agrees(end, out, vector.tolerance, name)


@checks(*each("reward_gradient.flowbp_sparse.", "a", "b"))
def sparse(vector: Vector) -> None:
    toy = Toy(vector)
    for name, out in vector.outputs.items():
        steps, rescale = name.split(".rescale")
        end = toy.end(SurrogatePath("sparse", rescale=float(rescale)), map(int, steps.split("-")), {})
        close(end, vector.inputs["x0"], vector.tolerance, "the rollout's value")
        toy.agrees(end, out, vector.tolerance, name)


@checks(*each("reward_gradient.flowbp_bridge.", "a", "b"))
def bridge(vector: Vector) -> None:
    toy, steps = Toy(vector), range(vector.params["T"])
    for name, out in vector.outputs.items():
        joint, alpha = name.removeprefix("j").split(".alpha")
        end = toy.end(SurrogatePath("bridge", rescale=0.0), steps, {int(joint): float(alpha)})
        toy.agrees(end, out, vector.tolerance, name)


@check("reward_gradient.flowbp_bridge.two_steps")
def bridge_of_two_steps(vector: Vector) -> None:
    """Full backpropagation, which is DRaFT with all steps."""
    toy = Toy(vector)
    for path in (SurrogatePath("bridge", alpha=1.0), SurrogatePath("draft", steps=2)):
        end = toy.end(path, range(2), {1: 1.0})
        close(end, vector.outputs["x0"], vector.tolerance, "x0")
        toy.agrees(end, dict(vector.outputs), vector.tolerance, path.kind)


@check("reward_gradient.flowbp_choices")
def choices(vector: Vector) -> None:
    """Those of Sparse, Bridge and the last steps; supports are Lagrange's, which is not built."""
    assert [list(shares_of(*case)) for case in vector.inputs["alloc"]] == vector.outputs["alloc"]
    assert [[tail_of(int(count), share), count] for count, share in vector.inputs["tail"]] == vector.outputs["tail"]


class Given:
    """Scores that are there already, on the first pixel."""

    def of_pixels(self, pixels: Tensor, prompts: list[Prompt]) -> Tensor:
        return pixels[:, 0, 0, 0]


@check("reward_gradient.hinge")
def hinge(vector: Vector) -> None:
    rewards = tensor(vector.inputs["rewards"])
    ((_, term),) = with_rewards(((1.0, RewardGradient(top=vector.params["top"])),), [("given", 1.0, Given())])
    pixels = rewards[:, None, None, None].expand(-1, 3, 2, 2).clone().requires_grad_()
    values, _ = term({PIXELS: pixels}, make_batch(torch.ones(len(rewards), 2), torch.zeros(len(rewards)), {}))
    close(values[:, 0], vector.outputs["loss_per_row"], 1e-6, "loss")
    close(vector.params["scale"] * values.mean(), vector.outputs["loss"], 1e-6, "mean")
