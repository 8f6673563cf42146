from dataclasses import replace
from math import exp

import pytest

from mmrl.core.types import Group, Prompt, Sample


def group(*texts: str, **columns: float) -> Group:
    return Group(0, Prompt("clip", "when?", answer=None, columns=columns), tuple(Sample(text) for text in texts))


def test_agreement_with_the_mean_is_trusted_the_less_the_more_spans_spread(reward):
    # mean 2 to 6, deviations 1 and 1: u = 2 seconds = 0.2 of the clip
    found = reward("pseudo_span")(group("from 1 to 5", "from 3 to 7", duration=10.0))
    assert [one.parts["agreement"] for one in found] == [pytest.approx(3 / 5)] * 2
    assert found[0].value == pytest.approx(3 / 5 * exp(-0.2))
    assert reward("pseudo_span")(group("from 1 to 5", "from 3 to 7"))[0].value == pytest.approx(3 / 5 * exp(-2))
    assert reward("pseudo_span", gamma=0.0)(group("from 1 to 5", "from 3 to 7"))[0].value == pytest.approx(3 / 5)


def test_the_nearer_to_the_mean_the_better(reward):
    near, far, none = reward("pseudo_span")(group("2 to 6", "5 to 6", "no idea", duration=10.0))
    assert near.value > far.value > none.value == 0  # the mean is 3.5 to 6
    assert [one.parts["unparsed"] for one in (near, far, none)] == [0, 0, 1]


def test_one_span_says_nothing(reward):
    assert reward("pseudo_span")(group("2 to 6", "no idea")) == [None, None]


def test_picture_samples_have_no_say(reward):
    plain = group("1 to 5", "3 to 7", "8 to 9", duration=10.0)
    given = replace(plain, samples=(*plain.samples[:2], replace(plain.samples[2], role="injected")))
    assert reward("pseudo_span")(given)[0].value == pytest.approx(3 / 5 * exp(-0.2))
    assert reward("pseudo_span")(plain)[0].value != pytest.approx(3 / 5 * exp(-0.2))
