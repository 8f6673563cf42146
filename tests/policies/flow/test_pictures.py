"""Families of pictures against their pipelines: latents, calls, readings, rounding, exports; broken facts; what is refused."""

import json
import shutil
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from PIL import Image
from torch import Tensor

from mmrl.app.modality.templates import call_of, pipeline_call
from mmrl.core.readings import LOGPROBS, MEAN, ROLLOUT_LOGPROBS, STD
from mmrl.core.types import Prompt, Request
from mmrl.flow.dynamics import DDIM
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Full
from mmrl.flow.sigmas import DiffusionTable, DynamicShift, LinearShift, StaticShift
from mmrl.policies.flow.families.flux.flux1 import Chroma
from mmrl.policies.flow.families.flux.flux2 import Flux2
from mmrl.policies.flow.families.krea2 import Krea2
from mmrl.policies.flow.families.qwen.image21 import QwenImage21
from mmrl.policies.flow.families.sana import Sana
from mmrl.policies.flow.families.stable_diffusion import StableDiffusion, StableDiffusionXL
from mmrl.policies.flow.families.z_image import Lumina2, ZImage
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from tests.support.flow_policies import LORA, latents, read_again, requests
from tests.support.pipelines import CASES, FIRST, Case, gap, load_pipeline, noise_of, policy_of, told
from tests.support.refused import refused

SCHEDULER = "scheduler/scheduler_config.json"
VELOCITY, ENCODE = ZImage.velocity, StableDiffusionXL.encode
READ, TOLD, PLACES = Chroma.encode, Lumina2.encode, Krea2._places
EVERY = FIRST | CASES


@pytest.mark.parametrize("name", EVERY)
def test_it_is_its_pipeline_with_an_adapter_saved_and_loaded(tiny, name, tmp_path):
    case = EVERY[name]
    policy = policy_of(tiny, case)
    policy.save(tmp_path)
    pipeline = load_pipeline(tiny(case.model))
    plain = told(pipeline, case, noise_of(policy, case.plan, 1), case.output)
    pipeline.load_lora_weights(str(tmp_path))
    assert gap(policy, case, pipeline) < case.bound
    drawn = told(pipeline, case, noise_of(policy, case.plan, 1), case.output)
    assert (drawn - plain).abs().max() > 1e-3, "the adapter changes the picture"
    ours = policy.decode(latents(policy, requests(count=1, num_prompts=1), case.plan))[0]
    theirs = told(pipeline, case, noise_of(policy, case.plan, 1), "pt")[0]
    pixels = torch.tensor(list(ours.getdata())).view(32, 32, 3).permute(2, 0, 1) / 255  # type: ignore[attr-defined]
    assert (pixels - theirs).abs().max() < 1.5 / 255


