"""Stages that teach: teachers, refused before weights load where they cannot, and the texts and spaces of what is taught."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any, cast

from PIL import Image

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.given import FollowTeacher
from mmrl.algorithms.planners.taught import THOUGHT as THOUGHTS
from mmrl.algorithms.planners.taught import Taught
from mmrl.algorithms.views import SEEN
from mmrl.algorithms.weights.importance import SureTeacher
from mmrl.answers.block import Template
from mmrl.answers.boxes.box import SPACES, Box, Space, is_inside
from mmrl.answers.boxes.detection import mean_iou
from mmrl.answers.boxes.parsing import convert_boxes, parse_boxes
from mmrl.answers.written import THINKS, THOUGHT, Way, boxes_of
from mmrl.core.readings import TAUGHT
from mmrl.core.samples import kind_of
from mmrl.core.types import MediaSize, Prompt
from mmrl.data.files.pictures import size_of
from mmrl.policies.shared.chat_templates import refuse_endless
from mmrl.policies.shared.teachers import TEACHER, refuse_missing_teachers, refuse_no_teachers
from mmrl.policies.text.prompt.templates import ANSWER_FORMATS, WHERE, tags_of
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.training.reference_reads import Routes


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


def refuse_routes(algorithm: Algorithm, label: str) -> None:
    """Raise ValueError for rows that nobody routes, or several do; and for rows that rewards cannot tell apart."""
    routing = [term for _, term in algorithm.objective if isinstance(term, Routes) and term.routes]
    if not routing and TAUGHT in algorithm.all_reads:
        raise ValueError(
            f'a part of algorithm {label} asks which rows a teacher has to itself, and no term says so: set rows = "wrong" or '
            'view.column = "told" of a FollowTeacher'
        )
    if len(routing) > 1:
        raise ValueError(f"{len(routing)} terms of algorithm {label} take rows for a teacher of their own: leave one of them")
    if not routing:
        return
    if algorithm.unscored:
        raise ValueError(
            f"rewards say which rows of algorithm {label} a teacher has, and its advantage asks for none: set "
            "algorithm.advantage.unscored = false, or take another advantage"
        )
    if algorithm.replays:
        raise ValueError(
            f"algorithm {label} trains rows of earlier steps again, of which the samples beside them are gone: set "
            'algorithm.planner.kind = "Once", or rows = "all" and another view of FollowTeacher'
        )


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


LOOK = 64
"""Prompts whose completions are looked at before training."""
SURE, MARGIN = 0.9, 0.01
"""Completions are in another space than the model's where their boxes, so read, overlap the truth by this, and more by this."""
OF_BOXES = re.compile(r"bbox|<box>|<\|box_start\|>")
Sizes = Callable[[Prompt], MediaSize | None]


def bind_taught(
    algorithm: Algorithm, policy: object, space: str | None, prompts: Sequence[Prompt], rewards: Sequence[object] = ()
) -> Algorithm:
    """The algorithm, whose planner knows how this model writes if it teaches; `rewards` are the run's, and those inside them.

    Raises ValueError for a truth that cannot be written, and for completions whose boxes are in another space than the model's.
    """
    planner = algorithm.planner
    if not isinstance(planner, Taught) or not isinstance(policy, TextPolicyConfig):
        return algorithm
    known = cast(Space | None, space)
    eye = cache(lambda: processor_of(policy))
    sizes = sizes_seen(eye) if "resized" in (known, planner.written) else size_of
    if planner.written == "column":
        refuse_other_space(planner, prompts[:LOOK], known, sizes)
        return algorithm
    if planner.written != "truth" and known is None:
        raise ValueError(
            f"written is {planner.written!r}, and how this model writes boxes is unknown: set policy.box_space to "
            f"{', '.join(SPACES)}"
        )
    way = way_of(policy, known, opened(policy, eye()[0]), rewards) if planner.written == "truth" else None

    def say(prompt: Prompt, text: str) -> str:
        if way is not None:
            thought = THOUGHTS.search(text)
            return way.of(prompt, sizes(prompt), THOUGHT if thought is None else thought[0][len(THINKS) : -len("</think>")])
        try:
            return convert_boxes(text, cast(Space, planner.written), cast(Space, known), sizes(prompt))
        except ValueError as error:
            raise ValueError(f"prompt {prompt.id!r}: {error}") from None

    bound = planner.said_by(say)
    bound.first(prompts[:LOOK], 1, 0, 0)
    return replace(algorithm, planner=bound)


