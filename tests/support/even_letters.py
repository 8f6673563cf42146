"""A reward that tells apart what a random model writes."""

from mmrl import Group


def even(group: Group) -> list[float]:
    """The share of a text's letters that have even numbers."""
    texts = [sample.text or " " for sample in group.samples]
    return [sum(ord(letter) % 2 == 0 for letter in text) / len(text) for text in texts]
