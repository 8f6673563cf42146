"""Terms, weights and schedules of flow methods that credit one step, a divergence or a whole group, against their code."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmrl.algorithms.advantages.flow import StepRewards
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.ema_decay import RampDecay
from mmrl.algorithms.objectives.flow import DivergenceMask, FlowKL, RatioNorm
from mmrl.algorithms.objectives.forward import CenteredReward, GroupPreference
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.weights.importance import EqualGradient, InverseStep
from mmrl.core.readings import DT, LOGPROBS, MEAN, OLD_LOGPROBS, PULL, SAMPLED_MEAN, STD, TARGET_VELOCITY, VELOCITY
from mmrl.core.types import Batch, Counts, Reading
from mmrl.flow.dynamics import CPS, FlowSDE, Wan
from mmrl.flow.integrate import integrate
from mmrl.flow.layout import lay_out
from mmrl.flow.path import velocity_of
from mmrl.flow.plan import RolloutPlan, StepPlan, evaluation_plan, steps_where
from mmrl.policies.flow.read.evaluate import euler_means
from tests.numerics.check_flow import checks, each
from tests.numerics.check_flow_parts import column, credited
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import make_batch


def batch_of(advantages: Tensor) -> Batch:
    """Rows of as many actions as the advantages (n, t) have."""
    plain = make_batch(torch.ones_like(advantages), torch.zeros(len(advantages)), {})
    return Batch(plain.rollouts, advantages, plain.share, plain.importance)


@checks(*each("flow_dppo.loss.", "mixed", "tight", "loose", "plain_mse"))
def divergence_mask(vector: Vector) -> None:
    inputs, out, tolerance = vector.inputs, vector.outputs, vector.tolerance
    means = {MEAN: tensor(inputs["mean_new"]).requires_grad_(), SAMPLED_MEAN: tensor(inputs["mean_old"])}
    advantages, std = tensor(inputs["advantages"]), tensor(inputs["std"]).expand(len(inputs["advantages"]), -1, 1, 1, 1)
    gap = tensor(inputs["x_next"])
    readings: dict[Reading, Tensor] = {
        **means,
        STD: std[:, :, 0, 0, 0],
        LOGPROBS: -((gap - means[MEAN]) ** 2 / (2 * std**2)).flatten(2).mean(2),
        OLD_LOGPROBS: -((gap - means[SAMPLED_MEAN]) ** 2 / (2 * std**2)).flatten(2).mean(2),
    }
    close(readings[LOGPROBS] - readings[OLD_LOGPROBS], out["log_ratio"], tolerance)
    term = DivergenceMask(vector.params["threshold"], vector.params["divide_by_deviation"])
    values, infos = term(readings, batch_of(advantages))
    close(values, out["loss_per_action"], tolerance)
    close(values.mean(), out["loss"], tolerance)
    close(infos["policy/clip_frac"].mean(), out["masked"], tolerance)
    divergence = infos["policy/kl_old"] if term.divide else infos["policy/kl_old"] * readings[STD] ** 2
    close(divergence, out["kl"], tolerance)
    values.mean().backward()
    assert means[MEAN].grad is not None
    close(means[MEAN].grad, out["grad_mean_new"], tolerance)


@dataclass(frozen=True)
class LevelledWan(Wan):
    """UniRL's: Wan's coefficient times a level."""

    level: float = 1.0

    def diffusion(self, sigmas: Tensor, index: Tensor) -> Tensor:
        return self.level * super().diffusion(sigmas, index)


def pulls_of(sigmas: Tensor, steps: list[int], level: float = 1.0) -> Tensor:
    noisy = StepPlan(LevelledWan(level), trained=True)
    return RolloutPlan(steps_where(len(sigmas) - 1, steps, noisy)).pulls(sigmas).double()


@checks(*each("flash_grpo.rectification.", "unipc_older_T20", "linear_T20", "linear_T10_level07"))
def rectification(vector: Vector) -> None:
    sigmas, steps, out = tensor(vector.inputs["sigmas"]), vector.params["steps"], vector.outputs
    pulls = pulls_of(sigmas, steps, vector.params["eta"])
    close(1 / pulls[steps], out["rectification"], 1e-5)
    frozen = {PULL: pulls[None]}
    row = batch_of(torch.ones(1, len(pulls), dtype=torch.float64))
    weight = EqualGradient()(Batch(row.rollouts, row.advantages, row.share, row.importance, frozen), Counts(1, 1, 1))
    close(weight[0, steps], out["normalized_over_pool"], 1e-5)
    assert not weight[0, [i for i in range(len(pulls)) if i not in steps]].any()
    if "mean" not in out:
        return
    gaussian = Wan().transition(tensor(vector.inputs["x"]), tensor(vector.inputs["v"]), sigmas, torch.tensor(steps))
    close(gaussian.mean, out["mean"], vector.tolerance)
    close(Wan().diffusion(sigmas, torch.tensor(steps)), out["std_dev_t"], vector.tolerance)
    close(gaussian.log_density(tensor(vector.inputs["x_next"])), out["log_prob"], vector.tolerance)


@checks("flash_grpo.loss.a", "flash_grpo.loss.b")
def one_step_loss(vector: Vector) -> None:
    p, inputs, out = vector.params, vector.inputs, vector.outputs
    steps, rows = inputs["steps"], torch.arange(len(inputs["steps"]))
    most = p["adv_clip"]
    mask = torch.zeros(len(rows), len(inputs["sigmas"]) - 1, dtype=torch.bool)
    mask[rows, torch.tensor(steps)] = True
    placed = {name: torch.zeros(mask.shape, dtype=torch.float64) for name in ("log_prob", "old_log_prob", "advantages")}
    for name, values in placed.items():
        values[mask] = tensor(inputs[name])
    pull = pulls_of(tensor(inputs["sigmas"]), p["pool"]).expand(mask.shape)
    counts = Counts(len(rows), len(rows), 1, {PULL: pull[mask]})
    ways: tuple[Literal["batch", "pool"], ...] = ("batch", "pool")
    for way in ways:
        plain = make_batch(mask, placed["advantages"].clamp(-most, most), {PULL: pull})
        weight = EqualGradient(way)(plain, counts)
        live = placed["log_prob"].clone().requires_grad_()
        values, _ = Clip(p["clip"], p["clip"])({LOGPROBS: live, OLD_LOGPROBS: placed["old_log_prob"]}, plain)
        loss = (weight * values)[mask].mean()
        (gradient,) = torch.autograd.grad(loss, live)
        close(weight[mask], out[f"weights_{way}_mean_1"], 1e-6)
        close(loss, out[f"loss_{way}"], 1e-6)
        close(gradient[mask], out[f"grad_{way}"], 1e-6)


@checks("longcat.formulas.a", "longcat.formulas.b")
def most_spread_group(vector: Vector) -> None:
    p, inputs, out = vector.params, vector.inputs, vector.outputs
    rewards = tensor(inputs["rewards"])
    ids = [group for group, row in enumerate(inputs["rewards"]) for _ in row]
    found = credited(GroupNorm("max_group", ddof=0, eps=0.0, zero_below=0.0), rewards.flatten()[:, None], ids)
    close(found, rewards.new_tensor(out["advantage_max_deviation"]).flatten(), vector.tolerance)
    for i, (sigma, length) in enumerate(zip(inputs["sigma"], inputs["step"], strict=True)):
        sigmas, at = tensor([sigma, sigma - length]), torch.zeros(1, dtype=torch.long)
        free, capped = FlowSDE(p["a"]), FlowSDE(p["a"], p["cap"])
        close(capped.deviation(sigmas, at)[0], out["deviation"][i], vector.tolerance)
        close(capped.diffusion(sigmas, at)[0], out["drift_s"][i], vector.tolerance)
        pull = RolloutPlan((StepPlan(free, trained=True),)).pulls(sigmas)
        close(1 / pull[0], out["rectification"][i], 1e-5)
        close(1.5 / pull[0], out["policy_weight"][i], 1e-5)


@checks("crd.loss.uniform", "crd.loss.plain_error")
def centred_reward(vector: Vector) -> None:
    p, out, tolerance = vector.params, vector.outputs, vector.tolerance
    live = column(vector, "v").requires_grad_()
    readings = {
        VELOCITY: live,
        VELOCITY._replace(model="ema"): column(vector, "v_old"),
        VELOCITY._replace(model="ref"): column(vector, "v_ref"),
        TARGET_VELOCITY: column(vector, "target"),
    }
    batch = batch_of(tensor(vector.inputs["advantages"])[:, None])
    term = CenteredReward(p["beta"], float(p["adv_clip"]), p["normalized_errors"])
    values, infos = term(readings, batch)
    close(infos["policy/goodness"][:, 0], out["goodness"], tolerance)
    close(values.mean() * p["beta"] / p["adv_clip"], out["raw_loss"], tolerance)
    close(values.mean(), out["policy_loss"], tolerance)
    kl, _ = FlowKL("velocity_mse", bad_share=1e-4 / p["kl"])(readings, batch)
    close(p["kl"] * kl.mean(), out["kl_loss"], tolerance)
    loss = values.mean() + p["kl"] * kl.mean()
    close(loss, out["loss"], tolerance)
    loss.backward()
    assert live.grad is not None
    close(live.grad[:, 0], out["grad_v"], tolerance)


@check("crd.decay")
def slow_copies(vector: Vector) -> None:
    for name, word in vector.params.items():
        flat, first, slope, most = word.split("-")
        decay = RampDecay(int(flat), float(slope), float(most), float(first))
        close([decay(step) for step in vector.inputs["steps"]], vector.outputs[name], vector.tolerance)


@checks("few_step.renoise.a", "few_step.renoise.b")
def renewed_noise(vector: Vector) -> None:
    """CPS at level 1, from any latent that predicts this data."""
    data, noise = tensor(vector.inputs["data"]), tensor(vector.inputs["noise"])
    for i, sigma_next in enumerate(vector.inputs["sigma_next"]):
        sigma = (1 + sigma_next) / 2
        x = 1.7 * noise[i : i + 1] - data[i : i + 1]
        gaussian = CPS(1.0).transition(x, (x - data[i : i + 1]) / sigma, tensor([sigma, sigma_next]), torch.zeros(1).long())
        close(gaussian.draw(noise[i : i + 1])[0], vector.outputs["x_next"][i], vector.tolerance)


@checks(*each("dgpo.", "loss.plain", "loss.clip", "loss.clip_wide", "pairs_are_dpo"))
def group_preference(vector: Vector) -> None:
    p, out, tolerance = vector.params, vector.outputs, vector.tolerance
    live = column(vector, "v").requires_grad_()
    readings = {
        VELOCITY: live,
        VELOCITY._replace(model="ref"): column(vector, "v_ref"),
        VELOCITY._replace(model="ema"): column(vector, "v_old"),
        TARGET_VELOCITY: velocity_of(column(vector, "x0"), column(vector, "noise")),
    }
    advantages, ids = tensor(vector.inputs["advantages"]), [int(i) for i in vector.inputs["groups"]]
    batch = make_batch(torch.ones(len(ids), 1), advantages, {}, ids)
    values, infos = GroupPreference(p["beta"], p["clip"] if p["clip_errors"] else None)(readings, batch)
    firsts = [ids.index(i) for i in sorted(set(ids))]
    close(infos["policy/disorder"][firsts, 0], out["group_weight"], tolerance)
    close(values[firsts, 0], torch.nn.functional.softplus(tensor(out["group_sum"])) / p["beta"], tolerance)
    (gradient,) = torch.autograd.grad(values.mean(), live)
    close(gradient[:, 0], out["grad_v"], tolerance)
    _, infos = GroupPreference(p["beta"], p["clip"])(readings, batch)
    close(infos["policy/clip_frac"][:, 0], tensor(out["clipped"]), tolerance)
    if "dpo_grad_v" in out:
        close(gradient[:, 0] * p["beta"], out["dpo_grad_v"], tolerance)


@checks("mixed_weights.rollout.a", "mixed_weights.rollout.b")
def mixed_weights(vector: Vector) -> None:
    p, sigmas, x1 = vector.params, tensor(vector.inputs["sigmas"]), tensor(vector.inputs["x1"])
    tuned, base = tensor(vector.inputs["a"]), tensor(vector.inputs["b"])
    plan = evaluation_plan(p["T"], base_from=p["tuned_steps"] / p["T"])
    assert plan.base_from == p["tuned_steps"]

    def velocity(x: Tensor, step: int, rows: Tensor) -> Tensor:
        return 0.4 * x + sigmas[step] * (tuned if step < p["tuned_steps"] else base)

    found = integrate(plan, sigmas, lay_out(plan, [len(x1)], [0]), velocity, lambda column, rows: x1[rows])
    close(torch.stack(found.states), vector.outputs["states"], vector.tolerance)


@checks("unigrpo.flow.a", "unigrpo.flow.b")
def normalized_ratios_near_the_reference(vector: Vector) -> None:
    """The official weights per step have mean 1."""
    p, inputs, out, tolerance = vector.params, vector.inputs, vector.outputs, vector.tolerance
    n, steps, sigmas = len(inputs["advantages"]), inputs["steps"], tensor(inputs["sigmas"])
    new, old = tensor(inputs["mean_new"]).requires_grad_(), tensor(inputs["mean_old"])
    std = tensor(inputs["std"]).expand(n, -1)
    scale, x_next = std[:, :, None, None, None], tensor(inputs["x_next"])
    readings = {MEAN: new, SAMPLED_MEAN: old, STD: std}
    for reading, mean in ((LOGPROBS, new), (OLD_LOGPROBS, old)):
        readings[reading] = -((x_next - mean) ** 2 / (2 * scale**2)).flatten(2).mean(2)
    batch = batch_of(tensor(inputs["advantages"])[:, None].expand(-1, len(steps)))
    values, infos = RatioNorm(p["clip"], p["clip"])(readings, batch)
    close(infos["policy/ratio"].log(), out["log_ratio_scaled"], tolerance)
    if p["inverse_step_mean_1"]:
        dt = (sigmas[:-1] - sigmas[1:])[steps].expand(n, -1)
        weight = InverseStep()(make_batch(torch.ones_like(dt), torch.zeros(n), {DT: dt}), Counts(1, 1, 1))
        values = values * weight / weight.mean()
    close(values.mean(), out["policy_loss"], tolerance)
    (gradient,) = torch.autograd.grad(values.mean(), new)
    close(gradient, out["grad_mean_new"], tolerance)
    velocities = {VELOCITY: column(vector, "v"), VELOCITY._replace(model="ref"): column(vector, "v_ref")}
    kl, _ = FlowKL("velocity_mse")(velocities, batch_of(torch.zeros(len(inputs["v"]), 1, dtype=torch.float64)))
    close(kl.mean(), out["velocity_mse"], tolerance)


@checks("opd.kl.a", "opd.kl.b")
def distance_from_a_teacher(vector: Vector) -> None:
    """Half the squared means on steps without noise, the KL divergence on noisy ones, and verl-omni's without the step."""
    p, inputs, out, tolerance = vector.params, vector.inputs, vector.outputs, vector.tolerance
    sigmas, steps = tensor(inputs["sigmas"]), torch.tensor(p["steps"])
    x, batch = tensor(inputs["x"]), batch_of(torch.zeros(len(inputs["x"]), len(steps), dtype=torch.float64))
    dynamics, ways = FlowSDE(p["level"]), {name: tensor(inputs[f"v_{name}"]) for name in ("student", "teacher")}
    std = dynamics.deviation(sigmas, steps).expand(len(x), -1)
    readings = {STD: std, DT: (sigmas[steps] - sigmas[steps + 1]).expand(len(x), -1)}
    euler, noisy = dict[Reading, Tensor](), dict(readings)
    for reading, v in zip((MEAN, MEAN._replace(model="teacher")), ways.values(), strict=True):
        euler[reading] = torch.stack(
            [euler_means(x[:, i], v[:, i], sigmas, steps[i].expand(len(x))) for i in range(len(steps))], 1
        )
        means = [dynamics.transition(x[:, i], v[:, i], sigmas, steps[i].expand(len(x))).mean for i in range(len(steps))]
        noisy[reading] = torch.stack(means, 1)
    close(0.5 * FlowKL("mean_mse", "teacher")(euler, batch)[0], out["ode_half_square"], tolerance)
    close(FlowKL("true", "teacher")(noisy, batch)[0], out["sde_true_kl"], tolerance)
    close(FlowKL("no_dt", "teacher")(noisy, batch)[0].mean(0), out["verl_no_dt_mean_per_step"], tolerance)


@checks("vgpo.formulas.a", "vgpo.formulas.b")
def rewards_per_step(vector: Vector) -> None:
    p, rewards, out = vector.params, tensor(vector.inputs["instant_rewards"]), vector.outputs
    advantage = StepRewards(p["gamma"], p["k"], 1.0, ddof=p["ddof"], eps=p["eps"], zero_below=0.0)
    values = advantage.values_of(rewards)
    close(values, out["value"], vector.tolerance)
    close(advantage.weights_of(values), out["step_weight"], vector.tolerance)
    close(advantage.compare(values), out["advantage"], vector.tolerance)
