"""Grounding data from Hugging Face `datasets`: a hub id, a local folder, or parquet files; RefCOCO layout and the like.

RefCOCO, RefCOCO+ and RefCOCOg are recognized in both layouts of the hub, as are messages, LLaVA's conversations, problem and
solution. A list of questions gives one prompt each. Needs `pip install 'mmrl[data]'`. Licence: that of the data set.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from mmrl import Prompt
from mmrl.answers.boxes.box import Space
from mmrl.data.grounding import BoxFormat, GroundingLayout
from mmrl.data.layouts.base import Look
from mmrl.data.layouts.load import hf_prompts, streamed_prompts, translating
from mmrl.data.layouts.source import look_for
from mmrl.data.readers import StoredHfDataset, hf_rows, open_hf
from mmrl.data.sources import StreamedPrompts


def load(
    name: str,
    split: str | None = None,
    streaming: bool = False,
    columns: Mapping[str, str] | None = None,
    box_format: BoxFormat = "xyxy",
    space: Space = "pixel",
    template: str = "{question}",
    image_root: str | Path = "",
) -> Sequence[Prompt] | Iterable[Prompt]:
    """Prompts whose pictures are opened when used.

    Args:
        name: hub id, folder (saved data set or data files) or `*.parquet`.
        split: may be left out if there is only one.
        streaming: True reads and checks each row when it is needed; False checks all rows first.
        columns: our name -> the data set's, for image, question, box, size, space, id, or a layout's own columns.
        box_format: xyxy (two corners) or xywh (a corner, width and height).
        space: of the boxes: pixel, norm1000 or norm1.
        template: the prompt's text, with {question} in it.
        image_root: where picture paths start, if the data set holds paths and not pictures.

    Raises:
        ValueError: naming data set and row, for rows that cannot be trained on.
    """
    data = open_hf(name, split, True) if streaming else open_hf(name, split)
    first = next(hf_rows(data, name), None)
    source = look_for(Look(Path(name)), first and first.values, "grounding_jsonl", columns or {})
    source.check_boxes(space, box_format)
    source.say_layout()
    names = columns or {} if source.is_own else {}
    layout = GroundingLayout(Path(image_root), space, box_format, names, template, anywhere=not str(image_root))
    prompts_of = translating(source, layout)
    if streaming:
        return StreamedPrompts(lambda: streamed_prompts(data, name, prompts_of))
    return hf_prompts(cast(StoredHfDataset, data), name, prompts_of)
