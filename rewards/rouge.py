"""How much of the true text is in the answer: mean F-measure of ROUGE-1, ROUGE-2 and ROUGE-L.

    F = 2 P R / (P + R), of words (1), pairs of words (2) and the longest common subsequence (L)

In scripts without spaces every character is a word: the package alone finds nothing there.

Modality: text
Range: [0, 1]
Source: the free-form reward of Video-R1, arXiv:2503.21776
Licence: own code Apache-2.0; rouge-score Apache-2.0
"""

from dataclasses import dataclass

from mmrl import Need, Prompt, Scored
from mmrl.answers.block import answer_block
from mmrl.answers.needs import answer
from mmrl.answers.questions import OfAnswers, true_text
from mmrl.answers.words import ROUGE_KINDS, rouge


@dataclass(frozen=True)
class Rouge(OfAnswers[str]):
    """ROUGE with the true text. An empty answer scores 0; a prompt without answer gets None."""

    kinds: tuple[str, ...] = ROUGE_KINDS
    """rouge1, rouge2, .. and rougeL; their mean is the reward."""
    stem: bool = True
    """Compare stems of English words."""
    needs = Need("a text as answer", answer(true_text), package="rouge_score")

    def score(self, text: str, truth: str, prompt: Prompt) -> Scored:
        parts = rouge(answer_block(text), truth, self.kinds, self.stem)
        return Scored(sum(parts.values()) / len(parts), parts)
