"""Your own edits: a JSONL, JSON or parquet file with a picture and an instruction in every row.

    {"image": "cat.jpg", "instruction": "make the cat black"}
    {"image": "room.jpg", "instruction": "remove the chair", "mask": "chair.png", "target": "empty_room.jpg", "id": "7"}
    {"images": ["dress.png", "woman.jpg"], "instruction": "let her wear the dress"}

`mask` is white where the first picture may change (for the reward `keeps_rest`), `target` is how it should look (for
`toward_target`); both have its size. List several pictures for models that accept them. `width` and `height` in pixels are the
size of the edited picture, instead of the policy's. Other columns are passed to the rewards in `prompt.columns`. Every row is
checked before training starts. Licence: that of your data.
"""

from collections.abc import Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.data.files.paths import path_below
from mmrl.data.files.pictures import picture_size
from mmrl.data.readers import Row, read_rows
from mmrl.data.validate import FILE_ROW, Report, check_new_id

OWN = ("image", "images", "instruction", "id", "mask", "target")


def load(path: str | Path, split: str | None = None, image_root: str | Path | None = None) -> Sequence[Prompt]:
    """The file's prompts, in its order.

    Args:
        path: the file, or a folder that holds `<split>.jsonl`.
        split: for a file, keep the rows whose column `split` says so.
        image_root: where relative paths start and which none leaves; the file's folder by default, and then absolute paths may
            name any picture.

    Raises:
        ValueError: listing the first bad rows with file and line.
    """
    file, rows_split = Path(path), split
    if file.is_dir():
        if split is None:
            raise ValueError(f"{file} is a folder: give `split`, to read <split>.jsonl, or a file")
        file, rows_split = file / f"{split}.jsonl", None
    root = file.parent if image_root is None else Path(image_root)
    report, prompts, ids = Report(file.name), list[Prompt](), set[str]()
    for row in read_rows(file, report):
        if rows_split is not None and row.values.get("split") != rows_split:
            continue
        report.num_rows += 1
        with report.collecting(row.place):
            prompt = _prompt(row, root, anywhere=image_root is None)
            check_new_id(prompt, ids)
            prompts.append(prompt)
    report.raise_if_bad()
    return prompts


def _prompt(row: Row, root: Path, anywhere: bool) -> Prompt:
    text = row.values.get("instruction")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"column instruction is {text!r}: it must say what is to be changed")

    def found(name: str, value: object) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError(f"column {name} is {value!r}: it must be the path of a picture")
        return str(path_below(root, value, "image_root", anywhere))

    name = "images" if "images" in row.values else "image"
    value = row.values.get(name)
    media = tuple(found(name, each) for each in (value if isinstance(value, list) and value else [value]))
    size = picture_size(media[0])
    more = {key: found(key, row.values[key]) for key in ("mask", "target") if row.values.get(key) is not None}
    for key, other in more.items():
        width, height = picture_size(other)
        if (width, height) != size:
            raise ValueError(f"column {key} is {width} x {height} pixels, but the picture {size[0]} x {size[1]}: cut them alike")
    columns = {key: value for key, value in row.values.items() if key not in OWN}
    return Prompt(str(row.values.get("id", row.number)), text, media, columns={**columns, **more, FILE_ROW: row.place})
