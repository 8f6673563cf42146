"""Rewards of methods whose policy calls tools on its picture, which nothing runs yet: they stand here with their checks."""


def zoom_reward(accuracy: float, crops: int, malformed: bool) -> float:
    """0.8 accuracy - 0.2 [malformed] + 1.2 [accuracy > 0.5 and a crop was returned] (DeepEyes, arXiv:2505.14362)."""
    return 0.8 * accuracy - 0.2 * malformed + 1.2 * (accuracy > 0.5 and crops > 0)


def code_reward(accuracy: float, well_formed: bool, consistency: float, form: float = 0.5, code: float = 0.1) -> float:
    """accuracy +- form + code consistency, of answers that ran code on the picture (Thyme, arXiv:2508.11630).

    0.1 is the script's weight; the default in its code is 0.3.
    """
    return accuracy + (form if well_formed else -form) + code * consistency
