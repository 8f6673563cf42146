"""Sigmas, steps, rollouts, windows, trees and decays against the official code of flow methods."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.ema_decay import RampDecay, WarmDecay
from mmrl.flow.dynamics import CPS, DPM2, ODE, DanceSDE, FlowSDE, Gaussian, Stochastic, Wan, euler
from mmrl.flow.integrate import Trajectory, integrate
from mmrl.flow.layout import lay_out
from mmrl.flow.path import data_of, velocity_with_guidance
from mmrl.flow.plan import RolloutPlan, StepPlan, steps_where
from mmrl.flow.schedules import RandomSubset, Tree, Window, even_splits, random_start
from mmrl.flow.sigmas import DynamicShift, LinearShift, StaticShift, timesteps, truncated_timesteps
from mmrl.flow.times import TimeSampler
from tests.numerics.registry import Vector, check, close, each, tensor
from tests.support.flow_costs import forwards
from tests.support.refused import refused

EXACT, FLOAT32 = 1e-7, 3e-6
"""Suggested with the vectors: log-probabilities of float64 references, and whatever ran in float32."""
LATENTS = 1e-6


@check(*each("schedule.sd3_shift3.T", 10, 14, 40))
def static_shift(params: Any, outputs: Any) -> None:
    spacing = StaticShift(params["shift"])
    sigmas = spacing.sigmas(spacing.grid(params["num_steps"]))
    close(sigmas, outputs["sigmas"], LATENTS)
    close(timesteps(sigmas), outputs["timesteps"], LATENTS)


@check("schedule.flux_dynamic.seq1024.T6", "schedule.flux_dynamic.seq4096.T10")
def dynamic_shift(params: Any, outputs: Any) -> None:
    spacing = DynamicShift(params["base_shift"], params["max_shift"], params["base_seq"], params["max_seq"])
    close(spacing.mu(params["image_seq_len"]), params["mu"])
    sigmas = spacing.sigmas(spacing.grid(params["num_steps"]), params["image_seq_len"])
    close(sigmas, outputs["sigmas"], LATENTS)
    close(timesteps(sigmas), outputs["timesteps"], LATENTS)


@check(*each("schedule.linear_shift3.T", 16, 20, 25))
def linear_shift(params: Any, outputs: Any) -> None:
    spacing = LinearShift(params["shift"])
    sigmas = spacing.sigmas(spacing.grid(params["num_steps"]))
    close(sigmas, outputs["sigmas"], LATENTS)
    assert truncated_timesteps(sigmas).tolist() == outputs["model_timesteps_int"]


def table(params: Any) -> tuple[Tensor, int]:
    """A table of sigmas that holds the step of a vector, and the step's index in it."""
    steps = [params["sigma"], params["sigma_next"]]
    if params["step_index"] == 0:
        return tensor(steps), 0
    before = [] if params["step_index"] == 1 else [params.get("sigma_1", 0.99)]
    return tensor([1.0, *before, *steps]), 1 + len(before)


KINDS = {"sde": FlowSDE, "cps": CPS}
"""Flow-GRPO's sde_type."""


def step(vector: Vector, dynamics: Stochastic, v: str = "v", dtype: torch.dtype = torch.float64) -> Gaussian:
    """The step's Gaussian with the velocity called `v`."""
    x = tensor(vector.inputs.get("sample", vector.inputs.get("latents"))).to(dtype)
    sigmas, index = table(vector.params)
    return dynamics.transition(x, tensor(vector.inputs[v]).to(dtype), sigmas.to(dtype), torch.full((len(x),), index))


def coefficient(vector: Vector, dynamics: CPS | DanceSDE | FlowSDE) -> Tensor:
    """`std_dev_t` of Flow-GRPO and Flow-Factory: s, but S for cps."""
    sigmas, index = table(vector.params)
    at = torch.tensor([index])
    return dynamics.deviation(sigmas, at) if isinstance(dynamics, CPS) else dynamics.diffusion(sigmas, at)


