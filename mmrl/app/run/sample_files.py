"""samples/<split>-<step>.jsonl: one line per sample, and the pictures beside them, small and each stored once.

A line holds step, split, group, sample, prompt (its id), source, text, completion (its last turn), earlier (the text in front
of it), segments ([policy, environment or forced, start, stop] of its tokens), total (null when no weighted reward answered),
scores and status by reward name, parts ("<reward>/<part>" by name), truncated, role, answer, answer_boxes ([x1, y1, x2, y2,
label] in pixels of the file), box_space (how the completion's boxes are written), spans (true and predicted spans of time, null
where the answer is none), columns, digest (of the completion's tokens or the picture's pixels: what `mmrl sample` compares),
media ({kind, file, width, height} per picture, video or sound; a sound also has sound, its .wav file beside the waveform),
media_sizes ([width, height, seen_width, seen_height]), opened (the tag that the chat template opened in front of the completion,
where it did), image, video and sound (what was generated, as in media, or null; a video also has clip, its .mp4 file beside the
strip), beside (a picture to be shown with it, where there is one).

A line of an episode also holds ended and turns: {text, span, reward, facts, observation} with an observation's role, text, media
and key, null where the world said nothing. Its digest is of tokens and observed pictures.
"""

import dataclasses
import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.answers.spans.attempts import read_spans
from mmrl.answers.spans.interval import Interval
from mmrl.answers.spans.sounds import Ear, read_wave
from mmrl.answers.spans.timelines import by_pyav, read_timeline
from mmrl.app.files import replace_bytes
from mmrl.app.run.folder import Line
from mmrl.core.samples import AUDIO, IMAGE, VIDEO, Audio, kind_of
from mmrl.core.types import MediaSize, Observation, Prompt, Sample, Status, Video
from mmrl.data.files.mp4 import write_once
from mmrl.data.files.pictures import PICTURE_SUFFIXES
from mmrl.data.files.wav import wav_bytes
from mmrl.data.validate import FILE_ROW
from mmrl.policies.shared.pictures import digest_of_picture
from mmrl.policies.video.decode import fetch
from mmrl.policies.video.sampling import Budget, FrameRule
from mmrl.runtime.pictures import open_upright, upright_rgb
from mmrl.training.callbacks import Examples

MAX_SIDE = 512
"""Pixels on the long side of a stored picture of a prompt, or of a clip's strip."""
MOST_DRAWN = 1024
"""The same of a picture that a model drew."""
SHARP_SIDE = 256
"""Pictures up to this side are kept as PNG: JPEG would smear what little there is."""
STRIP_FRAMES = 4
"""A video is stored as a strip of this many frames, evenly spaced."""
CLIP_FRAMES = 8
"""The same for the clip of a prompt, each frame from the middle of its part: under such a strip time can be drawn."""
CLIP_AREA = 96 * 96
"""Pixels of such a frame at most."""
WAVEFORM, INK = (512, 64), (70, 90, 120)
"""Width and height of a drawn sound, and its colour."""
QUIET = 1e-3
"""A sound that is nowhere louder is drawn flat."""


def sample_lines(
    folder: Path, step: int, examples: Examples, split: str, box_space: str | None, whole: bool = False
) -> Iterable[Line]:
    """The lines of one samples file; pictures are written to `folder` on the way, those drawn as they are if `whole`."""
    scores, parts = examples.scores, examples.parts
    totals = scores.total().tolist()
    values, status = scores.values.tolist(), scores.status.tolist()
    row = 0
    for group in examples.groups:
        prompt = group.prompt
        shared: Line = {
            "step": step,
            "split": split,
            "group": group.id,
            "prompt": prompt.id,
            "source": prompt.source,
            "text": prompt.text,
            "answer": as_json(prompt.answer, fallback=str),
            "box_space": box_space,
            "columns": {name: x for name, value in prompt.columns.items() if (x := as_json(value)) is not None or value is None},
            "media": [store(folder, media) for media in prompt.media],
        }
        for index, sample in enumerate(group.samples):
            total = totals[row]
            yield (
                shared
                | {
                    "sample": index,
                    "completion": sample.text,
                    "earlier": sample.earlier,
                    "segments": [[one.who, one.start, one.stop] for one in sample.segments],
                    "total": total if math.isfinite(total) else None,
                    "scores": {
                        n: v if s == Status.OK else None for n, v, s in zip(scores.names, values[row], status[row], strict=True)
                    },
                    "status": {name: Status(s).name.lower() for name, s in zip(scores.names, status[row], strict=True)},
                    "parts": as_json(parts[row]) if parts else {},
                    "truncated": sample.truncated,
                    "digest": digest(sample),
                    "role": sample.role,
                    "answer_boxes": answer_boxes(prompt.answer, sample, shared["media"]),
                    "spans": answer_spans(prompt, sample),
                    "media_sizes": [list(size) for size in sample.media_sizes],
                    "image": None if sample.image is None else store(folder, sample.image, None if whole else MOST_DRAWN),
                    "video": None if sample.video is None else store(folder, sample.video) | kept_clip(folder, sample),
                    "sound": None
                    if sample.sound is None
                    else store(folder, sample.sound) | kept_sound(folder, sample.sound, sample.rate or Ear().rate),
                }
                | ({"opened": sample.opened} if sample.opened else {})
                | ({"beside": store(folder, sample.beside)} if sample.beside is not None else {})
                | turn_lines(folder, sample)
            )
            row += 1


