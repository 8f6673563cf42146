"""Teachers of models that write, as a config names them: what cannot teach is refused before weights load."""

from collections.abc import Sequence
from dataclasses import replace

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.distill import FollowTeacher
from mmrl.algorithms.routes import refuse_routes
from mmrl.algorithms.views import SEEN
from mmrl.algorithms.weights.teachers import SureTeacher
from mmrl.core.samples import kind_of
from mmrl.core.types import Prompt
from mmrl.policies.shared.teachers import TEACHER, refuse_missing_teachers, refuse_no_teachers
from mmrl.policies.text.settings import TextPolicyConfig


def models_read(algorithm: Algorithm) -> set[str]:
    """Under whose weights anything is read or compared with."""
    return {(reading.target or reading).model for reading in algorithm.all_reads}


def follows_teachers(algorithm: Algorithm) -> bool:
    """Does it read policy.teachers?"""
    return TEACHER in models_read(algorithm)


def with_teachers(algorithm: Algorithm, policy: TextPolicyConfig, label: str, prompts: Sequence[Prompt]) -> Algorithm:
    """The algorithm with the names of its teachers, which are measured apart; ValueError for what cannot teach these prompts."""
    names = tuple(one.name for one in policy.teachers)
    refuse_routes(algorithm, label)
    refuse_other_doubt(algorithm, label)
    if not follows_teachers(algorithm):
        return algorithm
    refuse_no_teachers(len(names), label, "model or adapter")
    refuse_missing_teachers(prompts, names, alone=True)
    refuse_blind(policy, prompts)
    if len(names) == 1:
        return algorithm
    objective = [(coef, replace(t, names=names) if isinstance(t, FollowTeacher) else t) for coef, t in algorithm.objective]
    return replace(algorithm, objective=tuple(objective))


def refuse_other_doubt(algorithm: Algorithm, label: str) -> None:
    """Raise ValueError for a teacher's doubt where no term follows the same teacher, with weights, behind a view."""
    followed = [term for _, term in algorithm.objective if isinstance(term, FollowTeacher)]
    for weight in algorithm.importance:
        fits = [term for term in followed if isinstance(weight, SureTeacher) and term.model == weight.model]
        if isinstance(weight, SureTeacher) and not any(term.weighed and SEEN in term.views for term in fits):
            raise ValueError(
                f"algorithm {label} weighs by the doubt of the model {weight.model!r} behind a view, and no FollowTeacher has "
                "that model, a view and weighed = true: set them, or leave SureTeacher out"
            )


def refuse_blind(policy: TextPolicyConfig, prompts: Sequence[Prompt]) -> None:
    """Raise ValueError for a teacher of another model that does not take the media of the prompts."""
    from mmrl.policies.text.families import family_of
    from mmrl.policies.text.loading import load_config
    from mmrl.policies.text.teachers import config_of, named

    shown = sorted({kind_of(media).name for prompt in prompts for media in prompt.media})
    for number, one in enumerate(policy.teachers if shown else ()):
        if one.model is not None:
            with named(number):
                family = family_of(load_config(config_of(policy, one)))
            sees = {*family.sees, *(["video"] if family.frames_are_pictures else [])}
            if missing := [kind for kind in shown if kind not in sees]:
                raise ValueError(
                    f"policy.teachers {one.name!r} ({one.model}) takes no {missing[0]}, and the prompts show some: take a "
                    "teacher that does"
                )


def refuse_comparisons(algorithm: Algorithm, label: str, kind: str) -> None:
    """Raise ValueError where whole distributions of tokens are compared, or samples told, with a policy that writes no text."""
    if any(reading.target is not None for reading in algorithm.all_reads):
        raise ValueError(
            f"algorithm {label} compares the next token's distribution with a teacher's, and policy.kind is {kind!r}: set the "
            "form sampled of FollowTeacher, or take a preset for it"
        )
    if any(isinstance(term, FollowTeacher) and term.view.tells for _, term in algorithm.objective):
        raise ValueError(f"algorithm {label} tells a teacher what samples say, and policy.kind is {kind!r}: take another view")
