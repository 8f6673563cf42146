"""Weights in .safetensors files: found by name, read one at a time, written anew in files of bounded size."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mmrl.policies.shared.quantized.stored import PARTS, STATE, Read, facts_of_weight, is_part, read_codes, read_tensor
from mmrl.policies.shared.quantized.table import dequantize

INDEX = ".safetensors.index.json"
SHARD = 2**31
"""Bytes of a written file at most, unless one weight alone has more; so much is held in memory beside the weights read."""


@dataclass(frozen=True)
class StoredWeights:
    """The weights of a checkpoint: `StoredWeights({"lm_head.weight": Path("model-00002-of-00002.safetensors")})`."""

    files: Mapping[str, Path]
    """Name of a weight -> the file that holds it."""

    def read(self, name: str) -> Tensor:
        """One weight, as it is stored; one in 4 bits as its codes say, in the type that it had before."""
        from safetensors import safe_open

        if name + STATE in self.files:
            shape, dtype = facts_of_weight(name, self._parts(name))
            return dequantize(read_codes(name, self._parts(name)), shape[0] * shape[1], dtype).view(*shape)
        with safe_open(self.files[name], framework="pt") as file:
            return file.get_tensor(name)

    @property
    def is_coded(self) -> bool:
        """Do some weights rest in 4 bits?"""
        return any(name.endswith(STATE) for name in self.files)

    def _parts(self, name: str) -> dict[str, Read]:
        """The tensors that stand for a weight in 4 bits, each as a call."""
        return {
            own: partial(read_tensor, self.files[own]) for own in (name, *(name + part for part in PARTS)) if own in self.files
        }

    def sizes(self, dtype: torch.dtype | None = None) -> dict[str, int]:
        """Name -> bytes, as it is stored, its codes say, or in another type; weights are not read."""
        from safetensors import safe_open

        found: dict[str, int] = {}
        for path in dict.fromkeys(self.files.values()):
            with safe_open(path, framework="pt") as file:
                own = [name for name in file.keys() if self.files.get(name) == path and not is_part(name)]  # noqa: SIM118 - safe_open is no mapping
                for name in own:
                    if name + STATE in self.files:
                        (rows, columns), own_dtype = facts_of_weight(name, self._parts(name))
                        found[name] = rows * columns * (dtype or own_dtype).itemsize
                        continue
                    part = file.get_slice(name)
                    shape = part.get_shape()
                    # an empty slice has the weight's type and reads nothing
                    width = (dtype or (part[:0] if shape else file.get_tensor(name)).dtype).itemsize
                    found[name] = width * math.prod(shape)
        return found


def find_weights(resolve: Callable[[str], Path | None], stem: str, variant: str | None = None) -> StoredWeights | None:
    """The weights of a checkpoint whose files are named `stem`; None where it has no .safetensors files.

    `resolve` says where one of the checkpoint's files lies on this machine, `variant` is a word in their names, such as fp16.
    """
    from safetensors import safe_open

    word = "" if variant is None else f".{variant}"
    index = resolve(f"{stem}{INDEX.removesuffix('.json')}{word}.json")
    if index is not None:
        names: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        paths = {file: resolve(file) for file in set(names.values())}
        return StoredWeights({name: path for name, file in names.items() if (path := paths[file]) is not None})
    single = resolve(f"{stem}{word}.safetensors")
    if single is None:
        return None
    with safe_open(single, framework="pt") as file:
        return StoredWeights(dict.fromkeys(file.keys(), single))


def write_weights(sizes: Mapping[str, int], make: Callable[[str], Tensor], folder: Path, stem: str, most: int = SHARD) -> None:
    """Write weights in files of at most `most` bytes, with an index where there are several.

    Only the weights of one file, which `make` gives by name, are in memory at a time; `sizes` are bytes by name, in order.
    """
    from huggingface_hub import split_state_dict_into_shards_factory
    from safetensors.torch import save_file

    found = split_state_dict_into_shards_factory(
        dict(sizes), get_storage_size=int, filename_pattern=f"{stem}{{suffix}}.safetensors", max_shard_size=most
    )
    for file, names in found.filename_to_tensors.items():
        save_file({name: make(name).contiguous() for name in names}, folder / file, {"format": "pt"})
    if found.is_sharded:
        table = {"metadata": found.metadata, "weight_map": found.tensor_to_filename}
        (folder / (stem + INDEX)).write_text(json.dumps(table, indent=2), encoding="utf-8")