def turn_lines(folder: Path, sample: Sample) -> Line:
    """The turns of an episode, and why it ended; nothing for a completion without turns."""
    if not sample.turns:
        return {}
    pairs = [(turn, turn.observation or Observation()) for turn in sample.turns]
    turns = [
        {
            "text": turn.text,
            "span": list(turn.span),
            "reward": seen.reward,
            "facts": as_json(seen.facts),
            "observation": None
            if turn.observation is None
            else {"role": seen.role, "text": seen.text, "media": [store(folder, one) for one in seen.media], "key": seen.key},
        }
        for turn, seen in pairs
    ]
    return {"ended": sample.ended, "turns": turns}


def digest(sample: Sample) -> str | None:
    """Equal where two samples have the same tokens (of episodes, and saw the same pictures), or the same picture, clip or sound
    bit for bit; None for what has none of these."""
    if sample.token_ids is not None:
        shown = [digest_of_picture(one) for turn in sample.turns if turn.observation for one in turn.observation.media]
        data = repr((tuple(sample.token_ids), *shown) if shown else tuple(sample.token_ids)).encode()
    elif isinstance(sample.image, Image.Image):
        shown = upright_rgb(sample.image, lent=True)
        data = repr((shown.mode, shown.size)).encode() + shown.tobytes()
    elif isinstance(sample.output, np.ndarray):
        made = [one for one in (sample.video, sample.sound) if isinstance(one, np.ndarray)]
        data = b"".join(repr(one.shape).encode() + one.tobytes() for one in made)
    else:
        return None
    return hashlib.sha256(data).hexdigest()[:20]


def digest_of_prompt(prompt: Prompt) -> str:
    """Equal where two prompts have one id, text, answer and columns, and show the same, wherever their files lie.

    Of pictures the content counts, of other files name and size.
    """
    columns = {name: value for name, value in prompt.columns.items() if name != FILE_ROW}
    said = [prompt.id, prompt.source, prompt.text, with_marks(as_json([prompt.answer, columns], mark_of))]
    shown = with_marks(as_json([*prompt.media], mark_of), is_media=True)
    return hashlib.sha256(json.dumps([*said, shown], sort_keys=True).encode()).hexdigest()[:20]


def with_marks(value: Any, is_media: bool = False) -> Any:
    """JSON's values with a mark of its file in place of each path; what is no media names files by whole paths only."""
    if isinstance(value, dict):
        return {name: with_marks(item, is_media) for name, item in value.items()}
    if isinstance(value, list):
        return [with_marks(item, is_media) for item in value]
    is_file = isinstance(value, str) and (is_media or os.path.isabs(value)) and os.path.isfile(value)
    return mark_of(Path(value)) if is_file else value


def mark_of(value: object) -> object:
    """A picture, an array or a file as it still is when it is loaded again."""
    if isinstance(value, Path) and value.is_file() and value.suffix.lower() not in PICTURE_SUFFIXES:
        return [value.name, value.stat().st_size]
    if isinstance(value, Image.Image | Path):
        return digest_of_picture(value)
    return hashlib.sha256(value.tobytes()).hexdigest() if isinstance(value, np.ndarray) else type(value).__name__


def answer_boxes(answer: object, sample: Sample, media: Sequence[Line]) -> list[list[object]]:
    """The true boxes in pixels of the first picture; none when the answer is something else."""
    boxes = [answer] if isinstance(answer, Box) else list(answer) if isinstance(answer, list | tuple) else []
    if not boxes or not all(isinstance(box, Box) for box in boxes):
        return []
    size = first_size(sample.media_sizes, media)
    pixels = [(box, box.to("pixel", size)) for box in boxes] if size else [(box, box) for box in boxes if box.space == "pixel"]
    return [[p.x1, p.y1, p.x2, p.y2, box.label] for box, p in pixels]


