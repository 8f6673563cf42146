"""Overlap in time of the predicted span with the true one.

    iou      |P n T| / |P u T|, P and T = the times that all predicted and all true spans cover
    time_r1  IoU * (1 - |start - start*| / duration) * (1 - |end - end*| / duration), of the best predicted span
    map      average precision over IoU .5:.95 of several spans, every false one costing precision

The overlap is never negative, unlike TempSamp-R1's as printed; time_r1 is divided by the number of spans named. Understands
seconds, mm:ss, frame numbers, percent, JSON.

Modality: text
Range: [0, 1]
Source: the usual reward of temporal grounding, as in TempSamp-R1 (arXiv:2509.18056); time_r1: Time-R1 (arXiv:2503.13377)
Licence: own code Apache-2.0
"""

from dataclasses import dataclass
from typing import Literal

from mmrl import Need, Scored
from mmrl.answers.needs import answer
from mmrl.answers.spans.attempts import OfSpans, SpanAttempt, true_spans
from mmrl.answers.spans.detection import mean_average_precision
from mmrl.answers.spans.interval import temporal_iou


@dataclass(frozen=True)
class TemporalIou(OfSpans):
    """IoU with the true span or spans. Text without a readable span scores 0 and is counted; no answer gets None."""

    kind: Literal["iou", "time_r1", "map"] = "iou"
    """How overlap is measured: one of the three formulas above."""
    needs = Need("a true span or several as answer", answer(true_spans))

    def score(self, attempt: SpanAttempt) -> Scored:
        overlap = attempt.iou
        hits = {f"recall{round(100 * least)}": float(overlap >= least) for least in (0.3, 0.5, 0.7)}
        return Scored(self._value(attempt, overlap), {"iou": overlap, **hits, **attempt.parts()})

    def _value(self, attempt: SpanAttempt, overlap: float) -> float:
        if self.kind == "iou":
            return overlap
        if self.kind == "map":
            return mean_average_precision(attempt.predicted, attempt.truth, ties="together") if attempt.predicted else overlap
        span, truth = attempt.best, attempt.only_truth
        if attempt.seconds is None:
            raise ValueError(f"prompt {attempt.prompt_id!r}: time_r1 needs the clip's length: give the row a column `duration`")
        if span is None:
            return 0.0
        off = [min(abs(a - b) / attempt.seconds, 1.0) for a, b in ((span.start, truth.start), (span.end, truth.end))]
        return temporal_iou(span, truth) * (1 - off[0]) * (1 - off[1]) / len(attempt.predicted)
