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
def flow_grpo_advantage(vector: Vector) -> None:
    p, rewards, expected = vector.params, tensor(vector.inputs["rewards"]), tensor(vector.outputs["advantages"])
    advantage = GroupNorm(scale="batch" if p["global_std"] else "group", ddof=p["ddof"], eps=p["eps"])
    by_step = zip(*(x.view(len(x), -1).unbind(1) for x in (rewards, expected)), strict=True)
    for own, wanted in by_step:
        close(credited(advantage, own, ids_of(vector.inputs["prompts"])), wanted)


@check("flow_grpo.advantage.flat")
def flat_advantage(vector: Vector) -> None:
    rewards = vector.inputs["rewards"]
    close(credited(GroupNorm(ddof=0, eps=vector.params["eps"]), rewards, [0] * len(rewards)), vector.outputs["advantages"])


@check("flow_grpo.advantage.type_sft", "flow_grpo.advantage.type_dpo")
def labels(vector: Vector) -> None:
    part, ids = BestWorst(worst=vector.params["type"] == "dpo"), ids_of(vector.inputs["prompts"])
    close(credited(part, vector.inputs["rewards"], ids), vector.outputs["labels"])


def flow_factory_advantage(vector: Vector, summed: bool) -> None:
    p, inputs = vector.params, vector.inputs
    rewards = torch.stack([tensor(inputs[f"reward_{name}"]) for name in p["weights"]], 1)
    part: Advantage = Decoupled(p["ddof"], p["std_floor"], "max", whiten_eps=p["std_floor"], whiten_mode="max", zero_below=0.0)
    if summed:
        part = GroupNorm("batch" if p["global_std"] else "group", p["ddof"], p["std_floor"], "max")
    groups, weights = [int(i) for i in inputs["group"]], list(p["weights"].values())
    close(credited(part, rewards, groups, weights), vector.outputs["advantages"], 1e-6)


for how in ("sum", "gdpo"):
    check(*each(f"flow_factory.advantage.{how}.global_std_", "true", "false"))(
        partial(flow_factory_advantage, summed=how == "sum")
    )


@check("dancegrpo.advantage")
def dancegrpo_advantage(vector: Vector) -> None:
    rewards, p = vector.inputs["rewards"], vector.params
    close(credited(GroupNorm(ddof=p["ddof"], eps=p["eps"]), rewards, [0] * len(rewards)), vector.outputs["advantages"], FLOAT32)


@check("dancegrpo.best_of_n")
def best_of_n(vector: Vector) -> None:
    p, inputs = vector.params, vector.inputs
    total = p["vq_coef"] * tensor(inputs["vq_advantages"]) + p["mq_coef"] * tensor(inputs["mq_advantages"])
    top, bottom = extremes(total, p["bestofn"])
    assert (top.tolist(), bottom.tolist()) == (vector.outputs["top"], vector.outputs["bottom"])


@check("prefgrpo.advantage.gdpo_false", "prefgrpo.advantage.gdpo_true")
def prefgrpo_advantage(vector: Vector) -> None:
    p = vector.params
    rewards = torch.stack([tensor(vector.inputs[name]) for name in p["weights"]], 1)
    part = Decoupled(p["ddof"], p["eps"], zero_below=0.0, whiten="rollout" if p["apply_gdpo"] else "none", whiten_eps=p["eps"])
    groups = blocks(len(rewards), p["num_generations"])
    close(credited(part, rewards, groups, list(p["weights"].values())), vector.outputs["advantages"], FLOAT32)


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


