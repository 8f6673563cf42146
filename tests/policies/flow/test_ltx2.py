"""LTX-2: clips and their sounds equal to its pipelines', read again as they were drawn; and what it refuses."""

import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from mmrl.core.readings import LOGPROBS, MEAN, ROLLOUT_LOGPROBS, SAMPLED_MEAN, STD
from mmrl.core.types import Prompt, Request
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Forward, Full
from mmrl.policies.flow.families.base import SOURCE
from mmrl.policies.flow.families.clips import FirstLatent
from mmrl.policies.flow.families.ltx2 import LTX2
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
from mmrl.policies.flow.prompt.embedding_cache import open_cache
from mmrl.policies.flow.prompt.encode import Encoder
from mmrl.policies.flow.trace import FlowTrace
from mmrl.policies.shared.lora import LoraSettings
from mmrl.training.collect import preview_of
from tests.support.flow_policies import LORA, latents, logprobs, stir

SIDE, FRAMES, FPS, TOKENS, STEPS = 32, 5, 20.0, 32, 3
SAMPLES = 100
"""Of a sound of 5 frames at 20 a second, at 400 Hz."""
OFF = {"stg_scale": 0.0, "modality_scale": 1.0, "guidance_rescale": 0.0}
PLAIN = {"spatio_temporal_guidance_blocks": None, **OFF, **{f"audio_{name}": value for name, value in OFF.items()}}
"""Guidance away from the empty prompt alone."""


def asked(count: int = 1, pictured: bool = False) -> list[Request]:
    texts = {"cat": "a red cat", "dogs": " two large dogs bark"}
    pixels = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8)
    frames = [(Image.fromarray(one),) if pictured else () for one in pixels]
    return [Request(Prompt(id, text, frames[i]), count, i, seed=7 + i) for i, (id, text) in enumerate(texts.items())]


def make(folder: str, **settings: Any) -> FlowPolicy:
    given: dict[str, Any] = {"height": SIDE, "width": SIDE, "frames": FRAMES, "fps": FPS, "sound": True, "lora": LORA}
    torch.manual_seed(0)
    policy = FlowPolicy(FlowPolicyConfig(folder, **(given | {"max_prompt_tokens": TOKENS, "guidance": 3.0} | settings)), ["ref"])
    stir(policy)
    return policy


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
    pipeline: Any = import_module("diffusers").DiffusionPipeline.from_pretrained(tmp_path)
    theirs = told(pipeline, "latent", (1.0, 1.0), pictured)
    assert max(far(*pair) for pair in zip(denormalized(policy, pictured), theirs, strict=True)) < 1e-4


@pytest.mark.parametrize(
    ("lora", "pictured"), [(LORA, False), (None, False), (None, True)], ids=["adapter", "whole", "whole from a frame"]
)
def test_log_probabilities_are_read_again_and_every_weight_gets_a_gradient(tiny: Any, lora: LoraSettings | None, pictured: bool):
    policy = make(tiny("ltx2"), lora=lora)
    rollouts = policy.rollout(asked(3, pictured), Full(num_steps=3, level=0.7).at(0))
    policy.audit(rollouts)
    again = logprobs(policy, rollouts)
    assert float((again.detach() - rollouts.recorded[ROLLOUT_LOGPROBS]).abs()[rollouts.action_mask].max()) < 1e-6
    again.sum().backward()
    assert [key for key, own in policy.weights.named.items() if own.grad is None or not bool(own.grad.abs().sum())] == []


@pytest.mark.parametrize("dynamics", ["flow_sde", "cps"])
def test_a_log_probability_is_the_mean_of_the_clips_and_the_sounds_own(tiny: Any, dynamics: Any):
    """Element by element, as distributions of torch have it; and distances of latents have the same scale."""
    policy = make(tiny("ltx2"))
    assert isinstance(policy.family, LTX2)
    rollouts = policy.rollout(asked(2), Full(num_steps=3, level=0.7, dynamics=dynamics).at(0))
    trace, mask = rollouts.trace, rollouts.action_mask
    assert isinstance(trace, FlowTrace)
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


