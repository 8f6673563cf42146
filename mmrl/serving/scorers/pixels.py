"""Encoders' vectors of pictures that are tensors, with a gradient: their preprocessing as published, by torch in place of PIL."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.checkpoint import checkpoint

from mmrl.serving.scorers.encoders import Encoder, HubEncoder


def pixel_features(encoder: Encoder, pixels: Float[Tensor, "n 3 y x"], batch_size: int = 16) -> Float[Tensor, "n d"]:
    """The vectors of pictures in [0, 1], of length 1, on the encoder's device; `batch_size` at a time, once more going backward.

    They differ from those of PIL's pictures by rounding and by the way that sizes are changed.

    Raises:
        ValueError: the encoder is open_clip's with its own preprocessing, which takes PIL pictures only.
    """
    ready = partial(prepare, encoder.processor) if isinstance(encoder, HubEncoder) else encoder.of_pixels
    if ready is None:
        raise ValueError(
            "models of open_clip score PIL pictures, which carry no gradient: name a model of transformers, such as "
            "openai/clip-vit-large-patch14"
        )

    def encode(some: Tensor) -> Tensor:
        with encoder.held.lock:
            return encoder.encode_pictures(ready(some.to(encoder.held.device)))

    found = [checkpoint(encode, some, use_reentrant=False) for some in pixels.split(batch_size)]
    return torch.cat([one for one in found if isinstance(one, Tensor)])


def cosines_of_pixels(
    encoder: Encoder, pixels: Float[Tensor, "n 3 y x"], texts: Sequence[str], batch_size: int = 16
) -> Float[Tensor, " n"]:
    """cos(picture, text) of every picture with its own text; raises what `pixel_features` raises."""
    features, each = pixel_features(encoder, pixels, batch_size), list(dict.fromkeys(texts))
    with encoder.held.lock, torch.no_grad():
        directions = encoder.encode_texts(encoder.tokens(each).tokens)
    return (features * directions[[each.index(text) for text in texts]]).sum(1)


def prepare(processor: object, pixels: Float[Tensor, "n 3 y x"]) -> Float[Tensor, "n 3 h w"]:
    """Pictures resized, cut to their middle and normalised by the settings of an image processor of transformers."""
    size: Mapping[str, int] = dict(getattr(processor, "size"))  # noqa: B009 - processors share no typed base
    height, width = pixels.shape[2:]
    if "shortest_edge" in size:
        scale = size["shortest_edge"] / min(height, width)
        wanted = (max(size["shortest_edge"], int(height * scale)), max(size["shortest_edge"], int(width * scale)))
    else:
        wanted = (size["height"], size["width"])
    mode = "bilinear" if getattr(processor, "resample", 3) == 2 else "bicubic"
    shown = pixels if wanted == (height, width) else interpolate(pixels, wanted, mode=mode, antialias=True).clamp(0, 1)
    if getattr(processor, "do_center_crop", False):
        crop: Mapping[str, int] = dict(getattr(processor, "crop_size"))  # noqa: B009
        top, left = (wanted[0] - crop["height"]) // 2, (wanted[1] - crop["width"]) // 2
        shown = shown[:, :, top : top + crop["height"], left : left + crop["width"]]
    mean, std = (shown.new_tensor(getattr(processor, name)).view(1, 3, 1, 1) for name in ("image_mean", "image_std"))
    return (shown - mean) / std
