"""Models that score: found on the hub or in a folder, checked against their architecture, held once per process."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mmrl.runtime.net.offline import check_hub
from mmrl.runtime.pretrained import CODE, load_whole, readable, refuse_non_finite, refuse_other_keys
from mmrl.runtime.ranges import Count, check_ranges
from mmrl.serving.files import first_line, not_found

T = TypeVar("T")
Loaded = Any
"""A model, tokenizer, processor or configuration of transformers or open_clip, whose classes share no base with these methods."""


@dataclass
class HeldModel:
    """A model on its device, used by one thread at a time."""

    model: Loaded
    device: torch.device
    dtype: torch.dtype
    lock: AbstractContextManager[object] = field(default_factory=threading.RLock)

    def to(self, device: str) -> None:
        """Move the weights: a run that lends a reward its GPU for a while calls this between steps."""
        with self.lock:
            self.device = device_of(device)
            self.model.to(self.device)

    def moved(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A processor's tensors beside the model, numbers in its type."""
        return {key: value.to(self.device, self.dtype if value.is_floating_point() else None) for key, value in inputs.items()}

    @contextmanager
    def ready(self) -> Iterator[Loaded]:
        """Lend the model for a block, without gradients."""
        with self.lock, torch.inference_mode():
            yield self.model


loading = logging.getLogger("mmrl.loading")
"""Says what is about to take long; the command line prints it."""
_HELD: dict[Hashable, HeldModel] = {}
_COMPANIONS: dict[Hashable, Loaded] = {}
_LOCK = threading.RLock()


def hold(key: Hashable, build: Callable[[], nn.Module], device: str = "auto") -> HeldModel:
    """Hold the model that `build` makes, once per process for one key and device: equal rewards share it.

    In bfloat16 on a GPU, in float32 on a CPU; parts named in its `keep_float32` always in float32.
    """
    where = device_of(device)
    full = (key, str(where))
    with _LOCK:
        if full not in _HELD:
            words = [str(word) for word in key] if isinstance(key, tuple) else [str(key)]
            loading.info("loading %s onto %s; large models take minutes", " ".join(words), where)
            # weights made in inference_mode could never be moved outside it
            with torch.inference_mode(False):
                model = build().eval().requires_grad_(False)
                held = HeldModel(model, where, torch.bfloat16 if where.type == "cuda" else torch.float32)
                model.to(where, held.dtype)
                for name in getattr(model, "keep_float32", ()):
                    model.get_submodule(name).float()
            _HELD[full] = held
        return _HELD[full]


@dataclass(frozen=True)
class OnDevice(ABC):
    """The common base of rewards that hold a model and look at each sample alone."""

    device: str = field(default="auto", kw_only=True)
    """Where the model runs: auto (the GPU if there is one), cpu, cuda or cuda:1."""
    batch_size: Count = field(default=16, kw_only=True)
    """Samples in one forward of the model."""
    pointwise = True

    __post_init__ = check_ranges

    @abstractmethod
    def held(self) -> HeldModel | None:
        """The model, which is loaded where it is not yet; None where something else than torch runs it."""

    def to(self, device: str) -> None:
        """Move the model."""
        if (held := self.held()) is not None:
            held.to(device)


def release() -> None:
    """Forget every held model; the next use loads it again."""
    with _LOCK:
        _HELD.clear()
        _COMPANIONS.clear()


