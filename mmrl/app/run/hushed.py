"""Libraries that would write on the terminal about something that nobody waits for."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed_saving() -> Iterator[None]:
    """Keep libraries' progress bars and remarks off the terminal, where a model is saved that takes no time."""
    from transformers.utils import logging as words

    had_bars, drawing = words.is_progress_bar_enabled(), logging.getLogger("diffusers")
    level = drawing.level
    words.disable_progress_bar()
    drawing.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        drawing.setLevel(level)
        if had_bars:
            words.enable_progress_bar()
