"""The sounds of files: how long they last, and their samples as a model hears them, by PyAV. Imports no torch."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmrl.answers.spans.displays import AvObject
from mmrl.answers.spans.timelines import SLACK
from mmrl.core.samples import Audio

RATES = (1_000, 768_000)
"""Samples a second of a file, at least and at most."""
NEAR_S = 30.0
"""A part that begins later is looked for in the file; what lies before others is decoded and dropped."""
STREAM = 2**32 - 2**16
"""From here on the length in a .wav file's head says that it was not known."""
LOUDEST = 100.0
"""Full scale is 1: samples beyond this are numbers of another scale, or damage."""
FLOATS = ("pcm_f", "wavpack")
"""Codecs whose files may hold any number; others are bounded by their integers."""
Wave = NDArray[np.float32]


@dataclass(frozen=True)
class Ear:
    """The rate and length of sounds that a model takes: `Ear(16_000, 300.0)`."""

    rate: int = 16_000
    """Samples a second that its processor wants."""
    longest: float = 300.0
    """Seconds that its processor keeps; it would drop the rest without a word."""


def read_wave(sound: Audio, ear: Ear) -> Wave:
    """The samples of a sound, the mean of its channels, in [-1, 1]; at most `ear.longest` seconds are held at a time.

    Raises FileNotFoundError, or ValueError with the file's name for a file without sound, a damaged or silent stream, a part that
    the file does not have, and one that is too long.
    """
    start, end = sound_part(sound)
    if end - start > ear.longest + SLACK:
        raise ValueError(
            f"the sound {sound.source!r} lasts {end - start:.1f} s, and the model hears {ear.longest:g} s: name a part of it by "
            "`start` and `end`"
        )
    with sound_file(sound.source) as file:
        pieces = list(pieces_of(file, start, end, ear.rate))
        wave = np.concatenate(pieces)[: round(ear.longest * ear.rate)] if pieces else np.empty(0, np.float32)
    held = len(wave) / ear.rate
    if held + SLACK < min(end - start, ear.longest) or not len(wave):
        raise ValueError(f"the sound {sound.source!r} is damaged: {held:.2f} of {end - start:.2f} s come out of the decoder")
    check_samples(wave, sound.source)
    return wave


def check_sound(sound: Audio, decode: bool = False) -> float:
    """Seconds of what is heard of a file; errors are those of `sound_part`, and of samples that no model can be given.

    Samples are read where the file may hold any number, and of others with `decode`.
    """
    start, end = sound_part(sound)
    with sound_file(sound.source) as file:
        if decode or file.streams.audio[0].codec_context.name.startswith(FLOATS):
            for piece in pieces_of(file, start, end, Ear().rate):
                check_samples(piece, sound.source)
    return end - start


def check_samples(wave: Wave, source: str) -> None:
    """Raise ValueError for samples that are no finite numbers, or far from full scale."""
    if not np.isfinite(wave).all():
        raise ValueError(f"the sound {source!r} holds samples that are no finite numbers: save it again")
    if (peak := float(np.abs(wave).max(initial=0.0))) > LOUDEST:
        raise ValueError(f"the sound {source!r} has samples of {peak:.3g}, and full scale is 1: save it in 16 bits")


def sound_part(sound: Audio) -> tuple[float, float]:
    """Start and end of what is heard of a file, in seconds; ValueError for a part that it does not have."""
    path = Path(sound.source)
    if not path.is_file():
        raise FileNotFoundError(f"there is no sound {sound.source!r}")
    status = path.stat()
    seconds = _seconds(sound.source, status.st_mtime_ns, status.st_size)
    first, last = sound.start or 0.0, seconds if sound.end is None else sound.end
    if not 0 <= first < min(last, seconds) or last > seconds + SLACK:
        raise ValueError(
            f"the sound {sound.source!r}: it asks for {first:g} s to {last:g} s, and the file lasts from 0 to {seconds:.2f} s"
        )
    return first, min(last, seconds)


@lru_cache(maxsize=65536)
def _seconds(path: str, changed_ns: int, size: int) -> float:
    """How long a file's first stream of sound lasts, from its packets, without decoding one."""
    if size == 0:
        raise ValueError(f"the sound {path!r} is an empty file")
    promised_bytes = riff_bytes(path)
    if promised_bytes > size:
        raise ValueError(f"the sound {path!r} is cut short: it promises {promised_bytes} bytes and holds {size}: fetch it again")
    with sound_file(path) as file:
        stream = file.streams.audio[0]
        promised = float(stream.duration * stream.time_base) if stream.duration else (file.duration or 0) / 1_000_000
        end = promised if promised_bytes else packets_end(file, stream)
    if end <= 0:
        raise ValueError(f"the sound {path!r} lasts 0 seconds")
    if end + SLACK < promised:
        raise ValueError(
            f"the sound {path!r} is cut short: it promises {promised:.2f} seconds and holds {end:.2f}: fetch it again"
        )
    return end


