"""Are the times that the model names inside the true span?

    r = share of the named times that lie in a true span, borders included; 0 for text that names more than `most`

It rewards pointing at evidence ("it is seen at 12.5 s") in tasks that do not ask for spans.

Modality: text
Range: [0, 1]
Source: own
Licence: own code Apache-2.0
"""

from dataclasses import dataclass

from mmrl import Need, Scored
from mmrl.answers.needs import answer
from mmrl.answers.spans.attempts import OfSpans, SpanAttempt, true_spans
from mmrl.answers.spans.detection import key_frame_hit
from mmrl.runtime.ranges import Count


@dataclass(frozen=True)
class KeyFrame(OfSpans):
    """Share of named times inside the true spans. Text without a time scores 0 and is counted; no answer gets None."""

    most: Count = 8
    """Text that names more times scores 0."""
    needs = Need("a true span or several as answer", answer(true_spans))

    def score(self, attempt: SpanAttempt) -> Scored:
        value = key_frame_hit(attempt.times, attempt.truth) if len(attempt.times) <= self.most else 0.0
        outside = attempt.seconds is not None and max(attempt.times, default=0.0) > attempt.seconds
        parts = {"times": float(len(attempt.times)), "unparsed": float(not attempt.times), "outside": float(outside)}
        return Scored(value, {"hit": value, **parts})
