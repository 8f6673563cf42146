"""Groups and replies survive the wire; anything else is refused with a sentence."""

import json
import math
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save

from mmrl import Box, Group, Observation, Prompt, Sample, Scored, Turn
from mmrl.core.samples import ClipTime, MediaSize, Status, Video, segments_of
from mmrl.serving import wire
from mmrl.serving.media import sound_of
from tests.support.refused import refused


def picture(seed: int, size: tuple[int, int] = (5, 4), mode: str = "RGB") -> Image.Image:
    channels = {"L": (), "RGB": (3,)}[mode]
    array = np.random.default_rng(seed).integers(0, 256, (*reversed(size), *channels), dtype=np.uint8)
    return Image.fromarray(array, mode)


SEGMENTS = segments_of([("policy", 1), ("environment", 1), ("policy", 1)])


def round_trip(group: Group, folder: Path) -> Group:
    return wire.unpack_group(wire.pack_group(group), folder)


def a_group(**changes: Any) -> Group:
    prompt = Prompt("p1", "where?", columns={"kind": "seven", "tags": ("a", "b"), "nested": {"x": [1, None, True], 3: "three"}})
    samples = (
        Sample("one", (1, 2), truncated=True, media_sizes=(MediaSize(10, 20, 28, 56),), clips=(ClipTime(2.0, 4.0, 8),)),
        Sample("two", role="injected", image=picture(1)),
        Sample("four", (1, 2, 3), segments=SEGMENTS, earlier="and?"),
    )
    values = {"id": 7, "prompt": prompt, "samples": samples, "probes": {"shuffled": (Sample("three"),)}}
    return Group(**(values | changes))


def test_everything_a_reward_sees_arrives(tmp_path: Path):
    group = a_group()
    back = round_trip(group, tmp_path)
    assert (back.id, back.prompt, back.probes) == (group.id, group.prompt, group.probes)
    assert back.samples[0] == group.samples[0] and back.samples[2] == group.samples[2]
    assert back.samples[0].clips[0].seconds == 2.0
    assert back.samples[1].role == "injected"
    assert np.array_equal(np.asarray(back.samples[1].image), np.asarray(picture(1)))


def test_sounds_arrive_bit_for_bit_and_are_heard_as_the_mean_of_their_channels(tmp_path: Path):
    wave = np.random.default_rng(0).uniform(-1, 1, (2, 50)).astype(np.float32)
    (back,) = round_trip(a_group(samples=(Sample(sound=wave, rate=44_100),)), tmp_path).samples
    assert back.rate == 44_100 and back.sound.dtype == np.float32 and np.array_equal(back.sound, wave)
    np.testing.assert_allclose(sound_of(back, "p")[0], (wave[0] + wave[1]) / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "a sample of prompt 'p' has no sound: this reward is for policies that make sounds"),
        ({"image": picture(1)}, "has no sound"),
        ({"sound": np.zeros((1, 0), np.float32), "rate": 8}, r"no array of float32 \(channels, samples\)"),
        ({"sound": np.zeros(5, np.float32), "rate": 8}, r"no array of float32 \(channels, samples\)"),
        ({"sound": np.zeros((1, 5)), "rate": 8}, r"no array of float32 \(channels, samples\)"),
        ({"sound": np.full((1, 5), np.nan, np.float32), "rate": 8}, "samples that are no finite numbers"),
        ({"sound": np.zeros((1, 5), np.float32)}, "has the rate None"),
        ({"sound": np.zeros((1, 5), np.float32), "rate": 0}, "has the rate 0"),
    ],
)
def test_what_is_no_sound_is_refused(fields: dict[str, Any], said: str):
    refused(said, sound_of, Sample(**fields), "p")


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_pictures_keep_pixels_and_mode(mode: str, tmp_path: Path):
    group = a_group(prompt=Prompt("p", media=(picture(2, (7, 3), mode),)))
    (back,) = round_trip(group, tmp_path).prompt.media
    assert back.mode == mode and back.size == (7, 3)
    assert back.tobytes() == picture(2, (7, 3), mode).tobytes()


