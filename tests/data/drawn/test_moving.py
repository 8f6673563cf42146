"""Drawn digits and sounds whose truth is what their files hold, handwriting that never crosses splits, one file for one seed."""

import sys
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from mmrl.answers.boxes.box import check_inside, iou
from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.answers.spans.interval import temporal_iou
from mmrl.answers.spans.parsing import parse_intervals
from mmrl.answers.spans.sounds import Ear, read_wave
from mmrl.app.plugins.resolve import load
from mmrl.core.types import MediaSize
from mmrl.data.drawn import moving, scenes, small_digits
from mmrl.data.drawn.moving import KINDS, LETTERS, ClipStyle, draw, plan_clip
from mmrl.data.drawn.scenes import SceneStyle, draw_scene, glyph_rows
from mmrl.data.drawn.small_digits import GLYPHS, HEIGHTS, PLACES, SIDE, box_of, draw_small_digit
from mmrl.data.drawn.sounds.beeps import NOISE, RATE, plan_beep
from mmrl.data.files.mp4 import write_mp4
from mmrl.data.tools.pictures import zoom
from tests.support.refused import refused

digits = load("digits_grounding", "datasets")
SIZE = MediaSize(64, 64, 64, 64)
CROWDED = SceneStyle(glyph=(14, 18), grid=1, num_distractors=3, background="photo")


@pytest.fixture
def dark(monkeypatch):
    """A black canvas, so that every lit pixel is a digit's."""
    monkeypatch.setitem(scenes.BACKGROUNDS, "noise", lambda rng, side: np.zeros((side, side, 3), np.float32))


