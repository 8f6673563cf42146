"""An environment that shows parts of the picture, and ends some samples early: processes get unequal work."""

from mmrl import Observation, Prompt, Turn


def answer(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """Depends on the seed and the number of turns alone."""
    if (seed + len(turns)) % 5 == 0:
        return None
    side = 20 + 10 * (seed % 3)
    return Observation("Look." * (1 + seed % 4), (prompt.media[0].crop((0, 0, side, side)),) if seed % 2 else ())
