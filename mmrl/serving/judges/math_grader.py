"""Two mathematical expressions compared by math-verify, in a process that may be killed.

math-verify stops itself with signals, that work in a main thread only (elsewhere it finds nothing and everything scores 0), and
an expression such as 9^9^9^9 never ends; so each calling thread has a process of its own. Equal texts need none.
"""

import logging
import threading
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

from mmrl.runtime.workers import WorkerError, WorkerProcess
from mmrl.serving.files import import_package

_own = threading.local()
"""The calling thread's own process."""


class MathGrade(NamedTuple):
    """The comparison of an answer with the true one: `MathGrade(True)`."""

    equal: bool = False
    unparsed: bool = False
    """Nothing in the answer could be read as an expression."""
    timeout: bool = False
    """The comparison took too long, or its process died: no verdict."""


def grade_math(answer: str, truth: str, prompt_id: str, limit_s: float = 5.0, most_characters: int = 2000) -> MathGrade:
    """Is the answer mathematically equal to the truth?

    Args:
        prompt_id: of the prompt, for errors.
        limit_s: seconds until a comparison is given up.
        most_characters: a longer answer is unreadable.

    Raises:
        ImportError: math-verify is not installed.
        ValueError: the truth is no expression.
    """
    if find_spec("math_verify") is None:
        import_package("math_verify")
    if not answer or len(answer) > most_characters:
        return MathGrade(unparsed=True)
    if answer == truth:
        return MathGrade(True)
    try:
        if not hasattr(_own, "worker"):
            _own.worker = WorkerProcess(_Grader(), reads_main=False)
        answered = _own.worker(_in_dollars(truth), _in_dollars(answer), timeout_s=limit_s)
    except (TimeoutError, WorkerError):
        return MathGrade(timeout=True)
    found = cast(tuple[bool, bool] | None, answered)
    if found is None:
        raise ValueError(f"the answer {truth!r} of prompt {prompt_id!r} is no expression that math-verify can read")
    equal, parsed = found
    return MathGrade(equal, not parsed)


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
