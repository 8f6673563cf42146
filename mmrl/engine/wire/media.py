"""Pictures and frames as addresses with their content inside. PNG alone: JPEG would change pixels."""

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image


def picture_part(picture: Image.Image) -> dict[str, str]:
    """A picture of a prompt, (width, height) as the processor is to get it."""
    return {"type": "image_url", "url": "data:image/png;base64," + as_png(picture)}


def clip_part(frames: np.ndarray) -> dict[str, str]:
    """A clip as its frames, (n, height, width, 3) in uint8.

    vLLM reads frames in a row under the type video/jpeg alone, whatever each of them is packed as.
    """
    pictures: Sequence[Image.Image] = [Image.fromarray(frame) for frame in frames]
    return {"type": "video_url", "url": "data:video/jpeg;base64," + ",".join(map(as_png, pictures))}


def as_png(picture: Image.Image) -> str:
    """The picture in base64."""
    buffer = io.BytesIO()
    # Time to pack matters more than bytes: pictures go to this machine, or to a neighbour's.
    picture.save(buffer, "PNG", compress_level=1)
    return base64.b64encode(buffer.getvalue()).decode()
