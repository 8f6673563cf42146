"""The plain loop beside mmrl's flow step: its pictures are those of diffusers' pipeline."""

import argparse

import numpy as np
import torch

from mmrl.lab.tiny.flow import pipelines


def test_latents_become_the_pictures_of_the_pipeline(script, tmp_path):
    """The autoencoder's shift moves every pixel, its scale too; both are far from 0 and 1 here."""
    pipelines.build("sd3", tmp_path / "model")
    loop = script("flow_step").Loop(argparse.Namespace(model=str(tmp_path / "model"), micro_batch=[2], guidance=1.0))
    loop.pipe.vae.register_to_config(shift_factor=0.5, scaling_factor=1.5)
    embeds, pooled = loop.encode(["a", "b"])
    noise = torch.randn(2, loop.net.config.in_channels, 8, 8, generator=torch.Generator().manual_seed(0))
    asked = {"prompt_embeds": embeds, "pooled_prompt_embeds": pooled, "latents": noise, "guidance_scale": 1.0}
    asked |= {"num_inference_steps": 2, "height": 8 * loop.scale, "width": 8 * loop.scale}
    latents, pictures = (loop.pipe(**asked, output_type=kind).images for kind in ("latent", "pil"))
    with torch.no_grad():
        found = loop.decode(latents)
    for ours, theirs in zip(found, pictures, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
