"""`mmrl ask`: the answer of any checkpoint of a run to a question about pictures and clips, with its boxes drawn."""

from collections.abc import Sequence
from pathlib import Path

from PIL import ImageDraw

from mmrl.answers.block import opened_text
from mmrl.answers.boxes.box import SPACES, Box
from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import AnswerSample, answer, config_of, refuse_missing, refuse_other_out, usual_file
from mmrl.core.samples import IMAGE, kind_of
from mmrl.core.types import Prompt
from mmrl.policies.shared.pictures import open_picture
from mmrl.runtime.disk import room_for

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
COLOUR = "#ff6a13"
"""The colour of predicted boxes, here as in reports."""


def ask(path: Path, words: Sequence[str], step: int | None = None, out: Path | None = None) -> dict[str, object]:
    """Ask the last of the words about the files before it; the facts of the answer, as `mmrl ask --json` prints them.

    Where the answer has boxes, and the run's model is known to write them, the first picture with them is written to `out`.
    Raises FileNotFoundError where `path` holds no run or a file is missing, FileExistsError if `out` exists, and ValueError for
    a run whose model draws, a question that is a file's name, and as in `answer`.
    """
    run = RunDir.open(path)
    config = config_of(run, "text")
    *files, question = words
    if Path(question).is_file():
        raise ValueError(f"{question} is a file, and the last word is the question: put it behind the files, in quotes")
    refuse_other_out(out, PICTURES, "a picture")
    refuse_missing([Path(file) for file in files])
    media = tuple(kind_of(file).value_of(file) for file in files)
    prompt = Prompt("asked", question, media)
    found = answer(run, config, prompt, step)
    boxes = boxes_in(prompt, found)
    file = (out or usual_file(run, prompt, found, ".png")) if boxes else None
    if file is not None:
        draw_boxes(prompt, boxes, file)
    return {
        "run": run.path,
        "step": found.step,
        "question": question,
        "answer": found.sample.transcript,
        "truncated": found.sample.truncated,
        "boxes": [[*box.rounded(1).corners, box.label] for box in boxes],
        "file": file,
    }


def boxes_in(prompt: Prompt, found: AnswerSample) -> list[Box]:
    """The boxes of an answer in pixels of the first picture; none where the model is not known to write any."""
    sizes, space = found.sample.media_sizes, found.box_space
    if not prompt.media or kind_of(prompt.media[0]) is not IMAGE or not sizes or space not in SPACES:
        return []
    return [box.to("pixel", sizes[0]) for box in dict.fromkeys(parse_boxes(opened_text(found.sample), space))]


def draw_boxes(prompt: Prompt, boxes: Sequence[Box], file: Path) -> None:
    """Write the first picture with boxes."""
    picture = open_picture(prompt.media[0], prompt.id)
    pen, width = ImageDraw.Draw(picture), max(1, round(max(picture.size) / 200))
    for box in boxes:
        corners = zip(box.corners, picture.size * 2, strict=True)
        x1, y1, x2, y2 = (min(max(place, -1.0), float(side)) for place, side in corners)
        pen.rectangle((x1, y1, x2, y2), outline=COLOUR, width=width)
        if box.label is not None:
            pen.text((x1 + width + 1, y1 + width), printable_label(box.label), fill=COLOUR)
    file.parent.mkdir(parents=True, exist_ok=True)
    with room_for(file, "ask again"):
        picture.save(file)


def printable_label(label: str) -> str:
    """The label in letters that PIL's own font has, on one short line."""
    return "".join(letter if letter.isprintable() and ord(letter) < 256 else "?" for letter in label)[:80]