def mask_of_box(placed, side=64):
    """True inside the digit's box."""
    x1, y1, x2, y2 = map(int, placed.corners)
    mask = np.zeros((side, side), bool)
    mask[y1:y2, x1:x2] = True
    return mask


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_boxes_enclose_all_ink_and_touch_it_on_every_side(dark, split):
    for index in range(40):
        scene = draw_scene(3, index, split)
        lit = np.asarray(scene.image).max(axis=2) > 0
        boxes = [mask_of_box(placed) for placed in (scene.asked, *scene.distractors)]
        assert not (lit & ~np.logical_or.reduce(boxes)).any()
        for box in boxes:
            ys, xs = np.nonzero(box)
            inside = lit[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
            assert inside[0].any() and inside[-1].any() and inside[:, 0].any() and inside[:, -1].any()


@pytest.mark.parametrize("style", [SceneStyle(), CROWDED], ids=["usual", "crowded"])
def test_digits_differ_and_do_not_overlap(style):
    for index in range(40):
        scene = draw_scene(0, index, "train", style)
        everyone = (scene.asked, *scene.distractors)
        assert len(scene.distractors) == style.num_distractors
        assert scene.asked.digit in style.asked and len({placed.digit for placed in everyone}) == len(everyone)
        assert np.sum([mask_of_box(placed) for placed in everyone], axis=0).max() == 1


def test_neither_place_nor_order_tells_which_digit_is_asked_for():
    """The asked digit is the one nearer the middle, and the one further left, in about half of the scenes."""
    nearer, lefter = [], []
    for index in range(400):
        scene = draw_scene(4, index)
        (x1, y1, x2, y2), (u1, v1, u2, v2) = scene.asked.corners, scene.distractors[0].corners
        nearer.append(abs(x1 + x2 - 64) + abs(y1 + y2 - 64) < abs(u1 + u2 - 64) + abs(v1 + v2 - 64))
        lefter.append(x1 + x2 < u1 + u2)
    assert 0.42 < np.mean(nearer) < 0.58 and 0.42 < np.mean(lefter) < 0.58


def test_handwriting_of_the_splits_is_disjoint_and_scenes_show_that_of_their_own(monkeypatch):
    """With the held-out digits blanked, scenes of the training split are what they were."""
    before = [np.asarray(draw_scene(0, index, "train").image) for index in range(20)]
    images, labels = scenes._collection()
    blank = images.copy()
    blank[np.concatenate(glyph_rows("held_out"))] = np.nan
    monkeypatch.setattr(scenes, "_collection", lambda: (blank, labels))
    for index, picture in enumerate(before):
        assert np.array_equal(picture, np.asarray(draw_scene(0, index, "train").image))
    rows = {split: np.concatenate(glyph_rows(split)) for split in scenes.SPLITS}
    assert not set(rows["train"]) & set(rows["held_out"])
    assert sorted(np.concatenate(list(rows.values()))) == list(range(1797))
    assert all(len(found) > 20 for split in scenes.SPLITS for found in glyph_rows(split))


def test_same_seed_same_scene_and_every_input_matters():
    base = draw_scene(1, 2, "train")
    again = draw_scene(1, 2, "train")
    assert base.asked == again.asked and np.array_equal(np.asarray(base.image), np.asarray(again.image))
    others = [draw_scene(1, 3, "train"), draw_scene(2, 2, "train"), draw_scene(1, 2, "held_out"), draw_scene(1, 2, style=CROWDED)]
    assert all(not np.array_equal(np.asarray(base.image), np.asarray(other.image)) for other in others)


def test_impossible_scenes_are_refused_with_a_reason(monkeypatch):
    refused("lower num_distractors", draw_scene, 0, 0, "train", SceneStyle(num_distractors=9))
    refused("one of train, held_out", draw_scene, 0, 0, "test")
    refused("split", digits, "validation")
    refused("asked is", SceneStyle, asked=(10,))
    scenes._collection.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    refused(r"mmrl\[demo\]", draw_scene, 0, 0, error=ModuleNotFoundError)


def test_prompts_are_scenes_with_boxes_inside_their_pictures():
    held_out = digits("held_out", size=12, seed=5, asked=[7])
    assert len(held_out) == 12 and len({prompt.id for prompt in held_out}) == 12
    for index, prompt in enumerate(held_out):
        (picture,), (box,) = prompt.media, prompt.answer
        check_inside(box, MediaSize(*picture.size, *picture.size))
        assert prompt.text == "Where is the 7?" and box.label == "7" and prompt.columns["digit"] == 7
        assert box.corners == draw_scene(5, index, "held_out", SceneStyle(asked=(7,))).asked.corners
        assert len(prompt.columns["distractors"]) == 1


def test_hurried_answers_are_loose_and_half_of_them_confused():
    right, hurried = (digits(size=200, seed=3, written=how) for how in ("right", "hurried"))
    overlaps, wrong = [], 0
    for exact, prompt in zip(right, hurried, strict=True):
        assert parse_boxes(exact.columns["completion"], "norm1000")[0].to("norm1", None).corners == pytest.approx(
            exact.answer[0].to("norm1", SIZE).corners, abs=6e-4
        )
        [box] = parse_boxes(prompt.columns["completion"], "norm1000")
        truths = [*prompt.answer, *prompt.columns["distractors"]]
        found = [iou(box.to("norm1", None), truth.to("norm1", SIZE)) for truth in truths]
        wrong += found[0] < found[1]
        overlaps.append(max(found))
    assert 0.4 < wrong / 200 < 0.6 and 0.5 < np.mean(overlaps) < 0.75
    assert hurried[7].columns["completion"] == hurried[7].columns["completion"] != right[7].columns["completion"]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch):
    """A canvas of one shade, so that every brighter pixel is the digit's."""
    monkeypatch.setattr(small_digits, "_sheet", lambda: np.zeros((1200, 1200, 3), np.float32))