@check(*each("flow_grpo.step.sde.i", 0, 1, 4, 8, 9), *each("flow_grpo.step.cps.i", 0, 1, 4, 8, 9))
def flow_grpo_step(inputs: Any, params: Any, outputs: Any, vector: Vector) -> None:
    dynamics = KINDS[params["sde_type"]](params["noise_level"])
    for name, dtype, atol in (("f64", torch.float64, EXACT), ("f32", torch.float32, FLOAT32)):
        expected = outputs[name]
        old, new = (step(vector, dynamics, v, dtype) for v in ("v", "v_new"))
        drawn = old.draw(tensor(inputs["noise"]).to(dtype))
        assert drawn.dtype == dtype
        close(old.mean, expected["prev_mean"], max(atol, LATENTS), name)
        close(new.mean, expected["mean_new"], max(atol, LATENTS), name)
        close(coefficient(vector, dynamics), expected["std_dev_t"], FLOAT32, name)
        close(drawn, expected["prev_sample"], max(atol, LATENTS), name)
        recorded = tensor(expected["prev_sample"]).to(dtype)
        if dtype == torch.float32 and not isinstance(dynamics, CPS):
            atol = max(atol, 2e-7 / float(old.std.min()))  # a narrow density magnifies the rounding of latents
        lp, lp_new = old.log_density(recorded), new.log_density(recorded)
        close(lp, expected["log_prob"], atol, name)
        close(lp_new, expected["log_prob_new"], atol, name)
        close((lp_new - lp).exp(), expected["ratio"], max(atol, 1e-6), name)


@check("flow_grpo.step.sde.ode_noise0", "flow_grpo.step.cps.ode_noise0")
def without_noise(params: Any, outputs: Any, vector: Vector) -> None:
    cps = params["sde_type"] == "cps"
    gaussian = step(vector, KINDS[params["sde_type"]](params["noise_level"]))
    close(gaussian.mean, outputs["prev_sample"], LATENTS)
    close(gaussian.mean, outputs["euler"], LATENTS)
    if cps:
        close(gaussian.log_density(gaussian.mean), outputs["log_prob"])
        return
    assert tensor(outputs["log_prob"]).isnan().all()
    refused("no log-probability: train stochastic steps only", gaussian.log_density, gaussian.mean)


@check("flow_grpo.step.sde.mixed_batch")
def mixed_batch(inputs: Any, params: Any, outputs: Any) -> None:
    spacing, x, v = StaticShift(3.0), tensor(inputs["sample"]), tensor(inputs["v"])
    sigmas = spacing.sigmas(spacing.grid(10)).double()
    index, level = torch.tensor(params["step_indices"]), params["noise_level"]
    gaussian = FlowSDE(level).transition(x, v, sigmas, index)
    close(gaussian.mean, outputs["prev_mean"], LATENTS)
    close(FlowSDE(level).diffusion(sigmas, index), outputs["std_dev_t"], LATENTS)
    close(gaussian.draw(tensor(inputs["noise"])), outputs["prev_sample"], LATENTS)
    close(gaussian.log_density(tensor(outputs["prev_sample"])), outputs["log_prob"], EXACT)


@check(*each("flow_grpo.wan_step.i", 0, 7, 19))
def wan_step(inputs: Any, params: Any, outputs: Any) -> None:
    x, v, sigmas = tensor(inputs["sample"]), tensor(inputs["v"]), tensor(params["sigmas"])
    index = torch.full((len(x),), params["step_index"])
    gaussian, dt = Wan().transition(x, v, sigmas, index), (sigmas[index] - sigmas[index + 1])[:1]
    close(gaussian.mean, outputs["prev_mean"], LATENTS)
    close(Wan().diffusion(sigmas, index)[:1], outputs["std_dev_t"], LATENTS)
    close(dt.sqrt(), outputs["sqrt_neg_dt"], LATENTS)
    close(gaussian.draw(tensor(inputs["noise"])), outputs["prev_sample"], LATENTS)
    close(gaussian.log_density(tensor(outputs["prev_sample"])), outputs["log_prob"], EXACT)


