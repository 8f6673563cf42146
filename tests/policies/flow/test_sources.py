"""Prompts that hold pictures: what the pipeline itself draws from them, read again exactly, kept apart by their content."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request, Video
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Full
from mmrl.policies.flow import net
from mmrl.policies.flow.families import sources
from mmrl.policies.flow.families.flux import flux2
from mmrl.policies.flow.families.flux.flux1 import Flux, Kontext
from mmrl.policies.flow.families.flux.flux2 import places
from mmrl.policies.flow.families.qwen.image import QwenImageEdit
from mmrl.policies.flow.families.sources import latents_of
from mmrl.policies.flow.policy import FlowPolicy
from tests.support.flow_policies import LORA, PLANS, assert_reads_again, latents, logprobs, with_adapters
from tests.support.pipelines import load_pipeline
from tests.support.refused import refused

Tiny = Callable[[str], str]
SIDE = 32
TEXTS = {"cat": "a red cat", "dogs": "make the two dogs large"}
TOKENS = {"kontext": 24, "qwen_edit": 200, "qwen_edit_2511": 200, "flux2": 160, "flux2_klein": 64, "qwen_image21": 40}
SOURCES = {"kontext": 1, "qwen_edit": 2, "qwen_edit_2511": 1, "flux2": 2, "flux2_klein": 1, "qwen_image21": 2}
"""Editor -> pictures in each of its prompts here."""
QWEN = {"true_cfg_scale": 3.0, "negative_prompt": " "}
GUIDANCE = {"kontext": 2.5, "qwen_edit": 3.0, "qwen_edit_2511": 3.0, "flux2": 4.0, "flux2_klein": 4.0, "qwen_image21": 3.0}
CALL: dict[str, dict[str, Any]] = {
    "kontext": {"guidance_scale": 2.5, "max_area": SIDE * SIDE, "_auto_resize": False},
    "qwen_edit": QWEN,
    "qwen_edit_2511": QWEN,
    "flux2": {"guidance_scale": 4.0, "text_encoder_out_layers": (10, 20, 30)},
    "flux2_klein": {"guidance_scale": 4.0},
    "qwen_image21": {**QWEN, "output_resolution": SIDE},
}
"""What the pipelines' own calls need to draw the same."""
LEAST = {"flux2": 64, "flux2_klein": 64}
"""The shortest side of a picture that a pipeline takes, where it says so."""
EDITORS = tuple(TOKENS)
LEADS_NOWHERE = "transformer_blocks.1.attn.add_q_proj"
"""Of Qwen: what the last block asks for its words, which nobody reads."""


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch):
    """The pipeline of Qwen brings pictures to sizes that no argument changes."""
    for name in ("CONDITION_IMAGE_SIZE", "VAE_IMAGE_SIZE"):
        monkeypatch.setattr(f"diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus.{name}", SIDE * SIDE)


def noise(seed: int, width: int = SIDE, height: int = SIDE) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def editor(folder: str, name: str, **settings: Any) -> FlowPolicy:
    """With adapters that do something."""
    usual = {"height": SIDE, "width": SIDE, "max_prompt_tokens": TOKENS[name], "lora": LORA, "guidance": GUIDANCE[name]}
    policy = with_adapters(folder, (), **(usual | settings))
    policy.pipeline.set_progress_bar_config(disable=True)
    return policy


def asked(name: str, count: int = 4, num_prompts: int = 2) -> list[Request]:
    chosen = list(TEXTS.items())[:num_prompts]
    side = LEAST.get(name, SIDE)
    media = [tuple(noise(10 * i + k, side, side) for k in range(SOURCES[name])) for i in range(num_prompts)]
    return [Request(Prompt(id, text, media[i]), count, group_id=i, seed=7 + i) for i, (id, text) in enumerate(chosen)]


def by_the_pipeline(name: str, pipeline: Any, requests: list[Request], output: str, steps: int = 4) -> list[Any]:
    """One call per sample, as a user of diffusers makes it."""
    found: list[Any] = []
    for request in requests:
        media = request.prompt.media
        for i in range(request.count):
            found += pipeline(
                prompt=request.prompt.text,
                image=media[0] if len(media) == 1 else list(media),
                height=SIDE,
                width=SIDE,
                num_inference_steps=steps,
                **({} if name == "qwen_image21" else {"max_sequence_length": TOKENS[name]}),
                generator=generator_of(request.seed, i, 0),
                output_type=output,
                **CALL[name],
            ).images
    return found


