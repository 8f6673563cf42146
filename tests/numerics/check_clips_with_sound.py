"""OmniNFT: which reward trains which part of a clip with sound, and each part's loss."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.advantages.decoupled import PerModality
from mmrl.algorithms.objectives.forward import NegativeAware
from mmrl.algorithms.presets.flow import omninft
from mmrl.core.types import Rollouts, Scores
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import rollouts, scores

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


@check("omninft.route.a")
@check("omninft.route.b")
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


@check("omninft.loss.video")
@check("omninft.loss.weighted")
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
