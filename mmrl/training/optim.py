"""Optimizer and learning rate schedule from settings, and where the optimizer's state is kept between updates."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from mmrl.core.protocols import State
from mmrl.core.ranks import OwnState, Ranks, gathered
from mmrl.runtime.accelerator import Engine
from mmrl.runtime.ranges import BelowOne, LargeOrNone, NonNegative, Positive, Range, check_ranges
from mmrl.runtime.tensors import is_matrix

Rest = Literal["device", "cpu"]
_MOMENTUM = 0.95
_STEPS = 5
_COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of the quintic polynomial, from Keller Jordan's "Muon: An optimizer for hidden layers in neural networks"."""
_TINY = 1e-7


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW without weight decay by default: RL fine-tuning moves little and should not shrink what it does not move."""

    kind: Literal["adamw", "muon", "sgd"] = "adamw"
    """AdamW; Muon for matrices and AdamW for embeddings and all else (arXiv:2502.16982); or gradient descent with momentum."""
    lr: Annotated[float, Range(above=0, high=1000)] = 1e-6
    """Learning rate after the warm-up; with AdamW about how far an update moves a weight. Left out, it follows what trains: 1e-6
    for all weights of a model that writes or draws by tokens, 1e-5 for its adapters; 1e-5 and 3e-4 for image generators."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """AdamW: decay of the running means of gradient and squared gradient."""
    eps: Positive = 1e-8
    """AdamW: added to the root of the mean squared gradient."""
    weight_decay: Annotated[float, Range(0, high=1000)] = 0.0
    """AdamW's and Muon's weight decay: an update shrinks each weight by this share times lr."""
    momentum: BelowOne = 0.0
    """Momentum of sgd."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: constant, or falling to zero at the last step."""
    warmup_steps: LargeOrNone = 0
    """Optimizer steps over which the rate rises from lr / warmup_steps to lr."""
    clip_norm: NonNegative = 1.0
    """Largest norm of the gradient; 0 = no clipping, the norm is still measured."""
    rest: Rest = "device"
    """Where the optimizer's state is kept between updates. cpu: it leaves the GPU to sampling, gradients and activations, and is
    copied there and back at every update (8 bytes per trained weight with AdamW)."""

    __post_init__ = check_ranges

    def factor(self, step: int, total_steps: int) -> float:
        """Learning rate of optimizer step `step` (from 0) as a share of lr."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.lr_schedule == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps))
        return 1.0 - done if self.lr_schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))

    def build(
        self, parameters: Iterable[nn.Parameter], total_steps: int
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        """`total_steps` counts optimizer steps: training steps times updates per step."""
        trained = list(parameters)
        if not trained:
            raise ValueError("the policy has no trainable parameter: unfreeze a part in policy.freeze, or set policy.lora")
        if self.kind == "adamw":
            optimizer: torch.optim.Optimizer = torch.optim.AdamW(
                trained, lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay, fused=can_fuse(trained)
            )
        elif self.kind == "muon":
            optimizer = Muon(trained, self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)
        else:
            optimizer = torch.optim.SGD(trained, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.factor(step, total_steps))


def can_fuse(weights: Iterable[nn.Parameter]) -> bool | None:
    """True where all weights are on a GPU, whose kernel updates them in one pass without copies; None: torch's own choice."""
    return True if all(weight.device.type == "cuda" and weight.is_floating_point() for weight in weights) else None


def check_optimizer(settings: OptimizerSettings, ranks: Ranks) -> None:
    """Raise ValueError for a state that is to move, or matrices that are to be whole, where FSDP or DeepSpeed keeps parts."""
    if not (ranks.is_sharded or ranks.engine is not None):
        return
    if settings.kind == "muon":
        raise ValueError(
            "optimizer.kind is 'muon', which looks at whole matrices, and FSDP or DeepSpeed keeps a part of each on each GPU: "
            "take adamw, or start with configs/accelerate/ddp.yaml"
        )
    if settings.rest == "cpu":
        raise ValueError(
            "optimizer.rest is 'cpu', but FSDP or DeepSpeed keeps a part of the state on each GPU: leave optimizer.rest out, or "
            "start with configs/accelerate/ddp.yaml"
        )


@contextmanager
def woken(optimizer: torch.optim.Optimizer, rest: Rest) -> Iterator[None]:
    """A block in which the state is where its weights are."""
    if rest == "cpu":
        move(optimizer, None)
    yield
    put_to_rest(optimizer, rest)


def put_to_rest(optimizer: torch.optim.Optimizer, rest: Rest) -> None:
    """Move the state to where it rests; does nothing if that is its device."""
    if rest == "cpu":
        move(optimizer, torch.device("cpu"))


def move(optimizer: torch.optim.Optimizer, to: torch.device | None) -> None:
    """Move the moments to a device; None: to their weights' device. Step counts stay, as kernels need them where they are."""
    states: dict[Tensor, dict[str, Any]] = optimizer.state
    for weight, own in states.items():
        for name, x in own.items():
            if isinstance(x, Tensor) and x.ndim > 0 and x.device != (to or weight.device):
                own[name] = x.to(to or weight.device)


