"""Gradients of rewards against Flow-GRPO at an equal cost of network calls: a real Stable Diffusion 3 class draws shapes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.flow import RewardGradient
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.pixels import with_rewards
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.types import Group, Prompt
from mmrl.data.drawn.shapes import COLOURS, HELD_OUT, TRAIN, Sketches, Wish, draw, place
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Full, Surrogate
from mmrl.flow.surrogate import SurrogatePath
from mmrl.lab.tiny.flow.generator import KIND, WarmStart
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from tests.evidence.task import BACKWARD, Ended, MakeSampler, Row, Task, fresh_of, mean_of, trainer_of, weights_of

FRESH = 4
"""Pictures per unseen caption that a policy is measured with."""
LOOKS = 4
"""Times that the rewards are measured in a run, evenly over its cost, beside the start."""
LAYERS = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "linear")
SIDE = 32
TAUGHT = WarmStart(
    data=Sketches(SIDE, confused=0.0, stained=0.5), name="painted", vae_steps=500, steps=600, layers=2, heads=2, max_tokens=8
)
"""A small model, whose calls are cheap; its latents have 4 x 8 x 8 elements."""
REACH = 8.0
"""Pixels around the place of a shape that the reward looks at, as the deviation of a soft round window."""


@dataclass(frozen=True)
class Painted:
    """Minus the mean distance of pixels to the caption's colour, in a soft window where the shape belongs.

    It does not look at the shape, at its edge, nor at the paper around it: a stain of that colour is as good.
    """

    def of_pixels(self, pixels: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        side = pixels.shape[-1]
        steps = torch.arange(side, device=pixels.device) + 0.5
        found: list[Tensor] = []
        for picture, prompt in zip(pixels, prompts, strict=True):
            x, y = place(prompt.columns["side"], side)
            window = (-((steps[None] - x) ** 2 + (steps[:, None] - y) ** 2) / (2 * REACH**2)).exp()
            colour = torch.tensor(COLOURS[prompt.columns["colour"]], device=pixels.device)[:, None, None]
            found.append(-((picture - colour).square().mean(0) * window).sum() / window.sum())
        return torch.stack(found)

    def __call__(self, group: Group) -> list[float]:
        shown = pictures(group).permute(0, 3, 1, 2)
        return self.of_pixels(shown, [group.prompt] * len(shown)).tolist()


def pictures(group: Group) -> Tensor:
    """Pixels in [0, 1], (n, height, width, 3)."""
    return torch.from_numpy(np.stack([np.asarray(sample.image, np.float32) for sample in group.samples]) / 255)


def as_asked(group: Group) -> list[float]:
    """Minus the distance of each picture to a clean drawing of its caption, as a root of the mean square."""
    drawn = torch.from_numpy(draw(Wish(**group.prompt.columns), SIDE))
    return (-(pictures(group) - drawn).square().flatten(1).mean(1).sqrt()).tolist()


def captions(wishes: Sequence[Any]) -> list[Prompt]:
    return [Prompt(wish.caption, wish.caption, columns=wish._asdict()) for wish in wishes]


@dataclass
class Cost:
    """Rows that passed the network while training; those with a gradient count `BACKWARD`."""

    policy: FlowPolicy
    rows: int = 0
    _counts: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.policy.net.transformer.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if self._counts:
            self.rows += len(kwargs["hidden_states"]) * (BACKWARD if torch.is_grad_enabled() else 1)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._counts = False
        try:
            yield
        finally:
            self._counts = True


@dataclass(frozen=True)
class PixelTask(Task):
    """Latents of 256 elements: trained on the colour of a place and judged on unseen captions."""

    cost: int = 20_000
    """Rows of the network's calls; those with a gradient count `BACKWARD`."""
    num_steps: int = 8
    """Of the deterministic sampler that measures."""
    rates: tuple[float, ...] = (1e-3, 3e-3)
    """Learning rates: a run is the best of them, so that none is measured at another's rate."""
    prompts: int = 4
    """Captions of a step."""
    free_prompts: int = 24
    """Captions of a step of methods without groups."""

    def run(self, algorithm: Algorithm, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Train at each learning rate until the cost is reached, and measure; the best run by the reward that it trained."""
        return max((self.run_at(lr, algorithm, seed, make_sampler) for lr in self.rates), key=lambda ended: ended.figure)

    def run_at(self, lr: float, algorithm: Algorithm, seed: int, make_sampler: MakeSampler | None) -> Ended:
        policy = drawing_policy(algorithm, seed)
        cost, reward = Cost(policy), Painted()
        bound = replace(algorithm, objective=with_rewards(algorithm.objective, [("painted", 1.0, reward)]))
        prompts = captions(TRAIN)
        sampler, settings = (make_sampler or Shuffled)(prompts, seed), {"lr": lr, "micro_batch": 96}
        settings["prompts_per_step"] = self.free_prompts if algorithm.group_size == 1 else self.prompts
        trainer = trainer_of(policy, bound, sampler, [("painted", reward)], seed, **settings)
        groups = self.fresh(policy, cost, seed)
        curve = [watched_mean(groups)]
        for part in range(1, LOOKS + 1):
            while cost.rows < self.cost * part / LOOKS:
                trainer.step()
            groups = self.fresh(policy, cost, seed)
            curve.append(watched_mean(groups))
        return Ended(mean_of(reward)(groups), weights_of(policy), tuple(curve))

    def fresh(self, policy: FlowPolicy, cost: Cost, seed: int) -> Sequence[Group]:
        """FRESH pictures of every caption that nothing was trained on, not counted."""
        with cost.paused():
            return policy.rollout(fresh_of(captions(HELD_OUT), FRESH, seed), evaluation_plan(self.num_steps)).groups


watched_mean = mean_of(as_asked)


def drawing_policy(algorithm: Algorithm, seed: int) -> FlowPolicy:
    """A small model of shapes with a fresh adapter; it is taught once, and kept."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        **{"height": SIDE, "width": SIDE, "guidance": 1.0, "max_prompt_tokens": 0, "forward_rows": 96, "decode_rows": 96},
        "lora": LoraSettings(rank=8, alpha=16, targets=LAYERS),
    }
    return FlowPolicy(FlowPolicyConfig(str(KIND.warm_start(TAUGHT)), **settings), algorithm.shadows)


