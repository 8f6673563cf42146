"""The code of README.md, CONTRIBUTING.md and docs/: its blocks, the commands in them, and files that the commands name."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from docs.pages.suites import SUITES_WORDS
from examples.toy_squares import make as make_squares
from mmrl.data.files.mp4 import write_mp4
from tests.support.sounds import tone, write_wav

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    doc: str
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.doc}-{self.number}-{self.language or 'none'}"


def texts() -> dict[str, str]:
    """Page -> its text; also the page of published test sets, whose words are written by hand and which only the site shows."""
    pages = {doc.relative_to(ROOT).as_posix(): doc.read_text(encoding="utf-8") for doc in DOCS}
    return pages | {"docs/how_to/suites.md": SUITES_WORDS}


def blocks() -> list[Block]:
    found: list[Block] = []
    for doc, page in texts().items():
        for number, match in enumerate(FENCE.finditer(page)):
            indent = len(match[1])
            text = "\n".join(line[indent:] for line in match[3].splitlines())
            found.append(Block(doc, number, match[2].strip().partition(" ")[0], text))
    return found


def of_language(*languages: str) -> list[Block]:
    return [block for block in blocks() if block.language in languages]


def inline_commands() -> list[tuple[str, str]]:
    """`mmrl ...` inside sentences and tables: the document and the command."""
    found: list[tuple[str, str]] = []
    for doc, page in texts().items():
        prose = FENCE.sub("", page)
        found += [(Path(doc).name, command) for command in re.findall(r"`(mmrl [^`]*)`", prose)]
    return list(dict.fromkeys(found))


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of shell lines as words: without comments, prompts and assignments before them."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";&|")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";&|"):
                words = without_assignments(words)
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def without_assignments(words: list[str]) -> list[str]:
    while words and re.match(r"^[A-Z_][A-Z0-9_]*=", words[0]):
        words = words[1:]
    return words


def lay_desk(folder: Path, reward: str, row: dict[str, object]) -> None:
    """The files that commands of the documentation speak of, small."""
    (folder / "examples").symlink_to(ROOT / "examples")
    make_squares(folder)
    picture = folder / str(row["image"])
    picture.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (320, 400), "green").save(picture)
    with (folder / "boxes.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    (folder / "parts").mkdir()
    for name in ("my_refcoco.jsonl", "parts/train.jsonl", "parts/test.jsonl"):
        (folder / name).write_text(json.dumps(row | {"image": str(picture)}) + "\n")
    (folder / "mine.py").write_text(reward)
    (folder / "table.csv").write_text(f"{picture},Where is the dog?,34,50,220,310\n")
    lay_coco(folder)
    (folder / "charades_sta_train.txt").write_text("AO8RW 0.2 0.8##a person sits down.\n")
    (folder / "Charades_v1_480").mkdir()
    frames = np.random.default_rng(0).integers(0, 255, (10, 32, 32, 3), dtype=np.uint8)
    write_mp4(folder / "Charades_v1_480" / "AO8RW.mp4", frames, 10)
    write_wav(folder / "hall.wav", [tone(2.0)])
    (folder / "sounds.jsonl").write_text('{"audio": "hall.wav", "question": "the bell rings", "span": [0.5, 1.5]}\n')
    asked, answered = {"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A square."}
    chat = {"messages": [asked, answered, {"role": "user", "content": "Its colour?"}, {"role": "assistant", "content": "Green."}]}
    (folder / "chats.jsonl").write_text(json.dumps(chat | {"image": str(picture)}) + "\n")
    (folder / "starts.jsonl").write_text(json.dumps({"image": str(picture), "prompt": "it moves left"}) + "\n")
    (folder / "Video-R1-260k.json").write_text("[]")
    (folder / "prompts.txt").write_text("a red fox\n")
    (folder / "train.jsonl").write_text('{"prompt": "a hum", "band": [40, 80], "span": [0.0, 1.0]}\n')
    (folder / "pictures").mkdir()
    for name in ("cat", "dog"):
        Image.new("RGB", (32, 32), "blue").save(folder / "pictures" / f"{name}.png")
        (folder / "pictures" / f"{name}.txt").write_text(f"a {name}")
    lay_edits(folder)
    (folder / "spec.toml").write_text('port = 8500\n[[reward]]\nuse = "format"\n')


def lay_edits(folder: Path) -> None:
    """A picture, what to do to it, and its mask."""
    for name in ("room.jpg", "chair.png", "empty_room.jpg"):
        Image.new("RGB", (64, 48), "white").save(folder / name)
    row = {"image": "room.jpg", "instruction": "remove the chair", "mask": "chair.png", "target": "empty_room.jpg"}
    for name in ("edits.jsonl", "edits_test.jsonl"):
        (folder / name).write_text(json.dumps(row) + "\n")


def lay_coco(folder: Path) -> None:
    """One picture with one box, as COCO's instances and as RefCOCO's folder."""
    (folder / "val2017").mkdir()
    Image.new("RGB", (64, 48), "red").save(folder / "val2017" / "1.jpg")
    instances = {
        "images": [{"id": 1, "file_name": "1.jpg", "width": 64, "height": 48}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [4, 4, 20, 20], "iscrowd": 0}],
        "categories": [{"id": 3, "name": "car"}],
    }
    (folder / "instances_val2017.json").write_text(json.dumps(instances))
    (folder / "refcoco").mkdir()
    (folder / "refcoco" / "instances.json").write_text(json.dumps(instances))
    refs = [{"ref_id": 1, "ann_id": 1, "image_id": 1, "split": "train", "sentences": [{"sent": "the car"}]}]
    (folder / "refcoco" / "refs(unc).json").write_text(json.dumps(refs))