class Muon(torch.optim.AdamW):
    """W <- (1 - lr d) W - 0.2 lr sqrt(max(m, n)) NS5(lerp(g, b, 0.95)),  b <- lerp(b, g, 0.05);  W is m x n, NS5 orthogonalizes.

    In float32, for torch's takes its products in bfloat16, which a CPU without that type computes 19 times as slowly. Otherwise
    `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"` for matrices (arXiv:2502.16982), d the weight decay. Embeddings,
    and all that is no matrix, follow AdamW at the same rate.
    """

    def __init__(
        self,
        weights: Iterable[Tensor],
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        found = list(weights)
        matrices = [weight for weight in found if is_matrix(weight)]
        chosen = set(map(id, matrices))
        rest = [weight for weight in found if id(weight) not in chosen]
        super().__init__([{"params": rest}, {"params": matrices}], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override] - no loss is returned
        group = self.param_groups[1]
        weights = [weight for weight in group["params"] if weight.grad is not None]
        gradients = [weight.grad for weight in weights]
        # AdamW passes over what has no gradient
        for weight in weights:
            weight.grad = None
        super().step()
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        for shelf, updates in _by_shape(weights, [self._update(weight) for weight in weights]):
            rate = 0.2 * group["lr"] * math.sqrt(max(shelf[0].shape))
            for weight, update in zip(shelf, orthogonalize(torch.stack(updates)), strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=rate)

    def _update(self, weight: Tensor) -> Tensor:
        state: dict[str, Tensor] = self.state[weight]
        assert weight.grad is not None
        if "mean" not in state:
            # AdamW loads no state without a step
            state |= {"mean": torch.zeros_like(weight), "step": torch.zeros(())}
        return weight.grad.lerp(state["mean"].lerp_(weight.grad, 1 - _MOMENTUM), _MOMENTUM)


def orthogonalize(matrices: Tensor) -> Tensor:
    """The nearest matrices with orthonormal rows or columns, roughly: singular values end between 0.7 and 1.2.

    Args:
        matrices: (number, m, n); five steps of Newton-Schulz are taken in their own dtype.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalize(matrices.mT).mT
    a, b, c = _COEFFICIENTS
    x = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=_TINY)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _by_shape(weights: Sequence[Tensor], updates: Sequence[Tensor]) -> Iterable[tuple[list[Tensor], list[Tensor]]]:
    shelves: dict[torch.Size, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for weight, update in zip(weights, updates, strict=True):
        shelf = shelves[weight.shape]
        shelf[0].append(weight)
        shelf[1].append(update)
    return shelves.values()


def whole_state(optimizer: torch.optim.Optimizer, engine: Engine | None = None, keep: bool = True) -> State:
    """The optimizer's state in memory of its own, gathered where it is sharded: the same for any number of processes.

    Args:
        keep: False on processes that only help to gather; what they get has no tensors. All must ask.
    """
    if engine is not None:
        return engine.state(keep)

    def whole(x: object) -> object:
        value = gathered(x) if isinstance(x, Tensor) and (keep or hasattr(x, "full_tensor")) else x
        return value if keep or not isinstance(value, Tensor) else None

    state = optimizer.state_dict()
    moments = {index: OwnState({name: whole(x) for name, x in own.items()}) for index, own in state["state"].items()}
    return {**state, "state": moments}


def load_whole_state(optimizer: torch.optim.Optimizer, state: State, engine: Engine | None = None) -> None:
    """Put back what `whole_state` gave, under the optimizer's own settings; each process keeps its part of what is sharded.

    Raises ValueError for moments of other shapes than the weights', which an update would stretch over them.
    """
    if engine is not None:
        return engine.load(state)
    weights: list[Any] = [weight for group in optimizer.param_groups for weight in group["params"]]
    for index, own in state["state"].items():
        wrong = [name for name, x in own.items() if isinstance(x, Tensor) and x.ndim and x.shape != weights[index].shape]
        if wrong:
            raise ValueError(
                f"the saved optimizer's {wrong[0]} of weight {index} is of shape {list(own[wrong[0]].shape)}, and the weight of "
                f"{list(weights[index].shape)}: resume with the settings of the saved run, or take an earlier checkpoint"
            )
    moments = {index: {name: _shard_like(weights[index], x) for name, x in own.items()} for index, own in state["state"].items()}
    own = optimizer.state_dict()["param_groups"]
    groups = [now | {"params": saved["params"]} for now, saved in zip(own, state["param_groups"], strict=False)]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _shard_like(weight: Any, x: object) -> object:
    """A whole tensor spread as its weight is; numbers such as step counts stay as they are."""
    if not hasattr(weight, "full_tensor") or not isinstance(x, Tensor) or x.shape != weight.shape:
        return x
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x.to(weight.device), weight.device_mesh, weight.placements)
