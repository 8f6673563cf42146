"""New weights reach the vLLM that runs, by a file and as an adapter; what it computed with others is forgotten."""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrl.core.types import Prompt, Request
from mmrl.engine.sync import BroadcastSync, Update
from mmrl.engine.venv import find_venv
from mmrl.engine.wire.client import EngineClient, EngineRefusedError
from mmrl.engine.wire.completions import EngineMismatchError
from mmrl.engine.worker.weight_group import WeightGroup
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import EngineConfig
from tests.engine.servers import CLOSE, environment, gap, move, policy_of, renew, server_of

pytestmark = pytest.mark.engine
Join = Callable[..., TextPolicy]


def requests_of(asked: Sequence[Prompt]) -> list[Request]:
    return [Request(prompt, 4, group_id=i, seed=21 + i) for i, prompt in enumerate(asked)]


@pytest.mark.parametrize("sync", ["file", "broadcast"])
def test_all_weights(sync: str, join: Join, asked: Sequence[Prompt]):
    policy = join(sync)
    for version in range(3):
        rollouts = policy.rollout(requests_of(asked))
        assert (gap(policy, rollouts) < CLOSE, rollouts.weights_version) == (True, version)
        move(policy)
        assert gap(policy, rollouts) > 100 * CLOSE, "the weights moved far enough to be seen"


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4, alpha=8)], ids=["all weights", "an adapter"])
def test_a_copy_beside_the_server_is_what_it_reads(
    lora: LoraSettings | None, owner: TextPolicy, join: Join, asked: Sequence[Prompt]
):
    if lora:
        renew(owner)
    with TemporaryDirectory(dir="/dev/shm") as local:
        policy = join("lora" if lora else "file", local, lora=lora)
        for _ in range(2):
            assert gap(policy, policy.rollout(requests_of(asked[:2]))) < CLOSE
            [copy] = Path(local).glob("mmrl-weights-*")
            assert (copy / ("adapter_model" if lora else "model")).with_suffix(".safetensors").is_file()
            move(policy, by=1.0 if lora else 0.05)
        server_of(policy).close()
        assert not list(Path(local).glob("mmrl-weights-*"))


@pytest.mark.parametrize("reset", [(), ("prefix",)])
def test_a_server_without_resets_is_refused(
    reset: tuple[str, ...], join: Join, asked: Sequence[Prompt], monkeypatch: pytest.MonkeyPatch
):
    """An update of vLLM's empties no cache: keys and values stay stale, and with a reset of these alone, features of pictures."""
    policy = join()
    requests = requests_of([Prompt(prompt.id, prompt.text * 30, prompt.media) for prompt in asked[:2]])
    assert gap(policy, policy.rollout(requests)) < CLOSE
    with monkeypatch.context() as patch:
        patch.setattr(EngineClient, "pause", lambda client: None)  # a pause forgets too
        patch.setattr(EngineClient, "reset_caches", lambda client: [client.post(f"/reset_{name}_cache") for name in reset])
        move(policy)
        with pytest.raises(EngineMismatchError, match="remembers what it computed with others"):
            policy.rollout(requests)
    move(policy)
    assert gap(policy, policy.rollout(requests)) < CLOSE


def test_an_adapter(owner: TextPolicy, join: Join, asked: Sequence[Prompt]):
    renew(owner)
    policy = join("lora", lora=LoraSettings(rank=4, alpha=8))
    for version in range(3):
        rollouts = policy.rollout(requests_of(asked))
        assert (gap(policy, rollouts) < CLOSE, rollouts.weights_version) == (True, version)
        move(policy, by=1.0)
        assert gap(policy, rollouts) > 100 * CLOSE


@pytest.mark.parametrize("sync", ["file", "broadcast"])
def test_merged_adapters(sync: str, join: Join, asked: Sequence[Prompt]):
    policy = join(sync, lora=LoraSettings(rank=4, alpha=8))
    move(policy, by=1.0)
    assert gap(policy, policy.rollout(requests_of(asked))) < CLOSE


