"""Overlap in time with the mean of the group's own spans, for unlabelled clips.

    r = IoU(span, (s, e)) * exp(-gamma u),  s, e = mean start and end of the group's spans,  u = std of starts + std of ends

u is in seconds, or in shares of the clip where its duration is known. A model that always names the same span scores 1: start
from a model that can already ground, and add the reward `format`. Injected samples do not count.

Modality: text
Range: [0, 1]
Source: URPA, arXiv:2508.06317, from notes: its gamma is not known
Licence: own code Apache-2.0
"""

from dataclasses import dataclass, replace
from math import exp
from statistics import fmean, pstdev

from mmrl import Group, Interval, Need, Sample, Scored
from mmrl.answers.block import InTemplate
from mmrl.answers.spans.attempts import clock_of, read_spans
from mmrl.answers.spans.interval import Unit, temporal_iou
from mmrl.runtime.ranges import NonNegative


@dataclass(frozen=True)
class PseudoSpan(InTemplate):
    """Agreement with the group's mean span. Text without a span scores 0; a group with fewer than two of them gets None."""

    gamma: NonNegative = 1.0
    """How fast trust fades as spans spread; 0 = all are trusted equally."""
    unit: Unit = "seconds"
    """The unit of numbers without one."""
    needs = Need(samples=2, alone="None, with nothing to agree with", setup="the clip's duration, for spans in shares of it")

    def __call__(self, group: Group) -> list[float | Scored | None]:
        unlabelled = replace(group.prompt, answer=())

        def first(sample: Sample) -> Interval | None:
            return next(iter(read_spans(unlabelled, sample, self.unit).predicted), None)

        voters = [sample for sample in group.samples if sample.role == "policy" and self.keeps(unlabelled, sample)]
        known = [span for span in map(first, voters) if span is not None]
        if len(known) < 2:
            return [None] * len(group.samples)
        starts, ends = [span.start for span in known], [span.end for span in known]
        label = Interval(fmean(starts), fmean(ends), "seconds")
        trust = exp(-self.gamma * (pstdev(starts) + pstdev(ends)) / (clock_of(unlabelled, group.samples[0]).seconds or 1.0))
        return self.score_each(group, lambda sample: self._score(first(sample), label, trust))

    def _score(self, span: Interval | None, label: Interval, trust: float) -> Scored:
        overlap = 0.0 if span is None else temporal_iou(span, label)
        return Scored(overlap * trust, {"agreement": overlap, "trust": trust, "unparsed": float(span is None)})
