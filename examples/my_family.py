"""A model family of your own: LLaVA 1.5, whose every picture gives the same number of features.

Run it with `python examples/my_family.py`: a tiny LLaVA with random weights samples, and its log-probabilities are read again.
In the library a family is one file in mmrl/policies/families and one line in its table.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from transformers import CLIPImageProcessor, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

from mmrl import Prompt
from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Request
from mmrl.lab.tiny.text.vlms import byte_tokenizer, chat_template
from mmrl.policies.text import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.families import FAMILIES, Family, Media


@dataclass(frozen=True)
class Llava(Family):
    """LLaVA 1.5's processor and model: pixel_values holds one row per picture; each gives one feature per patch."""

    box_space: str | None = "norm1"

    def num_features(self, media: Media) -> int:
        vision = self.config.vision_config
        return len(media["pixel_values"]) * (vision.image_size // vision.patch_size) ** 2 if media else 0


FAMILIES["llava"] = Llava


def tiny_llava(folder: Path) -> Path:
    tokenizer = byte_tokenizer({"image_token": "<image>"})
    small = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    config = LlavaConfig(
        vision_config=dict(model_type="clip_vision_model", image_size=28, patch_size=7, projection_dim=32, **small),
        text_config=dict(model_type="llama", vocab_size=len(tokenizer), num_key_value_heads=2, bos_token_id=None, **small),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="default",
    )
    square = {"height": 28, "width": 28}
    processor = LlavaProcessor(
        CLIPImageProcessor(size=square, crop_size=square),
        tokenizer,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template("<image>\n"),
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def main() -> None:
    model = tiny_llava(Path(tempfile.mkdtemp()) / "llava")
    policy = TextPolicy(TextPolicyConfig(model=str(model), sampling=Sampling(max_new_tokens=8)))
    prompt = Prompt("cat", "Where is the cat?", media=(Image.new("RGB", (60, 40), "red"),))
    rollouts = policy.rollout([Request(prompt, count=4, group_id=0)])
    live = policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS]
    sampled = rollouts.recorded[ROLLOUT_LOGPROBS]
    difference = ((live - sampled) * rollouts.action_mask).abs().max().item()
    assert difference < 2e-5, difference
    print(f"sampled and re-evaluated log-probabilities differ by at most {difference:.1e}")


if __name__ == "__main__":
    main()