def answer_spans(prompt: Prompt, sample: Sample) -> Line | None:
    """{seconds, truth, predicted} in seconds of the prompt's clip; None when the answer is no span or its length is unknown."""
    answer = prompt.answer
    spans = [answer] if isinstance(answer, Interval) else list(answer) if isinstance(answer, list | tuple) else []
    if sample.text is None or not spans or not all(isinstance(span, Interval) for span in spans):
        return None
    attempt = read_spans(prompt, sample, "seconds")
    if attempt.seconds is None:
        return None
    truth, predicted = ([[span.start, span.end] for span in each] for each in (attempt.truth, attempt.predicted))
    return {"seconds": attempt.seconds, "truth": truth, "predicted": predicted}


def first_size(media_sizes: Sequence[Sequence[int]], media: Sequence[Line]) -> MediaSize | None:
    """Size of the first picture, as the model reported it or else as its file has it."""
    if media_sizes:
        return MediaSize(*media_sizes[0])
    if media and media[0].get("width"):
        width, height = media[0]["width"], media[0]["height"]
        return MediaSize(width, height, width, height)
    return None


def store(folder: Path, media: object, most: int | None = MAX_SIDE) -> Line:
    """Write a picture, or a strip of a video's frames, under its content's hash: {kind, file, width, height}.

    What cannot be drawn becomes {kind: "unknown", file: null, what: its type}. The long side has `most` pixels, None: all.
    """
    frames, kind = frames_of(media)
    if not frames:
        return {"kind": "unknown", "file": None, "what": type(media).__name__}
    width, height = frames[0].size
    picture = frames[0] if kind == "picture" else strip(frames)
    data, suffix = image_bytes(picture, most)
    stored: Line = {"kind": kind, "file": f"media/{keep(folder, data, suffix)}", "width": width, "height": height}
    sound = AUDIO.value_of(media) if kind_of(media) is AUDIO else None
    return stored | (kept_sound(folder, samples_of(sound), Ear().rate) if isinstance(sound, Audio) else {})


def keep(folder: Path, data: bytes, suffix: str) -> str:
    """The name of the file that holds these bytes, by which it is called; written once."""
    name = hashlib.sha256(data).hexdigest()[:20] + suffix
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / name).exists():
        replace_bytes(folder / name, data)
    return name


def kept_sound(folder: Path, samples: np.ndarray, rate: int) -> Line:
    """The .wav file of a sound."""
    return {"sound": f"media/{keep(folder, wav_bytes(samples, rate), '.wav')}"}


def kept_clip(folder: Path, sample: Sample) -> Line:
    """The .mp4 file of a generated video, which lies beside its strip where its speed is known and its sides are even."""
    file = write_clip(folder, sample)
    return {} if file is None else {"clip": f"media/{file.name}"}


def write_clip(folder: Path, sample: Sample) -> Path | None:
    """The .mp4 file of a sample's frames, named by its content and written once; None where they cannot be one."""
    clip, fps = sample.video, sample.fps
    if fps is None or not isinstance(clip, np.ndarray) or clip.dtype != np.uint8 or clip.shape[1] % 2 or clip.shape[2] % 2:
        return None
    rate = max(1, round(fps))
    name = hashlib.sha256(repr((clip.shape, rate)).encode() + clip.tobytes()).hexdigest()[:20]
    return write_once(folder / f"{name}.mp4", rate, lambda: clip)


def frames_of(media: object) -> tuple[list[Image.Image], str]:
    """An upright picture as one frame, a video as at most STRIP_FRAMES, a sound as its waveform; nothing for what is neither."""
    if isinstance(media, Image.Image):
        return [upright_rgb(media)], "picture"
    kind = kind_of(media)
    if isinstance(media, str | Path) and kind in (IMAGE, VIDEO):
        path = Path(media)
        if path.suffix.lower() in PICTURE_SUFFIXES:
            return [open_upright(path)], "picture"
        timeline = read_timeline(path)
        places = even_indices(len(timeline.times))
        return [Image.fromarray(piece[0]) for piece in by_pyav(str(path), timeline, places)], "video"
    if kind.name in DRAWN:
        return DRAWN[kind.name](kind.value_of(media)), kind.stored
    if isinstance(media, torch.Tensor):
        return frames_of(channels_last(media))
    if isinstance(media, np.ndarray) and media.ndim == 2:
        return waveform(media.mean(0)), AUDIO.stored
    if isinstance(media, np.ndarray) and media.ndim == 3:
        return [picture_of(media)], "picture"
    if isinstance(media, np.ndarray) and media.ndim == 4:
        return [picture_of(media[i]) for i in even_indices(len(media))], "video"
    if isinstance(media, list | tuple):
        return [frame for i in even_indices(len(media)) for frame in frames_of(media[i])[0]], "video"
    return [], "unknown"


