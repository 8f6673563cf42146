"""Your own edits, or first frames of clips: a picture and an instruction in every row, which may be called prompt.

    {"image": "cat.jpg", "instruction": "make the cat black"}
    {"image": "room.jpg", "instruction": "remove the chair", "mask": "chair.png", "target": "empty_room.jpg", "id": "7"}
    {"image": "cat.jpg", "prompt": "the cat jumps off the chair"}
    {"images": ["dress.png", "woman.jpg"], "instruction": "let her wear the dress"}

A folder may hold each instruction in a file beside its picture: 001.png, 001.txt.
`mask` is white where the first picture may change (for the reward `keeps_rest`), `target` is how it should look (for
`toward_target`); both have its size. List several pictures for models that accept them. `width` and `height` in pixels are the
size of the edited picture, instead of the policy's. Other columns are passed to the rewards in `prompt.columns`. Every row is
checked before training starts. Licence: that of your data.
"""

from collections.abc import Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.data.files.paths import cell_below
from mmrl.data.files.pictures import open_picture, picture_size
from mmrl.data.layouts.base import one_of
from mmrl.data.layouts.files import prompts_in
from mmrl.data.readers import Row
from mmrl.data.validate import FILE_ROW, strip_markers

OWN = ("image", "images", "instruction", "prompt", "text", "id", "mask", "target")


def load(path: str | Path, split: str | None = None, image_root: str | Path | None = None) -> Sequence[Prompt]:
    """The file's prompts, in its order.

    Args:
        path: a JSONL, JSON, CSV, TSV, parquet or tar file; or a folder: with `<split>.jsonl`, of Hugging Face, or of pictures.
        split: of a folder the one to read; of a file, keep the rows whose column `split` says so.
        image_root: where relative paths start and which none leaves; the file's folder by default, and then absolute paths may
            name any picture.

    Raises:
        ValueError: listing the first bad rows with file and line.
    """
    return prompts_in(path, split, image_root, _prompt)


def _prompt(row: Row, root: Path, anywhere: bool) -> Prompt:
    text = one_of(row, "instruction", "prompt") or row.values.get("text")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"column instruction is {text!r}: it must say what is to be changed")

    def found(name: str, value: object) -> object:
        if not value or not isinstance(value, str | bytes | dict):
            raise ValueError(f"column {name} is {value!r}: it must be the path of a picture")
        return cell_below(root, value, anywhere)

    name = "images" if "images" in row.values else "image"
    value = row.values.get(name)
    media = [found(name, each) for each in (value if isinstance(value, list) and value else [value])]
    size = picture_size(media[0])
    more = {key: found(key, row.values[key]) for key in ("mask", "target") if row.values.get(key) is not None}
    for key, other in more.items():
        width, height = picture_size(other)
        if (width, height) != size:
            raise ValueError(f"column {key} is {width} x {height} pixels, but the picture {size[0]} x {size[1]}: cut them alike")
    columns = {key: value for key, value in row.values.items() if key not in OWN}
    shown = tuple(one if isinstance(one, str) else open_picture(one) for one in media)
    text = strip_markers(text, shown)
    return Prompt(str(row.values.get("id", row.number)), text, shown, columns={**columns, **more, FILE_ROW: row.place})
