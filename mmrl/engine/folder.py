"""Where the environment of an engine lies, and which versions of it were tried. Standard library only."""

import re
from pathlib import Path

from mmrl.runtime.cache import cache_folder

VERSION = "0.32.0"
"""The version of vLLM that `mmrl engine install` makes an environment of, and that mmrl was tried with."""
TRIED = re.compile(r"0\.32(\.\d+)?(\+\w+)?")
"""Versions whose answers mmrl knows: others may name, or leave out, what it checks."""


def engine_folder() -> Path:
    """The folder of vLLM's own environment: `engines/vllm-0.32.0` in the cache, which is never cleared to make room."""
    return cache_folder() / "engines" / f"vllm-{VERSION}"
