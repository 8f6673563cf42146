"""Thoughts, turns and pairs: when and how long to think, credit by turn, and methods of agents, against their code or formula."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmrl import Box
from mmrl.algorithms.advantages.group import BySign, GroupNorm
from mmrl.algorithms.advantages.segments import HGPO, AboveReference, BudgetRelative, GiGPO, WithinBudgets
from mmrl.algorithms.advantages.tree import PrefixValues, TreeValues
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.given import Preference
from mmrl.algorithms.objectives.regression import ValueFit
from mmrl.algorithms.objectives.surrogates import Clip, Dro, EvenStart
from mmrl.algorithms.planners.replay import Kept, ReplaySuccess
from mmrl.algorithms.planners.segments import is_begun_again, turn_entropy
from mmrl.algorithms.presets.thinking import kimi_k15, thinkless
from mmrl.algorithms.presets.turns import geometry_zero, mobile_agent_v3, ui_s1
from mmrl.algorithms.samplers.learned import nearest
from mmrl.algorithms.shaping.thinking import BudgetReward, LengthBudget, ModePays, ShorterIsBetter, WhereToolsHelp
from mmrl.algorithms.turns import Turns, TurnTable, returns_of
from mmrl.algorithms.weights.aggregate import FirstApart, SequenceMean, TokenMean, TurnMean
from mmrl.core.readings import LOGPROBS, MEAN_REWARD, OLD_LOGPROBS, VALUE
from mmrl.core.samples import segments_of, turn_ids
from mmrl.core.types import Batch, Counts, Group, Prompt, Rollouts, Sample, StoredRow
from mmrl.policies.text.read.evaluate import token_values
from tests.numerics.check_rewards import shipped
from tests.numerics.registry import check, close, tensor
from tests.numerics.rows import alone, blocks, close_loss, column, credited, up_to
from tests.support.episodes import Said, episode, per_turn, rollouts_of, scores_of
from tests.support.rows import make_batch, rollouts, weighed_loss, with_columns, with_fields


def signs(params: Any) -> dict[str, BySign]:
    small = params["lambda"]
    return {"positive": BySign(1.0, 0.0), "negative": BySign(0.0, -1.0), "weighted": BySign(small, -1.0)}


@check("w_reinforce.advantages")
def w_reinforce_advantages(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    rewards, index = inputs["rewards"], inputs["index"]
    for name, part in signs(params).items():
        found = part(column(rewards), alone(index))
        close(found.values[:, 0], outputs[name]["advantages"], tolerance, name)
        assert found.keep.tolist() == outputs[name]["kept"], name
        taught = [bool(found.keep[torch.tensor(index) == group].any()) for group in dict.fromkeys(index)]
        assert taught == outputs["teaches"][name], name
    spread = GroupNorm()(column(rewards), alone(index)).values[:, 0]
    assert [bool(spread[torch.tensor(index) == group].any()) for group in dict.fromkeys(index)] == next(
        taught for name, taught in outputs["teaches"].items() if name.startswith("spread")
    )


@check("w_reinforce.loss")
def w_reinforce_loss(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    clip = params["clip"]
    new, old = tensor(inputs["new"]), tensor(inputs["old"])
    mask = up_to(inputs["lengths"], new.shape[1])
    algorithm = Algorithm(objective=((1.0, Clip(clip, clip)),), aggregation=TokenMean())
    for name, part in signs(params).items():
        credit = part(column(inputs["rewards"]), rollouts(mask))
        batch = make_batch(mask & credit.keep[:, None], credit.values, {OLD_LOGPROBS: old})
        close_loss(algorithm, batch, {LOGPROBS: new}, outputs[name], tolerance, name)


@check("tempo.advantages", "treerl.advantages")
def of_prefixes(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    tokens = inputs["tokens"]
    part = PrefixValues(eps=params["eps"]) if "eps" in params else TreeValues()
    assert params.get("ddof", 1) == 1
    rows = with_fields(rollouts(up_to(list(map(len, tokens)))), token_ids=list(map(tuple, tokens)))
    found = part(column(inputs["rewards"]), rows)
    for row, expected in zip(found.values, outputs["advantages"], strict=True):
        close(row[: len(expected)], expected, tolerance)
        assert not row[len(expected) :].any()


def in_parts(index: Sequence[int], parts: Sequence[Any], mask: Tensor | None = None, **columns: Sequence[float]) -> Rollouts:
    """Rows of the groups `index`, whose samples are numbered part by part: parts in the order of their names."""
    rows = rollouts(torch.ones(len(index), 1) if mask is None else mask, index)
    ids, places = [0] * len(index), list(dict.fromkeys(index))
    for group in places:
        own = sorted((i for i, one in enumerate(index) if one == group), key=lambda i: parts[i])
        for number, i in enumerate(own):
            ids[i] = number
    rows = replace(rows, sample_ids=torch.tensor(ids))
    return with_columns(rows, **columns) if columns else rows


@check("adaptthink.advantages")
def adaptthink_advantages(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    parts = [not short for short in inputs["begun_without_thought"]]
    rows = in_parts(inputs["index"], parts, reference_accuracy=inputs["reference_accuracy"])
    found = credited(AboveReference(delta=params["delta"]), inputs["right"], rows)
    close(found, outputs["advantages"], tolerance)


@check("adaptthink.loss")
def adaptthink_loss(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    low, high = params["clip"]
    new, old, short = tensor(inputs["new"]), tensor(inputs["old"]), inputs["begun_without_thought"]
    mask = up_to(inputs["lengths"], new.shape[1])
    index = [sum(one == own for one in short[:i]) for i, own in enumerate(short)]
    batch = make_batch(in_parts(index, [not one for one in short], mask), tensor(inputs["advantages"]), {OLD_LOGPROBS: old})
    algorithm = Algorithm(objective=((1.0, EvenStart(low, high, params["share_without"])),))
    assert params["aggregation"] == "rows"
    close_loss(algorithm, batch, {LOGPROBS: new}, outputs, tolerance)


@check("thinkless.rewards")
def thinkless_rewards(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    part = ModePays(short_right=params["short"], think_right=params["think"], wrong=params["wrong"])
    words = {"short": part.short, "think": part.think, "neither": ""}
    rows = saying([f"{words[mode]} so" for mode in inputs["mode"]])
    shaped = part(column(inputs["right"]), rows, {})
    close(shaped.total(), outputs["rewards"], tolerance)


def saying(texts: Sequence[str], lengths: Sequence[int] | None = None, rows: Rollouts | None = None) -> Rollouts:
    """One group, or the rows of one, whose samples have these texts and as many tokens."""
    rows, sizes = rows or alone([0] * len(texts)), lengths or [1] * len(texts)
    order = list(map(int, rows.sample_ids.argsort()))
    return with_fields(rows, text=[texts[i] for i in order], token_ids=[(7,) * sizes[i] for i in order])


@check("thinkless.advantages")
def thinkless_advantages(inputs: Any, outputs: Any, tolerance: float) -> None:
    for part, name in ((thinkless.advantage, "advantages"), (GroupNorm(eps=1e-6), "divided_by_deviation")):
        found = credited(part, inputs["rewards"], inputs["index"])
        close(found, outputs[name], tolerance, name)


@check("thinkless.loss")
def thinkless_loss(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    clip = params["clip"]
    new, old = tensor(inputs["new"]), tensor(inputs["old"])
    batch = make_batch(up_to(inputs["lengths"], new.shape[1]), tensor(inputs["advantages"]), {OLD_LOGPROBS: old})
    for alpha in params["alpha"]:
        algorithm = Algorithm(objective=((1.0, Clip(clip, clip)),), aggregation=FirstApart(alpha))
        expected = outputs["by_alpha"][f"{alpha:g}"]
        close_loss(algorithm, batch, {LOGPROBS: new}, expected, tolerance, f"alpha {alpha}")


def budget_shares(budgets: Sequence[float], most: float) -> tuple[float, ...]:
    return tuple(one / most for one in sorted(set(budgets)))


@check("hbpo.rewards")
def hbpo_rewards(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    most = params["most"]
    assert params["wrong"] == 0
    shares = budget_shares(inputs["budget"], most)
    rows = in_parts([0] * len(inputs["budget"]), inputs["budget"])
    rows = saying(["</think>"] * len(inputs["budget"]), inputs["length"], rows)
    part = BudgetReward(shares, most, pi=params["pi"])
    shaped = part(column(inputs["right"]), rows, {})
    close(shaped.total(), outputs["rewards"], tolerance)


@check("hbpo.advantages")
def hbpo_advantages(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    most = params["no_budget_is"]
    rows = in_parts(inputs["index"], inputs["budget"])
    assert params["ddof"] == 1
    part = WithinBudgets(budget_shares(inputs["budget"], most), params["eps"], pi=3.1416)
    close(credited(part, inputs["rewards"], rows), outputs["advantages"], tolerance)


@check("kimi.length_reward")
def kimi_length_reward(inputs: Any, outputs: Any, tolerance: float) -> None:
    cases = ((inputs["length"], inputs["right"], "reward"), (inputs["all_alike"], [True] * len(inputs["all_alike"]), "all_alike"))
    for lengths, right, name in cases:
        rows = saying([""] * len(lengths), lengths)
        shaped = ShorterIsBetter(weight=1.0)(column(right), rows, {})
        close(shaped.values[:, -1], outputs[name], tolerance, name)


@check("kimi.loss")
def kimi_loss(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    """Rows of two tokens, which share what the vector gives of the row."""
    new, old = (torch.stack([tensor(inputs[name]) * part for part in (0.3, 0.7)], 1) for name in ("new_row", "old_row"))
    rows = rollouts(torch.ones_like(new))
    advantages = kimi_k15.advantage(column(inputs["rewards"]), rows).values
    batch = make_batch(torch.ones_like(new) > 0, advantages, {OLD_LOGPROBS: old})
    algorithm = replace(kimi_k15, objective=((1.0, Dro(params["tau"], whole=True)),))
    loss, gradient = weighed_loss(algorithm, batch, {LOGPROBS: new})
    close(loss, outputs["loss"], tolerance, "loss")
    for token in (0, 1):
        close(gradient[:, token], outputs["grad"], tolerance, "gradient")


@check("brpo.advantages")
def brpo_advantages(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    """Thoughts of two tokens per segment; each answer is a token behind the end that was forced."""
    rewards = inputs["answer_rewards"]
    assert {(len(one), len(one[0]), len(one[0][0])) for one in rewards} == {
        (params["group"], params["budgets"], params["answers"])
    }
    for budgets, expected in outputs["of_thought_segments"].items():
        part = BudgetRelative(budgets, params["discount"])
        for prompt, group in enumerate(rewards):
            rows, totals = cut_thoughts(group)
            found = part(column(totals), rows)
            thoughts = found.values[: len(group), : 2 * params["budgets"]].unflatten(1, (-1, 2))
            close(thoughts, tensor(expected["brpo"][prompt])[..., None].expand_as(thoughts), tolerance, budgets)
            answers = found.values.sum(1)[len(group) :].view(len(group), params["budgets"], -1)
            close(answers, outputs["of_answers"][prompt], tolerance, "answers")
            assert not found.mask[: len(group), 2 * params["budgets"] :].any(), "a thought's own answer"


def cut_thoughts(group: Sequence[Sequence[Sequence[float]]]) -> tuple[Rollouts, list[float]]:
    """The rows of one prompt, thoughts first, and their rewards."""
    length = 2 * len(group[0])
    thoughts = [tuple(range(100 * i, 100 * i + length)) for i in range(len(group))]
    means = [[sum(answers) / len(answers) for answers in cuts] for cuts in group]
    samples = [
        Sample("", (*tokens, 7), values=tuple((2 * k + 2, mean) for k, mean in enumerate(own)))
        for tokens, own in zip(thoughts, means, strict=True)
    ]
    totals = [0.5] * len(group)
    for tokens, cuts in zip(thoughts, group, strict=True):
        for k, answers in enumerate(cuts):
            kept = 2 * k + 2
            parts = segments_of([("policy", kept), ("forced", 1), ("policy", 1)])
            samples += [Sample("", (*tokens[:kept], 7, 8), segments=parts) for _ in answers]
            totals += answers
    mask = torch.zeros(len(samples), length + 2, dtype=torch.bool)
    for row, sample in zip(mask, samples, strict=True):
        for one in sample.segments:
            row[one.start : one.stop] = one.who == "policy"
    rows = rollouts(mask)
    return replace(rows, groups=(replace(rows.groups[0], samples=tuple(samples)),)), totals


@check("pixelthink.reward")
def pixelthink_reward(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    names = ("hard", "medium", "hard_budget", "easy_budget", "per_uncertainty", "slope")
    shaping = LengthBudget(**{name: params[name] for name in names})
    reward: Any = shipped("box_and_points", iou=params["iou"], points=params["points"], box_l1=params["box_l1"])
    for case, expected in zip(inputs["cases"], outputs["cases"], strict=True):
        text = case["text_without_thought"].replace("{w}", " ".join(["w"] * case["words_of_thought"]))
        assert len(text.split()) == case["length"]
        x1, y1, x2, y2 = map(float, inputs["truth_box"])
        columns = {"points": inputs["truth_points"], "difficulty": case["difficulty"]}
        prompt = Prompt("0", answer=Box(x1, y1, x2, y2), columns=columns)
        group = Group(0, prompt, (Sample(text, (7,)),))
        (found,) = reward(group)
        names = ("form", "json", "iou", "points", "box")
        assert [found.parts[name] for name in names] == expected["parts"], text[-90:]
        rows = replace(alone([0]), groups=(group,))
        lead = tensor([[1 - case["uncertainty"]]])
        shaped = shaping(column([found.value]), rows, dict.fromkeys(shaping.reads, lead))
        close(shaped.total(), [expected["reward"]], tolerance)
        budget = shaping.budget(case["difficulty"], case["uncertainty"])
        close(budget, float("inf") if expected["budget"] is None else expected["budget"], tolerance, "budget")


@check("pixelthink.uncertainty")
def pixelthink_uncertainty(inputs: Any, outputs: Any, tolerance: float) -> None:
    """Of distributions of the listed tokens, and of a thousand that share the rest."""
    for row, expected in zip(inputs["top_logprobs"], outputs["uncertainty"], strict=True):
        listed = tensor(row)
        rest = ((1 - listed.exp().sum(1, keepdim=True)).clamp(min=1e-12) / 1000).log().expand(-1, 1000)
        logits = torch.cat([listed, rest], dim=1)
        (lead,) = token_values(logits, torch.zeros(len(row), dtype=torch.long), ("lead",))
        close((1 - lead).clamp(0, 1).mean(), expected, tolerance)


@check("pcl.selection")
def pcl_selection(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    values, rewards = inputs["values"], inputs["rewards_of_the_chosen"]
    chosen = nearest(values, params["target"], params["keep"])
    assert chosen == outputs["chosen"]
    means = tensor(rewards).mean(1)
    close(means, outputs["targets"], tolerance, "targets")
    size = len(rewards[0])
    expected = tensor([values[i] for i in chosen]).repeat_interleave(size)[:, None].repeat(1, 2)
    expected[:, 1] = 9.0  # what is expected later counts for nothing
    mask = torch.ones_like(expected) > 0
    batch = make_batch(mask, expected * 0, {MEAN_REWARD: means.repeat_interleave(size)[:, None].expand_as(expected)})
    loss, gradient = weighed_loss(ValueFit(group=True), batch, {VALUE: expected}, VALUE)
    close(loss, outputs["value_loss"], tolerance, "value loss")
    assert not gradient[:, 1].any()


GAMMA = 0.95
"""Of vectors that do not say theirs."""


def rewards_of(inputs: Any, gamma: float) -> list[float]:
    """The rewards of the turns; where the vector does not say them, those that its returns follow from."""
    names, returns = inputs["trajectory"], inputs["returns"]
    after = [r if name == own else 0.0 for name, own, r in zip([*names[1:], None], names, [*returns[1:], 0.0], strict=True)]
    return inputs.get("step_rewards") or [now - gamma * later for now, later in zip(returns, after, strict=True)]


def episodes(inputs: Any, gamma: float) -> Rollouts:
    """The vector's turns as groups of episodes; those of a group begin with the same observation, the prompt."""
    names, seen, rewards = inputs["trajectory"], inputs["observation"], rewards_of(inputs, gamma)
    groups: dict[str, list[Sample]] = {}
    begun: dict[str, str] = {}
    for one in dict.fromkeys(names):
        rows = [i for i, name in enumerate(names) if name == one]
        own = inputs["group"][rows[0]] if "group" in inputs else ""
        assert seen[rows[0]] == begun.setdefault(own, seen[rows[0]])
        keys = [*(seen[i] for i in rows[1:]), "end"]
        said = [Said(2, float(rewards[i]), key) for i, key in zip(rows, keys, strict=True)]
        groups.setdefault(own, []).append(episode(*said))
    return rollouts_of(*groups.values())


