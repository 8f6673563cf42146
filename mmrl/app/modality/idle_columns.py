"""Columns of data sets that look as if they set something: rewards read them, policies do not."""

import logging
from collections.abc import Collection, Mapping, Sequence

from mmrl.core.types import Prompt

log = logging.getLogger("mmrl")


def warn_of_columns(prompts: Sequence[Prompt], fixed: Mapping[str, object], idle: Collection[str]) -> None:
    """Say once which columns change nothing about how prompts are answered.

    Args:
        fixed: column -> the value that [policy] has; only another value is worth a word.
        idle: columns that no setting of one prompt corresponds to.
    """
    found: dict[str, Prompt] = {}
    for prompt in prompts:
        for name in prompt.columns:
            if name in idle or (name in fixed and prompt.columns[name] != fixed[name]):
                found.setdefault(name, prompt)
    if found:
        name, prompt = next(iter(found.items()))
        as_set = f"every prompt is answered with policy.{name} = {fixed[name]}" if name in fixed else "[policy] alone decides"
        log.warning(
            f"prompts have the columns {', '.join(sorted(found))}, which rewards can read and the policy does not: prompt "
            f"{prompt.id!r} says {name} = {str(prompt.columns[name])[:60]!r}, but {as_set}; set what you mean in [policy], and "
            "rename or remove the columns"
        )
