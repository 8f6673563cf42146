"""HunyuanVideo 1.5, from words and from a first frame: clips as its pipeline's, an adapter, and what cannot be drawn."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.types import Prompt, Request
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Full
from mmrl.policies.flow.families.base import SOURCE
from mmrl.policies.flow.families.clips import SEEN
from mmrl.policies.flow.families.hunyuan import HunyuanVideo15, HunyuanVideo15Image
from mmrl.policies.flow.policy import FlowPolicy
from tests.support.flow_policies import LORA, latents, read_again, with_adapters

SIDE, FRAMES, TOKENS, STEPS = 16, 5, 40, 4
VELOCITY, ENCODE = HunyuanVideo15.velocity, HunyuanVideo15Image.encode_with
MODELS = ("hunyuan15", "hunyuan15_i2v")


def asked(model: str, count: int = 1) -> list[Request]:
    """Words in quotes are read by ByT5 too; the prompts have other lengths."""
    texts = {"sign": 'a red sign that says "hi"', "dogs": "two dogs"}
    frames = [(noise(i),) if model.endswith("i2v") else () for i in range(2)]
    return [Request(Prompt(id, text, frames[i]), count, i, seed=7 + i) for i, (id, text) in enumerate(texts.items())]


def noise(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


def make(folder: str, **settings: Any) -> FlowPolicy:
    """With adapters that do something."""
    given = {"height": SIDE, "width": SIDE, "frames": FRAMES, "max_prompt_tokens": TOKENS, "lora": LORA, "guidance": 3.0}
    return with_adapters(folder, **(given | settings))


def by_the_pipeline(pipeline: Any, model: str, output: str) -> list[Any]:
    """What the pipeline's own call gives for the same noise, prompt by prompt; its guider holds guidance 3.

    From a picture it takes no size: that of the picture is one that it would choose.
    """
    pipeline.set_progress_bar_config(disable=True)
    pipeline.tokenizer_max_length = TOKENS
    told = {"num_frames": FRAMES, "num_inference_steps": STEPS, "output_type": output}
    found: list[Any] = []
    for one in asked(model):
        own = {"image": one.prompt.media[0]} if one.prompt.media else {"height": SIDE, "width": SIDE}
        found.append(pipeline(prompt=one.prompt.text, generator=generator_of(one.seed, 0, 0), **own, **told).frames[0])
    return found


def gap(policy: FlowPolicy, pipeline: Any, model: str) -> float:
    theirs = torch.stack(by_the_pipeline(pipeline, model, "latent"))
    return float((latents(policy, asked(model), evaluation_plan(STEPS)) - theirs).abs().max())


@pytest.mark.parametrize("model", MODELS)
def test_it_is_its_pipeline_with_an_adapter_saved_and_loaded(tiny: Any, tmp_path: Path, model: str):
    policy = make(tiny(model))
    policy.save(tmp_path)
    pipeline: Any = import_module("diffusers").DiffusionPipeline.from_pretrained(tiny(model))
    assert gap(policy, pipeline, model) > 1e-3, "the adapter changes the clip"
    pipeline.transformer.load_lora_adapter(str(tmp_path), prefix=None, use_safetensors=True)
    assert gap(policy, pipeline, model) < 1e-5
    samples = [sample for _, sample in policy.rollout(asked(model), evaluation_plan(STEPS)).samples()]
    for sample, theirs in zip(samples, by_the_pipeline(pipeline, model, "np"), strict=True):
        ours: Any = sample.video
        assert ours.shape == (FRAMES, SIDE, SIDE, 3) and sample.fps == 24
        assert np.abs(ours.astype(int) - np.round(np.asarray(theirs) * 255).astype(int)).max() <= 1


@pytest.mark.parametrize("model", MODELS)
def test_log_probabilities_are_read_again_and_every_adapter_gets_a_gradient(tiny: Any, model: str):
    policy = make(tiny(model))
    rollouts = policy.rollout(asked(model, 3), Full(num_steps=3, level=0.7).at(0))
    policy.audit(rollouts)
    difference, still = read_again(policy, rollouts)
    assert difference < 1e-6 and still == []


def unquoted(self: HunyuanVideo15, net: Any, x: Any, times: Any, prompts: Any, guidance: float) -> torch.Tensor:
    """Without the words in quotes."""
    return VELOCITY(self, net, x, times, {**prompts, "quoted_mask": torch.zeros_like(prompts["quoted_mask"])}, guidance)


def with_padding(self: HunyuanVideo15, net: Any, x: Any, times: Any, prompts: Any, guidance: float) -> torch.Tensor:
    """Seeing what pads a shorter prompt."""
    return VELOCITY(self, net, x, times, {**prompts, "embeds_mask": torch.ones_like(prompts["embeds_mask"])}, guidance)


def unseen(*given: Any) -> Any:
    """Without the first frame's view."""
    found = dict(ENCODE(*given))
    return {**found, SEEN: torch.zeros_like(found[SEEN])}


def unmasked(*given: Any) -> Any:
    """Without the mask of what is known."""
    found = dict(ENCODE(*given))
    return {**found, SOURCE: torch.cat([found[SOURCE][:-1], torch.zeros_like(found[SOURCE][-1:])])}


@pytest.mark.parametrize(
    ("model", "name", "wrong"),
    [
        ("hunyuan15", "velocity", unquoted),
        ("hunyuan15", "velocity", with_padding),
        ("hunyuan15_i2v", "encode_with", unseen),
        ("hunyuan15_i2v", "encode_with", unmasked),
        ("hunyuan15_i2v", "normalize", lambda self, latents: latents),
    ],
)
def test_a_fact_that_is_broken_is_noticed(tiny: Any, model: str, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch):
    policy = make(tiny(model))
    right = latents(policy, asked(model), evaluation_plan(2))
    monkeypatch.setattr(type(policy.family), name, wrong)
    changed = latents(make(tiny(model)), asked(model), evaluation_plan(2))
    assert float((changed - right).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("model", "settings", "meanflow", "message"),
    [
        ("hunyuan15", {"frames": 6}, False, r"policy.frames is 6, but this model draws 2k \+ 1 frames: set it to 5 or 7"),
        ("hunyuan15", {"width": 18}, False, "multiples of 4 pixels"),
        ("hunyuan15_i2v", {}, True, r"given the next time too \(use_meanflow\), which is not known here"),
        ("hunyuan15_i2v", {"frames": 1}, False, r"policy\.frames is 1, but this model draws what follows a first frame"),
        ("hunyuan15_i2v", {"source_pixels": 64}, False, r"policy\.source_pixels is set, but a first frame has the size"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_weights_load(
    tiny: Any, tmp_path: Path, model: str, settings: dict[str, Any], meanflow: bool, message: str, no_weights: None
):
    folder = shutil.copytree(tiny(model), tmp_path / "model")
    file = folder / "transformer/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_meanflow": meanflow}))
    with pytest.raises(ValueError, match=message):
        make(str(folder), **settings)
