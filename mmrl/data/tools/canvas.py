"""A picture of a prompt as a tool works on it."""

from PIL import Image

from mmrl.answers.boxes.box import Space
from mmrl.core.samples import MediaSize


def sizes_of(picture: Image.Image, space: Space, size: MediaSize | None) -> MediaSize:
    """The picture's size in its file, and as the model saw it. Raises ValueError where the space needs what is missing."""
    if space == "resized" and size is None:
        raise ValueError("boxes in resized pixels need the picture's size as the model saw it: give the tool its MediaSize")
    return MediaSize(*picture.size, *(picture.size if size is None else (size.seen_width, size.seen_height)))
