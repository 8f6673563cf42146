"""Who raised an exception: the terminal, or which line of a plug-in; words and values of foreign objects. No other library."""

import math
import signal
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Any, NoReturn, cast

PLUGIN = "mmrl_plugin__"
"""How names of modules begin that were loaded by path."""
RAISED_IN, OWN = "raised in ", "raised by a plug-in, and not by the terminal"
LONGEST = 300


class AskedToLeaveError(BaseException):
    """Leaves what was being done; not an Exception, so that no `except Exception` takes it for a failure."""


class UnavailableError(RuntimeError):
    """Something outside of the run cannot answer now and will not soon: training stops with a checkpoint."""


class RewardUnavailableError(UnavailableError):
    """A reward cannot answer: nothing is counted as failed."""


class EngineUnavailableError(UnavailableError):
    """No server that writes completions answers: nothing of the step was kept."""


class CtrlCInterrupt(KeyboardInterrupt):
    """The interrupt of a signal that came; code that raises a KeyboardInterrupt raises another one."""


def know_ctrl_c() -> None:
    """From here on tell Ctrl-C and a plug-in's KeyboardInterrupt apart; nothing changes where SIGINT is ignored or handled."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise CtrlCInterrupt


def is_from_outside(error: BaseException) -> bool:
    """Did the terminal or the cluster ask to leave, rather than a plug-in raise something of its own?"""
    if isinstance(error, CtrlCInterrupt) or (
        isinstance(error, KeyboardInterrupt) and isinstance(error.__context__, CtrlCInterrupt)
    ):
        return True
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        if OWN in getattr(error, "__notes__", ()):
            return False
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, AskedToLeaveError)


def note_own(error: BaseException) -> None:
    """Write into an exception that a plug-in raised it by itself: elsewhere a KeyboardInterrupt would pass for the terminal's."""
    if isinstance(error, KeyboardInterrupt):
        error.add_note(OWN)


def place_of(error: BaseException) -> str:
    """`/home/me/mine.py, line 12`: the last line of a plug-in that the exception passed; empty where it passed none."""
    places = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").startswith(PLUGIN)
    ]
    noted = [note.removeprefix(RAISED_IN) for note in getattr(error, "__notes__", ()) if note.startswith(RAISED_IN)]
    return next(reversed(places), "") or next(iter(noted), "")


def note_place(error: BaseException) -> None:
    """Write the place into the exception, where it stays when the exception goes to another process and its frames do not."""
    place = place_of(error)
    if place:
        error.add_note(RAISED_IN + place)


def in_words(text: str, causes: Iterable[BaseException]) -> ValueError:
    """An error of these words that still knows which line of a plug-in raised its causes."""
    refused = ValueError(text)
    for place in dict.fromkeys(filter(None, map(place_of, causes))):
        refused.add_note(RAISED_IN + place)
    return refused


def refuse_where(said: str, reasons: Mapping[str, bool], remedy: str = "") -> None:
    """Raise ValueError with the first of the reasons that holds, between what is said of all and their remedy."""
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"{said}{reason}{remedy}")


@contextmanager
def about(place: str) -> Iterator[None]:
    """A block whose ValueErrors are about a place, with which they begin from then on."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def describe(error: BaseException) -> str:
    """`TypeError: can only add numbers (/home/me/mine.py, line 12)`."""
    place = place_of(error)
    return f"{type(error).__name__}: {text_of(error)}{f' ({place})' if place else ''}"


def text_of(error: BaseException, most: int = LONGEST) -> str:
    """The words of an exception, cut; one whose own code fails says so."""
    try:
        return cut(str(error), most)
    except Exception as broken:  # noqa: BLE001 - an exception's own __str__ may raise anything
        return f"(its text raises {type(broken).__name__})"


def shown(value: object) -> str:
    """`repr` of anything, cut; an object whose own code fails is named by its type."""
    try:
        return cut(repr(value))
    except Exception as broken:  # noqa: BLE001 - an object's own __repr__ may raise anything
        return f"<{type(value).__name__}, whose repr raises {type(broken).__name__}>"


def cut(text: str, most: int = LONGEST) -> str:
    """The text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


Foreign = Any
"""An object of whatever class."""


def by_name(answer: object) -> tuple[Foreign, Mapping[str, Foreign]]:
    """Value and parts of an answer, unchecked: of numbers by name (TypeError for none) "score" is the value, else their sum."""
    if not isinstance(answer, Mapping):
        return answer, {}
    parts = {str(name): number for name, number in cast(Mapping[object, Foreign], answer).items()}
    if not parts:
        raise TypeError("no numbers")
    return parts.pop("score") if "score" in parts else math.fsum(parts.values()), parts


class NoListError(TypeError):
    """The object is no sequence of values."""


def values_of(answer: Foreign, count: int) -> list[Foreign]:
    """The values in order, at most one more than `count`, because there may be no end.

    Raises NoListError where they have no order, or it is a text, whose letters are not values.
    """
    try:
        found = iter(cast(Foreign, None) if isinstance(answer, str | bytes | bytearray | Mapping | Set) else answer)
    except TypeError:
        raise NoListError(f"answered {type(answer).__name__}") from None
    return list(islice(found, count + 1))


def count_of(values: Sequence[object], wanted: int) -> str:
    return str(len(values)) if len(values) <= wanted else f"more than {wanted}"
