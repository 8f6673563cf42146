"""Flow methods that credit one step, a divergence, a pair or a whole group, against their code, with gradients."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from mmrl.algorithms.advantages.flow import BestAgainstWorst, BestWorst, StepRewards
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import RampDecay
from mmrl.algorithms.objectives.flow import DivergenceMask, FlowKL, RatioNorm
from mmrl.algorithms.objectives.forward import CenteredReward, DenoisingPreference, GroupPreference, Matching
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.weights.aggregate import SequenceMean
from mmrl.algorithms.weights.importance import EqualGradient, InverseStep
from mmrl.core.readings import DT, LOGPROBS, MEAN, OLD_LOGPROBS, PULL, SAMPLED_MEAN, SIGMA, STD, TARGET_VELOCITY, VELOCITY
from mmrl.core.types import Batch, Counts, Reading
from mmrl.flow.dynamics import CPS, FlowSDE, Wan
from mmrl.flow.integrate import integrate
from mmrl.flow.layout import lay_out
from mmrl.flow.path import add_noise, velocity_of
from mmrl.flow.plan import RolloutPlan, StepPlan, evaluation_plan, steps_where
from mmrl.flow.sigmas import DiffusionTable
from mmrl.policies.flow.read.evaluate import euler_means
from tests.numerics.check_flow_parts import of_rows
from tests.numerics.registry import Vector, check, close, each, tensor
from tests.numerics.rows import alone, blocks, column, credited, ids_of
from tests.support.rows import make_batch, weighed


def batch_of(advantages: Tensor) -> Batch:
    """Rows of as many actions as the advantages (n, t) have."""
    plain = make_batch(torch.ones_like(advantages), torch.zeros(len(advantages)), {})
    return Batch(plain.rollouts, advantages, plain.share, plain.importance)


@check(*each("flow_dppo.loss.", "mixed", "tight", "loose", "plain_mse"))
def divergence_mask(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    means = {MEAN: tensor(inputs["mean_new"]).requires_grad_(), SAMPLED_MEAN: tensor(inputs["mean_old"])}
    advantages, std = tensor(inputs["advantages"]), tensor(inputs["std"]).expand(len(inputs["advantages"]), -1, 1, 1, 1)
    gap = tensor(inputs["x_next"])
    readings: dict[Reading, Tensor] = {
        **means,
        STD: std[:, :, 0, 0, 0],
        LOGPROBS: -((gap - means[MEAN]) ** 2 / (2 * std**2)).flatten(2).mean(2),
        OLD_LOGPROBS: -((gap - means[SAMPLED_MEAN]) ** 2 / (2 * std**2)).flatten(2).mean(2),
    }
    close(readings[LOGPROBS] - readings[OLD_LOGPROBS], outputs["log_ratio"], tolerance)
    term = DivergenceMask(params["threshold"], params["divide_by_deviation"])
    values, infos = term(readings, batch_of(advantages))
    close(values, outputs["loss_per_action"], tolerance)
    close(values.mean(), outputs["loss"], tolerance)
    close(infos["policy/clip_frac"].mean(), outputs["masked"], tolerance)
    divergence = infos["policy/kl_old"] if term.divide else infos["policy/kl_old"] * readings[STD] ** 2
    close(divergence, outputs["kl"], tolerance)
    close(torch.autograd.grad(values.mean(), means[MEAN])[0], outputs["grad_mean_new"], tolerance)


@dataclass(frozen=True)
class LevelledWan(Wan):
    """UniRL's: Wan's coefficient times a level."""

    level: float = 1.0

    def diffusion(self, sigmas: Tensor, index: Tensor) -> Tensor:
        return self.level * super().diffusion(sigmas, index)


def pulls_of(sigmas: Tensor, steps: list[int], level: float = 1.0) -> Tensor:
    noisy = StepPlan(LevelledWan(level), trained=True)
    return RolloutPlan(steps_where(len(sigmas) - 1, steps, noisy)).pulls(sigmas).double()


@check(*each("flash_grpo.rectification.", "unipc_older_T20", "linear_T20", "linear_T10_level07"))
def rectification(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    sigmas, steps = tensor(inputs["sigmas"]), params["steps"]
    pulls = pulls_of(sigmas, steps, params["eta"])
    close(1 / pulls[steps], outputs["rectification"], 1e-5)
    frozen = {PULL: pulls[None]}
    row = batch_of(torch.ones(1, len(pulls), dtype=torch.float64))
    weight = EqualGradient()(Batch(row.rollouts, row.advantages, row.share, row.importance, frozen), Counts(1, 1, 1))
    close(weight[0, steps], outputs["normalized_over_pool"], 1e-5)
    assert not weight[0, [i for i in range(len(pulls)) if i not in steps]].any()
    if "mean" not in outputs:
        return
    gaussian = Wan().transition(tensor(inputs["x"]), tensor(inputs["v"]), sigmas, torch.tensor(steps))
    close(gaussian.mean, outputs["mean"], tolerance)
    close(Wan().diffusion(sigmas, torch.tensor(steps)), outputs["std_dev_t"], tolerance)
    close(gaussian.log_density(tensor(inputs["x_next"])), outputs["log_prob"], tolerance)


@check("flash_grpo.loss.a", "flash_grpo.loss.b")
def one_step_loss(inputs: Any, params: Any, outputs: Any) -> None:
    steps, rows = inputs["steps"], torch.arange(len(inputs["steps"]))
    most = params["adv_clip"]
    mask = torch.zeros(len(rows), len(inputs["sigmas"]) - 1, dtype=torch.bool)
    mask[rows, torch.tensor(steps)] = True
    placed = {name: torch.zeros(mask.shape, dtype=torch.float64) for name in ("log_prob", "old_log_prob", "advantages")}
    for name, values in placed.items():
        values[mask] = tensor(inputs[name])
    pull = pulls_of(tensor(inputs["sigmas"]), params["pool"]).expand(mask.shape)
    counts = Counts(len(rows), len(rows), 1, {PULL: pull[mask]})
    ways: tuple[Literal["batch", "pool"], ...] = ("batch", "pool")
    for way in ways:
        plain = make_batch(mask, placed["advantages"].clamp(-most, most), {PULL: pull})
        weight = EqualGradient(way)(plain, counts)
        live = placed["log_prob"].clone().requires_grad_()
        values, _ = Clip(params["clip"], params["clip"])({LOGPROBS: live, OLD_LOGPROBS: placed["old_log_prob"]}, plain)
        loss = (weight * values)[mask].mean()
        (gradient,) = torch.autograd.grad(loss, live)
        close(weight[mask], outputs[f"weights_{way}_mean_1"], 1e-6)
        close(loss, outputs[f"loss_{way}"], 1e-6)
        close(gradient[mask], outputs[f"grad_{way}"], 1e-6)


@check("longcat.formulas.a", "longcat.formulas.b")
def most_spread_group(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    rewards = tensor(inputs["rewards"])
    ids = blocks(rewards.numel(), rewards.shape[1])
    found = credited(GroupNorm("max_group", ddof=0, eps=0.0, zero_below=0.0), rewards.flatten(), ids)
    close(found, rewards.new_tensor(outputs["advantage_max_deviation"]).flatten(), tolerance)
    for i, (sigma, length) in enumerate(zip(inputs["sigma"], inputs["step"], strict=True)):
        sigmas, at = tensor([sigma, sigma - length]), torch.zeros(1, dtype=torch.long)
        free, capped = FlowSDE(params["a"]), FlowSDE(params["a"], params["cap"])
        close(capped.deviation(sigmas, at)[0], outputs["deviation"][i], tolerance)
        close(capped.diffusion(sigmas, at)[0], outputs["drift_s"][i], tolerance)
        pull = RolloutPlan((StepPlan(free, trained=True),)).pulls(sigmas)
        close(1 / pull[0], outputs["rectification"][i], 1e-5)
        close(1.5 / pull[0], outputs["policy_weight"][i], 1e-5)


@check("crd.loss.uniform", "crd.loss.plain_error")
def centred_reward(inputs: Any, params: Any, outputs: Any, tolerance: float, vector: Vector) -> None:
    live = of_rows(vector, "v").requires_grad_()
    readings = {
        VELOCITY: live,
        VELOCITY._replace(model="ema"): of_rows(vector, "v_old"),
        VELOCITY._replace(model="ref"): of_rows(vector, "v_ref"),
        TARGET_VELOCITY: of_rows(vector, "target"),
    }
    batch = batch_of(tensor(inputs["advantages"])[:, None])
    term = CenteredReward(params["beta"], float(params["adv_clip"]), params["normalized_errors"])
    values, infos = term(readings, batch)
    close(infos["policy/goodness"][:, 0], outputs["goodness"], tolerance)
    close(values.mean() * params["beta"] / params["adv_clip"], outputs["raw_loss"], tolerance)
    close(values.mean(), outputs["policy_loss"], tolerance)
    kl, _ = FlowKL("velocity_mse", bad_share=1e-4 / params["kl"])(readings, batch)
    close(params["kl"] * kl.mean(), outputs["kl_loss"], tolerance)
    loss = values.mean() + params["kl"] * kl.mean()
    close(loss, outputs["loss"], tolerance)
    close(torch.autograd.grad(loss, live)[0][:, 0], outputs["grad_v"], tolerance)


@check("crd.decay")
def slow_copies(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    for name, word in params.items():
        flat, first, slope, most = word.split("-")
        decay = RampDecay(int(flat), float(slope), float(most), float(first))
        close([decay(step) for step in inputs["steps"]], outputs[name], tolerance)


@check("few_step.renoise.a", "few_step.renoise.b")
def renewed_noise(inputs: Any, outputs: Any, tolerance: float) -> None:
    """CPS at level 1, from any latent that predicts this data."""
    data, noise = tensor(inputs["data"]), tensor(inputs["noise"])
    for i, sigma_next in enumerate(inputs["sigma_next"]):
        sigma = (1 + sigma_next) / 2
        x = 1.7 * noise[i : i + 1] - data[i : i + 1]
        gaussian = CPS(1.0).transition(x, (x - data[i : i + 1]) / sigma, tensor([sigma, sigma_next]), torch.zeros(1).long())
        close(gaussian.draw(noise[i : i + 1])[0], outputs["x_next"][i], tolerance)


@check(*each("dgpo.", "loss.plain", "loss.clip", "loss.clip_wide", "pairs_are_dpo"))
def group_preference(inputs: Any, params: Any, outputs: Any, tolerance: float, vector: Vector) -> None:
    live = of_rows(vector, "v").requires_grad_()
    readings = {
        VELOCITY: live,
        VELOCITY._replace(model="ref"): of_rows(vector, "v_ref"),
        VELOCITY._replace(model="ema"): of_rows(vector, "v_old"),
        TARGET_VELOCITY: velocity_of(of_rows(vector, "x0"), of_rows(vector, "noise")),
    }
    advantages, ids = tensor(inputs["advantages"]), [int(i) for i in inputs["groups"]]
    batch = make_batch(torch.ones(len(ids), 1), advantages, {}, ids)
    values, infos = GroupPreference(params["beta"], params["clip"] if params["clip_errors"] else None)(readings, batch)
    firsts = [ids.index(i) for i in sorted(set(ids))]
    close(infos["policy/disorder"][firsts, 0], outputs["group_weight"], tolerance)
    close(values[firsts, 0], torch.nn.functional.softplus(tensor(outputs["group_sum"])) / params["beta"], tolerance)
    (gradient,) = torch.autograd.grad(values.mean(), live)
    close(gradient[:, 0], outputs["grad_v"], tolerance)
    _, infos = GroupPreference(params["beta"], params["clip"])(readings, batch)
    close(infos["policy/clip_frac"][:, 0], tensor(outputs["clipped"]), tolerance)
    if "dpo_grad_v" in outputs:
        close(gradient[:, 0] * params["beta"], outputs["dpo_grad_v"], tolerance)


@check("mixed_weights.rollout.a", "mixed_weights.rollout.b")
def mixed_weights(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    sigmas, x1 = tensor(inputs["sigmas"]), tensor(inputs["x1"])
    tuned, base = tensor(inputs["a"]), tensor(inputs["b"])
    plan = evaluation_plan(params["T"], base_from=params["tuned_steps"] / params["T"])
    assert plan.base_from == params["tuned_steps"]

    def velocity(x: Tensor, step: int, rows: Tensor) -> Tensor:
        return 0.4 * x + sigmas[step] * (tuned if step < params["tuned_steps"] else base)

    found = integrate(plan, sigmas, lay_out(plan, [len(x1)], [0]), velocity, lambda column, rows: x1[rows])
    close(torch.stack(found.states), outputs["states"], tolerance)


@check("unigrpo.flow.a", "unigrpo.flow.b")
def normalized_ratios_near_the_reference(inputs: Any, params: Any, outputs: Any, tolerance: float, vector: Vector) -> None:
    """The official weights per step have mean 1."""
    n, steps, sigmas = len(inputs["advantages"]), inputs["steps"], tensor(inputs["sigmas"])
    new, old = tensor(inputs["mean_new"]).requires_grad_(), tensor(inputs["mean_old"])
    std = tensor(inputs["std"]).expand(n, -1)
    scale, x_next = std[:, :, None, None, None], tensor(inputs["x_next"])
    readings = {MEAN: new, SAMPLED_MEAN: old, STD: std}
    for reading, mean in ((LOGPROBS, new), (OLD_LOGPROBS, old)):
        readings[reading] = -((x_next - mean) ** 2 / (2 * scale**2)).flatten(2).mean(2)
    batch = batch_of(tensor(inputs["advantages"])[:, None].expand(-1, len(steps)))
    values, infos = RatioNorm(params["clip"], params["clip"])(readings, batch)
    close(infos["policy/ratio"].log(), outputs["log_ratio_scaled"], tolerance)
    if params["inverse_step_mean_1"]:
        dt = (sigmas[:-1] - sigmas[1:])[steps].expand(n, -1)
        weight = InverseStep()(make_batch(torch.ones_like(dt), torch.zeros(n), {DT: dt}), Counts(1, 1, 1))
        values = values * weight / weight.mean()
    close(values.mean(), outputs["policy_loss"], tolerance)
    close(torch.autograd.grad(values.mean(), new)[0], outputs["grad_mean_new"], tolerance)
    velocities = {VELOCITY: of_rows(vector, "v"), VELOCITY._replace(model="ref"): of_rows(vector, "v_ref")}
    kl, _ = FlowKL("velocity_mse")(velocities, batch_of(torch.zeros(len(inputs["v"]), 1, dtype=torch.float64)))
    close(kl.mean(), outputs["velocity_mse"], tolerance)


@check("opd.kl.a", "opd.kl.b")
def distance_from_a_teacher(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    """Half the squared means on steps without noise, the KL divergence on noisy ones, and verl-omni's without the step."""
    sigmas, steps = tensor(inputs["sigmas"]), torch.tensor(params["steps"])
    x, batch = tensor(inputs["x"]), batch_of(torch.zeros(len(inputs["x"]), len(steps), dtype=torch.float64))
    dynamics, ways = FlowSDE(params["level"]), {name: tensor(inputs[f"v_{name}"]) for name in ("student", "teacher")}
    std = dynamics.deviation(sigmas, steps).expand(len(x), -1)
    readings = {STD: std, DT: (sigmas[steps] - sigmas[steps + 1]).expand(len(x), -1)}
    euler, noisy = dict[Reading, Tensor](), dict(readings)
    for reading, v in zip((MEAN, MEAN._replace(model="teacher")), ways.values(), strict=True):
        euler[reading] = torch.stack(
            [euler_means(x[:, i], v[:, i], sigmas, steps[i].expand(len(x))) for i in range(len(steps))], 1
        )
        means = [dynamics.transition(x[:, i], v[:, i], sigmas, steps[i].expand(len(x))).mean for i in range(len(steps))]
        noisy[reading] = torch.stack(means, 1)
    close(0.5 * FlowKL("mean_mse", "teacher")(euler, batch)[0], outputs["ode_half_square"], tolerance)
    close(FlowKL("true", "teacher")(noisy, batch)[0], outputs["sde_true_kl"], tolerance)
    close(FlowKL("no_dt", "teacher")(noisy, batch)[0].mean(0), outputs["verl_no_dt_mean_per_step"], tolerance)


