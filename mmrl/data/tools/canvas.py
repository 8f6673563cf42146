"""A picture of a prompt as a tool works on it."""

from PIL import Image, ImageOps

from mmrl.answers.boxes.box import Space
from mmrl.core.samples import MediaSize
from mmrl.data.files.pictures import open_picture


def upright(source: object) -> Image.Image:
    """A copy in its file's own size, RGB, held as EXIF demands. Raises FileNotFoundError, ValueError for what is no picture."""
    picture = open_picture(source)
    try:
        return ImageOps.exif_transpose(picture).convert("RGB")
    except Exception as error:  # noqa: BLE001 - decoders raise whatever a broken file provokes
        raise ValueError(f"a picture is broken or cut short: {error}") from None
    finally:
        if picture is not source:
            picture.close()


def sizes_of(picture: Image.Image, space: Space, size: MediaSize | None) -> MediaSize:
    """The picture's size in its file, and as the model saw it. Raises ValueError where the space needs what is missing."""
    if space == "resized" and size is None:
        raise ValueError("boxes in resized pixels need the picture's size as the model saw it: give the tool its MediaSize")
    return MediaSize(*picture.size, *(picture.size if size is None else (size.seen_width, size.seen_height)))