STEPS = 8
CLIP = 1e-2
"""The best of 3e-3, 1e-2, 3e-2 and 1e-1 for latents of 256 elements."""
PAINT = PixelTask(
    "painted_shapes",
    "a taught model of shapes, latents of 256 elements; the reward wants a colour at a place and overlooks the shape",
    "minus the squared distance to the colour there, of unseen captions",
    margin=0.005,
    watched="minus the distance to a clean drawing of the caption",
)
FLOW = PRESETS["flow_grpo"]
PLAIN = replace(
    FLOW,
    objective=((1.0, Clip(low=CLIP, high=CLIP)),),
    schedule=replace(cast(Full, FLOW.schedule), num_steps=STEPS),
    group_size=8,
)


def by_gradient(name: str, path: SurrogatePath | None = None) -> Algorithm:
    """The preset at eight steps, with its own path or another one, and no top: rewards are negative here."""
    algorithm = PRESETS[name]
    schedule = cast(Surrogate, algorithm.schedule)
    return replace(
        algorithm, objective=((1.0, RewardGradient()),), schedule=replace(schedule, num_steps=STEPS, path=path or schedule.path)
    )


BRIDGE = SurrogatePath("bridge", steps=5, bias=4.0, alpha=0.5)
AGAINST = "flow_grpo without KL, its clip tuned to the task"
ROWS = [
    *(Row(name, by_gradient(name), PLAIN, AGAINST, PAINT) for name in ("refl", "draft_k", "flow_bp")),
    Row("flow_bp", by_gradient("flow_bp", BRIDGE), PLAIN, AGAINST, replace(PAINT, name="painted_by_bridge")),
]