def device_of(name: str) -> torch.device:
    """The device of a name; auto = the GPU if there is one, else the CPU. ValueError if there is no such device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} does not exist: write auto, cpu, cuda or cuda:1") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {name!r} was asked for, but this machine has {torch.cuda.device_count()} GPUs: write auto or cpu"
        )
    return device


def load_pretrained(load: Callable[..., Loaded], source: str, what: str, **settings: object) -> Loaded:
    """Call `Class.from_pretrained(source)` of transformers; weights that do not fit, or are not finite, are an error.

    Args:
        load: the class's `from_pretrained`.
        source: hub id or folder.
        what: name of the setting that holds `source`, for errors.
        settings: passed on.

    Raises:
        FileNotFoundError: no such folder or hub model.
        ValueError: the checkpoint is broken, or of another architecture.
    """
    is_model = hasattr(getattr(load, "__self__", None), "base_model_prefix") or "AutoModel" in repr(load)
    if _name(load).startswith("Auto"):
        # left open, transformers asks the terminal whether to run code of the repository
        settings = {"trust_remote_code": False} | settings
    place = f"{what} {source!r}"
    check_hub(source)
    try:
        if is_model:
            return load_whole(load, source, place, ignore_mismatched_sizes=True, **settings)
        with readable(place, source):
            return load(source, **settings)
    except OSError as error:
        raise FileNotFoundError(not_found(what, source, error)) from None
    except ValueError as error:
        if CODE not in str(error):
            raise
        raise ValueError(f"{place} comes with Python files of its own, which are not run: name another model") from None


def companion(kind: str, source: str, what: str, **settings: object) -> Loaded:
    """A tokenizer, processor or configuration of transformers, read once per process: `companion("AutoTokenizer", ...)`."""
    key = (kind, source, tuple(sorted(settings.items())))
    with _LOCK:
        if key not in _COMPANIONS:
            import transformers

            _COMPANIONS[key] = load_pretrained(getattr(transformers, kind).from_pretrained, source, what, **settings)
        return _COMPANIONS[key]


def read_weights(file: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Names and tensors of a .safetensors or torch file, out of a wrapping `state_dict` or `model`; nothing is executed.

    Raises ValueError where the file holds something else.
    """
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        with readable(str(file), file):
            return load_file(file)
    try:
        found = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:  # noqa: BLE001 - unpicklers raise whatever a foreign file provokes
        raise ValueError(f"{file} cannot be read as tensors alone: {first_line(error)}") from None
    for wrapping in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(wrapping), Mapping):
            found = found[wrapping]
    if not isinstance(found, Mapping):
        raise ValueError(f"{file} holds an object of type {type(found).__name__}, not the names and tensors of a model")
    return {str(key): value for key, value in found.items() if isinstance(value, Tensor)}


def fill(model: nn.Module, weights: Mapping[str, Tensor], source: str, optional: Sequence[str] = ()) -> None:
    """Load weights that must fit; keys that start with one of `optional` may be too many.

    Raises ValueError naming missing or unexpected keys, other shapes, or weights that are not finite.
    """
    own = model.state_dict()
    missing = [key for key in own if key not in weights]
    unexpected = [key for key in weights if key not in own and not key.startswith(tuple(optional))]
    wrong = [key for key in own if key in weights and own[key].shape != weights[key].shape]
    refuse_other_keys(missing, unexpected, wrong, source, type(model).__name__)
    refuse_non_finite(((name, weights[name]) for name, _ in model.named_parameters() if name in weights), source)
    model.load_state_dict({key: weights[key] for key in own}, assign=any(weight.is_meta for weight in own.values()))


def unfilled() -> AbstractContextManager[object]:
    """Build models inside without drawing their weights, which takes minutes for large ones; `fill` gives them some."""
    from accelerate import init_empty_weights

    return init_empty_weights(include_buffers=False)


def chunks(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Rows in order, at most `size` at a time; ValueError for a size below 1."""
    if size < 1:
        raise ValueError(f"batch_size is {size}: it must be at least 1")
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _name(load: Callable[..., object]) -> str:
    owner = getattr(load.func if isinstance(load, partial) else load, "__self__", None)
    return getattr(owner, "__name__", repr(load))


def collapse_layers(weights: Mapping[str, Tensor], source: str) -> tuple[Tensor, Tensor]:
    """Multiply linear layers that follow each other without activations into one row and one bias, in float64.

    Keys end in `<number>.weight` and `<number>.bias`, in this order. ValueError where layers do not fit each other, do not end
    in one number, or are not finite.
    """
    order = sorted({key.rpartition(".")[0] for key in weights}, key=lambda name: int(name.rpartition(".")[2]))
    row, bias = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    try:
        for name in reversed(order):
            bias = bias + row @ weights[f"{name}.bias"].double()
            row = row @ weights[f"{name}.weight"].double()
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"{source} holds no row of linear layers that ends in one number: {first_line(error)}") from None
    refuse_non_finite((("its product", row), ("its bias", bias)), source)
    return row[0].float(), bias[0].float()
