"""The needs of shipped rewards, of prompts and of groups: the one table that runs are checked by and that the docs show."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.pixels import TakesPixels, try_gradient, with_rewards
from mmrl.answers.boxes.attempts import true_boxes
from mmrl.answers.questions import problem_type, true_letters, true_number, true_text
from mmrl.answers.spans.attempts import true_spans
from mmrl.answers.spans.interval import Interval
from mmrl.app.config.needed_rewards import rewards_in
from mmrl.app.config.reward_models import is_shipped
from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins.resolve import load
from mmrl.core.types import Prompt
from mmrl.data.validate import check_answer
from mmrl.serving.reward_client import is_url
from mmrl.serving.sounds import pair_of
from mmrl.training.rewards.runner import NamedReward

log = logging.getLogger("mmrl")
Reads = Callable[[Prompt, Any, str], object]
"""What a reward reads of a prompt, from the prompt, the reward and the kind of samples: text, image, video or sound.

None where it does not apply to the prompt; ValueError where it could not score its samples.
"""


@dataclass(frozen=True)
class Need:
    """The needs of a reward: `Need("a number", answer(true_number))`."""

    words: str
    """Of each prompt."""
    reads: Reads = lambda prompt, reward, output: prompt
    samples: int = 1
    """The fewest samples of a prompt that it says something about."""
    alone: str = ""
    """How it scores fewer; empty: it fails."""
    package: str = ""
    """What it imports that mmrl itself does without."""


def answer(read: Callable[[Prompt], object]) -> Reads:
    """The true answer; the reward does not apply to prompts without one."""
    return lambda prompt, reward, output: None if prompt.answer is None else read(prompt)


def columns(*names: str) -> Reads:
    """Columns that must be there."""

    def read(prompt: Prompt, reward: object, output: str) -> object:
        if missing := [name for name in names if prompt.columns.get(name) is None]:
            raise ValueError(f"prompt {prompt.id!r} has no column {', '.join(missing)}")
        return prompt

    return read


def true_mask(prompt: Prompt) -> object:
    if not isinstance(prompt.answer, Mapping):
        raise ValueError(f"the answer of prompt {prompt.id!r} is {prompt.answer!r:.80}: this reward needs a mask")
    return prompt.answer


def answer_of_type(prompt: Prompt, reward: Any, output: str) -> object:
    kind = problem_type(prompt, getattr(reward, "column", "problem_type"))
    check_answer(prompt, kind)
    return None if prompt.answer is None else kind


def own_schema(prompt: Prompt, reward: Any, output: str) -> object:
    return prompt if reward.schema else columns(reward.column)(prompt, reward, output)


def band(prompt: Prompt, reward: Any, output: str) -> object:
    return prompt if reward.high is not None else pair_of(prompt, "band", "[low, high] in Hz")


def span(prompt: Prompt, reward: Any, output: str) -> object:
    is_answer = "span" not in prompt.columns and isinstance(prompt.answer, Interval)
    return prompt if is_answer else pair_of(prompt, "span", "[start, end] in seconds")


def bpm(prompt: Prompt, reward: Any, output: str) -> object:
    return prompt if reward.bpm is not None else columns("bpm")(prompt, reward, output)


def source(prompt: Prompt, reward: object, output: str) -> object:
    if not prompt.media:
        raise ValueError(f"prompt {prompt.id!r} has no picture")
    return prompt


def target(prompt: Prompt, reward: object, output: str) -> object:
    return source(prompt, reward, output) and columns("target")(prompt, reward, output)


def answer_for_judge(prompt: Prompt, reward: Any, output: str) -> object:
    if prompt.answer is None and ("{answer}" in reward.template or (output == "text" and not reward.template)):
        raise ValueError(f"prompt {prompt.id!r} has no answer, which the judge's template asks for: set template")
    return prompt


BOX, SPANS = Need("a box or several as answer", answer(true_boxes)), Need("a span or several as answer", answer(true_spans))
TEXT = "a text or number as answer"
NEEDS = {
    "iou": BOX,
    "giou": BOX,
    "point_in_box": BOX,
    "multi_box": BOX,
    "mask_iou": Need("a mask as answer", answer(true_mask), package="pycocotools"),
    "key_frame_boxes": Need(
        "the column masks, a list of masks per frame", lambda p, r, o: p.columns.get(r.column), package="pycocotools"
    ),
    "temporal_iou": SPANS,
    "key_frame": SPANS,
    "choice": Need("letters of its options as answer", answer(true_letters)),
    "number": Need("a number as answer", answer(true_number)),
    "math_answer": Need(TEXT, answer(lambda prompt: str(prompt.answer)), package="math_verify"),
    "ocr_wer": Need(TEXT, answer(true_text), package="rapidfuzz"),
    "rouge": Need(TEXT, answer(true_text), package="rouge_score"),
    "label_levels": Need("labels as answer, a text", answer(true_text)),
    "by_type": Need("the column problem_type, and an answer of that type", answer_of_type),
    "json_schema": Need("the column that the setting column names, unless there is one schema", own_schema),
    "majority_vote": Need("nothing", samples=2, alone="1 for any answer that can be read"),
    "pseudo_span": Need("nothing", samples=2, alone="1 for any answer that can be read"),
    "object_counts": Need(
        "the column include; color, position, exclude and tag where they apply", lambda p, r, o: p.columns.get("include")
    ),
    "ocr": Need(
        "the column target, a text as answer, or double quotes around the text to be drawn", lambda p, r, o: r.target_of(p)
    ),
    "shapes": Need("the columns colour, shape and side", columns("colour", "shape", "side")),
    "gliding_shapes": Need("the columns colour, shape and way", columns("colour", "shape", "way")),
    "shape_edits": Need("a picture, and the columns of the data set shape_edits", columns("colour", "shape", "side", "part")),
    "first_frame": Need("a picture", source),
    "keeps_rest": Need("a picture; the column mask helps", source),
    "toward_target": Need("a picture, and the column target with the picture to come near to", target),
    "smooth_motion": Need("nothing", package="cv2"),
    "suite_judge": Need("a prompt of the data set suite with questions for a judge", columns("questions")),
    "band_energy": Need("the column band, [low, high] in Hz, unless low and high are set", band),
    "onset_iou": Need("the column span, [start, end] in seconds, or a span as answer", span),
    "tempo": Need("the column bpm, unless bpm is set", bpm),
    "vlm_judge": Need("an answer, where the template says {answer}", answer_for_judge),
    "pairwise_win_rate": Need("what its scorer needs", samples=2),
}
"""Shipped reward -> what it needs of prompts and of a group; the others need nothing of these."""


def needs_table() -> list[str]:
    """The table in Markdown."""
    rows = [
        f"| {name} | {need.words} | {need.samples}{f' (of one: {need.alone})' if need.alone else ''} |"
        for name, need in sorted(NEEDS.items())
    ]
    return ["| reward | each prompt needs | samples of a prompt |", "|---|---|---|", *rows, "| all others | nothing | 1 |"]


def needs_of(use: str, args: Mapping[str, object], function: Any) -> Iterator[tuple[str, Need, Any]]:
    """Name, need and object of a reward and of the rewards inside it, as far as they come with mmrl."""
    if is_url(use):
        return
    style, plug_in = adapters.split(use)
    name = Path(plug_in.partition(":")[0]).stem
    if not style and name in NEEDS and is_shipped(plug_in):
        yield name, NEEDS[name], function
    for key, value in args.items():
        if isinstance(value, Mapping):
            for inner, own in rewards_in(value):
                yield from needs_of(inner, own, getattr(function, key, None))


def reads_boxes(use: str, args: Mapping[str, object]) -> bool:
    """Does a reward, or one inside it, read boxes in the way that the model writes them (a field `space` that is "auto")?"""
    if any(reads_boxes(*one) for value in args.values() for one in rewards_in(value)):
        return True
    style, plug_in = adapters.split(use)
    function = None if is_url(use) or style else load(plug_in, "rewards")
    usual = {f.name: f.default for f in fields(function)} if is_dataclass(function) else {}
    return args.get("space", usual.get("space")) == "auto"


def refuse_missing_package(name: str, need: Need) -> None:
    """Raise ModuleNotFoundError where a reward's package is not installed."""
    if need.package and find_spec(need.package) is None:
        raise ModuleNotFoundError(f'reward {name!r} needs the package {need.package}: pip install "mmrl[rewards]"')