def tree_advantage(vector: Vector, fusion: Literal["mean", "path"]) -> None:
    p, expected = vector.params, vector.outputs
    rows, paths = tree_rollouts(vector.inputs["leaf_ids"], vector.inputs["edge_log_prob"])
    rewards, keep = tensor(vector.inputs["leaf_rewards"]), torch.ones(len(paths), dtype=torch.bool)
    nodes = node_columns(rows)
    worth = mean_of_leaves(rewards, nodes, keep)
    if fusion == "path":
        worth = path_weighted(rewards, nodes, keep, rows.recorded[ROLLOUT_LOGPROBS])
    part = TreeNorm(ddof=p["std_ddof"], eps=p["eps"], zero_below=p["zero_if_std_below"], clip=None, fusion=fusion)
    found = part(scores(rewards[:, None]), rows).values
    seen = {"r"}
    close(worth[:, 0], [expected["reward"]["r"]] * len(paths), 1e-6)
    assert expected["advantage"]["r"] == 0
    for i, row in enumerate(paths):
        for t, path in enumerate(row):
            seen.add(path)
            close(worth[i, t + 1], expected["reward"][path], 1e-6, path)
            close(found[i, t], expected["advantage"][path], FLOAT32, path)
    assert seen == set(expected["reward"]) == set(expected["advantage"])


check("branchgrpo.tree_advantage.mean")(partial(tree_advantage, fusion="mean"))
check("branchgrpo.tree_advantage.softmax")(partial(tree_advantage, fusion="path"))


@check("branchgrpo.prune.width2")
def width_pruning(vector: Vector) -> None:
    tree, rewards = Tree(), tensor(vector.inputs["leaf_rewards"])
    layout = lay_out(tree.at(vector.params["current_step"]), [tree.group_size], [0])
    plain = rollouts(layout.trained, [0] * tree.group_size)
    rows = Rollouts(plain.groups, plain.group_ids, plain.sample_ids, layout.trained, Nothing(), {}, layout.node_ids)
    credit = TreeNorm(kept_chains=vector.params["width_pruning_ratio"])(scores(rewards[:, None]), rows)
    assert credit.actions is not None
    mask = layout.trained & credit.actions
    assert (int(mask.sum()), kept_by_depth(mask)) == (vector.outputs["kept"], vector.outputs["kept_per_child_depth"])
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
def flow_grpo_loss(vector: Vector) -> None:
    p, out = vector.params, vector.outputs
    most = p["adv_clip_max"]
    advantages = tensor(vector.inputs["advantages"])[:, p["timestep_column"]].clamp(-most, most)
    readings = {LOGPROBS: of_rows(vector, "log_prob"), OLD_LOGPROBS: of_rows(vector, "old_log_prob")}
    values, infos = term_values(Clip(p["clip_range"], p["clip_range"]), advantages, readings)
    close(infos["policy/ratio"], out["ratio"], 1e-6)
    close(values, torch.maximum(tensor(out["unclipped_loss"]), tensor(out["clipped_loss"])), 1e-6)
    close(values.mean(), out["policy_loss"], 1e-6)
    loss = values.mean()
    if "kl_loss" in out:
        s = torch.full((len(advantages), 1), p["std_dev_t"], dtype=torch.float64)
        means = {MEAN: of_rows(vector, "prev_mean"), MEAN._replace(model="ref"): of_rows(vector, "prev_mean_ref")}
        # S^2 / dt = s^2 for any step size: take one, and S with it
        kl, _ = term_values(FlowKL("no_dt"), advantages, {**means, STD: s * 0.3, DT: torch.full_like(s, 0.09)})
        close(kl.mean(), out["kl_loss"], 1e-6)
        loss = loss + p["beta"] * kl.mean()
    close(loss, out["loss"], 1e-6)


@check("prefgrpo.kl")
def true_kl(vector: Vector) -> None:
    means = {MEAN: of_rows(vector, "mean"), MEAN._replace(model="ref"): of_rows(vector, "mean_ref")}
    n = len(means[MEAN])
    std = torch.full((n, 1), vector.params["noise_scale_ref"], dtype=torch.float64)
    kl, _ = term_values(FlowKL("true"), torch.zeros(n), {**means, STD: std})
    close(kl.mean(), vector.outputs["kl"], FLOAT32)


