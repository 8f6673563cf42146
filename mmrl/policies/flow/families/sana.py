"""Sana, of pictures and of clips: Gemma-2 with an instruction before the prompt, DPM-Solver's table of times."""

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmrl.policies.flow.families.base import EULER, Condition, Conditions, FlowFamily, token_count
from mmrl.policies.flow.families.clips import ClipFamily, FirstLatent


@dataclass(frozen=True)
class Sana(FlowFamily):
    """arXiv:2410.10629. Guidance 4.5 against an empty prompt without the instruction; its pipeline's steps are `dpm2`.

    Not supported: the pipeline's binning of sizes, Sana-Sprint.
    """

    schedulers = frozenset({EULER, "DPMSolverMultistepScheduler"})
    usual_guidance = 4.5
    usual_prompt_tokens = 300
    lora_targets = ("to_q", "to_k", "to_v", "to_out.0")
    text_width = "caption_channels"
    packed = False
    side_of_token = 1

    @property
    def instruction(self) -> list[str]:
        """The words that the pipeline puts before a prompt."""
        return inspect.signature(type(self.pipeline).__call__).parameters["complex_human_instruction"].default

    def encode(self, text: str, device: torch.device) -> Condition:
        instruction = None if text == self.empty_prompt else self.instruction
        embeds, mask, _, _ = self.pipeline.encode_prompt(
            text,
            do_classifier_free_guidance=False,
            device=device,
            max_sequence_length=self.prompt_tokens,
            complex_human_instruction=instruction,
        )
        return {"embeds": embeds[0].cpu(), "mask": mask[0].cpu()}

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        blank = super().blank_condition(dtype)
        return {**blank, "mask": torch.ones(len(blank["embeds"]), dtype=torch.long)}

    def count_tokens(self, text: str) -> tuple[int, int]:
        return token_count(self.pipeline.tokenizer, text.lower().strip()), self.prompt_tokens

    def ask(self, transformer: nn.Module, x: Tensor, times: Tensor, prompts: Conditions, **more: Tensor) -> Tensor:
        """DPM-Solver's times are whole numbers."""
        whole = type(self.pipeline.scheduler).__name__ != EULER
        return transformer(
            x,
            encoder_hidden_states=prompts["embeds"],
            encoder_attention_mask=prompts["mask"],
            timestep=(times.to(torch.long) if whole else times) * self.config.get("timestep_scale", 1),
            return_dict=False,
        )[0]


@dataclass(frozen=True)
class SanaVideo(Sana, ClipFamily):
    """arXiv:2509.24695. Guidance 6; with the autoencoder of Wan 2.1 or of LTX-2.

    Not supported: the pipeline's binning of sizes, and the words on a motion score that its makers append to prompts.
    """

    usual_guidance = 6.0
    lists_steps = False

    @property
    def patch(self) -> int:
        return int(self.config.patch_size[1])


@dataclass(frozen=True)
class SanaVideoImage(FirstLatent, SanaVideo):
    """arXiv:2509.24695, from a first frame."""