OF_SOUNDS = "a model of sounds such as Stable Audio 3 draw, with policy.seconds"


def other_samples(name: str, wanted: Sequence[str], kind: str, output: str) -> str:
    """The error of a reward that is for samples of another kind."""
    fact = f"reward {name!r} scores {' or '.join(wanted)}, but policy.kind is {kind!r}, whose samples are {output}"
    if output.startswith("video") and "image" in wanted:
        return f'{fact} (policy.frames is above 1): score frames with use = "over_frames" and picture.use = "{name}"'
    if output == "sound":
        return f"{fact} (policy.seconds is set): take a reward of sounds such as band_energy"
    if any("sound" in one for one in wanted):
        drawn = "an LTX-2 draw both, with policy.sound = true" if output == "video" else OF_SOUNDS
        return f"{fact}: take a reward for those, or let {drawn}"
    if output == "image" and "video" in wanted:
        return f"{fact} (policy.frames is 1): take a reward of pictures, or let a model for clips draw policy.frames = 5 or more"
    return f"{fact}: take a reward for those (the files of `mmrl ls rewards` say under Modality what they score)"


def with_inside(function: object, change: Callable[[Any], object]) -> object:
    """A reward whose rewards inside are changed."""
    if not is_dataclass(function) or isinstance(function, type):
        return function
    inside = {f.name: getattr(function, f.name) for f in fields(function) if f.init}
    held = {name: value for name, value in inside.items() if is_dataclass(value) and callable(value)}
    changed = {name: change(value) for name, value in held.items()}
    return replace(function, **changed) if any(changed[name] is not held[name] for name in held) else function


