"""Clips of the data: the frames that are taken of a file, encoded by the model's own autoencoder, trained on, and refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.planners.flow import TaughtPairs, TaughtPictures
from mmrl.app.modality.flow import FlowModality
from mmrl.core.samples import Video
from mmrl.core.types import Batch, Prompt, Rollouts
from mmrl.data.files.mp4 import write_mp4
from mmrl.flow.plan import RolloutPlan
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig, FlowTrace
from mmrl.policies.video.decode import clip_at
from tests.support.flow_policies import LORA, stir
from tests.support.rows import counts_of, scores

Tiny = Callable[[str], str]
SIDE, FRAMES = 32, 5
TOKENS = {"wan_i2v": 512, "wan_5b": 24, "wan": 24, "hunyuan15": 64}


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
        with pytest.raises(ValueError, match=f"prompt 'fox'.*{message}"):
            clip_at(source, frames, fps, (16, 16), "fox")
    with pytest.raises(FileNotFoundError):
        clip_at("none.mp4", 3, 8.0, (16, 16), "fox")


def make(folder: str) -> FlowPolicy:
    tokens = next(count for name, count in TOKENS.items() if name in folder)
    torch.manual_seed(0)
    policy = FlowPolicy(
        FlowPolicyConfig(folder, height=SIDE, width=SIDE, frames=FRAMES, fps=8.0, max_prompt_tokens=tokens, lora=LORA)
    )
    stir(policy)
    return policy


def plan_of(kind: str) -> RolloutPlan:
    schedule = KINDS[kind].schedule
    assert schedule is not None
    return schedule.at(0)


def loss_of(policy: FlowPolicy, rollouts: Rollouts) -> Any:
    algorithm, mask = KINDS["sft_of_pictures"], rollouts.action_mask
    with torch.no_grad():
        frozen = policy.read(rollouts.trace, algorithm.frozen_reads, mask)
    ones, values = torch.ones(mask.shape), algorithm.advantage(scores(torch.zeros(len(rollouts), 0)), rollouts).values
    batch = Batch(rollouts, values, ones, ones, frozen)
    share, importance = algorithm.loss_weights(batch, counts_of(batch))
    batch = Batch(rollouts, values, share, importance, frozen)
    return algorithm.loss(batch, policy.read(rollouts.trace, algorithm.live_reads, mask))[0]


@pytest.mark.parametrize("family", ["wan", "wan_5b", "wan_i2v", "hunyuan15"])
def test_clips_are_encoded_so_that_decoding_hands_them_back_and_train(tiny: Tiny, tmp_path: Path, family: str):
    policy, file = make(tiny(family)), str(write_mp4(tmp_path / "a.mp4", clip_of(), 8))
    first = (Image.fromarray(clip_of()[0]),) if policy.family.sources[1] else ()
    prompts = [Prompt(name, f"a {name}", first, columns={"clip": file}) for name in ("fox", "cat")]
    latents: list[torch.Tensor] = []
    vae = policy.pipeline.vae
    kept, vae.decode = vae.decode, lambda z, return_dict=False: (latents.append(z), kept(z, return_dict=False))[1]
    rollouts = policy.rollout(TaughtPictures().first(prompts, 1, 0, 5), plan_of("sft_of_pictures"))
    trace = rollouts.trace
    assert isinstance(trace, FlowTrace)
    policy.decode(trace.latents[trace.before[:1, 0]])
    vae.decode = kept
    (_, sample), *_ = rollouts.samples()
    assert (sample.role, sample.fps, sample.video.shape) == ("injected", 8.0, (FRAMES, SIDE, SIDE, 3))
    pixels = torch.from_numpy(sample.video).permute(3, 0, 1, 2)[None] / 127.5 - 1
    made = vae.encode(pixels).latent_dist
    apart = ((latents[0] - made.mean) / made.std).abs()
    assert float(apart.max()) < 6 and float(apart.mean()) > 0.5
    gradients = torch.autograd.grad(loss_of(policy, rollouts), list(policy.parameters()))
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
    given: dict[str, Any] = {"height": SIDE, "width": SIDE, "frames": FRAMES, "fps": 4.0, **settings}
    policy = FlowPolicyConfig(tiny("wan"), **given)
    with pytest.raises(ValueError, match=f"prompt 'fox'.*{message}"):
        FlowModality().adapt_algorithm(KINDS["sft_of_pictures"], policy, "sft", [prompt])


def test_models_of_sounds_are_not_taught():
    prompt = Prompt("fox", "a fox", columns={"picture": "a.png"})
    with pytest.raises(ValueError, match="models of sounds cannot be taught"):
        FlowModality().adapt_algorithm(KINDS["sft_of_pictures"], FlowPolicyConfig("m", seconds=1.0), "sft", [prompt])


def test_pairs_of_clips_in_memory(tiny: Tiny):
    light, dark = clip_of(FRAMES)[::-1].copy(), clip_of(FRAMES)
    pair = Prompt("fox", "a fox", columns={"chosen": light, "rejected": dark})
    TaughtPairs().check_prompts([pair])
    trace = make(tiny("wan")).rollout(TaughtPairs().first([pair], 2, 0, 5), plan_of("dpo_of_pictures")).trace
    assert isinstance(trace, FlowTrace) and not torch.equal(trace.latents[trace.before[0]], trace.latents[trace.before[1]])
    with pytest.raises(ValueError, match="has the same picture in the columns"):
        TaughtPairs().check_prompts([Prompt("fox", "a fox", columns={"chosen": light, "rejected": light.copy()})])
