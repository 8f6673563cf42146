"""Cached answers. The key holds all a reward may look at: text, answer, columns and the media's bytes with their shape."""

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from os import stat
from pathlib import Path
from typing import Any, cast

import torch

from mmrl.algorithms.notes import Held
from mmrl.core.protocols import State
from mmrl.core.samples import Group, Observation, Prompt, Scored, kind_of
from mmrl.runtime.blame import by_name

Digest = bytes
RawAnswer = Any
"""What a user's reward returned, before it is checked."""


class NotCacheableError(TypeError):
    """Something in the input has no bytes to compare."""


@dataclass(frozen=True)
class Known:
    """The cache's knowledge of one group."""

    group: Group
    keys: tuple[Digest, ...]
    """One key per sample, or one for the whole group; empty: the group cannot be identified."""
    answers: Mapping[int, RawAnswer]
    """Known answers by the sample's index."""
    rest: Group | None
    """What the reward must still score; None: nothing."""

    def answer(self) -> list[RawAnswer]:
        return [self.answers[i] for i in range(len(self.group.samples))]


class AnswerCache:
    """At most `size` samples' answers, the least recently used leaving first.

    Args:
        pointwise: a sample's score depends on that sample alone, so samples are remembered one by one; else whole groups.
    """

    def __init__(self, size: int, pointwise: bool) -> None:
        self.size, self.pointwise = size, pointwise
        self.count = 0
        self._answers: OrderedDict[Digest, tuple[RawAnswer, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def look(self, group: Group) -> Known:
        try:
            if self.pointwise:
                prompt = digest(group.prompt)
                keys = tuple(digest((prompt, sample)) for sample in group.samples)
            else:
                keys = (digest((group.prompt, group.samples, group.probes)),)
        except NotCacheableError:
            return Known(group, (), {}, group)
        with self._lock:
            found = [self._answers.get(key) for key in keys]
            for key, answers in zip(keys, found, strict=True):
                if answers is not None:
                    self._answers.move_to_end(key)
        if not self.pointwise:
            [whole] = found
            return Known(group, keys, {}, group) if whole is None else Known(group, keys, dict(enumerate(whole)), None)
        known = {i: answers[0] for i, answers in enumerate(found) if answers is not None}
        missing = tuple(sample for i, sample in enumerate(group.samples) if i not in known)
        return Known(group, keys, known, replace(group, samples=missing) if missing else None)

    def learn(self, known: Known, fresh: RawAnswer) -> RawAnswer:
        """The complete answer, known and fresh; usable fresh values are remembered. A broken answer is passed on as it is."""
        assert known.rest is not None
        try:
            answers = list(fresh)
        except TypeError:
            return fresh
        if len(answers) != len(known.rest.samples):
            return fresh if not known.answers else [*known.answers.values(), *answers]
        if self.pointwise and known.keys:
            places = [i for i in range(len(known.group.samples)) if i not in known.answers]
            for place, answer in zip(places, answers, strict=True):
                self._keep(known.keys[place], (answer,))
            merged = {**known.answers, **dict(zip(places, answers, strict=True))}
            return [merged[i] for i in range(len(known.group.samples))]
        if known.keys:
            self._keep(known.keys[0], tuple(answers))
        return answers

    def state_dict(self) -> State:
        """Keys in hexadecimal with the answers, the least recently used first."""
        return dict(self.held())

    def held(self) -> Held:
        """The same, written out when it is looked at."""
        with self._lock:
            kept = list(self._answers.items())
        return Held(lambda: {"answers": [[key.hex(), list(map(as_numbers, answers))] for key, answers in kept]})

    def load_state_dict(self, state: State) -> None:
        """Restore as many answers as there is room for."""
        with self._lock:
            self._answers.clear()
            self.count = 0
        for key, answers in state["answers"]:
            self._keep(bytes.fromhex(key), tuple(Scored(*answer) for answer in answers))

    def _keep(self, key: Digest, answers: tuple[RawAnswer, ...]) -> None:
        if not all(map(is_ok, answers)):
            return
        # as numbers, since a reward may go on writing into what it returned
        numbers = map(as_numbers, answers)
        answers = tuple(Scored(value, parts) if parts else value for value, parts in numbers)
        with self._lock:
            self.count += len(answers) - len(self._answers.pop(key, ()))
            self._answers[key] = answers
            while self.count > self.size:
                self.count -= len(self._answers.popitem(last=False)[1])


def is_ok(answer: RawAnswer) -> bool:
    """A finite number: neither None nor a failure is remembered."""
    try:
        value = answer.value if isinstance(answer, Scored) else by_name(answer)[0]
    except TypeError:
        return False
    return isinstance(value, int | float) and math.isfinite(value)


def as_numbers(answer: RawAnswer) -> tuple[float, dict[str, float]]:
    """Value and parts of an answer that `is_ok`."""
    value, parts = (answer.value, answer.parts) if isinstance(answer, Scored) else by_name(answer)
    return float(cast(float, value)), {name: float(part) for name, part in parts.items()}


def digest(thing: object) -> Digest:
    """SHA-256 of a value and its type; NotCacheableError where it holds something that has no bytes of its own."""
    state = hashlib.sha256()
    feed(state.update, thing)
    return state.digest()


def feed(update: Callable[[bytes], None], thing: object) -> None:
    """Feed every value with its type and length, so that no two inputs give the same bytes."""
    head, body, inside = parts_of(thing)
    update(f"{head}:{len(body)}:{len(inside)};".encode())
    update(body)
    for item in inside:
        feed(update, item)


def parts_of(thing: object) -> tuple[str, bytes, Sequence[object]]:
    """Kind, bytes and inner values of a value."""
    name = type(thing).__name__
    if thing is None or isinstance(thing, bool | int | float | complex):
        return name, repr(thing).encode(), ()
    if isinstance(thing, str):
        return name, thing.encode("utf-8", "surrogatepass"), ()
    if isinstance(thing, bytes):
        return name, thing, ()
    if isinstance(thing, Path):
        return name, str(thing).encode(), ()
    if isinstance(thing, Prompt):
        return name, b"", (thing.id, thing.text, thing.answer, thing.columns, *map(content_of, thing.media))
    if isinstance(thing, Observation):
        facts = thing.text, thing.role, thing.reward, thing.done, thing.key, thing.facts
        return name, b"", (*facts, *map(content_of, thing.media))
    if is_dataclass(thing) and not isinstance(thing, type):
        name_files = kind_of(thing).files
        files = getattr(thing, name_files) if name_files else ()
        shown = (getattr(thing, f.name) for f in fields(thing) if f.name != name_files)
        return name, b"", (*shown, *map(content_of, (files,) if isinstance(files, str) else files))
    if isinstance(thing, Mapping):
        return name, b"", tuple(x for key in sorted(thing, key=repr) for x in (key, thing[key]))
    if isinstance(thing, list | tuple):
        return name, b"", tuple(thing)
    return media_parts(thing)


def media_parts(thing: Any) -> tuple[str, bytes, Sequence[object]]:
    """Pictures and arrays: their bytes and what the bytes mean."""
    name = type(thing).__name__
    if hasattr(thing, "tobytes") and hasattr(thing, "mode") and hasattr(thing, "size"):
        palette = thing.getpalette() if thing.mode == "P" else None
        return "picture", thing.tobytes(), (thing.mode, tuple(thing.size), palette)
    if hasattr(thing, "detach") and hasattr(thing, "numpy"):
        tensor = thing.detach().cpu().contiguous()
        body = tensor.flatten().view(torch.uint8).numpy().tobytes()
        return "tensor", body, (str(tensor.dtype), tuple(tensor.shape))
    if hasattr(thing, "tobytes") and hasattr(thing, "dtype") and str(thing.dtype) != "object":
        return "array", thing.tobytes(), (str(thing.dtype), tuple(thing.shape))
    raise NotCacheableError(f"{name} has no bytes to compare")


def content_of(media: object) -> object:
    """A file's content in place of its path: the same path may hold another picture tomorrow."""
    if not isinstance(media, str | Path):
        return media
    try:
        info = stat(media)
    except OSError:
        raise NotCacheableError(f"{media} cannot be read") from None
    return content(str(media), info.st_mtime_ns, info.st_size)


@lru_cache(4096)
def content(path: str, changed_ns: int, size: int) -> Digest:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
