"""How well a text was read off a picture or video: 1 - error rate of words or characters.

    r = max(0, 1 - (insertions + deletions + replacements) / number of true words)

Characters suit scripts that write no blanks.

Modality: text
Range: [0, 1]
Source: the OCR reward of Video-R1, arXiv:2503.21776
Licence: own code Apache-2.0; rapidfuzz MIT
"""

from dataclasses import dataclass
from typing import Literal

from mmrl import Need, Prompt, Scored
from mmrl.answers.block import answer_block
from mmrl.answers.needs import answer
from mmrl.answers.questions import OfAnswers, true_text
from mmrl.answers.words import error_rate


@dataclass(frozen=True)
class OcrWer(OfAnswers[str]):
    """1 - WER or 1 - CER with the true text, never below 0. A prompt without answer gets None."""

    of: Literal["words", "characters"] = "words"
    """Count errors in words or in characters."""
    ignore_case: bool = False
    """True: upper and lower case are the same."""
    needs = Need("the text that can be read as answer", answer(true_text), package="rapidfuzz")

    def score(self, text: str, truth: str, prompt: Prompt) -> Scored:
        rate = error_rate(self._pieces(answer_block(text)), self._pieces(truth))
        return Scored(max(0.0, 1 - rate), {"error_rate": rate})

    def _pieces(self, text: str) -> list[str]:
        text = text.casefold() if self.ignore_case else text
        return text.split() if self.of == "words" else list(" ".join(text.split()))
