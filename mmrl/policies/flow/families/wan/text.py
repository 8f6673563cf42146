"""Wan 2.1 and 2.2, text to video: UMT5's tokens with zeros after the prompt, and latents with a dimension of time."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmrl.policies.flow.families.base import Condition, Conditions, token_count
from mmrl.policies.flow.families.clips import ClipFamily
from mmrl.policies.flow.families.facts import EULER
from mmrl.policies.flow.families.wan.experts import Experts

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
FEED_FORWARD = ("ffn.net.0.proj", "ffn.net.2")


@dataclass(frozen=True)
class Wan(ClipFamily):
    """arXiv:2503.20314. Guidance 5 against the empty prompt. Latents are (n, c, f, h, w), f = (frames - 1) / 4 + 1.

    Wan 2.2 A14B has two networks, each with an adapter: one draws while the time is above `boundary_ratio`, the other one from
    there on; the usual guidance is 4, and policy.guidance_low = 3 below. Not supported: the negative prompt of Wan's own
    demonstration.
    """

    usual_guidance = 5.0
    usual_prompt_tokens = 512
    lora_targets = ATTENTION + FEED_FORWARD
    text_width = "text_dim"
    lists_steps = False
    networks = ("transformer", "transformer_2")
    schedulers = frozenset({EULER, "UniPCMultistepScheduler"})
    tasks = ("text to video", "text to image", "clips from a first frame (2.2 5B)")
    licence = "Apache-2.0"
    licence_read = "makers"

    @property
    def network(self) -> nn.Module:
        """The network, or both experts as one module."""
        found = list(self.trained.values())
        return found[0] if self.boundary is None else Experts(found[0], found[1], self.boundary)

    def split(self, network: nn.Module) -> dict[str, nn.Module]:
        return dict(
            zip(self.networks, [network.early, network.late] if isinstance(network, Experts) else [network], strict=False)
        )

    @property
    def boundary(self) -> float | None:
        # repositories of Wan 2.1 are older than both keys, and a dry run has only what their files say
        ratio = getattr(self.pipeline.config, "boundary_ratio", None)
        return None if ratio is None else ratio * self.pipeline.scheduler.config.num_train_timesteps

    @property
    def channels(self) -> int:
        return int(self.pipeline.vae.config.z_dim)

    @property
    def default_guidance(self) -> float:
        return self.usual_guidance if self.boundary is None else 4.0

    def encode(self, text: str, device: torch.device) -> Condition:
        embeds, _ = self.pipeline.encode_prompt(
            text, do_classifier_free_guidance=False, max_sequence_length=self.prompt_tokens, device=device
        )
        return {"embeds": embeds[0].cpu()}

    def count_tokens(self, text: str) -> tuple[int, int]:
        return token_count(self.pipeline.tokenizer, text), self.prompt_tokens

    def ask(self, transformer: nn.Module, x: Tensor, times: Tensor, prompts: Conditions, **more: Tensor) -> Tensor:
        return transformer(hidden_states=x, timestep=times, encoder_hidden_states=prompts["embeds"], return_dict=False, **more)[0]