def check_turns(inputs: Any, gamma: float) -> None:
    """The returns and totals that the parts make of these episodes are the vector's."""
    found, seen = episodes(inputs, gamma), list[Turns]()
    made = scores_of(found)

    def look(turns: Turns) -> Tensor:
        seen.append(turns)
        return turns.returns

    TurnTable(made, found, ~made.total().isnan(), gamma).deal(look)
    close(torch.cat([one.returns for one in seen]), inputs["returns"], what="returns")
    close(torch.cat([one.totals for one in seen]), inputs["episode_totals"], what="totals")


def advantages(part: GiGPO | HGPO, inputs: Any) -> list[float]:
    """One value per turn, trajectory after trajectory."""
    found = episodes(inputs, part.gamma)
    return [value for row in per_turn(part(scores_of(found), found).values, found) for value in row]


@check("gigpo_advantages")
def gigpo_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    check_turns(inputs, params["gamma"])
    for name, expected in outputs["cases"].items():
        told = {"gamma": params["gamma"], "weight": params["step_advantage_w"], "eps": params["eps"]}
        part = GiGPO(**told, deviation=name == "mean_std_norm")
        close(advantages(part, inputs), expected, 1e-6, name)


@check("hgpo_advantages")
def hgpo_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    gamma = params.get("gamma", GAMMA)
    check_turns(inputs, gamma)
    for case in outputs["cases"]:
        part = HGPO(
            gamma=gamma,
            history=case["history"],
            power=case["alpha"],
            base=case["base_group"],
            deviation=case["mode"] == "mean_std_norm",
            eps=params["eps"],
        )
        close(advantages(part, inputs), case["advantages"], 1e-6, str(case["history"]))