def test_files_arrive_as_files_of_the_same_bytes(tmp_path: Path):
    (tmp_path / "there").mkdir()
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"not really a clip")
    still = tmp_path / "still.png"
    picture(3).save(still)
    group = a_group(prompt=Prompt("p", media=(str(still), Video(str(clip), start=1.0), Video((str(still), str(still)), fps=2.0))))
    image, video, frames = round_trip(group, tmp_path / "there").prompt.media
    assert Path(image).read_bytes() == still.read_bytes() and Path(image).suffix == ".png"
    assert Path(video.source).read_bytes() == clip.read_bytes() and video.start == 1.0
    assert Path(video.source).parent == tmp_path / "there"
    assert len(frames.source) == 2 and frames.fps == 2.0


def test_a_suffix_cannot_leave_the_folder(tmp_path: Path):
    (tmp_path / "x.png").write_bytes(b"x")
    body = wire.pack_group(a_group(prompt=Prompt("p", media=(str(tmp_path / "x.png"),))))
    length = struct.unpack("<Q", body[:8])[0]
    header = body[8 : 8 + length].replace(b'\\".png\\"', b'\\"/../evil\\"')
    evil = struct.pack("<Q", len(header)) + header + body[8 + length :]
    (tmp_path / "there").mkdir()
    (name,) = wire.unpack_group(evil, tmp_path / "there").prompt.media
    assert Path(name).parent == tmp_path / "there"


def test_boxes_and_numbers_of_all_kinds_arrive(tmp_path: Path):
    box = Box(1, 2, 3, 4, space="pixel", label="seven")
    columns = {"nan": math.nan, "inf": -math.inf, "numpy": np.float32(0.5), "yes": np.bool_(True)}
    columns |= {"mask": torch.ones(2, 3), "alone": np.array(3.5)}
    back = round_trip(a_group(prompt=Prompt("p", answer=[box], columns=columns)), tmp_path).prompt
    assert back.answer == [box]
    assert math.isnan(back.columns["nan"]) and back.columns["inf"] == -math.inf and back.columns["numpy"] == 0.5
    assert back.columns["mask"].tolist() == [[1.0] * 3] * 2 and back.columns["alone"].shape == () and back.columns["yes"] is True


def test_nan_none_and_parts_survive_in_a_reply():
    reply = wire.reply_of([0.1, None, math.nan, Scored(1e300, {"iou": 0.5, "odd": math.nan})], "f1")
    back = wire.unpack_reply(wire.pack_reply(reply))
    assert back.status == (Status.OK, Status.NA, Status.FAILED, Status.OK)
    assert back.values[0] == 0.1 and back.values[3] == 1e300 and math.isnan(back.values[1]) and math.isnan(back.values[2])
    assert back.parts[3]["iou"] == 0.5 and math.isnan(back.parts[3]["odd"])
    assert back.fingerprint == "f1"


class Boom:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("the pickle was executed",))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_are_refused_unread(protocol: int, tmp_path: Path):
    refused("is a pickle", wire.unpack_group, pickle.dumps(Boom(), protocol), tmp_path, error=wire.WireError)


def test_what_cannot_travel_is_named_and_other_safetensors_and_types_are_refused(tmp_path: Path):
    refused("without mmrl's header", wire.unpack_group, save({"a": np.zeros(1)}), tmp_path, error=wire.WireError)
    body = wire.pack_group(a_group()).replace(b"Prompt", b"Popen!")
    refused("not part of the protocol", wire.unpack_group, body, tmp_path, error=wire.WireError)
    for thing, kind in ((object(), "object"), (np.array(["monday"]), "ndarray")):
        with pytest.raises(wire.WireError, match=rf"group\.prompt\.columns\['when'\] holds {kind}, which cannot travel"):
            wire.pack_group(a_group(prompt=Prompt("p", columns={"when": thing})))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400), st.booleans())
