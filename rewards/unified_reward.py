"""UnifiedReward's judgement of pictures: (x - 1) / 4 of scores from 1 to 5, or the share of comparisons with the group it wins.

    point      x = the number behind "Final Score"                                        (versions 1.x)
    axes       x = mean of the Alignment, Coherence (videos: Physics) and Style scores    (1.5, 2.0)
    pair       "Image 1 is better", "Image 2 is better" or equally good                   (1.x and Think)
    pair_axes  mean over the three axes of the two shares that add up to 1                (2.0)

Pairs are judged in both orders, so that a liking for the first picture cancels. What cannot be read fails and never scores 0. The
model was trained with one wording for each: give it as `template`, or scores differ from published ones.

Modality: image
Range: [0, 1]
Source: arXiv:2503.05236, CodeGoat24/UnifiedReward; comparisons within a group: Pref-GRPO, arXiv:2508.20751
Licence: own code Apache-2.0; UnifiedReward's code MIT, weights see their cards
"""

import re
from dataclasses import dataclass
from typing import Literal

from mmrl import Group, Need, Scored
from mmrl.runtime.ranges import CountOrNone
from mmrl.serving.files import warn_once
from mmrl.serving.judges.judge import AsksServer, Question, Reply, ask_for_scores
from mmrl.serving.judges.verdicts import (
    NUMBER,
    ask_pairs,
    fill_template,
    final_text,
    number,
    preference,
    template_text,
    unreadable,
)
from mmrl.serving.media import pictures_of

AXES = ("alignment", "coherence", "style")
ONE = "This picture was made for the caption: {prompt}\n"
TWO = "Both pictures, Image 1 and Image 2, were made for the caption: {prompt}\n"
TEMPLATES = {
    "point": ONE + "Judge how well it fits and is made. End with a line `Final Score: x`, x from 1 (poor) to 5.",
    "axes": ONE
    + "Rate from 1 (poor) to 5: alignment with the caption, coherence of what is seen, beauty of style. Reply in three lines:\n"
    "Alignment Score (1-5): x\nCoherence Score (1-5): x\nStyle Score (1-5): x",
    "pair": TWO + "Which one fits and is made better? End with `Image 1 is better`, `Image 2 is better` or `equally good`.",
    "pair_axes": TWO
    + "For alignment with the caption, coherence and style, share 1.0 between the two, more for the better one. Reply so:\n"
    + "\n".join(f"{axis.capitalize()} Score:\n Image 1: x\n Image 2: x" for axis in AXES),
}


@dataclass(frozen=True)
class UnifiedReward(AsksServer):
    """A trained judge's scores of single pictures, or win rates within the group."""

    form: Literal["point", "axes", "pair", "pair_axes"] = "axes"
    """The question to the judge: one of the four forms above."""
    template: str = ""
    """File with the official text for this form and {prompt} where the caption goes; empty: our own words, with a warning."""
    opponents: CountOrNone = 0
    """Opponents of every picture, for pairs; 0 = all others, n (n - 1) requests."""
    needs = Need(setup="server (vLLM or SGLang with a CodeGoat24/UnifiedReward model), template")

    @property
    def pointwise(self) -> bool:
        return self.form in ("point", "axes")

    def __call__(self, group: Group) -> list[float | Scored | None]:
        if not self.template:
            warn_once(
                "unified_reward asks in our own words, scores differ from published ones: set template to the official text"
            )
        text = fill_template(template_text(self.template, TEMPLATES[self.form]), prompt=group.prompt.text)
        pictures = pictures_of(group)
        if self.form in ("point", "axes"):
            return list(ask_for_scores(self.server, [Question(text, [picture]) for picture in pictures], self._read_one))
        return list(ask_pairs(self.server, text, pictures, self.opponents, preference if self.form == "pair" else _first_share))

    def _read_one(self, reply: Reply) -> Scored:
        if self.form == "point":
            score = number(reply, 1.0, 5.0, "Final Score")
            return Scored((score - 1) / 4, {"raw": score})
        found = {name.lower(): float(x) for name, x in re.findall(rf"(\w+) Score \(1-5\)\W{{1,6}}{NUMBER}", final_text(reply))}
        if "physics" in found:
            found["coherence"] = found.pop("physics")
        if missing := [axis for axis in AXES if not 1 <= found.get(axis, 0) <= 5]:
            raise unreadable(reply, f"no score from 1 to 5 for {', '.join(missing)}")
        own = {axis: found[axis] for axis in AXES}
        return Scored((sum(own.values()) / len(own) - 1) / 4, own)


def _first_share(reply: Reply) -> float:
    shares = []
    for axis in (*AXES[:1], "(?:coherence|physics)", *AXES[2:]):
        found = re.search(
            rf"{axis} Score\W*?Image 1\W{{1,6}}{NUMBER}\s*Image 2\W{{1,6}}{NUMBER}", final_text(reply), re.IGNORECASE
        )
        first, second = (float(found[1]), float(found[2])) if found else (-1.0, -1.0)
        if min(first, second) < 0 or first + second <= 0:
            raise unreadable(reply, f"no two shares for {axis}")
        shares.append(first / (first + second))
    return sum(shares) / len(shares)