@check("multi_turn_layout")
def multi_turn_layout(inputs: Any, outputs: Any) -> None:
    segments = [(who, int(length)) for who, length in inputs["segments"]]
    own = segments_of(("policy" if who == "assistant" else "environment", length) for who, length in segments[1:])
    turns = torch.tensor(turn_ids(own))
    assert turns.tolist() == outputs["turn_index"]
    found = rollouts_of([Sample(token_ids=tuple(range(own[-1].stop)), segments=own)])
    assert found.action_mask[0].long().tolist() == outputs["action_mask"]
    assert int(found.action_mask.sum()) == outputs["trainable"]
    zero = torch.zeros(found.action_mask.shape, dtype=torch.float64)
    batch, counts = Batch(found, zero, zero, zero), Counts(1, outputs["trainable"], 1)
    share = TurnMean()(batch, counts)[0]
    for k, expected in enumerate(outputs["turn_mean_share"]):
        close(share[turns == k], [expected] * int((turns == k).sum()), 1e-6, "turn mean")
    close(float(SequenceMean()(batch, counts).max()), outputs["sequence_mean_share"], 1e-6, "sequence mean")


@check("arpo_branching")
def arpo_branching(inputs: Any, params: Any, outputs: Any) -> None:
    entropies = [sum(-math.exp(x) * x for x in row) for row in inputs["top_logprobs"]]
    close(turn_entropy(entropies, params["vocab"]), outputs["normalized_entropy"], what="entropy")
    weight, chance = params["entropy_weight"], params["branch_probability"]
    found = [is_begun_again(draw, before, now, weight, chance) for draw, before, now in inputs["cases"]]
    assert found == outputs["branches"]


