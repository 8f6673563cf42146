"""Advantages, weights and losses of flow methods, gradients of rewards, and clips with sound, against their official code."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from mmrl.algorithms.advantages.decoupled import Decoupled, PerModality
from mmrl.algorithms.advantages.flow import BestWorst, extremes
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.tree import TreeNorm, mean_of_leaves, node_columns, path_weighted
from mmrl.algorithms.objectives.flow import FlowKL, RatioNorm, RewardGradient
from mmrl.algorithms.objectives.forward import AdvantageMatching, NegativeAware
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.pixels import with_rewards
from mmrl.algorithms.presets.flow import omninft
from mmrl.algorithms.weights.importance import InverseStep, NoiseLevel
from mmrl.core.protocols import Advantage, Term
from mmrl.core.readings import (
    DT,
    LOGPROBS,
    MEAN,
    OLD_LOGPROBS,
    PIXELS,
    ROLLOUT_LOGPROBS,
    SAMPLED_MEAN,
    SIGMA,
    STD,
    TARGET_VELOCITY,
    VELOCITY,
)
from mmrl.core.types import Batch, Counts, Prompt, Reading, Rollouts, Scores
from mmrl.flow.dynamics import FlowSDE
from mmrl.flow.layout import lay_out
from mmrl.flow.path import add_noise, data_of, velocity_of
from mmrl.flow.schedules import Tree
from mmrl.flow.surrogate import SurrogatePath, shares_of, tail_of
from tests.numerics.check_flow import kept_by_depth
from tests.numerics.registry import Vector, check, close, each, tensor
from tests.numerics.rows import blocks, credited, ids_of
from tests.support.rows import Nothing, make_batch, rollouts, scores

FLOAT32 = 3e-6


@check(*(f"flow_grpo.advantage.global_std_{s}.{shape}" for s in ("true", "false") for shape in ("1d", "per_timestep")))
def flow_grpo_advantage(inputs: Any, params: Any, outputs: Any) -> None:
    rewards, expected = tensor(inputs["rewards"]), tensor(outputs["advantages"])
    advantage = GroupNorm(scale="batch" if params["global_std"] else "group", ddof=params["ddof"], eps=params["eps"])
    by_step = zip(*(x.view(len(x), -1).unbind(1) for x in (rewards, expected)), strict=True)
    for own, wanted in by_step:
        close(credited(advantage, own, ids_of(inputs["prompts"])), wanted)


@check("flow_grpo.advantage.flat")
def flat_advantage(inputs: Any, params: Any, outputs: Any) -> None:
    rewards = inputs["rewards"]
    close(credited(GroupNorm(ddof=0, eps=params["eps"]), rewards, [0] * len(rewards)), outputs["advantages"])


@check("flow_grpo.advantage.type_sft", "flow_grpo.advantage.type_dpo")
def labels(inputs: Any, params: Any, outputs: Any) -> None:
    part, ids = BestWorst(worst=params["type"] == "dpo"), ids_of(inputs["prompts"])
    close(credited(part, inputs["rewards"], ids), outputs["labels"])


def flow_factory_advantage(inputs: Any, params: Any, outputs: Any, summed: bool) -> None:
    rewards = torch.stack([tensor(inputs[f"reward_{name}"]) for name in params["weights"]], 1)
    part: Advantage = Decoupled(
        params["ddof"], params["std_floor"], "max", whiten_eps=params["std_floor"], whiten_mode="max", zero_below=0.0
    )
    if summed:
        part = GroupNorm("batch" if params["global_std"] else "group", params["ddof"], params["std_floor"], "max")
    groups, weights = [int(i) for i in inputs["group"]], list(params["weights"].values())
    close(credited(part, rewards, groups, weights), outputs["advantages"], 1e-6)


for how in ("sum", "gdpo"):
    check(*each(f"flow_factory.advantage.{how}.global_std_", "true", "false"))(
        partial(flow_factory_advantage, summed=how == "sum")
    )


@check("dancegrpo.advantage")
def dancegrpo_advantage(inputs: Any, params: Any, outputs: Any) -> None:
    rewards = inputs["rewards"]
    close(
        credited(GroupNorm(ddof=params["ddof"], eps=params["eps"]), rewards, [0] * len(rewards)), outputs["advantages"], FLOAT32
    )


@check("dancegrpo.best_of_n")
def best_of_n(inputs: Any, params: Any, outputs: Any) -> None:
    total = params["vq_coef"] * tensor(inputs["vq_advantages"]) + params["mq_coef"] * tensor(inputs["mq_advantages"])
    top, bottom = extremes(total, params["bestofn"])
    assert (top.tolist(), bottom.tolist()) == (outputs["top"], outputs["bottom"])


@check("prefgrpo.advantage.gdpo_false", "prefgrpo.advantage.gdpo_true")
def prefgrpo_advantage(inputs: Any, params: Any, outputs: Any) -> None:
    rewards = torch.stack([tensor(inputs[name]) for name in params["weights"]], 1)
    part = Decoupled(
        params["ddof"],
        params["eps"],
        zero_below=0.0,
        whiten="rollout" if params["apply_gdpo"] else "none",
        whiten_eps=params["eps"],
    )
    groups = blocks(len(rewards), params["num_generations"])
    close(credited(part, rewards, groups, list(params["weights"].values())), outputs["advantages"], FLOAT32)


def tree_rollouts(leaf_ids: list[str], edge_log_prob: dict[str, float]) -> tuple[Rollouts, list[list[str]]]:
    """Leaves of one tree by path, and the path of every row's node after each step."""
    paths = [["/".join(leaf.split("/")[: depth + 1]) for depth in range(1, leaf.count("/") + 1)] for leaf in leaf_ids]
    flat = [path for row in paths for path in row]
    node_ids = torch.tensor([[flat.index(path) for path in row] for row in paths])
    plain = rollouts(torch.ones_like(node_ids), [0] * len(paths))
    owned = torch.stack(
        [(node_ids[:, t, None] == node_ids[:, t]).int().argmax(1) == torch.arange(len(paths)) for t in range(node_ids.shape[1])],
        1,
    )
    logprobs = tensor([[edge_log_prob[path] for path in row] for row in paths])
    shared = Rollouts(
        plain.groups, plain.group_ids, plain.sample_ids, owned, Nothing(), {ROLLOUT_LOGPROBS: logprobs.float()}, node_ids
    )
    return shared, paths


