"""The picture that an edit starts from, at the size a model sees it and rewards compare with."""

from typing import Literal

from PIL import Image, ImageOps

from mmrl.runtime.pictures import upright_rgb

Fit = Literal["resize", "crop", "pad"]
"""resize: stretched; crop: what lies in the middle; pad: all of it, with white at two sides."""


def picture_at(picture: Image.Image, size: tuple[int, int], fit: Fit = "resize") -> Image.Image:
    """The picture as everybody is shown it, at `size` = (width, height) in pixels."""
    upright = upright_rgb(picture, lent=True)
    if upright.size == size:
        return upright.copy()
    if fit == "crop":
        return ImageOps.fit(upright, size, Image.Resampling.LANCZOS)
    if fit == "pad":
        return ImageOps.pad(upright, size, Image.Resampling.LANCZOS, color="white")
    return upright.resize(size, Image.Resampling.LANCZOS)