@check(*each("mixgrpo.flow_step.i", 0, 1, 12, 22, 24))
def mixgrpo_step(inputs: Any, params: Any, outputs: Any, vector: Vector) -> None:
    gaussian = step(vector, FlowSDE(params["eta"]))
    x, v = tensor(inputs["latents"]), tensor(inputs["v"])
    sigma, sigma_next = params["sigma"], params["sigma_next"]
    close(gaussian.mean, outputs["prev_mean"], LATENTS)
    close(gaussian.std[:1], outputs["noise_std"], LATENTS)
    close(gaussian.draw(tensor(inputs["noise"])), outputs["prev_sample"], LATENTS)
    close(gaussian.log_density(tensor(outputs["prev_sample"])), outputs["log_prob"], EXACT)
    close(data_of(x, v, sigma), outputs["pred_x0"], LATENTS)
    close(euler(x, v, sigma, sigma_next), outputs["ode_prev"], LATENTS)


@check(*each("dancegrpo.step.i", 0, 1, 7, 14, 15))
def dancegrpo_step(inputs: Any, params: Any, outputs: Any, vector: Vector) -> None:
    old, new = (step(vector, DanceSDE(params["eta"]), v) for v in ("v", "v_new"))
    recorded = tensor(outputs["prev_sample"])
    close(old.mean, outputs["prev_mean"], LATENTS)
    close(old.std[0], outputs["noise_std"], LATENTS)
    close(old.draw(tensor(inputs["noise"])), recorded, LATENTS)
    x, v = tensor(inputs["latents"]), tensor(inputs["v"])
    close(data_of(x, v, params["sigma"]), outputs["pred_x0"], LATENTS)
    lp, lp_new = old.log_density(recorded), new.log_density(recorded)
    close(lp, outputs["log_prob"], EXACT)
    close(lp_new, outputs["log_prob_new"], EXACT)
    close((lp_new - lp).exp(), outputs["ratio"], 1e-6)


FLOW_FACTORY = {"Flow-SDE": FlowSDE, "Dance-SDE": DanceSDE, "CPS": CPS, "ODE": lambda level: FlowSDE(0.0)}
"""Its ODE step is the Gaussian without noise."""


@check(*(key for name in FLOW_FACTORY for key in each(f"flow_factory.step.{name}.i", 0, 4, 8)))
def flow_factory_step(inputs: Any, params: Any, outputs: Any, vector: Vector) -> None:
    dynamics = FLOW_FACTORY[params["dynamics"]](params["noise_level"])
    old, new = (step(vector, dynamics, v) for v in ("v", "v_new"))
    recorded = tensor(outputs["next"])
    close(old.mean, outputs["mean"], LATENTS)
    close(coefficient(vector, dynamics), outputs["std_dev_t"][:1], LATENTS)
    close([params["sigma_next"] - params["sigma"]], outputs["dt"][:1], LATENTS)
    close(old.draw(tensor(inputs["noise"])), recorded, LATENTS)
    if not dynamics.draws_noise:
        refused("no log-probability", old.log_density, recorded)
        return
    close(old.log_density(recorded), outputs["log_prob"], EXACT)
    close(new.log_density(recorded), outputs["log_prob_new"], EXACT)


@check("flow_factory.bf16_roundtrip")
def storage_rounds_before_the_density(inputs: Any, params: Any, outputs: Any) -> None:
    spacing, at = StaticShift(3.0), params["step_index"]
    x, v = (tensor(inputs[name]).bfloat16() for name in ("latents", "v"))
    old = FlowSDE(params["noise_level"]).transition(x, v, spacing.sigmas(spacing.grid(10)), torch.full((len(x),), at))
    stored = old.draw(tensor(inputs["noise"]).bfloat16()).bfloat16()
    close(stored.double(), outputs["next"], 0)
    close(old.log_density(stored), outputs["log_prob"], FLOAT32)
    close(old.log_density(stored), outputs["log_prob_replayed_from_bf16"], FLOAT32)


