"""Z-Image: Qwen3's features without padding, lists instead of batches, time towards the data, a velocity that is turned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from mmrl.flow.sigmas import LinearShift, Spacing
from mmrl.policies.flow.families.base import Condition, FlowFamily, PipelineCall, token_count
from mmrl.runtime.tensors import to_device

LAYERS = ("attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0")
FEED_FORWARD = ("feed_forward.w1", "feed_forward.w2", "feed_forward.w3")


@dataclass(frozen=True)
class ZImage(FlowFamily):
    """arXiv:2511.22699. Guidance 5 is the pipeline's 4, which adds 4 times the difference; Turbo, known by its name, has 1.

    Not supported: the pipeline's cfg_normalization and cfg_truncation, which are off there too.
    """

    licence = "Apache-2.0"
    licence_read = "makers"
    usual_guidance = 5.0
    usual_prompt_tokens = 512
    lora_targets = LAYERS + FEED_FORWARD
    packed = False

    @property
    def default_guidance(self) -> float:
        return 1.0 if self.is_distilled else self.usual_guidance

    @property
    def is_distilled(self) -> bool:
        return "turbo" in str(self.pipeline.config._name_or_path).lower()

    def pipeline_call(self, guidance: float) -> PipelineCall | None:
        """The pipeline adds guidance_scale times the difference to the conditional velocity."""
        arguments = {"guidance_scale": guidance - 1, "max_sequence_length": self.prompt_tokens}
        return None if guidance < 1 else PipelineCall(arguments)

    def spacing(self) -> Spacing:
        """The pipeline lists its even steps in float32."""
        found = super().spacing()
        return replace(found, listed="float32") if isinstance(found, LinearShift) else found

    def encode(self, text: str, device: torch.device) -> Condition:
        # The pipeline writes the templates into the list that it is given.
        embeds, _ = self.pipeline.encode_prompt(
            [text], device=device, do_classifier_free_guidance=False, max_sequence_length=self.prompt_tokens
        )
        return {"embeds": embeds[0].cpu()}

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        return {"embeds": torch.zeros(max(1, self.prompt_tokens), self.config.cap_feat_dim, dtype=dtype)}

    def count_tokens(self, text: str) -> tuple[int, int]:
        """With the chat template around the prompt."""
        tokenizer, turns = self.pipeline.tokenizer, [{"role": "user", "content": text}]
        whole = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, enable_thinking=True)
        return token_count(tokenizer, whole), self.prompt_tokens

    def collate(self, conditions: Sequence[Condition], full: bool) -> dict[str, Tensor]:
        """Padded at the end, with the lengths; the transformer is given each text without its padding."""
        embeds = [condition["embeds"] for condition in conditions]
        lengths = torch.tensor([len(one) for one in embeds])
        return {"embeds": pad_sequence(embeds, batch_first=True), "lengths": to_device(lengths, embeds[0].device)}

    def velocity(
        self, transformer: nn.Module, x: Tensor, timesteps: Float[Tensor, " n"], prompts: Mapping[str, Tensor], guidance: float
    ) -> Tensor:
        texts = [text[:length] for text, length in zip(prompts["embeds"], prompts["lengths"].tolist(), strict=True)]
        # 1 - t / 1000 rounds differently, and the transformer multiplies by 1000 again.
        out = transformer(list(x[:, :, None].unbind(0)), (1000 - timesteps) / 1000, texts, return_dict=False)[0]
        return -torch.stack(list(out))[:, :, 0]
