"""Adapters added to the models below them, so that the files need no other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrl.policies.flow.settings import FlowPolicyConfig


def merge_adapter(folder: Path, base: str, trust_remote_code: bool = False) -> None:
    """Replace peft's adapter in `folder` by the model with the adapter added; the sum is taken in float32."""
    import torch
    from transformers import AutoConfig

    from mmrl.policies.shared.lora import LoraSettings, load_adapter
    from mmrl.policies.text.loading import load_weights

    stored = AutoConfig.from_pretrained(base, trust_remote_code=trust_remote_code).dtype or torch.float32
    model = load_weights(base, dtype=torch.float32, trust_remote_code=trust_remote_code)
    merged: Any = load_adapter(model, LoraSettings(adapter=str(folder))).merge_and_unload()
    for file in (*folder.glob("adapter_*"), folder / "README.md"):
        file.unlink(missing_ok=True)
    merged.to(stored).save_pretrained(folder)


def merge_lora(folder: Path, policy: FlowPolicyConfig) -> None:
    """Replace diffusers' adapter in `folder` by the pipeline with the adapter added.

    The sum is taken in float32 and written in the policy's dtype.
    """
    import torch

    from mmrl.policies.flow.loading import load

    pipeline = load(replace(policy, lora=None)).pipeline
    pipeline.load_lora_weights(str(folder))
    pipeline.fuse_lora()
    pipeline.unload_lora_weights()
    for file in folder.glob("*.safetensors"):
        file.unlink()
    pipeline.transformer.to(getattr(torch, policy.dtype))
    pipeline.save_pretrained(folder)
