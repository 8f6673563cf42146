"""Sounds: LTX-2 with its clips and Stable Audio 3, equal to their pipelines', read again as drawn; and what they refuse."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.stable_audio_3.pipeline_stable_audio_3 import logsnr_sigma_schedule
from PIL import Image
from safetensors.torch import load_file, save_file

from mmrl.core.readings import LOGPROBS, MEAN, SAMPLED_MEAN, STD
from mmrl.core.types import Prompt, Request
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Forward, Full, RandomSubset
from mmrl.flow.sigmas import LogSnr
from mmrl.policies.flow.families.base import SOURCE
from mmrl.policies.flow.families.clips import FirstLatent
from mmrl.policies.flow.families.ltx2 import LTX2
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.prompt.embedding_cache import open_cache
from mmrl.policies.flow.prompt.encode import Encoder
from mmrl.policies.shared.lora import LoraSettings
from mmrl.training.collect import preview_of
from tests.support.flow_policies import LORA, assert_reads_again, latents, requests, stir, trace_of, with_adapters
from tests.support.pipelines import load_pipeline, noise_of
from tests.support.refused import refused

SIDE, FRAMES, FPS, TOKENS, STEPS = 32, 5, 20.0, 32, 3
SAMPLES = 100
"""Of a sound of 5 frames at 20 a second, at 400 Hz."""
OFF = {"stg_scale": 0.0, "modality_scale": 1.0, "guidance_rescale": 0.0}
PLAIN = {"spatio_temporal_guidance_blocks": None, **OFF, **{f"audio_{name}": value for name, value in OFF.items()}}
"""Guidance away from the empty prompt alone."""
SECONDS, AUDIO_STEPS = 1.45, 4
LAST = RandomSubset(num_steps=6, candidates=(3, 4), count=2).at(0)
"""Of Stable Audio 3."""


def asked(count: int = 1, pictured: bool = False) -> list[Request]:
    texts = {"cat": "a red cat", "dogs": " two large dogs bark"}
    pixels = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8)
    frames = [(Image.fromarray(one),) if pictured else () for one in pixels]
    return [Request(Prompt(id, text, frames[i]), count, i, seed=7 + i) for i, (id, text) in enumerate(texts.items())]


def make(folder: str, **settings: Any) -> FlowPolicy:
    given: dict[str, Any] = {"height": SIDE, "width": SIDE, "frames": FRAMES, "fps": FPS, "sound": True, "lora": LORA}
    return with_adapters(folder, **(given | {"max_prompt_tokens": TOKENS, "guidance": 3.0} | settings))


def audio(folder: str, **settings: Any) -> FlowPolicy:
    usual: dict[str, Any] = {"seconds": SECONDS, "guidance": 3.0, "lora": LORA, "forward_rows": 1, "decode_rows": 1}
    return with_adapters(folder, **(usual | settings))


def told(pipeline: Any, output: str, guidance: tuple[float, float], pictured: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Clips and sounds of the pipeline's own call for the same seeds, prompt by prompt."""
    pipeline.set_progress_bar_config(disable=True)
    settings = {"height": SIDE, "width": SIDE, "num_frames": FRAMES, "frame_rate": FPS, "max_sequence_length": TOKENS, **PLAIN}
    made = [
        pipeline(
            prompt=one.prompt.text,
            negative_prompt="",
            generator=generator_of(one.seed, 0, 0),
            num_inference_steps=STEPS,
            guidance_scale=guidance[0],
            audio_guidance_scale=guidance[1],
            output_type=output,
            return_dict=False,
            **settings,
            **({"image": one.prompt.media[0]} if pictured else {}),
        )
        for one in asked(pictured=pictured)
    ]
    clips, sounds = zip(*made, strict=True)
    return torch.cat(clips), torch.cat(sounds)


def pipeline_of(folder: str, pictured: bool) -> Any:
    """That from text or that from a first frame, whose folders are alike."""
    kind = "LTX2ImageToVideoPipeline" if pictured else "LTX2Pipeline"
    return getattr(import_module("diffusers"), kind).from_pretrained(folder)


def far(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.reshape(theirs.shape) - theirs).abs().max() / theirs.abs().max().clamp(min=1))