def test_the_digit_lies_within_its_corners_and_its_box_cuts_all_of_it(plain: None):
    for index in range(60):
        drawn = draw_small_digit(3, index)
        pixels = np.asarray(drawn.image, np.int64).sum(2)
        lit = pixels > pixels.min()
        x1, y1, x2, y2 = drawn.corners
        assert lit[y1:y2, x1:x2].sum() == lit.sum() > 0
        assert HEIGHTS[0] <= y2 - y1 <= HEIGHTS[1]
        assert all(PLACES * corner // SIDE == place for corner, place in zip((x1, y1), drawn.place, strict=True))
        part = np.asarray(zoom(drawn.image, box_of(drawn.place), "norm1000"), np.int64).sum(2)
        assert (part > pixels.min()).sum() == lit.sum() and max(part.shape) <= 34


def test_digits_and_places_are_drawn_evenly_and_no_two_glyphs_are_alike():
    assert len({*GLYPHS}) == 10 and all([len(row) for row in glyph.split()] == [5] * 7 for glyph in GLYPHS)
    drawn = [draw_small_digit(0, index) for index in range(400)]
    assert all(20 <= sum(one.digit == digit for one in drawn) <= 62 for digit in range(10))
    assert {one.place for one in drawn} == {(x, y) for x in range(PLACES) for y in range(PLACES)}


def test_the_same_seed_draws_the_same_and_every_input_matters():
    first = draw_small_digit(1, 2).image.tobytes()
    assert draw_small_digit(1, 2).image.tobytes() == first
    others = draw_small_digit(2, 2), draw_small_digit(1, 3), draw_small_digit(1, 2, "held_out")
    assert first not in [other.image.tobytes() for other in others]
    refused("split 'test' is unknown: choose one of train, held_out", draw_small_digit, 0, 0, "test")


def test_prompts_ask_for_the_digit_and_keep_its_box():
    prompts = load("small_digits", "datasets")(size=3, seed=5, split="held_out")
    drawn = draw_small_digit(5, 1, "held_out")
    prompt = prompts[1]
    assert (prompt.id, prompt.answer, prompt.media[0].tobytes()) == ("held_out-5-1", drawn.digit, drawn.image.tobytes())
    assert prompt.columns["box"].corners == drawn.corners and "digit" in prompt.text


ONE_OR_TWO = dict(side=32, glyph=[20, 24], seconds=5.6, stay=[1.2, 4.0], digits=[0, 3, 4, 7], asked=[7], shown=[1, 2])
SMALL = {"side": 32, "glyph": [14, 16], "seconds": 5.0, "stay": [1.5, 3.0], "crossing": 0.2}


@pytest.fixture
def prompts(tmp_path):
    return lambda *args, **fields: load("moving_digits", "datasets")(*args, folder=tmp_path, **fields)


def clips(number, kind, style=ClipStyle(), split="train"):
    return [plan_clip(3, index, split, style, (kind,)) for index in range(number)]


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_spans_are_exactly_the_frames_that_show_the_digit(dark, split):
    for clip in clips(25, "when", split=split):
        alone = replace(clip, actors=clip.actors[:1])
        lit = np.flatnonzero(draw(alone).max(axis=(1, 2, 3)) > 0)
        assert clip.answer.start * 10 == pytest.approx(lit[0]) and clip.answer.end * 10 == pytest.approx(lit[-1] + 1)
        assert len(lit) == lit[-1] + 1 - lit[0]


def test_digits_are_whole_between_their_crossings(dark):
    for clip in clips(15, "how_many", ClipStyle(num_discs=0)):
        first = clip.actors[0]
        ink = draw(replace(clip, actors=(first,)))[first.first + 3 : first.last - 3] > 0
        assert len({int(frame.sum()) for frame in ink}) == 1


def test_borders_keep_off_the_models_grid_of_time():
    for grid, margin in ((1.0, 0.2), (0.5, 0.4), (2.0, 0.25)):
        for clip in clips(30, "how_many", ClipStyle(time_grid=grid, margin=margin)):
            borders = np.array([border for a in clip.actors for border in (a.first, a.last)]) / 10 / grid % 1
            assert (borders >= margin - 1e-6).all() and (borders <= 1 - margin + 1e-6).all()


def test_answers_are_true():
    for clip in clips(60, "when"):
        asked = clip.actors[0]
        assert clip.question == f"When is the {asked.digit} visible?" and clip.answer == clip.span(asked)
        assert 2 <= clip.answer.length <= 5 and clip.answer.start > 0 and clip.answer.end < clip.duration
    for clip in clips(60, "which"):
        right = {clip.options[LETTERS.index(letter)] for letter in clip.answer.split(",")}
        assert right == {str(actor.digit) for actor in clip.digits} and len(clip.options) == 4
        assert list(clip.options) == sorted(clip.options) and clip.text.endswith(
            f"appear? A: {clip.options[0]} B: {clip.options[1]} C: {clip.options[2]} D: {clip.options[3]}"
        )
    for clip in clips(60, "how_many"):
        assert clip.answer == len(clip.digits) == len({actor.digit for actor in clip.digits})
    for clip in clips(60, "order"):
        come = sorted(clip.digits, key=lambda actor: actor.first)
        assert clip.options[LETTERS.index(clip.answer)] == " ".join(str(actor.digit) for actor in come)
        assert len(set(clip.options)) == len(clip.options) and np.diff([actor.first for actor in come]).min() >= 10


def test_answers_are_not_given_away_and_the_mix_of_questions_is_a_parameter():
    letters = [clip.answer for clip in clips(300, "order")]
    assert 0.4 < np.mean([letter in "AB" for letter in letters if letter]) < 0.85
    which = [clip.answer for clip in clips(400, "which", ClipStyle(shown=(1, 3)))]
    assert all(0.3 < np.mean([letter in answer for answer in which]) < 0.7 for letter in "ABCD")
    counts = [clip.answer for clip in clips(300, "how_many", ClipStyle(shown=(1, 3)))]
    assert all(0.25 < np.mean([count == n for count in counts]) < 0.42 for n in (1, 2, 3))
    drawn = [plan_clip(0, index, kinds=("when", "when", "order")).kind for index in range(300)]
    assert 0.58 < np.mean([kind == "when" for kind in drawn]) < 0.75
    assert {plan_clip(0, index).kind for index in range(40)} == set(KINDS)
    assert {clip.actors[0].digit for clip in clips(40, "when", ClipStyle(asked=(7, 3)))} == {7, 3}


def test_some_digits_collide(monkeypatch):
    """With no bouncing off each other, paths differ."""
    crowded = ClipStyle(shown=(4, 4), stay=(4.0, 7.0), speed=40.0)
    plans = clips(10, "how_many", crowded)
    before = [draw(clip) for clip in plans]
    alone = [draw(replace(clip, actors=clip.actors[:1])) for clip in plans]
    assert any(not np.array_equal(a, b) for a, b in zip(before, alone, strict=True))
    real = moving._move

    def blind(roaming, *rest):
        for i in roaming:
            real([i], *rest)

    monkeypatch.setattr(moving, "_move", blind)
    changed = [not np.array_equal(a, draw(clip)) for a, clip in zip(before, plans, strict=True)]
    assert sum(changed) >= 5


def test_clips_show_handwriting_of_their_split_only(monkeypatch):
    plans = clips(10, "which")
    before = [draw(clip) for clip in plans]
    images, labels = scenes._collection()
    blank = images.copy()
    blank[np.concatenate(glyph_rows("held_out"))] = np.nan
    monkeypatch.setattr(scenes, "_collection", lambda: (blank, labels))
    assert all(np.array_equal(a, draw(clip)) for a, clip in zip(before, plans, strict=True))


def test_files_are_h264_whole_and_the_same_again(prompts, tmp_path):
    asked = prompts(size=4, clip=SMALL)
    files = [Path(prompt.media[0].source) for prompt in asked]
    first = [file.read_bytes() for file in files]
    with av.open(str(files[0])) as film:
        (stream,) = film.streams.video
        times = [float(picture.time) for picture in film.decode(video=0)]
        assert stream.codec_context.name == "h264" and (stream.width, stream.height) == (32, 32)
    assert times == pytest.approx(np.arange(50) / 10)
    assert sorted(path.name for path in files[0].parent.iterdir()) == sorted(file.name for file in files)
    changed = files[1].stat().st_mtime_ns
    files[0].unlink()
    again = prompts(size=4, clip=SMALL)
    assert [Path(prompt.media[0].source).read_bytes() for prompt in again] == first
    assert files[1].stat().st_mtime_ns == changed
    others = [prompts(size=4, seed=1, clip=SMALL), prompts("held_out", size=4, clip=SMALL), prompts(size=4)]
    assert all(Path(other[1].media[0].source).read_bytes() != first[1] for other in others)


def test_a_file_shows_what_was_drawn_and_half_a_file_is_never_left(tmp_path):
    clip = clips(1, "which")[0]
    drawn = draw(clip)
    with av.open(str(write_mp4(tmp_path / "a.mp4", drawn, 10))) as film:
        shown = np.stack([picture.to_ndarray(format="rgb24") for picture in film.decode(video=0)])
    assert shown.shape == drawn.shape
    # half of the colour's grain goes with 4:2:0, the greys stay
    grey, true = shown.mean(axis=3), drawn.mean(axis=3)
    assert np.abs(grey - true).mean() < 5 < np.abs(grey - true[::-1]).mean()
    refused(r".", write_mp4, tmp_path / "b.mp4", np.zeros((3, 31, 31, 3), np.uint8), 10, error=Exception)
    assert [file.name for file in tmp_path.iterdir()] == ["a.mp4"]


def test_the_same_pictures_give_the_same_file_however_often(tmp_path):
    """x264's macroblock tree once gave other bytes in 1 of 100 times, depending on what lay in memory."""
    style = ClipStyle(side=32, glyph=(20, 24), seconds=6.0, stay=(1.2, 4.0), shown=(1, 2), num_discs=0)
    for number, clip in enumerate(clips(120, "which", style)):
        drawn, found = draw(clip), set()
        for turn in range(8):
            elsewhere = [bytearray(37 * (turn + number) % 5000 + 1) for _ in range(turn)]
            found.add(write_mp4(tmp_path / "a.mp4", drawn, 10).read_bytes())
            del elsewhere
        assert len(found) == 1


def test_prompts_carry_what_rewards_need(prompts):
    asked = prompts("held_out", size=30, clip=SMALL, template="{question} Answer briefly.")
    assert len({prompt.id for prompt in asked}) == 30 and asked[-1].id == asked[29].id and asked[1:3][0].id == asked[1].id
    types = {"when": "temporal grounding", "which": "multiple choice", "how_many": "numerical", "order": "multiple choice"}
    for prompt in asked:
        columns = prompt.columns
        assert columns["problem_type"] == types[columns["question_kind"]] and columns["duration"] == 5.0
        assert prompt.text.endswith(" Answer briefly.")
        if columns["question_kind"] == "when":
            assert prompt.answer == columns["spans"][int(prompt.text.split()[3])]
    with pytest.raises(IndexError):
        asked[30]


def test_hurried_spans_are_too_long_and_half_of_those_with_a_choice_are_another_digit_s(prompts):
    right, hurried = (prompts(size=300, seed=3, clip=ONE_OR_TWO, questions=["when"], written=how) for how in ("right", "hurried"))
    wrong = clear = 0
    for exact, prompt in zip(right, hurried, strict=True):
        assert temporal_iou(only_span(exact), exact.answer) > 0.9
        span, spans = only_span(prompt), prompt.columns["spans"]
        assert any(span.start <= one.start + 0.05 and span.end >= one.end - 0.05 for one in spans.values())
        overlaps = [
            temporal_iou(span, prompt.answer),
            *(temporal_iou(span, one) for one in spans.values() if one != prompt.answer),
        ]
        if len(spans) == 1:
            # both ends out by at most 0.6 of the length, each rounded by at most 0.05 seconds
            assert overlaps[0] > 1 / 2.2 - 0.06
        elif abs(overlaps[0] - overlaps[1]) > 0.2:
            clear, wrong = clear + 1, wrong + (overlaps[1] > overlaps[0])
    assert 0.35 < wrong / clear < 0.65


def test_of_two_digits_the_hurried_mostly_name_one(prompts):
    whole = both = 0
    for prompt in prompts(size=300, seed=3, clip=ONE_OR_TWO, questions=["which"], written="hurried"):
        named, right = set(prompt.columns["completion"].split(",")), set(prompt.answer.split(","))
        assert named <= right and (len(right) == 2 or named == right)
        both, whole = both + (len(right) == 2), whole + (len(right) == 2 and named == right)
    assert 0.15 < whole / both < 0.35


def only_span(prompt):
    [span] = parse_intervals(prompt.columns["completion"])
    return span


def test_mistakes_are_refused_with_a_reason(prompts, sounds):
    words = r"written is 'right', and questions are .'order'.: answers are written to when and which"
    refused(words, prompts, questions=["order"], written="right")
    refused("one of train, held_out", prompts, "test")
    refused("'why'", prompts, questions=["why"])
    refused("sides is not understood; its fields are side,", prompts, clip={"sides": 32})
    refused("side is 33, it must be an even number", ClipStyle, side=33)
    refused("raise fps or seconds, or lower margin", ClipStyle, fps=1, margin=0.4, crossing=1.0)
    refused("lower shown or time_grid", clips, 1, "order", ClipStyle(shown=(6, 6), time_grid=3.0))
    refused("must contain", prompts, template="When?")
    refused(r"split 'test' is unknown: choose one of train, held_out", sounds, size=1, split="test")
    refused(r"seconds is 4: a tone lasts up to 4 seconds, so take 5 or more", plan_beep, 0, 0, seconds=4)


@pytest.fixture
def sounds(tmp_path: Path):
    return lambda **fields: load("beeps", "datasets")(folder=tmp_path, **fields)


def loud_seconds(prompt) -> list[int]:
    """The whole seconds of a prompt's sound that are louder than its noise."""
    wave = read_wave(prompt.media[0], Ear(RATE))
    return [second for second in range(len(wave) // RATE) if wave[second * RATE : (second + 1) * RATE].std() > 3 * NOISE]


def test_the_tone_is_heard_in_the_seconds_of_the_answer_and_nowhere_else(sounds):
    lengths = set()
    for prompt in sounds(size=12):
        span = prompt.answer
        assert loud_seconds(prompt) == list(range(int(span.start), int(span.end))) and 0 <= span.start < span.end <= 10
        assert prompt.columns["duration"] == 10.0 and prompt.columns["problem_type"] == "temporal grounding"
        lengths.add(span.length)
    assert len(lengths) > 1


def test_controls_ask_the_same_of_another_sound_or_of_noise(sounds):
    own, another, noise = (sounds(size=6, heard=heard) for heard in ("its own", "another", "noise"))
    assert [one.answer for one in own] == [one.answer for one in another] == [one.answer for one in noise]
    assert [another[i].media for i in range(5)] == [own[i + 1].media for i in range(5)]
    assert all(loud_seconds(one) == [] for one in noise)


def test_hurried_answers_are_too_early_and_too_late_and_right_ones_are_right(sounds):
    right, hurried = sounds(size=40, written="right"), sounds(size=40, written="hurried")
    assert all(parse_intervals(one.columns["completion"]) == [one.answer] for one in right)
    spans = [parse_intervals(one.columns["completion"])[0] for one in hurried]
    early = [one.answer.start - span.start for one, span in zip(hurried, spans, strict=True)]
    late = [span.end - one.answer.end for one, span in zip(hurried, spans, strict=True)]
    assert set(early) | set(late) == {0.0, 1.0, 2.0} and 0.6 < np.mean(early + late) < 1.1


def test_files_are_the_same_for_the_same_seed_and_held_out_sounds_are_others(sounds):
    first = Path(sounds(size=1)[0].media[0].source)
    written = first.read_bytes()
    first.unlink()
    assert Path(sounds(size=1)[0].media[0].source).read_bytes() == written
    assert Path(sounds(size=1, split="held_out")[0].media[0].source).read_bytes() != written
