"""Pictures and clips of the data: encoded by the model's autoencoder, noised in pairs, trained on as training scripts do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.objectives.forward import DenoisingPreference, Error, Matching
from mmrl.algorithms.planners.flow import TaughtPairs, TaughtPictures
from mmrl.app.modality.flow import FlowModality
from mmrl.core.samples import Video
from mmrl.core.types import Batch, Prompt, Request, Rollouts
from mmrl.data.files.mp4 import write_mp4
from mmrl.flow.plan import RolloutPlan, evaluation_plan
from mmrl.flow.schedules import Forward
from mmrl.flow.times import TimeSampler
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig, FlowTrace
from mmrl.policies.video.decode import clip_at
from tests.support.flow_policies import LORA, stir, trace_of, with_adapters
from tests.support.refused import refused
from tests.support.rows import counts_of, scores

Tiny = Callable[[str], str]
TOKENS = {"sd3": 3, "flux": 24, "qwen_image": 40, "wan_i2v": 512, "wan_5b": 24, "wan": 24, "hunyuan15": 64}
SIDE, FRAMES = 32, 5
CLIPS: dict[str, Any] = {"height": SIDE, "width": SIDE, "frames": FRAMES, "fps": 8.0, "guidance": None}
"""Settings of a policy that draws clips."""


def prompt_of(name: str, folder: Path | None = None) -> Prompt:
    """A prompt with a pair of pictures whose shape is not the model's."""
    shown: dict[str, object] = {}
    for i, column in enumerate(("picture", "chosen", "rejected")):
        noise = torch.rand(20, 40, 3, generator=torch.Generator().manual_seed(len(name) + i))
        picture = Image.fromarray((noise * 255).byte().numpy())
        if folder is not None:
            picture.save(folder / f"{name}_{column}.png")
        shown[column] = picture if folder is None else str(folder / f"{name}_{column}.png")
    return Prompt(name, f"a {name}", columns=shown)


PROMPTS = [prompt_of("cat"), prompt_of("horse")]


def make(folder: str, shadows: tuple[str, ...] = (), **settings: Any) -> FlowPolicy:
    tokens = next((count for family, count in TOKENS.items() if family in folder), None)
    usual = {"height": 16, "width": 16, "lora": LORA, "guidance": 3.0, "max_prompt_tokens": tokens}
    return with_adapters(folder, shadows, **(usual | settings))


def plan_of(kind: str) -> RolloutPlan:
    schedule = KINDS[kind].schedule
    assert schedule is not None
    return schedule.at(0)


def loss_of(policy: FlowPolicy, algorithm: Algorithm, rollouts: Rollouts) -> Tensor:
    """The loss of a step, which the weights then have the gradient of."""
    live = algorithm.live_reads
    with torch.no_grad():
        frozen = policy.read(rollouts.trace, algorithm.frozen_reads, rollouts.action_mask)
    credit = algorithm.advantage(scores(torch.zeros(len(rollouts), 0)), rollouts)
    ones = torch.ones(rollouts.action_mask.shape)
    batch = Batch(rollouts, credit.values, ones, ones, frozen)
    share, importance = algorithm.loss_weights(batch, counts_of(batch))
    batch = Batch(rollouts, credit.values, share, importance, frozen)
    loss, _ = algorithm.loss(batch, policy.read(rollouts.trace, live, rollouts.action_mask))
    return loss


def gradient_of(loss: Tensor, policy: FlowPolicy) -> Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, policy.parameters())])


def inputs_of(trace: FlowTrace) -> tuple[Tensor, Tensor, Tensor]:
    """Finished latents, noise and time of every row."""
    rows, columns = torch.arange(len(trace)), torch.zeros(len(trace), dtype=torch.long)
    return trace.latents[trace.before[rows, columns]], trace.latents[trace.after[rows, columns]], trace.sigma[:, 0]


def sd3_errors(policy: FlowPolicy, trace: FlowTrace, texts: list[str]) -> Tensor:
    """The errors of flow_grpo's train_sd3_dpo.py and of diffusers' train_dreambooth_sd3.py: (v - (noise - latents))^2."""
    latents, noise, sigmas = inputs_of(trace)
    noisy = (1.0 - sigmas[:, None, None, None]) * latents + sigmas[:, None, None, None] * noise
    embeds, _, pooled, _ = policy.pipeline.encode_prompt(
        texts, None, None, device="cpu", do_classifier_free_guidance=False, max_sequence_length=TOKENS["sd3"]
    )
    predicted = policy.pipeline.transformer(
        hidden_states=noisy, timestep=sigmas * 1000, encoder_hidden_states=embeds, pooled_projections=pooled, return_dict=False
    )[0]
    return ((predicted - (noise - latents)) ** 2).mean(dim=[1, 2, 3])


