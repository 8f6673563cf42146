"""Python and pickles that came with data, models, checkpoints or the working directory run only where the user named them."""

import json
import logging
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from diffusers.utils import logging as diffusers_logging

from mmrl.app.plugins import resolve as plugins
from mmrl.app.run.context import hushed_saving
from mmrl.core.ranks import Ranks
from mmrl.lab.tiny.flow import pipelines
from mmrl.policies.flow import loading as flow_loading
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text import loading
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.serving.scorers.models import read_weights
from mmrl.training.checkpoints.save import CheckpointError, Checkpoints
from tests.attacks.attack import Bomb
from tests.support.refused import refused

CODE = '''"""A reward that must not run."""
from pathlib import Path
Path({fuse!r}).touch()
def reward(group):
    return [0.0] * len(group.samples)
'''


@pytest.fixture
def fuse(tmp_path: Path) -> Path:
    return tmp_path / "executed"


@pytest.fixture
def here(tmp_path: Path, fuse: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory full of Python that touches the fuse."""
    folder = tmp_path / "here"
    for name in (
        "rewards/evil.py",
        "datasets/evil.py",
        "datasets/suites/evil.py",
        "environments/foreign/evil_style.py",
        "sitecustomize.py",
        "conftest.py",
        "evil.py",
        "json.py",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(CODE.format(fuse=str(fuse)))
    (folder / "configs").mkdir()
    (folder / "configs" / "a.toml").write_text(
        '# Mine\n[algorithm]\npreset = "grpo"\n[policy]\nmodel = "m"\n[data]\nuse = "./evil.py"\n'
    )
    monkeypatch.chdir(folder)
    yield folder


LOOK = Path(__file__).parent / "programs" / "look.py"


def test_looking_runs_nothing(here: Path, fuse: Path):
    """Names and summaries are read as text, also where a folder of the working directory has the name of one of ours."""
    run = subprocess.run([sys.executable, "-I", str(LOOK)], cwd=here, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "A reward that must not run" in run.stdout and "evil" in run.stdout
    assert not fuse.exists()


def test_a_name_means_the_rewards_folder_and_a_path_means_the_file(here: Path, fuse: Path):
    (here / "rewards" / "evil.py").unlink()
    refused(r"no reward is called 'evil'.*for a file of yours write \./evil\.py", plugins.load, "evil", "rewards")
    assert not fuse.exists()
    plugins.load("./evil.py", "rewards")
    assert fuse.exists()


def with_code(vlm: Path, folder: Path, fuse: Path) -> Path:
    """A model of a kind that transformers does not know, with the Python that would make it one."""
    shutil.copytree(vlm, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModelForImageTextToText": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(
        f"from pathlib import Path\nPath({str(fuse)!r}).touch()\nfrom transformers import Qwen3VLConfig\n"
        "class Evil(Qwen3VLConfig):\n    model_type = 'evil'\n"
    )
    return folder


def test_code_of_a_model_is_not_run_and_the_setting_is_named(vlm: Path, tmp_path: Path, fuse: Path):
    folder = with_code(vlm, tmp_path / "model", fuse)
    with pytest.raises(ValueError, match=r"Python files of its own, which are not run: .*policy\.trust_remote_code = true"):
        loading.load(TextPolicyConfig(str(folder)))
    assert not fuse.exists()


def test_code_of_a_processor_is_not_run_either(vlm: Path, tmp_path: Path, fuse: Path):
    folder = with_code(vlm, tmp_path / "model", fuse)
    shutil.copy(vlm / "config.json", folder / "config.json")
    for name in ("processor_config.json", "tokenizer_config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            told = json.loads((folder / name).read_text()) | {
                "auto_map": {"AutoProcessor": "evil.Evil"},
                "processor_class": "Evil",
            }
            (folder / name).write_text(json.dumps(told))
    try:
        loading.load(TextPolicyConfig(str(folder)))
    except (ValueError, OSError) as error:
        assert str(error)
    assert not fuse.exists()


def test_trust_is_off_and_said_aloud_when_on(vlm: Path, tmp_path: Path, fuse: Path, caplog: pytest.LogCaptureFixture):
    assert TextPolicyConfig("m").trust_remote_code is False
    with caplog.at_level(logging.WARNING, "mmrl"):
        loading.load_config(TextPolicyConfig(str(vlm)))
        assert "trust_remote_code" not in caplog.text
        with hushed_saving():
            logging.getLogger("transformers.models").warning("a remark")
            loading.load_config(TextPolicyConfig(str(vlm), trust_remote_code=True))
    assert "a remark" not in caplog.text
    assert f"policy.trust_remote_code is true: Python files of {vlm} run with your rights" in caplog.text


def test_a_pipeline_names_no_python_of_its_own(tmp_path: Path, fuse: Path):
    diffusers_logging.disable_progress_bar()
    folder = Path(pipelines.build("sd3", tmp_path / "pipe"))
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "transformer" / "evil.py").write_text(CODE.format(fuse=str(fuse)) + "class Evil: pass\n")
    for name in ("evil", "os", "."):
        (folder / "model_index.json").write_text(json.dumps(index | {"transformer": [name, "Evil"]}))
        with pytest.raises(ValueError, match=r"names .* in its model_index.json: Python files of a model are not run"):
            flow_loading.load(FlowPolicyConfig(str(folder), height=16, width=16))
    (folder / "model_index.json").write_text(json.dumps(index | {"_class_name": ["evil", "Evil"]}))
    refused("is not known here", flow_loading.load, FlowPolicyConfig(str(folder), height=16, width=16))
    assert not fuse.exists()


def plain(bomb: Bomb, file: Path) -> None:
    file.write_bytes(pickle.dumps({"index": 1, "evil": bomb}))


def zip_archive(bomb: Bomb, file: Path) -> None:
    torch.save({"index": torch.ones(1), "evil": bomb}, file)


def old(bomb: Bomb, file: Path) -> None:
    torch.save({"index": torch.ones(1), "evil": bomb}, file, _use_new_zipfile_serialization=False)


WAYS = (plain, zip_archive, old)


@pytest.fixture
def bomb(fuse: Path) -> Bomb:
    return Bomb(fuse)


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
        refused(f"{name} holds more than tensors", checkpoints.load, 3, error=CheckpointError)
        assert not bomb.fuse.exists(), name
        (folder / name).write_bytes(kept)
        (folder / "manifest.json").write_text(manifest)
    assert checkpoints.load(3)["index"] == 7


@pytest.mark.parametrize("plant", WAYS)
def test_weights_of_rewards_are_read_as_data(plant: Callable[[Bomb, Path], None], bomb: Bomb, tmp_path: Path):
    plant(bomb, tmp_path / "weights.pt")
    refused(r"weights\.pt cannot be read as tensors alone", read_weights, tmp_path / "weights.pt")
    assert not bomb.fuse.exists()


@pytest.mark.parametrize("plant", WAYS)
def test_a_models_weights_are_read_as_data(plant: Callable[[Bomb, Path], None], vlm: Path, bomb: Bomb, tmp_path: Path):
    folder = Path(shutil.copytree(vlm, tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    plant(bomb, folder / "pytorch_model.bin")
    refused(r"(?i)weights.?only|pytorch_model.bin", loading.load, TextPolicyConfig(str(folder)), error=Exception)
    assert not bomb.fuse.exists()


def test_an_adapters_weights_are_read_as_data(vlm: Path, bomb: Bomb, tmp_path: Path):
    loaded = loading.load(TextPolicyConfig(str(vlm), lora=LoraSettings(rank=2)))
    loaded.adapter.save_pretrained(tmp_path / "adapter")
    [weights] = (tmp_path / "adapter").glob("adapter_model.safetensors")
    weights.unlink()
    zip_archive(bomb, tmp_path / "adapter" / "adapter_model.bin")
    with pytest.raises(Exception, match=r"(?i)weights.?only|adapter_model.bin"):
        loading.load(TextPolicyConfig(str(vlm), lora=LoraSettings(adapter=str(tmp_path / "adapter"))))
    assert not bomb.fuse.exists()
