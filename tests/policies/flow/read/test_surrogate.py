"""Gradients of rewards through a real decoder and the last steps: exact, at the samples' own value, and refused by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.pixels import try_gradient, with_rewards
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.readings import PIXELS, VELOCITY
from mmrl.core.types import Group, Prompt, Rollouts
from mmrl.flow.schedules import Full, Surrogate
from mmrl.flow.surrogate import SurrogatePath
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.policies.flow.write.test_given import make as make_any
from tests.support.flow_policies import make, prompts, requests, trace_of
from tests.support.presets import BY_PIXELS
from tests.support.refused import refused

Tiny = Callable[[str], str]
STEPS = 4


@dataclass(frozen=True)
class Blue:
    """How blue a picture is."""

    broken: str = ""

    def __call__(self, group: Group) -> list[float]:
        return [float(torch.tensor(list(one.image.tobytes())).view(-1, 3)[:, 2].float().mean() / 255) for one in group.samples]

    def of_pixels(self, pixels: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        assert len(pixels) == len(prompts)
        blue = pixels[:, 2].flatten(1).mean(1)
        if self.broken == "detached":
            return blue.detach()
        if self.broken == "count":
            return blue.sum()
        if self.broken == "reversed":
            return 2 * blue.detach() - blue
        if self.broken == "nan":
            return blue * float("nan")
        return blue + (0 * pixels.flatten(1).sum(1)).sqrt() if self.broken == "root" else blue


def plan_of(path: SurrogatePath):
    return Surrogate(num_steps=STEPS, path=path).at(0)


def pixels_of(policy: FlowPolicy, rollouts: Rollouts) -> Tensor:
    return policy.read(rollouts.trace, [PIXELS], rollouts.action_mask)[PIXELS]


def gradient(policy: FlowPolicy, values: Tensor) -> Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(values, policy.parameters())])


def whole_chain(policy: FlowPolicy, rollouts: Rollouts, keep: int) -> Tensor:
    """The pictures with a gradient through the last `keep` steps, by a loop of the pipeline's own network and decoder."""
    trace = trace_of(rollouts)
    sigmas, rows = trace.sigma_tables[0].sigmas, torch.arange(len(trace))
    x = trace.latents[trace.before[rows, STEPS - keep]]
    for step in range(STEPS - keep, STEPS):
        time = torch.full((len(x),), float(sigmas[step]) * 1000)
        v = policy.net(x, time, trace.conditions, trace.prompt_index, policy.encoder.empty(torch.device("cpu")))
        x = x + (sigmas[step + 1] - sigmas[step]) * v
    return (policy.family.decode(policy.family.unpack(x)) / 2 + 0.5).clamp(0, 1)


PATHS = {
    "draft": SurrogatePath("draft", steps=STEPS),
    "sparse": SurrogatePath("sparse", steps=2, rescale=0.5),
    "bridge": SurrogatePath("bridge", steps=3, bias=4.0),
}


@pytest.mark.parametrize(("family", "kind"), [*((name, kind) for name in ("sd3", "flux") for kind in PATHS), ("sd15", "sparse")])
def test_pictures_of_a_path_are_the_samples_own(tiny: Tiny, family: str, kind: str):
    """Of Stable Diffusion 1.5 too, which ends above 0."""
    policy = make_any(tiny(family)) if family == "sd15" else make(tiny(family))
    rollouts = policy.rollout(requests(2), plan_of(PATHS[kind]))
    policy.audit(rollouts)
    assert set(rollouts.action_mask.sum(1).tolist()) <= ({2, 3} if kind == "bridge" else {PATHS[kind].steps})
    pixels = pixels_of(policy, rollouts)
    for picture, (_, sample) in zip(pixels, rollouts.samples(), strict=True):
        shown = torch.tensor(list(sample.image.tobytes())).view(16, 16, 3).permute(2, 0, 1) / 255
        assert float((picture - shown).detach().abs().max()) < 0.003
    assert gradient(policy, pixels.square().sum()).abs().max() > 0


@pytest.mark.parametrize("keep", [1, 2, STEPS])
def test_draft_is_backpropagation_through_the_last_steps(tiny: Tiny, keep: int):
    policy = make(tiny("sd3"))
    rollouts = policy.rollout(requests(2), plan_of(SurrogatePath("draft", steps=keep)))
    found, wanted = (
        gradient(policy, pixels_of(policy, rollouts).square().sum()),
        gradient(policy, whole_chain(policy, rollouts, keep).square().sum()),
    )
    assert float((found - wanted).norm() / wanted.norm()) < 1e-4


@pytest.mark.parametrize(
    ("path", "sparse"),
    [
        (SurrogatePath("draft", steps=1), SurrogatePath("sparse", steps=1)),
        (SurrogatePath("bridge", steps=3, rescale=0.0, alpha=0.0), SurrogatePath("sparse", steps=3)),
    ],
    ids=["draft 1 is sparse with the last step alone", "a bridge that passes nothing is sparse with its steps"],
)
def test_one_path_is_another(tiny: Tiny, path: SurrogatePath, sparse: SurrogatePath):
    policy = make(tiny("sd3"))
    rollouts = policy.rollout(requests(2), plan_of(path))
    trace = trace_of(rollouts)
    assert path.kind == "draft" or not trace.through.any()
    table = replace(trace.sigma_tables[0], plan=plan_of(sparse))
    as_sparse = replace(rollouts, trace=replace(trace, sigma_tables=(table,)))
    one, other = (gradient(policy, pixels_of(policy, found).sum()) for found in (rollouts, as_sparse))
    assert torch.equal(one, other)


