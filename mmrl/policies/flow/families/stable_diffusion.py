"""Stable Diffusion 1.5 and XL as flows: with x = x_vp / (a + s) and sigma = s / (a + s), the step of DDIM is Euler's."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmrl.flow.path import like_batch
from mmrl.flow.plan import RolloutPlan
from mmrl.flow.sigmas import DiffusionTable, Spacing, table_of
from mmrl.policies.flow.families.base import Condition, Conditions, FlowFamily, Times, moments, token_count

PREDICTIONS = ("epsilon", "v_prediction")


@dataclass(frozen=True)
class StableDiffusion(FlowFamily):
    """velocity = noise - data of a UNet that predicts noise or v (arXiv:2112.10752): a and s are its noise schedule's.

    Densities in x and in x_vp differ by a constant, so ratios are those of DDPO. Guidance 5 as in DDPO (arXiv:2305.13301).
    Not loaded: the safety checker. Not supported: zero terminal signal, inpainting models.
    """

    networks = ("unet",)
    schedulers = frozenset({"DDIMScheduler", "PNDMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler"})
    left_out = frozenset({"safety_checker"})
    usual_guidance = 5.0
    usual_prompt_tokens = 77
    lora_targets = ("to_q", "to_k", "to_v", "to_out.0")
    packed = False
    side_of_token = 1

    @classmethod
    def refuse_scheduler(cls, name: str, config: Mapping[str, object]) -> None:
        table_of(config)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.config.in_channels != self.config.out_channels:
            raise ValueError(
                f"policy.model {self.settings.model!r} takes {self.config.in_channels} channels and gives "
                f"{self.config.out_channels}, as models for inpainting do: take one that draws from text"
            )
        prediction = self.pipeline.scheduler.config["prediction_type"]
        if prediction not in PREDICTIONS:
            raise ValueError(
                f"policy.model {self.settings.model!r} predicts {prediction!r}: take a model that predicts "
                f"{' or '.join(PREDICTIONS)}"
            )

    @property
    def shift(self) -> float:
        """None: its pipelines know of none, whatever the autoencoder's config says."""
        return 0.0

    def spacing(self) -> Spacing:
        return self.table

    @property
    def table(self) -> DiffusionTable:
        """The noise levels that the model was trained at."""
        return table_of(self.pipeline.scheduler.config)

    def check_plan(self, plan: RolloutPlan) -> None:
        if plan.spacing is not None and not isinstance(plan.spacing, DiffusionTable):
            raise ValueError(
                f"schedule.spacing is {type(plan.spacing).__name__}, but {type(self).__name__} knows the noise levels of its own "
                'table alone: set schedule.spacing = { kind = "DiffusionTable" }'
            )
        if plan.truncated_timesteps:
            raise ValueError(
                f"schedule.truncated_timesteps would tell {type(self).__name__}, whose times are whole, wrong noise levels: "
                "leave it out"
            )

    def start(self, noise: Float[Tensor, "n ..."], sigma: float) -> Float[Tensor, "n ..."]:
        return noise * root_of_squares(sigma)

    def finish(self, latents: Float[Tensor, "n ..."], sigma: float) -> Float[Tensor, "n ..."]:
        return latents / root_of_squares(sigma)

    def encode(self, text: str, device: torch.device) -> Condition:
        embeds, _ = self.pipeline.encode_prompt(text, device, 1, False)
        return {"embeds": embeds[0].cpu()}

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        tokens = self.pipeline.encoder_configs["text_encoder"].max_position_embeddings
        return {"embeds": torch.zeros(tokens, self.config.cross_attention_dim, dtype=dtype)}

    def count_tokens(self, text: str) -> tuple[int, int]:
        return token_count(self.pipeline.tokenizer, text), self.pipeline.tokenizer.model_max_length

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        sigma = timesteps / 1000
        norm = ((1 - sigma) ** 2 + sigma**2).sqrt()
        signal, noise_level, own = (like_batch(value, x) for value in ((1 - sigma) / norm, sigma / norm, norm))
        at_model = x / own
        out = transformer(
            at_model,
            self.table.times_of(sigma),
            encoder_hidden_states=prompts["embeds"],
            added_cond_kwargs=self._extra_inputs(prompts),
            return_dict=False,
        )[0].float()
        if self.pipeline.scheduler.config["prediction_type"] == "epsilon":
            return out - (at_model - noise_level * out) / signal
        return (signal * out + noise_level * at_model) - (signal * at_model - noise_level * out)

    def _extra_inputs(self, prompts: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Further inputs of the network."""
        return None


def root_of_squares(sigma: float) -> float:
    """1 / (a + s) at a sigma."""
    return ((1 - sigma) ** 2 + sigma**2) ** 0.5


@dataclass(frozen=True)
class StableDiffusionXL(StableDiffusion):
    """arXiv:2307.01952: two CLIP encoders, a summary and the size as further inputs; zeros stand for no prompt. No refiner."""

    def encode(self, text: str, device: torch.device) -> Condition:
        embeds, _, pooled, _ = self.pipeline.encode_prompt(text, device=device, do_classifier_free_guidance=False)
        found = {"embeds": embeds[0].cpu(), "pooled": pooled[0].cpu()}
        if text == self.empty_prompt and self.pipeline.config.force_zeros_for_empty_prompt:
            return {name: torch.zeros_like(value) for name, value in found.items()}
        return found

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        pooled = self.pipeline.encoder_configs["text_encoder_2"].projection_dim
        return {**super().blank_condition(dtype), "pooled": torch.zeros(pooled, dtype=dtype)}

    def _extra_inputs(self, prompts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The summary, and the size of a picture that was neither resized nor cropped."""
        pooled = prompts["pooled"]
        sizes = pooled.new_tensor([self.height, self.width, 0, 0, self.height, self.width])
        return {"text_embeds": pooled, "time_ids": sizes.expand(len(pooled), -1)}

    def normalize(self, latents: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        shift, spread = self._norm(latents)
        return super().normalize((latents - shift) / spread)

    def decode(self, latents: Float[Tensor, "n ..."]) -> Float[Tensor, "n 3 ..."]:
        shift, spread = self._norm(latents)
        return self.pipeline.vae.decode(latents * spread / self.pipeline.vae.config.scaling_factor + shift, return_dict=False)[0]

    def _norm(self, latents: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Mean and deviation by channel of latents, where the autoencoder says them; else 0 and 1."""
        config = self.pipeline.vae.config
        known = config.get("latents_mean") is not None and config.get("latents_std") is not None
        return moments(self.pipeline.vae, latents) if known else (0.0, 1.0)
