"""Teachers of models that write, as a config names them: what cannot teach is refused before weights load."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.distill import FollowTeacher
from mmrl.algorithms.routes import refuse_routes
from mmrl.algorithms.views import SEEN
from mmrl.algorithms.weights.importance import SureTeacher
from mmrl.core.samples import kind_of
from mmrl.core.types import Prompt
from mmrl.policies.shared.teachers import TEACHER, refuse_missing_teachers, refuse_no_teachers
from mmrl.policies.text.settings import TextPolicyConfig


def follows_teachers(algorithm: Algorithm) -> bool:
    """Does it read policy.teachers?"""
    return any((reading.target or reading).model == TEACHER for reading in algorithm.all_reads)


def with_teachers(algorithm: Algorithm, policy: TextPolicyConfig, label: str, prompts: Sequence[Prompt]) -> Algorithm:
    """The algorithm with the names of its teachers, which are measured apart; ValueError for what cannot teach these prompts."""
    names = tuple(one.name for one in policy.teachers)
    algorithm = measured_apart(algorithm, label)
    refuse_other_doubt(algorithm, label)
    if not follows_teachers(algorithm):
        return algorithm
    refuse_no_teachers(len(names), label, "model or adapter")
    refuse_missing_teachers(prompts, names, alone=True)
    refuse_untold(algorithm, policy)
    refuse_blind(policy, prompts)
    return algorithm if len(names) == 1 else with_terms(algorithm, lambda t, _: replace(t, names=names * (t.model == TEACHER)))


def with_terms(algorithm: Algorithm, change: Callable[[FollowTeacher, int], FollowTeacher]) -> Algorithm:
    """The algorithm with other terms in place of those that follow a teacher; each is given with its place."""
    terms = [(coef, change(t, i) if isinstance(t, FollowTeacher) else t) for i, (coef, t) in enumerate(algorithm.objective)]
    return replace(algorithm, objective=tuple(terms))


def measured_apart(algorithm: Algorithm, label: str) -> Algorithm:
    """The algorithm with names for the metrics of each of several terms that follow a teacher, by whose weights that has.

    Raises ValueError for rows that nobody routes, and for terms that nothing weighs, though they ask for it.
    """
    refuse_routes(algorithm, label)
    followed = [term for _, term in algorithm.objective if isinstance(term, FollowTeacher)]
    if any(term.weighed for term in followed) and not algorithm.importance:
        raise ValueError(
            f"algorithm {label} has a FollowTeacher with weighed = true, and no weights under importance that could multiply it: "
            "leave weighed out, or add some, such as SureTeacher"
        )
    models = [term.model for term in followed]
    if len(models) == 1:
        return algorithm
    return with_terms(algorithm, lambda t, i: replace(t, label=t.model if models.count(t.model) == 1 else f"{t.model}-{i}"))


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


def refuse_untold(algorithm: Algorithm, policy: TextPolicyConfig) -> None:
    """Raise ValueError for what a teacher behind a server does not tell."""
    from mmrl.policies.text.teachers import unserved

    served = [one.name for one in policy.teachers if one.url]
    for reading in algorithm.all_reads if served else ():
        if (reading.target or reading).model == TEACHER:
            if reading.quantity != "logprobs" and not (reading.target and reading.target.top):
                raise unserved(served[0], "all", reading.quantity)
            if (reading.temperature or policy.sampling.temperature) != 1:
                raise unserved(served[0], "heat", policy.sampling.temperature)


def likely_asked(algorithm: Algorithm) -> int:
    """The likeliest tokens of teachers that are compared one by one; 0: none are."""
    return max((one.target.top for one in algorithm.all_reads if one.target and one.target.model == TEACHER), default=0)


def refuse_blind(policy: TextPolicyConfig, prompts: Sequence[Prompt]) -> None:
    """Raise ValueError for a teacher of another model that does not take the media of the prompts."""
    from mmrl.engine.wire_prompts import PARTS
    from mmrl.policies.text.families import family_of
    from mmrl.policies.text.loading import load_config
    from mmrl.policies.text.teachers import config_of, named

    shown = sorted({kind_of(media).name for prompt in prompts for media in prompt.media})
    for number, one in enumerate(policy.teachers if shown else ()):
        if one.model is not None:
            with named(number):
                family = family_of(load_config(config_of(policy, one)))
            sees = {*family.sees, *(["video"] if family.frames_are_pictures else [])}
            sees &= set(PARTS) if one.url else sees
            if missing := [kind for kind in shown if kind not in sees]:
                where = f"{one.model}{' on a server' * bool(one.url)}"
                raise ValueError(
                    f"policy.teachers {one.name!r} ({where}) takes no {missing[0]}, and the prompts show some: take a teacher "
                    "that does"
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
