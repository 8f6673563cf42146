"""Encoders of pictures and texts into one space (CLIP, SigLIP), preprocessed as published, and of texts alone."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.utils.checkpoint import checkpoint

from mmrl.runtime.net.offline import check_hub
from mmrl.runtime.pretrained import readable, refuse_non_finite
from mmrl.serving.files import import_package, not_found
from mmrl.serving.scorers.models import HeldModel, OnDevice, chunks, companion, fill, hold, load_pretrained, unfilled
from mmrl.serving.scorers.sizes import OPEN_CLIP, open_clip_of


class Texts(NamedTuple):
    """Texts ready for an encoder."""

    tokens: dict[str, Tensor]
    cut: list[bool]
    """True for texts longer than the encoder reads."""


@dataclass(frozen=True)
class _Scaled:
    held: HeldModel

    def scale(self) -> float:
        """The learnt temperature: exp(logit_scale)."""
        return float(self.held.model.logit_scale.float().exp())


@dataclass(frozen=True)
class HubEncoder(_Scaled):
    """An encoder of transformers with get_image_features and get_text_features: CLIPModel, SiglipModel and others."""

    processor: Callable[..., Mapping[str, Tensor]]
    tokenizer: Callable[..., Mapping[str, Tensor]]

    def pixels(self, pictures: Sequence[Image.Image]) -> Float[Tensor, "n 3 h w"]:
        return self.processor(list(pictures), return_tensors="pt")["pixel_values"]

    def tokens(self, texts: Sequence[str]) -> Texts:
        config = self.held.model.config
        limit = config.text_config.max_position_embeddings
        # SigLIP was trained on texts padded to its full length, and its tokenizers give no mask
        fixed = config.model_type.startswith("siglip")
        lengths = [len(ids) for ids in self.tokenizer(list(texts))["input_ids"]]
        found = self.tokenizer(
            list(texts), padding="max_length" if fixed else True, truncation=True, max_length=limit, return_tensors="pt"
        )
        wanted = ("input_ids",) if fixed else ("input_ids", "attention_mask")
        return Texts({key: found[key] for key in wanted}, [length > limit for length in lengths])

    def encode_pictures(self, pixels: Tensor) -> Float[Tensor, "n d"]:
        return _unit(self.held.model.get_image_features(pixel_values=pixels.to(self.held.device, self.held.dtype)))

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n d"]:
        return _unit(self.held.model.get_text_features(**{key: value.to(self.held.device) for key, value in tokens.items()}))


def hub_encoder(model: str, processor: str, device: str) -> HubEncoder:
    """An encoder of transformers. Pictures are resized by PIL, as all published scores were."""
    from transformers import AutoModel

    held = hold(("encoder", model), lambda: load_pretrained(AutoModel.from_pretrained, model, "model"), device)
    if not hasattr(held.model, "get_text_features"):
        raise ValueError(
            f"model {model!r} is of class {type(held.model).__name__}, which does not encode pictures and texts: name a CLIP"
        )
    pictures = companion("AutoImageProcessor", processor, "processor", backend="pil")
    return HubEncoder(held, pictures, companion("AutoTokenizer", processor, "processor"))


@dataclass(frozen=True)
class OpenClipEncoder(_Scaled):
    """A model of open_clip's with its own preprocessing."""

    transform: Callable[[Image.Image], Tensor]
    tokenizer: Callable[..., Tensor]
    of_pixels: Callable[[Float[Tensor, "n 3 y x"]], Float[Tensor, "n 3 h w"]] | None = None
    """The same preprocessing of pictures in [0, 1], with a gradient; None: it has none."""

    def pixels(self, pictures: Sequence[Image.Image]) -> Float[Tensor, "n 3 h w"]:
        return torch.stack([self.transform(picture) for picture in pictures])

    def tokens(self, texts: Sequence[str]) -> Texts:
        tokens = self.tokenizer(list(texts))
        # a text that fills every place was cut, or just fits
        longer = self.tokenizer(list(texts), context_length=8 * tokens.shape[1])
        return Texts({"text": tokens}, [bool(row) for row in (longer[:, tokens.shape[1] :] != longer[:, -1:]).any(1)])

    def encode_pictures(self, pixels: Tensor) -> Float[Tensor, "n d"]:
        return _unit(self.held.model.encode_image(pixels.to(self.held.device, self.held.dtype)))

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n d"]:
        return _unit(self.held.model.encode_text(tokens["text"].to(self.held.device)))


def open_clip_encoder(name: str, device: str) -> OpenClipEncoder:
    """An encoder of open_clip: `ViT-H-14/laion2b_s32b_b79k`, `hf-hub:owner/name` or `local-dir:/a/folder`."""
    open_clip = import_package("open_clip", "pip install open_clip_torch")
    is_folder = name.startswith(("hf-hub:", "local-dir:"))
    architecture, _, tag = (name, "", "") if is_folder else name.partition("/")

    def build() -> nn.Module:
        place = f"open_clip's model {name!r}"
        if not name.startswith("local-dir:"):
            check_hub(tag or name)
        try:
            with readable(place, name.partition(":")[2] if is_folder else tag):
                model, transform = open_clip.create_model_from_pretrained(architecture, pretrained=tag or None)
        except OSError as error:
            raise FileNotFoundError(not_found("model", OPEN_CLIP + name, error)) from None
        refuse_non_finite(model.named_parameters(), place)
        model.preprocess_ = transform
        return model

    held = hold(("open_clip", name), build, device)
    return OpenClipEncoder(held, held.model.preprocess_, open_clip.get_tokenizer(architecture))


