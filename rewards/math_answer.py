"""Is the answer mathematically equal to the true one? (1/2 = 0.5 = \\frac{1}{2}, sets, intervals, equations)

    r = 1 if math-verify finds both equal, else 0

The answer is the inside of the last answer tag, else the text without its thought; of several expressions in it math-verify takes
the boxed one, else the last. It runs in a process of its own, one per calling thread: math-verify stops itself with signals, that
work in a main thread only (elsewhere it finds nothing and everything scores 0), and an expression such as 9^9^9^9 never ends. One
that takes longer than limit_s fails and leaves the statistics, and the process is killed. Equal texts need no process.

Modality: text
Needs: pip install "mmrl[rewards]" (math-verify), prompts whose answer is a number or a text with LaTeX
Range: {0, 1}
Source: huggingface/Math-Verify
Licence: own code Apache-2.0; Math-Verify Apache-2.0
"""

import logging
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from math import nan
from typing import Any, cast

from mmrl import Group, Scored
from mmrl.answers.block import Template, answer_block, keeps_format
from mmrl.answers.boxes.attempts import completion_text
from mmrl.core.ranges import Count, Positive, check_ranges
from mmrl.core.workers import WorkerError, WorkerProcess
from mmrl.serving.files import import_package

INSTALL = 'pip install "mmrl[rewards]"'
_own = threading.local()


@dataclass(frozen=True)
class MathAnswer:
    """1 for an answer equal to the true one. No answer in the prompt: None; one that is no expression is an error."""

    limit_s: Positive = 5.0
    """For one sample."""
    template: Template | None = None
    """If set, text that breaks this template scores 0."""
    most_characters: Count = 2000
    """A longer answer is unreadable."""

    __post_init__ = check_ranges

    pointwise = True

    def __call__(self, group: Group) -> list[float | Scored | None]:
        if group.prompt.answer is None:
            return [None] * len(group.samples)
        if find_spec("math_verify") is None:
            import_package("math_verify", INSTALL)
        truth = str(group.prompt.answer).strip()
        return [self._score(completion_text(group.prompt, sample), truth, group.prompt.id) for sample in group.samples]

    def _score(self, text: str, truth: str, prompt_id: str) -> Scored:
        if self.template is not None and not keeps_format(text, self.template):
            return _score_of(0.0, format=0.0)
        answer = answer_block(text)
        if not answer or len(answer) > self.most_characters:
            return _score_of(0.0, unparsed=1.0)
        if answer == truth:
            return _score_of(1.0)
        try:
            answered = _worker()(_in_dollars(truth), _in_dollars(answer), timeout_s=self.limit_s)
        except (TimeoutError, WorkerError):
            return _score_of(nan, timeout=1.0)
        found = cast(tuple[bool, bool] | None, answered)
        if found is None:
            raise ValueError(f"the answer {truth!r} of prompt {prompt_id!r} is no expression that math-verify can read")
        equal, parsed = found
        return _score_of(float(equal), unparsed=float(not parsed))


class _Grader:
    """The comparison, which runs in a process that may be killed."""

    def prepare(self) -> None:
        import math_verify  # noqa: F401 - takes seconds, which are not a sample's

        # its own timeouts are off, for which the parent stands in; it warns of that
        logging.getLogger("math_verify").setLevel(logging.ERROR)

    def __call__(self, truth: str, answer: str) -> tuple[bool, bool] | None:
        """(both are equal, the answer was readable); None if the truth is not readable."""
        from math_verify import parse, verify

        settings: dict[str, Any] = {"parsing_timeout": None}
        true, found = parse(truth, **settings), parse(answer, **settings)
        if not true:
            return None
        return bool(found) and bool(verify(true, found, timeout_seconds=None)), bool(found)


def _in_dollars(text: str) -> str:
    """LaTeX in dollars, without which math-verify does not see it."""
    bare = "$" not in text and "\\boxed" not in text and "\\(" not in text and "\\[" not in text
    return f"${text}$" if bare and ("\\" in text or len(text.split()) <= 1) else text


def _worker() -> WorkerProcess:
    """The calling thread's own process."""
    if not hasattr(_own, "worker"):
        _own.worker = WorkerProcess(_Grader())
    return _own.worker


def _score_of(value: float, **parts: float) -> Scored:
    return Scored(value, {"unparsed": 0.0, "timeout": 0.0, **parts})
