"""The demo's image generator: real classes, a loop that lowers its losses, and a cache that tells settings apart."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from mmrl.core.types import Prompt, Request
from mmrl.data.drawn.shapes import Sketches
from mmrl.flow.plan import evaluation_plan
from mmrl.lab.tiny.flow.generator import KIND, WarmStart, encode_captions, encode_images
from mmrl.lab.tiny.teaching import PipelineKind
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig

SHORT = WarmStart(data=Sketches(), name="test", pool=128, batch_size=16, vae_steps=150, steps=40, layers=2, heads=2)


@pytest.fixture(scope="module")
def losses():
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory, losses):
    def note(step, steps, loss):
        losses.append((step, steps, loss))

    return KIND.warm_start(SHORT, tmp_path_factory.mktemp("generator") / "short", note)


@pytest.fixture(scope="module")
def pipeline(folder):
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    return DiffusionPipeline.from_pretrained(folder, text_encoder_3=None, tokenizer_3=None)


def tensor_of(pictures):
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1


def test_real_classes_with_two_text_encoders(pipeline):
    assert type(pipeline.vae).__name__ == "AutoencoderTiny"
    assert type(pipeline.transformer).__name__ == "SD3Transformer2DModel"
    encoders = (pipeline.text_encoder, pipeline.text_encoder_2)
    assert {type(encoder).__name__ for encoder in encoders} == {"CLIPTextModelWithProjection"}
    first, second = (encoder.get_input_embeddings().weight for encoder in encoders)
    assert not torch.equal(first, second)
    assert pipeline.vae_scale_factor == 4


def test_both_losses_fall(losses):
    values = [loss for _, _, loss in losses]
    assert [step for step, _, _ in losses] == [*range(1, 191)] and {steps for _, steps, _ in losses} == {190}
    vae, flow = values[:150], values[150:]
    assert np.mean(vae[-5:]) < 0.6 * np.mean(vae[:5])
    assert np.mean(flow[-5:]) < 0.8 * np.mean(flow[:5])


def test_latents_are_standard_and_decode_to_the_picture(pipeline):
    pictures, _ = Sketches().batch(np.random.default_rng(5), 64)
    images = tensor_of(pictures)
    latents = encode_images(pipeline.vae, images)
    assert latents.shape == (64, 4, 8, 8)
    assert latents.mean() == pytest.approx(0, abs=0.2) and latents.std() == pytest.approx(1, abs=0.2)
    config = pipeline.vae.config
    with torch.no_grad():
        decoded = pipeline.vae.decode(latents / config.scaling_factor + config.shift_factor).sample
    error = (decoded - images).square().mean()
    assert error < 0.5 * (images - images.mean(0)).square().mean()


def test_captions_are_read_as_the_pipeline_reads_them(pipeline):
    captions = ["a red circle on the left", "a blue square on the top", ""]
    with torch.no_grad():
        embeds, pooled = encode_captions(pipeline, captions)
        expected, _, expected_pooled, _ = pipeline.encode_prompt(
            captions, None, None, do_classifier_free_guidance=False, max_sequence_length=0
        )
    assert embeds.shape == (3, SHORT.max_tokens, 64)
    assert torch.allclose(embeds, expected, atol=1e-5) and torch.allclose(pooled, expected_pooled, atol=1e-5)
    assert (embeds[0] - embeds[1]).abs().max() > 0.1


def test_words_are_single_tokens_after_reloading(pipeline):
    tokens = pipeline.tokenizer("a yellow triangle on the bottom").input_ids
    assert len(tokens) == 8
    assert len(set(tokens)) == 8


def test_the_policy_draws_with_it(folder):
    policy = FlowPolicy(FlowPolicyConfig(model=str(folder), height=32, width=32, guidance=1.0, max_prompt_tokens=0))
    request = Request(Prompt("p", "a red circle on the left"), 2, 0, seed=3)
    (group,) = policy.rollout([request], evaluation_plan(3)).groups
    assert [sample.image.size for sample in group.samples] == [(32, 32)] * 2
    assert len({sample.image.tobytes() for sample in group.samples}) == 2


def test_same_settings_same_weights_and_the_cache_is_used(folder, tmp_path, monkeypatch):
    again = KIND.build(replace(SHORT, vae_steps=2, steps=2))
    KIND.teach(again, replace(SHORT, vae_steps=2, steps=2))
    third = KIND.build(replace(SHORT, vae_steps=2, steps=2))
    torch.rand(7)
    KIND.teach(third, replace(SHORT, vae_steps=2, steps=2))
    for part in ("vae", "transformer", "text_encoder", "text_encoder_2"):
        one, other = getattr(again, part).state_dict(), getattr(third, part).state_dict()
        assert all(torch.equal(one[name], other[name]) for name in one)
    monkeypatch.setattr(PipelineKind, "build", lambda *_: pytest.fail("it was built again"))
    assert KIND.warm_start(SHORT, folder) == folder
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path))
    target = tmp_path / f"tiny-test-{KIND.fingerprint(SHORT)}"
    target.mkdir()
    (target / "model_index.json").write_text("{}")
    assert KIND.warm_start(SHORT) == target


@dataclass(frozen=True)
class Other(Sketches):
    """Pictures of another kind with the same fields."""


def test_the_name_in_the_cache_depends_on_settings_and_data():
    found = {
        KIND.fingerprint(settings)
        for settings in (
            SHORT,
            replace(SHORT, seed=1),
            replace(SHORT, data=Sketches(confused=0.1)),
            replace(SHORT, data=Other()),
        )
    }
    assert len(found) == 4
    assert KIND.fingerprint(replace(SHORT)) == KIND.fingerprint(SHORT)


def test_a_size_that_cannot_be_cut_is_refused():
    with pytest.raises(ValueError, match="40 x 40 pixels cannot be cut into tokens of 16"):
        WarmStart(data=Sketches(side=40))
