"""Features of pictures and clips whose vision part does not train: computed once, kept while their prompts are in use.

Which parts of a model each kind of media passes, by its own code: processes that spread weights must go the same way.
"""

import inspect
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from mmrl.core.samples import KINDS
from mmrl.policies.text.families import Family, Media
from mmrl.runtime.tensors import to_device

MIB = 2**20
ON_DEVICE = 0.25
"""Share of what may be kept that may be on the device; the rest is on the CPU."""
UNREAD = ("pooler_output", "last_hidden_state", "hidden_states", "attentions")
"""Parts of a vision output that are its entries, or that no language model reads."""
Level = Tensor | Sequence[Tensor]
Key = tuple[int, str]
"""The identity of a prompt's tensor, and image or video."""


@dataclass(frozen=True)
class Features:
    """The part of a vision output that language models read, of one prompt's pictures or clips, or of several prompts'."""

    kind: type
    """Class of the vision output."""
    pooled: Level
    """One entry per picture or tile."""
    more: Mapping[str, Level | Sequence[Level]] = field(default_factory=dict[str, "Level | Sequence[Level]"])
    """What else the language model reads, by its name in the output: entries, or levels of entries (deepstack)."""

    @classmethod
    def of(cls, output: Any) -> "Features":
        """The features in an output of transformers."""
        more = {name: value for name, value in output.items() if name not in UNREAD and value is not None}
        return cls(type(output), output.pooler_output, more)

    @property
    def tensors(self) -> list[Tensor]:
        """All that it holds."""
        return tree_leaves((self.pooled, self.more))

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(x.numel() * x.element_size() for x in self.tensors)

    def to(self, device: torch.device | str) -> "Features":
        """The same on another device."""
        return Features(self.kind, *tree_map(lambda x: x.to(device), (self.pooled, self.more)))

    def output(self) -> Any:
        """An output as transformers' models take it."""
        more = {name: value if isinstance(value, Tensor) else list(value) for name, value in self.more.items()}
        return self.kind(pooler_output=self.pooled, **more)


def joined(features: Sequence[Features]) -> Features:
    """Features of several prompts, in order."""
    first = features[0]
    more = {name: join_more([one.more[name] for one in features]) for name in first.more}
    return Features(first.kind, join_entries([one.pooled for one in features]), more)


def join_entries(levels: Sequence[Level]) -> Level:
    """Entries of one level: stacked while all have one shape, else side by side."""
    tensors = [level for level in levels if isinstance(level, Tensor)]
    if len(tensors) == len(levels) and len({tensor.shape[1:] for tensor in tensors}) == 1:
        return torch.cat(tensors)
    return tuple(entry for level in levels for entry in level)


def join_more(values: Sequence[Level | Sequence[Level]]) -> Level | Sequence[Level]:
    """Entries, or level by level."""
    if isinstance(values[0], Tensor):
        return torch.cat([value for value in values if isinstance(value, Tensor)])
    return tuple(join_entries(levels) for levels in zip(*values, strict=True))


def look_apart(family: Family, core: nn.Module, media: Media, device: torch.device) -> dict[str, Features]:
    """Kind -> the features of one prompt's media, which pass the vision part by themselves."""
    return {
        kind: Features.of(family.look(core, kind, [{name: to_device(x, device) for name, x in tensors.items()}]))
        for kind, tensors in family.kinds(media).items()
    }


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
            found[key] = look_apart(self.family, core, tensors, device)[kind]
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
    """A cache of `mib` MiB; None for 0 MiB, or where anything but the language model trains, or an adapter's features differ."""
    outside = [(name, weight) for name, weight in core.named_parameters() if not name.startswith(family.language)]
    changes = any(weight.requires_grad or "lora_" in name for name, weight in outside)
    return None if changes or mib == 0 else VisionCache(family, mib * MIB)


def ways_apart(core: nn.Module, family: Family) -> dict[str, str]:
    """Kind -> the parts that its media pass and pictures do not, or only pictures; a kind that passes the same has no entry.

    Where FSDP or ZeRO-3 spreads weights, a process that has none of a kind looks at a picture in its place, and gathers with the
    others only what it passes. Choices inside of a part are not seen.
    """
    # a kind without tensors of its own comes as pictures
    kinds = [kind for kind, _ in family.own_keys if kind in family.sees] if "image" in family.sees else family.sees
    pictures, found = parts_of(core, "image"), dict[str, str]()
    for kind in kinds:
        parts = parts_of(core, kind)
        if parts is None or parts != pictures:
            found[kind] = ", ".join(sorted((parts or frozenset()) ^ (pictures or frozenset()))) or "which it does not name"
    return found


def words_about(place: str, kind: str, parts: str) -> str:
    """The sentence about media of a kind that goes another way, where weights are spread."""
    return (
        f"{place} has a {KINDS[kind].noun}, which passes other parts of the model than pictures ({parts}), and FSDP or ZeRO-3 "
        "spreads the weights: start with configs/accelerate/ddp.yaml"
    )


def parts_of(core: nn.Module, kind: str) -> frozenset[str] | None:
    """The model's own modules with weights that `get_KIND_features` uses, itself or by methods beside it; None: it has none."""
    getter = getattr(type(core), f"get_{kind}_features", None)
    if getter is None:
        return None
    asked: list[Any] = [inspect.unwrap(getter)]
    known, found = {f"get_{kind}_features", "forward"}, set[str]()
    while asked:
        method = asked.pop()
        for name in names_in(method.__code__):
            if name in known:
                continue
            known.add(name)
            value, written = getattr(core, name, None), getattr(type(core), name, None)
            beside = inspect.unwrap(written) if callable(written) else None
            if isinstance(value, nn.Module):
                found |= {name} if any(True for _ in value.parameters()) else set()
            elif isinstance(beside, FunctionType) and beside.__module__ == method.__module__:
                asked.append(beside)
    return frozenset(found)


def names_in(code: CodeType) -> Iterator[str]:
    """The names that a function and those inside it read."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_in(inner)