Encoder = HubEncoder | OpenClipEncoder
"""Pictures and texts to vectors of length 1."""


class OfEncoder(OnDevice):
    """The common base of rewards that hold an encoder."""

    @abstractmethod
    def encoder(self) -> Encoder:
        """The encoder, which is loaded where it is not yet."""

    def held(self) -> HeldModel:
        return self.encoder().held


@dataclass(frozen=True)
class Cosines:
    """An encoder's cosines of pictures with one text each."""

    values: Float[Tensor, " n"]
    cut: list[bool]
    """True where the text was cut."""


def cosines(encoder: Encoder, pictures: Sequence[Image.Image], text: str, batch_size: int = 16) -> Cosines:
    """cos(picture, text) in float32, the text encoded once."""
    texts = encoder.tokens([text])
    with encoder.held.ready():
        (direction,) = encoder.encode_texts(texts.tokens)
        values = [encoder.encode_pictures(encoder.pixels(some)) @ direction for some in chunks(pictures, batch_size)]
    return Cosines(torch.cat(values).cpu(), texts.cut * len(pictures))


def picture_features(encoder: Encoder, pictures: Sequence[Image.Image], batch_size: int = 16) -> Float[Tensor, "n d"]:
    """The pictures' vectors, of length 1."""
    with encoder.held.ready():
        return torch.cat([encoder.encode_pictures(encoder.pixels(some)) for some in chunks(pictures, batch_size)]).cpu()


def encoder_of(model: str, processor: str = "", device: str = "auto") -> Encoder:
    """The encoder of a hub id, a folder, or a name of open_clip's that starts with `open_clip:`.

    `processor` is where tokenizer and preprocessing come from, if not from the model.
    """
    if model.startswith(OPEN_CLIP):
        return open_clip_encoder(model.removeprefix(OPEN_CLIP), device)
    return hub_encoder(model, processor or model, device)


def open_clip_checkpoint(
    architecture: str, weights: Callable[[], dict[str, Tensor]], source: str, device: str
) -> tuple[HeldModel, Callable[..., Tensor]]:
    """A model of open_clip's by architecture (a name, or the path of a JSON file), filled from `weights`, and its tokenizer."""
    open_clip = import_package("open_clip", "pip install open_clip_torch")
    if architecture.endswith(".json"):
        open_clip.add_model_config(architecture)
        architecture = architecture.removesuffix(".json").replace("\\", "/").rpartition("/")[2]

    def build() -> nn.Module:
        own = weights()
        with unfilled():
            model = open_clip_of(architecture)
        fill(model, own, source)
        return model

    return hold(("open_clip", architecture, source), build, device), open_clip.get_tokenizer(architecture)


def unit_vectors(model: str, texts: Sequence[str], device: str = "auto", batch_size: int = 32) -> Float[Tensor, "n d"]:
    """A vector of length 1 per text, on the CPU: the last layer at the first token (bge-m3 and its kin).

    Texts beyond the model's limit are cut.
    """
    from transformers import AutoModel

    held = hold(("texts", model), lambda: load_pretrained(AutoModel.from_pretrained, model, "model"), device)
    tokenizer, found = companion("AutoTokenizer", model, "model"), list[Tensor]()
    limit = min(tokenizer.model_max_length, held.model.config.max_position_embeddings - 2)
    with held.ready() as encoder:
        for some in chunks(texts, batch_size):
            tokens = tokenizer(list(some), padding=True, truncation=True, max_length=limit, return_tensors="pt").to(held.device)
            found.append(nn.functional.normalize(encoder(**tokens).last_hidden_state[:, 0].float(), dim=-1).cpu())
    return torch.cat(found)


def _unit(features: object) -> Float[Tensor, "n d"]:
    # transformers answers an object from version 5 on
    values = getattr(features, "pooler_output", features)
    assert isinstance(values, Tensor)
    return nn.functional.normalize(values.float(), dim=-1)


def pixel_features(encoder: Encoder, pixels: Float[Tensor, "n 3 y x"], batch_size: int = 16) -> Float[Tensor, "n d"]:
    """The vectors of pictures in [0, 1], of length 1, on the encoder's device; `batch_size` at a time, once more going backward.

    They differ from those of PIL's pictures by rounding and by the way that sizes are changed.

    Raises ValueError where the encoder is open_clip's with its own preprocessing, which takes PIL pictures only.
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
        crop: Mapping[str, int] = dict(getattr(processor, "crop_size"))  # noqa: B009 - not every processor has it, so no checker knows it
        top, left = (wanted[0] - crop["height"]) // 2, (wanted[1] - crop["width"]) // 2
        shown = shown[:, :, top : top + crop["height"], left : left + crop["width"]]
    mean, std = (shown.new_tensor(getattr(processor, name)).view(1, 3, 1, 1) for name in ("image_mean", "image_std"))
    return (shown - mean) / std
