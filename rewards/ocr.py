"""How much of the requested text can be read in the picture? A text recognizer reads it, edit distance scores it.

    contained  1 - d / |target|, d = 0 if the target is inside the text read, else min(Lev(text, target), |target|)  (Flow-GRPO)
    window     1 - min over pieces of the text of min(Lev(piece, target), |target|) / |target|: further text is free, as above,
               but one wrong letter next to it costs one letter and not all of it
    ned        1 - Lev / max(|text|, |target|): further text costs
    cer        1 - min(Lev, |target|) / |target|
    f1         F1 of letters, their order aside
    exact      1 if they are equal, else 0

Lev counts inserted, deleted and replaced letters. Blanks are removed and letters lowered on both sides. The target is the column
`column` of the prompt, else its answer, else all its quoted parts ("..." and typographic quotes) in their order.

Modality: image
Range: [0, 1]
Source: arXiv:2505.05470 (Flow-GRPO); PP-OCR, arXiv:2009.09941
Licence: own code Apache-2.0; PP-OCR's weights and RapidOCR Apache-2.0
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from mmrl import Group, Need, Prompt, Scored
from mmrl.runtime.ranges import Count, Share, check_ranges
from mmrl.serving.files import import_package
from mmrl.serving.media import pictures_of
from mmrl.serving.scorers.readers import reader, recogniser

QUOTED = re.compile(r'"((?:\\.|[^"\\])*)"|“([^”]*)”|„([^“”]*)[“”]|«([^»]*)»|「([^」]*)」', re.DOTALL)


@dataclass(frozen=True)
class Ocr:
    """Compares the text read with the target. ValueError for a sample without a picture, or a prompt without a target."""

    engine: Literal["rapidocr", "recogniser"] = "rapidocr"
    """rapidocr: finds lines of text anywhere in the picture. recogniser: takes the whole picture for one line; much faster."""
    score: Literal["contained", "window", "ned", "cer", "f1", "exact"] = "contained"
    """How the read text is compared: one of the six formulas above."""
    column: str = "target"
    """The column of the prompts that holds the target, where a row has it."""
    confidence: Share = 0.8
    """Lines that rapidocr is less sure of are ignored: textures often read as a letter. Not used by `recogniser`."""
    case_sensitive: bool = False
    """True: upper and lower case must match, too."""
    batch_size: Count = 32
    """Pictures in one forward of the recogniser."""
    threads: Count = 1
    """Threads of one forward."""
    needs = Need(
        "the column target, a text as answer, or double quotes around the text to be drawn",
        lambda prompt, reward, _: reward.target_of(prompt),
        setup='pip install "mmrl[rewards]" (engine recogniser: without OpenCV, onnxruntime and rapidocr-onnxruntime==1.4.4)',
    )

    __post_init__ = check_ranges

    def __call__(self, group: Group) -> list[float | Scored | None]:
        target = self._normal(self.target_of(group.prompt))
        if not target:
            raise ValueError(
                f"the text that prompt {group.prompt.id!r} asks for is empty: write letters into it, or leave it out"
            )
        pictures = pictures_of(group)
        if self.engine == "recogniser":
            texts = recogniser(self.threads)(pictures, self.batch_size)
        else:
            texts = [reader(self.threads)(picture, self.confidence) for picture in pictures]
        scored = []
        for text in map(self._normal, texts):
            parts = {"exact": float(text == target), "letters": float(len(text))}
            scored.append(Scored(_score(self.score, text, target) if text else 0.0, parts))
        return scored

    def _normal(self, text: str) -> str:
        plain = "".join(text.split())
        return plain if self.case_sensitive else plain.lower()

    def target_of(self, prompt: Prompt) -> str:
        """The text that a prompt's picture is to show; ValueError where the prompt does not say."""
        given = prompt.columns.get(self.column)
        if given is not None or isinstance(prompt.answer, str):
            return prompt.answer if given is None else str(given)
        quoted = ["".join(found).replace('\\"', '"') for found in QUOTED.findall(prompt.text)]
        if not quoted:
            raise ValueError(
                f"prompt {prompt.id!r} does not say which text belongs into its picture: give the data a column {self.column!r} "
                f"or an answer with it, or put it in double quotes in {prompt.text!r}"
            )
        return " ".join(quoted)


def _score(kind: str, text: str, target: str) -> float:
    """The score of two texts that are not empty."""
    if kind == "exact":
        return float(text == target)
    if kind == "f1":
        return 2 * (Counter(text) & Counter(target)).total() / (len(text) + len(target))
    if kind == "window":
        return 1 - _nearest_piece(text, target) / len(target)
    if kind == "contained" and target in text:
        return 1.0
    distance = import_package("rapidfuzz.distance").Levenshtein.distance(text, target)
    return max(0.0, 1 - distance / (max(len(text), len(target)) if kind == "ned" else len(target)))


def _nearest_piece(text: str, target: str) -> int:
    """Least Lev(piece, target) over all pieces of the text, the empty one included (Sellers, 1980)."""
    costs = list(range(len(target) + 1))
    least = costs[-1]
    for letter in text:
        before, costs = costs, [0]
        for j, wanted in enumerate(target, start=1):
            costs.append(min(before[j - 1] + (letter != wanted), before[j] + 1, costs[j - 1] + 1))
        least = min(least, costs[-1])
    return least
