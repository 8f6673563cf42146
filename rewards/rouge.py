"""How much of the true text is in the answer: mean F-measure of ROUGE-1, ROUGE-2 and ROUGE-L.

    F = 2 P R / (P + R), of words (1), pairs of words (2) and the longest common subsequence (L)

In scripts without spaces every character is a word: the package alone finds nothing there.

Modality: text
Range: [0, 1]
Source: the free-form reward of Video-R1, arXiv:2503.21776
Licence: own code Apache-2.0; rouge-score Apache-2.0
"""

from dataclasses import dataclass

from mmrl import Group, Need, Prompt, Sample, Scored
from mmrl.answers.block import InTemplate, answer_block
from mmrl.answers.boxes.attempts import completion_text
from mmrl.answers.needs import answer
from mmrl.answers.questions import is_off, score_answers, true_text
from mmrl.answers.words import ROUGE_KINDS, rouge


@dataclass(frozen=True)
class Rouge(InTemplate):
    """ROUGE with the true text. An empty answer scores 0; a prompt without answer gets None."""

    kinds: tuple[str, ...] = ROUGE_KINDS
    """rouge1, rouge2, .. and rougeL; their mean is the reward."""
    stem: bool = True
    """Compare stems of English words."""
    needs = Need("a text as answer", answer(true_text), package="rouge_score")

    def __call__(self, group: Group) -> list[float | Scored | None]:
        return score_answers(group, true_text, self._score)

    def _score(self, prompt: Prompt, sample: Sample, truth: str) -> Scored:
        off = is_off(prompt, sample, self.template)
        text = "" if off else answer_block(completion_text(prompt, sample))
        parts = rouge(text, truth, self.kinds, self.stem)
        return Scored(sum(parts.values()) / len(parts), {**parts, "format": float(not off)})
