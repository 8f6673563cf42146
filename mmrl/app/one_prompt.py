"""`mmrl draw` and `mmrl ask`: one prompt of the user's own, answered by the weights of any checkpoint of a run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from mmrl.answers.block import opened_text
from mmrl.answers.boxes.box import SPACES, Box
from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.app.files import replace_bytes
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import AnswerSample, answer, config_of, refuse_missing, refuse_other_out, usual_file
from mmrl.app.run.sample_files import strip_of
from mmrl.core.samples import IMAGE, kind_of
from mmrl.core.types import Prompt, Sample
from mmrl.data.files.mp4 import write_mp4
from mmrl.data.files.wav import wav_bytes
from mmrl.policies.shared.pictures import open_picture
from mmrl.runtime.disk import room_for

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
COLOUR = "#ff6a13"
"""The colour of predicted boxes, here as in reports."""
CLIPS = (".mp4", ".png")
"""H.264 holds clips of even sides; as a picture a clip is a strip of some frames."""
SOUNDS = (".wav",)
KINDS = {"image": (PICTURES, "a picture", ".png"), "video": (CLIPS, "a clip", ".mp4"), "sound": (SOUNDS, "a sound", ".wav")}
KINDS["video with sound"] = KINDS["video"]
"""Kind of what is drawn -> the files that hold one, its words, and the usual file."""


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
            # the letters that PIL's own font has
            label = "".join(letter if letter.isprintable() and ord(letter) < 256 else "?" for letter in box.label)
            pen.text((x1 + width + 1, y1 + width), label[:80], fill=COLOUR)
    file.parent.mkdir(parents=True, exist_ok=True)
    with room_for(file, "ask again"):
        picture.save(file)


def draw(
    path: Path, text: str, images: Sequence[Path] = (), step: int | None = None, seed: int | None = None, out: Path | None = None
) -> dict[str, object]:
    """Draw a prompt, with pictures to edit, and write the file; the facts of it, as `mmrl draw --json` prints them.

    Raises FileNotFoundError where `path` holds no run or a picture is missing, FileExistsError if `out` exists, and ValueError
    for a run whose model writes, a file of another kind, and as in `answer`.
    """
    run = RunDir.open(path)
    config = config_of(run, "flow", "token_image")
    kind = config.makes
    suffixes, words, usual = KINDS[kind]
    refuse_other_out(out, suffixes, words)
    if out is not None and kind.endswith("with sound"):
        refuse_other_out(out.with_suffix(".wav"), SOUNDS, "a sound")
    refuse_missing(images)
    prompt = Prompt(text, text, tuple(map(str, images)))
    found = answer(run, config, prompt, step, seed)
    file = out or usual_file(run, prompt, found, ".png" if usual == ".mp4" and not is_even(found.sample) else usual)
    size = write(found.sample, file)
    facts = {"run": run.path, "step": found.step, "prompt": text, "seed": found.seed, "file": file, **size}
    return facts | ({"frames": len(found.sample.video), "fps": found.sample.fps} if usual == ".mp4" else {})


def is_even(sample: Sample) -> bool:
    return isinstance(sample.video, np.ndarray) and not sample.video.shape[1] % 2 and not sample.video.shape[2] % 2


def write(sample: Sample, file: Path) -> dict[str, int]:
    """Write a picture or clip, or a sound, that of a clip as .wav beside it; its width and height, or its rate and samples."""
    heard: dict[str, int] = {}
    if isinstance(sample.sound, np.ndarray):
        assert sample.rate is not None
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(file.with_suffix(".wav"), wav_bytes(sample.sound, sample.rate))
        heard = {"rate": sample.rate, "samples": sample.sound.shape[1]}
        if sample.video is None:
            return heard
    if isinstance(sample.video, np.ndarray):
        height, width = sample.video.shape[1:3]
        if file.suffix.lower() == ".mp4":
            if not is_even(sample):
                raise ValueError(
                    f"--out {file}: H.264 holds no clip of {width} x {height}, odd sides: give it a .png for a strip"
                )
            write_mp4(file, sample.video, max(1, round(sample.fps or 1.0)))
            return {"width": width, "height": height, **heard}
        picture = strip_of(sample.video)
    else:
        picture = sample.image
        width, height = picture.size if isinstance(picture, Image.Image) else (0, 0)
    assert isinstance(picture, Image.Image)
    file.parent.mkdir(parents=True, exist_ok=True)
    with room_for(file, "draw again"):
        picture.save(file)
    return {"width": width, "height": height, **heard}
