"""Which frames of a file are shown, and when: sampling, decoding, budgets, the cache, and files that cannot be read."""

import math
import os
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.logging
import numpy as np
import pytest

from mmrl.answers.spans.timelines import Timeline, read_timeline
from mmrl.core.types import Video
from mmrl.data.files.videos import check_video
from mmrl.policies.video.decode import fetch
from mmrl.policies.video.input import FrameCache, VideoInput, change_frames
from mmrl.policies.video.sampling import Budget, BudgetError, FrameRule, VideoSettings, choose
from tests.support.each import for_each
from tests.support.refused import refused
from tests.support.videos import HEIGHT, WIDTH, even, numbered, read_number, turn, uneven, write_transparent, write_video

TRUE = {
    "even.mp4": even(100),
    "uneven.mp4": uneven(60),
    "uneven.mkv": uneven(60, 1),
    "uneven.webm": uneven(40, 2),
    "mpeg4.mp4": even(30, 10.0),
}
WRITTEN: dict[str, Any] = {"uneven.mkv": {"sound": True}, "uneven.webm": {"codec": "libvpx-vp9"}, "mpeg4.mp4": {"codec": "mpeg4"}}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    late = {"uneven.mp4": 0.5}
    return {
        name: write_video(folder / name, [late.get(name, 0.0) + time for time in times], **WRITTEN.get(name, {}))
        for name, times in TRUE.items()
    }


def timeline(times: list[float], end: float) -> Timeline:
    return Timeline(tuple(times), end)


@pytest.mark.parametrize("name", TRUE)
def test_times_are_the_containers_and_count_from_the_first_frame(files, name):
    found = read_timeline(files[name])
    np.testing.assert_allclose(found.times, TRUE[name], atol=1.1e-3)


@pytest.mark.parametrize("backend", ["decord", "pyav"])
@pytest.mark.parametrize("name", TRUE)
def test_the_frames_that_come_are_the_frames_of_those_times(files, name, backend):
    for wish in (Video(files[name]), Video(files[name], fps=7.0, start=0.5), Video(files[name], frames=6, end=2.0)):
        frames = fetch(wish, FrameRule(backend=backend, multiple=2))
        numbers = [read_number(picture) for picture in frames.pixels]
        start = wish.start or 0.0
        np.testing.assert_allclose(frames.times, [TRUE[name][i] - start for i in numbers], atol=1.1e-3)
        assert numbers == sorted(set(numbers)) and len(numbers) % 2 == 0
        assert min(frames.times) >= 0 and max(frames.times) < frames.seconds
        shown = [i for i, time in enumerate(TRUE[name]) if start <= time < start + frames.seconds - 2e-3]
        assert (numbers[0], numbers[-1]) == (shown[0], shown[-1])


@pytest.mark.parametrize("name", TRUE)
def test_both_decoders_give_the_same_bytes(files, name):
    by = [fetch(Video(files[name], frames=12), FrameRule(backend=backend)).pixels for backend in ("decord", "pyav")]
    assert np.array_equal(by[0], by[1])


@pytest.mark.parametrize("seed", range(20))
def test_the_end_of_a_clip_is_shown_at_any_frame_rate(seed):
    times = uneven(60, seed)
    for multiple in (1, 2, 4):
        chosen = choose(timeline(times, times[-1] + 0.02), Video("a.mp4"), FrameRule(fps=3.7, multiple=multiple))
        assert chosen.indices[0] == 0 and chosen.indices[-1] == 59
        assert len(set(chosen.indices)) == len(chosen.indices) and len(chosen.indices) % multiple == 0


def test_frames_by_number_reach_from_the_first_to_the_last():
    line = timeline(even(250), 10.0)
    for video, rule in (
        (Video("a.mp4", frames=4), FrameRule()),
        (Video("a.mp4"), FrameRule(fps=25.0, max_frames=4)),
        (Video("a.mp4"), FrameRule(fps=0.1, min_frames=4)),
    ):
        chosen = choose(line, video, rule)
        assert chosen.indices == (0, 83, 166, 249)
        assert chosen.step == pytest.approx(249 / 3 / 25)
    part = choose(line, Video("a.mp4", start=2.0, end=4.0, frames=3), FrameRule())
    assert part.indices == (50, 74, 99) and (part.start, part.seconds) == (2.0, 2.0)


