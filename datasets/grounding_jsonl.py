"""Your own grounding data: a JSONL, JSON or parquet file with a picture, a question and boxes in every row.

    {"image": "cat.jpg", "question": "Where is the cat?", "box": [10, 20, 200, 180]}
    {"image": "street.jpg", "question": "Find all cars", "boxes": [{"bbox": [0, 5, 60, 40], "label": "car"}], "id": "7"}

Other layouts are recognized and reported: COCO, YOLO, VOC, LabelMe, Label Studio, RefCOCO, tables and chats of many kinds.

Further columns: `size` ([width, height], compared with the picture), `space` (of this row's boxes), `split`; all others
reach the rewards in `prompt.columns`. Every row is checked before training starts. Licence: that of your data.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.answers.boxes.box import Space
from mmrl.data.grounding import BoxFormat, GroundingLayout
from mmrl.data.layouts.load import load_prompts
from mmrl.data.layouts.source import open_source


def load(
    path: str | Path,
    split: str | None = None,
    image_root: str | Path | None = None,
    space: Space = "pixel",
    box_format: BoxFormat = "xyxy",
    columns: Mapping[str, str] | None = None,
    template: str = "{question}",
    layout: str | None = None,
) -> Sequence[Prompt]:
    """The file's prompts, in its order; answers are a Box, or a tuple where the row lists boxes.

    Args:
        path: the file; or a folder: with `<split>.jsonl`, of Hugging Face, of pictures with metadata.jsonl, or RefCOCO's.
        split: of a folder the one to read; of a file, keep the rows whose column `split` says so.
        image_root: where relative picture paths start and which none leaves; the file's folder by default, and then absolute
            paths may name any picture.
        space: of the boxes: pixel, norm1000 or norm1.
        box_format: xyxy (two corners) or xywh (a corner, width and height).
        columns: our name -> the file's, for image, question, box, size, space, id, split, or a layout's own columns.
        template: the prompt's text, with {question} in it.
        layout: the layout of the file, by its name in `mmrl data check`; None: guessed and reported.

    Raises:
        ValueError: listing the first bad rows with file and line.
    """
    source = open_source(path, "grounding_jsonl", layout, columns, split)
    source.check_boxes(space, box_format)
    root = source.root if image_root is None else Path(image_root)
    names = columns or {} if source.is_own else {}
    reader = GroundingLayout(root, space, box_format, names, template, anywhere=image_root is None)
    prompts = load_prompts(source, reader)
    if not source.knows_boxes and (space, box_format) == ("pixel", "xyxy") and reader.habits.suspicion is not None:
        warnings.warn(f"{path}: {reader.habits.suspicion}", stacklevel=2)
    return prompts