@lru_cache(maxsize=1024)
def clip_frames(video: Video) -> list[Image.Image]:
    """The middles of CLIP_FRAMES equal parts of what the model is shown of a clip."""
    if not isinstance(video.source, str):
        return frames_of(list(video.source))[0]
    start, stop = read_timeline(video.source).part(video.start, video.end)
    number = 2 * CLIP_FRAMES + 1
    often = Video(video.source, video.start, video.end, fps=number / (stop - start))
    small = FrameRule(min_frames=1, max_frames=number, budget=Budget(2, max_pixels=float(CLIP_AREA)))
    return [Image.fromarray(pixels) for pixels in fetch(often, small, hashed=False).pixels[1::2]]


@lru_cache(maxsize=64)
def samples_of(sound: Audio) -> np.ndarray:
    """Its samples, (n,) float32 at the usual rate of models that hear."""
    return read_wave(sound, Ear())


def waveform(samples: np.ndarray) -> list[Image.Image]:
    """How loud a sound (n,) is over time, from its beginning to its end, drawn as large as the page shows it."""
    width, height = WAVEFORM
    peaks = [float(np.abs(part).max(initial=0.0)) for part in np.array_split(samples, width)]
    loudest = max(*peaks, QUIET)
    sheet = np.full((height, width, 3), 255, np.uint8)
    for x, peak in enumerate(peaks):
        half = max(1, round(height / 2 * peak / loudest))
        sheet[height // 2 - half : height // 2 + half, x] = INK
    return [Image.fromarray(sheet)]


DRAWN: dict[str, Callable[..., list[Image.Image]]] = {"video": clip_frames, "audio": lambda sound: waveform(samples_of(sound))}
"""Name of a kind with a dataclass -> the pictures that a samples file shows of it."""


def channels_last(tensor: torch.Tensor) -> np.ndarray:
    """(..., 3, h, w) as diffusers and transformers keep pictures, or (..., h, w, 3) already."""
    array = tensor.detach().float().cpu() if tensor.is_floating_point() else tensor.cpu()
    if array.ndim >= 3 and array.shape[-3] in (1, 3, 4) and array.shape[-1] not in (1, 3, 4):
        array = array.movedim(-3, -1)
    return array.numpy()


def picture_of(array: np.ndarray) -> Image.Image:
    """(h, w, channels), bytes or floats in [0, 1]."""
    if array.dtype != np.uint8:
        array = (np.clip(array, 0.0, 1.0) * 255).round().astype(np.uint8) if array.dtype.kind == "f" else array.astype(np.uint8)
    return upright_rgb(Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array))


def even_indices(count: int, most: int = STRIP_FRAMES) -> list[int]:
    """At most `most` indices below `count`, first and last among them."""
    return sorted({round(x) for x in np.linspace(0, count - 1, min(count, most))}) if count else []


def strip(frames: Sequence[Image.Image]) -> Image.Image:
    """The frames side by side, two pixels apart."""
    width, height = frames[0].size
    sheet = Image.new("RGB", (len(frames) * (width + 2) - 2, height), "white")
    for i, frame in enumerate(frames):
        sheet.paste(frame.resize((width, height)), (i * (width + 2), 0))
    return sheet


def strip_of(media: object) -> Image.Image | None:
    """A strip of some frames of a video; None where there are none."""
    frames, _ = frames_of(media)
    return strip(frames) if frames else None


def image_bytes(picture: Image.Image, most: int | None = MAX_SIDE) -> tuple[bytes, str]:
    """At most n pixels a side, as everybody is shown it; PNG when small or where every pixel counts, else JPEG."""
    picture = upright_rgb(picture, lent=True)
    if most is not None:
        picture.thumbnail((most, most), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    if most is None or max(picture.size) <= SHARP_SIDE:
        picture.save(buffer, "PNG", optimize=True)
        return buffer.getvalue(), ".png"
    picture.save(buffer, "JPEG", quality=88)
    return buffer.getvalue(), ".jpg"


def as_json(value: Any, fallback: Any = None) -> Any:
    """The value in JSON's types: mappings, sequences, dataclasses and array scalars included.

    What does not fit becomes `fallback(value)`, or None without a fallback.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): as_json(item, fallback) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item, fallback) for item in value]
    if isinstance(value, np.generic):
        return as_json(value.item(), fallback)
    return fallback(value) if fallback else None
