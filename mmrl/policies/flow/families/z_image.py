"""Z-Image and the older Lumina-Image 2: features without padding, time towards the data, a velocity that is turned."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from mmrl.flow.sigmas import LinearShift, Spacing
from mmrl.policies.flow.families.base import ONE_PASS, Condition, Conditions, FlowFamily, Times, side_by_side, token_count
from mmrl.policies.flow.sizes import Grid
from mmrl.runtime.tensors import to_device

LAYERS = ("attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0")
FEED_FORWARD = ("feed_forward.w1", "feed_forward.w2", "feed_forward.w3")


@dataclass(frozen=True)
class PositionTables(FlowFamily):
    """Common to Z-Image and Lumina 2: positions are looked up in tables, of texts, then of a picture's rows and columns."""

    text_width = "cap_feat_dim"
    guided_by = "guidance_scale"
    packed = False

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.config.axes_lens[0] - 1
        if self.text_positions(self.prompt_tokens) > most:
            fits = max(tokens for tokens in range(most + 1) if not tokens or self.text_positions(tokens) <= most)
            raise ValueError(
                f"policy.max_prompt_tokens is {self.prompt_tokens}, but this model has positions for {fits} tokens of text "
                f"(axes_lens of its transformer's config.json): set it to {fits} or less"
            )

    @property
    def grid(self) -> Grid:
        """The largest picture that its positions reach."""
        step = self.scale * self.patch
        return Grid(step, min(self.config.axes_lens[1:]) * step)

    def text_positions(self, tokens: int) -> int:
        """The picture's position in the table of texts, behind so many tokens."""
        return tokens


@dataclass(frozen=True)
class ZImage(PositionTables):
    """arXiv:2511.22699. Guidance 5 is the pipeline's 4, which adds 4 times the difference; Turbo, known by its name, has 1.

    Qwen3 reads; lists stand for batches. Not supported: the pipeline's cfg_normalization and cfg_truncation, off there too.
    """

    usual_guidance = 5.0
    usual_prompt_tokens = 512
    lora_targets = LAYERS + FEED_FORWARD
    guided_from = 1.0
    read_with = ONE_PASS

    @property
    def is_distilled(self) -> bool:
        return "turbo" in str(self.pipeline.config._name_or_path).lower()

    def text_positions(self, tokens: int) -> int:
        """Texts are filled up to multiples of 32, and begin at 1."""
        return -(-tokens // 32) * 32 + 1

    def spacing(self) -> Spacing:
        """The pipeline lists its even steps in float32."""
        found = super().spacing()
        return replace(found, listed="float32") if isinstance(found, LinearShift) else found

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

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        texts = [text[:length] for text, length in zip(prompts["embeds"], prompts["lengths"].tolist(), strict=True)]
        # 1 - t / 1000 rounds differently, and the transformer multiplies by 1000 again.
        out = transformer(list(x[:, :, None].unbind(0)), (1000 - timesteps) / 1000, texts, return_dict=False)[0]
        return -torch.stack(list(out))[:, :, 0]


@dataclass(frozen=True)
class Lumina2(PositionTables):
    """arXiv:2503.21758: Gemma-2 reads a sentence of instruction before the prompt. Guidance 4, which keeps the norm.

    Not supported: the pipeline's cfg_trunc_ratio, which is off there too.
    """

    usual_guidance = 4.0
    usual_prompt_tokens = 256
    lora_targets = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", *(f"feed_forward.linear_{i}" for i in (1, 2, 3)))
    keep_norm = True

    def encode(self, text: str, device: torch.device) -> Condition:
        """No prompt has no instruction."""
        none = text == self.empty_prompt
        found = self.pipeline.encode_prompt(
            text, device=device, do_classifier_free_guidance=none, max_sequence_length=self.prompt_tokens
        )
        embeds, mask = found[2:] if none else found[:2]
        return {"embeds": embeds[0][mask[0].bool()].cpu()}

    def count_tokens(self, text: str) -> tuple[int, int]:
        """With the instruction before the prompt."""
        whole = f"{self.pipeline.system_prompt} <Prompt Start> {text}"
        return token_count(self.pipeline.tokenizer, whole), self.prompt_tokens

    def collate(self, conditions: Sequence[Condition], full: bool) -> dict[str, Tensor]:
        """Padded at the end, with a mask that is True at tokens."""
        padded, mask = side_by_side([one["embeds"] for one in conditions], self.prompt_tokens if full else None)
        return {"embeds": padded, "mask": mask}

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        return -transformer(
            hidden_states=x,
            timestep=1 - timesteps / 1000,
            encoder_hidden_states=prompts["embeds"],
            encoder_attention_mask=prompts["mask"],
            return_dict=False,
        )[0]
