"""H.264 files from drawn pictures, written once and whole into a folder named by what they show."""

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmrl.answers.spans.displays import decoded, shown
from mmrl.runtime.cache import cache_folder, note_new
from mmrl.runtime.disk import whole_file


def write_mp4(path: Path, frames: NDArray[np.uint8], fps: int, crf: int = 15) -> Path:
    """Write pictures (frames, height, width, 3), sides even, as an H.264 file: the same pictures give the same bytes here.

    It is written under another name and renamed, so that no reader sees half a file. `crf` is x264's quality, 0 (lossless) to
    51.
    """
    # it takes a tenth of a second to import, and most readers of this module's data find their files written
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    # bitexact leaves version strings out of the file; one thread, because threads change x264's decisions, and no macroblock
    # tree: the same pictures make another file in 1 of 100 times
    options = {"fflags": "+bitexact"}
    with whole_file(path) as unfinished, av.open(str(unfinished), "w", format="mp4", options=options) as file:
        stream = file.add_stream("libx264", rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": str(crf), "preset": "veryfast", "threads": "1", "bf": "0", "g": "16", "x264-params": "mbtree=0"}
        for picture in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))
    return path


def read_mp4(path: Path) -> tuple[NDArray[np.uint8], float]:
    """All pictures (frames, height, width, 3) of a video file, and their mean number per second; ValueError if there are none."""
    import av

    try:
        with av.open(str(path)) as file:
            stream = file.streams.video[0]
            frames = [shown(frame, stream) for frame in decoded(file, stream)]
            fps = float(stream.average_rate or 0)
    except (OSError, ValueError, IndexError) as error:
        raise ValueError(f"{path} cannot be read as a video ({error}): convert it to H.264") from None
    if not frames:
        raise ValueError(f"{path} holds no picture: take another file")
    return np.stack(frames).astype(np.uint8), fps


def write_once(path: Path, fps: int, draw: Callable[[], NDArray[np.uint8]]) -> Path:
    """Draw and write the file `path` unless it is there; return the path."""
    return path if path.is_file() else write_mp4(path, draw(), fps)


def clip_folder(name: str, settings: Mapping[str, object], code: tuple[str, ...], root: Path | None = None) -> Path:
    """A folder below `root` (or the cache), named by a hash of the settings, these source files, this one and PyAV's version."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for file in (*code, __file__):
        digest.update(Path(file).read_bytes())
    digest.update(version("av").encode())
    folder = (root or cache_folder()) / f"{name}-{digest.hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    return note_new(folder)
