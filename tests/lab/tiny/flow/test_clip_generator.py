"""The demo's clip generator: an autoencoder that hands clips on untaught, and losses that fall."""

import numpy as np
import pytest
import torch

from mmrl.data.drawn.gliding import Glides
from mmrl.lab.tiny.flow.clip_generator import KIND, ClipStart, decode_beyond, encode_captions, encode_clips

SHORT = ClipStart(Glides(), name="test", pool=96, batch_size=8, vae_steps=12, vae_batch_size=4, vae_pool=64, steps=30, layers=1)


def clips(count: int) -> torch.Tensor:
    drawn, _ = Glides(flickering=0.0).batch(np.random.default_rng(5), count)
    return torch.from_numpy(drawn).permute(0, 4, 1, 2, 3).float() / 127.5 - 1


def test_an_untaught_autoencoder_hands_on_a_smaller_clip():
    """Random weights have an error of 0.7; the variance of these clips is 0.2."""
    vae, shown = KIND.build(SHORT).vae, clips(8)
    with torch.no_grad():
        z = vae.encode(shown).latent_dist.mode()
        decoded = vae.decode(z).sample
        beyond = decode_beyond(vae, z)
    assert z.shape == (8, 12, 3, 4, 4) and decoded.shape == shown.shape
    assert float((decoded - shown).square().mean()) < 0.1
    torch.testing.assert_close(beyond.clamp(-1, 1), decoded, atol=1e-6, rtol=0)
    # the three latent frames follow the shape: the clip backwards is another one
    assert float((decoded.flip(2) - shown).square().mean()) > 2 * float((decoded - shown).square().mean())


def test_losses_fall(tmp_path):
    losses: list[tuple[int, int, float]] = []
    folder = KIND.warm_start(SHORT, tmp_path / "model", lambda *told: losses.append(told))
    assert [step for step, _, _ in losses] == [*range(1, 43)] and {total for _, total, _ in losses} == {42}
    flow = [loss for _, _, loss in losses[12:]]
    assert np.mean(flow[-5:]) < 0.9 * np.mean(flow[:5])

    from diffusers import WanPipeline  # type: ignore[reportPrivateImportUsage]

    pipeline = WanPipeline.from_pretrained(folder)
    latents = encode_clips(pipeline.vae, clips(32))
    assert float(latents.mean()) == pytest.approx(0, abs=0.5) and float(latents.std()) == pytest.approx(1, abs=0.5)
    captions = ["a red circle moves left", ""]
    with torch.no_grad():
        ours = encode_captions(pipeline, captions, 8)
        theirs = pipeline.encode_prompt(captions, do_classifier_free_guidance=False, max_sequence_length=8)[0]
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert len(pipeline.tokenizer("a red circle moves left").input_ids) == 6


def test_clips_that_cannot_be_cut_are_refused():
    with pytest.raises(ValueError, match="clips of 4 frames of 32 pixels cannot be cut into latents of 2 frames and 8 pixels"):
        ClipStart(Glides(frames=4))
