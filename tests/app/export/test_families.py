"""Adapters of every family that writes load in peft, and merged onto their weights in transformers alone."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from mmrl.app.modality.text import TextModality
from mmrl.lab.tiny.text.vlms import build
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import TextPolicyConfig
from tests.policies.text.families.test_hearing import GEMMA, MOE, THINKER, whole
from tests.support.text_policies import LATE, make

IDS = torch.tensor([[5, 9, 30, 12]])
RARE = pytest.mark.evidence


def moved_adapter(folder: str, out: Path) -> torch.Tensor:
    """Save an adapter with weights that move logits; returns the policy's own."""
    policy = make(folder, lora=LoraSettings(rank=2))
    draws = torch.Generator().manual_seed(0)
    for weight in policy.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=draws)
    policy.save(out)
    return logits_of(policy.net.model)


@torch.no_grad()
def logits_of(model: torch.nn.Module) -> torch.Tensor:
    return model.eval()(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits


@pytest.mark.parametrize("family", [MOE, GEMMA, *(pytest.param(name, marks=RARE) for name in (THINKER, *LATE))])
def test_an_adapter_loads_in_peft_and_merged_weights_need_none(family: str, tmp_path: Path):
    from peft import PeftModel

    folder = str(build(family, tmp_path / "base"))
    expected = moved_adapter(folder, tmp_path / "out")
    base = AutoModelForImageTextToText.from_pretrained(folder)
    assert float((logits_of(base) - expected).abs().max()) > 1e-3, "the adapter changes what is written"
    torch.testing.assert_close(logits_of(PeftModel.from_pretrained(base, tmp_path / "out")), expected, atol=2e-5, rtol=0)
    TextModality().merge(tmp_path / "out", TextPolicyConfig(folder))
    alone = AutoModelForImageTextToText.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits_of(alone), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("family", [MOE, pytest.param(THINKER, marks=RARE)])
def test_an_adapter_of_a_whole_folder_is_merged_into_its_thinker(family: str, tmp_path: Path):
    """The other parts stay as they are, and the thinker's own class and mmrl load what comes out."""
    (tmp_path / "whole").mkdir()
    folder = str(whole(str(build(family, tmp_path / family)), tmp_path / "whole"))
    expected = moved_adapter(folder, tmp_path / "out")
    TextModality().merge(tmp_path / "out", TextPolicyConfig(folder))
    policy = make(str(tmp_path / "out"))
    alone = type(policy.net.model).from_pretrained(tmp_path / "out")
    for model in (alone, policy.net.model):
        torch.testing.assert_close(logits_of(model), expected, atol=2e-5, rtol=0)
    kept = load_file(tmp_path / "out" / "model.safetensors")
    assert "talker.model.norm.weight" in kept and json.loads((tmp_path / "out" / "config.json").read_text())["thinker_config"]
