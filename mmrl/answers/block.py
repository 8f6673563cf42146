"""The part of a completion that is the answer, and the templates that completions keep to."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from mmrl.core.samples import Group, Prompt, Sample, Scored
from mmrl.runtime.ranges import check_ranges

Template = Literal["direct", "think", "json"]
"""direct: `<answer>..</answer>`. think: `<think>..</think><answer>..</answer>`. json: one JSON value, fenced or bare."""


@dataclass(frozen=True)
class InTemplate:
    """The common base of rewards of texts that may have to keep to a template."""

    template: Template | None = field(default=None, kw_only=True)
    """If set, text that breaks this template scores 0."""

    __post_init__ = check_ranges

    def keeps(self, prompt: Prompt, sample: Sample) -> bool:
        """True if the sample keeps the template, or none is set."""
        return self.template is None or keeps_format(completion_text(prompt, sample), self.template)

    def score_each(self, group: Group, score: Callable[[Sample], Scored]) -> list[float | Scored | None]:
        """The score of each sample; with a template, 0 and the parts of an empty text for one that breaks it, and `format`."""
        return [self._score_one(group.prompt, sample, score) for sample in group.samples]

    def _score_one(self, prompt: Prompt, sample: Sample, score: Callable[[Sample], Scored]) -> Scored:
        if self.template is None:
            return score(sample)
        kept = self.keeps(prompt, sample)
        scored = score(sample if kept else replace(sample, text=""))
        return replace(scored, value=scored.value if kept else 0.0, parts={**scored.parts, "format": float(kept)})


_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_FENCE = re.compile(r"```[a-zA-Z0-9_]*+[ \t]*+\n?+(.*)```\Z", re.DOTALL)


def items_of(answer: object) -> tuple[object, ...]:
    """The parts of an answer, one or several."""
    return tuple(cast(Sequence[object], answer)) if isinstance(answer, list | tuple) else (answer,)


def opened_text(sample: Sample) -> str:
    """The sample's text behind the tag that its template opened: a thought is one wherever it begins."""
    text = sample.text or ""
    return text if text.lstrip().startswith(sample.opened) else sample.opened + text


def completion_text(prompt: Prompt, sample: Sample) -> str:
    """The sample's text, behind the tag that its template opened; ValueError naming the prompt if it has none."""
    if sample.text is None:
        raise ValueError(f"a sample of prompt {prompt.id!r} has no text: this reward is for policies that write")
    return opened_text(sample)


def answer_block(text: str) -> str:
    """The inside of the last complete `<answer>` block, else the text without its thought; stripped.

    A thought without an end holds no answer, unless the block ends the text.
    """
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start < 0 or (text.rfind("<think>", 0, start) > text.rfind("</think>") and text[end + len("</answer>") :].strip()):
        return text.rpartition("</think>")[2].partition("<think>")[0].strip()
    return text[start + len("<answer>") : end].strip()


def strip_fence(text: str) -> str:
    """The inside of a code fence that spans the whole text, else the text itself; stripped."""
    fence = _FENCE.match(text.strip())
    return (fence[1] if fence else text).strip()


def answer_object(text: str) -> dict[str, object]:
    """The JSON object in the answer block of a text, fenced or bare; empty where it holds none."""
    try:
        found: object = json.loads(strip_fence(answer_block(text)))
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def keeps_format(text: str, template: Template) -> bool:
    """True if the whole text, blanks at its ends aside, follows the template; every tag at most once.

    The opening `<think>` may be missing, because many chat templates write it as the end of the prompt.
    """
    match template:
        case "direct":
            return _is_answer(text)
        case "think":
            thought, closed, rest = text.strip().removeprefix("<think>").partition("</think>")
            return bool(closed) and not any(tag in thought for tag in _TAGS) and _is_answer(rest)
        case "json":
            try:
                json.loads(strip_fence(text))
            except (ValueError, RecursionError):
                return False
            return True


def _is_answer(text: str) -> bool:
    text = text.strip()
    inside = text.removeprefix("<answer>").removesuffix("</answer>")
    whole = len(inside) == len(text) - len("<answer></answer>")
    return whole and not any(tag in inside for tag in _TAGS)
