"""A call that must be refused, in one line."""

from collections.abc import Callable

import pytest


def refused(
    words: str,
    call: Callable[..., object],
    /,
    *given: object,
    error: type[BaseException] | tuple[type[BaseException], ...] = ValueError,
    **settings: object,
) -> pytest.ExceptionInfo[BaseException]:
    """Call with what is given; it must raise this error with words that match. Gives the error."""
    with pytest.raises(error, match=words) as caught:
        call(*given, **settings)
    return caught
