"""Edits of photos by named parameters, as Lightroom calls them: how two agree, and what a few of them do to a picture.

The comparison is JarvisArt's (arXiv:2506.17612; azaj01/JarvisArt@924da2b lrc_tools_reward.py, grpo_lr.py). The renderer is mmrl's
own: it knows four operations, and its pictures are not Lightroom's.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from mmrl.runtime.ranges import is_finite, is_number

Array = NDArray[np.float64]
Edits = Mapping[str, object]
THRESHOLDS = {
    **{"Whites2012": 50.0, "Blacks2012": 50.0, "Clarity2012": 30.0, "Dehaze": 20.0, "Texture": 40.0, "GrainAmount": 40.0},
    **{"Sharpness": 40.0, "RedHue": 20.0},
}
"""Differences that are worth nothing; of names that are not here 1."""
LEFT_OUT = re.compile(
    r"(Exposure|Contrast|Highlights|Shadows)2012|Temperature|Tint|Saturation|Vibrance|ToneCurvePV2012.*"
    r"|(Hue|Saturation|Luminance)Adjustment.*"
)
"""Parameters that JarvisArt judges by the picture, and not by their numbers."""
RENDERED = ("Exposure2012", "Temperature", "Contrast2012", "ToneCurvePV2012")
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])
"""Of linear sRGB; white is D65."""


class EditAgreement(NamedTuple):
    """Both in [0, 1]."""

    names: float
    """Names that both have, as a share of all."""
    values: float
    """The mean over common names of max(0, 1 - |difference| / threshold)."""


def agreement(said: Edits, wanted: Edits, thresholds: Mapping[str, float] = THRESHOLDS) -> EditAgreement:
    """How far two edits have the same names and values. An edit without parameters agrees with nothing."""
    if not said or not wanted:
        return EditAgreement(0.0, 0.0)
    own, true = ({name for name in edits if not LEFT_OUT.fullmatch(name)} for edits in (said, wanted))
    if not own | true:
        return EditAgreement(1.0, 0.0)
    common = sorted(own & true)
    values = [closeness(said[name], wanted[name], thresholds.get(name, 1.0)) for name in common]
    return EditAgreement(len(common) / len(own | true), sum(values) / len(values) if values else 0.0)


def closeness(said: object, wanted: object, threshold: float) -> float:
    """The likeness of two numbers by their distance; of anything else 1 where they are equal."""
    one, other = as_number(said), as_number(wanted)
    if one is None or other is None:
        return float(said == wanted)
    return max(0.0, 1 - abs(one - other) / threshold)


def as_number(x: object) -> float | None:
    return float(x) if is_number(x) and is_finite(x) else None


def either(where: NDArray[np.bool_], one: Array, other: Array) -> Array:
    """`one` where that is True, else `other`."""
    return np.asarray(np.where(where, one, other), dtype=np.float64)


def linear(picture: Array) -> Array:
    """Light of sRGB in [0, 1]."""
    return either(picture <= 0.04045, picture / 12.92, ((picture + 0.055) / 1.055) ** 2.4)


def render(picture: Array, edits: Edits) -> Array:
    """A picture (y, x, 3) in [0, 1] after exposure (stops), temperature and contrast (-100 to 100), and a tone curve.

    A curve is a list of points [in, out] of 0 to 255. ValueError, naming the parameter, for a value of another kind.
    """
    exposure, temperature, contrast = (number_of(edits, name) for name in RENDERED[:3])
    light = linear(picture) * 2.0**exposure * 2.0 ** np.array([temperature / 200, 0, -temperature / 200])
    light = light.clip(0, 1)
    shown = either(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    shown = (0.5 + (shown - 0.5) * (1 + contrast / 100)).clip(0, 1)
    curve = curve_of(edits)
    return shown if curve is None else np.interp(shown, curve[:, 0], curve[:, 1])


def number_of(edits: Edits, name: str) -> float:
    """The parameter as a number within what is rendered, 0 where it is not named."""
    found, most = as_number(edits.get(name, 0)), 5 if name == "Exposure2012" else 100
    if found is None or abs(found) > most:
        raise ValueError(f"{name} is {edits[name]!r}: write a number from -{most} to {most}")
    return found


def items_of(value: object) -> Sequence[object]:
    """The items of a list or tuple; none of anything else."""
    return cast(Sequence[object], value) if isinstance(value, list | tuple) else ()


def curve_of(edits: Edits) -> Array | None:
    """The points of the tone curve in [0, 1]; None without one."""
    found = edits.get(RENDERED[3])
    if found is None:
        return None
    said = f"{RENDERED[3]} is {found!r}: write two points [in, out] or more, of 0 to 255 and rising"
    points = [items_of(one) for one in items_of(found)]
    if not points or any(len(one) != 2 for one in points):
        raise ValueError(said)
    numbers = [[as_number(x) for x in one] for one in points]
    flat = [x for one in numbers for x in one if x is not None and 0 <= x <= 255]
    if len(points) < 2 or len(flat) != 2 * len(points) or not (np.diff(flat[::2]) > 0).all():
        raise ValueError(said)
    return np.array(flat).reshape(-1, 2) / 255


def lab_of(picture: Array) -> Array:
    """L, a and b of CIE 1976 under D65, of sRGB in [0, 1]; L is 0 to 100."""
    xyz = linear(picture) @ TO_XYZ.T / TO_XYZ.sum(1)
    f = either(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], -1)


def likeness(one: Array | Sequence[object], other: Array | Sequence[object], k: float = 0.015) -> float:
    """exp(-k mean distance) of two pictures in Lab."""
    return math.exp(-k * float(np.linalg.norm(np.asarray(one) - np.asarray(other), axis=-1).mean()))
