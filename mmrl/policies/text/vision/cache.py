"""Features of pictures and clips whose vision part does not train: computed once, kept while their prompts are in use."""

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.policies.text.families import Family, Media
from mmrl.policies.text.families.generic import Generic

MIB = 2**20
ON_DEVICE = 0.25
"""Share of what may be kept that may be on the device; the rest is on the CPU."""
Key = tuple[int, str]
"""The identity of a prompt's tensor, and image or video."""


@dataclass(frozen=True)
class Features:
    """The part of a vision output that language models read, of one prompt's pictures or clips, or of several prompts'."""

    kind: type
    """Class of the vision output."""
    pooled: Tensor | tuple[Tensor, ...]
    """One entry per picture or tile."""
    deep: tuple[Tensor | tuple[Tensor, ...], ...] | None = None
    """The same of each level of deepstack features."""

    @classmethod
    def of(cls, output: Any) -> "Features":
        """The features in an output of transformers."""
        deep = getattr(output, "deepstack_features", None)
        return cls(type(output), held(output.pooler_output), None if deep is None else tuple(map(held, deep)))

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(x.numel() * x.element_size() for level in (self.pooled, *(self.deep or ())) for x in level)

    def to(self, device: torch.device | str) -> "Features":
        """The same on another device."""
        deep = None if self.deep is None else tuple(moved(level, device) for level in self.deep)
        return Features(self.kind, moved(self.pooled, device), deep)

    def output(self) -> Any:
        """An output as transformers' models take it."""
        more = {} if self.deep is None else {"deepstack_features": list(self.deep)}
        return self.kind(pooler_output=self.pooled, **more)


def held(entries: Tensor | Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return entries if isinstance(entries, Tensor) else tuple(entries)


def moved(entries: Tensor | tuple[Tensor, ...], device: torch.device | str) -> Tensor | tuple[Tensor, ...]:
    return entries.to(device) if isinstance(entries, Tensor) else tuple(x.to(device) for x in entries)


def joined(features: Sequence[Features]) -> Features:
    """Features of several prompts, in order."""

    def join(levels: Sequence[Tensor | tuple[Tensor, ...]]) -> Tensor | tuple[Tensor, ...]:
        if isinstance(levels[0], Tensor):
            return torch.cat([level for level in levels if isinstance(level, Tensor)])
        return tuple(x for level in levels for x in level)

    first = features[0]
    deep = None if first.deep is None else tuple(join(level) for level in zip(*(one.deep or () for one in features), strict=True))
    return Features(first.kind, join([one.pooled for one in features]), deep)


class VisionCache:
    """Looks at each prompt's media once and by themselves, so features stay the same; keeps `most` bytes, the latest used."""

    def __init__(self, family: Family, most: int) -> None:
        self.family, self.most = family, most
        self._kept: OrderedDict[Key, Features] = OrderedDict()

    @property
    def size(self) -> int:
        """Bytes kept."""
        return sum(one.size for one in self._kept.values())

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def missing(self, media: Sequence[Media]) -> int:
        """How often `look` would pass the vision part."""
        return len({key_of(own, kind) for one in media for kind, own in self.family.kinds(one).items()} - self._kept.keys())

    def pretend(self, media: Sequence[Media]) -> int:
        """How often `look` would pass the vision part, and from now on would not: for dry runs, which compute nothing."""
        count = self.missing(media)
        for kinds in map(self.family.kinds, media):
            for kind, tensors in kinds.items():
                self._keep(key_of(tensors, kind), Features(object, ()), next(iter(tensors.values())))
        return count

    @torch.no_grad()
    def look(self, core: Any, media: Sequence[Media], device: torch.device) -> list[dict[str, Features]]:
        """The features of each prompt's pictures and clips, on the device."""
        split = [self.family.kinds(one) for one in media]
        wanted = {key_of(own, kind): (kind, own) for kinds in split for kind, own in kinds.items()}
        found = {key: self._kept[key] for key in wanted if key in self._kept}
        for key in found:
            self._kept.move_to_end(key)
        for key, (kind, tensors) in wanted.items():
            if key in found:
                continue
            shown = {name: x.to(device) for name, x in tensors.items()}
            found[key] = Features.of(self.family.look(core, kind, [shown]))
            self._keep(key, found[key], next(iter(tensors.values())))
        ready = {key: features.to(device) for key, features in found.items()}
        return [{kind: ready[key_of(own, kind)] for kind, own in kinds.items()} for kinds in split]

    def _keep(self, key: Key, features: Features, owner: Tensor) -> None:
        if features.size > self.most:
            return
        on_device = sum(one.size for one in self._kept.values() if any(x.device.type != "cpu" for x in one.pooled))
        self._kept[key] = features if on_device + features.size <= ON_DEVICE * self.most else features.to("cpu")
        # An identity may be given again once its tensor is gone.
        weakref.finalize(owner, partial(self._kept.pop, key, None)).atexit = False
        while self.size > self.most:
            self._kept.popitem(last=False)


def key_of(tensors: Media, kind: str) -> Key:
    """The key of a prompt's pictures or clips: its tensors live as long as it does, and nothing writes into them."""
    return id(next(iter(tensors.values()))), kind


def cache_of(core: nn.Module, family: Family, mib: int) -> VisionCache | None:
    """A cache of `mib` MiB; None for 0 MiB, where a part that computes features trains, or where it is unknown whose they are."""
    looking = (*family.vision, *family.projector)
    trains = any(weight.requires_grad for name, weight in core.named_parameters() if name.startswith(looking))
    return None if trains or mib == 0 or isinstance(family, Generic) else VisionCache(family, mib * MIB)
