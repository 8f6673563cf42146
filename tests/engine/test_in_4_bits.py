"""Servers beside a policy in 4 bits read what its codes stand for, and take its adapters."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.engine.facts import look_at_engine
from mmrl.engine.generator import VllmGenerator, text_parts
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.quantized import kept
from mmrl.policies.text.loading import server_model
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.policies.text.settings import EngineConfig, QuantizedSettings, TextPolicyConfig
from tests.engine.servers import gap
from tests.engine.test_servers import BOUND, move
from tests.policies.text.test_quantized import in_4_bits, with_adapter
from tests.support.fake_engines import engines, make_environment
from tests.support.stored_codes import change_weights
from tests.support.text_policies import logprobs, make, mixed

LORA = LoraSettings(rank=4, alpha=8)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def config_of(folder: str, engine: EngineConfig, **settings: Any) -> TextPolicyConfig:
    settings = {"weights": "nf4", "lora": LORA, "sampling": Sampling(max_new_tokens=5), **settings}
    return TextPolicyConfig(folder, engine=engine, **settings)


def test_rows_are_written_beside_the_same_numbers(tiny: Callable[[str], str], tmp_path: Path):
    engine = EngineConfig(environment=str(make_environment(tmp_path / "vllm")), timeout_s=60.0)
    config = config_of(tiny("qwen2_5_vl"), engine)
    look_at_engine(config)
    torch.manual_seed(0)
    policy = TextPolicy(config, parts=text_parts(config))
    generator = policy.generator
    assert isinstance(generator, VllmGenerator)
    try:
        for _ in range(2):
            move(policy)
            assert gap(policy, policy.rollout(mixed())) < BOUND
        assert generator.model == server_model(config) and generator.fleet is not None
        assert generator.fleet.members[0].facts.model == generator.model
    finally:
        generator.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_folder_is_the_rounded_model(tiny: Callable[[str], str], dtype: str):
    own = in_4_bits(tiny("qwen3_vl"), dtype=dtype)
    folder = server_model(own.config)
    twin = with_adapter(make(folder, lora=LORA, dtype=dtype))
    rollouts = own.rollout(mixed())
    assert torch.equal(logprobs(own, rollouts), logprobs(twin, rollouts))


def test_it_is_made_once_and_named_by_its_source(tiny: Callable[[str], str], monkeypatch: pytest.MonkeyPatch):
    config = config_of(tiny("qwen3_vl"), EngineConfig())
    folder = server_model(config)
    others = [
        config_of(tiny("qwen3_vl"), EngineConfig(), quantized=QuantizedSettings(double=False)),
        config_of(tiny("qwen3_vl"), EngineConfig(), dtype="bfloat16"),
        config_of(tiny("qwen2_5_vl"), EngineConfig()),
    ]
    assert len({folder, *map(server_model, others)}) == 4
    monkeypatch.setattr(kept, "quantize", lambda *_: pytest.fail("it was made again"))
    assert server_model(config) == folder
    assert server_model(config_of(tiny("qwen3_vl"), EngineConfig(), weights="float")) == tiny("qwen3_vl")


def test_a_server_with_other_numbers_is_refused_before_anything_is_loaded(tiny: Callable[[str], str]):
    with engines(tiny("qwen3_vl")) as (engine,):
        config = config_of(tiny("qwen3_vl"), EngineConfig(url=(engine.url,)))
        with pytest.raises(ValueError, match=r"serves '.*qwen3_vl\w*', and the run needs '.*whole-\w{12}': serve that model"):
            look_at_engine(config)


@pytest.mark.parametrize("sync", ["file", "broadcast"])
def test_ways_that_send_all_weights_are_refused(sync: Any):
    with pytest.raises(ValueError, match=rf'sync is "{sync}", which sends all weights, .*: set policy.engine.sync = "lora"'):
        config_of("m", EngineConfig(sync=sync))


def test_a_model_that_cannot_be_written_so_is_refused(tiny: Callable[[str], str], tmp_path: Path, cache: Path):
    config = config_of(tiny("qwen3_vl"), EngineConfig())
    with pytest.raises(ValueError, match=r"files or code of its own that do not allow to write what 4 bits stand for"):
        server_model(config_of(tiny("qwen3_vl"), EngineConfig(), trust_remote_code=True))
    cache.write_text("a file where the cache should be")
    with pytest.raises(ValueError, match=r"reads what the 4 bits of policy.model .* stand for, and mmrl's cache cannot take it"):
        server_model(config)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("whole")]
    broken = tmp_path / "broken"
    os.unlink(cache)
    kept.shutil.copytree(tiny("qwen3_vl"), broken)
    change_weights(broken, lambda found: {name: weight * torch.nan for name, weight in found.items()})
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        server_model(config_of(str(broken), EngineConfig()))
