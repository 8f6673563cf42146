"""Pickles with code in them, planted where mmrl reads: refused, and the code not run."""

import json
import pickle
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from mmrl.core.ranks import Ranks
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.loading import load as load_vlm
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.serving.scorers.models import read_weights
from mmrl.training.checkpoints.save import CheckpointError, Checkpoints
from tests.attacks.attack import Bomb


def plain(bomb: Bomb, file: Path) -> None:
    file.write_bytes(pickle.dumps({"index": 1, "evil": bomb}))


def zip_archive(bomb: Bomb, file: Path) -> None:
    torch.save({"index": torch.ones(1), "evil": bomb}, file)


def old(bomb: Bomb, file: Path) -> None:
    torch.save({"index": torch.ones(1), "evil": bomb}, file, _use_new_zipfile_serialization=False)


WAYS = (plain, zip_archive, old)


@pytest.fixture
def bomb(tmp_path: Path) -> Bomb:
    return Bomb(tmp_path / "executed")


def test_the_bomb_works(bomb: Bomb, tmp_path: Path):
    """Were it read carelessly, the file would be there."""
    zip_archive(bomb, tmp_path / "a.pt")
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert bomb.fuse.exists()


@pytest.mark.parametrize("plant", WAYS)
def test_every_file_of_a_checkpoint_is_read_as_data(plant: Callable[[Bomb, Path], None], bomb: Bomb, tmp_path: Path):
    """The manifest's checksum is made to fit: whoever plants a file can do that too."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    folder = checkpoints.save(3, {"policy": {"w": torch.ones(2)}, "index": 7, "rng": {"x": [1, 2]}}, Ranks())
    files = sorted(file.name for file in folder.iterdir() if file.suffix == ".pt")
    assert files
    for name in files:
        kept, manifest = (folder / name).read_bytes(), (folder / "manifest.json").read_text()
        plant(bomb, folder / name)
        planted = (folder / name).read_bytes()
        told = json.loads(manifest.replace(sha256(kept).hexdigest(), sha256(planted).hexdigest()))
        (folder / "manifest.json").write_text(json.dumps(told))
        with pytest.raises(CheckpointError, match=f"{name} holds more than tensors"):
            checkpoints.load(3)
        assert not bomb.fuse.exists(), name
        (folder / name).write_bytes(kept)
        (folder / "manifest.json").write_text(manifest)
    assert checkpoints.load(3)["index"] == 7


@pytest.mark.parametrize("plant", WAYS)
def test_weights_of_rewards_are_read_as_data(plant: Callable[[Bomb, Path], None], bomb: Bomb, tmp_path: Path):
    plant(bomb, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"weights\.pt cannot be read as tensors alone"):
        read_weights(tmp_path / "weights.pt")
    assert not bomb.fuse.exists()


@pytest.mark.parametrize("plant", WAYS)
def test_a_models_weights_are_read_as_data(plant: Callable[[Bomb, Path], None], vlm: Path, bomb: Bomb, tmp_path: Path):
    folder = Path(shutil.copytree(vlm, tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    plant(bomb, folder / "pytorch_model.bin")
    with pytest.raises(Exception, match=r"(?i)weights.?only|pytorch_model.bin"):
        load_vlm(TextPolicyConfig(str(folder)))
    assert not bomb.fuse.exists()


def test_an_adapters_weights_are_read_as_data(vlm: Path, bomb: Bomb, tmp_path: Path):
    loaded = load_vlm(TextPolicyConfig(str(vlm), lora=LoraSettings(rank=2)))
    loaded.adapter.save_pretrained(tmp_path / "adapter")
    [weights] = (tmp_path / "adapter").glob("adapter_model.safetensors")
    weights.unlink()
    zip_archive(bomb, tmp_path / "adapter" / "adapter_model.bin")
    with pytest.raises(Exception, match=r"(?i)weights.?only|adapter_model.bin"):
        load_vlm(TextPolicyConfig(str(vlm), lora=LoraSettings(adapter=str(tmp_path / "adapter"))))
    assert not bomb.fuse.exists()
