"""Edits of photos by named parameters, as Lightroom calls them: how two agree, and what a few of them do to a picture.

The comparison is JarvisArt's (arXiv:2506.17612; azaj01/JarvisArt@924da2b lrc_tools_reward.py, grpo_lr.py). The renderer is mmrl's
own: it knows four operations, and its pictures are not Lightroom's.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mmrl.answers.boxes.detection import best_pairs
from mmrl.answers.masks import items_of
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
    r"|(Hue|Saturation|Luminance)Adjustment.*|MaskGroupBasedCorrections"
)
"""Parameters that JarvisArt judges by the picture, and masks, which are compared by themselves."""
MASKS = "MaskGroupBasedCorrections"
ENDS = ("ZeroX", "ZeroY", "FullX", "FullY")
"""Where a linear gradient begins and where it is full, in shares of the photo's width and height."""
LOCAL = {
    **{"LocalExposure2012": 0.08, "LocalContrast2012": 0.3, "LocalShadows2012": 0.8, "LocalWhites2012": 0.15, "LocalHue": 0.3},
    **{"LocalBlacks2012": 0.2, "LocalClarity": 0.3, "LocalClarity2012": 0.3, "LocalTexture": 0.35, "LocalDehaze": 0.15},
    **{"LocalSaturation": 0.15, "LocalBrightness": 10.0, "LocalToningHue": 20.0, "LocalToningSaturation": 0.3, "LocalTint": 0.25},
    **{"LocalTemperature": 0.4, "LocalLuminanceNoise": 0.45, "LocalMoire": 0.15, "LocalGrain": 0.4, "LocalSharpness": 0.2},
}
"""Differences inside a mask that are worth nothing; of names that are not here 1."""
NO_VALUES = frozenset({"What", "CorrectionMasks", "CorrectionName", "Gesture", "LocalCurveRefineSaturation", "CorrectionAmount"})
RENDERED = ("Exposure2012", "Temperature", "Contrast2012", "ToneCurvePV2012")
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])
"""Of linear sRGB; white is D65."""


def agreement(said: Edits, wanted: Edits, thresholds: Mapping[str, float] = THRESHOLDS) -> dict[str, float]:
    """The parts `names` (common ones, as a share of all) and `values`, their mean of max(0, 1 - |difference| / threshold).

    An edit without parameters agrees with nothing.
    """
    if not said or not wanted:
        return {"names": 0.0, "values": 0.0}
    own, true = ({name for name in edits if not LEFT_OUT.fullmatch(name)} for edits in (said, wanted))
    if not own | true:
        return {"names": 1.0, "values": 0.0}
    common = sorted(own & true)
    values = [closeness(said[name], wanted[name], thresholds.get(name, 1.0)) for name in common]
    return {"names": len(common) / len(own | true), "values": sum(values) / len(values) if values else 0.0}


def closeness(said: object, wanted: object, threshold: float) -> float:
    """The likeness of two numbers by their distance; of anything else 1 where they are equal."""
    one, other = as_number(said), as_number(wanted)
    if one is None or other is None:
        return float(said == wanted)
    return max(0.0, 1 - abs(one - other) / threshold)


def masks_agreement(said: object, wanted: object) -> float:
    """.4 (matched / true masks) + .6 mean over the matched of likeness x values; a match is the best one-to-one, and above .3.

    Masks are corrections of one linear gradient each; any other is like nothing.
    """
    own, true = masks_of(said), masks_of(wanted)
    alike = np.array([[gradient_likeness(one, other) for other in true] for one in own]).reshape(len(own), len(true))
    pairs = [(i, j) for i, j in best_pairs(alike) if alike[i, j] > 0.3]
    if not pairs:
        return 0.0
    worth = sum(float(alike[i, j]) * local_values(own[i], true[j]) for i, j in pairs)
    return 0.4 * len(pairs) / len(true) + 0.6 * worth / len(pairs)


def masks_of(found: object) -> list[Edits]:
    """The corrections of a list; an item of another kind says nothing."""
    return [cast(Edits, one) if isinstance(one, dict) else {} for one in items_of(found)]


def gradient_of(mask: Edits) -> Edits | None:
    """The linear gradient of a correction; None of one that has none, or more than one part."""
    parts = masks_of(mask.get("CorrectionMasks"))
    is_one = len(parts) == 1 and parts[0].get("What") == "Mask/Gradient"
    return parts[0] if is_one and all(as_number(parts[0].get(name)) is not None for name in ENDS) else None


def gradient_likeness(said: Edits, wanted: Edits) -> float:
    """.7 s + .3, s by how far both ends lie apart (half the photo is worth nothing) and by the mode; 0 for s up to .2."""
    one, other = gradient_of(said), gradient_of(wanted)
    if one is None or other is None:
        return 0.0
    x0, y0, x1, y1 = (cast(float, one[name]) - cast(float, other[name]) for name in ENDS)
    place = sum(max(0.0, 1 - math.hypot(*apart) / 0.5) for apart in ((x0, y0), (x1, y1))) / 2
    s = place * mode_likeness(one, other)
    return 0.7 * s + 0.3 if s > 0.2 else 0.0


def mode_likeness(one: Edits, other: Edits) -> float:
    """0 where one gradient alone is off or turned round, .4 where they blend differently, else by their strength."""
    if any(one.get(name, usual) != other.get(name, usual) for name, usual in (("MaskActive", True), ("MaskInverted", False))):
        return 0.0
    if one.get("MaskBlendMode", 0) != other.get("MaskBlendMode", 0):
        return 0.4
    return closeness(one.get("MaskValue", 1), other.get("MaskValue", 1), 1.0)


def local_values(said: Edits, wanted: Edits) -> float:
    """The mean closeness of the values of either mask; one that is missing counts as 0, and a small one too many is left out."""
    names = sorted((said.keys() | wanted.keys()) - NO_VALUES)
    found = {name: closeness(said.get(name, 0), wanted.get(name, 0), LOCAL.get(name, 1.0)) for name in names}
    counted = [value for name, value in found.items() if name in wanted or value <= 0.5]
    return sum(counted) / len(counted) if counted else 1.0


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
