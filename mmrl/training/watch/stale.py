"""Steps whose samples were written with caches from before an update: log-ratios that leap above the run's usual rounding."""

import math
import statistics
from collections.abc import Sequence

LOG_RATIO = "rollout/log_ratio"
LEAST = 1e-4
"""Mean |log ratio| that is rounding, whatever is usual: what an engine in float32 makes is a hundred times smaller."""
FACTOR = 10.0
"""The same as a multiple of what is usual. Rounding grows slowly; a cache that was not emptied costs all of an update at once."""
WINDOW = 20
"""Steps whose median is what is usual."""


def leaps(values: Sequence[float]) -> list[int]:
    """The places in a run's log-ratios, in their order, that leap above the median of those before, leaps left out.

    The first is what rounding makes: no update came before it, so no cache can be from before one.
    """
    usual: list[float] = []
    found: list[int] = []
    for place, value in enumerate(values):
        if usual and value > max(LEAST, FACTOR * statistics.median(usual)):
            found.append(place)
        elif math.isfinite(value):
            usual = [*usual, value][-WINDOW:]
    return found


def stale_sentence(steps: Sequence[float], values: Sequence[float]) -> str:
    """A sentence on the steps of a run whose log-ratios leap; empty where none does."""
    places = leaps(values)
    if not places:
        return ""
    usual = statistics.median([value for place, value in enumerate(values) if place not in places and math.isfinite(value)])
    few = ", ".join(f"{steps[place]:.0f}" for place in places[:5]) + (", ..." if len(places) > 5 else "")
    worst, first = max(values[place] for place in places), steps[places[0]]
    return (
        f"at {len(places)} of {len(steps)} steps ({few}) the sampler's log-probabilities are up to {worst:.3g} nats per action "
        f"off, and usually {usual:.2g}: a server wrote with caches from before an update, or with other weights. What was "
        f"trained from step {first:.0f} on learned from wrong ratios: resume from a checkpoint before it"
    )
