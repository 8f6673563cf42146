"""Beeps whose truth is what the files hold, controls that hold something else, and the same file for the same seed."""

from pathlib import Path

import numpy as np
import pytest

from mmrl.answers.spans.parsing import parse_intervals
from mmrl.answers.spans.sounds import Ear, read_wave
from mmrl.app.plugins.resolve import load
from mmrl.data.drawn.sounds.beeps import NOISE, RATE, plan_beep

SHIPPED = Path(__file__).resolve().parents[3] / "datasets" / "beeps.py"


@pytest.fixture
def prompts(tmp_path: Path):
    return lambda **fields: load(str(SHIPPED), "datasets")(folder=tmp_path, **fields)


def loud_seconds(prompt) -> list[int]:
    """The whole seconds of a prompt's sound that are louder than its noise."""
    wave = read_wave(prompt.media[0], Ear(RATE))
    return [second for second in range(len(wave) // RATE) if wave[second * RATE : (second + 1) * RATE].std() > 3 * NOISE]


def test_the_tone_is_heard_in_the_seconds_of_the_answer_and_nowhere_else(prompts):
    lengths = set()
    for prompt in prompts(size=12):
        span = prompt.answer
        assert loud_seconds(prompt) == list(range(int(span.start), int(span.end))) and 0 <= span.start < span.end <= 10
        assert prompt.columns["duration"] == 10.0 and prompt.columns["problem_type"] == "temporal grounding"
        lengths.add(span.length)
    assert len(lengths) > 1


def test_controls_ask_the_same_of_another_sound_or_of_noise(prompts):
    own, another, noise = (prompts(size=6, heard=heard) for heard in ("its own", "another", "noise"))
    assert [one.answer for one in own] == [one.answer for one in another] == [one.answer for one in noise]
    assert [another[i].media for i in range(5)] == [own[i + 1].media for i in range(5)]
    assert all(loud_seconds(one) == [] for one in noise)


def test_hurried_answers_are_too_early_and_too_late_and_right_ones_are_right(prompts):
    right, hurried = prompts(size=40, written="right"), prompts(size=40, written="hurried")
    assert all(parse_intervals(one.columns["completion"]) == [one.answer] for one in right)
    spans = [parse_intervals(one.columns["completion"])[0] for one in hurried]
    early = [one.answer.start - span.start for one, span in zip(hurried, spans, strict=True)]
    late = [span.end - one.answer.end for one, span in zip(hurried, spans, strict=True)]
    assert set(early) | set(late) == {0.0, 1.0, 2.0} and 0.6 < np.mean(early + late) < 1.1


def test_files_are_the_same_for_the_same_seed_and_held_out_sounds_are_others(prompts):
    first = Path(prompts(size=1)[0].media[0].source)
    written = first.read_bytes()
    first.unlink()
    assert Path(prompts(size=1)[0].media[0].source).read_bytes() == written
    assert Path(prompts(size=1, split="held_out")[0].media[0].source).read_bytes() != written


def test_sounds_that_cannot_be_drawn_are_refused(prompts):
    with pytest.raises(ValueError, match=r"split 'test' is unknown: choose one of train, held_out"):
        prompts(size=1, split="test")
    with pytest.raises(ValueError, match=r"seconds is 4: a tone lasts up to 4 seconds, so take 5 or more"):
        plan_beep(0, 0, seconds=4)