def packets_end(file: AvObject, stream: AvObject) -> float:
    """When the last packet of a stream ends, in seconds from the first one's beginning; 0 without packets."""
    first, end = None, 0
    for packet in file.demux(stream):
        moment = packet.dts if packet.pts is None else packet.pts
        if moment is not None and packet.size:
            first = moment if first is None else first
            end = max(end, moment - first + (packet.duration or 0))
    return float(end * stream.time_base)


def riff_bytes(path: str) -> int:
    """The length that the head of a .wav file says, in bytes; 0 for other files, and for one that was written as a stream.

    FFmpeg takes such a file to be as long as what is there.
    """
    with open(path, "rb") as file:
        name, size = file.read(4), int.from_bytes(file.read(4), "little")
    return 8 + size if name == b"RIFF" and size < STREAM else 0


@contextmanager
def sound_file(path: str) -> Generator[AvObject]:
    """An open file with a stream of sound; what FFmpeg raises inside becomes a ValueError that names the file."""
    try:
        import av
        import av.logging
        from av.error import FFmpegError
    except ImportError as error:
        raise ValueError(f"reading sounds needs the package 'av': pip install av ({error})") from None
    av.logging.set_level(None)
    step = "opened"
    try:
        with av.open(path) as file:
            step, refusal = "decoded", refusal_of(file)
            if refusal is not None:
                raise ValueError(f"the sound {path!r} {refusal}")
            yield file
    except FFmpegError as error:
        raise ValueError(f"the sound {path!r} cannot be {step}: {error.strerror} (is it cut short, or no sound?)") from None


def refusal_of(file: AvObject) -> str | None:
    """Why an open file cannot be heard, as the end of a sentence about it."""
    if not file.streams.audio:
        return "holds no sound, only " + (", ".join(stream.type for stream in file.streams) or "nothing")
    stream = file.streams.audio[0]
    if stream.codec_context is None:
        return "is in a codec that this FFmpeg does not know: convert it to FLAC"
    if not RATES[0] <= (stream.codec_context.sample_rate or 0) <= RATES[1]:
        return f"has {stream.codec_context.sample_rate} samples a second, which no recording has: save it again at 16000"
    if not stream.codec_context.channels:
        return "has no channels, or more than its head can say: save it again with one"
    return None


def pieces_of(file: AvObject, start: float, end: float, rate: int) -> Iterator[Wave]:
    """Pieces of the part between two seconds at this rate, one behind the other; ValueError where the rate changes inside."""
    import av

    stream = file.streams.audio[0]
    own = stream.codec_context.sample_rate
    turn = av.AudioResampler(format="flt", layout="mono", rate=rate)
    place, first, last, waves = None, round(start * own), round(end * own), list[Wave]()
    if start > NEAR_S:
        file.seek(int((start - 1) / stream.time_base) + (stream.start_time or 0), stream=stream)
    for frame in file.decode(stream):
        if frame.sample_rate != own:
            raise ValueError(f"the sound {file.name!r} changes its rate from {own} to {frame.sample_rate}: save it at one rate")
        if place is None:
            behind = (frame.pts or 0) - (stream.start_time or 0)
            place = round(behind * float(frame.time_base) * own) if start > NEAR_S else 0
        waves.append(mean_of_channels(frame)[max(0, first - place) : max(0, last - place)])
        place += frame.samples
        # frames may be a hundredth of a second long, and each call costs as much as a second of sound
        if place >= last or sum(map(len, waves)) >= own:
            yield from at_rate(turn, np.concatenate(waves), own)
            waves.clear()
        if place >= last:
            break
    yield from at_rate(turn, np.concatenate([*waves, np.empty(0, np.float32)]), own)
    yield from (one.to_ndarray()[0] for one in turn.resample(None))


def at_rate(turn: AvObject, wave: Wave, own: int) -> Iterator[Wave]:
    """The pieces that a resampler makes of samples at their own rate."""
    import av

    if len(wave):
        piece = av.AudioFrame.from_ndarray(wave[None], format="flt", layout="mono")
        piece.sample_rate = own
        yield from (one.to_ndarray()[0] for one in turn.resample(piece))


def mean_of_channels(frame: AvObject) -> Wave:
    """The mean of a frame's channels, in [-1, 1]. FFmpeg's own way to one channel is 1.41 times as loud for two."""
    values = frame.to_ndarray()
    if values.dtype.kind == "u":
        values = values.astype(np.float32) / 128 - 1
    elif values.dtype.kind == "i":
        values = values / np.float32(-float(np.iinfo(values.dtype).min))
    planes = values if frame.format.is_planar else values.reshape(-1, frame.layout.nb_channels).T
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(planes.mean(0, dtype=np.float32))
