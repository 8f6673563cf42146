"""Weights of the models that rewards hold, known before they are loaded: counted from their configs, or published."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mmrl.runtime.net.offline import check_hub
from mmrl.serving.files import first_line, import_package

PUBLISHED = {
    "yuvalkirstain/PickScore_v1": 986_109_441,
    "openai/clip-vit-large-patch14": 427_616_513,
    "google/siglip-so400m-patch14-384": 877_960_498,
    "xswu/HPSv2": 986_109_441,
    "THUDM/ImageReward": 446_206_689,
    "MizzenAI/HPSv3": 7_748_610_610,
    "KwaiVGI/VideoReward": 2_208_563_200,
    "PekingU/rtdetr_v2_r50vd": 42_891_372,
    "facebook/mask2former-swin-small-coco-instance": 68_741_083,
}
"""Hub id -> numbers of the published model; no server is asked about these. A test counts each by its public settings."""
OPEN_CLIP = "open_clip:"
"""Before a name of open_clip's: `open_clip:ViT-H-14/laion2b_s32b_b79k`, `open_clip:hf-hub:a/b`, `open_clip:local-dir:/a`."""


@dataclass(frozen=True)
class ModelSize:
    """A model that a reward holds while a run lasts: `ModelSize("openai/clip-vit-large-patch14", 427_616_513)`."""

    name: str
    weights: int | None
    """How many numbers, not bytes: they are bfloat16 on a card and float32 elsewhere. None: unknown."""
    device: str = "auto"
    """Where it is held: auto (the card if there is one), cpu, cuda or cuda:1."""
    why: str = ""
    """The reason why it is unknown."""


@runtime_checkable
class HoldsModels(Protocol):
    """A reward that says which models it will hold, so that `mmrl plan` counts them. Nothing is loaded for the answer."""

    def models(self) -> Sequence[ModelSize]: ...


def hub_size(source: str, device: str = "auto", kind: str = "AutoModel") -> ModelSize:
    """The size of a model of transformers, by its hub id or folder; `kind` is its class where its config names none."""
    if source in PUBLISHED and not Path(source).expanduser().exists():
        return ModelSize(source, PUBLISHED[source], device)
    return size_by(source, device, lambda: count_from_config(source, kind))


def count_from_config(source: str, kind: str) -> int:
    """Numbers of a model of transformers that is built from its config alone, on torch's meta device."""
    import torch
    import transformers

    check_hub(source)
    config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    own = getattr(transformers, (config.architectures or [""])[0], None)
    with torch.device("meta"):
        model = getattr(transformers, kind).from_config(config) if own is None else own(config)
    return sum(weight.numel() for weight in model.parameters())


def encoder_size(model: str, device: str = "auto") -> ModelSize:
    """The size of an encoder of `mmrl.serving.scorers.encoders`: of transformers, or of open_clip by its name."""
    if not model.startswith(OPEN_CLIP):
        return hub_size(model, device)
    return size_by(model, device, lambda: count_open_clip(model.removeprefix(OPEN_CLIP).partition("/")[0]))


def count_open_clip(architecture: str) -> int:
    """Numbers of a CLIP of open_clip's, by the name of its architecture; ValueError for an unknown one."""
    import torch

    with torch.device("meta"):
        return sum(weight.numel() for weight in open_clip_of(architecture).parameters())


def open_clip_of(architecture: str) -> Any:
    """A CLIP of open_clip's with new weights, by the name of its architecture; ValueError for an unknown one."""
    open_clip = import_package("open_clip", "pip install open_clip_torch")
    settings = open_clip.get_model_config(architecture)
    if settings is None:
        raise ValueError(
            f"open_clip has no architecture {architecture!r}: name one, or the path of a JSON file with its settings"
        )
    return open_clip.CLIP(**{key: value for key, value in settings.items() if key != "custom_text"})


def checkpoint_size(source: str, name: str, device: str = "auto") -> ModelSize:
    """The size of what a file of weights holds, here or on the hub; `source` and `name` are as in `files.hub_file`."""
    place = Path(source).expanduser()
    file = place / name if place.is_dir() else place
    if file.is_file():
        return size_by(source, device, lambda: count_in_file(file))
    if source in PUBLISHED:
        return ModelSize(source, PUBLISHED[source], device)
    return ModelSize(source, None, device, f"its file {name} is not here yet")


def count_in_file(file: Path) -> int:
    """Numbers in a file of weights, of which only the shapes are read; nothing of it is run."""
    if file.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(file, framework="pt") as weights:
            shapes = [weights.get_slice(key).get_shape() for key in weights.keys()]  # noqa: SIM118 - it is no mapping
        return sum(math.prod(shape) for shape in shapes)
    from mmrl.serving.scorers.models import read_weights

    return sum(value.numel() for value in read_weights(file, "meta").values())


def size_by(name: str, device: str, count: Callable[[], int]) -> ModelSize:
    """A model's size by a count; one that cannot be looked at is of unknown size: its reward will say why itself."""
    try:
        return ModelSize(name, count(), device)
    except Exception as error:  # noqa: BLE001 - configs and files of others raise whatever they like
        return ModelSize(name, None, device, first_line(error))