def test_the_number_of_frames_is_a_multiple():
    line = timeline(even(250), 10.0)
    assert len(choose(line, Video("a.mp4", end=3.6), FrameRule(fps=2.0, multiple=2)).indices) == 6
    assert len(choose(line, Video("a.mp4"), FrameRule(fps=2.0, max_frames=7, multiple=2)).indices) == 6
    assert len(choose(line, Video("a.mp4", end=1.0), FrameRule(fps=2.0, min_frames=5, multiple=2)).indices) == 6
    for wrong, remedy in ((5, ", and this model takes multiples of 2: ask for 4 or 6"), (1, ": ask for 2 or more")):
        refused(f"it asks for {wrong} frames{remedy}", choose, line, Video("a.mp4", frames=wrong), FrameRule(multiple=2))


def test_where_frames_are_rare_none_is_shown_twice():
    times = [0.0, 0.1, 0.2, 5.0, 5.1, 9.0]
    chosen = choose(timeline(times, 9.5), Video("a.mp4"), FrameRule(fps=1.0, multiple=2))
    # 8 moments, 1.29 apart: 0.0 twice 0.2, 5.0, twice 5.1, twice 9.0; of these five frames the middle one goes
    assert chosen.indices == (0, 2, 4, 5)
    crowded = choose(timeline([0.0, 0.01, 0.02, 0.03, 9.0], 9.5), Video("a.mp4"), FrameRule(fps=1.0))
    assert len(crowded.indices) >= 4


@pytest.mark.parametrize(
    ("video", "message"),
    [
        (Video("a.mp4", start=4.0), "asks for 4 s to 4 s, and the file lasts from 0 to 4.00 s"),
        (Video("a.mp4", end=5.0), "asks for 0 s to 5 s"),
        (Video("a.mp4", start=3.0, end=2.0), "asks for 3 s to 2 s"),
        (Video("a.mp4", start=-1.0), "asks for -1 s"),
        (Video("a.mp4", end=0.08), "holds 2 frames, and policy.video.min_frames is 4"),
        (Video("a.mp4", frames=101), "holds 100 frames, and its `frames` is 101"),
        (Video("a.mp4", frames=4, fps=2.0), "names both fps and frames"),
        (Video("a.mp4", fps=0.0), "its fps is 0"),
        (Video("a.mp4", frames=0), "asks for 0 frames"),
    ],
)
def test_clips_that_cannot_be_shown_are_refused(video, message):
    refused(message, choose, timeline(even(100), 4.0), video, FrameRule())


def test_an_end_that_was_rounded_up_is_the_files_and_a_step_is_told_even_for_one_frame():
    assert choose(timeline(even(100), 4.0), Video("a.mp4", end=4.1), FrameRule()).seconds == 4.0
    chosen = choose(timeline(even(100), 4.0), Video("a.mp4", frames=1), FrameRule(min_frames=1))
    assert chosen.indices == (0,) and math.isfinite(replace(chosen).step)


def test_sizes_stay_within_the_budget():
    rng = np.random.RandomState(0)
    for _ in range(500):
        side = int(rng.choice([28, 32]))
        height, width = rng.randint(10, 1500, 2).tolist()
        budget = Budget(
            side, 4.0 * side**2, side**2 * float(rng.randint(8, 200)), max_total=side**2 * float(rng.randint(200, 3000))
        )
        frames = int(rng.randint(1, 24))
        high, wide = budget.size(frames, height, width)
        assert high % side == wide % side == 0 and min(high, wide) > 0
        assert high * wide <= budget.max_pixels and frames * high * wide <= budget.max_total
    with pytest.raises(
        BudgetError, match="16 frames of 500 pixels each are all the budget allows, and the model's smallest frame has 784"
    ):
        Budget(28, max_total=8000.0).size(16, 100, 100)
    refused("longer side may be 200 times", Budget(28).size, 1, 10, 3000, error=BudgetError)