def sd15_errors(policy: FlowPolicy, trace: FlowTrace, texts: list[str]) -> Tensor:
    """The errors of diffusers' train_diffusion_dpo.py and train_text_to_image.py: (epsilon - noise)^2 at whole times."""
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

    latents, noise, sigmas = inputs_of(trace)
    scheduler: Any = DDPMScheduler.from_config(policy.pipeline.scheduler.config)
    signal = scheduler.alphas_cumprod.sqrt()
    table = (1 - signal**2).sqrt() / (signal + (1 - signal**2).sqrt())
    times = (table - sigmas[:, None]).abs().argmin(1)
    assert float((table[times] - sigmas).abs().max()) < 1e-6
    noisy = scheduler.add_noise(latents, noise, times)
    embeds, _ = policy.pipeline.encode_prompt(texts, "cpu", 1, False)
    predicted = policy.pipeline.unet(noisy, times, encoder_hidden_states=embeds, return_dict=False)[0]
    return ((predicted - noise) ** 2).mean(dim=[1, 2, 3])


def handed_back(policy: FlowPolicy, rollouts: Rollouts) -> Tensor:
    """The latents of the first row, as its autoencoder is given them to decode."""
    seen: list[Tensor] = []
    vae = policy.pipeline.vae
    kept, vae.decode = vae.decode, lambda z, return_dict=False: (seen.append(z), kept(z, return_dict=False))[1]
    policy.decode(inputs_of(trace_of(rollouts))[0][:1])
    vae.decode = kept
    return seen[0]


ERRORS: dict[str, tuple[Any, Error]] = {"sd3": (sd3_errors, "velocity"), "sd15": (sd15_errors, "noise")}


@pytest.mark.parametrize("family", ERRORS)
def test_the_losses_of_training_scripts(tiny: Tiny, family: str):
    errors, kind = ERRORS[family]
    policy = make(tiny(family), ("ref",))
    stir(policy)
    beta = 200.0
    pairs = replace(KINDS["dpo_of_pictures"], objective=((1.0, DenoisingPreference(beta, kind)),))
    rollouts = policy.rollout(pairs.planner.first(PROMPTS, 2, 0, 5), plan_of("dpo_of_pictures"))
    trace, loss = trace_of(rollouts), loss_of(policy, pairs, rollouts)
    texts = [prompt.text for prompt in PROMPTS for _ in range(2)]
    with torch.no_grad(), policy.weights.swapped_in("ref"):
        ref = errors(policy, trace, texts)
    moved = errors(policy, trace, texts) - ref
    inside = -beta / 2 * (moved[::2] - moved[1::2])
    wanted = -torch.nn.functional.logsigmoid(inside).mean()
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
    found, expected = gradient_of(loss, policy), gradient_of(wanted, policy)
    assert float((found - expected).norm() / expected.norm()) < 2e-5

    taught = replace(KINDS["sft_of_pictures"], objective=((1.0, Matching(kind)),))
    rollouts = policy.rollout(TaughtPictures().first(PROMPTS, 1, 0, 5), plan_of("sft_of_pictures"))
    loss, wanted = loss_of(policy, taught, rollouts), errors(policy, trace_of(rollouts), [p.text for p in PROMPTS]).mean()
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
    found, expected = gradient_of(loss, policy), gradient_of(wanted, policy)
    assert float((found - expected).norm() / expected.norm()) < 2e-5


@pytest.mark.parametrize("family", ["sd3", "sd15", "sdxl", "flux", "flux2", "z_image", "sana", "qwen_image"])
def test_encoding_is_decoding_backwards(tiny: Tiny, family: str):
    """What the autoencoder makes of a picture is scaled so that `decode` hands its own latents back to it."""
    policy = make(tiny(family))
    rollouts = policy.rollout(TaughtPictures().first(PROMPTS[:1], 1, 0, 5), plan_of("sft_of_pictures"))
    (_, sample) = next(iter(rollouts.samples()))
    assert sample.role == "injected" and sample.image.size == (16, 16)
    pixels = policy.pipeline.image_processor.preprocess(sample.image)
    made = policy.pipeline.vae.encode(pixels[:, :, None] if family == "qwen_image" else pixels)
    mean, spread = (made.latent_dist.mean, made.latent_dist.std) if hasattr(made, "latent_dist") else (made.latent, 1e-4)
    apart = ((handed_back(policy, rollouts) - mean) / spread).abs()
    assert float(apart.max()) < 6 and (family == "sana" or float(apart.mean()) > 0.5)