@pytest.mark.parametrize("dynamics", ["flow_sde", "ddim"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_readings_are_those_of_sampling_and_every_adapter_gets_a_gradient(tiny, name, dynamics):
    # A UNet rounds otherwise with another number of rows, some CPUs also with other neighbours of a row, and ddim's second noise,
    # a twelfth of the first, magnifies that.
    equal = {"equal_forwards": True, "forward_rows": 6} if dynamics == "ddim" else {}
    side = 32 if CASES[name].model == "qwen_image21" else 16
    policy = policy_of(tiny, CASES[name], height=side, width=side, **equal)
    rollouts = policy.rollout(requests(count=2), Full(num_steps=3, dynamics=dynamics, level=0.7).at(0))
    difference, still = read_again(policy, rollouts)
    assert difference < (1e-4 if dynamics == "ddim" else 1e-6) and still == []


@pytest.mark.parametrize("name", [*FIRST, "z_image", "sd15"])
def test_a_saved_adapter_is_a_start_and_a_saved_pipeline_a_model(tiny, name, tmp_path):
    case = EVERY[name]
    policy = policy_of(tiny, case)
    policy.save(tmp_path / "adapter")
    started = FlowPolicy(replace(policy.config, lora=LoraSettings(adapter=str(tmp_path / "adapter"))), ["ref"])
    whole = policy_of(tiny, case, lora=None)
    whole.save(tmp_path / "model")
    again = FlowPolicy(replace(whole.config, model=str(tmp_path / "model")))
    for ours, own in ((started, policy), (again, whole)):
        torch.testing.assert_close(*(latents(one, requests(count=1), case.plan) for one in (ours, own)))
    assert gap(whole, case, load_pipeline(tmp_path / "model")) < case.bound


def whole(condition: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without a difference between tokens and padding."""
    return {**condition, "mask": torch.ones_like(condition["mask"])}


def without_size(family: object, prompts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """SDXL's further inputs, of pictures of no size."""
    return {"text_embeds": prompts["pooled"], "time_ids": torch.zeros(len(prompts["pooled"]), 6)}


FACTS: dict[str, tuple[str, type, str, Any]] = {
    "guidance counts from 0": ("z_image", ZImage, "guide", lambda self, a, b, g, t: b + (g - 1) * (a - b)),
    "lengths are not cut": ("z_image_capped", ZImage, "guide", lambda self, a, b, g, t: b + g * (a - b)),
    "the velocity is not turned": ("z_image", ZImage, "velocity", lambda self, *rest: -VELOCITY(self, *rest)),
    "time runs to noise": ("z_image", ZImage, "velocity", lambda self, net, x, t, *rest: VELOCITY(self, net, x, 1000 - t, *rest)),
    "the scheduler's own grid": ("z_image", ZImage, "spacing", lambda self: StaticShift(3.0)),
    "FLUX.1's mu": ("flux2", Flux2, "spacing", lambda self: DynamicShift()),
    "tokens in another order": ("flux2", Flux2, "pack", lambda self, x: x.transpose(2, 3).flatten(2).transpose(1, 2)),
    "an even table": ("sana", Sana, "spacing", lambda self: LinearShift(3.0)),
    "no instruction": ("sana", Sana, "instruction", None),
    "columns before rows": ("krea2", Krea2, "_places", lambda self, *rest: PLACES(self, *rest)[:, [0, 2, 1]]),
    "steps that do not end at 0.02": ("qwen_image21", QwenImage21, "spacing", lambda self: DynamicShift(0.5, 0.9, 256, 8192)),
    "a norm that is kept": ("qwen_image21_guided", QwenImage21, "keep_norm", True),
    "guidance away from nothing": ("qwen_image21_guided", QwenImage21, "empty_prompt", "the"),
    "padding is seen in full": ("chroma", Chroma, "encode", lambda self, *rest: whole(READ(self, *rest))),
    "FLUX.1's dynamic shift": ("chroma", Chroma, "spacing", lambda self: DynamicShift()),
    "the norm is not kept": ("lumina2", Lumina2, "keep_norm", False),
    "no prompt has instructions too": ("lumina2", Lumina2, "encode", lambda self, text, device: TOLD(self, text or " ", device)),
    "noise is not scaled": ("sd15", StableDiffusion, "start", lambda self, noise, sigma: noise),
    "the end is not scaled back": ("sd15", StableDiffusion, "finish", lambda self, x, sigma: x),
    "no prompt is no zeros": ("sdxl", StableDiffusionXL, "encode", lambda self, text, device: ENCODE(self, f"{text} ", device)),
    "no size": ("sdxl", StableDiffusionXL, "_extra_inputs", without_size),
}
"""A fact -> model, family, its answer, and another one."""


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_that_is_broken_is_noticed(tiny, fact, monkeypatch):
    name, family, attribute, spoilt = FACTS[fact]
    case = CASES[name]
    monkeypatch.setattr(family, attribute, spoilt)
    policy = FlowPolicy(FlowPolicyConfig(tiny(case.model), 32, 32, guidance=case.guidance, **case.settings))
    pipeline = load_pipeline(tiny(case.model))
    assert gap(policy, case, pipeline) > 1e-3


@pytest.mark.parametrize("steps", [6, 7, 10])
def test_z_images_sigmas_are_its_pipelines_bit_for_bit(tiny, steps):
    case = CASES["z_image"]
    pipeline = load_pipeline(tiny(case.model))
    pipeline("a cat", 32, 32, num_inference_steps=steps, guidance_scale=0.0, max_sequence_length=64, output_type="latent")
    assert torch.equal(policy_of(tiny, case).sigmas(evaluation_plan(steps)), pipeline.scheduler.sigmas)


@pytest.mark.parametrize(
    ("part", "change", "settings", "call"),
    [
        ("krea2/model_index.json", {"is_distilled": True}, {"max_prompt_tokens": 40}, {"guidance_scale": 0.0}),
        (f"flux/{SCHEDULER}", {"use_dynamic_shifting": False, "shift": 2.0}, {"max_prompt_tokens": 24, "guidance": 2.0}, {}),
    ],
    ids=["a distilled krea2, which has no guidance unless asked for", "flux"],
)
def test_one_shift_for_all_sizes_is_followed(tiny, tmp_path, part, change, settings, call):
    folder = changed(tiny, tmp_path, part, change)
    call = {"max_sequence_length": settings["max_prompt_tokens"], "guidance_scale": settings.get("guidance"), **call}
    policy, pipeline = FlowPolicy(FlowPolicyConfig(folder, 32, 32, **settings)), load_pipeline(folder)
    assert gap(policy, Case(folder, 1.0, call), pipeline) < 5e-5
    torch.testing.assert_close(policy.sigmas(evaluation_plan(4)), pipeline.scheduler.sigmas, atol=2e-7, rtol=0)


@pytest.mark.parametrize("listed", [None, (1.0, 0.9, 0.6, 0.2)])
def test_qwen_image_21s_sigmas_are_its_pipelines_bit_for_bit(tiny, tmp_path, listed):
    """Even ones, and for as many steps those that its makers list."""
    folder = changed(tiny, tmp_path, "qwen_image21/model_index.json", {"sample_sigmas": listed})
    pipeline = load_pipeline(folder)
    policy = FlowPolicy(FlowPolicyConfig(folder, 32, 32))
    for steps in (4, 7, 40):
        own = {} if listed and steps == len(listed) else {"sigmas": np.linspace(1.0, 1 / steps, steps)}
        pipeline("a cat", height=32, width=32, num_inference_steps=steps, output_type="latent", **own)
        assert torch.equal(policy.sigmas(evaluation_plan(steps)), pipeline.scheduler.sigmas)


def test_qwen_image_21_decodes_all_of_its_pipelines_colours_and_shows_them_on_white(tiny):
    case = CASES["qwen_image21"]
    policy = policy_of(tiny, case)
    pipeline = policy.pipeline
    finished = latents(policy, requests(count=1), case.plan)
    pipeline.set_progress_bar_config(disable=True)
    start, text = noise_of(policy, case.plan, 1), requests(count=1)[0].prompt.text
    theirs = pipeline(text, latents=start, height=32, width=32, num_inference_steps=4, output_type="pt").images
    ours = policy.family.unpack(finished[:1])
    torch.testing.assert_close((policy.family.pixels(ours) / 2 + 0.5).clamp(0, 1), theirs, atol=5e-5, rtol=0)  # type: ignore[attr-defined]
    clear = theirs.clone()
    clear[:, 3] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.vae, "decode", lambda *_, **__: ((clear * 2 - 1)[:, :, None],))
        assert bool((policy.family.decode(ours) == 1).all())


def test_the_mark_of_a_picture_in_a_prompt_is_refused(tiny):
    policy = policy_of(tiny, CASES["qwen_image21"])
    with pytest.raises(ValueError, match=r"the prompt 'a <\|image_pad\|> b' holds <\|image_pad\|>, which stands for a picture"):
        policy.encoder(["a <|image_pad|> b"], policy.net.device)


def test_sigmas_of_a_beta_distribution_are_refused(tiny, tmp_path):
    folder = changed(tiny, tmp_path, f"chroma/{SCHEDULER}", {"use_beta_sigmas": True})
    policy = FlowPolicy(FlowPolicyConfig(folder, 16, 16, max_prompt_tokens=24))
    refused("use_beta_sigmas = True, and its sigmas cannot be reproduced here", policy.sigmas, evaluation_plan(4))
    assert policy.sigmas(evaluation_plan(4, LinearShift(1.0))).tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]


@pytest.mark.parametrize("eta", [0.3, 1.0])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_ddims_noisy_step_is_the_schedulers(tiny, prediction, eta, tmp_path):
    """Mean and deviation of every step, at the network's own predictions of noise or v."""
    folder = changed(tiny, tmp_path, "sd15/scheduler/scheduler_config.json", {"prediction_type": prediction})
    policy = FlowPolicy(FlowPolicyConfig(folder, 16, 16, guidance=1.0, lora=LORA))
    rollouts = policy.rollout(requests(count=1), Full(num_steps=3, dynamics="ddim", level=eta, last="trained").at(0))
    trace: Any = rollouts.trace
    scheduler = policy.pipeline.scheduler
    scheduler.set_timesteps(3)
    sigmas = trace.sigma_tables[0].sigmas
    scale = ((1 - sigmas) ** 2 + sigmas**2).sqrt()
    found = policy.read(trace, [MEAN, STD], rollouts.action_mask)
    for row in range(2):
        embeds = trace.conditions[row]["embeds"][None]
        for step, time in enumerate(scheduler.timesteps):
            x = trace.latents[trace.before[row, step]][None] / scale[step]
            with torch.no_grad():
                out = policy.pipeline.unet(x, time, encoder_hidden_states=embeds).sample
            nothing = torch.zeros_like(x)
            mean, above = (
                scheduler.step(out, time, x, eta=eta, variance_noise=nothing + noise).prev_sample * scale[step + 1]
                for noise in (0, 1)
            )
            torch.testing.assert_close(found[MEAN][row, step].detach(), mean[0], atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(found[STD][row, step].expand(mean[0].shape), (above - mean)[0], atol=2e-5, rtol=1e-3)


def changed(tiny: Any, tmp_path: Path, part: str, change: Mapping[str, Any]) -> str:
    """A model with another entry in one of its files."""
    name, _, file = part.partition("/")
    folder = shutil.copytree(tiny(name), tmp_path / "model")
    entries = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(entries | dict(change)))
    return str(folder)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"spacing": LinearShift(3.0)}, "knows the noise levels of its own table alone"),
        ({"truncated_timesteps": True}, "wrong noise levels: leave it out"),
    ],
)
def test_plans_that_a_table_of_noise_levels_cannot_follow_are_refused(tiny, schedule, message):
    policy = policy_of(tiny, CASES["sd15"])
    refused(message, policy.rollout, requests(count=1), Full(num_steps=3, **schedule).at(0))


