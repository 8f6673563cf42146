"""Prompts for pictures of three sizes, so that processes draw unequal ones."""

from mmrl.core.types import Prompt

SIZES = ((16, 16), (32, 16), (16, 32))


def load() -> list[Prompt]:
    """Two prompts of the run's own size, and two of each other one."""
    texts = ("a red fox", "two large dogs", "a blue door", "a green hill", "the old mill", "a bowl of rice")
    own: list[dict[str, object]] = [{} if i % 3 == 0 else {"width": SIZES[i % 3][0], "height": SIZES[i % 3][1]} for i in range(6)]
    return [Prompt(str(i), text, columns=columns) for i, (text, columns) in enumerate(zip(texts, own, strict=True))]
