"""Low-rank adapters: their settings, and what text and image models do alike with them. Imports neither torch nor peft."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, cast, runtime_checkable

from mmrl.policies.shared.holding import holding
from mmrl.runtime.near import near
from mmrl.runtime.ranges import BelowOne, Count, Range, check_ranges

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from torch import Tensor, nn
    from transformers import PreTrainedModel

log = logging.getLogger("mmrl")
ADAPTER = "default"
"""The name that peft and diffusers give an adapter without one."""
KEY, PEFT_CONFIG = "policy.lora.adapter", "adapter_config.json"
BASE = "base_model.model."
"""What peft puts in front of names of weights."""


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters (arXiv:2106.09685) by peft; the model's own weights stay as they are."""

    rank: Annotated[int, Range(1, 2**13, why="a layer of a larger rank is larger than the one it adapts")] = 16
    """Rank of an adapter's two matrices."""
    alpha: Count = 32
    """An adapter's output is scaled by alpha / rank."""
    dropout: BelowOne = 0.0
    """Must stay 0: with dropout the same weights would give other log-probabilities at every reading."""
    targets: tuple[str, ...] | Literal["auto"] = "auto"
    """Names of linear layers, in whatever part of the model; auto = all of the language model, and of an image generator those
    that its family's papers adapt: attention, in most families with the feed-forward layers."""
    adapter: str | None = None
    """A saved adapter to start from, whose rank, alpha and targets count: peft's folder, or of generators diffusers' folder or
    .safetensors file, kohya's for Stable Diffusion."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.dropout != 0:
            raise ValueError(
                f"policy.lora.dropout is {self.dropout}: log-probabilities must be the same at every reading, set it to 0"
            )


@runtime_checkable
class AdaptedLayer(Protocol):
    """A layer to which peft added an adapter."""

    _disable_adapters: bool
    scaling: dict[str, float]
    """Adapter -> what its output is multiplied by."""
    _active_adapter: str | list[str]


@runtime_checkable
class CastingLayer(Protocol):
    """A layer of peft that may bring its input to the adapter's dtype."""

    cast_input_dtype_enabled: bool


def adapter_layers(modules: Iterable[object]) -> list[AdaptedLayer]:
    """The modules of a network that hold a LoRA adapter."""
    return [cast(AdaptedLayer, module) for module in modules if hasattr(module, "lora_B")]


def switch_adapters(layers: Sequence[AdaptedLayer], on: bool) -> AbstractContextManager[None]:
    """Let these layers compute with their adapter, or without it, for a block; peft's own switches also change gradients."""
    return holding(layers, "_disable_adapters", not on)


def with_adapter(layers: Sequence[AdaptedLayer], name: str) -> AbstractContextManager[None]:
    """Let these layers compute with the adapter of this name alone, or with none where they lack it, for the time of a block."""
    return holding(layers, "_active_adapter", [name])


@contextmanager
def scale_adapters(layers: Sequence[AdaptedLayer], factor: float) -> Iterator[None]:
    """Let the adapters of these layers add `factor` times what they do, for the time of a block."""
    with ExitStack() as stack:
        for layer in layers:
            scaled = {name: factor * value for name, value in layer.scaling.items()}
            stack.enter_context(holding([layer], "scaling", scaled))
        yield


def is_own(name: str) -> bool:
    """Is a weight of this name of the adapter that trains, and not of a teacher's beside it?"""
    return "lora_" in name and f".{ADAPTER}" in name


def casting_layers(modules: Iterable[object]) -> list[CastingLayer]:
    """The modules of a network that may cast their input."""
    return [module for module in modules if isinstance(module, CastingLayer)]


def switch_casts(layers: Sequence[CastingLayer], on: bool) -> None:
    """Let these layers bring their inputs to the adapter's dtype, as peft does, or leave that to autocast.

    Under autocast both compute the same: what peft widens to float32, autocast narrows again, with two kernels per layer.
    """
    for layer in layers:
        layer.cast_input_dtype_enabled = on


