"""New weights are read once on a machine and copied beside its servers, whatever asks for them; what is no copy is refused."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmrl.engine.sync import FileSync, Update
from mmrl.engine.worker import weight_copy
from mmrl.engine.worker.weight_copy import SUMS, copy_near, drop_copies, place_of, write_sums


@pytest.fixture
def local() -> Iterator[str]:
    """A folder of a machine's own."""
    folder = tempfile.mkdtemp()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Weights of one update, of the run `one`."""
    return written(tmp_path / "one-1", b"first")


def written(folder: Path, content: bytes) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_bytes(b"{}")
    write_sums(folder)
    return folder


def test_many_ask_and_one_reads(shared: Path, local: str, monkeypatch: pytest.MonkeyPatch):
    copy, read = weight_copy.copy_file, list[str]()

    def count(source: Path, target: Path, wanted: str) -> None:
        read.append(source.name)
        copy(source, target, wanted)

    monkeypatch.setattr(weight_copy, "copy_file", count)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: copy_near(str(shared), local), range(8))) == {place_of(str(shared), local)}
    assert read == ["config.json", "model.safetensors"]
    assert (place_of(str(shared), local) / "model.safetensors").read_bytes() == b"first"
    drop_copies(local)
    assert [path.name for path in Path(local).iterdir()] == ["mmrl-weights.lock"]


def test_what_is_not_what_was_written_is_refused_and_a_copy_that_broke_off_is_made_again(shared: Path, local: str):
    whole = (shared / "model.safetensors").read_bytes()
    for broken in (b"firs", b"fIrst"):
        (shared / "model.safetensors").write_bytes(broken)
        with pytest.raises(ValueError, match=r"as .* reads it, is not what was written"):
            copy_near(str(shared), local)
    (shared / "model.safetensors").write_bytes(whole)
    assert (copy_near(str(shared), local) / "model.safetensors").read_bytes() == whole
    (shared / SUMS).unlink()
    assert copy_near(str(shared), local), "it is there"
    with pytest.raises(ValueError, match="cannot be copied to"):
        copy_near(str(shared.with_name("one-2")), local)


def test_a_copy_that_finds_no_room_is_refused(shared: Path, local: str, monkeypatch: pytest.MonkeyPatch):
    full = shutil.disk_usage(local)._replace(free=3)
    monkeypatch.setattr(weight_copy.shutil, "disk_usage", lambda _: full)
    with pytest.raises(ValueError, match=r"has 0\.0 GB free, and the weights are 0\.0 GB: name a larger folder"):
        copy_near(str(shared), local)


def test_a_file_of_weights_has_its_sums_where_copies_are_made(tmp_path: Path):
    for sync, held in ((FileSync(local="/dev/shm"), True), (FileSync(), False)):
        folder = tmp_path / str(held)
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"abc")
        sync.wrote(Update("one-1", folder))
        assert (folder / SUMS).exists() == held
    sums = json.loads((tmp_path / "True" / SUMS).read_text())
    assert sums == {"model.safetensors": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}, "FIPS 180-2, B.1"
