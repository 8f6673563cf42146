"""Silence for libraries that would print unimportant messages on the terminal."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed_saving() -> Iterator[None]:
    """Keep libraries' progress bars and remarks off the terminal, where a model is saved that takes no time."""
    from diffusers.utils import logging as drawing
    from transformers.utils import logging as words

    bars = [one for one in (words, drawing) if one.is_progress_bar_enabled()]
    before = logging.root.manager.disable
    for one in bars:
        one.disable_progress_bar()
    # not by a logger's level, which libraries set when they are imported
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            yield
    finally:
        logging.disable(before)
        for one in bars:
            one.enable_progress_bar()
