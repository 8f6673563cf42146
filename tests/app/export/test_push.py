"""`mmrl export --push`: the real HfApi against a small hub on this machine; what cannot be pushed is refused in a sentence."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from mmrl.app.config.run import load
from mmrl.app.errors import sentence
from mmrl.app.export.export import check_push, export, export_and_push, push_folder
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import revive
from mmrl.core.ranks import Ranks
from mmrl.lab.tiny.text.vlms import build as build_tiny
from mmrl.runtime.net import offline
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.hub import TOKEN, Hub, small_hub

CONFIG = """steps = 1
prompts_per_step = 4
[algorithm]
preset = "dr_grpo"
minibatches = 1
[policy]
model = "{model}"
[data]
use = "grounding_jsonl"
path = "/home/somebody/boxes.jsonl"
[[reward]]
use = "iou"
"""
NAME = "me/my-model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that this process speaks with, uploading by LFS."""
    from huggingface_hub import constants

    with small_hub() as found:
        for name in offline.SWITCHES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "ENDPOINT", found.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    (made / "README.md").write_text("---\nlibrary_name: peft\n---\n# mine\n")
    (made / "model.safetensors").write_bytes(bytes(range(256)) * 20)
    (made / "part").mkdir()
    (made / "part" / "config.json").write_text("{}")
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_command_says_what_it_pushes_and_pushes_that(tmp_path: Path) -> None:
    base = build_tiny("qwen3_vl", tmp_path / "tiny-qwen")
    run = RunDir.create(tmp_path / "run")
    run.config_file.write_text(CONFIG.format(model=base))
    policy = revive(load(str(run.config_file)).config, None, None)
    Checkpoints(run.checkpoints).save(1, {"index": 1, "policy": policy.state_dict()}, Ranks())
    kept = {name: value for name, value in os.environ.items() if name not in offline.SWITCHES}
    with small_hub() as hub:
        told = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
        words = [sys.executable, "-m", "mmrl", "export", str(run.path), str(tmp_path / "out"), "--push", NAME, "--private"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=kept | told, check=False)
    assert done.returncode == 0, done.stderr
    pushed = hub.repositories[NAME]
    assert pushed.private and pushed.commits == ["Export of a run of mmrl"]
    assert pushed.files == contents(tmp_path / "out") and hub.blobs, "weights came by LFS"
    first = done.stdout.splitlines()[0]
    assert re.fullmatch(rf"pushing {len(pushed.files)} files, [\d.]+ [kM]B, to {NAME} \(private\):", first)
    assert all(f"  {name}  " in done.stdout for name in pushed.files)
    assert done.stdout.splitlines()[-1] == f"{hub.address}/{NAME}"
    assert {"README.md", "prompt_template.json", "run.toml", "config.json", "model.safetensors"} <= pushed.files.keys()
    assert json.loads(pushed.files["prompt_template.json"])["template"] == "none"
    assert b"somebody" not in b"".join(pushed.files.values())


def test_a_second_push_is_a_second_commit_and_private_is_never_public(hub: Hub, folder: Path) -> None:
    console = Console(quiet=True)
    check_push(NAME)
    push_folder(folder, NAME, False, console)
    (folder / "README.md").write_text("---\nlibrary_name: peft\n---\n# other\n")
    push_folder(folder, NAME, False, console)
    assert len(hub.repositories[NAME].commits) == 2 and hub.repositories[NAME].files == contents(folder)
    asked = len(hub.asked)
    with pytest.raises(ValueError, match="it is there already, and public: make it private in its settings"):
        push_folder(folder, NAME, True, console)
    assert not any("commit" in request or "blob" in request for request in hub.asked[asked:])


@pytest.mark.parametrize("name", ["model", "me/you/model", "me/", "me/a model", "me/-model", "me/model.git", ""])
def test_a_wrong_name_is_refused_before_anything_is_asked(hub: Hub, name: str) -> None:
    with pytest.raises(ValueError, match="write OWNER/NAME"):
        check_push(name)
    assert hub.asked == []


def test_without_token_or_network_nothing_is_exported(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ValueError, match=r"the hub answered 401 .*it does not know the token: run `hf auth login`"):
        export_and_push(lambda: export(tmp_path / "run", tmp_path / "new"), NAME, False)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ValueError, match="there is no token for the Hugging Face hub"):
        check_push(NAME)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FileNotFoundError, match=r"cannot be reached .*check the network, or export without --push"):
        check_push(NAME)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="nothing goes to the hub while HF_HUB_OFFLINE"):
        check_push(NAME)
    with pytest.raises(ValueError, match="name it with --push OWNER/NAME, or leave --private out"):
        export_and_push(lambda: export(tmp_path / "run", tmp_path / "new"), None, True)
    assert not (tmp_path / "new").exists()


def test_what_the_hub_refuses_is_one_sentence(hub: Hub, folder: Path) -> None:
    console = Console(quiet=True)
    with pytest.raises(ValueError, match=r"--push you/model: the hub answered 403 .*the token may not write there") as refused:
        push_folder(folder, "you/model", False, console)
    assert "\n" not in sentence(refused.value)
    hub.refuses_blobs = True
    with pytest.raises((ValueError, FileNotFoundError), match="--push me/my-model: the ") as broken:
        push_folder(folder, NAME, False, console)
    assert hub.repositories[NAME].commits == [] and "\n" not in sentence(broken.value)