def way_of(policy: TextPolicyConfig, space: Space | None, tag: str, rewards: Sequence[object]) -> Way:
    """How the truth is written: in the form that a reward demands, else that which the prompts ask for.

    Raises ValueError for rewards that demand different ones.
    """

    def facts(name: str) -> list[Any]:
        return list(dict.fromkeys(found for one in rewards if (found := getattr(one, name, None)) is not None))

    demanded: list[Template] = facts("template")
    if len(demanded) > 1:
        raise ValueError(
            f"written is 'truth', and rewards demand the templates {' and '.join(demanded)}, which no text keeps both: give the "
            "rewards one template"
        )
    template = demanded[0] if demanded else tags_of(policy.answer_format)
    units = [unit for unit in facts("unit") if unit != "seconds"]
    lists = WHERE in ANSWER_FORMATS.get(policy.answer_format, "") and True not in facts("labels")
    return Way(space, template, units[0] if units else "seconds", lists, facts("asks_points") == [True], tag)


def refuse_other_space(planner: Taught, prompts: Sequence[Prompt], space: Space | None, sizes: Sizes) -> None:
    """Raise ValueError where completions hold boxes in another space than the one in which this model's are read."""
    if space is None:
        return
    tries: list[Space] = [one for one in SPACES if one != "resized" or space == "resized"]
    overlaps: dict[Space, list[float]] = {one: [] for one in tries}
    outside: list[tuple[Prompt, Box]] = []
    for prompt in prompts:
        text = "\n".join(turn.text for turn in planner.turns_of(prompt)) or planner.completion(prompt)
        if not parse_boxes(text, space):
            continue
        truth, size = boxes_of(prompt.answer), sizes(prompt)
        for one in tries if truth and size is not None else ():
            found = [box.to("pixel", size) for box in parse_boxes(text, one) if is_inside(box, size)]
            overlaps[one].append(mean_iou(found, [box.to("pixel", size) for box in truth]))
        if OF_BOXES.search(text) and (size is not None or space not in ("pixel", "resized")):
            outside += [(prompt, box) for box in parse_boxes(text, space) if not is_inside(box, size)][:1]
    means = {one: fmean(found) for one, found in overlaps.items() if found}
    best = max(means, key=lambda one: means[one], default=space)
    remedy = 'or written = "truth" to teach the answers'
    if means and means[best] >= SURE and means[best] > means[space] + MARGIN:
        raise ValueError(
            f"completions hold boxes in the space {best!r}: so read they overlap the true boxes by {means[best]:.2f}, and in the "
            f"space of this model, {space!r}, by {means[space]:.2f}: set written = {best!r} in the stage, so that they are "
            f"converted, {remedy}"
        )
    if len(outside) > len(prompts) / 10:
        prompt, box = outside[0]
        raise ValueError(
            f"completions of {len(outside)} of {len(prompts)} prompts hold boxes outside of this model's space, such as {box} of "
            f"prompt {prompt.id!r}: set written in the stage to their own space (pixel, norm1000, norm1), so that they are "
            f"converted, {remedy}"
        )


def processor_of(policy: TextPolicyConfig) -> tuple[Any, Any]:
    """A model's processor as its policy has it, and its family, without weights."""
    from mmrl.policies.text.families import family_of
    from mmrl.policies.text.loading import load_config, read_processor

    family = family_of(load_config(policy))
    return read_processor(policy, family), family


def opened(policy: TextPolicyConfig, processor: Any) -> str:
    """The tag that the chat template leaves open for a completion; ValueError for a template that does not end."""
    chat = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
    refuse_endless(processor.chat_template, f"policy.model {policy.model!r}", chat, **processor.tokenizer.special_tokens_map)
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return THINKS if text.rstrip().endswith(THINKS) else ""


def sizes_seen(eye: Callable[[], tuple[Any, Any]]) -> Sizes:
    """The size of a prompt's first picture, in its file and as the model sees it."""

    @cache
    def seen(width: int, height: int) -> MediaSize:
        processor, family = eye()
        media = processor.image_processor(images=[Image.new("RGB", (width, height))], return_tensors="pt")
        return MediaSize(width, height, *family.seen_sizes([(width, height)], media)[0])

    def size(prompt: Prompt) -> MediaSize | None:
        found = size_of(prompt)
        return None if found is None else seen(found.width, found.height)

    return size
