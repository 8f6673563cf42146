"""Methods about when and how long to think, and about right and wrong, against their code or formula."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmrl import Box
from mmrl.algorithms.advantages.group import BySign, GroupNorm
from mmrl.algorithms.advantages.segments import AboveReference, BudgetRelative, WithinBudgets
from mmrl.algorithms.advantages.tree import PrefixValues, TreeValues
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.regression import ValueFit
from mmrl.algorithms.objectives.surrogates import Clip, Dro, EvenStart
from mmrl.algorithms.presets.thinking import kimi_k15, thinkless
from mmrl.algorithms.samplers.learned import nearest
from mmrl.algorithms.shaping.thinking import BudgetReward, LengthBudget, ModePays, ShorterIsBetter
from mmrl.algorithms.weights.aggregate import FirstApart, TokenMean
from mmrl.core.readings import LOGPROBS, MEAN_REWARD, OLD_LOGPROBS, VALUE
from mmrl.core.samples import segments_of
from mmrl.core.types import Group, Prompt, Rollouts, Sample
from mmrl.policies.text.read.evaluate import token_values
from tests.numerics.check_rewards import shipped
from tests.numerics.registry import check, close, tensor
from tests.numerics.rows import alone, close_loss, column, credited, up_to
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
