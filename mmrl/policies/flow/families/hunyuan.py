"""HunyuanVideo 1.5: Qwen2.5-VL reads the prompt, ByT5 the words in quotes, SigLIP a first frame, which is channels too."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mmrl.policies.flow.families.base import ATTENTION, SOURCE, Condition, Conditions, Times, side_by_side
from mmrl.policies.flow.families.clips import SEEN, ClipFamily, FromFrame

QUOTED_TOKENS = 256
"""Bytes of words in quotes that its pipeline reads."""
SIGLIP_TOKENS = 729
"""Of a first frame, 27 x 27."""
FEED_FORWARD = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")


@dataclass(frozen=True)
class HunyuanVideo15(ClipFamily):
    """HunyuanVideo 1.5 Technical Report, 2025. Guidance 6, as its published guider has it, against the empty prompt.

    Its pipeline loads no adapters: its transformer does, by load_lora_adapter. Not supported: models that are given the next time
    too (use_meanflow), super-resolution.
    """

    usual_guidance = 6.0
    usual_prompt_tokens = 1000
    usual_fps = 24.0
    text_width = "text_embed_dim"
    lora_targets = ATTENTION + FEED_FORWARD
    dead_ends = ("attn.add_q_proj", "attn.to_add_out", "ff_context")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.config.use_meanflow:
            raise ValueError(
                f"policy.model {self.settings.model!r} is a HunyuanVideo 1.5 that is given the next time too (use_meanflow), "
                "which is not known here: take one without"
            )

    @property
    def channels(self) -> int:
        return int(self.pipeline.vae.config.latent_channels)

    def encode(self, text: str, device: torch.device) -> Condition:
        """The tokens of both readers without padding: the transformer gives them no places."""
        # No argument says how long.
        self.pipeline.tokenizer_max_length = self.prompt_tokens
        embeds, mask, quoted, quoted_mask = self.pipeline.encode_prompt(text, device=device)
        return {"embeds": embeds[0][mask[0].bool()].cpu(), "quoted": quoted[0][quoted_mask[0].bool()].cpu()}

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        return {**super().blank_condition(dtype), "quoted": torch.zeros(0, self.config.text_embed_2_dim, dtype=dtype)}

    def count_tokens(self, text: str) -> tuple[int, int]:
        """With the end of the template behind the prompt."""
        pipeline = self.pipeline
        turns = [{"role": "system", "content": pipeline.system_message}, {"role": "user", "content": text or " "}]
        ids = pipeline.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=True).input_ids
        return len(ids) - pipeline.prompt_template_encode_start_idx, self.prompt_tokens

    def collate(self, conditions: Sequence[Condition], full: bool) -> dict[str, Tensor]:
        """Padded at their ends, with masks that are True at tokens."""
        found: dict[str, Tensor] = {}
        for name, most in (("embeds", self.prompt_tokens), ("quoted", QUOTED_TOKENS)):
            padded, mask = side_by_side([one[name] for one in conditions], most if full else None)
            found |= {name: padded, f"{name}_mask": mask}
        return found | {name: torch.stack([one[name] for one in conditions]) for name in (SOURCE, SEEN) if name in conditions[0]}

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        """Without a picture its channels are empty, and one token of zeros stands for what is seen of it."""
        embeds = prompts["embeds"]
        frame = prompts.get(SOURCE, x.new_zeros(len(x), x.shape[1] + 1, *x.shape[2:]))
        seen = prompts.get(SEEN, embeds.new_zeros(len(x), 1, self.config.image_embed_dim))
        return transformer(
            hidden_states=torch.cat([x, frame.to(x)], 1),
            timestep=timesteps,
            encoder_hidden_states=embeds,
            encoder_attention_mask=prompts["embeds_mask"],
            encoder_hidden_states_2=prompts["quoted"],
            encoder_attention_mask_2=prompts["quoted_mask"],
            image_embeds=seen.to(embeds),
            return_dict=False,
        )[0]

    def normalize(self, latents: Float[Tensor, "n c f h w"]) -> Float[Tensor, "n c f h w"]:
        return latents * self.pipeline.vae.config.scaling_factor

    def decode(self, latents: Float[Tensor, "n c f h w"]) -> Float[Tensor, "n 3 frames y x"]:
        """One by one: the attention of its autoencoder takes a single clip."""
        vae = self.pipeline.vae
        return torch.cat([vae.decode(one[None] / vae.config.scaling_factor, return_dict=False)[0] for one in latents])


@dataclass(frozen=True)
class HunyuanVideo15Image(FromFrame, HunyuanVideo15):
    """The same from a first frame: its latent and a mask, 1 in the first frame, follow the noise's, and SigLIP's view the words.

    The picture has the clip's size; its pipeline takes the nearest shape of about the size that the model was made for.
    """

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        (picture,) = pictures
        frame = torch.zeros(self.channels + 1, *self.latent_shape[1:])
        frame[:-1, :1], frame[-1, 0] = self.latents_of_frame(picture), 1
        seen = self.pipeline.encode_image(picture, 1, device, self.pipeline.image_encoder.dtype)[0].cpu()
        return {**self.encode(text, device), SOURCE: frame, SEEN: seen}

    def blank_sources(self, count: int) -> Condition:
        """Its view is of ones, since zeros stand for no picture."""
        frame = torch.zeros(self.channels + 1, *self.latent_shape[1:])
        return {SOURCE: frame, SEEN: torch.ones(SIGLIP_TOKENS, self.config.image_embed_dim)}