def test_a_pair_has_one_noise_and_one_time_and_a_file_gives_what_a_picture_gives(tiny: Tiny, tmp_path: Path):
    policy, plan = make(tiny("sd3")), plan_of("dpo_of_pictures")
    files = [prompt_of("cat", tmp_path), prompt_of("horse", tmp_path)]
    one, other = (trace_of(policy.rollout(TaughtPairs().first(prompts, 2, 0, 5), plan)) for prompts in (PROMPTS, files))
    latents, noise, sigma = inputs_of(one)
    assert torch.equal(noise[::2], noise[1::2]) and torch.equal(sigma[::2], sigma[1::2])
    assert not torch.equal(noise[0], noise[2]) and not torch.equal(latents[0], latents[1])
    assert all(torch.equal(a, b) for a, b in zip(inputs_of(one), inputs_of(other), strict=True))
    turned = trace_of(policy.rollout(TaughtPairs("rejected", "chosen").first(PROMPTS, 2, 0, 5), plan))
    assert torch.equal(inputs_of(turned)[0], latents[[1, 0, 3, 2]])


def test_pictures_of_the_data_and_drawn_ones_train_together(tiny: Tiny):
    policy = make(tiny("sd3"))
    plan = Forward(num_steps=3, times=TimeSampler("rollout", count=2)).at(0)
    (given,) = TaughtPictures().first(PROMPTS[:1], 1, 0, 5)
    rollouts = policy.rollout([given, Request(PROMPTS[1], 2, 1, seed=3)], plan)
    assert [sample.role for _, sample in rollouts.samples()] == ["injected", "policy", "policy"]
    policy.audit(rollouts)


FORWARD = plan_of("sft_of_pictures")


@pytest.mark.parametrize(
    ("request_", "plan", "message"),
    [
        (Request(PROMPTS[0], 1, 0, role="injected", written="picture"), evaluation_plan(2), 'kind = "Forward"'),
        (Request(PROMPTS[0], 1, 0, role="injected", written="a text"), FORWARD, "'a text', which is none of its columns"),
        (Request(PROMPTS[0], 1, 0, role="injected"), FORWARD, "gives 'None', which is none of its columns"),
        (Request(PROMPTS[0], 1, 0, written="picture"), FORWARD, "take a planner without hints"),
    ],
)
def test_refused(tiny: Tiny, request_: Request, plan: RolloutPlan, message: str):
    refused(message, make(tiny("sd3")).rollout, [request_], plan)


@pytest.mark.parametrize(
    ("planner", "columns", "message"),
    [
        (TaughtPictures(), {"completion": "a"}, r"'cat' has nothing in the column 'picture', .* \(its columns: completion\)"),
        (TaughtPictures("n"), {"n": 3}, "prompt 'cat' has '3' in the column 'n'"),
        (TaughtPairs(), {"chosen": "a.png"}, "prompt 'cat' has nothing in the column 'rejected'"),
        (TaughtPairs(), {"chosen": "a.png", "rejected": "a.png"}, "has the same picture in the columns 'chosen' and 'rejected'"),
    ],
)
def test_prompts_that_teach_nothing_are_refused(planner: Any, columns: dict[str, object], message: str):
    refused(message, planner.check_prompts, [Prompt("cat", "a cat", columns=columns)])
    TaughtPictures().check_prompts(PROMPTS)
    TaughtPairs().check_prompts(PROMPTS)


def test_pairs_of_pictures_that_contradict_each_other_are_refused():
    pair = Prompt("cat", "a cat", columns={"chosen": "a.png", "rejected": "b.png"})
    turned = replace(pair, id="other", columns={"chosen": "b.png", "rejected": "a.png"})
    refused("prompts 'cat' and 'other' are the same", TaughtPairs().check_prompts, [pair, turned])
    TaughtPairs().check_prompts([pair, replace(turned, text="a dog")])


def clip_of(count: int = 12, height: int = 32, width: int = 48) -> np.ndarray:
    """Frames that grow brighter one by one."""
    return np.stack([np.full((height, width, 3), 20 * i, np.uint8) for i in range(count)])


def seen(file: object, frames: int, fps: float) -> list[int]:
    """Which frames of `clip_of` are taken."""
    clip = clip_at(file, frames, fps, (16, 16), "fox")
    assert clip.shape == (frames, 16, 16, 3) and clip.dtype == np.uint8
    return [round(float(frame.mean()) / 20) for frame in clip]


