"""The demos' generators of pictures, edits, clips and sounds: real classes, falling losses, prompts as pipelines read them."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from PIL import Image

from mmrl.core.types import Prompt, Request
from mmrl.data.drawn import shape_edits
from mmrl.data.drawn.gliding import Glides
from mmrl.data.drawn.shapes import Sketches, to_bytes
from mmrl.data.drawn.sounds.tones import HELD_OUT, PITCHES, PLACES, RATE, TONES, TRAIN, Tones, draw
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.lab.tiny.flow import clip_generator, editor, generator, sound_generator
from mmrl.lab.tiny.flow.clip_generator import ClipStart
from mmrl.lab.tiny.flow.editor import EditorStart
from mmrl.lab.tiny.flow.generator import KIND, WarmStart
from mmrl.lab.tiny.flow.sound_generator import SoundStart
from mmrl.lab.tiny.teaching import PipelineKind
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig

SHORT = WarmStart(data=Sketches(), name="test", pool=128, batch_size=16, vae_steps=150, steps=40, layers=2, heads=2)
EDITS = replace(EditorStart(), name="test", pool=128, batch_size=16, vae_steps=100, steps=40, layers=1, heads=2)
CLIPS = ClipStart(Glides(), name="test", pool=96, batch_size=8, vae_steps=12, vae_batch_size=4, vae_pool=64, steps=30, layers=1)
SOUNDS = SoundStart(name="test", pool=96, batch_size=8, vae_steps=20, steps=30, layers=1, width=32)
STARTS: dict[str, tuple[Any, Any]] = {
    "pictures": (generator.KIND, SHORT),
    "edits": (editor.KIND, EDITS),
    "clips": (clip_generator.KIND, CLIPS),
    "sounds": (sound_generator.KIND, SOUNDS),
}


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """What is drawn -> the folder of its generator after a short start, and the (step, steps, loss) that it told."""

    @cache
    def of(name):
        (kind, short), losses = STARTS[name], []
        folder = tmp_path_factory.mktemp(name) / "short"
        return kind.warm_start(short, folder, lambda *told: losses.append(told)), losses

    return of


@pytest.fixture(scope="module")
def pipeline_of(taught):
    @cache
    def of(name) -> Any:
        absent = {"text_encoder_3": None, "tokenizer_3": None} if name == "pictures" else {}
        loaded = DiffusionPipeline.from_pretrained(taught(name)[0], **absent)
        loaded.set_progress_bar_config(disable=True)
        return loaded

    return of


@pytest.mark.parametrize(
    ("name", "shares"), [("pictures", (0.6, 0.8)), ("edits", (0.6, 0.9)), ("clips", (0.9,)), ("sounds", (0.9,))]
)
def test_losses_fall(taught, name, shares):
    """Of the network, and before it of an autoencoder that knows little untaught."""
    _, losses = taught(name)
    first = STARTS[name][1].vae_steps
    total = first + STARTS[name][1].steps
    assert [step for step, _, _ in losses] == [*range(1, total + 1)] and {steps for _, steps, _ in losses} == {total}
    values = [loss for _, _, loss in losses]
    for share, part in zip(reversed(shares), (values[first:], values[:first]), strict=False):
        assert np.mean(part[-5:]) < share * np.mean(part[:5])


READ: dict[str, tuple[list[str], Any, Any, float]] = {
    "pictures": (
        ["a red circle on the left", "a blue square on the top", ""],
        generator.encode_captions,
        lambda own, texts: own.encode_prompt(texts, None, None, do_classifier_free_guidance=False, max_sequence_length=0)[::2],
        1e-5,
    ),
    "edits": (
        ["make it blue", "move it to the top", ""],
        editor.encode_texts,
        lambda own, texts: own.encode_prompt(texts, None, max_sequence_length=EDITS.max_tokens)[:2],
        1e-5,
    ),
    "clips": (
        ["a red circle moves left", ""],
        lambda own, texts: [clip_generator.encode_captions(own, texts, 8)],
        lambda own, texts: own.encode_prompt(texts, do_classifier_free_guidance=False, max_sequence_length=8)[:1],
        1e-6,
    ),
}
"""What is drawn -> texts, their embeddings as the demo and as the pipeline makes them, and how far these are apart."""


@pytest.mark.parametrize("name", READ)
@torch.no_grad()
def test_texts_are_read_as_the_pipeline_reads_them(pipeline_of, name):
    texts, read, expected, bound = READ[name]
    found = read(pipeline_of(name), texts)
    for ours, theirs in zip(found, expected(pipeline_of(name), texts), strict=True):
        torch.testing.assert_close(ours, theirs, atol=bound, rtol=0)
    assert (found[0][0] - found[0][1]).abs().max() > 0.1


def test_words_are_single_tokens_after_reloading(pipeline_of):
    tokens = pipeline_of("pictures").tokenizer("a yellow triangle on the bottom").input_ids
    assert len(tokens) == len(set(tokens)) == 8
    assert len(pipeline_of("edits").tokenizer_2("make the background dark").input_ids) == 5
    assert len(pipeline_of("clips").tokenizer("a red circle moves left").input_ids) == 6


def test_pipelines_have_the_real_classes(pipeline_of):
    pipeline = pipeline_of("pictures")
    encoders = (pipeline.text_encoder, pipeline.text_encoder_2)
    parts = (pipeline.vae, pipeline.transformer, *encoders, pipeline_of("edits"), pipeline_of("clips"), pipeline_of("sounds"))
    assert [type(one).__name__ for one in parts] == [
        *("AutoencoderTiny", "SD3Transformer2DModel", *["CLIPTextModelWithProjection"] * 2),
        *("FluxKontextPipeline", "WanPipeline", "StableAudio3Pipeline"),
    ]
    first, second = (encoder.get_input_embeddings().weight for encoder in encoders)
    assert not torch.equal(first, second)
    assert (pipeline.vae_scale_factor, pipeline_of("edits").vae_scale_factor) == (4, 8)


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (lambda: WarmStart(data=Sketches(side=40)), "40 x 40 pixels cannot be cut into tokens of 16"),
        (
            lambda: ClipStart(Glides(frames=4)),
            "clips of 4 frames of 32 pixels cannot be cut into latents of 2 frames and 8 pixels",
        ),
    ],
    ids=["pictures", "clips"],
)
def test_a_size_that_cannot_be_cut_is_refused(start, told):
    with pytest.raises(ValueError, match=told):
        start()


@torch.no_grad()
def test_latents_of_pictures_are_standard_and_decode_to_the_picture(pipeline_of):
    pictures, _ = Sketches().batch(np.random.default_rng(5), 64)
    images, vae = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1, pipeline_of("pictures").vae
    latents = generator.encode_images(vae, images)
    assert latents.shape == (64, 4, 8, 8)
    assert latents.mean() == pytest.approx(0, abs=0.2) and latents.std() == pytest.approx(1, abs=0.2)
    decoded = vae.decode(latents / vae.config.scaling_factor + vae.config.shift_factor).sample
    assert (decoded - images).square().mean() < 0.5 * (images - images.mean(0)).square().mean()


def test_the_policy_draws_pictures_with_it(taught):
    policy = FlowPolicy(FlowPolicyConfig(str(taught("pictures")[0]), height=32, width=32, guidance=1.0, max_prompt_tokens=0))
    request = Request(Prompt("p", "a red circle on the left"), 2, 0, seed=3)
    (group,) = policy.rollout([request], evaluation_plan(3)).groups
    assert [sample.image.size for sample in group.samples] == [(32, 32)] * 2
    assert len({sample.image.tobytes() for sample in group.samples}) == 2


def test_same_settings_same_weights_and_the_cache_is_used(taught, tmp_path, monkeypatch):
    few, made = replace(SHORT, vae_steps=2, steps=2), []
    for _ in range(2):
        made.append(KIND.build(few))
        KIND.teach(made[-1], few)
        torch.rand(7)
    for part in ("vae", "transformer", "text_encoder", "text_encoder_2"):
        one, other = (getattr(pipeline, part).state_dict() for pipeline in made)
        assert all(torch.equal(one[name], other[name]) for name in one)
    monkeypatch.setattr(PipelineKind, "build", lambda *_: pytest.fail("it was built again"))
    folder, _ = taught("pictures")
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
    others = (replace(SHORT, seed=1), replace(SHORT, data=Sketches(confused=0.1)), replace(SHORT, data=Other()))
    assert len({KIND.fingerprint(settings) for settings in (SHORT, *others)}) == 4
    assert KIND.fingerprint(replace(SHORT)) == KIND.fingerprint(SHORT)


def test_the_policy_edits_as_the_pipeline_does(taught, pipeline_of):
    folder, tokens = str(taught("edits")[0]), EDITS.max_tokens
    policy = FlowPolicy(FlowPolicyConfig(folder, height=32, width=32, guidance=1.0, max_prompt_tokens=tokens))
    jitter = shape_edits.jitter_of(np.random.default_rng(0))
    source = Image.fromarray(to_bytes(shape_edits.draw(shape_edits.TRAIN[0].state, jitter, 32)))
    (group,) = policy.rollout([Request(Prompt("p", "make it blue", (source,)), 1, 0, seed=3)], evaluation_plan(4)).groups
    own = pipeline_of("edits")(
        prompt="make it blue",
        image=source,
        height=32,
        width=32,
        max_area=32 * 32,
        _auto_resize=False,
        num_inference_steps=4,
        max_sequence_length=tokens,
        generator=generator_of(3, 0, 0),
    ).images[0]
    assert np.abs(np.asarray(group.samples[0].image, int) - np.asarray(own, int)).max() <= 1


def test_edits_have_the_faults_that_they_are_said_to_have():
    (sources, texts, targets), wrong = (
        shape_edits.Edits(confused=share, stained=0.0).triples(np.random.default_rng(0), 64) for share in (0.0, 1.0)
    )
    assert sources.shape == targets.shape == (64, 32, 32, 3)
    assert set(texts) <= {task.instruction.text for task in shape_edits.TRAIN}
    assert all((one != other).any() for one, other in zip(sources, targets, strict=True))
    assert wrong[1] == texts and not np.array_equal(wrong[2], targets)


def clips(count: int) -> torch.Tensor:
    drawn, _ = Glides(flickering=0.0).batch(np.random.default_rng(5), count)
    return torch.from_numpy(drawn).permute(0, 4, 1, 2, 3).float() / 127.5 - 1


@torch.no_grad()
def test_an_untaught_autoencoder_hands_on_a_smaller_clip():
    """Random weights have an error of 0.7; the variance of these clips is 0.2."""
    vae, shown = clip_generator.KIND.build(CLIPS).vae, clips(8)
    z = vae.encode(shown).latent_dist.mode()
    decoded, beyond = vae.decode(z).sample, clip_generator.decode_beyond(vae, z)
    assert z.shape == (8, 12, 3, 4, 4) and decoded.shape == shown.shape
    assert float((decoded - shown).square().mean()) < 0.1
    torch.testing.assert_close(beyond.clamp(-1, 1), decoded, atol=1e-6, rtol=0)
    # the three latent frames follow the shape: the clip backwards is another one
    assert float((decoded.flip(2) - shown).square().mean()) > 2 * float((decoded - shown).square().mean())


def test_latents_of_clips_are_about_standard(pipeline_of):
    latents = clip_generator.encode_clips(pipeline_of("clips").vae, clips(32))
    assert float(latents.mean()) == pytest.approx(0, abs=0.5) and float(latents.std()) == pytest.approx(1, abs=0.5)


def test_every_pitch_and_place_is_held_out_once_and_a_tone_rings_as_asked():
    assert len(TRAIN) + len(HELD_OUT) == len(TONES) == 16
    assert sorted(tone.pitch for tone in HELD_OUT) == sorted(PITCHES)
    assert sorted(tone.place for tone in HELD_OUT) == sorted(PLACES)
    for tone in TONES:
        wave, (start, end) = draw(tone, np.random.default_rng(0)), tone.span
        inside = slice(round(start * RATE), round(end * RATE))
        assert np.square(wave[inside]).sum() == pytest.approx(np.square(wave).sum()) and len(wave) == RATE
        power, at = np.abs(np.fft.rfft(wave)) ** 2, np.fft.rfftfreq(len(wave), 1 / RATE)
        assert power[(tone.band[0] <= at) & (at < tone.band[1])].sum() > 0.97 * power.sum()
    drawn = [draw(TONES[0], np.random.default_rng(seed), ringing=True) for seed in range(20)]
    assert np.mean([np.square(wave[RATE // 4 :]).sum() > 0 for wave in drawn]) > 0.8


def test_tones_of_a_caption_do_not_cancel():
    """Else only the spread of sounds would tell of place, and a small model would not learn it."""
    waves = np.stack([draw(TONES[5], np.random.default_rng(seed)) for seed in range(64)])
    assert np.square(waves.mean(0)).sum() > 0.6 * np.square(waves).sum(1).mean()


@torch.no_grad()
def test_latents_of_sounds_see_where_they_stand_before_anything_is_taught(monkeypatch: pytest.MonkeyPatch):
    """Of noise, the part that all rows share place by place, against the rest."""

    def seen() -> float:
        pipeline, n = sound_generator.KIND.build(SoundStart()), 256
        found: list[torch.Tensor] = []
        pipeline.transformer.transformer_blocks[0].register_forward_hook(lambda block, fed, out: found.append(out[:, -8:]))
        read = sound_generator.encode_captions(pipeline, [TONES[0].caption])
        embeds, mask, length = (one.expand(n, *one.shape[1:]) for one in read)
        noise = torch.randn(n, 8, 8, generator=torch.Generator().manual_seed(0))
        pipeline.transformer(noise, torch.ones(n), embeds, length, mask)
        mean = found[0].mean(0)
        return float((mean - mean.mean(0)).square().mean() / (found[0] - mean).square().mean())

    assert seen() > 0.03
    monkeypatch.setattr(sound_generator, "raise_places", lambda transformer: None)
    assert seen() < 0.01


def test_bad_captions_are_as_many_as_said():
    _, right = Tones(confused=0.0).batch(np.random.default_rng(3), 400)
    assert set(right) == {tone.caption for tone in TRAIN}
    clean, _ = Tones(ringing=0.0).batch(np.random.default_rng(3), 50)
    assert max(np.count_nonzero(wave) for wave in clean) <= RATE / 4


@torch.no_grad()
def test_latents_of_sounds_are_standard_and_captions_end_with_the_length(pipeline_of):
    pipeline = pipeline_of("sounds")
    waves, captions = Tones().batch(np.random.default_rng(5), 64)
    latents = sound_generator.encode_waves(pipeline.vae, torch.from_numpy(waves)[:, None])
    assert latents.shape[1:] == (8, RATE // sound_generator.PATCH) and float(latents.std()) == pytest.approx(1, abs=0.3)
    embeds, mask, _ = sound_generator.encode_captions(pipeline, [captions[0], ""])
    alone = pipeline.encode_prompt(captions[0], torch.device("cpu"), 1)[0]
    torch.testing.assert_close(embeds[:1, :-1], alone, atol=1e-5, rtol=0)
    assert mask.sum(1).tolist() == [10, 1], "nine tokens of text and the length; the length alone"
