"""Columns of data sets that look as if they set something: rewards read them, policies do not."""

import logging
from collections.abc import Collection, Sequence

from mmrl.core.types import Prompt

log = logging.getLogger("mmrl")


def warn_of_columns(prompts: Sequence[Prompt], idle: Collection[str]) -> None:
    """Say once which columns change nothing about how prompts are answered: those in `idle`."""
    found: dict[str, Prompt] = {}
    for prompt in prompts:
        for name in prompt.columns:
            if name in idle:
                found.setdefault(name, prompt)
    if found:
        name, prompt = next(iter(found.items()))
        log.warning(
            f"prompts have the columns {', '.join(sorted(found))}, which rewards can read and the policy does not: prompt "
            f"{prompt.id!r} says {name} = {str(prompt.columns[name])[:60]!r}, but [policy] alone decides; set what you mean in "
            "[policy], and rename or remove the columns"
        )
