"""Our own layouts, rows with a box and rows with an answer, and those that shipped data sets of their own read."""

from collections.abc import Iterator

from mmrl.data.layouts.base import ANSWERS, BOX, BOXES, CLIPS, PICTURES, QUESTIONS, Look, OwnDataSet, RowLayout
from mmrl.data.readers import Row

GQA = ("video_id", "qid", "a0")


def has_boxes(look: Look) -> bool:
    return look.has_one(*BOX) and look.has_one("question", *PICTURES)


def has_answers(look: Look) -> bool:
    return look.has("question") and look.has_one(*ANSWERS) and not look.has_one("video_filename")


def same_row(row: Row) -> Iterator[Row]:
    yield row


OWN_BOXES = RowLayout(
    "boxes",
    "a picture, a question and boxes in every row",
    ("image", "question", "box", "size", "space", "id", "split"),
    has_boxes,
    same_row,
    always=BOXES,
)
OWN_QUESTIONS = RowLayout(
    "questions",
    "a question and its answer in every row, perhaps with pictures, clips and options",
    ("question", "answer", "image", "video", "options", "kind", "id", "split"),
    has_answers,
    same_row,
    always=QUESTIONS,
)
SHIPPED = (
    OwnDataSet("video_r1", "Video-R1", lambda look: look.has("problem", "path")),
    OwnDataSet("clevrer", "CLEVRER", lambda look: look.has("video_filename", "questions")),
    OwnDataSet("edits", "pictures with instructions", lambda look: look.has("instruction") and look.has_one(*PICTURES)),
    OwnDataSet(
        "prompts",
        "prompts, one a line or in a column",
        lambda look: (
            (
                isinstance(look.example("prompt"), str)
                and not look.has_one(*PICTURES, *CLIPS, *ANSWERS, "completion", "instruction")
            )
            or (look.path.suffix.lower() == ".txt" and "##" not in look.line)
        ),
    ),
    OwnDataSet("charades_sta", "Charades-STA", lambda look: look.path.suffix.lower() == ".txt" and "##" in look.line),
    OwnDataSet("next_gqa", "NExT-GQA", lambda look: set(GQA) <= set(look.line.strip().split(","))),
    OwnDataSet("activitynet_captions", "ActivityNet Captions", lambda look: "timestamps" in look.keys),
)