def test_frames_are_resized_to_the_budget(files):
    budget = Budget(16, max_pixels=64 * 24.0)
    frames = fetch(Video(files["even.mp4"], frames=8), FrameRule(budget=budget))
    assert frames.pixels.shape == (8, 16, 64, 3)
    wide = fetch(Video(files["even.mp4"], frames=8), FrameRule(budget=Budget(16, max_pixels=128 * 48.0)))
    assert [read_number(picture) for picture in wide.pixels] == [0, 14, 28, 42, 57, 71, 85, 99]


@pytest.mark.parametrize("asked", [{"nframes": 8}, {"fps": 2.0}, {"fps": 3.7, "max_frames": 9}, {"fps": 0.5, "min_frames": 5}])
def test_frames_equal_those_of_qwen_vl_utils(files, asked):
    from qwen_vl_utils import process_vision_info

    size = {"min_pixels": 4 * 28 * 28, "max_pixels": 8 * 28 * 28}
    wish = {"type": "video", "video": files["even.mp4"], **asked, **size}
    seen: Any = process_vision_info(
        [{"role": "user", "content": [wish]}], return_video_kwargs=True, return_video_metadata=True, image_patch_size=14
    )
    theirs, metadata = seen[1][0]
    budget = Budget(28, **{name: float(value) for name, value in size.items()})
    video = Video(files["even.mp4"], frames=asked.get("nframes"), fps=asked.get("fps"))
    rule = FrameRule(multiple=2, budget=budget, **{name: asked[name] for name in asked if name.endswith("_frames")})
    ours = fetch(video, rule)
    np.testing.assert_allclose(ours.times, np.asarray(metadata["frames_indices"]) / metadata["fps"], atol=1e-6)
    assert theirs.shape == (len(ours.times), 3, *ours.pixels.shape[1:3])
    # torchvision and PIL round differently
    apart = np.abs(theirs.permute(0, 2, 3, 1).numpy() - ours.pixels.astype(float))
    assert apart.max() <= 2 and apart.mean() < 0.05


@pytest.mark.parametrize("rate", [10.0, 24.0, 29.97])
def test_the_choice_is_that_of_qwen_vl_utils_at_any_length(rate):
    import torch
    from qwen_vl_utils.vision_process import smart_nframes

    for total in range(8, 200, 3):
        line = timeline(even(total, rate), total / rate)
        for fps in (1.0, 1.3, 2.0, 3.7):
            number = smart_nframes({"fps": fps}, total, rate)
            theirs = torch.linspace(0, total - 1, number).round().long().tolist()
            assert list(choose(line, Video("a.mp4"), FrameRule(fps=fps, multiple=2)).indices) == theirs


def test_frames_stand_upright_with_both_decoders(tmp_path, files):
    for angle in (90, 180, 270):
        path = turn(files["even.mp4"], tmp_path / f"{angle}.mp4", angle)
        by = [fetch(Video(path, frames=4), FrameRule(backend=backend)).pixels for backend in ("decord", "pyav")]
        assert np.array_equal(by[0], by[1])
        assert by[0].shape[1:3] == ((HEIGHT, WIDTH) if angle == 180 else (WIDTH, HEIGHT))


MIRRORS = {
    "left and right": ((-1, 0, 0, 1), lambda frame: frame[:, ::-1]),
    "up and down": ((1, 0, 0, -1), lambda frame: frame[::-1]),
    "along the diagonal": ((0, 1, 1, 0), lambda frame: frame.swapaxes(0, 1)),
    "along the other diagonal": ((0, -1, -1, 0), lambda frame: frame[::-1, ::-1].swapaxes(0, 1)),
}