def denormalized(policy: FlowPolicy, pictured: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents as the pipeline shows them."""
    assert isinstance(policy.family, LTX2)
    clip, sound = policy.family.parts(latents(policy, asked(pictured=pictured), evaluation_plan(STEPS)))
    video, audio = policy.pipeline.vae, policy.pipeline.audio_vae
    mean, std = (one.view(1, -1, 1, 1, 1) for one in (video.latents_mean, video.latents_std))
    at = (1, *sound.shape[1::2])
    mean_of_sound, std_of_sound = (one.view(at)[:, :, None] for one in (audio.latents_mean, audio.latents_std))
    return clip * std / video.config.scaling_factor + mean, sound * std_of_sound + mean_of_sound


@pytest.mark.parametrize(
    ("model", "rate", "guidance", "pictured"),
    [
        ("ltx2", 400, (2.0, 5.0), False),
        ("ltx23", 800, (3.0, 7.0), False),
        ("ltx2_i2v", 400, (2.0, 5.0), True),
        pytest.param("ltx23", 800, (3.0, 7.0), True, marks=pytest.mark.evidence),
    ],
)
def test_latents_clips_and_sounds_are_its_pipelines_with_an_adapter_loaded(
    tiny: Any, tmp_path: Path, model: str, rate: int, guidance: tuple[float, float], pictured: bool
):
    """LTX-2 and 2.3, from text or a first frame; guidance 7 of the sound is what a run has that names none."""
    own = {} if guidance[1] == 7 else {"guidance_sound": guidance[1]}
    policy = make(tiny(model), guidance=guidance[0], **own)
    policy.save(tmp_path)
    pipeline: Any = pipeline_of(tiny(model), pictured)
    plain = told(pipeline, "latent", guidance, pictured)
    pipeline.load_lora_weights(tmp_path)
    theirs = told(pipeline, "latent", guidance, pictured)
    for one, wanted, without in zip(denormalized(policy, pictured), theirs, plain, strict=True):
        assert far(one, wanted) < 1e-4 and far(one, without) > 1e-3, "the adapter changes clip and sound"
    clips, waves = told(pipeline, "pt", guidance, pictured)
    samples = [sample for _, sample in policy.rollout(asked(pictured=pictured), evaluation_plan(STEPS)).samples()]
    for sample, clip, wave in zip(samples, clips, waves, strict=True):
        video, sound = np.asarray(sample.video), np.asarray(sample.sound)
        assert video.shape == (FRAMES, SIDE, SIDE, 3) and sample.fps == FPS and sample.rate == rate
        shown = np.round(clip.permute(0, 2, 3, 1).numpy() * 255)
        assert np.abs(video.astype(int) - shown).max() <= 1
        assert sound.shape == (2, rate // 4) and sound.dtype == np.float32 and 0 < wave.shape[-1] < rate // 4
        assert np.abs(sound[:, : wave.shape[-1]] - wave.numpy()).max() < 1e-4 and not sound[:, wave.shape[-1] :].any()
    assert np.abs(np.asarray(samples[0].sound) - samples[1].sound).max() > 1e-3, "prompts sound different"


@pytest.mark.parametrize(("model", "pictured"), [("ltx2", False), ("ltx2_i2v", True)])
def test_a_whole_pipeline_is_saved_and_draws_the_same(tiny: Any, tmp_path: Path, model: str, pictured: bool):
    policy = make(tiny(model), lora=None, guidance=1.0)
    policy.save(tmp_path)
    pipeline: Any = load_pipeline(tmp_path)
    theirs = told(pipeline, "latent", (1.0, 1.0), pictured)
    assert max(far(*pair) for pair in zip(denormalized(policy, pictured), theirs, strict=True)) < 1e-4


@pytest.mark.parametrize(
    ("lora", "pictured"), [(LORA, False), (None, False), (None, True)], ids=["adapter", "whole", "whole from a frame"]
)
def test_log_probabilities_are_read_again_and_every_weight_gets_a_gradient(tiny: Any, lora: LoraSettings | None, pictured: bool):
    assert_reads_again(make(tiny("ltx2"), lora=lora), asked(3, pictured), Full(num_steps=3, level=0.7).at(0))


@pytest.mark.parametrize("dynamics", ["flow_sde", "cps"])
def test_a_log_probability_is_the_mean_of_the_clips_and_the_sounds_own(tiny: Any, dynamics: Any):
    """Element by element, as distributions of torch have it; and distances of latents have the same scale."""
    policy = make(tiny("ltx2"))
    assert isinstance(policy.family, LTX2)
    rollouts = policy.rollout(asked(2), Full(num_steps=3, level=0.7, dynamics=dynamics).at(0))
    trace, mask = trace_of(rollouts), rollouts.action_mask
    stir(policy, 0.3)
    with torch.no_grad():
        found = policy.read(trace, [LOGPROBS, MEAN, SAMPLED_MEAN, STD], mask)
    sizes = [int(np.prod(shape)) for shape in (policy.family.clip_shape, policy.family.sound_shape)]
    clips, scale = sizes[0], torch.cat([torch.full((size,), (sum(sizes) / 2 / size) ** 0.5) for size in sizes])
    moved = (found[MEAN] - found[SAMPLED_MEAN]) ** 2
    for row, step in mask.nonzero().tolist():
        latent, drawn = trace.latents[trace.after[row, step]], trace.latents[trace.means[row, step]]
        mean, std = found[MEAN][row, step] / scale, found[STD][row, step]
        each = -((latent - mean) ** 2) if dynamics == "cps" else torch.distributions.Normal(mean, std).log_prob(latent)
        torch.testing.assert_close(found[LOGPROBS][row, step], (each[:clips].mean() + each[clips:].mean()) / 2)
        apart = (mean - drawn) ** 2
        torch.testing.assert_close(moved[row, step].mean(), (apart[:clips].mean() + apart[clips:].mean()) / 2)
        assert abs(float(each.mean() - found[LOGPROBS][row, step])) > 1e-4, "a mean over the whole vector is another number"


def test_without_its_sound_the_same_clip_is_drawn_and_less_is_decoded(tiny: Any, monkeypatch: pytest.MonkeyPatch):
    heard = make(tiny("ltx2")).rollout(asked(), evaluation_plan(STEPS))
    policy = make(tiny("ltx2"), sound=False)
    monkeypatch.setattr(type(policy.pipeline.vocoder), "forward", lambda *_: pytest.fail("a sound was decoded"))
    silent = policy.rollout(asked(), evaluation_plan(STEPS))
    policy.audit(silent)
    for (_, one), (_, other) in zip(heard.samples(), silent.samples(), strict=True):
        assert np.array_equal(one.video, other.video) and other.sound is other.rate is None  # type: ignore[arg-type]


def test_a_preview_is_a_clip_with_its_sound(tiny: Any):
    plan = replace(evaluation_plan(3), previews=True)
    sample = make(tiny("ltx2")).rollout(asked(), plan).groups[0].samples[0]
    shown: Any = preview_of(sample, 0)
    assert shown.video.shape == (FRAMES, SIDE, SIDE, 3) and shown.sound.shape == (2, SAMPLES) and shown.rate == 400
    assert not np.array_equal(shown.sound, sample.sound)


@pytest.mark.parametrize(
    ("model", "change", "said"),
    [
        ("ltx2", {"rate": 800}, "its sound is 100 samples at 800 a second, not 100 samples at 400 a second"),
        ("ltx2", {"sound": None}, "its sound is missing"),
        ("ltx2", {"video": None}, "its clip is None"),
        ("stable_audio3", {"rate": 8}, "its sound is 23 samples at 8 a second, not 23 samples at 16 a second"),
        ("stable_audio3", {"sound": None}, "its sound is missing"),
        ("stable_audio3", {"sound": np.zeros((2, 22), np.float32)}, "its sound is 22 samples at 16 a second"),
        ("stable_audio3", {"sound": np.full((2, 23), np.nan, np.float32)}, "beyond .-1, 1., or none that are numbers"),
    ],
)
def test_the_audit_looks_at_clips_and_sounds(tiny: Any, model: str, change: dict[str, object], said: str):
    policy, plan = (make(tiny(model)), Full(num_steps=2, level=0.7).at(0)) if model == "ltx2" else (audio(tiny(model)), LAST)
    rollouts = policy.rollout(asked(), plan)
    first, *others = rollouts.groups
    bad = replace(first, samples=(replace(first.samples[0], **change),))
    refused(said, policy.audit, replace(rollouts, groups=(bad, *others)))


@pytest.mark.parametrize(("model", "made"), [("ltx2", make), ("stable_audio3", audio)])
def test_waves_that_are_no_numbers_stop_the_run(tiny: Any, model: str, made: Callable[..., FlowPolicy]):
    policy = made(tiny(model))
    broken = torch.zeros(1, *policy.family.latent_shape)
    broken[:, -1] = torch.nan
    refused("decoded samples that are not finite: look for latents that grew", policy.decode, broken)


@pytest.mark.parametrize(
    ("model", "made", "said"),
    [
        ("ltx2", partial(make, sound=False, frames=1), "models that draw clips with sound cannot be taught: train by rewards"),
        ("stable_audio3", audio, "models of sounds cannot be taught: train by rewards"),
    ],
)
def test_pictures_of_the_data_have_no_sound(tiny: Any, model: str, made: Callable[..., FlowPolicy], said: str):
    one = Request(Prompt("p", "a hum", columns={"picture": "a.png"}), 1, 0, role="injected", written="picture")
    refused(said, made(tiny(model)).rollout, [one], Forward(num_steps=10).at(0))


def swapped(self: LTX2, x: torch.Tensor) -> Any:
    """With the sound in front of the clip."""
    sound, clip = x.split([np.prod(self.sound_shape), np.prod(self.clip_shape)], 1)
    return clip.unflatten(1, self.clip_shape), sound.unflatten(1, self.sound_shape)


HEARD = LTX2.ask


def silent_time(self: LTX2, *given: Any, audio_timestep: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
    """With the sound at the first frame's time."""
    return HEARD(self, *given, audio_timestep=0 * audio_timestep, **more)


@pytest.mark.parametrize(
    ("name", "wrong", "pictured"),
    [
        ("parts", swapped, False),
        ("guide", super(LTX2, LTX2).guide, False),
        ("fps", 21.0, False),
        ("times", lambda self, timesteps: timesteps[:, None].repeat(1, self.image_tokens), True),
        ("ask", silent_time, True),
        ("normalize", lambda self, latents: latents, True),
        ("encode_with", FirstLatent.encode_with, True),
    ],
)
def test_a_fact_that_is_broken_is_noticed(tiny: Any, name: str, wrong: Any, pictured: bool, monkeypatch: pytest.MonkeyPatch):
    policy, plan, prompts = make(tiny("ltx2")), evaluation_plan(2), asked(pictured=pictured)
    right = latents(policy, prompts, plan)
    monkeypatch.setattr(LTX2, name, wrong)
    monkeypatch.setattr(policy, "encoder", Encoder(policy.family, 0))
    assert float((latents(policy, prompts, plan) - right).abs().max()) > 1e-3


def test_a_first_frame_has_no_part_in_ratios_and_ends_as_the_picture_beside_prompts_without(tiny: Any):
    """Whatever the weights are, a transition of the first latent is as probable; sound and later frames tell policies apart."""
    policy, plan = make(tiny("ltx2")), evaluation_plan(2)
    both = [asked(pictured=True)[0], asked()[1]]
    together = latents(policy, both, plan)
    torch.testing.assert_close(together, torch.cat([latents(policy, [one], plan) for one in both]), atol=2e-5, rtol=1e-5)
    cpu = torch.device("cpu")
    conditions, blank = policy.encoder([one.prompt for one in both], cpu), policy.encoder.empty(cpu)
    assert isinstance(policy.family, LTX2)
    assert policy.family.blank_sources(1)[SOURCE].shape == conditions[0][SOURCE].shape, "a plan counts what is drawn"
    torch.testing.assert_close(policy.family.parts(together)[0][:1, :, :1], conditions[0][SOURCE][None], atol=1e-5, rtol=0)
    x, t = torch.randn(2, *policy.family.latent_shape), torch.tensor([900.0, 300.0])
    with torch.no_grad():
        before = policy.family.parts(policy.net(x, t, conditions[:1], torch.zeros(2, dtype=torch.long), blank))
        stir(policy, 1.0)
        after = policy.family.parts(policy.net(x, t, conditions[:1], torch.zeros(2, dtype=torch.long), blank))
    (clip, sound), (other, changed) = before, after
    assert torch.equal(clip[:, :, 0], other[:, :, 0]) and float((sound - changed).abs().max()) > 1e-3
    assert float((clip - other)[:, :, 1:].abs().max()) > 1e-3


def test_kept_embeddings_belong_to_the_connectors_too(tiny: Any, tmp_path: Path):
    folder = shutil.copytree(tiny("ltx2"), tmp_path / "ltx2")
    policy = make(str(folder), embeddings="disk")
    before = open_cache(policy.config, policy.family)
    (file,) = (folder / "connectors").glob("*.safetensors")
    save_file({name: weight + 1 for name, weight in load_file(file).items()}, file)
    after = open_cache(policy.config, policy.family)
    assert before is not None and after is not None and before.folder != after.folder


def heard_of(pipeline: Any, policy: FlowPolicy, output: str) -> torch.Tensor:
    """The pipeline's own answers from the same noise, one call per prompt."""
    noise, guidance = noise_of(policy, evaluation_plan(AUDIO_STEPS), 2), policy.net.guidance
    made = [
        pipeline(
            prompt=request.prompt.text,
            duration=SECONDS,
            latents=start[None].clone(),
            num_inference_steps=AUDIO_STEPS,
            guidance_scale=guidance,
            output_type=output,
            return_dict=False,
        )[0]
        for request, start in zip(requests(count=1), noise, strict=True)
    ]
    return torch.cat(made)


@pytest.mark.parametrize("steps", [1, 2, 8, 100])
def test_the_table_is_the_schedulers_bit_for_bit(tiny: Any, steps: int):
    scheduler = load_pipeline(tiny("stable_audio3")).scheduler
    scheduler.set_timesteps(sigmas=logsnr_sigma_schedule(steps, -6.2, 2.0))
    spacing = LogSnr()
    assert torch.equal(spacing.sigmas(spacing.grid(steps)), scheduler.sigmas)
    slow = [1.0, *(1 / (1 + np.exp(2 - 8.2 * (1 - i / steps))) for i in range(1, steps)), 0.0]
    np.testing.assert_allclose(scheduler.sigmas.numpy(), slow, atol=1e-6)


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_latents_and_waves_are_its_pipelines_with_an_adapter_saved_and_loaded(tiny: Any, tmp_path: Path, guidance: float):
    policy = audio(tiny("stable_audio3"), guidance=guidance)
    policy.save(tmp_path)
    pipeline = load_pipeline(tiny("stable_audio3"))
    plain = heard_of(pipeline, policy, "pt")
    # the lines that a model card has for it
    from diffusers.loaders.peft import PeftAdapterMixin

    network = pipeline.transformer
    network.__class__ = type(type(network).__name__, (type(network), PeftAdapterMixin), {})
    network.load_lora_adapter(str(tmp_path), prefix=None, use_safetensors=True)
    ours, theirs = latents(policy, requests(count=1), evaluation_plan(AUDIO_STEPS)), heard_of(pipeline, policy, "latent")
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    decoded: Any = policy.decode(ours)
    waves, heard = torch.tensor(np.stack(decoded)), heard_of(pipeline, policy, "pt")
    assert waves.shape == (2, 2, int(SECONDS * 16)) and (waves - heard).abs().max() <= 1e-5
    assert (heard - plain).abs().max() > 1e-3, "the adapter changes the sound"
    assert (waves[0] - waves[1]).abs().max() > 1e-2, "prompts sound different"


def test_all_weights_train_and_the_saved_pipeline_is_its_model(tiny: Any, tmp_path: Path):
    policy = audio(tiny("stable_audio3"), lora=None)
    assert not any("to_local_embed" in name for name in policy.weights.named), "which asks for a sound to change"
    policy.save(tmp_path)
    theirs = heard_of(load_pipeline(tmp_path), policy, "latent")
    ours = latents(policy, requests(count=1), evaluation_plan(AUDIO_STEPS))
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    started = FlowPolicy(replace(policy.config, model=str(tmp_path)), ["ref"])
    assert torch.equal(latents(started, requests(count=1), evaluation_plan(AUDIO_STEPS)), ours)


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapter", "whole"])
def test_readings_of_sounds_are_those_of_sampling_and_every_weight_gets_a_gradient(tiny: Any, lora: LoraSettings | None):
    policy = audio(tiny("stable_audio3"), lora=lora, forward_rows=16, decode_rows=16)
    sample = assert_reads_again(policy, requests(count=2), LAST, bound=1e-5).groups[0].samples[0]
    assert sample.rate == 16 and sample.sound.dtype == np.float32 and sample.sound.shape == (2, int(SECONDS * 16))
    assert sample.image is sample.video is None
