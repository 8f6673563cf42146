"""Silence for libraries that would print unimportant messages on the terminal."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed_saving() -> Iterator[None]:
    """Keep libraries' progress bars and remarks off the terminal, where a model is saved that takes no time."""
    from transformers.utils import logging as words

    had_bars, before = words.is_progress_bar_enabled(), logging.root.manager.disable
    words.disable_progress_bar()
    # not by a logger's level, which libraries set when they are imported
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        if had_bars:
            words.enable_progress_bar()
