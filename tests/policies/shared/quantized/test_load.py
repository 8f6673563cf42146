"""A network is loaded into 4 bits one tensor at a time: the memory never holds it whole."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel

from mmrl.policies.shared.dry_run import size_of
from mmrl.policies.shared.quantized.layer import nf4_layers
from mmrl.policies.shared.quantized.load import load_network
from mmrl.policies.shared.quantized.table import NETWORK, files_in
from tests.app.modality.test_merge import RealBytes

AT_A_TIME = 24
"""Bytes a weight while one matrix is rounded: its numbers in float32, their shares of a scale, and the index of each code."""


@pytest.mark.parametrize("files", [1, 8])
def test_beside_the_result_one_matrix_is_held(files: int, tmp_path: Path):
    torch.manual_seed(0)
    shape: dict[str, Any] = {"num_layers": 6, "num_attention_heads": 4, "attention_head_dim": 16, "in_channels": 4}
    sizes: dict[str, Any] = {
        "joint_attention_dim": 32,
        "caption_projection_dim": 64,
        "pooled_projection_dim": 32,
        "sample_size": 8,
    }
    network = SD3Transformer2DModel(**shape, **sizes, out_channels=4, pos_embed_max_size=8)
    whole, largest = size_of(network.parameters()), max(weight.numel() for weight in network.parameters())
    network.save_pretrained(tmp_path, max_shard_size=2 * whole // files)
    found = files_in(tmp_path, NETWORK)
    assert (len(found) > 1) == (files > 1)
    del network
    with RealBytes() as live:
        loaded = load_network(SD3Transformer2DModel, tmp_path, found, torch.float32, True, "the network")
    held = size_of(loaded.parameters()) + sum(layer.num_bytes - layer.weight.numel() for _, layer in nf4_layers(loaded))
    assert live.peak < held + AT_A_TIME * largest < whole