@check("vgpo.formulas.a", "vgpo.formulas.b")
def rewards_per_step(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    rewards = tensor(inputs["instant_rewards"])
    advantage = StepRewards(params["gamma"], params["k"], 1.0, ddof=params["ddof"], eps=params["eps"], zero_below=0.0)
    values = advantage.values_of(rewards)
    close(values, outputs["value"], tolerance)
    close(advantage.weights_of(values), outputs["step_weight"], tolerance)
    close(advantage.compare(values), outputs["advantage"], tolerance)


LIVE = VELOCITY._replace(guidance=1.0)
REF = LIVE._replace(model="ref")


def loss_of_pairs(
    term: DenoisingPreference, readings: Mapping[Reading, Tensor], sign: list[float], ids: list[int]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The mean over pairs, and what is logged; rows hold one noised copy each."""
    algorithm = Algorithm(((1.0, term),), aggregation=SequenceMean())
    frozen = {reading: x[:, None] for reading, x in readings.items() if reading != LIVE}
    batch = weighed(algorithm, make_batch(torch.ones(len(sign), 1), torch.tensor(sign, dtype=torch.float64), frozen, ids))
    return algorithm.loss(batch, {LIVE: readings[LIVE][:, None]})


@check("dpo_diffusion")
def dpo_diffusion(inputs: Any, params: Any, outputs: Any) -> None:
    """Errors of predicted noise, from the velocities of the same model as a flow."""
    table = DiffusionTable(params["beta_start"], params["beta_end"], params["beta_schedule"]).table.double()
    sigma = table[torch.tensor(inputs["timesteps"])].repeat(2)
    noise, weights = tensor(inputs["noise"]).repeat(2, 1, 1, 1), tensor(inputs["weights"]).requires_grad_()
    noisy = add_noise(tensor(inputs["latents"]), noise, sigma) / ((1 - sigma) ** 2 + sigma**2).sqrt()[:, None, None, None]
    close(noisy, outputs["noisy"], 1e-5, "noisy")
    noisy = tensor(outputs["noisy"])

    def velocity(of: Tensor) -> Tensor:
        predicted = torch.einsum("oc,nchw->nohw", of, noisy)
        return (predicted - noise) / (1 - sigma)[:, None, None, None]

    readings = {LIVE: velocity(weights), REF: velocity(tensor(inputs["ref_weights"])), SIGMA: sigma}
    readings |= {TARGET_VELOCITY: torch.zeros_like(noisy)}
    for case in outputs["cases"]:
        loss, metrics = loss_of_pairs(DenoisingPreference(case["beta"], "noise"), readings, [1, 1, -1, -1], [0, 1, 0, 1])
        close(loss, case["loss"], 1e-6, "loss")
        close(torch.autograd.grad(loss, weights, retain_graph=True)[0], case["grad"], 1e-6, "gradient")
        close(metrics["policy/preferred"], case["implicit_acc"], 1e-6, "accuracy")
        close(metrics["policy/margin"], tensor(case["inside"]).mean(), 1e-6, "inside")


@check("dpo_flow")
def dpo_flow(inputs: Any, outputs: Any) -> None:
    data, noise = tensor(inputs["data"]), tensor(inputs["noise"]).repeat(2, 1, 1, 1)
    noisy = add_noise(data, noise, tensor(inputs["sigma"]).repeat(2))
    close(noisy, outputs["noisy"], 1e-9, "noisy")
    weights = tensor(inputs["weights"]).requires_grad_()
    live, ref = (torch.einsum("oc,nchw->nohw", of, noisy) for of in (weights, tensor(inputs["ref_weights"])))
    readings = {LIVE: live, REF: ref, TARGET_VELOCITY: noise - data}
    for case in outputs["cases"]:
        term = DenoisingPreference(case["beta"])
        loss, metrics = loss_of_pairs(term, readings, [1, 1, -1, -1], [0, 1, 0, 1])
        close(loss, case["loss"], 1e-9, "loss")
        close(torch.autograd.grad(loss, weights, retain_graph=True)[0], case["grad"], 1e-9, "gradient")
        close(metrics["policy/margin"], tensor(case["inside"]).mean(), 1e-9, "inside")
        both, _ = loss_of_pairs(replace(term, sft=0.5), readings, [1, 1, -1, -1], [0, 1, 0, 1])
        chosen = ((live - noise + data)[:2] ** 2).mean()
        close(both, loss + 0.5 * chosen, 1e-9, "with the error of the chosen")


@check(*each("flow_dpo.loss.", "beta2000", "beta100", "beta5"))
def flow_dpo(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    """Winners behind losers, with a row between that belongs to no pair."""
    winner, loser, noise = (tensor(inputs[name]) for name in ("winner", "loser", "noise"))
    leaves = [tensor(inputs[name]).requires_grad_() for name in ("v_loser", "v_winner")]
    n = len(noise)
    readings = {
        LIVE: torch.cat([leaves[0], leaves[0].detach() + 1, leaves[1]]),
        REF: torch.cat([tensor(inputs[name]) for name in ("ref_loser", "ref_loser", "ref_winner")]),
        TARGET_VELOCITY: torch.cat([noise - loser, noise - loser, noise - winner]),
    }
    sign, ids = [-1.0] * n + [0.0] * n + [1.0] * n, [*range(n)] * 3
    loss, _ = loss_of_pairs(DenoisingPreference(params["beta"]), readings, sign, ids)
    loss = loss * 3 / 2
    close(loss, outputs["loss"], tolerance, "loss")
    for found, name in zip(torch.autograd.grad(loss, leaves), ("grad_v_loser", "grad_v_winner"), strict=True):
        close(found, outputs[name], tolerance, name)


@check("dpo_denoising")
def dpo_denoising(inputs: Any, outputs: Any) -> None:
    """Errors are given: one place of a latent holds their root."""
    w, l_, ref_w, ref_l = (tensor(inputs[name]) for name in ("model_w", "model_l", "ref_w", "ref_l"))
    readings = {LIVE: torch.cat([w, l_]).sqrt()[:, None], REF: torch.cat([ref_w, ref_l]).sqrt()[:, None]}
    readings |= {TARGET_VELOCITY: torch.zeros_like(readings[LIVE])}
    n = len(w)
    for case in outputs["cases"]:
        sign, ids = [1.0] * n + [-1.0] * n, [*range(n)] * 2
        loss, metrics = loss_of_pairs(DenoisingPreference(case["beta"]), readings, sign, ids)
        close(loss, tensor(case["loss"]).mean(), what=f"loss {case['beta']}")
        close(metrics["policy/margin"], tensor(case["inside"]).mean(), what=f"inside {case['beta']}")


def pairs_of(rewards: list[float], ids: list[int]) -> list[tuple[int, int]]:
    """The best and the worst row of every group that has a pair."""
    credit = BestAgainstWorst()(column(rewards), alone(ids))
    values = torch.where(credit.keep, credit.values[:, 0], 0.0).tolist()
    found: dict[int, dict[float, int]] = {}
    for row, (group, value) in enumerate(zip(ids, values, strict=True)):
        if value:
            found.setdefault(group, {})[value] = row
    return [(pair[1.0], pair[-1.0]) for pair in found.values()]


@check(*each("flow_dpo.pairs.", "a", "ties"))
def flow_dpo_pairs(inputs: Any, outputs: Any) -> None:
    """A group of equal rewards has no pair, where the code compares its first sample with itself."""
    wanted: list[Any] = [tuple(pair) for pair in outputs["pairs"] if pair[0] != pair[1]]
    assert pairs_of(inputs["advantages"], inputs["groups"]) == wanted


@check(*each("labels.", "a", "b"))
def labels(inputs: Any, outputs: Any, tolerance: float) -> None:
    """Those that are built: of rejection fine-tuning and of pairs."""
    rewards, ids = inputs["rewards"], ids_of(inputs["prompts"])
    close(credited(BestWorst(worst=False), rewards, ids), outputs["sft"], tolerance, "sft")
    close(credited(BestWorst(), rewards, ids), outputs["dpo"], tolerance, "dpo")


@check(*each("flow_sft.loss.", "a", "b"))
def flow_sft(inputs: Any, outputs: Any, tolerance: float) -> None:
    v, target = tensor(inputs["v"]).requires_grad_(), tensor(inputs["noise"]) - tensor(inputs["data"])
    algorithm = Algorithm(((1.0, Matching()),), aggregation=SequenceMean())
    batch = make_batch(torch.ones(len(v), 1), tensor(inputs["labels"]), {TARGET_VELOCITY: target[:, None]})
    loss, metrics = algorithm.loss(weighed(algorithm, batch), {LIVE: v[:, None]})
    close(loss, outputs["loss"], tolerance, "loss")
    close(metrics["policy/matching_error"], tensor(outputs["error"]).mean(), tolerance, "error")
    close(torch.autograd.grad(loss, v)[0], outputs["grad_v"], tolerance, "gradient")
