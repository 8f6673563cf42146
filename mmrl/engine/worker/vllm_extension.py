"""New weights for a vLLM that runs; `vllm serve` imports this in its worker processes, mmrl never does.

    PYTHONPATH=<this folder> vllm serve MODEL --worker-extension-cls vllm_extension.WeightExtension
        --weight-transfer-config '{"backend": "file"}'   # or "broadcast"

`/update_weights {"update_info": {"path": PATH}}` then reads one file, or all files of a folder; with "broadcast" also
`{"update_info": {"group": NAME, "tensors": TENSORS}}` takes them from the trainer. vLLM takes a layer apart when an update
begins, and with one that failed half-way the next request would end the process. So names and shapes are compared with those
of the model first, and after a broken transfer the next whole update begins all layers anew.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from weight_copy import copy_near, drop_copies, problem, problem_of_local
from weight_group import Receiver, read_tensors

Shapes = dict[str, tuple[int, ...]]
"""Name of a tensor -> its shape."""
SHOWN = 3
"""Names that an error quotes."""


def weight_files(path: str) -> list[Path]:
    """The safetensors files of a path: itself, or those of the folder; ValueError where there is none."""
    given = Path(path)
    files = sorted(given.glob("*.safetensors")) if given.is_dir() else [given]
    if not files or not files[0].is_file():
        raise ValueError(f"no weights at {path}: is this folder shared with the engine?")
    return files


def shapes_of(files: list[Path]) -> Shapes:
    """Names and shapes by the files' headers alone; ValueError where a file is cut off, or no safetensors file."""
    found: Shapes = {}
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                names = opened.keys()  # safe_open is no mapping, and cannot be iterated over
                found |= {name: tuple(opened.get_slice(name).get_shape()) for name in names}
        except Exception as error:
            raise ValueError(f"{file} cannot be read as safetensors ({error}): was it written to its end?") from error
    return found


def tensors_of(files: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor, one at a time, so that the model is never in memory twice."""
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - safe_open is no mapping
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


def check_weights(model: torch.nn.Module, model_config: ModelConfig, given: Shapes, place: str) -> None:
    """Compare weights that are to come with those that the engine was started with; published checkpoints may have older names.

    Raises ValueError where they are not a complete set of the model's weights.
    """
    mapper: Mapper | None = getattr(model, "hf_to_vllm_mapper", None)

    def named(shapes: Shapes) -> Shapes:
        return {(mapper.map_name(name) or name) if mapper else name: shape for name, shape in shapes.items()}

    wanted = named(shapes_of(weight_files(str(model_folder(model_config)))))
    configs = (model_config.hf_config, model_config.hf_text_config)
    if fault := compare(wanted, named(given), any(getattr(config, "tie_word_embeddings", False) for config in configs)):
        raise ValueError(f"{place}: {fault}")


def begin_anew(model: torch.nn.Module) -> None:
    """Forget what an update that failed half-way has left: layers that wait would count its tensors and the next one's."""
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            info.load_numel = 0
            info.loaded_weights.clear()


@dataclass
class FileInit(WeightTransferInitInfo):
    """Nothing has to be agreed on."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """Where the weights lie as the engine's machine sees it, or what comes from the trainer."""

    path: str = ""
    group: str = ""
    """The trainer's group that they come through."""
    tensors: str = ""
    """What comes, as `tensors_as_json` writes it."""


class FileWeightTransferEngine(WeightTransferEngine[FileInit, FileUpdate]):
    """The backends "file" and "broadcast"."""

    init_info_cls, update_info_cls = FileInit, FileUpdate
    begun = False
    receiver: Receiver | None = None

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
        if update_info.path:
            files = weight_files(update_info.path)
            check_weights(self.model, self.model_config, shapes_of(files), update_info.path)
            self.load(tensors_of(files))
            return
        facts = read_tensors(update_info.tensors)
        check_weights(self.model, self.model_config, {one.name: one.shape for one in facts}, "the trainer's weights")
        if self.receiver is None:
            raise ValueError("this worker has not met a trainer: call meet_trainer and join_trainer first")
        coming = self.receiver.tensors(update_info.group, facts)
        try:
            self.load(coming)
            for _ in coming:
                """Whatever the model left out still comes: the trainer sends all."""
        except BaseException:
            self.receiver.leave()
            raise

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the model apart and give it these weights."""
        if self.begun:
            begin_anew(self.model)
        with torch.device(self.device):
            initialize_layerwise_reload(self.model)
        self.begun = True
        self.model.load_weights(tensors)

    def finish_weight_update(self) -> None:
        if not self.begun:
            raise ValueError("no weights were given since the update began: call /update_weights before /finish_weight_update")
        with torch.device(self.device):
            finalize_layerwise_reload(self.model, self.model_config)
        self.begun = False

    def shutdown(self) -> None:
        if self.receiver is not None:
            self.receiver.leave()


for backend in ("file", "broadcast"):
    if backend not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(backend, FileWeightTransferEngine)


class WeightExtension:
    """Methods of every worker that `/collective_rpc {"method": ...}` calls."""

    model_runner: Any
    vllm_config: Any
    weight_transfer_engine: FileWeightTransferEngine
    device: torch.device
    rank: int

    def weights_problem(self, path: str) -> str:
        """The fault of a file, in one sentence; empty: `/update_weights` will take it."""
        return problem(lambda: self.check(shapes_of(weight_files(path)), path))

    def tensors_problem(self, facts: str) -> str:
        """The fault of tensors that are to come from the trainer; empty: none."""
        return problem(lambda: self.check({one.name: one.shape for one in read_tensors(facts)}, "the trainer's weights"))

    def local_problem(self, message: str) -> str:
        """Why no copy of weights can be made on this machine; empty: one can."""
        return problem_of_local(*json.loads(message))

    def copy_near(self, message: str) -> str:
        """Copy weights to this machine unless another worker did; what is wrong, in one sentence."""
        return problem(copy_near, *json.loads(message))

    def drop_copies(self, local: str) -> str:
        """Remove the copy: the run is over."""
        drop_copies(local)
        return ""

    def check(self, given: Shapes, place: str) -> None:
        check_weights(self.model_runner.get_model(), self.vllm_config.model_config, given, place)

    def meet_trainer(self, message: str) -> str:
        """Go where the trainer waits, and say what this worker is; what is wrong, in one sentence."""
        layout, engine = self.vllm_config.parallel_config, self.weight_transfer_engine
        if engine.receiver is None:
            rank = layout.data_parallel_index * layout.world_size + self.rank
            engine.receiver = Receiver(rank, layout.data_parallel_size * layout.world_size, self.device)
        return engine.receiver.meet(message)

    def join_trainer(self, kind: str) -> str:
        """Join the trainer's group; what is wrong, in one sentence."""
        receiver = self.weight_transfer_engine.receiver
        return receiver.join(kind) if receiver is not None else "this worker has not met a trainer"

    def not_in_group(self, name: str) -> str:
        """Empty where this worker is in the trainer's group of this name."""
        receiver = self.weight_transfer_engine.receiver
        return "" if receiver is not None and receiver.is_in(name) else "it is not in the group"
