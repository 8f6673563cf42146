"""The quantities that a policy can be asked to read."""

from collections.abc import Set

from mmrl.core.types import Reading


def check_reading(reading: Reading, kind: str, offers: Set[str], models: Set[str], views: Set[str]) -> None:
    """Raise ValueError for a reading that a policy of this kind cannot evaluate."""
    for what, name, known in (
        ("quantity", reading.quantity, offers),
        ("model", reading.model, models),
        ("view", reading.view, views),
    ):
        if name not in known:
            raise ValueError(f"{what} {name!r} cannot be read from this {kind} policy, which has {', '.join(sorted(known))}")