def ours_and_theirs(name: str, policy: FlowPolicy, pipeline: Any, requests: list[Request]) -> tuple[Tensor, Tensor]:
    """What the policy draws without noise, and the pipeline: latents, or pixels of klein, which gives latents in another form."""
    output = "pt" if name == "flux2_klein" else "latent"
    theirs = torch.stack(list(by_the_pipeline(name, pipeline, requests, output)))
    ours = latents(policy, requests, evaluation_plan(4))
    if output == "pt":
        ours = (policy.family.decode(policy.family.unpack(ours)) / 2 + 0.5).clamp(0, 1)
    return ours.reshape(theirs.shape), theirs


@pytest.mark.parametrize("name", EDITORS)
def test_without_noise_it_draws_what_the_pipeline_draws_from_the_same_pictures(tiny: Tiny, name: str):
    policy, requests = editor(tiny(name), name), asked(name, count=1)
    ours, theirs = ours_and_theirs(name, policy, policy.pipeline, requests)
    torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=1e-5)
    images = [sample.image for _, sample in policy.rollout(requests, evaluation_plan(4)).samples()]
    for mine, own in zip(images, by_the_pipeline(name, policy.pipeline, requests, "pil"), strict=True):
        shown = Image.alpha_composite(Image.new("RGBA", own.size, "white"), own).convert("RGB") if own.mode == "RGBA" else own
        assert np.abs(np.asarray(mine, dtype=int) - np.asarray(shown, dtype=int)).max() <= 1


@pytest.mark.parametrize(("name", "plan"), [*((name, "flow_grpo") for name in EDITORS), ("kontext", "mix"), ("kontext", "tree")])
def test_log_probabilities_are_read_again_and_every_adapter_gets_a_gradient(tiny: Tiny, name: str, plan: str):
    assert_reads_again(editor(tiny(name), name), asked(name), PLANS[plan], idle=LEADS_NOWHERE)


@pytest.mark.parametrize("name", EDITORS)
def test_an_adapter_loads_in_diffusers_and_draws_the_same(tiny: Tiny, name: str, tmp_path: Path):
    policy, requests = editor(tiny(name), name), asked(name, count=1, num_prompts=1)
    policy.save(tmp_path)
    pipeline = load_pipeline(tiny(name))
    _, bare = ours_and_theirs(name, policy, pipeline, requests)
    pipeline.load_lora_weights(str(tmp_path))
    ours, theirs = ours_and_theirs(name, policy, pipeline, requests)
    torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=1e-5)
    assert float((bare - theirs).abs().max()) > 1e-2


@pytest.mark.parametrize("name", EDITORS)
def test_the_picture_changes_what_is_drawn_and_its_file_name_does_not(tiny: Tiny, name: str, tmp_path: Path):
    policy, device = editor(tiny(name), name), torch.device("cpu")
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        noise(seed).save(file)
    more = tuple(noise(50 + i) for i in range(SOURCES[name] - 1))
    one, same, other = (policy.encoder([Prompt(file.name, "x", (str(file), *more))], device)[0] for file in files)
    assert one is same and not torch.equal(one["source"], other["source"])
    requests = [Request(Prompt(str(i), "x", (str(file), *more)), 1, i, seed=3) for i, file in enumerate(files)]
    drawn = latents(policy, requests, evaluation_plan(2))
    assert torch.equal(drawn[0], drawn[1]) and float((drawn[0] - drawn[2]).abs().max()) > 1e-3
    noise(9).save(files[0])
    assert not torch.equal(policy.encoder([Prompt("0", "x", (str(files[0]), *more))], device)[0]["source"], one["source"])


def test_a_row_with_another_pictures_embeddings_is_noticed(tiny: Tiny):
    policy = editor(tiny("kontext"), "kontext")
    first, second = asked("kontext")
    same_words = [first, Request(Prompt("b", first.prompt.text, second.prompt.media), 4, 1, seed=8)]
    rollouts = policy.rollout(same_words, PLANS["flow_grpo"])
    policy.audit(rollouts)
    rollouts.trace.prompt_index[:] = rollouts.trace.prompt_index.flip(0)  # type: ignore[reportAttributeAccessIssue]
    refused("the embeddings it is trained with are not those of its prompt", policy.audit, rollouts)


@pytest.mark.parametrize(
    ("fit", "left", "top"),
    [("resize", (255, 0, 0), (255, 0, 0)), ("crop", (0, 255, 0), (0, 255, 0)), ("pad", (255, 0, 0), (255, 255, 255))],
)
def test_pictures_of_another_shape_come_to_the_size_as_told(tiny: Tiny, fit: Any, left: Any, top: Any):
    policy = editor(tiny("kontext"), "kontext", source_pixels=64 * 64, source_fit=fit)
    assert policy.family.source_size == (64, 64) and policy.family.source_tokens == 256
    wide = Image.new("RGB", (200, 100), (0, 255, 0))
    wide.paste((255, 0, 0), (0, 0, 20, 100))
    (seen,) = policy.encoder.pictures(Prompt("p", "x", (wide,)))
    assert seen.size == (64, 64)
    assert seen.getpixel((1, 32)) == left and seen.getpixel((1, 1)) == top