def tree_advantage(inputs: Any, params: Any, outputs: Any, fusion: Literal["mean", "path"]) -> None:
    rows, paths = tree_rollouts(inputs["leaf_ids"], inputs["edge_log_prob"])
    rewards, keep = tensor(inputs["leaf_rewards"]), torch.ones(len(paths), dtype=torch.bool)
    nodes = node_columns(rows)
    worth = mean_of_leaves(rewards, nodes, keep)
    if fusion == "path":
        worth = path_weighted(rewards, nodes, keep, rows.recorded[ROLLOUT_LOGPROBS])
    part = TreeNorm(ddof=params["std_ddof"], eps=params["eps"], zero_below=params["zero_if_std_below"], clip=None, fusion=fusion)
    found = part(scores(rewards[:, None]), rows).values
    seen = {"r"}
    close(worth[:, 0], [outputs["reward"]["r"]] * len(paths), 1e-6)
    assert outputs["advantage"]["r"] == 0
    for i, row in enumerate(paths):
        for t, path in enumerate(row):
            seen.add(path)
            close(worth[i, t + 1], outputs["reward"][path], 1e-6, path)
            close(found[i, t], outputs["advantage"][path], FLOAT32, path)
    assert seen == set(outputs["reward"]) == set(outputs["advantage"])


check("branchgrpo.tree_advantage.mean")(partial(tree_advantage, fusion="mean"))
check("branchgrpo.tree_advantage.softmax")(partial(tree_advantage, fusion="path"))