LATE = ("z_image", "flux2", "flux2_klein", "krea2", "chroma", "lumina2", "qwen_image21")
OTHERWISE = ("sana", "sd15", "sdxl")
"""Their pipelines take other steps."""


def drawn_both_ways(policy: FlowPolicy, guidance: float) -> tuple[np.ndarray, np.ndarray]:
    """A picture by mmrl and by the pipeline, as whole numbers."""
    plan = evaluation_plan(5, guidance=guidance)
    call: Any = pipeline_call(policy, plan)
    ours: Any = policy.rollout([Request(Prompt("cat", "a red cat"), 1, 0, seed=7)], plan).groups[0].samples[0].image
    pipeline = policy.pipeline
    pipeline.set_progress_bar_config(disable=True)
    kept, pipeline.scheduler = pipeline.scheduler, FlowMatchEulerDiscreteScheduler()
    theirs = pipeline(prompt="a red cat", generator=generator_of(7, 0, 0), **call).images[0]
    pipeline.scheduler = kept
    if theirs.mode == "RGBA":
        theirs = Image.alpha_composite(Image.new("RGBA", theirs.size, "white"), theirs).convert("RGB")
    return np.asarray(ours, dtype=int), np.asarray(theirs, dtype=int)


@pytest.mark.parametrize("name", [*FIRST, *LATE])
def test_the_pipeline_draws_by_the_call_what_an_evaluation_draws(tiny: Any, name: str) -> None:
    policy = policy_of(tiny, EVERY[name])
    pictures: list[np.ndarray] = []
    for guidance in (1.0, 3.0):
        ours, theirs = drawn_both_ways(policy, guidance)
        alike = name in ("sd3", "flux")
        call = call_of(policy, evaluation_plan(5, guidance=guidance))
        assert call is not None and call.sums_alike == alike
        assert np.abs(ours - theirs).max() <= (0 if alike else 1)
        pictures.append(ours)
    assert (pictures[0] != pictures[1]).any(), "guidance reaches the picture"