@for_each("name", MIRRORS)
def test_mirrored_frames_are_shown_mirrored(name, tmp_path, files):
    matrix, mirrored = MIRRORS[name]
    plain = fetch(Video(files["even.mp4"], frames=4), FrameRule(backend="pyav")).pixels
    path = turn(files["even.mp4"], tmp_path / f"{name}.mp4", matrix)
    for backend in ("auto", "pyav"):
        assert np.array_equal(
            fetch(Video(path, frames=4), FrameRule(backend=backend)).pixels, np.stack([mirrored(one) for one in plain])
        )
    refused("decord says: the file is mirrored", fetch, Video(path, frames=4), FrameRule(backend="decord"))


def test_other_turns_and_pixels_of_odd_shapes_are_refused(tmp_path, files):
    odd = turn(files["even.mp4"], tmp_path / "odd.mp4", (0.7071, 0.7071, -0.7071, 0.7071))
    thin = write_video(tmp_path / "thin.mp4", even(10), aspect=Fraction(1, 60))
    for path, said in (
        (odd, r"odd\.mp4'.* asks for a turn that is no quarter \(0\.707, 0\.707, -0"),
        (thin, r"thin\.mp4'.* its pixels are 0\.0166667 times as wide as high"),
    ):
        refused(said, fetch, Video(path), FrameRule())
        refused(said, check_video, path)


@pytest.mark.parametrize(("ratio", "shape"), [((2, 1), (96, 512)), ((1, 2), (96, 128)), ((16, 15), (96, 273))])
def test_pixels_that_are_no_squares_are_made_square(ratio, shape, tmp_path):
    path = write_video(tmp_path / "wide.mp4", even(10), aspect=Fraction(*ratio))
    frames = fetch(Video(path, frames=4), FrameRule())
    assert frames.pixels.shape[1:3] == shape
    assert [read_number(one) for one in frames.pixels] == [0, 3, 6, 9]
    assert fetch(Video(turn(path, tmp_path / "turned.mp4", 90), frames=4), FrameRule()).pixels.shape[1:3] == shape[::-1]


@pytest.mark.parametrize(
    ("name", "codec", "colours"),
    [("a.mov", "png", "rgba"), ("b.avi", "ffv1", "yuva420p"), ("c.webm", "libvpx-vp9", "yuva420p"), ("d.mov", "qtrle", "argb")],
)
def test_transparent_frames_are_on_white(name, codec, colours, tmp_path):
    path = write_transparent(tmp_path / name, codec, colours)
    for backend in ("auto", "pyav"):
        pixels = fetch(Video(path, frames=4), FrameRule(backend=backend)).pixels
        assert pixels[:, 0, 0].tolist() == [[255] * 3] * 4 and pixels[:, 15, 15, 0].min() > 245 > pixels[:, 15, 15, 1].max()
    check_video(path)
    with pytest.raises(ValueError, match="decord says: the file is transparent, which it does not show"):
        fetch(Video(path, frames=4), FrameRule(backend="decord"))


def test_pictures_in_a_row(tmp_path):
    from PIL import Image

    paths = []
    for i in range(10):
        paths.append(str(tmp_path / f"{i}.png"))
        Image.fromarray(numbered(i)).save(paths[-1])
    frames = fetch(Video(tuple(paths), fps=4.0), FrameRule(fps=2.0, multiple=2))
    assert [read_number(picture) for picture in frames.pixels] == [0, 3, 6, 9]
    assert frames.times == (0.0, 0.75, 1.5, 2.25) and (frames.fps, frames.seconds) == (4.0, 2.5)
    assert [read_number(picture) for picture in fetch(Video(tuple(paths)), FrameRule()).pixels] == list(range(10))
    assert len(fetch(Video(tuple(paths), fps=4.0, frames=6), FrameRule()).times) == 6
    Image.fromarray(numbered(3, 64, 48)).save(paths[3])
    refused(r"3\.png' is not as large as the first picture", fetch, Video(tuple(paths)), FrameRule())
    os.remove(paths[5])
    refused(r"no picture .*5\.png", fetch, Video(tuple(paths)), FrameRule(), error=FileNotFoundError)
    refused("holds none", fetch, Video(()), FrameRule())


