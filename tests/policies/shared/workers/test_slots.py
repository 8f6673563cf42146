"""Weights cross between processes whole and by their version, or not at all."""

import pickle
from collections.abc import Iterator
from shutil import disk_usage
from types import SimpleNamespace

import pytest
import torch

from mmrl.policies.shared.workers import remote
from mmrl.policies.shared.workers.remote import HEAD, SHARED, Slots, TornWeightsError, buffer_of

WEIGHTS = [torch.arange(6.0).reshape(2, 3), torch.ones(3, dtype=torch.bfloat16), torch.zeros(0, 4)]


@pytest.fixture
def slots() -> Iterator[Slots]:
    made = Slots.for_weights(WEIGHTS)
    yield made
    made.free()


def test_each_slot_gives_back_what_was_written(slots: Slots):
    other: Slots = pickle.loads(pickle.dumps(slots))  # noqa: S301 - our own bytes
    slots.write(0, 3, WEIGHTS)
    slots.write(1, 4, [-weight for weight in WEIGHTS])
    for place, version, sign in ((0, 3, 1), (1, 4, -1)):
        into = [torch.full_like(weight, 7) for weight in WEIGHTS]
        other.read(place, version, into)
        assert all(torch.equal(found, sign * weight) for found, weight in zip(into, WEIGHTS, strict=True))


def test_too_little_shared_memory_is_refused_before_a_write_beyond_it_kills_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(remote, "disk_usage", lambda folder: SimpleNamespace(free=500))
    with pytest.raises(ValueError, match=r"through 0 MiB of shared memory, and /dev/shm has 0 MiB: .*docker run --shm-size"):
        Slots.for_weights([torch.zeros(1000)])


def test_shared_memory_that_another_program_fills_meanwhile_is_refused_too(monkeypatch: pytest.MonkeyPatch):
    """It seems to be there, and its pages are not; nothing of it is left."""
    before = set(SHARED.iterdir())
    monkeypatch.setattr(remote, "disk_usage", lambda folder: SimpleNamespace(free=2**60))
    with pytest.raises(ValueError, match=r"MiB of shared memory, and /dev/shm has .*docker run --shm-size"):
        Slots.for_weights([torch.empty(disk_usage(SHARED).total // 4, device="meta")])
    assert set(SHARED.iterdir()) <= before


def test_shared_memory_has_its_pages_before_anything_is_written(slots: Slots):
    assert (SHARED / slots.name).stat().st_blocks * 512 >= 2 * slots.size


def test_a_lost_a_torn_and_a_replaced_publication_are_refused(slots: Slots):
    into = [torch.empty_like(weight) for weight in WEIGHTS]
    with pytest.raises(TornWeightsError, match="version 3, and the memory it shares with the trainer holds -1 to -1"):
        slots.read(0, 3, into)
    slots.write(0, 3, WEIGHTS)
    HEAD.pack_into(buffer_of(slots.name), 0, 4, 3)
    for version in (3, 4):
        with pytest.raises(TornWeightsError, match="holds 4 to 3: a publication was lost, written in part or replaced too early"):
            slots.read(0, version, into)
