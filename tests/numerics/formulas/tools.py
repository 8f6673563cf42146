"""Formulas of methods whose policy calls tools on its picture, which nothing runs yet: it stands here with their checks."""

Corners = tuple[float, float, float, float]
"""x1, y1, x2, y2 in pixels."""


def crop_corners(box: Corners, width: int, height: int, least: int = 30, most_aspect: int = 100) -> Corners | None:
    """The part of a box that lies in a picture, or None where a side is at most `least` pixels or the shape too long.

    The zoom of DeepEyes (arXiv:2505.14362). Its enlargement of small boxes can never run, for they were refused before.
    """
    left, top, right, bottom = max(0.0, box[0]), max(0.0, box[1]), min(float(width), box[2]), min(float(height), box[3])
    sides = right - left, bottom - top
    if min(sides) <= least or max(sides) / min(sides) > most_aspect:
        return None
    return left, top, right, bottom


def zoom_reward(accuracy: float, crops: int, malformed: bool) -> float:
    """0.8 accuracy - 0.2 [malformed] + 1.2 [accuracy > 0.5 and a crop was returned] (DeepEyes, arXiv:2505.14362)."""
    return 0.8 * accuracy - 0.2 * malformed + 1.2 * (accuracy > 0.5 and crops > 0)


def code_reward(accuracy: float, well_formed: bool, consistency: float, form: float = 0.5, code: float = 0.1) -> float:
    """accuracy +- form + code consistency, of answers that ran code on the picture (Thyme, arXiv:2508.11630).

    0.1 is the script's weight; the default in its code is 0.3.
    """
    return accuracy + (form if well_formed else -form) + code * consistency
