"""A reward that tells apart what a random model writes."""

from mmrl import Group


def even(group: Group) -> list[float]:
    """The share of a text's letters that have even numbers."""
    return [
        sum(ord(letter) % 2 == 0 for letter in sample.text or "") / max(1, len(sample.text or "")) for sample in group.samples
    ]