def test_a_file_that_does_not_fit_is_refused_and_the_old_weights_go_on(join: Join, asked: Sequence[Prompt], tmp_path: Path):
    """A failed update would end vLLM at the next request."""
    policy = join()
    before = policy.rollout(requests_of(asked))
    generator = server_of(policy)
    assert generator.fleet is not None
    client, sync = generator.fleet.members[0].client, generator.sync
    good = Update("good", tmp_path / "good")
    sync.save(policy, good)
    weights = load_file(good.path / "model.safetensors")
    (some,) = (name for name in weights if re.fullmatch(r"model\.(language_model\.)?norm\.weight", name))
    broken: dict[str, tuple[dict[str, torch.Tensor], str]] = {
        "missing": ({name: weight for name, weight in weights.items() if name != some}, "1 weights are missing, "),
        "strange": (weights | {"model.extra.weight": weights[some].clone()}, "none of the model's, model.extra.weight"),
        "other": (weights | {some: weights[some][:5].clone()}, r"has shape \(5,\), the model's has \(128,\)"),
        "cut": (weights, "cannot be read as safetensors"),
    }
    for name, (tensors, reason) in broken.items():
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "model.safetensors"
        save_file(tensors, file)
        if name == "cut":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with pytest.raises(EngineRefusedError, match=reason):
            sync.push(client, Update(name, folder))
        # The same file without a look at it beforehand is refused inside.
        with pytest.raises(Exception, match="500"):
            client.update({"path": str(file)}, name)
        assert client.weight_version() != name
    shutil.rmtree(tmp_path / "cut")
    with pytest.raises(EngineRefusedError, match="is this folder shared with the engine"):
        sync.push(client, Update("cut", tmp_path / "cut"))
    after = policy.rollout(requests_of(asked))
    assert after.groups == before.groups and gap(policy, after) < CLOSE


def test_a_transfer_that_broke_is_mended_by_the_next(join: Join, asked: Sequence[Prompt], monkeypatch: pytest.MonkeyPatch):
    """vLLM has then part of a layer, which would count twice, and is asked for nothing before it has all."""
    policy = join("broadcast")
    sync = server_of(policy).sync
    assert isinstance(sync, BroadcastSync)
    sync.bundle = 1
    before = policy.rollout(requests_of(asked))
    move(policy)
    send, sent, names = WeightGroup.broadcast, list[int](), list(sync.weights)
    # keys, queries and values are one layer of vLLM's
    within = 1 + next(i for i, name in enumerate(names) if name.endswith("k_proj.weight"))

    def break_off(group: WeightGroup, data: torch.Tensor, look: Callable[[], None] = lambda: None) -> None:
        sent.append(len(data))
        if len(sent) == within + 1:
            raise RuntimeError("the network is gone")
        send(group, data, look)

    monkeypatch.setattr(WeightGroup, "broadcast", break_off)
    rollouts = policy.rollout(requests_of(asked))
    assert len(sent) == within + 1 + 1 + len(names), "broken off, joined anew, and all sent again"
    assert (gap(policy, rollouts) < CLOSE, rollouts.weights_version) == (True, 1)
    assert gap(policy, before) > 100 * CLOSE


def test_an_adapter_beside_what_4_bits_stand_for(
    model: str, asked: Sequence[Prompt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path))
    engine = EngineConfig(environment=str(environment()), cache_mb=256, max_length=2048)
    policy = policy_of(model, engine, LoraSettings(rank=4, alpha=8), weights="nf4")
    try:
        for version in range(2):
            rollouts = policy.rollout(requests_of(asked))
            assert (gap(policy, rollouts) < CLOSE, rollouts.weights_version) == (True, version)
            move(policy, by=1.0)
        assert server_of(policy).model.startswith(f"{tmp_path}/whole-")
    finally:
        server_of(policy).close()


def test_it_knows_no_format_of_bitsandbytes():
    """The reason why a server reads what 4 bits stand for: one that knows them would read the codes in mmrl's cache."""
    python = find_venv(environment()).folder / "bin" / "python"
    look = "from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS as m; print('bitsandbytes' in m, 'fp8' in m)"
    found = subprocess.run([python, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "False True"
