"""(h(BLIP(picture, prompt)) - 0.16717) / 1.03334 of ImageReward: about normally distributed human preference.

BLIP is a ViT-L/16 whose 14 x 14 patches a BERT of 12 layers reads with the prompt; h are linear layers on its first token.
Built from the classes of transformers, with the checkpoint's names translated. Prompts are cut at 35 tokens (part `cut_prompt`).

Modality: image
Range: about -2.3 to 2.0
Source: arXiv:2304.05977, THUDM/ImageReward; reported to corrupt pictures of models as strong as FLUX
Licence: own code Apache-2.0; ImageReward's code and weights Apache-2.0
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mmrl import Group, Need, Scored
from mmrl.serving.files import hub_file
from mmrl.serving.media import pictures_of
from mmrl.serving.scorers.models import HeldModel, OnDevice, chunks, collapse_layers, companion, fill, hold, read_weights
from mmrl.serving.scorers.sizes import ModelSize, checkpoint_size

MEAN, STD = 0.16717362830052426, 1.0333394966054072
LENGTH = 35
VISION = (
    ("cls_token", "embeddings.class_embedding"),
    ("pos_embed", "embeddings.position_embedding"),
    ("patch_embed.proj", "embeddings.patch_embedding"),
    ("blocks.", "encoder.layers."),
    ("attn.qkv", "self_attn.qkv"),
    ("attn.proj", "self_attn.projection"),
    ("norm1", "layer_norm1"),
    ("norm2", "layer_norm2"),
)


@dataclass(frozen=True)
class ImageReward(OnDevice):
    """How much people would like the picture for its prompt."""

    checkpoint: str = "THUDM/ImageReward"
    """Hub id or folder of the weights and their configuration."""
    tokenizer: str = "google-bert/bert-base-uncased"
    """Hub id or folder of BERT's tokenizer."""
    needs = Need(setup="checkpoint (hub id or folder with ImageReward.pt and med_config.json, 1.8 GB), tokenizer (BERT's)")

    def models(self) -> Sequence[ModelSize]:
        return [checkpoint_size(self.checkpoint, "ImageReward.pt", self.device)]

    def __call__(self, group: Group) -> list[float | Scored | None]:
        from transformers import BlipImageProcessorPil

        held = self.held()
        side = held.model.vision.config.image_size
        to_pixels = BlipImageProcessorPil()
        tokenizer = companion("AutoTokenizer", self.tokenizer, "tokenizer")
        text = tokenizer(group.prompt.text, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
        cut = float(len(tokenizer(group.prompt.text)["input_ids"]) > LENGTH)
        scores: list[float] = []
        for pictures in chunks(pictures_of(group), self.batch_size):
            pixels = to_pixels([_square(picture, side) for picture in pictures], do_resize=False, return_tensors="pt")
            scores += _scores(held, pixels["pixel_values"], text)
        return [Scored((score - MEAN) / STD, {"cut_prompt": cut}) for score in scores]

    def held(self) -> HeldModel:
        return hold(("image_reward", self.checkpoint), self._build, self.device)

    def _build(self) -> nn.Module:
        weights = read_weights(hub_file(self.checkpoint, "ImageReward.pt", "checkpoint"))
        med = json.loads(hub_file(self.checkpoint, "med_config.json", "checkpoint").read_text(encoding="utf-8"))
        return _Net(weights, med, f"checkpoint {self.checkpoint!r}")


def _scores(held: HeldModel, pixels: Tensor, text: Any) -> list[float]:
    with held.ready() as net:
        ids, mask = (text[key].to(held.device).expand(len(pixels), -1) for key in ("input_ids", "attention_mask"))
        return net(pixels.to(held.device, held.dtype), ids, mask).tolist()


def _square(picture: Any, side: int) -> Any:
    """Shorter side to `side` (PIL bicubic), the middle cut out; BLIP itself would squash."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import center_crop, resize

    return center_crop(resize(picture, [side], InterpolationMode.BICUBIC), [side, side])


class _Net(nn.Module):
    keep_float32 = ("head",)

    def __init__(self, weights: dict[str, Tensor], med: dict[str, Any], source: str) -> None:
        from transformers import BlipTextConfig, BlipVisionConfig, BlipVisionModel
        from transformers.models.blip.modeling_blip_text import BlipTextModel

        super().__init__()
        eyes = {_vision_key(key): weights[key] for key in weights if key.startswith("blip.visual_encoder.")}
        words = {key.removeprefix("blip.text_encoder."): weights[key] for key in weights if key.startswith("blip.text_encoder.")}
        patches, places = (eyes.get(f"embeddings.{name}") for name in ("patch_embedding.weight", "position_embedding"))
        if patches is None or places is None or "embeddings.word_embeddings.weight" not in words:
            raise ValueError(
                f"{source} is a checkpoint of another architecture than ImageReward: blip.visual_encoder.* are missing"
            )
        width, patch = patches.shape[0], patches.shape[-1]
        self.vision = BlipVisionModel(
            BlipVisionConfig(
                hidden_size=width,
                intermediate_size=eyes["encoder.layers.0.mlp.fc1.weight"].shape[0],
                num_hidden_layers=len({key.split(".")[2] for key in eyes if key.startswith("encoder.layers.")}),
                num_attention_heads=max(1, width // 64),
                image_size=round((places.shape[1] - 1) ** 0.5) * patch,
                patch_size=patch,
                layer_norm_eps=1e-6,
            )
        )
        # med_config.json says another encoder_width than the checkpoint has
        own = {**med, "vocab_size": words["embeddings.word_embeddings.weight"].shape[0], "encoder_hidden_size": width}
        self.text = BlipTextModel(BlipTextConfig(**own, is_decoder=True), add_pooling_layer=False)
        fill(self.vision, eyes, source)
        fill(self.text, words, source, optional=("embeddings.position_ids",))
        weight, bias = collapse_layers({key: value for key, value in weights.items() if key.startswith("mlp.layers.")}, source)
        self.head = nn.Linear(len(weight), 1)
        fill(self.head, {"weight": weight[None], "bias": bias[None]}, source)

    def forward(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        seen = self.vision(pixel_values=pixels).last_hidden_state
        # the configuration says decoder so that cross-attention exists; attention itself stays bidirectional
        read = self.text(input_ids=ids, attention_mask=mask, encoder_hidden_states=seen, is_decoder=False, use_cache=False)
        return self.head(read.last_hidden_state[:, 0].float())[:, 0]


def _vision_key(key: str) -> str:
    name = key.removeprefix("blip.visual_encoder.")
    for theirs, ours in VISION:
        name = name.replace(theirs, ours)
    return re.sub(r"^norm\.", "post_layernorm.", name)
