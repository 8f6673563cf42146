"""Pictures or clips with captions that a generator is taught, or pairs of which people prefer one.

    {"image": "7.png", "caption": "a red fox"}                          also prompt or text in place of caption
    {"video": "7.mp4", "caption": "a fox runs", "start": 2.5}           a clip, from this second on
    {"video": "7.mp4", "caption": "it runs", "first_frame": "7.png"}    for models that draw what follows a picture
    {"prompt": "a red fox", "chosen": "7.png", "rejected": "8.png"}     a pair, of pictures or of clips
    {"caption": "a red fox", "jpg_0": .., "jpg_1": .., "label_0": 1}    a pair as pickapic and diffusers have it

The picture is in the column `picture` of a prompt, the clip in `clip`, or the two in `chosen` and `rejected`. A label of 0.5 says
that nobody preferred one: such rows are left out, as in diffusers' scripts, and so are rows without a label. Pictures are paths
or bytes, clips are paths, of which policy.frames are taught at policy.fps.
Rows may be JSONL, JSON, CSV, TSV, parquet, tar files, data of Hugging Face or pictures with metadata.jsonl. `width` and `height`
in pixels are the size at which a row is taught, instead of the policy's; a picture of another shape is cut to its middle.
Licence: that of your data.
"""

from collections.abc import Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.core.samples import VIDEO, Video, kind_of
from mmrl.data.files.paths import cell_below
from mmrl.data.files.pictures import open_picture, picture_size
from mmrl.data.files.videos import probe_video
from mmrl.data.layouts.base import DRAWN, drawn_text
from mmrl.data.layouts.files import prompts_in
from mmrl.data.readers import Cell, Row
from mmrl.data.validate import FILE_ROW
from mmrl.runtime.ranges import Count

SHOWN = ("image", "picture", "video", "clip")
FIRST, START = "first_frame", "start"
PAIR = ("chosen", "rejected")
PICKED = ("jpg_0", "jpg_1")
LABEL = "label_0"
"""1: the first of PICKED is preferred, 0: the second, 0.5: none."""
OWN = (*SHOWN, *PAIR, *PICKED, *DRAWN, "id", LABEL, FIRST)


def load(
    path: str | Path,
    split: str | None = None,
    column: str | None = None,
    image_root: str | Path | None = None,
    size: Count | None = None,
) -> Sequence[Prompt]:
    """The file's prompts, in its order.

    Args:
        path: a JSONL, JSON, CSV, TSV, parquet or tar file; or a folder: with `<split>.jsonl`, of Hugging Face, or of pictures.
        split: of a folder the one to read; of a file, keep the rows whose column `split` says so.
        column: the one that holds the prompt; None: prompt, caption or text.
        image_root: where relative paths start and which none leaves; the file's folder by default, and then absolute paths may
            name any picture.
        size: how many rows are read; None: all.

    Raises:
        ValueError: listing the first bad rows with file and line, or where no row is left.
    """

    def make(row: Row, root: Path, anywhere: bool) -> Prompt | None:
        if not (shown := _shown(row)):
            return None
        start, first = row.values.get(START), row.values.get(FIRST)
        found = [(name, _found(root, name, cell, anywhere, start)) for name, cell in shown.items()]
        taught = {name if name in PAIR else "clip" if kind_of(one) is VIDEO else "picture": one for name, one in found}
        media = () if first is None else (_found(root, FIRST, first, anywhere),)
        _, text = drawn_text(row, DRAWN if column is None else (column,))
        # columns of bytes would be copied with every prompt
        rest = {name: value for name, value in row.values.items() if name not in OWN and not isinstance(value, bytes)}
        return Prompt(str(row.values.get("id", row.number)), text, media, columns={**rest, FILE_ROW: row.place, **taught})

    prompts = prompts_in(path, split, image_root, make, size)
    if not prompts:
        raise ValueError(f"{path} holds no row with a picture or a pair of which one is preferred: there is nothing to teach")
    return prompts


def _shown(row: Row) -> dict[str, Cell]:
    """The pictures of a row by our names; none of a pair that nobody decided. ValueError without pictures."""
    there = {name for name, value in row.values.items() if value is not None}
    if there.issuperset(PAIR):
        return {name: row.values[name] for name in PAIR}
    if there.issuperset(PICKED):
        label = row.values.get(LABEL)
        if label in (None, 0.5):
            return {}
        if label not in (0, 1):
            raise ValueError(f"column {LABEL} is {label!r}: it must be 1 where {PICKED[0]} is preferred, 0 or 0.5")
        return dict(zip(PAIR, (row.values[name] for name in (PICKED if label == 1 else PICKED[::-1])), strict=True))
    for name in SHOWN:
        if name in there:
            return {name: row.values[name]}
    raise ValueError(
        f"the row has {', '.join(map(str, row.values)) or 'no columns'}, and no picture: it needs {SHOWN[0]}, {SHOWN[2]}, "
        f"{' and '.join(PAIR)}, or {', '.join(PICKED)} and {LABEL}"
    )


def _found(root: Path, name: str, cell: Cell, anywhere: bool, start: Cell = None) -> object:
    """A path below the root, an open picture, or a clip from a second on; ValueError for anything else."""
    if not cell or not isinstance(cell, str | bytes | dict):
        raise ValueError(f"column {name} is {str(cell)[:80]!r}: it must be the path of a picture or clip")
    shown = cell if isinstance(cell, bytes) else cell_below(root, cell, anywhere)
    if not isinstance(shown, str) or kind_of(shown) is not VIDEO:
        picture_size(shown)
        return shown if isinstance(shown, str) else open_picture(shown)
    if start is not None and (isinstance(start, bool) or not isinstance(start, int | float)):
        raise ValueError(f"column {START} is {str(start)[:80]!r}: it must be a number of seconds")
    probe_video(clip := Video(shown, start=start))
    return shown if start is None else clip