def test_without_decord_pyav_decodes(files, monkeypatch):
    expected = fetch(Video(files["even.mp4"], frames=6), FrameRule(backend="decord")).pixels
    monkeypatch.setitem(sys.modules, "decord", None)
    assert np.array_equal(fetch(Video(files["even.mp4"], frames=6), FrameRule()).pixels, expected)
    refused("cannot be decoded: decord is not installed", fetch, Video(files["even.mp4"]), FrameRule(backend="decord"))


def test_pyav_does_not_wait_for_its_own_log(files):
    """With FFmpeg's log in Python's hands, closing a decoder that still meets damaged frames never returns."""
    before = av.logging.get_level()
    av.logging.set_level(av.logging.ERROR)
    try:
        fetch(Video(files["even.mp4"], frames=4), FrameRule(backend="pyav"))
        assert av.logging.get_level() is None
    finally:
        av.logging.set_level(before)


def test_what_decord_cannot_read_pyav_decodes(files, monkeypatch):
    import decord

    def refuse(*_, **__):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(decord, "VideoReader", refuse)
    frames = fetch(Video(files["even.mp4"], frames=6), FrameRule())
    assert read_number(frames.pixels[-1]) == 99
    with pytest.raises(ValueError, match=r"the video .*even\.mp4': it cannot be decoded: decord says: no such luck"):
        fetch(Video(files["even.mp4"]), FrameRule(backend="decord"))


def test_both_decoders_are_heard_when_neither_can(tmp_path, files):
    whole = bytearray(Path(files["even.mp4"]).read_bytes())
    start = whole.index(b"mdat") + 4
    whole[start:-3000] = bytes(len(whole) - 3000 - start)
    path = tmp_path / "zeros.mp4"
    path.write_bytes(whole)
    refused(r"zeros\.mp4': it cannot be decoded: decord says: .*; pyav says: Invalid data", fetch, Video(str(path)), FrameRule())


def test_the_cache_finds_content_whatever_its_name(tmp_path, files, monkeypatch):
    import mmrl.policies.video.input as module

    decoded: list[str] = []
    monkeypatch.setattr(module, "fetch", lambda video, rule, how: (decoded.append(video.source), fetch(video, rule, how))[1])
    videos = VideoInput(VideoSettings(workers=0), FrameRule())
    first = videos(Video(files["even.mp4"], frames=6))
    again = videos(Video(files["even.mp4"], frames=6))
    assert again.pixels is first.pixels and len(decoded) == 1
    assert videos(Video(files["even.mp4"], frames=8)).pixels.shape[0] == 8 and len(decoded) == 2
    copy = tmp_path / "copy.mp4"
    copy.write_bytes(Path(files["even.mp4"]).read_bytes())
    assert np.array_equal(videos(Video(str(copy), frames=6)).pixels, first.pixels)
    assert len(videos.cache) == 2, "a copy takes no room of its own"
    write_video(copy, even(50))
    assert read_number(videos(Video(str(copy), frames=6)).pixels[-1]) == 49, "a file that was written again is read again"
    copy.unlink()
    refused(r"there is no video .*copy\.mp4", videos, Video(str(copy), frames=6), error=FileNotFoundError)


def test_the_cache_keeps_its_budget_and_forgets_the_oldest(files):
    one = fetch(Video(files["even.mp4"], frames=4), FrameRule())
    cache = FrameCache(3 * one.pixels.nbytes)
    wishes = [Video(files["even.mp4"], frames=4, end=1.0 + i) for i in range(4)]
    for i, wish in enumerate(wishes):
        if i == 3:
            assert cache.get(wishes[0], FrameRule()) is not None
        cache.put(wish, FrameRule(), fetch(wish, FrameRule()))
        assert cache.num_bytes <= cache.max_bytes
    assert [cache.get(wish, FrameRule()) is not None for wish in wishes] == [True, False, True, True]
    large = Video(files["even.mp4"], frames=16)
    cache.put(large, FrameRule(), fetch(large, FrameRule()))
    assert cache.get(large, FrameRule()) is None and len(cache) == 3