@check("grpo_guard.flow_grpo", "grpo_guard.flow_factory", *each("grpo_guard.pref_grpo.", "flow_negative_dt", "dance_positive_dt"))
def ratio_norm(vector: Vector) -> None:
    p, out = vector.params, vector.outputs
    of_the_batch, reweighted = "ratio_mean_bias" in out, isinstance(p["clip_range"], float)
    dt = p["sqrt_neg_dt"] ** 2 if "sqrt_neg_dt" in p else abs(p["dt"])
    std = p["noise_scale"] if "noise_scale" in p else p["std_dev_t"] * dt**0.5
    clip = p["clip_range"] if reweighted else p["clip_range"][1]
    advantages = tensor(vector.inputs["adv"])
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
    close(infos["policy/ratio"], out["ratio"], 1e-6)
    if of_the_batch:
        gap = (readings[MEAN] - readings[SAMPLED_MEAN]) ** 2
        close(gap.mean() / (2 * std**2), out["ratio_mean_bias"], 1e-6)
    if reweighted:
        batch = make_batch(full, advantages, {DT: dt * full})
        values = values * InverseStep()(batch, Counts(1, 1, 1))[:, 0]
    close(values.mean(), out["policy_loss"], FLOAT32)


@check("tempflow.weights.sd3_T10", "tempflow.weights.flux1024_T10")
def noise_level_weights(vector: Vector) -> None:
    sigmas, out = tensor(vector.params["sigmas"]), vector.outputs
    steps = len(sigmas) - 1
    std = FlowSDE(vector.params["noise_level"]).deviation(sigmas, torch.arange(steps))
    close(std, out["std_sqrt_dt"], 1e-6)
    close(std * vector.params["C"], out["weight"], 1e-6)
    trained = torch.cat([std[:-1], torch.zeros(1, dtype=torch.float64)])[None]
    batch = make_batch(trained > 0, torch.zeros(1), {STD: trained})
    found = NoiseLevel()(Batch(batch.rollouts, trained, trained, trained, batch.frozen), Counts(1, 1, 1))[0]
    close(found[:-1], std[:-1] * out["inverse_mean_over_first_T_minus_1"], 1e-6)
    close(found[:-1], out["weight"][:-1], 3e-3, "the paper's constant to three digits")


@check(
    "nft.loss.beta1.0.all",
    "nft.loss.beta0.1.all",
    *each("nft.loss.beta1.0.", "positive_only", "negative_only", "one_only", "binary"),
)
def negative_aware(vector: Vector) -> None:
    p, out = vector.params, vector.outputs
    x0, noise, t = of_rows(vector, "x0"), of_rows(vector, "noise"), tensor(p["t"])
    readings = {
        VELOCITY: of_rows(vector, "v_new"),
        VELOCITY._replace(model="ema"): of_rows(vector, "v_old"),
        VELOCITY._replace(model="ref"): of_rows(vector, "v_ref"),
        TARGET_VELOCITY: velocity_of(x0, noise),
        SIGMA: t[:, None],
    }
    most, beta, advantages = float(p["adv_clip_max"]), p["beta"], tensor(vector.inputs["advantage"])
    term = NegativeAware(beta, most, p["adv_mode"])
    values, infos = term_values(term, advantages, readings)
    close(infos["policy/goodness"], out["r"])
    close(values / most, out["per_sample"], 1e-6)
    old, new = readings[VELOCITY._replace(model="ema")], readings[VELOCITY]
    x_t = add_noise(x0[:, 0], noise[:, 0], t)
    extreme = torch.full_like(advantages, most)
    for sign, loss, weight in ((1, "positive_loss", "weight_pos"), (-1, "negative_loss", "weight_neg")):
        alone, _ = term_values(NegativeAware(beta, most), sign * extreme, readings)
        close(alone * beta / most, out[loss], 1e-6, loss)
        v = (old + sign * beta * (new - old))[:, 0]
        gap = data_of(x_t, v, t) - x0[:, 0]
        close((gap**2).flatten(1).mean(1) / tensor(out[loss]), tensor(out[weight]).flatten(), 1e-6, weight)
    kl, _ = term_values(FlowKL("velocity_mse"), advantages, readings)
    close(kl.mean(), out["kl"], 1e-6)
    close(values.mean() + p["kl_beta"] * kl.mean(), out["loss"], 1e-6)


