"""Weights that all come from their checkpoint: what is missing, too much, of another shape or not finite is refused, by name."""

import json
import logging
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

Load = Callable[..., object]
"""`Class.from_pretrained` of transformers or diffusers."""
BUFFERS = ("position_ids", "inv_freq")
"""Last words of tables that old checkpoints hold and that models now compute."""
OTHER_WORDS = ("LOAD REPORT", "Some weights of", "non-standard module", "EMA weights", "legacy CLIP")
"""Of what libraries log of keys and of old files, which errors here say in one sentence, and of parts of one pipeline."""
LOGGERS = (
    "transformers.modeling_utils",
    "diffusers.loaders.single_file_model",
    "diffusers.loaders.single_file_utils",
    "diffusers.models.modeling_utils",
    "diffusers.pipelines.pipeline_loading_utils",
)
CODE = "trust_remote_code"
"""In errors about models whose repositories hold Python files: their callers know the remedy."""
REMEDY = "download or save it again, or name the model that its config.json is of"
MOST_LAYERS, WIDEST = 4096, 2**24
"""Far beyond every published model; more would fill the memory before a file of weights is looked at."""
LAYERS = re.compile(r"(^|(?<!per)_)(layers?|depth|blocks)(_(?!rope_theta)|$)")
SIZES = re.compile(r"(^|_)(size|dims?|channels|heads|experts|groups|embd|padding)(_|$)")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@runtime_checkable
class LoadReport(Protocol):
    """`output_loading_info` of transformers and diffusers."""

    def __getitem__(self, key: str, /) -> Iterable[str | Sequence[object]]: ...


def load_whole(load: Load, source: str, place: str, **settings: object) -> nn.Module:
    """The model that `load(source)` makes (a `from_pretrained`), every weight of it from the checkpoint and finite.

    `place` names it in errors: `policy.model 'a/b'`.
    Raises OSError as the library does where files are missing, and ValueError where a file is cut short, or tensors are missing,
    unexpected (unless the model's class lists them as ignorable), of another shape or not finite.
    """
    config = Path(source) / "config.json"
    if config.is_file():
        with readable(place, source):
            written: object = json.loads(config.read_text())
        refuse_absurd_sizes(written, place)
    with readable(place, source), without_reports():
        model, report = cast(tuple[nn.Module, LoadReport], load(source, output_loading_info=True, **settings))
    wrong = [key if isinstance(key, str) else str(key[0]) for key in report["mismatched_keys"]]
    missing, unexpected = ([str(key) for key in report[f"{word}_keys"]] for word in ("missing", "unexpected"))
    refuse_other_keys(missing, unexpected, wrong, place, type(model).__name__)
    refuse_non_finite(model.named_parameters(), place)
    return model


def refuse_absurd_sizes(config: object, place: str) -> None:
    """Raise ValueError that names the key of a model's config which asks for more layers or numbers than any model has."""
    if isinstance(config, Mapping):
        for key, value in cast(Mapping[str, object], config).items():
            most = MOST_LAYERS if LAYERS.search(str(key)) else WIDEST if SIZES.search(str(key)) else None
            largest = max((one for one in numbers_in(value)), default=0)
            if most is not None and largest > most:
                raise ValueError(f"{place}: {key} in its config is {largest}: no model has more than {most}: {REMEDY}")
            refuse_absurd_sizes(value, place)


def numbers_in(value: object) -> Generator[int | float]:
    """A number, or those in lists inside each other."""
    if isinstance(value, list | tuple):
        for item in cast(Sequence[object], value):
            yield from numbers_in(item)
    elif isinstance(value, int | float):
        yield value


def refuse_other_keys(
    missing: Iterable[str], unexpected: Iterable[str], misshapen: Iterable[str], place: str, architecture: str
) -> None:
    """Raise ValueError that names the tensors which do not fit an architecture, if there are any."""
    known = [key for key in unexpected if not key.endswith(BUFFERS)]
    parts: list[str] = []
    for word, keys in (("missing", sorted(missing)), ("unexpected", sorted(known)), ("of another shape", sorted(misshapen))):
        if keys:
            parts.append(f"{len(keys)} {word} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})")
    if parts:
        raise ValueError(f"{place} does not hold the weights of the class {architecture}: tensors {'; '.join(parts)}: {REMEDY}")


def refuse_non_finite(weights: Iterable[tuple[str, Tensor]], place: str) -> None:
    """Raise ValueError that names the tensors which hold NaN or infinity, if there are any."""
    bad = [name for name, weight in weights if not _is_finite(weight)]
    if bad:
        raise ValueError(
            f"{place} holds NaN or infinity in {len(bad)} tensors ({', '.join(bad[:3])}{', ...' if len(bad) > 3 else ''}): "
            "download it again, or take an earlier checkpoint of the run that wrote it"
        )


@contextmanager
def readable(place: str, source: str | Path) -> Generator[None]:
    """Turn what libraries raise about broken files into a ValueError that names the file; other OSErrors pass."""
    try:
        yield
    except Exception as error:
        broken = broken_file(Path(source).expanduser())
        if broken is not None:
            raise ValueError(f"{place}: its file {broken} is cut short or broken: download or save it again") from error
        if isinstance(error, OSError) or CODE in str(error):
            raise
        said = " ".join(str(error).split())[:400]
        raise ValueError(
            f"{place} cannot be loaded: check its files, and the packages it needs ({type(error).__name__}: {said})"
        ) from error


def broken_file(folder: Path) -> Path | None:
    """The first .safetensors file (of a folder, or the file itself) that is not as long as its header says."""
    found = sorted(folder.rglob("*.safetensors")) if folder.is_dir() else [folder] if folder.suffix == ".safetensors" else []
    return next((file for file in found if file.is_file() and file.stat().st_size != _proper_size(file)), None)


def _proper_size(file: Path) -> int:
    """The bytes that the header of a .safetensors file wants; -1 where there is none."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > file.stat().st_size:
            return -1
        try:
            header = cast(Mapping[str, Mapping[str, Sequence[int]]], json.loads(stream.read(length)))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
            return 8 + length + max(ends, default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return -1


def _is_finite(weight: Tensor) -> bool:
    if weight.dtype not in _FLOATS or not weight.numel() or weight.device.type == "meta":
        return True
    low, high = torch.aminmax(weight.detach())
    return bool(low.isfinite() & high.isfinite())


@contextmanager
def without_reports() -> Generator[None]:
    """Keep libraries from logging what the errors here say."""

    def say(record: logging.LogRecord) -> bool:
        return not any(words in record.getMessage() for words in OTHER_WORDS)

    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(say)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(say)