def test_frames_are_taken_at_the_rate_of_the_policy_from_where_a_clip_begins(tmp_path: Path):
    file = str(write_mp4(tmp_path / "a.mp4", clip_of(), 8))
    assert seen(file, 3, 8.0) == seen(file, 3, 8.5) == [0, 1, 2]
    assert seen(file, 3, 4.0) == [0, 2, 4] and seen(file, 3, 3.0) == [0, 3, 5]
    assert seen(Video(file, start=0.5), 3, 4.0) == [4, 6, 8] and seen(clip_of(), 3, 1.0) == [0, 1, 2]
    for source, frames, fps, message in (
        (file, 7, 4.0, "the clip '.*a.mp4' gives 6 frames at 4 a second, and policy.frames is 7: lower policy.frames"),
        (file, 3, 16.0, "a.mp4' shows 8 frames a second, and the policy draws 16: set policy.fps = 8"),
        (Video(file, start=9.0), 3, 8.0, "a.mp4': it asks for 9 s to 1.5 s"),
        (clip_of(2), 3, 8.0, r"its clip is uint8 of the shape \(2, 32, 48, 3\), and must be uint8"),
        (Video((file,)), 1, 8.0, "its clip is a sequence of pictures"),
    ):
        refused(f"prompt 'fox'.*{message}", clip_at, source, frames, fps, (16, 16), "fox")
    with pytest.raises(FileNotFoundError):
        clip_at("none.mp4", 3, 8.0, (16, 16), "fox")


@pytest.mark.parametrize("family", ["wan", "wan_5b", "wan_i2v", "hunyuan15"])
def test_clips_are_encoded_so_that_decoding_hands_them_back_and_train(tiny: Tiny, tmp_path: Path, family: str):
    policy, file = make(tiny(family), **CLIPS), str(write_mp4(tmp_path / "a.mp4", clip_of(), 8))
    first = (Image.fromarray(clip_of()[0]),) if policy.family.sources[1] else ()
    prompts = [Prompt(name, f"a {name}", first, columns={"clip": file}) for name in ("fox", "cat")]
    rollouts = policy.rollout(TaughtPictures().first(prompts, 1, 0, 5), plan_of("sft_of_pictures"))
    (_, sample), *_ = rollouts.samples()
    assert (sample.role, sample.fps, sample.video.shape) == ("injected", 8.0, (FRAMES, SIDE, SIDE, 3))
    pixels = torch.from_numpy(sample.video).permute(3, 0, 1, 2)[None] / 127.5 - 1
    made = policy.pipeline.vae.encode(pixels).latent_dist
    apart = ((handed_back(policy, rollouts) - made.mean) / made.std).abs()
    assert float(apart.max()) < 6 and float(apart.mean()) > 0.5
    gradients = torch.autograd.grad(loss_of(policy, KINDS["sft_of_pictures"], rollouts), list(policy.parameters()))
    assert all(bool(one.isfinite().all()) for one in gradients) and sum(float(one.norm()) for one in gradients) > 0


@pytest.mark.parametrize(
    ("settings", "columns", "message"),
    [
        ({"frames": 1}, {"clip": "a.mp4"}, "shows a clip in the column 'clip', but the policy draws pictures: set policy.frames"),
        ({}, {"picture": "a.png"}, "shows a picture in the column 'picture', but the policy draws clips of 5 frames: give clips"),
        ({"frames": 9}, {"clip": "a.mp4"}, "gives 6 frames at 4 a second, and policy.frames is 9"),
    ],
)
def test_what_is_taught_is_looked_at_before_weights_are_loaded(
    tiny: Tiny, tmp_path: Path, settings: dict[str, Any], columns: dict[str, str], message: str
):
    write_mp4(tmp_path / "a.mp4", clip_of(), 8)
    prompt = Prompt("fox", "a fox", columns={name: str(tmp_path / file) for name, file in columns.items()})
    policy = FlowPolicyConfig(tiny("wan"), **{**CLIPS, "fps": 4.0, **settings})
    refused(f"prompt 'fox'.*{message}", FlowModality().adapt_algorithm, KINDS["sft_of_pictures"], policy, "sft", [prompt])


def test_models_of_sounds_are_not_taught():
    prompt = Prompt("fox", "a fox", columns={"picture": "a.png"})
    with pytest.raises(ValueError, match="models of sounds cannot be taught"):
        FlowModality().adapt_algorithm(KINDS["sft_of_pictures"], FlowPolicyConfig("m", seconds=1.0), "sft", [prompt])


def test_pairs_of_clips_in_memory(tiny: Tiny):
    light, dark = clip_of(FRAMES)[::-1].copy(), clip_of(FRAMES)
    pair = Prompt("fox", "a fox", columns={"chosen": light, "rejected": dark})
    TaughtPairs().check_prompts([pair])
    trace = trace_of(make(tiny("wan"), **CLIPS).rollout(TaughtPairs().first([pair], 2, 0, 5), plan_of("dpo_of_pictures")))
    assert not torch.equal(trace.latents[trace.before[0]], trace.latents[trace.before[1]])
    with pytest.raises(ValueError, match="has the same picture in the columns"):
        TaughtPairs().check_prompts([Prompt("fox", "a fox", columns={"chosen": light, "rejected": light.copy()})])