def lora_config(
    lora: LoraSettings, targets: str | Sequence[str], model: "nn.Module", start: Literal["gaussian"] | bool = True
) -> "LoraConfig":
    """peft's settings of a new adapter on ends of names of layers, or a pattern for them; ValueError for a name of no layer."""
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    named = targets if isinstance(targets, str) else list(targets)
    found = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules=named, init_lora_weights=start)
    if lora.targets != "auto":
        convert_peft_config_for_transformers(found, model, None)  # experts are one tensor, which has another name
        known, ends = [f".{name}" for name, _ in model.named_modules()], found.target_modules or ()
        if idle := [one for one in ends if not any(name.endswith(f".{one}") for name in known)]:
            raise ValueError(f"policy.lora.targets: no layer of the model is called {idle[0]!r}: correct it, or leave it out")
    return found


def load_adapter(model: object, lora: LoraSettings) -> "PeftModel":
    """peft's wrapper round `model`, with the adapter that lies in the folder `lora.adapter`, ready to train.

    Raises FileNotFoundError without an adapter, ValueError for one that is not whole, not finite, made for another model, or that
    holds weights of the model itself which are not those of this one.
    """
    from peft import PeftModel, get_peft_model_state_dict

    from mmrl.runtime.pretrained import readable

    folder = str(lora.adapter)
    own = saved_weights(cast("PreTrainedModel", model), folder)
    with readable(f"{KEY} {folder!r}", folder):
        adapter = PeftModel.from_pretrained(cast("PreTrainedModel", model), folder, is_trainable=True)
    refuse_dropout(folder, adapter.peft_config[ADAPTER])
    warn_of_idle_settings(lora, adapter.peft_config[ADAPTER])
    check_adapter_weights(folder, own, get_peft_model_state_dict(adapter, save_embedding_layers=False))
    return adapter


def refuse_other_base(model: "nn.Module", folder: str) -> None:
    """Raise as `refuse_no_peft` and `refuse_other_layers` do; the model needs no weights."""
    refuse_no_peft(folder)
    refuse_other_layers(model, Path(folder).expanduser() / "adapter_model.safetensors", BASE, folder)


def refuse_other_layers(network: "nn.Module", file: Path, prefix: str, place: str) -> None:
    """Raise ValueError for an adapter whose file's header says that its linear layers have other sides than the network's.

    `prefix` begins the names in the file; a layer that the network does not call so, and a file without a header, say nothing.
    """
    from safetensors import SafetensorError, safe_open

    layers = dict(network.named_modules())
    with suppress(SafetensorError, OSError), safe_open(file, "pt") as saved:
        for name in saved.keys():  # noqa: SIM118 - it is no mapping
            where, _, end = name.removeprefix(prefix).partition(".lora_")
            side, way = {"A.weight": (1, "in"), "B.weight": (0, "out")}.get(end, (0, ""))
            own, shape = getattr(layers.get(where), f"{way}_features", None), saved.get_slice(name).get_shape()
            if own is not None and len(shape) == 2 and own != shape[side]:
                raise ValueError(
                    f"{KEY} {place!r} was made for another model: {where} has {shape[side]} {way}puts there and {own} in this "
                    "one: take an adapter of this model, or the model that it is of"
                )


def saved_weights(model: "PreTrainedModel", folder: str, key: str = KEY) -> dict[str, "Tensor"]:
    """The weights of a saved adapter, without copies of the model's own; raises as `refuse_no_peft` and `copies_of_base`."""
    from peft import PeftConfig
    from peft.utils import load_peft_weights

    from mmrl.runtime.pretrained import readable

    refuse_no_peft(folder, key)
    with readable(f"{key} {folder!r}", folder):
        saved = load_peft_weights(folder, device="cpu")
        further = getattr(PeftConfig.from_pretrained(folder), "modules_to_save", None) or ()
    copies = copies_of_base(model, saved, tuple(further), folder, key)
    return {name: weight for name, weight in saved.items() if name not in copies}


