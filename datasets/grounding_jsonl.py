"""Grounding data of your own: a JSONL, JSON or parquet file with a picture, a question and boxes in every row.

    {"image": "cat.jpg", "question": "Where is the cat?", "box": [10, 20, 200, 180]}
    {"image": "street.jpg", "question": "Find all cars", "boxes": [{"bbox": [0, 5, 60, 40], "label": "car"}], "id": "7"}

Further columns: `size` ([width, height], compared with the picture), `space` (of this row's boxes), `split`; all others
reach the rewards in `prompt.columns`. Every row is checked before training starts. Licence: that of your data.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.answers.boxes.box import Space
from mmrl.data.grounding import BoxFormat, Layout, read_grounding


def load(
    path: str | Path,
    split: str | None = None,
    image_root: str | Path | None = None,
    space: Space = "pixel",
    box_format: BoxFormat = "xyxy",
    columns: Mapping[str, str] | None = None,
    template: str = "{question}",
) -> Sequence[Prompt]:
    """The file's prompts, in its order; answers are a Box, or a tuple where the row lists boxes.

    Args:
        path: the file, or a folder that holds `<split>.jsonl`.
        split: for a file, keep the rows whose column `split` says so.
        image_root: where relative picture paths start and which none leaves; the file's folder by default, and then absolute
            paths may name any picture.
        space: of the boxes: pixel, norm1000 or norm1.
        box_format: xyxy (two corners) or xywh (a corner, width and height).
        columns: our name -> the file's, for image, question, box, size, space, id, split.
        template: the prompt's text, with {question} in it.

    Raises:
        ValueError: listing the first bad rows with file and line.
    """
    file, rows_split = Path(path), split
    if file.is_dir():
        if split is None:
            raise ValueError(f"{file} is a folder: give `split`, to read <split>.jsonl, or a file")
        file, rows_split = file / f"{split}.jsonl", None
    root = file.parent if image_root is None else Path(image_root)
    layout = Layout(root, space, box_format, columns or {}, template, anywhere=image_root is None)
    prompts, report = read_grounding(file, layout, rows_split)
    report.raise_if_bad()
    return prompts
