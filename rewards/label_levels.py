"""How right are labels of several levels, from the coarse name to the fine one ("body/hand/six fingers")?

    r = sum_l w_l F_l / sum_l w_l,    F_l = 2 |P_l and T_l| / (|P_l| + |T_l|)

P_l and T_l are the first l names of the written and of the true labels that have as many; levels that neither has are left out.
So the right part of the wrong picture costs less than another part, and what is missing costs as much as what is made up. Labels
stand apart by semicolons or lines, names by "/" or ">"; case and spaces around names do not count. "none" is a label like others.
A share F_l per level is a part, level_1 and so on.

Modality: text
Range: [0, 1]
Source: own; several levels as MagicMirror (arXiv:2509.10260) rewards its assessor, whose formula is not published
Licence: Apache-2.0
"""

import re
from dataclasses import dataclass

from mmrl import Need, Prompt, Scored
from mmrl.answers.block import answer_block
from mmrl.answers.needs import answer
from mmrl.answers.questions import OfAnswers, true_text
from mmrl.runtime.ranges import NonNegative, check_ranges

Label = tuple[str, ...]
MOST = 1_000
"""Labels of an answer that are read, and names of a label."""


@dataclass(frozen=True)
class LabelLevels(OfAnswers[str]):
    """The mean over levels of F-measures. A prompt without answer gets None; ValueError for weights that are all 0."""

    weights: tuple[NonNegative, ...] = ()
    """Of the levels, from the coarsest; the last one counts for all that are finer. Empty: all weigh the same."""
    needs = Need("labels as answer, a text", answer(true_text))

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.weights and not sum(self.weights):
            raise ValueError("label_levels: weights are all 0, so nothing would count: set one above 0, or leave them out")

    def score(self, text: str, truth: str, prompt: Prompt) -> Scored:
        written, true = _labels_in(answer_block(text)), _labels_in(truth)
        deepest = max(map(len, true | written), default=0)
        found = dict[int, float]()
        for level in range(1, deepest + 1):
            own, wanted = _first(written, level), _first(true, level)
            found[level] = 2 * len(own & wanted) / (len(own) + len(wanted))
        weights = {level: self._weight(level) for level in found}
        total = sum(weights.values())
        value = sum(weights[level] * share for level, share in found.items()) / total if total else 0.0
        return Scored(value, {f"level_{level}": share for level, share in found.items()})

    def _weight(self, level: int) -> float:
        return self.weights[min(level, len(self.weights)) - 1] if self.weights else 1.0


def _labels_in(text: str) -> frozenset[Label]:
    """`_labels_in("Body / hand; text")` -> {("body", "hand"), ("text",)}."""
    parts = [part for part in re.split(r"[;\n]", text) if part.strip()][:MOST]
    names = [[name.strip().casefold() for name in re.split(r"[/>]", part)[:MOST]] for part in parts]
    return frozenset(label for own in names if (label := tuple(name for name in own if name)))


def _first(labels: frozenset[Label], level: int) -> frozenset[Label]:
    """The first names of the labels that have as many."""
    return frozenset(label[:level] for label in labels if len(label) >= level)