def test_garbage_gives_a_wire_error_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int, insert: bool
):
    good = wire.pack_group(a_group())
    for body in (junk, good[:at], good[:at] + junk + good[at if insert else at + len(junk) :]):
        try:
            wire.unpack_group(body, tmp_path_factory.getbasetemp())
        except wire.WireError:
            continue


def raw(header: Any, data: bytes = b"") -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def message(value: Any, **arrays: Any) -> bytes:
    return raw({"__metadata__": {"mmrl": json.dumps({"protocol": wire.PROTOCOL, "value": value})}, **arrays}, b"\0" * 8)


@pytest.mark.parametrize(
    "body",
    [
        message({}, a=5),
        message({}, a={"shape": ["x"], "dtype": "U8", "data_offsets": [0, 0]}),
        message({"$array": "a"}, a={"shape": [1], "dtype": "BF16", "data_offsets": [0, 2]}),
        message({"$image": "a"}, a={"shape": [], "dtype": "I64", "data_offsets": [0, 8]}),
        message({"$image": [1]}),
        message({"$type": "MediaSize", "sizes": [1e999] * 4}),
        message({"$type": "Group", "__class__": 1}),
        message({"$dict": [[[1], 2]]}),
        raw({"__metadata__": None}),
        raw({"__metadata__": []}),
    ],
)
def test_malformed_headers_give_a_wire_error_and_nothing_else(body: bytes, tmp_path: Path):
    with pytest.raises(wire.WireError):
        wire.array_shapes(body)
        wire.unpack_group(body, tmp_path)
    with pytest.raises(wire.WireError):
        wire.unpack_reply(body)


def test_a_reply_cannot_write_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    evil = message({"parts": [{"$file": "a", "suffix": ".py"}]}, a={"shape": [8], "dtype": "U8", "data_offsets": [0, 8]})
    refused("only groups do", wire.unpack_reply, evil, error=wire.WireError)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "part", "said"), [((1.0, 2.0), "iou", "2 values, 1 states"), ((0.1,), "\x1b[2J", "cannot be printed")]
)
def test_replies_whose_columns_differ_in_length_or_cannot_be_printed_are_refused(values, part: str, said: str):
    body = wire.pack_reply(wire.ServedScores(values, (Status.OK,), ({part: 1.0},), "f"))
    refused(said, wire.unpack_reply, body, error=wire.WireError)


@pytest.mark.parametrize("length", [0x0380, 0x0480, 0x0580, 0x0680])
def test_a_header_as_long_as_a_pickle_begins_is_read(length: int, tmp_path: Path):
    """The first bytes of a buffer are its header's length: 1152 reads like the start of a pickle."""
    packed = {text: wire.pack_group(Group(0, Prompt("p", text), (Sample("a"),))) for text in ("x" * i for i in range(length))}
    text, body = next((text, body) for text, body in packed.items() if struct.unpack("<Q", body[:8]) == (length,))
    assert body[:2] == bytes([0x80, length >> 8])
    assert wire.unpack_group(body, tmp_path).prompt.text == text


def test_turns_travel_with_what_was_shown_between_them(tmp_path: Path):
    picture(7).save(tmp_path / "seen.png")
    seen = Observation("look", (picture(5), str(tmp_path / "seen.png")), reward=0.5, facts={"tool": 1.0}, key="k")
    turns = (Turn("zoom", (0, 1), seen, (MediaSize(5, 4, 28, 28),)), Turn("7", (2, 3)))
    sample = Sample("7", (1, 2, 3), segments=SEGMENTS, turns=turns, ended="stop")
    back = round_trip(Group(0, Prompt("p"), (sample,)), tmp_path).samples[0]
    assert back.ended == "stop" and back.turns[1] == turns[1] and back.turns[0].media_sizes == turns[0].media_sizes
    shown = back.turns[0].observation
    assert shown is not None and (shown.text, shown.reward, shown.facts, shown.key) == ("look", 0.5, {"tool": 1.0}, "k")
    assert shown.media[0].tobytes() == picture(5).tobytes()
    with Image.open(shown.media[1]) as opened:
        assert opened.convert("RGB").tobytes() == picture(7).tobytes()