@check("branchgrpo.prune.width2")
def width_pruning(inputs: Any, params: Any, outputs: Any) -> None:
    tree, rewards = Tree(), tensor(inputs["leaf_rewards"])
    layout = lay_out(tree.at(params["current_step"]), [tree.group_size], [0])
    plain = rollouts(layout.trained, [0] * tree.group_size)
    rows = Rollouts(plain.groups, plain.group_ids, plain.sample_ids, layout.trained, Nothing(), {}, layout.node_ids)
    credit = TreeNorm(kept_chains=params["width_pruning_ratio"])(scores(rewards[:, None]), rows)
    assert credit.actions is not None
    mask = layout.trained & credit.actions
    assert (int(mask.sum()), kept_by_depth(mask)) == (outputs["kept"], outputs["kept_per_child_depth"])
    best, last = int(rewards.argmax()), int(rewards.argmin())
    assert bool(mask[best, -1]) and bool(mask[last, -1])


def term_values(term: Term, advantages: Tensor, readings: dict[Reading, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Of one action per row."""
    batch = make_batch(torch.ones(len(advantages), 1), advantages, {})
    values, infos = term(readings, batch)
    return values[:, 0], {name: info[:, 0] for name, info in infos.items()}


def of_rows(vector: Vector, name: str) -> Tensor:
    """A tensor of one action per row, (n, 1, ...)."""
    return tensor(vector.inputs[name])[:, None]


@check("flow_grpo.loss.beta0.0", "flow_grpo.loss.beta0.04")
def flow_grpo_loss(inputs: Any, params: Any, outputs: Any, vector: Vector) -> None:
    most = params["adv_clip_max"]
    advantages = tensor(inputs["advantages"])[:, params["timestep_column"]].clamp(-most, most)
    readings = {LOGPROBS: of_rows(vector, "log_prob"), OLD_LOGPROBS: of_rows(vector, "old_log_prob")}
    values, infos = term_values(Clip(params["clip_range"], params["clip_range"]), advantages, readings)
    close(infos["policy/ratio"], outputs["ratio"], 1e-6)
    close(values, torch.maximum(tensor(outputs["unclipped_loss"]), tensor(outputs["clipped_loss"])), 1e-6)
    close(values.mean(), outputs["policy_loss"], 1e-6)
    loss = values.mean()
    if "kl_loss" in outputs:
        s = torch.full((len(advantages), 1), params["std_dev_t"], dtype=torch.float64)
        means = {MEAN: of_rows(vector, "prev_mean"), MEAN._replace(model="ref"): of_rows(vector, "prev_mean_ref")}
        # S^2 / dt = s^2 for any step size: take one, and S with it
        kl, _ = term_values(FlowKL("no_dt"), advantages, {**means, STD: s * 0.3, DT: torch.full_like(s, 0.09)})
        close(kl.mean(), outputs["kl_loss"], 1e-6)
        loss = loss + params["beta"] * kl.mean()
    close(loss, outputs["loss"], 1e-6)


@check("prefgrpo.kl")
def true_kl(params: Any, outputs: Any, vector: Vector) -> None:
    means = {MEAN: of_rows(vector, "mean"), MEAN._replace(model="ref"): of_rows(vector, "mean_ref")}
    n = len(means[MEAN])
    std = torch.full((n, 1), params["noise_scale_ref"], dtype=torch.float64)
    kl, _ = term_values(FlowKL("true"), torch.zeros(n), {**means, STD: std})
    close(kl.mean(), outputs["kl"], FLOAT32)


@check("grpo_guard.flow_grpo", "grpo_guard.flow_factory", *each("grpo_guard.pref_grpo.", "flow_negative_dt", "dance_positive_dt"))
def ratio_norm(inputs: Any, params: Any, outputs: Any, vector: Vector) -> None:
    of_the_batch, reweighted = "ratio_mean_bias" in outputs, isinstance(params["clip_range"], float)
    dt = params["sqrt_neg_dt"] ** 2 if "sqrt_neg_dt" in params else abs(params["dt"])
    std = params["noise_scale"] if "noise_scale" in params else params["std_dev_t"] * dt**0.5
    clip = params["clip_range"] if reweighted else params["clip_range"][1]
    advantages = tensor(inputs["adv"])
    full = torch.ones(len(advantages), 1, dtype=torch.float64)
    readings = {
        LOGPROBS: of_rows(vector, "log_prob"),
        OLD_LOGPROBS: of_rows(vector, "old_log_prob"),
        MEAN: of_rows(vector, "mean"),
        SAMPLED_MEAN: of_rows(vector, "mean_old"),
        STD: std * full,
        DT: dt * full,
    }
    values, infos = term_values(RatioNorm(clip, clip, "batch" if of_the_batch else "row"), advantages, readings)
    close(infos["policy/ratio"], outputs["ratio"], 1e-6)
    if of_the_batch:
        gap = (readings[MEAN] - readings[SAMPLED_MEAN]) ** 2
        close(gap.mean() / (2 * std**2), outputs["ratio_mean_bias"], 1e-6)
    if reweighted:
        batch = make_batch(full, advantages, {DT: dt * full})
        values = values * InverseStep()(batch, Counts(1, 1, 1))[:, 0]
    close(values.mean(), outputs["policy_loss"], FLOAT32)


@check("tempflow.weights.sd3_T10", "tempflow.weights.flux1024_T10")
def noise_level_weights(params: Any, outputs: Any) -> None:
    sigmas = tensor(params["sigmas"])
    steps = len(sigmas) - 1
    std = FlowSDE(params["noise_level"]).deviation(sigmas, torch.arange(steps))
    close(std, outputs["std_sqrt_dt"], 1e-6)
    close(std * params["C"], outputs["weight"], 1e-6)
    trained = torch.cat([std[:-1], torch.zeros(1, dtype=torch.float64)])[None]
    batch = make_batch(trained > 0, torch.zeros(1), {STD: trained})
    found = NoiseLevel()(Batch(batch.rollouts, trained, trained, trained, batch.frozen), Counts(1, 1, 1))[0]
    close(found[:-1], std[:-1] * outputs["inverse_mean_over_first_T_minus_1"], 1e-6)
    close(found[:-1], outputs["weight"][:-1], 3e-3, "the paper's constant to three digits")


@check(
    "nft.loss.beta1.0.all",
    "nft.loss.beta0.1.all",
    *each("nft.loss.beta1.0.", "positive_only", "negative_only", "one_only", "binary"),
)
def negative_aware(inputs: Any, params: Any, outputs: Any, vector: Vector) -> None:
    x0, noise, t = of_rows(vector, "x0"), of_rows(vector, "noise"), tensor(params["t"])
    readings = {
        VELOCITY: of_rows(vector, "v_new"),
        VELOCITY._replace(model="ema"): of_rows(vector, "v_old"),
        VELOCITY._replace(model="ref"): of_rows(vector, "v_ref"),
        TARGET_VELOCITY: velocity_of(x0, noise),
        SIGMA: t[:, None],
    }
    most, beta, advantages = float(params["adv_clip_max"]), params["beta"], tensor(inputs["advantage"])
    term = NegativeAware(beta, most, params["adv_mode"])
    values, infos = term_values(term, advantages, readings)
    close(infos["policy/goodness"], outputs["r"])
    close(values / most, outputs["per_sample"], 1e-6)
    old, new = readings[VELOCITY._replace(model="ema")], readings[VELOCITY]
    x_t = add_noise(x0[:, 0], noise[:, 0], t)
    extreme = torch.full_like(advantages, most)
    for sign, loss, weight in ((1, "positive_loss", "weight_pos"), (-1, "negative_loss", "weight_neg")):
        alone, _ = term_values(NegativeAware(beta, most), sign * extreme, readings)
        close(alone * beta / most, outputs[loss], 1e-6, loss)
        v = (old + sign * beta * (new - old))[:, 0]
        gap = data_of(x_t, v, t) - x0[:, 0]
        close((gap**2).flatten(1).mean(1) / tensor(outputs[loss]), tensor(outputs[weight]).flatten(), 1e-6, weight)
    kl, _ = term_values(FlowKL("velocity_mse"), advantages, readings)
    close(kl.mean(), outputs["kl"], 1e-6)
    close(values.mean() + params["kl_beta"] * kl.mean(), outputs["loss"], 1e-6)


@check("awm.log_prob", "awm.log_prob.flow_factory")
def matching_score(params: Any, outputs: Any, vector: Vector) -> None:
    target, t = velocity_of(of_rows(vector, "x0"), of_rows(vector, "noise")), tensor(params["t"])
    names = {"Uniform": "uniform", "t": "t", "t**2": "t2", "huber": "huber", "ghuber": "ghuber"}
    exact = "elbo_std" in outputs
    for name, expected in outputs["log_prob"].items():
        term = AdvantageMatching(names[name], params.get("ghuber_power", 0.25))  # type: ignore[arg-type]
        close(term.score(of_rows(vector, "v"), target, t[:, None])[:, 0], expected, 1e-7 if exact else FLOAT32, name)
    if exact:
        sigmas = torch.cat([t, torch.zeros(1, dtype=torch.float64)])
        close(FlowSDE(0.7).diffusion(sigmas, torch.arange(len(t))), outputs["elbo_std"], 1e-7)


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


@check(*each("reward_gradient.draft_refl.", "a", "b"))
def draft_and_refl(params: Any, outputs: Any, tolerance: float, vector: Vector) -> None:
    toy, count = Toy(vector), params["T"]
    for name, out in outputs.items():
        if name == "refl":
            x, t = toy.states[out["step"]], toy.sigmas[out["step"]]
            end = x - t * toy.velocity(x, t)
        else:
            path = SurrogatePath("draft", steps=int(name.removeprefix("draft_")))
            active, through = path.choose(count, torch.Generator())
            steps = active.nonzero()[:, 0].tolist()
            end = toy.end(path, steps, {step: float(through[step]) for step in steps})
        close(end, out["x0"], tolerance, f"{name} x0")
        toy.agrees(end, out, tolerance, name)


@check(*each("reward_gradient.flowbp_sparse.", "a", "b"))
def sparse(inputs: Any, outputs: Any, tolerance: float, vector: Vector) -> None:
    toy = Toy(vector)
    for name, out in outputs.items():
        steps, rescale = name.split(".rescale")
        end = toy.end(SurrogatePath("sparse", rescale=float(rescale)), map(int, steps.split("-")), {})
        close(end, inputs["x0"], tolerance, "the rollout's value")
        toy.agrees(end, out, tolerance, name)


@check(*each("reward_gradient.flowbp_bridge.", "a", "b"))
def bridge(params: Any, outputs: Any, tolerance: float, vector: Vector) -> None:
    toy, steps = Toy(vector), range(params["T"])
    for name, out in outputs.items():
        joint, alpha = name.removeprefix("j").split(".alpha")
        end = toy.end(SurrogatePath("bridge", rescale=0.0), steps, {int(joint): float(alpha)})
        toy.agrees(end, out, tolerance, name)


@check("reward_gradient.flowbp_bridge.two_steps")
def bridge_of_two_steps(outputs: Any, tolerance: float, vector: Vector) -> None:
    """Full backpropagation, which is DRaFT with all steps."""
    toy = Toy(vector)
    for path in (SurrogatePath("bridge", alpha=1.0), SurrogatePath("draft", steps=2)):
        end = toy.end(path, range(2), {1: 1.0})
        close(end, outputs["x0"], tolerance, "x0")
        toy.agrees(end, dict(outputs), tolerance, path.kind)


@check("reward_gradient.flowbp_choices")
def choices(inputs: Any, outputs: Any) -> None:
    """Those of Sparse, Bridge and the last steps; supports are Lagrange's, which is not built."""
    assert [list(shares_of(*case)) for case in inputs["alloc"]] == outputs["alloc"]
    assert [[tail_of(int(count), share), count] for count, share in inputs["tail"]] == outputs["tail"]


class Given:
    """Scores that are there already, on the first pixel."""

    def of_pixels(self, pixels: Tensor, prompts: list[Prompt]) -> Tensor:
        return pixels[:, 0, 0, 0]


@check("reward_gradient.hinge")
def hinge(inputs: Any, params: Any, outputs: Any) -> None:
    rewards = tensor(inputs["rewards"])
    ((_, term),) = with_rewards(((1.0, RewardGradient(top=params["top"])),), [("given", 1.0, Given())])
    pixels = rewards[:, None, None, None].expand(-1, 3, 2, 2).clone().requires_grad_()
    values, _ = term({PIXELS: pixels}, make_batch(torch.ones(len(rewards), 2), torch.zeros(len(rewards)), {}))
    close(values[:, 0], outputs["loss_per_row"], 1e-6, "loss")
    close(params["scale"] * values.mean(), outputs["loss"], 1e-6, "mean")


OF_CLIP = ("videoalign_score", "hpsv3_score_video")
OF_SOUND = ("audiobox_aesthetics_score", "clap_score")
"""Of vectors that do not say theirs."""


def told(vector: Vector) -> tuple[PerModality, Rollouts, Scores]:
    """The preset's advantage with the vector's numbers, and its samples."""
    inputs, params = vector.inputs, vector.params
    names = list(params["weights"])
    values = torch.stack([tensor(inputs["rewards"][name]) for name in names], 1)
    ids = [sorted(set(inputs["prompts"])).index(one) for one in inputs["prompts"]]
    made = replace(scores(values, list(params["weights"].values())), names=tuple(names))
    part = omninft.advantage
    assert isinstance(part, PerModality)
    scale = params.get("deviation", params.get("scale"))
    assert part.each == replace(part.each, scale=scale, ddof=params["ddof"], eps=params["eps"], whiten="none")
    known = {"of_clip": params.get("of_video", OF_CLIP), "of_sound": params.get("of_audio", OF_SOUND)}
    return replace(part, **{key: tuple(own) for key, own in known.items()}), rollouts(torch.ones(len(ids), 2), ids), made


def both(part: PerModality, rows: Rollouts, made: Scores) -> tuple[Tensor, Tensor]:
    part = replace(part, **{key: tuple(n for n in getattr(part, key) if n in made.names) for key in ("of_clip", "of_sound")})
    return part(made, rows).values[:, 0], part.of_the_sound(made, rows)[:, 1]


@check("omninft.route.a", "omninft.route.b")
def routes(outputs: Any, tolerance: float, vector: Vector) -> None:
    clip, sound = both(*told(vector))
    close(clip, outputs["advantage_video"], tolerance, "clip")
    close(sound, outputs["advantage_audio"], tolerance, "sound")


@check("omninft.advantages")
def advantages(outputs: Any, tolerance: float, vector: Vector) -> None:
    part, rows, made = told(vector)
    clip, sound = both(part, rows, made)
    close(clip, outputs["video"], tolerance, "clip")
    close(sound, outputs["audio"], tolerance, "sound")
    close(part.each(made, rows).values[:, 0], outputs["shared"], tolerance, "shared")
    for k, name in enumerate(made.names):
        alone = Scores((name,), made.values[:, k : k + 1], made.status[:, k : k + 1], made.weights.new_ones(1))
        close(part.each(alone, rows).values[:, 0], outputs["each"][name], tolerance, name)


@check("omninft.loss.video", "omninft.loss.weighted")
def losses(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    """Its advantages are those of tokens, all of whose elements share them, and rows are actions; times are 1."""
    term = omninft.objective[0][1]
    assert isinstance(term, NegativeAware) and (term.beta, term.clip, term.parts) == (params["beta"], params["adv_clip"], True)
    data, old = (tensor(inputs[name])[:, None] for name in ("data", "data_old"))
    live = tensor(inputs["data_policy"])[:, None].requires_grad_()
    r = term.goodness(tensor(inputs["advantages"])[:, None])
    close(r[:, 0], outputs["goodness"], tolerance, "goodness")
    each = term.pulls(live, old, data, r, torch.ones(len(data), 1, dtype=torch.float64))[:, 0]
    weights: Any = tensor(inputs["region_weights"])[..., None].expand_as(each)
    rows = (each * weights).sum((1, 2)) / weights.sum((1, 2))
    close(rows, outputs["policy_per_row"], tolerance, "rows")
    close(rows.mean(), outputs["loss"], tolerance, "loss")
    (gradient,) = torch.autograd.grad(rows.mean(), live)
    close(gradient[:, 0], outputs["grad_data_policy"], tolerance, "gradient")
