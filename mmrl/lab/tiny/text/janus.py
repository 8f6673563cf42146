"""A Janus of the real classes with some 0.3 M random weights, which draws pictures of 16 codes, saved to a folder."""

from pathlib import Path

from mmrl.lab.tiny.byte_tokens import Built, Kwargs, byte_tokenizer, hub, ids_of, model_of, token_ids
from mmrl.lab.tiny.text.llms import chat_template
from mmrl.lab.tiny.text.vlms import save_random

MARKS = {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}
FAMILIES = ("janus",)
"""Tiny models that draw by tokens."""


def build(family: str, folder: Path, seed: int = 0, side: int = 4, codes: int = 24, width: int = 32) -> Path:
    """Save model and processor to `folder` and return it; raises ValueError for an unknown family.

    Args:
        side: codes along each side of a picture, of two pixels each.
        codes: how many there are.
        width: of the language model.
    """
    if family not in FAMILIES:
        raise ValueError(f"no tiny model of family {family!r} draws by tokens: choose one of {', '.join(FAMILIES)}")
    return save_random(lambda: untaught(side, codes, width), folder, seed)


def untaught(side: int, codes: int, width: int) -> Built:
    """The model and its processor."""
    tokenizer = byte_tokenizer(MARKS, bos="<|begin|>")
    vision: Kwargs = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_ratio": 2.0, "depth": 2}
    vision |= {"image_size": 7 * side, "patch_size": 7, "projection_dim": width, "num_image_tokens": side**2}
    drawing: Kwargs = {"embed_dim": 8, "num_embeddings": codes, "latent_channels": 8, "num_patches": side, "base_channels": 32}
    drawing |= {"channel_multiplier": [1, 1], "num_res_blocks": 1, "num_hidden_layers": 2}
    drawing |= {"projection_dim": width, "image_token_embed_dim": width}
    text: Kwargs = {"hidden_size": width, "intermediate_size": 2 * width, "max_position_embeddings": 512}
    model = model_of(
        "Janus",
        text_config=token_ids(tokenizer, model_type="llama", **text),
        vision_config=vision,
        vq_config=drawing,
        tie_word_embeddings=False,
        **ids_of(tokenizer, image_token_id=MARKS["image_token"]),
    )
    size: Kwargs = {"size": {"height": 7 * side, "width": 7 * side}, "min_size": 7}
    processor = hub(
        "JanusProcessor",
        image_processor=hub("JanusImageProcessor", **size, image_mean=[0.5] * 3, image_std=[0.5] * 3),
        tokenizer=tokenizer,
        chat_template=chat_template(MARKS["image_token"]),
        num_image_tokens=side**2,
    )
    # Otherwise it is made anew from the model's config, which knows no such token.
    model.generation_config._from_model_config = False
    model.generation_config.generation_kwargs = ids_of(tokenizer, boi_token_id=MARKS["boi_token"])
    return model, processor
