"""Prompts made up from word lists: text to be rendered, objects to be counted, coloured and placed, printed numbers.

`write("lettering", 1000)` is the same thousand prompts on every machine. Whether a prompt is held out depends only on what it
asks for (its text, its objects), so splits never share a task, whatever their seeds and sizes are. Two are written as the files
of published lists, which they are not, and numbers on them are not theirs:

    geneval-like   one JSON object per line, as GenEval's metadata: {"tag": "counting", "include": [{"class": "cat", "count": 2}],
                   "exclude": [{"class": "cat", "count": 3}], "prompt": "a picture of two cats"}; six tags, equally often (in
                   Flow-GRPO's list places, counts, pairs of colours, colours and pairs are as 7 : 5 : 3 : 1 : 1)
    ocr-like       one prompt per line, the text to be written in double quotes: a coffee mug printed with "Golden Harbour"
"""

import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mmrl.core.samples import Prompt
from mmrl.data.drawn import digit_text

HELD_OUT_SHARE = 5
"""One task in n is held out."""
TRIES = 3000
"""Tries in a row that may bring nothing new before a writer counts as exhausted."""

SIGNS = (
    'a wooden sign by a hiking trail that says "{}"',
    'a shop window at dusk with "{}" painted on the glass',
    'a birthday cake with "{}" written in icing',
    'the cover of a paperback titled "{}"',
    'a chalkboard in a classroom with the words "{}"',
    'a neon sign over a diner reading "{}"',
    'a child holding a cardboard sign with "{}" in crayon',
    'a coffee mug printed with "{}" on a kitchen table',
    'a brick wall with "{}" sprayed across it in blue',
    'a train station display announcing "{}"',
    'a knitted scarf with "{}" woven into it',
    'a sailing boat whose hull carries the name "{}"',
    'a vintage travel poster with the headline "{}"',
    'a robot in a workshop whose chest plate reads "{}"',
    'wet sand at the beach with "{}" drawn by a finger',
    'a parcel on a doorstep stamped "{}"',
)
DESCRIBING = ("Quiet", "Golden", "Lost", "Bright", "Hidden", "Frozen", "Little", "Wild", "Royal", "Honest", "Lucky", "Silver")
DESCRIBING += ("Open", "Early", "Velvet", "Broken", "Gentle", "Secret", "Spicy", "Northern")
THINGS = ("Harbour", "Garden", "River", "Market", "Lantern", "Orchard", "Bakery", "Mountain", "Library", "Comet", "Window")
THINGS += ("Kitchen", "Forest", "Bridge", "Theatre", "Island", "Engine", "Pepper", "Sparrow", "Meadow", "Tower", "Castle")
DOING = (
    "Welcome to the",
    "Beware of the",
    "Back to the",
    "Keep off the",
    "Visit the",
    "Save the",
    "Follow the",
    "Meet me at the",
)
LABELS = ("Gate", "Room", "Platform", "Bus", "Lot", "Route", "Exit", "Table", "Studio", "Locker")