@check("awm.log_prob", "awm.log_prob.flow_factory")
def matching_score(vector: Vector) -> None:
    p = vector.params
    target, t = velocity_of(of_rows(vector, "x0"), of_rows(vector, "noise")), tensor(p["t"])
    names = {"Uniform": "uniform", "t": "t", "t**2": "t2", "huber": "huber", "ghuber": "ghuber"}
    exact = "elbo_std" in vector.outputs
    for name, expected in vector.outputs["log_prob"].items():
        term = AdvantageMatching(names[name], p.get("ghuber_power", 0.25))  # type: ignore[arg-type]
        close(term.score(of_rows(vector, "v"), target, t[:, None])[:, 0], expected, 1e-7 if exact else FLOAT32, name)
    if exact:
        sigmas = torch.cat([t, torch.zeros(1, dtype=torch.float64)])
        close(FlowSDE(0.7).diffusion(sigmas, torch.arange(len(t))), vector.outputs["elbo_std"], 1e-7)


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


@check(*each("reward_gradient.flowbp_sparse.", "a", "b"))
def sparse(vector: Vector) -> None:
    toy = Toy(vector)
    for name, out in vector.outputs.items():
        steps, rescale = name.split(".rescale")
        end = toy.end(SurrogatePath("sparse", rescale=float(rescale)), map(int, steps.split("-")), {})
        close(end, vector.inputs["x0"], vector.tolerance, "the rollout's value")
        toy.agrees(end, out, vector.tolerance, name)


@check(*each("reward_gradient.flowbp_bridge.", "a", "b"))
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
def routes(vector: Vector) -> None:
    clip, sound = both(*told(vector))
    close(clip, vector.outputs["advantage_video"], vector.tolerance, "clip")
    close(sound, vector.outputs["advantage_audio"], vector.tolerance, "sound")


@check("omninft.advantages")
def advantages(vector: Vector) -> None:
    part, rows, made = told(vector)
    clip, sound = both(part, rows, made)
    close(clip, vector.outputs["video"], vector.tolerance, "clip")
    close(sound, vector.outputs["audio"], vector.tolerance, "sound")
    close(part.each(made, rows).values[:, 0], vector.outputs["shared"], vector.tolerance, "shared")
    for k, name in enumerate(made.names):
        alone = Scores((name,), made.values[:, k : k + 1], made.status[:, k : k + 1], made.weights.new_ones(1))
        close(part.each(alone, rows).values[:, 0], vector.outputs["each"][name], vector.tolerance, name)


@check("omninft.loss.video", "omninft.loss.weighted")
def losses(vector: Vector) -> None:
    """Its advantages are those of tokens, all of whose elements share them, and rows are actions; times are 1."""
    inputs, params = vector.inputs, vector.params
    term = omninft.objective[0][1]
    assert isinstance(term, NegativeAware) and (term.beta, term.clip, term.parts) == (params["beta"], params["adv_clip"], True)
    data, old = (tensor(inputs[name])[:, None] for name in ("data", "data_old"))
    live = tensor(inputs["data_policy"])[:, None].requires_grad_()
    r = term.goodness(tensor(inputs["advantages"])[:, None])
    close(r[:, 0], vector.outputs["goodness"], vector.tolerance, "goodness")
    each = term.pulls(live, old, data, r, torch.ones(len(data), 1, dtype=torch.float64))[:, 0]
    weights: Any = tensor(inputs["region_weights"])[..., None].expand_as(each)
    rows = (each * weights).sum((1, 2)) / weights.sum((1, 2))
    close(rows, vector.outputs["policy_per_row"], vector.tolerance, "rows")
    close(rows.mean(), vector.outputs["loss"], vector.tolerance, "loss")
    (gradient,) = torch.autograd.grad(rows.mean(), live)
    close(gradient[:, 0], vector.outputs["grad_data_policy"], vector.tolerance, "gradient")
