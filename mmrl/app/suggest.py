"""Did you mean: the end of every message about an unknown name."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'iou'? (known: iou, format)`, or only the list where nothing is close."""
    names = sorted(set(known))
    listed = f"known: {', '.join(names)}" if names else "there is none"
    close = get_close_matches(word, names, n=1) or [name for name in names if word and name.lower().startswith(word.lower())]
    return f"did you mean {close[0]!r}? ({listed})" if close else f"it is not one of these ({listed})"
