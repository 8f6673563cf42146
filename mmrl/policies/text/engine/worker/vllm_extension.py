"""Weights from a safetensors file into a vLLM that runs; `vllm serve` imports this in its worker processes, mmrl never does.

    PYTHONPATH=<this folder> vllm serve MODEL --worker-extension-cls vllm_extension.WeightExtension
        --weight-transfer-config '{"backend": "file"}'

`/update_weights {"update_info": {"path": PATH}}` then reads one file, or all files of a folder. vLLM takes a layer apart when
an update begins and cannot put it together again when one fails: the next request would end the process. So the names and
shapes of the file are compared with those of the model first, and a file that does not fit leaves the old weights in place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

Shapes = dict[str, tuple[int, ...]]
"""Name of a tensor -> its shape."""
SHOWN = 3
"""Names that an error quotes."""


def weight_files(path: str) -> list[Path]:
    """The safetensors files of a path: itself, or those of the folder.

    Raises:
        ValueError: there is none.
    """
    given = Path(path)
    files = sorted(given.glob("*.safetensors")) if given.is_dir() else [given]
    if not files or not files[0].is_file():
        raise ValueError(f"no weights at {path}: is this folder shared with the engine?")
    return files


def shapes_of(files: list[Path]) -> Shapes:
    """Names and shapes as the files' headers say them; no tensor is read.

    Raises:
        ValueError: a file is cut off, or no safetensors file.
    """
    found: Shapes = {}
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                found |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        except Exception as error:
            raise ValueError(f"{file} cannot be read as safetensors ({error}): was it written to its end?") from error
    return found


def tensors_of(files: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor, one at a time, so that the model is never in memory twice."""
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)


class ModelConfig(Protocol):
    """The part of vLLM's configuration that is read here."""

    model: str
    revision: str | None
    hf_config: object
    hf_text_config: object


class Mapper(Protocol):
    """vLLM's table from names in checkpoints to its own."""

    def map_name(self, key: str) -> str | None: ...


def model_folder(model_config: ModelConfig) -> Path:
    """Where the weights lie that the engine was started with."""
    if Path(model_config.model).is_dir():
        return Path(model_config.model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model_config.model, revision=model_config.revision, local_files_only=True))


def compare(wanted: Shapes, given: Shapes, tied: bool) -> str:
    """The fault of the given weights, in one sentence; empty: none."""
    missing, strange = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if tied:
        missing, strange = ([name for name in names if not name.endswith("lm_head.weight")] for names in (missing, strange))
    other = sorted(name for name in set(wanted) & set(given) if wanted[name] != given[name])
    if missing:
        return f"{len(missing)} weights are missing, {', '.join(missing[:SHOWN])}: an update holds all weights of the model"
    if strange:
        return f"{len(strange)} weights are none of the model's, {', '.join(strange[:SHOWN])}: is it the same model?"
    if other:
        name = other[0]
        return f"{name} has shape {given[name]}, the model's has {wanted[name]}: is it the same model?"
    return ""


def check_weights(model: torch.nn.Module, model_config: ModelConfig, path: str) -> None:
    """Compare a file with the weights that the engine was started with; published checkpoints may have older names.

    Raises:
        ValueError: the file is no whole set of the model's weights.
    """
    mapper: Mapper | None = getattr(model, "hf_to_vllm_mapper", None)

    def named(shapes: Shapes) -> Shapes:
        return {(mapper.map_name(name) or name) if mapper else name: shape for name, shape in shapes.items()}

    given = named(shapes_of(weight_files(path)))
    wanted = named(shapes_of(weight_files(str(model_folder(model_config)))))
    configs = (model_config.hf_config, model_config.hf_text_config)
    problem = compare(wanted, given, any(getattr(config, "tie_word_embeddings", False) for config in configs))
    if problem:
        raise ValueError(f"{path}: {problem}")


@dataclass
class FileInit(WeightTransferInitInfo):
    """Nothing has to be agreed on."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """Where the weights lie, as the engine's machine sees it."""

    path: str = ""


class FileWeightTransferEngine(WeightTransferEngine[FileInit, FileUpdate]):
    """vLLM's backend "file"."""

    init_info_cls, update_info_cls = FileInit, FileUpdate
    begun = False

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Nothing to do: there is no connection."""

    def start_weight_update(self) -> None:
        """Nothing yet: the model is taken apart once the file was looked at."""

    def update_weights(self, update_info: dict[str, str]) -> None:
        """Overridden, because the base class waits for an accelerator, which a CPU has not."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdate) -> None:
        check_weights(self.model, self.model_config, update_info.path)
        with torch.device(self.device):
            initialize_layerwise_reload(self.model)
        self.begun = True
        self.model.load_weights(tensors_of(weight_files(update_info.path)))

    def finish_weight_update(self) -> None:
        if not self.begun:
            raise ValueError("no weights were given since the update began: call /update_weights before /finish_weight_update")
        with torch.device(self.device):
            finalize_layerwise_reload(self.model, self.model_config)
        self.begun = False

    def shutdown(self) -> None:
        """Nothing is held."""


if "file" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("file", FileWeightTransferEngine)


class WeightExtension:
    """Methods of every worker that `/collective_rpc {"method": ...}` calls."""

    model_runner: Any
    vllm_config: Any

    def weights_problem(self, path: str) -> str:
        """The fault of a file, in one sentence; empty: `/update_weights` will take it."""
        try:
            check_weights(self.model_runner.get_model(), self.vllm_config.model_config, path)
        except ValueError as error:
            return str(error)
        return ""
