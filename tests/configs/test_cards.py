"""Configs for one card: each names a model whose settings come with mmrl, and fits the card in its name."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from mmrl.app.config.run import load
from mmrl.app.planning.known import settings_of
from mmrl.app.planning.memory import GIB, advice
from mmrl.app.planning.plan import draw_up
from mmrl.app.plugins.catalog import configs
from mmrl.policies.codes.settings import CodePolicyConfig
from mmrl.policies.flow.settings import FlowPolicyConfig
from tests.configs.test_configs import TEXTS

NAMES = [listed.name for listed in configs() if listed.name.startswith("cards/")]


def size_in(name: str) -> int:
    """GB in a config's name."""
    return int(name.removesuffix("gb").rpartition("_")[2])


@pytest.mark.parametrize("name", NAMES)
def test_adapters_train_beside_4_bits_of_a_model_that_can_be_planned(name: str):
    config = load(name).config
    policy, head = config.policy, Path(f"configs/{name}.toml").read_text().splitlines()[0]
    assert not isinstance(policy, CodePolicyConfig)
    assert (policy.weights, policy.dtype) == ("nf4", "bfloat16") and policy.lora is not None and policy.gradient_checkpointing
    assert settings_of(config) is not None and f"one {size_in(name)} GB card" in head


@pytest.mark.evidence
@pytest.mark.parametrize("name", NAMES)
def test_it_fits_its_card(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path))
    is_flow = isinstance(load(name).config.policy, FlowPolicyConfig)
    Image.new("RGB", (640, 480)).save(tmp_path / "a.png")
    row = {"image": "a.png", "question": "the second person from the left in the blue jacket", "box": [10, 20, 200, 180]}
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({**row, "id": str(i)}) for i in range(8)))
    data = TEXTS if is_flow else {"use": "grounding_jsonl", "path": str(tmp_path / "rows.jsonl")}
    words = [f"data={data_text(data)}", "evaluation={}", "evaluate_every=0"]
    made = draw_up(load(name, words), on_card=True)
    assert advice(made.memory, int(size_in(name) * 0.98 * GIB), is_text=not is_flow) is None


def data_text(data: Mapping[str, object]) -> str:
    """A table of TOML in one line."""
    return "{" + ", ".join(f"{key}={json.dumps(value)}" for key, value in data.items()) + "}"