ANIMALS = ("dog", "cat", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "bird")
COUNTABLE = ("bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "bench", "backpack", "umbrella")
COUNTABLE += ("handbag", "suitcase", "kite", "skateboard", "surfboard", "bottle", "cup", "fork", "spoon", "bowl", "banana")
COUNTABLE += ("apple", "orange", "carrot", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "tv", "laptop")
COUNTABLE += ("keyboard", "microwave", "toaster", "refrigerator", "book", "clock", "vase", "teddy bear", "toothbrush")
OBJECTS = ANIMALS + COUNTABLE
"""Categories of COCO, which detectors know by these names."""
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
AMOUNTS = {2: "two", 3: "three", 4: "four"}
RELATIONS = {"left of": "to the left of", "right of": "to the right of", "above": "above", "below": "below"}
SCENES = ("a picture of {}", "a snapshot showing {}", "{} in plain daylight", "{}, seen from the front", "an image with {}")

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")


class WrittenTask(NamedTuple):
    """A prompt's task and its wording."""

    key: str
    """Decides on the split."""
    wording: str
    columns: dict[str, object]
    answer: str | None = None


def write(writer: str, size: int | None = None, split: str = "train", seed: int = 0) -> list[Prompt]:
    """The first `size` different prompts of a split and a seed.

    Args:
        writer: lettering: text in a scene, with the column target, for the reward `ocr`. objects: GenEval's six kinds, with the
            columns tag, include and exclude, for the reward `object_counts`. numbers: "the number 47", with target.
        size: how many; None: 1000, or all if there are fewer.
        split: train or held_out.
        seed: of the order, and of what is drawn.

    Raises:
        ValueError: no such writer or split, or more prompts than a writer can make up.
    """
    if writer not in WRITERS:
        raise ValueError(f"there is no writer {writer!r} of prompts: choose one of {', '.join(WRITERS)}")
    if split not in ("train", "held_out"):
        raise ValueError(f"the split is {split!r}: choose train or held_out")
    if size is not None and size < 1:
        raise ValueError(f"{size} prompts cannot be written: ask for 1 or more")
    rng, found, idle = random.Random(f"{writer} {seed}"), dict[str, WrittenTask](), 0
    while len(found) < (1000 if size is None else size) and idle < TRIES:
        task = WRITERS[writer](rng)
        is_new = _is_held_out(writer, task.key) == (split == "held_out") and task.wording not in found
        if is_new:
            found[task.wording] = task
        idle = 0 if is_new else idle + 1
    if size is not None and len(found) < size:
        raise ValueError(f"only {len(found)} of {size} different {writer} prompts of the split {split} could be made up")
    return [
        Prompt(f"{writer}-{split}-{i}", task.wording, answer=task.answer, columns=task.columns)
        for i, task in enumerate(found.values())
    ]


def _is_held_out(writer: str, key: str) -> bool:
    if writer == "numbers":
        return int(key) in digit_text.HELD_OUT
    return zlib.crc32(key.encode()) % HELD_OUT_SHARE == 0


def _lettering(rng: random.Random) -> WrittenTask:
    describing, thing = rng.choice(DESCRIBING), rng.choice(THINGS)
    text = rng.choice(
        (
            thing,
            f"{describing} {thing}",
            f"{rng.choice(DOING)} {describing} {thing}",
            f"{rng.choice(LABELS)} {rng.choice('ABCDEFGHJK')}{rng.randint(1, 99)}",
            f"{thing} since {rng.randint(1850, 2025)}",
            f"{rng.randint(6, 11)}:{rng.choice(('00', '15', '30', '45'))} {describing} Hour",
        )
    )
    return WrittenTask(text.lower(), rng.choice(SIGNS).format(text), {"target": text}, text)


def _number(rng: random.Random) -> WrittenTask:
    number = rng.choice(digit_text.NUMBERS)
    return WrittenTask(str(number), digit_text.caption(number), {"target": str(number)}, str(number))


def _objects(rng: random.Random) -> WrittenTask:
    tag = rng.choice(TAGS)
    first, second = rng.sample(OBJECTS, 2)
    include, exclude = [_clause(first)], list[dict[str, object]]()
    if tag == "single_object":
        words = _one(first)
    elif tag == "counting":
        count = rng.choice(tuple(AMOUNTS))
        words, include, exclude = f"{AMOUNTS[count]} {_many(first)}", [_clause(first, count)], [_clause(first, count + 1)]
    elif tag == "colors":
        colour = rng.choice(COLOURS)
        words, include = _one(f"{colour} {first}"), [_clause(first) | {"color": colour}]
    elif tag == "position":
        relation = rng.choice(tuple(RELATIONS))
        words = f"{_one(second)} {RELATIONS[relation]} {_one(first)}"
        include.append(_clause(second) | {"position": [relation, 0]})
    elif tag == "color_attr":
        colours = rng.sample(COLOURS, 2)
        include = [_clause(name) | {"color": colour} for name, colour in zip((first, second), colours, strict=True)]
        words = " and ".join(_one(f"{clause['color']} {clause['class']}") for clause in include)
    else:
        words, include = f"{_one(first)} and {_one(second)}", [_clause(first), _clause(second)]
    columns = {"tag": tag, "include": include, "exclude": exclude}
    # "a cup and a fork" and "a fork and a cup" are one task
    key = f"{tag} {sorted(words.split(' and '))}"
    return WrittenTask(key, rng.choice(SCENES).format(words), columns)


def _clause(name: str, count: int = 1) -> dict[str, object]:
    return {"class": name, "count": count}


def _one(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _many(name: str) -> str:
    if name == "sheep":
        return name
    return name + ("es" if name.endswith(("s", "sh", "ch", "x")) else "s")


WRITERS: dict[str, Callable[[random.Random], WrittenTask]] = {"lettering": _lettering, "objects": _objects, "numbers": _number}


def geneval_like(file: Path, size: int, split: str = "train", seed: int = 0) -> None:
    """Write n prompts that ask for objects, as GenEval's metadata has them; ValueError as in `write`."""
    found = write("objects", size, split, seed)
    save(file, [json.dumps({**prompt.columns, "prompt": prompt.text}) for prompt in found])


def ocr_like(file: Path, size: int, split: str = "train", seed: int = 0) -> None:
    """Write n prompts that ask for text, in double quotes, one per line; ValueError as in `write`."""
    save(file, [prompt.text for prompt in write("lettering", size, split, seed)])


def save(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


SETS: dict[str, Callable[[Path, int, str, int], None]] = {"geneval-like": geneval_like, "ocr-like": ocr_like}
"""Name -> what writes it: file, size, split (train or held_out), seed."""