@check("tempflow.branch_step.i0", "tempflow.branch_step.i5")
def tempflow_branches(inputs: Any, params: Any, outputs: Any) -> None:
    noise = tensor(inputs["noise"])
    sigmas, at = table(params)
    branch = StepPlan(FlowSDE(params["noise_level"]), trained=True, branch=params["K"])
    plan = RolloutPlan(steps_where(2, [0], branch), shape="branches")
    found = one_step(plan, sigmas, at, tensor(inputs["trunk"]), tensor(inputs["v"]), noise)
    close(found.states[1], outputs["branches"], LATENTS)
    close(found.means[0][:1], outputs["branch_mean"], LATENTS)
    close(found.logprobs[:, 0], outputs["log_prob"], EXACT)
    close(step_std(plan, sigmas, at), outputs["noise_std"], LATENTS)
    trunk = euler(tensor(inputs["trunk"]), tensor(inputs["v"]), params["sigma"], params["sigma_next"])
    close(trunk, outputs["next_trunk_ode"], LATENTS)


def step_std(plan: RolloutPlan, sigmas: Tensor, at: int) -> Tensor:
    dynamics = plan.steps[0].dynamics
    assert isinstance(dynamics, Stochastic)
    return dynamics.deviation(sigmas, torch.tensor([at]))


def one_step(plan: RolloutPlan, sigmas: Tensor, at: int, x: Tensor, v: Tensor, noise: Tensor) -> Trajectory:
    """The plan's first step at place `at` of the table, from one latent into len(noise) children."""
    shifted = replace(plan, steps=(*[StepPlan()] * at, *plan.steps)[: len(sigmas) - 1])
    layout = lay_out(shifted, [len(noise)], [0])
    v0 = torch.zeros_like(x)
    found = integrate(shifted, sigmas, layout, lambda _, i, rows: v if i == at else v0, lambda c, rows: noise[rows] if c else x)
    return replace(found, states=found.states[at:], means=found.means[at:], logprobs=found.logprobs[:, at:])


@check("branchgrpo.split_step")
def branchgrpo_split(inputs: Any, params: Any, outputs: Any) -> None:
    noise = tensor(inputs["noises"])[:, 0]
    sigmas = tensor([params["sigma"], params["sigma_next"]])
    split = StepPlan(DanceSDE(params["eta"]), True, params["num_splits"], params["split_noise_scale"], nominal_density=True)
    plan = RolloutPlan((split,), shape="tree")
    found = one_step(plan, sigmas, 0, tensor(inputs["latents"]), tensor(inputs["v"]), noise)
    close(found.states[1], outputs["children"], LATENTS)
    close(found.logprobs[:, 0], outputs["log_prob"], EXACT)


def toy(x: Tensor, time: float, c: Tensor | float) -> Tensor:
    """The velocity of the vectors' toy model."""
    return 0.35 * x - 0.2 * time + 0.5 * c


@check(*each("flow_grpo_fast.rollout.", "sde.cfg4.5.win3", "cps.cfg1.0.win3", "sde.cfg1.0.win0"))
def fast_rollout(inputs: Any, params: Any, outputs: Any) -> None:
    first, noise = tensor(inputs["init_latents"]), tensor(inputs["noise_per_step"])
    sigmas, (start, stop) = tensor(params["sigmas"]), params["window"]
    noisy = StepPlan(KINDS[params["sde_type"]](params["noise_level"]), trained=True)
    plan = RolloutPlan(steps_where(params["num_steps"], range(start, stop), noisy))
    positive, negative = (tensor(params[name]).reshape(-1, 1, 1, 1) for name in ("cond_pos", "cond_neg"))

    def velocity(x: Tensor, i: int, rows: Tensor) -> Tensor:
        time = float(sigmas[i])
        v = toy(x, time, positive[rows])
        return (
            v
            if params["guidance_scale"] <= 1
            else velocity_with_guidance(v, toy(x, time, negative[rows]), params["guidance_scale"])
        )

    layout = lay_out(plan, [len(first)], [0])
    found = integrate(plan, sigmas, layout, velocity, lambda c, rows: (noise[c - 1] if c else first)[rows])
    window = torch.stack(found.states[start : stop + 1], dim=1)
    close(window, outputs["window_latents"], LATENTS)
    close(found.logprobs[:, start:stop], outputs["log_probs"], EXACT)
    close(sigmas[start:stop] * 1000, outputs["timesteps"], 1e-4)
    close(found.samples, outputs["final_latents"], LATENTS)
    assert not found.logprobs[:, stop:].any() and not found.logprobs[:, :start].any()