def test_refl_decodes_what_one_late_step_points_at(tiny: Tiny):
    policy = make(tiny("sd3"))
    rollouts = policy.rollout(requests(4), plan_of(SurrogatePath("refl", steps=1, tail=0.5)))
    steps = rollouts.action_mask.nonzero()[:, 1]
    assert set(steps.tolist()) == {2, 3}
    pixels, trace, rows = pixels_of(policy, rollouts), trace_of(rollouts), torch.arange(8)
    v = policy.read(trace, [VELOCITY], rollouts.action_mask)[VELOCITY][rows, steps]
    ahead = trace.latents[trace.before[rows, steps]] - trace.sigma[rows, steps].view(-1, 1, 1, 1) * v
    wanted = (policy.family.decode(ahead) / 2 + 0.5).clamp(0, 1)
    torch.testing.assert_close(pixels, wanted, atol=1e-5, rtol=1e-4)


def test_a_cut_decoder_gives_the_same_gradient_and_is_asked_again(tiny: Tiny):
    whole, cut = make(tiny("sd3")), make(tiny("sd3"), decode_rows=1)
    counts: list[int] = []
    kept = cut.pipeline.vae.decode
    cut.pipeline.vae.decode = lambda z, return_dict: (counts.append(len(z)), kept(z, return_dict=False))[1]
    found: list[Tensor] = []
    for policy in (whole, cut):
        rollouts = policy.rollout(requests(2, 1), plan_of(PATHS["sparse"]))
        counts.clear()
        found.append(gradient(policy, pixels_of(policy, rollouts).square().sum()))
    assert counts == [1, 1, 1, 1]
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 1e-5


def trainer_of(policy: FlowPolicy, algorithm: Algorithm, reward: Blue) -> Trainer:
    bound = replace(algorithm, objective=with_rewards(algorithm.objective, [("blue", 1.0, reward), ("other", 0.0, len)]))
    settings = TrainSettings(steps=6, prompts_per_step=2, micro_batch=3, optimizer=OptimizerSettings(lr=1e-2, clip_norm=10.0))
    rewards: Any = [NamedReward("blue", reward)]
    return Trainer(policy, bound, Shuffled(prompts(), seed=0), RewardRunner(rewards), settings)


def small(name: str) -> Algorithm:
    algorithm = BY_PIXELS[name]
    schedule, (_, term) = algorithm.schedule, algorithm.objective[0]
    assert isinstance(schedule, Surrogate)
    schedule = replace(schedule, num_steps=STEPS, path=replace(schedule.path, steps=min(2, schedule.path.steps)))
    return replace(algorithm, schedule=schedule, objective=((1.0, replace(term, top=None)),))  # type: ignore[type-var]


@pytest.mark.parametrize("name", sorted(BY_PIXELS))
def test_presets_raise_the_reward(tiny: Tiny, name: str):
    trainer = trainer_of(make(tiny("sd3"), guidance=1.0), small(name), Blue())
    first = trainer.step()
    totals = [trainer.step()["reward/total"] for _ in range(5)]
    assert first["policy/reward"] == pytest.approx(first["reward/total"], abs=0.05 if name == "refl" else 0.01)
    assert totals[-1] > first["reward/total"] + 0.02


BROKEN = [
    ("detached", "reward 'blue' gave scores without a gradient: leave out detach"),
    ("nan", "reward 'blue' gave tensor.* for 2 pictures, and must give a finite number each"),
    ("count", "reward 'blue' gave .* and must give a finite number each"),
    ("root", "the gradient of reward 'blue' with respect to pixels is not finite"),
]


@pytest.mark.parametrize(("broken", "message"), BROKEN)
def test_rewards_without_a_gradient_are_refused_by_name(tiny: Tiny, broken: str, message: str):
    refused(message, trainer_of(make(tiny("sd3"), guidance=1.0), small("draft_k"), Blue(broken)).step)


@pytest.mark.parametrize(("broken", "message"), [*BROKEN, ("reversed", r"the gradient of reward 'blue' points away .* by -")])
def test_a_trial_refuses_them_before_a_run(broken: str, message: str):
    try_gradient("blue", Blue(), prompts()[0])
    refused(message.replace("2 pictures", "1 pictures"), try_gradient, "blue", Blue(broken), prompts()[0])


def test_what_is_refused_before(tiny: Tiny):
    objective = BY_PIXELS["refl"].objective
    with pytest.raises(ValueError, match="and 'jpeg' has none: take rewards that score pixels"):
        with_rewards(objective, [("blue", 1.0, Blue()), ("jpeg", 0.5, len)])
    refused("and no reward has none", with_rewards, objective, [("jpeg", 0.0, len)])
    policy = make(tiny("sd3"))
    rollouts = policy.rollout(requests(2), Full(num_steps=3).at(0))
    refused(r"needs a surrogate path: use the schedule Surrogate", pixels_of, policy, rollouts)
    refused(r"path\.steps is 5, and there are 4 steps", Surrogate, num_steps=4, path=SurrogatePath(steps=5))
    refused("a bridge has a step on both sides", SurrogatePath, "bridge", steps=1)
