"""Plans, requests and comparisons shared by the tests of the flow policy."""

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Prompt, Reading, Request, Rollouts
from mmrl.flow.plan import RolloutPlan
from mmrl.flow.schedules import Branching, Full, OneStep, RandomSubset, Tree, Window
from mmrl.flow.sigmas import LinearShift
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig, FlowTrace
from mmrl.policies.shared.lora import LoraSettings

FAMILIES = ("sd3", "flux", "qwen_image")
PROMPT_TOKENS = {"sd3": 3, "flux": 24, "qwen_image": 40, "wan_a14b": 24}
CLIPS: dict[str, dict[str, Any]] = {"wan_a14b": {"height": 32, "width": 32, "frames": 5, "guidance_low": 1.5}}
"""Further settings of families that draw clips."""
LORA = LoraSettings(rank=4, alpha=8)
PLANS: dict[str, RolloutPlan] = {
    "flow_grpo": Full(num_steps=4).at(0),
    "cps": Full(num_steps=4, dynamics="cps", level=0.8).at(0),
    "dance": Full(
        num_steps=4, dynamics="dance_sde", level=0.3, trained_per_row=2, initial_noise="group", truncated_timesteps=True
    ).at(0),
    "mix": Window(num_steps=5, size=2, low=1, initial_noise="group", share_prefix=True, spacing=LinearShift(3.0)).at(0),
    "flash": Window(num_steps=8, size=2, flash=0.4, spacing=LinearShift(3.0)).at(0),
    "tree": Tree(num_steps=4, split_steps=(0, 2), spacing=LinearShift(3.0)).at(0),
    "branches": Branching(num_steps=4, branches=2, at_steps=(0, 2)).at(0),
    "mixed_tree": Tree(num_steps=5, split_steps=(0, 2), window=(1, 1), nominal_density=True, last="ode").at(0),
    "subset": RandomSubset(num_steps=5, candidates=(0, 1, 3), count=2).at(0),
    "random_window": Window(num_steps=5, size=2, dynamics="cps", level=0.8, move="random").at(3),
    "one_step": OneStep(num_steps=5, high=4, initial_noise="group", share_prefix=True).at(0),
    "wan": Full(num_steps=4, dynamics="wan", last="noisy", spacing=LinearShift(5.0)).at(0),
}
"""All take groups of 4."""


def make(folder: str, shadows: Sequence[str] = (), ema_decay: Any = 0.5, **settings: Any) -> FlowPolicy:
    """With adapters that do something."""
    family = next((name for name in PROMPT_TOKENS if name in folder), "")
    usual = {"height": 16, "width": 16, "max_prompt_tokens": PROMPT_TOKENS.get(family, 40), "lora": LORA, "guidance": 2.0}
    return with_adapters(folder, shadows, ema_decay, **(usual | CLIPS.get(family, {}) | settings))


def with_adapters(folder: str, shadows: Sequence[str] = ("ref",), ema_decay: Any = 0.5, **settings: Any) -> FlowPolicy:
    """A policy whose adapters do something, or whose weights have moved."""
    torch.manual_seed(0)
    policy = FlowPolicy(FlowPolicyConfig(folder, **settings), shadows, ema_decay)
    stir(policy)
    return policy


@torch.no_grad()
def stir(policy: FlowPolicy, amount: float = 0.1) -> None:
    """Move the trainable weights, always the same way."""
    generator = torch.Generator().manual_seed(1)
    for weight in policy.parameters():
        weight += amount * weight.shape[-1] ** -0.5 * torch.randn(weight.shape, generator=generator)


def prompts() -> list[Prompt]:
    return [Prompt("cat", "a red cat"), Prompt("dogs", "two large dogs"), Prompt("hi", "hi")]


def requests(count: int = 4, num_prompts: int = 2, seed: int = 7) -> list[Request]:
    return [Request(prompt, count, group_id=i, seed=seed + i) for i, prompt in enumerate(prompts()[:num_prompts])]


def trace_of(rollouts: Rollouts) -> FlowTrace:
    assert isinstance(rollouts.trace, FlowTrace)
    return rollouts.trace


def logprobs(policy: FlowPolicy, rollouts: Rollouts, reading: Reading = LOGPROBS) -> Tensor:
    return policy.read(rollouts.trace, [reading], rollouts.action_mask)[reading]


def read_again(policy: FlowPolicy, rollouts: Rollouts) -> tuple[float, list[str]]:
    """How far log-probabilities read again are from those noted, and the trainable weights that get no gradient from them."""
    again = logprobs(policy, rollouts)
    gap = (again.detach() - rollouts.recorded[ROLLOUT_LOGPROBS])[rollouts.action_mask].abs().max()
    again.sum().backward()
    return float(gap), [key for key, own in policy.weights.named.items() if own.grad is None or not bool(own.grad.any())]


def assert_reads_again(policy: FlowPolicy, asked: Any, plan: RolloutPlan, bound: float = 1e-6, idle: str = "") -> Rollouts:
    """Fail unless what is drawn is read again as noted, and gives all trainable weights but the `idle` ones a gradient."""
    rollouts = policy.rollout(asked, plan)
    policy.audit(rollouts)
    difference, still = read_again(policy, rollouts)
    assert difference <= bound and [name for name in still if not idle or idle not in name] == []
    return rollouts


def latents(policy: FlowPolicy, asked: Sequence[Request], plan: RolloutPlan) -> Tensor:
    """The samples before they are decoded."""
    seen: list[Tensor] = []
    decoder = policy.decoder
    policy.decoder = lambda latents, size=None: (seen.append(latents), decoder(latents, size))[1]
    policy.rollout(asked, plan)
    policy.decoder = decoder
    return torch.cat(seen)


def batch_of(rollouts: Rollouts) -> Batch:
    """Every action with another share, so that no two can be mixed up unnoticed."""
    mask = rollouts.action_mask
    share = torch.linspace(0.5, 1.5, mask.numel()).reshape(mask.shape) * mask
    return Batch(rollouts, torch.ones(mask.shape), share, torch.ones(mask.shape))


def gradients(policy: FlowPolicy, parts: Sequence[Batch]) -> list[Tensor]:
    """The gradients of the sum of share * logprobs over parts, each with a backward of its own."""
    for weight in policy.parameters():
        weight.grad = None
    for part in parts:
        (part.share * logprobs(policy, part.rollouts)).sum().backward()
    return [weight.grad.clone() for weight in policy.parameters() if weight.grad is not None]


def relative_difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    assert len(a) == len(b) > 0
    difference = sum(float((x - y).pow(2).sum()) for x, y in zip(a, b, strict=True)) ** 0.5
    return difference / sum(float(y.pow(2).sum()) for y in b) ** 0.5


@contextmanager
def counted(policy: FlowPolicy):
    """A list with the number of latents of every forward of the transformer inside the block."""
    seen: list[int] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen.append(len(kwargs["hidden_states"]))

    handle = policy.net.transformer.register_forward_pre_hook(note, with_kwargs=True)
    yield seen
    handle.remove()