def truncated_toy(sigmas: Tensor, cond: float) -> Any:
    times = [int(t) / 1000 for t in truncated_timesteps(sigmas.float())]
    return lambda x, i, rows: toy(x, times[i], cond)


@check(*each("mixgrpo.rollout.", "null", "flash_0.4", "flash_0.2", "flash_0.4_late"))
def mixgrpo_rollout(inputs: Any, params: Any, outputs: Any) -> None:
    first = tensor(inputs["init"])
    noise, window = tensor(inputs["noise_per_sde_or_flow_step"]), params["window"]
    ratio = params.get("dpm_post_compress_ratio", 0.4) if "dpm_algorithm_type" in params else None
    size = len(window)
    schedule = Window(params["T"], size, level=params["eta"], low=window[0], high=params["T"], stride=0, flash=ratio)
    plan = schedule.at(0)
    sigmas = plan.sigmas(LinearShift(3.0)).double()
    if ratio is None:
        close(sigmas, params["sigmas"], LATENTS)
    layout = lay_out(plan, [len(first)], [0])
    found = integrate(plan, sigmas, layout, truncated_toy(sigmas, params["cond"]), lambda c, rows: noise[c - 1] if c else first)
    # with one point left the official code stops above sigma 0; we always take one step more
    stopped = ratio is not None and int((params["T"] - window[-1]) * ratio) < 2
    assert forwards(plan, 1).rollout - stopped == outputs["nfe"]
    states = torch.stack(found.states, 1)[:, : outputs["nfe"] + 1]
    close(states, outputs["latents"], LATENTS)
    close(states[:, -1], outputs["final"], LATENTS)
    close(found.logprobs[:, window], outputs["log_probs_window"], EXACT)


@check(*each("nft.rollout.", "flow", "ddim", "dpm1", "dpm2"))
def nft_rollout(inputs: Any, params: Any, outputs: Any) -> None:
    first, sigmas = tensor(inputs["init"]), tensor(params["sigmas"])
    plan = RolloutPlan((StepPlan(DPM2() if params["solver"] == "dpm2" else ODE()),) * (len(sigmas) - 1))
    layout = lay_out(plan, [len(first)], [0])
    found = integrate(plan, sigmas, layout, truncated_toy(sigmas, 0.3), lambda c, rows: first)
    close(torch.stack(found.states, 1), outputs["latents"], LATENTS)
    close(found.samples, outputs["final"], LATENTS)


@check(*each("mixgrpo.window.", "progressive_default", "flash_star_frozen", "no_overlap", "no_rollback", "decay", "exp_decay"))
def mixgrpo_window(inputs: Any, params: Any, outputs: Any) -> None:
    schedule = Window(
        num_steps=params["max_timesteps"] + 2,
        size=params["group_size"],
        move=params["sample_strategy"],
        dwell=params["iters_per_group"],
        stride=params["prog_overlap_step"] if params["prog_overlap"] else params["group_size"],
        decay=(params["max_iters_per_group"], params["min_iters_per_group"]),
        high=params["max_timesteps"],
        roll_back=params["roll_back"],
        overrun=True,
    )
    changes: list[list[Any]] = []
    for i in range(inputs["iterations"]):
        window = schedule.window(i)
        if not changes or window != changes[-1][1]:
            changes.append([i, window])
    assert changes == outputs["changes"]


