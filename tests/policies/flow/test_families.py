"""What all flow families share, without a pipeline's weights."""

from types import SimpleNamespace

import pytest
import torch

from mmrl.policies.flow.families.base import FlowFamily


def family(height: int = 32, width: int = 64) -> FlowFamily:
    config = SimpleNamespace(in_channels=16)
    return FlowFamily(SimpleNamespace(vae_scale_factor=8, transformer=SimpleNamespace(config=config)), height, width, 77)


@pytest.mark.parametrize("wrong", [{"height": 24}, {"width": 40}, {"height": 31}])
def test_sides_are_multiples_of_a_patch_of_latents(wrong: dict[str, int]):
    assert family(16, 16).latent_shape == (4, 2, 2)
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"policy\.{name} is \d+, but this model draws multiples of 16 pixels"):
        family(**wrong)


def test_a_token_holds_two_by_two_latents():
    own = family()
    assert own.latent_shape == (4, 4, 8) and own.image_tokens == 8
    latents = torch.arange(2 * 4 * 4 * 8.0).view(2, 4, 4, 8)
    packed = own.pack(latents)
    assert packed.shape == (2, 8, 16)
    # the second token of the first row: channel 0's latents at (0, 2), (0, 3), (1, 2), (1, 3), then channel 1's
    assert packed[0, 1, :5].tolist() == [2.0, 3.0, 10.0, 11.0, 34.0]
    assert torch.equal(own.unpack(packed), latents)
