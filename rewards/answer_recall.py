"""How many of the true answer's words are in the answer?

    recall = shared words / words of the true answer, at the true answer with the best F1

    r = recall where there is one true answer, of more than `long` words; else 1 for recall 1, and 0

Words in lower case, without punctuation, "the" and "an". Answers stand in `<answer>`; an empty one scores 0.

Modality: text
Range: [0, 1]
Source: OpenBMB/R1-Router@c0a0c1b step.py, arXiv:2505.22095, which cuts words with nltk
Licence: own code Apache-2.0
"""

import string
from collections import Counter
from dataclasses import dataclass

from mmrl import Need, Prompt, Scored
from mmrl.answers.block import answer_block
from mmrl.answers.needs import answer
from mmrl.answers.questions import OfAnswers
from mmrl.runtime.ranges import Count

__all__ = ["AnswerRecall"]
LEFT_OUT = {"the", "an"}
BARE = str.maketrans("", "", string.punctuation)


def words_of(text: str) -> list[str]:
    return [word for word in text.lower().translate(BARE).split() if word not in LEFT_OUT]


def recall(text: str, truths: list[str]) -> float:
    """Of the true answer with the best F1, which counts words as often as both have them."""
    said, best = words_of(text), (0.0, 0.0)
    for truth in truths:
        wanted = words_of(truth)
        shared = sum((Counter(said) & Counter(wanted)).values())
        if shared:
            best = max(best, (2 * shared / (len(said) + len(wanted)), shared / len(wanted)))
    return best[1]


def true_answers(prompt: Prompt) -> list[str]:
    """The true answers; ValueError for anything but texts that have words."""
    found = prompt.answer if isinstance(prompt.answer, list | tuple) else [prompt.answer]
    if not found or not all(isinstance(one, str) and words_of(one) for one in found):
        raise ValueError(f"prompt {prompt.id!r} has the answer {prompt.answer!r}: give a text with words, or a list of such")
    return [str(one) for one in found]


@dataclass(frozen=True)
class AnswerRecall(OfAnswers[list[str]]):
    """The share of the true answer's words that are there, or all or nothing where it is short."""

    long: Count = 5
    """Words of the only true answer above which the share itself is the reward."""
    needs = Need("a text as answer, or several", answer(true_answers))

    def score(self, text: str, truth: list[str], prompt: Prompt) -> Scored:
        found = recall(answer_block(text), truth)
        whole = len(truth) == 1 and len(truth[0].split()) > self.long
        return Scored(found if whole else float(found == 1), {"recall": found})
