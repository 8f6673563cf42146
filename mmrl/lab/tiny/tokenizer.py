"""A tokenizer of the real Qwen class for a handful of texts: words become single tokens, digits stay single."""

import json
from collections.abc import Mapping, Sequence

from mmrl.lab.tiny.byte_tokens import PAD, STOP, TURN, HubObject, Kwargs, letters

QWEN_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
"""Qwen's own marks around pictures and clips."""
_PART = (
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}" + _PART + "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Turns, pictures and videos as Qwen3-VL writes them; no tools."""


def qwen_ids(tokenizer: HubObject) -> Kwargs:
    """The ids of Qwen's marks, as configs name them."""
    return {f"{name}_id": tokenizer.convert_tokens_to_ids(token) for name, token in QWEN_TOKENS.items()}


def qwen_tokenizer(texts: Sequence[str], num_tokens: int = 400, named: Mapping[str, str] = QWEN_TOKENS) -> HubObject:
    """A Qwen2Tokenizer that knows every byte, merges learnt from `texts` (at most `num_tokens` in all), and the named marks."""
    from transformers import Qwen2Tokenizer

    known = {letter: i for i, letter in enumerate(letters())}
    # a merge is learnt only from a pair seen more than once
    trained = Qwen2Tokenizer(vocab=known, merges=[]).train_new_from_iterator([*texts] * 2, num_tokens, show_progress=False)
    learnt = json.loads(trained.backend_tokenizer.to_str())["model"]
    marks = {TURN, STOP, PAD, *named.values()}
    words = sorted((word for word in learnt["vocab"] if word not in marks), key=learnt["vocab"].__getitem__)
    merges: HubObject = [tuple(pair) for pair in learnt["merges"]]
    tokenizer = Qwen2Tokenizer(
        vocab={word: i for i, word in enumerate(words)},
        merges=merges,
        eos_token=STOP,
        pad_token=PAD,
        padding_side="left",
        extra_special_tokens=dict(named),
    )
    tokenizer.add_tokens([TURN], special_tokens=True)
    return tokenizer
