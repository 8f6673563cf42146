"""One test for many things that cost next to nothing each: all are looked at, and all faults are told at once."""

import inspect
import traceback
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest


def listed(*values: object) -> str:
    return ", ".join(map(str, values))


def for_each(names: str, cases: Iterable[Any], ids: Callable[..., object] = listed) -> Callable[[Callable[..., Any]], Any]:
    """Like pytest.mark.parametrize, but as one test: it fails once, with the faults of every case under the case's name.

    Cases share the test's fixtures, so this is for looking at things and not for changing any. `names` are divided by commas,
    and `ids` makes a name of a case's values.
    """
    taken, rows = [name.strip() for name in names.split(",")], list(cases)

    def wrap(test: Callable[..., Any]) -> Callable[..., None]:
        @wraps(test)
        def look(**fixtures: Any) -> None:
            assert rows, "there is nothing to look at"
            faults: list[str] = []
            for row in rows:
                values = (row,) if len(taken) == 1 else row
                try:
                    test(**fixtures, **dict(zip(taken, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - a fault of whatever kind is told
                    faults.append(f"{ids(*values)}: {fault(error)}")
            if faults:
                pytest.fail("\n".join([f"{len(faults)} of {len(rows)} are wrong:", *faults]), pytrace=False)

        own = inspect.signature(test)
        look.__signature__ = own.replace(  # pyright: ignore[reportAttributeAccessIssue] - pytest reads it to find fixtures
            parameters=[one for name, one in own.parameters.items() if name not in taken]
        )
        return look

    return wrap


def fault(error: BaseException) -> str:
    """What went wrong and where in the tests."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) != Path(__file__)]
    place = f" ({Path(frames[0].filename).name}:{frames[0].lineno})" if frames else ""
    kind = "" if isinstance(error, AssertionError | pytest.fail.Exception) else f"{type(error).__name__}: "
    return f"{kind}{error}{place}"
