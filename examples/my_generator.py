"""A family of generators of your own: AuraFlow, whose steps are its scheduler's and whose text encoder fills up with zeros.

Run it with `python examples/my_generator.py`: a tiny AuraFlow with random weights draws what its own pipeline draws, and its
log-probabilities are read again. In a config it is named by `policy.family = "./my_generator.py:AuraFlow"`.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers.models.transformers.auraflow_transformer_2d import AuraFlowTransformer2DModel
from diffusers.pipelines.aura_flow.pipeline_aura_flow import AuraFlowPipeline
from torch import Tensor
from transformers import UMT5Config, UMT5EncoderModel

from mmrl import Prompt
from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Request
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Full
from mmrl.flow.sigmas import Spacing, spacing_of
from mmrl.lab.tiny.flow.pipeline_parts import autoencoder, scheduler, t5_tokenizer
from mmrl.policies.flow.families.base import Condition, FlowFamily, token_count
from mmrl.policies.flow.loading import load
from mmrl.policies.flow.parts import FlowParts
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig


@dataclass(frozen=True)
class AuraFlow(FlowFamily):
    """AuraFlow: time from 1 to 0, latents as they are, 256 tokens whose padding is zeros; guidance 3.5."""

    usual_guidance = 3.5
    usual_prompt_tokens = 256
    lora_targets = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0")
    packed = False

    def spacing(self) -> Spacing:
        return spacing_of(self.pipeline.scheduler.config)

    def encode(self, text: str, device: torch.device) -> Condition:
        embeds = self.pipeline.encode_prompt(
            text, do_classifier_free_guidance=False, device=device, max_sequence_length=self.prompt_tokens
        )[0]
        return {"embeds": embeds[0].cpu()}

    def count_tokens(self, text: str) -> tuple[int, int]:
        return token_count(self.pipeline.tokenizer, text), self.prompt_tokens

    def velocity(self, transformer: Any, x: Tensor, timesteps: Tensor, prompts: Mapping[str, Tensor], guidance: float) -> Tensor:
        return transformer(x, encoder_hidden_states=prompts["embeds"], timestep=timesteps / 1000, return_dict=False)[0]

    def decode(self, latents: Tensor) -> Tensor:
        return self.pipeline.vae.decode(latents / self.pipeline.vae.config.scaling_factor, return_dict=False)[0]


def tiny_aura_flow(folder: Path) -> Path:
    tokenizer, sizes = t5_tokenizer(), dict(num_attention_heads=4, attention_head_dim=8, joint_attention_dim=32)
    blocks = dict(num_mmdit_layers=1, num_single_dit_layers=1, caption_projection_dim=32, sample_size=16, pos_embed_max_size=256)
    encoder = UMT5EncoderModel(UMT5Config(vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4))
    transformer = AuraFlowTransformer2DModel(in_channels=4, out_channels=4, **sizes, **blocks)
    AuraFlowPipeline(tokenizer, encoder, autoencoder(), transformer, scheduler(shift=1.73)).save_pretrained(folder)
    return folder


def main() -> None:
    torch.manual_seed(0)
    model = str(tiny_aura_flow(Path(tempfile.mkdtemp()) / "aura_flow"))
    config = FlowPolicyConfig(model, height=32, width=32, guidance=3.0, max_prompt_tokens=48)
    policy = FlowPolicy(config, parts=FlowParts(load=partial(load, own=AuraFlow)))
    request = Request(Prompt("cat", "a red cat"), count=2, group_id=0, seed=7)
    drawn = policy.rollout([request], evaluation_plan(4)).groups[0].samples[0].image
    size = dict(height=32, width=32, max_sequence_length=48)
    same = policy.pipeline("a red cat", generator=generator_of(7, 0, 0), num_inference_steps=4, guidance_scale=3.0, **size)
    assert max(abs(a - b) for a, b in zip(drawn.tobytes(), same.images[0].tobytes(), strict=True)) <= 1
    rollouts = policy.rollout([request], Full(num_steps=4).at(0))
    live = policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS]
    difference = ((live - rollouts.recorded[ROLLOUT_LOGPROBS]) * rollouts.action_mask).abs().max().item()
    assert difference < 1e-6, difference
    print(f"the pipeline's own picture; sampled and re-evaluated log-probabilities differ by at most {difference:.1e}")


if __name__ == "__main__":
    main()
