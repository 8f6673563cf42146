"""The texts of a stage that teaches: the truth as the run's rewards read it, or completions with the model's boxes."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any, cast

from PIL import Image

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.planners.taught import THOUGHT as THOUGHTS
from mmrl.algorithms.planners.taught import Taught
from mmrl.answers.block import Template
from mmrl.answers.boxes.box import SPACES, Box, Space, is_inside
from mmrl.answers.boxes.detection import mean_iou
from mmrl.answers.boxes.parsing import convert_boxes, parse_boxes
from mmrl.answers.written import THINKS, THOUGHT, Way, boxes_of
from mmrl.core.types import MediaSize, Prompt
from mmrl.data.files.pictures import size_of
from mmrl.policies.shared.chat_templates import refuse_endless
from mmrl.policies.text.prompt.templates import ANSWER_FORMATS, WHERE, tags_of
from mmrl.policies.text.settings import TextPolicyConfig

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
