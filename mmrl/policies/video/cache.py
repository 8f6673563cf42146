"""Frames that were decoded before, found by the content of their file."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path

from mmrl.core.samples import Video
from mmrl.policies.video.decode import Frames
from mmrl.policies.video.sampling import FrameRule


@dataclass
class FrameCache:
    """The least recently used frames go first. A file is hashed by whoever decodes it, and again when its size or date change."""

    max_bytes: int
    _kept: OrderedDict[Hashable, Frames] = field(default_factory=OrderedDict, init=False)
    _digests: dict[Hashable, str] = field(default_factory=dict, init=False)

    @property
    def num_bytes(self) -> int:
        return sum(frames.pixels.nbytes for frames in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, video: Video, rule: FrameRule) -> Frames | None:
        """Raises FileNotFoundError when the file is gone."""
        digest = self._digests.get(stamp(video))
        key = (digest, wishes(video), rule)
        if digest is None or key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def put(self, video: Video, rule: FrameRule, frames: Frames) -> None:
        """Frames larger than the whole budget are not kept."""
        self._digests[stamp(video)] = frames.digest
        if frames.pixels.nbytes > self.max_bytes:
            return
        frames.pixels.setflags(write=False)
        self._kept[frames.digest, wishes(video), rule] = frames
        room = self.max_bytes - self.num_bytes
        while room < 0:
            _, old = self._kept.popitem(last=False)
            room += old.pixels.nbytes


def stamp(video: Video) -> Hashable:
    """Changes when a file is written again."""
    sources = (video.source,) if isinstance(video.source, str) else video.source
    found = [(source, Path(source).stat()) for source in sources]
    return tuple((source, stat.st_size, stat.st_mtime_ns) for source, stat in found)


def wishes(video: Video) -> Video:
    """The frames that a video asks for, regardless of its file's name, and of the order and noise in which they are shown."""
    return replace(video, source="" if isinstance(video.source, str) else (), shuffle=None, noise=None)