def copies_of_base(
    model: "PreTrainedModel", saved: Mapping[str, "Tensor"], further: tuple[str, ...], folder: str, place: str = KEY
) -> Collection[str]:
    """The names in an adapter's file of weights of the model itself, which peft saves beside an adapter of head or embeddings.

    `further` are modules that train whole beside the adapter. Raises ValueError for weights that are not those of this model.
    """
    base = {name.replace(".base_layer.", "."): weight for name, weight in model.named_parameters(remove_duplicate=False)}
    names = {key: key.removeprefix(BASE).replace(".base_layer.", ".") for key in saved}
    copies = {key: base[name] for key, name in names.items() if name in base}
    copies = {key: weight for key, weight in copies.items() if not names[key].rpartition(".")[0].endswith(further)}
    other = [
        key
        for key, weight in copies.items()
        if weight.shape != saved[key].shape or not bool((saved[key].to(weight) == weight).all())
    ]
    if other:
        raise ValueError(
            f"{place} {folder!r} holds {len(other)} weights of the model itself that are not those of this one ({other[0]}): "
            "they trained, or the vocabulary grew: merge it in peft (merge_and_unload, save_pretrained), and name that as "
            "policy.model"
        )
    return copies.keys()


def refuse_no_peft(folder: str, key: str = KEY) -> None:
    """Raise ValueError for a file, or a folder that peft did not write; FileNotFoundError for none."""
    place = Path(folder).expanduser()
    if not place.is_file():
        check_adapter_folder(folder, key)
    if not (place / PEFT_CONFIG).is_file():
        what = "is one file" if place.is_file() else f"holds no {PEFT_CONFIG}"
        raise ValueError(
            f"{key} {folder!r} {what}, and models that write take an adapter as peft saves it: name the folder with "
            f"{PEFT_CONFIG}, which says rank, alpha and layers, and adapter_model.safetensors"
        )


def check_adapter_weights(folder: str, saved: Mapping[str, "Tensor"], own: Mapping[str, "Tensor"], key: str = KEY) -> None:
    """Raise ValueError unless `saved` holds all weights of the adapter in the model (`own`), no others, and finite ones."""
    from mmrl.runtime.pretrained import refuse_non_finite, refuse_other_keys

    place = f"{key} {folder!r}"
    refuse_other_keys(own.keys() - saved.keys(), saved.keys() - own.keys(), (), place, "LoRA adapter of this model")
    refuse_non_finite(saved.items(), place)


def warn_of_idle_settings(lora: LoraSettings, config: object) -> None:
    """Say which of the settings a loaded adapter overrules; `config` is peft's."""
    usual, own = LoraSettings(), {"rank": getattr(config, "r", None), "alpha": getattr(config, "lora_alpha", None)}
    idle = [name for name, value in own.items() if getattr(lora, name) not in (value, getattr(usual, name))]
    if lora.targets != usual.targets:
        idle.append("targets")
    if idle:
        log.warning(
            f"{', '.join(f'policy.lora.{name}' for name in idle)} cannot act beside policy.lora.adapter, whose own rank "
            f"({own['rank']}), alpha ({own['alpha']}) and layers count: remove them"
        )


def check_adapter_folder(folder: str, key: str = KEY) -> None:
    """Raise FileNotFoundError unless there is a folder to load an adapter from."""
    if not Path(folder).expanduser().is_dir():
        raise FileNotFoundError(f"{key}: there is no folder {folder!r}{near(folder)}: check the path")


def check_teachers(names: Sequence[str], adapters: bool, lora: LoraSettings | None) -> None:
    """Raise ValueError for two teachers of one name, and for `adapters` among those of a model all of whose weights train."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"policy.teachers has {twice[0]!r} twice: give each its own name")
    if adapters and lora is None:
        raise ValueError(
            "policy.teachers are adapters on the model as it was loaded, and all of its weights train: set policy.lora"
        )


def refuse_dropout(folder: str, config: object, key: str = KEY) -> None:
    """Raise ValueError for a loaded adapter that was made with dropout; `config` is peft's."""
    if getattr(config, "lora_dropout", 0):
        raise ValueError(f"{key} {folder!r} was made with dropout: set lora_dropout to 0 in its config")