def test_marks_of_pictures_are_no_words(tiny: Tiny):
    policy, device = editor(tiny("kontext"), "kontext"), torch.device("cpu")
    marked, plain = policy.encoder(
        [Prompt("a", "<image> make it red", (noise(1),)), Prompt("b", "make it red", (noise(1),))], device
    )
    assert torch.equal(marked["embeds"], plain["embeds"])


@pytest.mark.parametrize(
    ("media", "words"),
    [
        ((), r"prompt 'p' holds 0 pictures, but this model takes prompts with 1: name them in the data's column image or images"),
        ((noise(1), noise(2)), r"prompt 'p' holds 2 pictures, but this model takes prompts with 1"),
        ((Video("a.mp4"),), r"prompt 'p' holds a clip, but this model takes pictures: give it pictures alone"),
        (("nowhere.png",), r"prompt 'p': there is no picture 'nowhere.png'"),
    ],
)
def test_prompts_that_cannot_be_edited_are_refused(tiny: Tiny, media: Any, words: str):
    policy = editor(tiny("kontext"), "kontext")
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        policy.rollout([Request(Prompt("p", "x", media), 1, 0)], evaluation_plan(2))


def mixed(name: str) -> list[Request]:
    """Prompts with no picture (where that may be), one and two."""
    counts = {"qwen_edit": (1, 2), "flux2": (2, 0, 1), "flux2_klein": (0, 2), "qwen_image21": (2, 0, 1)}[name]
    media = [tuple(noise(10 * i + k, 64, 64) for k in range(count)) for i, count in enumerate(counts)]
    return [Request(Prompt(str(i), "a red cat", each), 2, i, seed=5 + i) for i, each in enumerate(media)]


@pytest.mark.parametrize("name", ["qwen_edit", "flux2", "flux2_klein", "qwen_image21"])
def test_prompts_with_another_number_of_pictures_are_drawn_as_alone(tiny: Tiny, name: str):
    policy, requests = editor(tiny(name), name, source_pixels=64 * 64), mixed(name)
    together = latents(policy, requests, evaluation_plan(2))
    alone = torch.cat([latents(policy, [request], evaluation_plan(2)) for request in requests])
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-5)
    rollouts = policy.rollout(requests, Full(num_steps=3).at(0))
    noted, read = rollouts.recorded[ROLLOUT_LOGPROBS], logprobs(policy, rollouts).detach()
    assert float((read - noted).abs()[rollouts.action_mask].max()) <= 1e-6


BREAKS: dict[str, tuple[str, object, str, object]] = {
    "Kontext: source at the noise's places": ("kontext", Kontext, "_places", lambda self, x: Flux._places(self, x).repeat(2, 1)),
    "Kontext: latents neither shifted nor scaled": (
        "kontext",
        sources,
        "latents_of",
        lambda vae, pixels: latents_of(vae, pixels) / vae.config.scaling_factor,
    ),
    "Kontext: steps spaced by all tokens": ("kontext", Kontext, "image_tokens", 512),
    "Qwen: a blind negative": ("qwen_edit", QwenImageEdit, "negative", lambda self, one: {**one, "embeds": one["empty"][-5:]}),
    "Qwen: the negative is the prompt": ("qwen_edit", QwenImageEdit, "negative", lambda self, one: one),
    "Qwen: the norm of guided velocities is let go": ("qwen_edit", QwenImageEdit, "keep_norm", False),
    "FLUX.2: pictures at the noise's time": ("flux2", flux2, "places", lambda n, time, *rest: places(n, 0, *rest)),
    "FLUX.2: klein's negative without the picture": ("flux2_klein", net, "SOURCE", "nothing"),
}
"""A fact of a pipeline -> the editor whose drawing must tell, where the fact stands, and another one in its place."""


@pytest.mark.parametrize("fact", BREAKS)
def test_a_broken_fact_is_noticed(tiny: Tiny, fact: str, monkeypatch: pytest.MonkeyPatch):
    name, where, attribute, wrong_one = BREAKS[fact]
    policy, requests = editor(tiny(name), name), asked(name, count=1, num_prompts=1)
    right = latents(policy, requests, evaluation_plan(4))
    monkeypatch.setattr(where, attribute, wrong_one)
    policy.encoder.known.clear()
    try:
        wrong = latents(policy, requests, evaluation_plan(4))
    except (RuntimeError, KeyError):
        return
    assert float((wrong - right).abs().max()) > 1e-3
