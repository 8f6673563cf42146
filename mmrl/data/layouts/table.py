"""All known layouts, one entry each: how its files are recognised, its columns, and what puts its rows in our words.

Rows whose columns only have other names than ours are read by `Columns`, those that hold turns by `Conversation`, and those that
need computing by a function. A layout without any of these is read by the data set of its name.

    {"prompt": "How many cats?", "images": ["cats.jpg"], "answer": 2}                                                   trl
    {"image": "train2014/1.jpg", "problem": "Where is the left cat?", "solution": [1, 2, 30, 40]}                       problem
    {"id": "7", "image": "cat.jpg", "conversations": [{"from": "human", "value": "<image>\\nWhere is the cat?"}, ..]}    llava
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mmrl.core.samples import AUDIO, KINDS, VIDEO
from mmrl.data.files.pictures import PICTURE_SUFFIXES
from mmrl.data.layouts.annotations.coco import CAPTIONED, INSTANCES, QUESTION, caption_rows, coco_rows, rows_by_label
from mmrl.data.layouts.annotations.label_studio import has_shapes, is_label_studio, label_studio_rows, labelme_rows
from mmrl.data.layouts.annotations.objects import BOXES as OBJECT_BOXES
from mmrl.data.layouts.annotations.objects import OURS, has_objects, has_sides, objects_row, side_rows
from mmrl.data.layouts.annotations.voc import has_xml, voc_rows
from mmrl.data.layouts.answers import BOX_KEYS, say_answer
from mmrl.data.layouts.base import (
    ANSWERS,
    BOX,
    BOXES,
    CLIPS,
    DRAWN,
    EDITED,
    MEDIA,
    PICTURES,
    QUESTIONS,
    SPANS,
    DataLayout,
    Look,
    answers_in,
    one_of,
    row_like,
)
from mmrl.data.layouts.refer import RAW, SENTENCES, has_refs, lmms_row, raw_row, refer_rows
from mmrl.data.layouts.turns import MESSAGES, OBJECTS, PAIR, PART, Conversation, messages_row, refused_of
from mmrl.data.layouts.yolo import has_labels, yolo_rows
from mmrl.data.readers import CLASSES, Row

_TASK = re.compile(r"(?:<(?:image|[A-Z_]+|loc_\d+)>\s*+)++")


@dataclass(frozen=True)
class Columns:
    """The columns that hold question and answer: `Columns("problem")` reads {"problem": "1 + 1?", "solution": 2}."""

    question: str
    answers: tuple[str, ...] = ANSWERS
    """The columns of which one holds the answer; what looks like boxes is said as boxes."""

    def __call__(self, row: Row) -> Iterator[Row]:
        found, pictures, answers = row.values.get(self.question), one_of(row, *PICTURES), answers_in(row, self.answers)
        if not isinstance(found, str) or not found.strip():
            raise ValueError(f"column {self.question} must be a text that is not empty, not {str(found)[:80]!r}")
        others = {kind.name: one_of(row, *kind.columns) or None for kind in (VIDEO, AUDIO)}
        said = say_answer(one_of(row, *answers), bool(pictures))
        said = {"question": found.strip(), "image": pictures or None, **others, **said}
        yield row_like(row, (self.question, *answers, *MEDIA), said)


def prefix_row(row: Row, question: str = QUESTION) -> Iterator[Row]:
    """A row of `prefix` and `suffix`. A task of Florence-2 is no question: what follows it is, or each label of its boxes."""
    for said in Columns("prefix", ("suffix",))(row):
        asked = str(said.values["question"])
        task = _TASK.match(asked)
        text = asked[task.end() :].strip() if task else asked
        found = said.values.get("box", ())
        boxes = [(one["label"], one["bbox"]) for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]
        if text:
            yield row_like(said, (), {"question": text})
        elif not boxes:
            raise ValueError(f"prefix {asked} is a task of Florence-2 and no question: write a question there")
        else:
            name = said.values.get("id", f"{row.source}-{row.number}")
            yield from (row_like(said, ("box",), one) for one in rows_by_label({"id": name}, boxes, question))


REST = (*MEDIA, *ANSWERS, "id", "split")
"""The other columns of rows whose question is in one of their own."""
COMPLETED = (*ANSWERS, "completion")
LMMS = ("image", "answer", "bbox", "segmentation", "file_name")
BOXED = (*BOX_KEYS, "label")
"""The keys of a box that is an object."""
ANSWERED: dict[str, tuple[str, ...]] = dict.fromkeys(ANSWERS, BOXED)
TURNS = (*MESSAGES.columns, *PAIR, "completion")
CHATS = {
    **ANSWERED,
    **dict.fromkeys(TURNS, ("role", "content")),
    **{f"{name}.content": PART for name in TURNS},
    **{f"{name}.content.{source}": ("url",) for name in TURNS for source in ("image_url", "video_url")},
}
"""What is read of turns as OpenAI, ms-swift and TRL write them."""
GQA = ("video_id", "qid", "a0")


def is_text(look: Look, of_spans: bool) -> bool:
    """Is it a text file, of sentences with spans (`AO8RW 0.0 6.9##a person sits`) or without?"""
    return look.path.suffix.lower() == ".txt" and ("##" in look.line) == of_spans


def is_edit(look: Look) -> bool:
    """Does a row say how its picture is to change, by an instruction, or by a prompt with a mask or target?"""
    changes = look.has("instruction") or (look.has_text("prompt") and look.has_one("mask", "target"))
    return changes and look.has_one(*PICTURES) and not look.has_one(*ANSWERS)


def is_pair_of_texts(look: Look) -> bool:
    """Has a row two completions, texts or turns, and not two pictures?"""
    texts = [str(look.example(name)) for name in PAIR if look.has_text(name)]
    return all(look.has_text(name) or look.has_turns(name, "role") for name in PAIR) and not any(
        Path(text[-8:]).suffix.lower() in PICTURE_SUFFIXES for text in texts
    )


def holds_its_question(look: Look) -> bool:
    """Are there two conversations in place of a prompt and two completions?"""
    return all(look.has_turns(name, "role") for name in PAIR) and not look.has_one("prompt", "question", "problem", "messages")


def is_drawn(look: Look) -> bool:
    """Are its texts prompts for pictures to draw? A picture next to a caption is not one that a question is about."""
    asks = (
        is_pair_of_texts(look)
        or look.has_one("question", "problem", "instruction", "suffix", *BOX, *COMPLETED)
        or has_sides(look)
    )
    captioned = any(map(look.has_text, DRAWN[1:])) and not look.has("prompt")
    return is_text(look, of_spans=False) or (not asks and (captioned or (look.has_text("prompt") and not look.has_one(*MEDIA))))


OWN_BOXES = DataLayout(
    "boxes",
    "a picture, a question and boxes in every row",
    lambda look: look.has_one(*BOX) and look.has_one("question", *PICTURES),
    ("image", "question", "box", "size", "space", "id", "split"),
    lambda row: (row,),
    told=True,
    always=BOXES,
    known=dict.fromkeys(BOX, BOXED),
)
OWN_QUESTIONS = DataLayout(
    "questions",
    "a question and its answer (or a span of its clip) in every row, perhaps with pictures, clips and options",
    lambda look: (
        look.has("question") and look.has_one(*ANSWERS, *SPANS) and not (look.has_one("video_filename") or look.has(*GQA))
    ),
    ("question", "answer", *SPANS, *KINDS, "options", "kind", "id", "split"),
    lambda row: (row,),
    always=QUESTIONS,
)
LISTED = DataLayout(
    "objects",
    "Hugging Face's column of boxes and classes",
    has_objects,
    ("image", "objects", "question", "id", "split"),
    objects_row,
    asks=True,
    always=BOXES,
    known={"objects": (*OBJECT_BOXES, *CLASSES)},
)
OTHERS = (
    DataLayout(
        "messages",
        "conversations as OpenAI, ms-swift and TRL write them",
        lambda look: any(look.has_turns(name, "role") for name in MESSAGES.columns) or holds_its_question(look),
        (*MESSAGES.columns, "completion", "objects", *REST),
        messages_row,
        beats=("objects", "objects_corners"),
        known={**CHATS, "objects": OBJECTS},
        refused=refused_of(TURNS),
    ),
    DataLayout(
        "llava",
        "LLaVA's conversations of human and gpt",
        lambda look: look.has_turns("conversations", "from"),
        ("conversations", *REST),
        Conversation(("conversations",), "from", "value"),
        known={**ANSWERED, "conversations": ("from", "value")},
    ),
    DataLayout(
        "trl",
        "TRL's layouts of texts: prompt with images, a completion, or chosen and rejected",
        lambda look: (
            look.has_text("prompt")
            and not look.has_one("question", "instruction")
            and (look.has_one(*MEDIA, *COMPLETED) or is_pair_of_texts(look))
        ),
        ("prompt", *MEDIA, *COMPLETED, "id", "split"),
        Columns("prompt", COMPLETED),
        known=ANSWERED,
    ),
    DataLayout(
        "problem",
        "problem and solution, as VLM-R1 writes RefCOCO",
        # Video-R1's rows have a path, and the data set video_r1 reads them
        lambda look: look.has("problem") and look.has_one(*ANSWERS) and not look.has_one("path", "question"),
        ("problem", *REST),
        Columns("problem"),
        known=ANSWERED,
    ),
    DataLayout(
        "prefix",
        "prefix and suffix, by which PaliGemma and Florence-2 are taught",
        lambda look: look.has("prefix", "suffix"),
        ("prefix", "suffix", *MEDIA, "id", "split"),
        prefix_row,
        asks=True,
    ),
    DataLayout(
        "sides",
        "four columns with the sides of a box, and a question or a label",
        has_sides,
        ("image", "question", "label", *OURS, "width", "height", "id", "split"),
        gather=side_rows,
        asks=True,
        told=True,
        always=BOXES,
    ),
    LISTED,
    replace(
        LISTED,
        name="objects_corners",
        summary="the same, boxes as two corners",
        fits=partial(has_objects, are_corners=True),
        say=partial(objects_row, are_corners=True),
    ),
    DataLayout("label_studio", "Label Studio's files", is_label_studio, gather=label_studio_rows, asks=True, always=BOXES),
    DataLayout("coco", "COCO's instances JSON", lambda look: look.keys >= INSTANCES, read=coco_rows, asks=True, always=BOXES),
    DataLayout("yolo", "YOLO's folder of labels", has_labels, read=yolo_rows, asks=True, always=BOXES),
    DataLayout("voc", "Pascal VOC's XML files", has_xml, read=voc_rows, asks=True, always=BOXES),
    DataLayout("labelme", "LabelMe's JSON files", has_shapes, read=labelme_rows, asks=True, always=BOXES),
    DataLayout("refcoco", "RefCOCO's folder of instances.json and refs", has_refs, read=refer_rows, always=BOXES),
    DataLayout(
        "refcoco_mdetr",
        "RefCOCO as MDETR writes it, a caption per image",
        lambda look: look.keys >= CAPTIONED,
        read=caption_rows,
        beats=("coco",),
        always=BOXES,
    ),
    DataLayout(
        "refcoco_lmms",
        "RefCOCO in the hub's parquet of lmms-lab",
        lambda look: look.has(*LMMS) and isinstance(look.example("answer"), list),
        (*LMMS, "question_id"),
        lmms_row,
        beats=("boxes", "questions"),
        always=BOXES,
        known={"": ("image", "answer", "bbox", "question_id")},
    ),
    DataLayout(
        "refcoco_raw",
        "RefCOCO in parquet with image_path and raw_anns",
        lambda look: look.has(*RAW) and look.has_one(*SENTENCES),
        (*RAW, *SENTENCES),
        raw_row,
        beats=("boxes",),
        always=BOXES,
        known={"": (*RAW, *SENTENCES, "ref_id", "split"), "raw_anns": ("bbox",), "raw_image_info": ("width", "height")},
    ),
    DataLayout("video_r1", "Video-R1", lambda look: look.has("problem", "path")),
    DataLayout("clevrer", "CLEVRER", lambda look: look.has("video_filename", "questions")),
    DataLayout("edits", "pictures with instructions", is_edit, beats=("trl",), files=(*MEDIA, *EDITED)),
    DataLayout("prompts", "prompts of pictures, one a line or in a column", is_drawn),
    DataLayout(
        "pictures",
        "pictures or clips with captions",
        lambda look: is_drawn(look) and look.has_one(*PICTURES, *CLIPS),
        beats=("prompts",),
    ),
    DataLayout("charades_sta", "Charades-STA", lambda look: is_text(look, of_spans=True)),
    DataLayout("next_gqa", "NExT-GQA", lambda look: look.has(*GQA)),
    DataLayout("activitynet_captions", "ActivityNet Captions", lambda look: "timestamps" in look.keys),
)
LAYOUTS: Mapping[str, DataLayout] = {layout.name: layout for layout in (OWN_BOXES, OWN_QUESTIONS, *OTHERS)}
"""Name -> layout."""
OWN = {BOXES: OWN_BOXES, QUESTIONS: OWN_QUESTIONS}
"""Data set -> the layout that its files have if they have none of the others."""
NAMES = {
    data_set: tuple(
        name for name, one in LAYOUTS.items() if (one.say or one.read or one.gather) and (one.always or data_set) == data_set
    )
    for data_set in OWN
}
"""Data set -> the layouts that it can read."""