def test_shuffled_frames_are_the_same_frames_at_the_same_times(files):
    videos = VideoInput(VideoSettings(workers=0), FrameRule())
    plain, mixed = (videos(Video(files["even.mp4"], frames=12, shuffle=seed)) for seed in (None, 3))
    assert mixed.times == plain.times
    order = np.random.RandomState(3).permutation(12)
    assert np.array_equal(mixed.pixels, plain.pixels[order]) and not np.array_equal(mixed.pixels, plain.pixels)
    assert np.array_equal(videos(Video(files["even.mp4"], frames=12, shuffle=3)).pixels, mixed.pixels)
    assert not np.array_equal(change_frames(plain, Video("v", shuffle=4)).pixels, mixed.pixels)
    assert len(videos.cache) == 1


def test_noisy_frames_are_the_same_frames_with_noise_of_that_deviation(files):
    videos = VideoInput(VideoSettings(workers=0), FrameRule())
    clip = Video(files["even.mp4"], frames=12)
    plain, noisy, again, other = (videos(replace(clip, noise=noise)) for noise in (None, (0.05, 1), (0.05, 1), (0.05, 2)))
    assert noisy.times == plain.times and noisy.pixels.dtype == np.uint8
    assert np.array_equal(noisy.pixels, again.pixels) and not np.array_equal(noisy.pixels, other.pixels)
    inside = (plain.pixels > 80) & (plain.pixels < 175)  # six deviations of 12.75 from either end, so that nothing is cut
    apart = (noisy.pixels.astype(float) - plain.pixels)[inside]
    assert apart.size > 1000 and abs(apart.std() - 0.05 * 255) < 1.5 and abs(apart.mean()) < 1.5
    both = videos(replace(clip, noise=(0.05, 1), shuffle=3))
    shuffled = videos(replace(clip, shuffle=3))
    assert np.array_equal(both.pixels, change_frames(shuffled, Video("v", noise=(0.05, 1))).pixels)
    assert len(videos.cache) == 1 and np.array_equal(videos(clip).pixels, plain.pixels)


def test_files_that_are_no_videos_are_named(tmp_path, files):
    whole = Path(files["even.mp4"]).read_bytes()
    cases = {
        "empty.mp4": (b"", "is an empty file"),
        "text.mp4": (b"no video" * 99, "cannot be opened: Invalid data"),
        "cut.mp4": (whole[: len(whole) // 2], "cannot be opened"),
        "codec.mp4": (whole.replace(b"avc1", b"zzz9"), "is in a codec that this FFmpeg does not know"),
    }
    mkv = Path(files["uneven.mkv"]).read_bytes()
    cases["cut.mkv"] = (mkv[: len(mkv) // 2], "is cut short: it promises")
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        refused(rf"the video .*{name}' {message}", fetch, Video(str(tmp_path / name)), FrameRule())
    sound = write_video(tmp_path / "sound.mp4", [], sound=True)
    refused(r"sound\.mp4' holds no pictures, only audio", fetch, Video(sound), FrameRule())
    with pytest.raises(ValueError, match=r"one\.mp4': the part from 0\.00 s to 0\.04 s holds 1 frames"):
        fetch(Video(write_video(tmp_path / "one.mp4", [0.0])), FrameRule())
    refused(r"there is no video .*gone\.mp4", fetch, Video(str(tmp_path / "gone.mp4")), FrameRule(), error=FileNotFoundError)


@pytest.mark.parametrize(
    ("name", "value"),
    {"fps": 0.0, "min_frames": 0, "max_frames": 3, "cache_mb": -1, "workers": -1, "timeout": 0.0, "total_pixels": 0}.items(),
)
def test_wrong_settings_are_named(name, value):
    refused(rf"\.{name} is {value!r}: it must be", VideoSettings, **{name: value})
    refused(r"min_pixels .* is larger than", VideoSettings, min_pixels=10, max_pixels=9)
