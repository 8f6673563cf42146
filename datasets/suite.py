"""The prompts of a published test set, read from its files: see "Published test sets" on the site.

Every prompt has the published text, and columns by which the test set's numbers are broken down. Files of another version
than was published are refused. Nothing is downloaded. Licence: that of the test set; nothing is shipped.
"""

from collections.abc import Sequence
from pathlib import Path

from mmrl import Prompt, find_suite
from mmrl.data.suites.suite import load_suite


def load(suite: str, path: str | Path | None = None, media: str | Path | None = None, any_size: bool = False) -> Sequence[Prompt]:
    """The prompts in the order of the files.

    Args:
        suite: refcoco, refcoco+, refcocog, screenspot_v2, charades_sta, geneval, ...; or a file of your own, ./mine.py
        path: the folder with its files; None: the snapshot of the hub on this machine, where the suite has one.
        media: the folder of its pictures or clips; None: the one in `path` that the suite names.
        any_size: True takes files with another number of prompts than was published.

    Raises:
        FileNotFoundError: files are missing; the error says where they come from.
        ValueError: no such suite, or files of another version.
    """
    return load_suite(find_suite(suite), path, media, any_size)
