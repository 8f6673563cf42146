"""The demo's generator of sounds: tones that lie in their band and quarter, losses that fall, prompts as the pipeline's."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mmrl.data.drawn.sounds.tones import HELD_OUT, PITCHES, PLACES, RATE, TONES, TRAIN, Tones, draw
from mmrl.lab.tiny.flow import sound_generator
from mmrl.lab.tiny.flow.sound_generator import KIND, SoundStart, encode_captions, encode_waves

SHORT = SoundStart(name="test", pool=96, batch_size=8, vae_steps=20, steps=30, layers=1, width=32)


def test_every_pitch_and_place_is_held_out_once_and_a_tone_rings_as_asked():
    assert len(TRAIN) + len(HELD_OUT) == len(TONES) == 16
    assert sorted(tone.pitch for tone in HELD_OUT) == sorted(PITCHES) and sorted(tone.place for tone in HELD_OUT) == sorted(
        PLACES
    )
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
def test_latents_see_where_they_stand_before_anything_is_taught(monkeypatch: pytest.MonkeyPatch):
    """Of noise, the part that all rows share place by place, against the rest."""

    def seen() -> float:
        pipeline, n = KIND.build(SoundStart()), 256
        found: list[torch.Tensor] = []
        pipeline.transformer.transformer_blocks[0].register_forward_hook(lambda block, fed, out: found.append(out[:, -8:]))
        embeds, mask, length = (one.expand(n, *one.shape[1:]) for one in encode_captions(pipeline, [TONES[0].caption]))
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


def test_losses_fall(tmp_path: Path):
    losses: list[tuple[int, int, float]] = []
    folder = KIND.warm_start(SHORT, tmp_path / "model", lambda *told: losses.append(told))
    assert [step for step, _, _ in losses] == [*range(1, 51)]
    flow = [loss for _, _, loss in losses[20:]]
    assert np.mean(flow[-5:]) < 0.9 * np.mean(flow[:5])

    from diffusers import StableAudio3Pipeline  # type: ignore[reportPrivateImportUsage]

    pipeline = StableAudio3Pipeline.from_pretrained(folder)
    waves, captions = Tones().batch(np.random.default_rng(5), 64)
    latents = encode_waves(pipeline.vae, torch.from_numpy(waves)[:, None])
    assert latents.shape[1:] == (8, RATE // sound_generator.PATCH) and float(latents.std()) == pytest.approx(1, abs=0.3)
    with torch.no_grad():
        embeds, mask, _ = encode_captions(pipeline, [captions[0], ""])
        alone = pipeline.encode_prompt(captions[0], torch.device("cpu"), 1)[0]
    torch.testing.assert_close(embeds[:1, :-1], alone, atol=1e-5, rtol=0)
    assert mask.sum(1).tolist() == [10, 1], "nine tokens of text and the length; the length alone"
