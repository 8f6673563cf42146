"""mu(picture, prompt) of HPSv3: a Qwen2-VL 7B reads both and a rubric; a head on a last special token says mean and deviation.

    r = MLP(hidden state at <|Reward|>)[0], MLP = hidden-1024-ReLU-16-ReLU-2 in float32

The picture is resized to about 200,704 pixels. Text positions count up as in the model's training code, without Qwen2-VL's own
numbering for pictures. The model was trained with one wording of the rubric: give it as `template`, or scores are other ones.

Modality: image
Range: about 7 to 11 for good generators, unbounded
Source: arXiv:2508.03789, MizzenAI/HPSv3
Licence: own code Apache-2.0; HPSv3's code MIT, weights see their cards
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmrl import Group, Need, Scored
from mmrl.runtime.ranges import Count, Large
from mmrl.serving.files import hub_file, warn_once
from mmrl.serving.judges.verdicts import fill_template, template_text
from mmrl.serving.media import pictures_of
from mmrl.serving.scorers.models import HeldModel, OnDevice, chunks, companion, fill, hold, read_weights, unfilled
from mmrl.serving.scorers.sizes import ModelSize, checkpoint_size

MARK = "<|Reward|>"
PIXELS = 256 * 28 * 28
TEMPLATE = """Rate this generated picture for visual quality and for how well it fits its description, from 0 to 10.
Visual quality: sharp, plausible and free of broken shapes. Fit: everything the description names is there, and as described.
Description: {prompt}
The rating stands in the last token: <|Reward|>"""


@dataclass(frozen=True)
class HpsV3(OnDevice):
    """Mean of the predicted human preference."""

    checkpoint: str = "MizzenAI/HPSv3"
    """Hub id, folder or file of the weights."""
    base: str = "Qwen/Qwen2-VL-7B-Instruct"
    """Hub id or folder of configuration and processor."""
    template: str = ""
    """File with the official rubric and {prompt}: INSTRUCTION and prompt_with_special_token of its data_collator_qwen.py."""
    pixels: Large = PIXELS
    """Area that pictures are resized to, in pixels."""
    batch_size: Count = 8
    """Pictures in one forward of the model."""
    needs = Need(setup="checkpoint (hub id, folder or file, 15 GB in bfloat16), base (configuration and processor), template")

    def models(self) -> Sequence[ModelSize]:
        return [checkpoint_size(self.checkpoint, "HPSv3.safetensors", self.device)]

    def __call__(self, group: Group) -> list[float | Scored | None]:
        text = template_text(self.template, TEMPLATE)
        if not self.template:
            warn_once("hps_v3 asks in our own words, its scores differ from published ones: set template to the official rubric")
        if not text.rstrip().endswith(MARK):
            raise ValueError(f"the template of hps_v3 must end with {MARK}: the score is read there")
        processor = companion("AutoProcessor", self.base, "base", padding_side="right")
        processor.tokenizer.add_tokens([MARK], special_tokens=True)
        mark = processor.tokenizer.convert_tokens_to_ids(MARK)
        held = self.held()
        question = fill_template(text, prompt=group.prompt.text.replace(MARK, ""))
        found: list[list[float]] = []
        for pictures in chunks(pictures_of(group), self.batch_size):
            found += _scores(held, self._inputs(processor, pictures, question), mark)
        return [Scored(mean, {"sigma": sigma}) for mean, sigma in found]

    def _inputs(self, processor: Any, pictures: Sequence[Any], question: str) -> Any:
        turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
        text = processor.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        sized = [_resize(picture, processor.image_processor, self.pixels) for picture in pictures]
        return processor(text=[text] * len(sized), images=sized, padding=True, return_tensors="pt")

    def held(self) -> HeldModel:
        return hold(("hps_v3", self.checkpoint, self.base), self._build, self.device)

    def _build(self) -> nn.Module:
        config = companion("AutoConfig", self.base, "base")
        return _Net(config, read_weights(hub_file(self.checkpoint, "HPSv3.safetensors", "checkpoint")), self.checkpoint)


def _scores(held: HeldModel, inputs: Any, mark: int) -> list[list[float]]:
    at = (inputs["input_ids"] == mark).int()
    if (at.sum(1) != 1).any():
        raise ValueError(f"the question of hps_v3 must hold {MARK} once")
    with held.ready() as net:
        return net({key: value.to(held.device) for key, value in inputs.items()}, at.argmax(1)).tolist()


def _resize(picture: Any, image_processor: Any, pixels: int) -> Any:
    """The picture with about `pixels` pixels, sides that patches divide, shape kept."""
    from PIL import Image
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    factor = image_processor.patch_size * image_processor.merge_size
    height, width = smart_resize(picture.height, picture.width, factor, pixels, pixels)
    return picture.resize((width, height), Image.Resampling.BICUBIC)


class _Net(nn.Module):
    keep_float32 = ("head",)

    def __init__(self, config: Any, weights: dict[str, Tensor], source: str) -> None:
        from transformers import Qwen2VLModel

        super().__init__()
        body = {_body_key(key): value for key, value in weights.items() if not key.startswith(("rm_head.", "lm_head."))}
        head = {key.removeprefix("rm_head."): value.float() for key, value in weights.items() if key.startswith("rm_head.")}
        config.text_config.vocab_size = body.get("language_model.embed_tokens.weight", torch.empty(0, 0)).shape[0]
        with unfilled():
            self.body = Qwen2VLModel(config)
        width = config.text_config.hidden_size
        # numbers of the layers as in the checkpoint, where dropout is the third
        self.head = nn.Sequential(
            nn.Linear(width, 1024), nn.ReLU(), nn.Identity(), nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 2)
        )
        fill(self.body, body, f"checkpoint {source!r}")
        fill(self.head, head, f"checkpoint {source!r}")

    def forward(self, inputs: dict[str, Tensor], at: Tensor) -> Tensor:
        ids = inputs["input_ids"]
        places = torch.arange(ids.shape[1], device=ids.device).expand(3, *ids.shape)
        states = self.body(**inputs, position_ids=places, use_cache=False).last_hidden_state
        return self.head(states[torch.arange(len(ids)), at.to(ids.device)].float())


def _body_key(key: str) -> str:
    if key.startswith("visual."):
        return key
    name = key.removeprefix("model.")
    return name if name.startswith(("language_model.", "visual.")) else f"language_model.{name}"
