"""LTX-2: a clip and its sound, drawn together as one vector; all layers of Gemma 3 as text, through two small connectors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import pad

from mmrl.policies.flow.families.base import SOURCE, Condition, Conditions, Index, Times, moments, token_count
from mmrl.policies.flow.families.clips import FirstLatent
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.runtime.pretrained import REMEDY

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
FEED_FORWARD = tuple(f"{which}.net.{layer}" for which in ("ff", "audio_ff") for layer in ("0.proj", "2"))
READER = "Gemma3ForConditionalGeneration"
PER_LATENT = 4
"""Frames of the spectrogram, and its bands, per latent of the sound."""
SOUND_GUIDANCE = 7.0


def samples_of(vocoder: Mapping[str, Any], frames: float) -> float:
    """Samples a second of a vocoder for this number of frames; that of LTX-2.3 takes the spectrum of its own sound again."""
    if "bwe_upsample_factors" not in vocoder:
        return frames * math.prod(vocoder["upsample_factors"])
    return vocoder["input_sampling_rate"] / vocoder["hop_length"] * math.prod(vocoder["bwe_upsample_factors"])


@dataclass(frozen=True)
class LTX2(FirstLatent):
    """x = (clip, sound): latents (c, f, h, w) and (c, l, bands) end to end, the clip first, one noise and one density for both.

    A log-probability is the mean of the clip's and the sound's own means: the sound is some 2% of the vector at 512 x 768 pixels.
    Each part has its own guidance: policy.guidance, policy.guidance_sound. A prompt may hold the clip's first frame; the sound's
    tokens all have the rows' time. Its pipeline compresses that picture as a frame of H.264 first; what comes out depends on the
    number of CPU cores. Not supported: what its pipeline's usual call adds to guidance (away from skipped layers and from parted
    media, rescaling), LTX-2.5, upsampling.
    """

    usual_guidance = 3.0
    usual_prompt_tokens = 1024
    lora_targets = ATTENTION + FEED_FORWARD
    left_out = frozenset({"prompt_enhancer", "duration_head"})
    told_by = ("audio_vae", "vocoder", "connectors")
    sound_beside = True
    sources = (0, 1)
    usual_fps = 24.0

    @classmethod
    def refuse(cls, index: Index, settings: FlowPolicyConfig) -> None:
        super().refuse(index, settings)
        for part in ("audio_vae", "vocoder", "connectors"):
            if index.get(part, [None, None]) == [None, None]:
                raise ValueError(
                    f"policy.model {settings.model!r} has no part {part!r}, without which LTX-2 draws no sound: take the "
                    "folder of a whole pipeline"
                )
        if (reader := index["text_encoder"][1]) != READER:
            raise ValueError(
                f"policy.model {settings.model!r} reads prompts with {reader}, as LTX-2.5 does, which is not known here: take an "
                "LTX-2 or 2.3, which read with Gemma 3"
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        each = self.pipeline.connectors.config
        for count in (each.video_connector_num_learnable_registers, each.audio_connector_num_learnable_registers):
            if count and self.prompt_tokens % count:
                raise ValueError(
                    f"policy.max_prompt_tokens is {self.prompt_tokens}, but this model fills prompts with {count} tokens of its "
                    f"own: take a multiple of {count}"
                )
        vocoder = self.pipeline.vocoder.config
        if self.rate is not None and self.rate != (makes := samples_of(vocoder, self._frame_rate)):
            raise ValueError(
                f"policy.model {self.settings.model!r}: its vocoder's config says {self.rate} samples a second, and its layers "
                f"make {makes:g} of them: {REMEDY}"
            )
        if self.length < 1:
            raise ValueError(
                f"policy.frames at policy.fps last {self.seconds:g} s, which is no latent of sound: draw more frames, or fewer a "
                "second"
            )

    @property
    def seconds(self) -> float:
        """The length of clip and sound."""
        return self.settings.frames / self.fps

    @property
    def rate(self) -> int | None:
        return int(self.pipeline.vocoder.config.output_sampling_rate) if self.settings.sound else None

    @property
    def length(self) -> int:
        """Latents of the sound in time."""
        return round(self.seconds * (self._frame_rate / PER_LATENT))

    @property
    def sound_shape(self) -> tuple[int, ...]:
        config = self.pipeline.audio_vae.config
        return int(config.latent_channels), self.length, int(config.mel_bins) // PER_LATENT

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (sum(self.part_sizes),)

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """The clip's and the sound's."""
        return math.prod(self.clip_shape), math.prod(self.sound_shape)

    @property
    def image_tokens(self) -> int:
        """The clip's: by them its pipeline shifts the steps of both."""
        return math.prod(self.clip_shape[1:])

    def parts(self, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n c f h w"], Float[Tensor, "n k l bands"]]:
        """The clip and the sound of a vector."""
        clip, sound = x.split(list(self.part_sizes), 1)
        return clip.unflatten(1, self.clip_shape), sound.unflatten(1, self.sound_shape)

    def join(self, clip: Tensor, sound: Tensor) -> Float[Tensor, "n d"]:
        return torch.cat([clip.flatten(1), sound.flatten(1)], 1)

    def encode(self, text: str, device: torch.device) -> Condition:
        """The prompt out of both connectors, for the clip and for the sound, and the mask of tokens."""
        pipeline = self.pipeline
        embeds, mask, *_ = pipeline.encode_prompt(
            text, do_classifier_free_guidance=False, max_sequence_length=self.prompt_tokens, device=device
        )
        clip, sound, mask = pipeline.connectors(embeds, mask, padding_side=pipeline.tokenizer.padding_side)
        return {"embeds": clip[0].cpu(), "sound": sound[0].cpu(), "mask": mask[0].cpu()}

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        config, tokens = self.pipeline.connectors.config, self.prompt_tokens
        clip, sound = (
            config[f"{which}_connector_num_attention_heads"] * config[f"{which}_connector_attention_head_dim"]
            for which in ("video", "audio")
        )
        mask = torch.ones(tokens, dtype=torch.long)
        return {"embeds": torch.zeros(tokens, clip, dtype=dtype), "sound": torch.zeros(tokens, sound, dtype=dtype), "mask": mask}

    def count_tokens(self, text: str) -> tuple[int, int]:
        return token_count(self.pipeline.tokenizer, text.strip()), self.prompt_tokens

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        from diffusers.pipelines.ltx2.utils import apply_image_conditioning_crf, resolve_default_image_crf

        crf = resolve_default_image_crf(self.pipeline.text_encoder)
        frames = [Image.fromarray(apply_image_conditioning_crf(np.array(one.convert("RGB")), crf)) for one in pictures]
        return super().encode_with(text, frames, device)

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        if SOURCE not in prompts:
            return self.ask(transformer, x, timesteps, prompts, sigma=timesteps)
        (clip, sound), first = self.parts(x), prompts[SOURCE].to(x)
        shown = self.join(torch.cat([first, clip[:, :, 1:]], 2), sound)
        out = self.ask(transformer, shown, self.times(timesteps), prompts, sigma=timesteps, audio_timestep=timesteps)
        moved, heard = self.parts(out)
        return self.join(self.to_first(clip, first, moved, timesteps), heard)

    def ask(self, transformer: nn.Module, x: Tensor, times: Tensor, prompts: Conditions, **more: Tensor) -> Tensor:
        clip, sound = self.parts(x)
        _, frames, height, width = self.clip_shape
        moved, heard = transformer(
            hidden_states=clip.flatten(2).transpose(1, 2),
            audio_hidden_states=sound.transpose(1, 2).flatten(2),
            encoder_hidden_states=prompts["embeds"],
            audio_encoder_hidden_states=prompts["sound"],
            timestep=times,
            encoder_attention_mask=prompts["mask"],
            audio_encoder_attention_mask=prompts["mask"],
            num_frames=frames,
            height=height,
            width=width,
            fps=self.fps,
            audio_num_frames=self.length,
            use_cross_timestep=True,
            return_dict=False,
            **more,
        )
        return self.join(moved.transpose(1, 2), heard.unflatten(2, self._bands).transpose(1, 2))

    def guide(self, conditional: Tensor, unconditional: Tensor, scale: float, timesteps: Times) -> Float[Tensor, "n d"]:
        """Clip and sound by their own scales, each by policy.guidance_rule."""
        own = SOUND_GUIDANCE if self.settings.guidance_sound is None else self.settings.guidance_sound
        pairs = zip(self.parts(conditional), self.parts(unconditional), (scale, own), strict=True)
        return self.join(*(super(LTX2, self).guide(c, u, by, timesteps) for c, u, by in pairs))

    def decode(self, latents: Float[Tensor, "n d"]) -> Float[Tensor, "n 3 frames y x"]:
        vae, (clip, _) = self.pipeline.vae, self.parts(latents)
        mean, std = moments(vae, clip)
        time = torch.zeros(len(clip)).to(clip) if vae.config.timestep_conditioning else None
        return vae.decode(clip * std / vae.config.scaling_factor + mean, time, return_dict=False)[0]

    def sound_of(self, latents: Float[Tensor, "n d"]) -> Float[Tensor, "n channels samples"] | None:
        """Waves as long as the clip: the vocoder's, which end some 30 ms before it, and silence."""
        if self.rate is None:
            return None
        vae, (_, sound) = self.pipeline.audio_vae, self.parts(latents.to(self.pipeline.audio_vae.dtype))
        tokens = sound.transpose(1, 2).flatten(2) * vae.latents_std.to(sound) + vae.latents_mean.to(sound)
        drawn = vae.decode(tokens.unflatten(2, self._bands).transpose(1, 2), return_dict=False)[0]
        waves, wanted = self.pipeline.vocoder(drawn), int(self.seconds * self.rate)
        return pad(waves, (0, max(0, wanted - waves.shape[-1])))[..., :wanted]

    @property
    def _frame_rate(self) -> float:
        """Frames of the spectrogram a second."""
        config = self.pipeline.audio_vae.config
        return config.sample_rate / config.mel_hop_length

    @property
    def _bands(self) -> tuple[int, int]:
        """Channels and bands, which a token of the sound holds."""
        channels, _, bands = self.sound_shape
        return channels, bands


@dataclass(frozen=True)
class LTX2Image(LTX2):
    """LTX-2 saved as its pipeline from a first frame, which every prompt holds."""

    sources = (1, 1)