def declared_space(function: object) -> str | None:
    """The `space` of a reward that has one."""
    return getattr(function, "space", None) if is_dataclass(function) else None


def with_gradients(
    algorithm: Algorithm, rewards: Sequence[NamedReward], watches: bool, prompts: Sequence[Prompt] = ()
) -> Algorithm:
    """The algorithm whose terms on the gradient of rewards have those of the run; says so where no reward is watched.

    Args:
        watches: do others score held-out prompts?
        prompts: each reward is tried with the first one, on a picture of noise.

    Raises:
        ValueError: a weighted reward has no gradient, one that is not finite or points away, or is transformed.
    """
    objective = with_rewards(algorithm.objective, [(one.name, one.weight, one.function) for one in rewards])
    if objective == algorithm.objective:
        return algorithm
    bent = [one.name for one in rewards if one.weight and one.transform is not None]
    if bent:
        raise ValueError(
            f"reward {bent[0]!r} has a transform, which the gradient of its pixels does not pass: leave the transform out, or "
            "set objective.0.top of RewardGradient"
        )
    for one in rewards:
        if prompts and one.weight and isinstance(one.function, TakesPixels):
            try_gradient(one.name, one.function, prompts[0])
    if not watches and all(one.weight for one in rewards):
        log.warning(
            "this run trains on the gradient of its rewards, which is the fastest way to find their faults, and no reward is "
            "watched: add one with weight = 0, or [[evaluation.reward]], for the alarm of reward hacking"
        )
    return replace(algorithm, objective=objective)
