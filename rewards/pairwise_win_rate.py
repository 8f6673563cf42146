"""How often does the sample beat the others of its group, by any scorer or judge?

    r_i = mean over opponents j of P(i beats j);   P = 1, 0 or 1/2 by the scores s_i and s_j (1/2 within `margin`), or
    sigmoid((s_i - s_j) / temperature), or what a judge says of the pair in both orders, the mean of the two

Only the order inside a group is left of the scores, so that small differences are not blown up to large advantages. A comparison
that fails is left out; a sample without any comparison fails. Parts: comparisons, left_out, first_wins (a judge's liking for the
first place, 1/2 is fair), score (of a scorer). The win rates of a group are 1/2 on average, so held-out prompts are scored by the
scorer itself.

Modality: image, text, video
Range: [0, 1]
Source: Pref-GRPO, arXiv:2508.20751, which judges each pair in one order and counts a failed one as 1/2
Licence: own code Apache-2.0
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, isfinite, nan
from typing import Any

from mmrl import Group, Need, Scored
from mmrl.runtime.ranges import CountOrNone, NonNegative, check_ranges
from mmrl.serving.inside import answers_of
from mmrl.serving.judges.judge import Endpoint
from mmrl.serving.judges.verdicts import ask_pairs, fill_template, schedule, template_text, win_rates
from mmrl.serving.media import pictures_of

QUESTION = (
    "Image 1 and Image 2 were made for the caption: {prompt}\nWhich one fits it and is made better? "
    "End with `Image 1 is better`, `Image 2 is better` or `equally good`."
)

ONE_OF_TWO = 'pairwise_win_rate needs scorer = { use = "..." } or server = { url = "..." }, one of them'


@dataclass(frozen=True)
class PairwiseWinRate:
    """Win rates within the group. ValueError for fewer than two samples, or without scorer and server."""

    scorer: Callable[..., Any] | None = None
    """A reward; or anything with compare(group, pairs) -> {pair: share of the first, None where it failed}."""
    server: Endpoint | None = None
    """The server that compares two pictures: see `[reward.server]`; None: `scorer` does."""
    template: str = ""
    """For the server: the question, or a file with it; {prompt} is where the caption goes. Empty: mmrl's wording."""
    opponents: CountOrNone = 0
    """Number of opponents per sample, the next ones in a ring; 0 = all others."""
    margin: NonNegative = 0.0
    """Scores that differ by no more than this are a tie."""
    temperature: NonNegative = 0.0
    """0 = won, tied or lost; above 0: soft shares."""
    needs = Need(samples=2, setup="scorer (another reward), or server (OpenAI-compatible, for pictures)")

    __post_init__ = check_ranges

    @property
    def held_out(self) -> Callable[..., Any] | None:
        """What scores held-out prompts in its place: the win rates of a group are 1/2 on average, however good it is."""
        return self.scorer if callable(self.scorer) else None

    def ready(self) -> None:
        """Raises RewardUnavailableError without the server, ValueError where neither it nor a scorer is set, or both are."""
        if (self.scorer is None) == (self.server is None):
            raise ValueError(ONE_OF_TWO)
        if self.server is not None:
            self.server.ready()

    def __call__(self, group: Group) -> list[float | Scored | None]:
        if (self.scorer is None) == (self.server is None):
            raise ValueError(ONE_OF_TWO)
        if self.server is not None:
            text = fill_template(template_text(self.template, QUESTION), prompt=group.prompt.text)
            return list(ask_pairs(self.server, text, pictures_of(group), self.opponents))
        pairs = schedule(len(group.samples), self.opponents)
        scorer: Any = self.scorer
        if hasattr(scorer, "compare"):
            return list(win_rates(len(group.samples), pairs, scorer.compare(group, pairs)))
        scores = [None if one is None else one.value for one in answers_of(scorer, group, "the scorer")]
        if all(score is None for score in scores):
            return [None] * len(scores)
        known = [nan if score is None else float(score) for score in scores]
        rates = win_rates(len(known), pairs, {(a, b): self._share(known[a] - known[b]) for a, b in pairs})
        return [Scored(rate.value, {**rate.parts, "score": score}) for rate, score in zip(rates, known, strict=True)]

    def _share(self, lead: float) -> float | None:
        """The share of the first of two, from the difference of the scores."""
        if not isfinite(lead):
            return None
        if self.temperature:
            return 1 / (1 + exp(min(-lead / self.temperature, 700.0)))
        return 0.5 if abs(lead) <= self.margin else float(lead > 0)