@check("dpo_autoregressive")
def dpo_autoregressive(inputs: Any, outputs: Any) -> None:
    sides = [tensor(inputs[name]) for name in ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")]
    margin = sides[0] - sides[1] - (sides[2] - sides[3])
    for case in outputs["cases"]:
        beta = torch.full_like(margin, case["beta"])
        found = Preference(case["beta"]).of_pairs(margin, torch.zeros_like(margin), beta)
        close(found, case["loss"], what=f"loss {case['beta']}")
        close(case["beta"] * margin, case["margin"], what=f"margin {case['beta']}")


@check("mobile_agent_v3.replay")
def mobile_agent_v3_replay(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    """The preset's own planner and advantage, with a buffer that holds what the vector says."""
    rewards, held = tensor(inputs["rewards"]), inputs["has_a_success_in_store"]
    planner, size = mobile_agent_v3.planner, rewards.shape[1]
    assert isinstance(planner, ReplaySuccess) and planner.keep_old
    planner = ReplaySuccess()
    found = alone(blocks(rewards.numel(), size))
    planner.begin([group.prompt for group in found.groups], "v")
    stored = [Kept(str(i), i, StoredRow((1,), (-0.5,)), 1, params["stored_reward"]) for i, one in enumerate(held) if one]
    planner.buffer.add(stored, 1)
    revision = planner.revise(found.groups, column(rewards.flatten()), found.group_ids, 0, 0)
    assert [(i, 0) in revision.drop_samples for i in range(len(rewards))] == outputs["replaced_row_0"]
    assert [one.group_id for one in revision.requests] == [i for i, _ in sorted(revision.drop_samples)]
    for i, _ in revision.drop_samples:
        rewards[i, 0] = params["stored_reward"]
    values = credited(mobile_agent_v3.advantage, rewards.flatten(), found)
    close(values.view_as(rewards), outputs["advantages"], tolerance, "advantages")


@check("ui_s1.advantages")
def ui_s1_advantages(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    """Its episodes' rewards are no sums of its steps', so the formulas of the part are asked, task by task."""
    part = ui_s1.advantage
    assert isinstance(part, GiGPO) and (part.gamma, part.weight) == (params["gamma"], params["weight_of_steps"])
    trajectory, number = torch.tensor(inputs["trajectory"]), torch.tensor(inputs["step"])
    wrong = [not right for right in inputs["action_right"]]
    returns = returns_of(tensor(inputs["step_reward"]), trajectory, params["gamma"], wrong)
    close(returns, outputs["returns"], tolerance, "returns")
    task, totals = torch.tensor(inputs["task"]), tensor(inputs["episode_reward"])
    for name, deviation in (("mean_norm", False), ("mean_std_norm", True)):
        told = GiGPO(gamma=part.gamma, over=part.over, alike=part.alike, cut=part.cut, deviation=deviation, eps=params["eps"])
        values = torch.zeros_like(totals)
        for one in task.unique():
            at = task == one
            values[at] = told.values(Turns(totals[at], returns[at], trajectory[at], number[at] * 0, number[at]))
        close(values, outputs[name], tolerance, name)


@check("geometry_zero.halves")
def geometry_zero_halves(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    rewards, used, size = inputs["rewards"], inputs["used_the_tool"], params["group"]
    part = geometry_zero.shaping[0]
    assert isinstance(part, WhereToolsHelp) and part.asked and part.least == params["least"]
    groups = [range(start, start + size) for start in range(0, len(rewards), size)]
    found: Rollouts = rollouts_of(*([episode(Said(1, key="x", used=used[i]), Said(1)) for i in group] for group in groups))
    asked = inputs["asked_for_the_tool"]
    assert [i % size < size // 2 for i in range(len(rewards))] == asked, "the planner asks the first half"
    shaped = part(scores_of(found, 0.0, answer=rewards), found, {})
    close(shaped.values[:, -1], outputs["bonus"], tolerance, "bonus")