@check("mixgrpo.window.random_seeded")
def mixgrpo_random_window(params: Any, outputs: Any) -> None:
    size, end = params["group_size"], params["max_timesteps"]
    for seed, window in outputs["seed_to_window"]:
        start = random_start(seed, 0, end - size)
        assert list(range(start, start + size)) == window


@check("flow_factory.sde_step_selection")
def flow_factory_subset(params: Any, outputs: Any) -> None:
    candidates, count = tuple(params["sde_steps"]), params["num_sde_steps"]
    for seed, chosen in outputs.items():
        schedule = RandomSubset(max(candidates) + 2, candidates, count, seed=0)
        assert schedule.choice(int(seed)) == chosen


@check(*each("branchgrpo.split_points.", "explicit", "rounds4", "clamped"))
def branchgrpo_splits(params: Any, outputs: Any) -> None:
    total, points = params["total_steps"], params["tree_split_points"]
    splits = even_splits(params["tree_split_rounds"], total) if points is None else given(points)
    assert list(Tree(total, splits).splits) == outputs["points"]


def given(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


@check("branchgrpo.counts")
def branchgrpo_counts(params: Any, outputs: Any) -> None:
    tree = Tree(params["T"], tuple(params["splits"]))
    found = forwards(tree.at(0), tree.group_size)
    assert (found.transitions, found.transitions + 1, found.rollout) == tuple(
        outputs[name] for name in ("edges", "nodes", "rollout_forwards")
    )
    close([found.update / found.images, found.per_image], [outputs["per_leaf_edges"], outputs["per_leaf_forwards"]])


def kept_by_depth(mask: Tensor) -> dict[str, int]:
    return {str(depth): int(count) for depth, count in enumerate(mask.sum(0).tolist(), 1) if count}


@check(*each("branchgrpo.prune.", "depth_fixed", "depth_slide", "width1"))
def branchgrpo_prune(params: Any, outputs: Any) -> None:
    tree = Tree(
        pruned_depths=given(params["depth_pruning"]) if "depth_pruning" in params else (),
        slide_every=params.get("depth_pruning_slide_interval", 0) if params.get("depth_pruning_slide") else 0,
        stop_depth=params.get("depth_pruning_stop_depth", 0),
        first_half_only=params.get("width_pruning_mode") == 1,
    )
    mask = lay_out(tree.at(params["current_step"]), [tree.group_size], [0]).trained
    assert int(mask.sum()) == outputs["kept"]
    assert kept_by_depth(mask) == outputs["kept_per_child_depth"]
    assert int(lay_out(Tree().at(0), [16], [0]).trained.sum()) == outputs["of"]


@check("flow_factory.time_sampler")
def time_sampler(params: Any, outputs: Any) -> None:
    spacing, count = StaticShift(3.0), params["num_timesteps"]
    sigmas = spacing.sigmas(spacing.grid(10))
    halves = torch.full((count,), 0.5, dtype=torch.float64)
    for name, expected in outputs.items():
        kind, _, shift = name.partition("_shift")
        reach = params["discrete_range"] if kind.startswith("discrete") else params["timestep_range"]
        sampler = TimeSampler(kind, count, float(shift or 1), reach)  # type: ignore[arg-type]
        close(1000 * sampler.strata(sigmas, halves), expected, FLOAT32, name)


@check("flow_grpo.ema")
def warm_decay(inputs: Any, params: Any, outputs: Any) -> None:
    decay = WarmDecay(params["decay"], params["update_step_interval"])
    average = inputs["init"]
    for number, after in zip(inputs["steps"], outputs["ema_after_step"], strict=True):
        average = decay(number) * average + (1 - decay(number)) * number
        close(average, after)


@check("nft.old_decay")
def ramp_decay(inputs: Any, outputs: Any) -> None:
    types = {"0": RampDecay(slope=0.0), "1": RampDecay(), "2": RampDecay(flat=75, slope=0.0075, most=0.999)}
    for name, expected in outputs.items():
        close([types[name](s) for s in inputs["steps"]], expected)