@pytest.mark.parametrize("name", OTHERWISE)
def test_no_call_is_given_where_the_pipeline_takes_other_steps(tiny: Any, name: str) -> None:
    assert pipeline_call(policy_of(tiny, CASES[name]), evaluation_plan(5)) is None


def test_no_call_is_given_for_what_arguments_cannot_say(tiny: Any) -> None:
    assert pipeline_call(policy_of(tiny, FIRST["sd3"], guidance_rule="zero_star"), evaluation_plan(5)) is None
    assert pipeline_call(policy_of(tiny, FIRST["sd3"]), evaluation_plan(5, guidance=0.5)) is None


LEVEL, GUIDANCE, TRAINED = 0.7, 3.0, 2


@dataclass
class Forwards:
    """What a UNet was shown and what it answered, forward by forward; `noise` is added to its answers."""

    noise: float = 0.0
    shown: list[Tensor] = field(default_factory=list[Tensor])
    answered: list[Tensor] = field(default_factory=list[Tensor])

    @contextmanager
    def of(self, policy: FlowPolicy):
        generator = torch.Generator().manual_seed(0)

        def note(module: Any, args: tuple[Any, ...], out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            noisy = out[0] + self.noise * torch.randn(out[0].shape, generator=generator)
            self.shown.append(args[0].double())
            self.answered.append(noisy.detach().double())
            return (noisy,)

        handle = policy.net.transformer.register_forward_hook(note)
        yield
        handle.remove()


def by_step(both: Tensor) -> Tensor:
    """A reading's one forward of both passes, (2 * rows * steps, ...), as (2, steps, rows, ...)."""
    return both.unflatten(0, (2, -1, TRAINED)).transpose(1, 2)


def means_per_output(sigmas: Tensor) -> Tensor:
    """By how much each step's mean moves with the network's prediction of noise, from DDIM's formula alone."""
    noise = sigmas / ((1 - sigmas) ** 2 + sigmas**2).sqrt()
    signal = (1 - noise**2).sqrt()
    std = LEVEL * noise[1:] / noise[:-1] * (1 - (signal[:-1] / signal[1:]) ** 2).clamp(min=0).sqrt()
    moved = (noise[1:] ** 2 - std**2).clamp(min=0).sqrt() - signal[1:] / signal[:-1] * noise[:-1]
    return moved / (signal[1:] + noise[1:])


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_the_unets_answer_alone_moves_a_log_probability(tiny, noise):
    """Its difference d between 8 rows and 16 moves the mean by m = c d, that the log-probability by z . m / S - |m / S|^2 / 2.

    d is what this machine rounds, about 1e-7, or far larger noise besides: nothing else is added but float32's own rounding.
    """
    policy = policy_of(tiny, CASES["sd15"], height=16, width=16, guidance=GUIDANCE)
    sampling, reading = Forwards(), Forwards(noise)
    with sampling.of(policy):
        rollouts = policy.rollout(requests(count=2), Full(num_steps=3, dynamics="ddim", level=LEVEL).at(0))
    trace: Any = rollouts.trace
    with reading.of(policy), torch.no_grad():
        found = policy.read(trace, [LOGPROBS, MEAN], rollouts.action_mask)
    shown, answered = (
        torch.stack([part.unflatten(0, (2, -1)) for part in parts[:TRAINED]], 1) for parts in (sampling.shown, sampling.answered)
    )
    assert torch.equal(by_step(reading.shown[0]), shown), "the network sees the same latents, bit for bit"
    without, with_prompt = by_step(reading.answered[0]) - answered
    assert noise or max(without.abs().max(), with_prompt.abs().max()) < 5e-6
    guided = without + GUIDANCE * (with_prompt - without)
    sigmas, deviations = (values.double() for values in (trace.sigma_tables[0].sigmas, trace.sigma_tables[0].deviations))
    for step, c in enumerate(means_per_output(sigmas)[:TRAINED]):
        std = deviations[step]
        noted = trace.latents[trace.means[:, step]].double()
        moved = found[MEAN][:, step] - noted
        assert (moved - c * guided[step]).abs().max() < 1e-5
        assert not noise or moved.abs().max() > 1e-3
        z = (trace.latents[trace.after[:, step]] - noted) / std
        expected = (z * moved / std - (moved / std) ** 2 / 2).flatten(1).mean(1)
        seen = (found[LOGPROBS] - rollouts.recorded[ROLLOUT_LOGPROBS])[:, step]
        assert (seen - expected).abs().max() < 1e-6


def test_few_steps_make_the_unets_rounding_count_thirty_times():
    """DDIM's step to the first time of the table has little noise S: c / S is 31 at three steps, 4 at the fifty of DDPO."""
    found = {
        steps: (means_per_output(table) / DDIM(LEVEL).deviation(table, torch.arange(steps))).abs()
        for steps in (3, 50)
        for table in [DiffusionTable().sigmas(DiffusionTable().grid(steps)).double()]
    }
    assert found[3].max() == pytest.approx(31.36, abs=0.01)
    assert found[50].max() == pytest.approx(4.00, abs=0.01)
    assert found[50].median() < 0.5