def test_the_audit_looks_at_both(tiny: Any):
    policy = make(tiny("ltx2"))
    rollouts = policy.rollout(asked(), Full(num_steps=2, level=0.7).at(0))
    first, *others = rollouts.groups
    wrong: dict[str, dict[str, object]] = {
        "its sound is 100 samples at 800 a second, not 100 samples at 400 a second": {"rate": 800},
        "its sound is missing": {"sound": None},
        "its clip is None": {"video": None},
    }
    for said, change in wrong.items():
        bad = replace(first, samples=(replace(first.samples[0], **change),))
        with pytest.raises(ValueError, match=said):
            policy.audit(replace(rollouts, groups=(bad, *others)))


def test_waves_that_are_no_numbers_stop_the_run(tiny: Any):
    policy = make(tiny("ltx2"))
    broken = torch.zeros(1, *policy.family.latent_shape)
    broken[:, -1] = torch.nan
    with pytest.raises(ValueError, match="decoded samples that are not finite"):
        policy.decode(broken)


def swapped(self: LTX2, x: torch.Tensor) -> Any:
    """With the sound in front of the clip."""
    sound, clip = x.split([np.prod(self.sound_shape), np.prod(self.clip_shape)], 1)
    return clip.unflatten(1, self.clip_shape), sound.unflatten(1, self.sound_shape)


def test_a_fact_that_is_broken_is_noticed(tiny: Any):
    policy, plan = make(tiny("ltx2")), evaluation_plan(2)
    right = latents(policy, asked(), plan)
    for name, wrong in {"parts": swapped, "guide": super(LTX2, LTX2).guide, "fps": 21.0}.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LTX2, name, wrong)
            assert float((latents(policy, asked(), plan) - right).abs().max()) > 1e-3, name


HEARD = LTX2.ask


def silent_time(self: LTX2, *given: Any, audio_timestep: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
    """With the sound at the first frame's time."""
    return HEARD(self, *given, audio_timestep=0 * audio_timestep, **more)


BROKEN: dict[str, Any] = {
    "times": lambda self, timesteps: timesteps[:, None].repeat(1, self.image_tokens),
    "ask": silent_time,
    "normalize": lambda self, latents: latents,
    "encode_with": FirstLatent.encode_with,
}


def test_a_fact_of_first_frames_that_is_broken_is_noticed(tiny: Any):
    plan, two = evaluation_plan(2), asked(pictured=True)[:1]
    policy = make(tiny("ltx2"))
    right = latents(policy, two, plan)
    for name, wrong in BROKEN.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LTX2, name, wrong)
            patch.setattr(policy, "encoder", Encoder(policy.family, 0))
            assert float((latents(policy, two, plan) - right).abs().max()) > 1e-3, name


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


def test_pictures_of_the_data_have_no_sound(tiny: Any):
    one = Request(Prompt("p", "a hum", columns={"picture": "a.png"}), 1, 0, role="injected", written="picture")
    with pytest.raises(ValueError, match="models that draw clips with sound cannot be taught: train by rewards"):
        make(tiny("ltx2"), sound=False, frames=1).rollout([one], Forward(num_steps=10).at(0))


def test_kept_embeddings_belong_to_the_connectors_too(tiny: Any, tmp_path: Path):
    folder = shutil.copytree(tiny("ltx2"), tmp_path / "ltx2")
    policy = make(str(folder), embeddings="disk")
    before = open_cache(policy.config, policy.family)
    (file,) = (folder / "connectors").glob("*.safetensors")
    save_file({name: weight + 1 for name, weight in load_file(file).items()}, file)
    after = open_cache(policy.config, policy.family)
    assert before is not None and after is not None and before.folder != after.folder
