"""Names for the scores of probes (samples drawn for comparison only)."""


def column(reward: str, view: str) -> str:
    """The column of the scores that holds a reward's mean over a group's probes under a view: `iou@shuffled`."""
    return f"{reward}@{view}"
