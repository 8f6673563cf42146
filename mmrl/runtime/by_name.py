"""Answers of rewards that are numbers by name. Standard library only, so a reward may run where torch is not."""

from collections.abc import Mapping
from math import fsum
from typing import Any, cast


def by_name(answer: Any) -> tuple[Any, Mapping[str, Any]]:
    """Value and parts: of numbers by name (TypeError for none) each is a part, and the value is "score", or else their sum."""
    if not isinstance(answer, Mapping):
        return answer, {}
    parts = {str(name): number for name, number in cast(Mapping[Any, Any], answer).items()}
    if not parts:
        raise TypeError("no numbers")
    return parts.pop("score") if "score" in parts else fsum(parts.values()), parts
