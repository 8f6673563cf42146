"""Prompts made up by documented rules, in the layouts of published lists: `geneval-like` and `ocr-like`.

    geneval-like   one JSON object per line, as GenEval's metadata: {"tag": "counting", "include": [{"class": "cat", "count": 2}],
                   "exclude": [{"class": "cat", "count": 3}], "prompt": "a picture of two cats"}; six tags, equally often (in
                   Flow-GRPO's list places, counts, pairs of colours, colours and pairs are as 7 : 5 : 3 : 1 : 1)
    ocr-like       one prompt per line, the text to be written in double quotes: a coffee mug printed with "Golden Harbour"

The rules and words are those of the writers `objects` and `lettering` (mmrl.data.drawn.prompt_writers). A held-out task is in no
training split, whatever seeds and sizes are. Neither set is GenEval or Flow-GRPO's list, and numbers on it are not theirs.
"""

import json
from collections.abc import Callable
from pathlib import Path

from mmrl.data.drawn.prompt_writers import write


def geneval_like(file: Path, size: int, split: str = "train", seed: int = 0) -> None:
    """Write n prompts that ask for objects, as GenEval's metadata has them; ValueError as in `prompt_writers.write`."""
    found = write("objects", size, split, seed)
    save(file, [json.dumps({**prompt.columns, "prompt": prompt.text}) for prompt in found])


def ocr_like(file: Path, size: int, split: str = "train", seed: int = 0) -> None:
    """Write n prompts that ask for text, in double quotes, one per line; ValueError as in `prompt_writers.write`."""
    save(file, [prompt.text for prompt in write("lettering", size, split, seed)])


def save(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


SETS: dict[str, Callable[[Path, int, str, int], None]] = {"geneval-like": geneval_like, "ocr-like": ocr_like}
"""Name -> what writes it: file, size, split (train or held_out), seed."""
