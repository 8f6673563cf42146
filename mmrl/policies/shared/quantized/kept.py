"""Models whose codes are made once: written file by file to mmrl's cache, and read from there as a folder of bitsandbytes'.

Every process then reads the same codes, whichever machine made them. A server that knows no codes reads a folder of what they
stand for.
"""

import fcntl
import hashlib
import json
import logging
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mmrl.policies.shared.quantized.table import dequantize, quantize, tensors_of
from mmrl.runtime.cache import cache_folder, fingerprint, note_new, note_use
from mmrl.runtime.disk import room_for, sha256_of
from mmrl.runtime.pretrained import readable, refuse_non_finite

log = logging.getLogger("mmrl")
FORMAT = 1
"""Of these folders: another number, and all are made anew."""
RECORD, LOCK = "mmrl.json", ".codes.lock"
"""The file that says which others belong to an entry, and the one by which processes wait for each other."""
WORTH_KEEPING = 2**28
"""Bytes of files from which on codes are kept: those of smaller models are made as fast as a disk reads."""
BESIDE = (".json", ".txt", ".model", ".jinja")
"""Ends of the names of what belongs to a model besides its weights, such as its tokenizer."""


@dataclass(frozen=True)
class CodesRecipe:
    """Weights to keep in 4 bits: `CodesRecipe([Path("model.safetensors")], {"layers.0.mlp.up_proj.weight"}, True, {}, "it")`."""

    files: Sequence[Path]
    """The .safetensors files of a model or of a part of a pipeline."""
    names: Collection[str]
    """Weights in these files that become codes."""
    double: bool
    """Scales are codes, too."""
    said: Mapping[str, object]
    """`quantization_config` of the folder's config.json."""
    place: str
    """Name of the model in errors."""
    stem: str = "model"
    """What the names of its files begin with."""
    whole: torch.dtype | None = None
    """Write what the codes stand for, in this type, in place of them."""

    def folder(self) -> Path | None:
        """The entry of the cache; None where it is not worth it, or the cache cannot take it. Raises as `make`."""
        if sum(file.stat().st_size for file in self.files) < WORTH_KEEPING:
            return None
        try:
            return self.make()
        except OSError as error:
            log.warning("codes of %s are not kept in %s (%s): they are made at every start", self.place, self.entry(), error)
            return None

    def make(self) -> Path:
        """The entry of the cache, made where it is not there or not whole.

        The memory holds one file as it is written and one weight in full. Raises ValueError for files that are broken or not
        finite, OSError where the cache cannot take it.
        """
        entry = self.entry()
        if entry.is_symlink():
            raise OSError("a link stands where the codes belong")
        if is_whole(entry):
            return note_use(entry)
        with alone(entry.parent):
            # Another process may have made it meanwhile.
            if is_whole(entry):
                return note_use(entry)
            if entry.exists():
                log.warning("%s is damaged, or not of this mmrl: its codes are made again", entry)
            self._put(entry)
        return note_new(entry)

    def entry(self) -> Path:
        """Where it lies in the cache; another source or other settings have another name."""
        return cache_folder() / f"{'codes' if self.whole is None else 'whole'}-{self._key()}"

    def _key(self) -> str:
        files = [fingerprint(file) for file in self.files]
        facts = [FORMAT, self.double, sorted(self.names), files, self.said, self._config(), str(self.whole)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]

    def _config(self) -> dict[str, object]:
        """The config.json of the entry."""
        file = self.files[0].parent / "config.json"
        found: dict[str, object] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return {**found, "quantization_config": self.said} if self.whole is None else found

    def _put(self, entry: Path) -> None:
        """Write all files beside the entry, then put them in its place."""
        half = entry.with_name(f".{entry.name}.half")
        # of a process that was killed, for this one is alone
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir()
        try:
            self._write(half)
            shutil.rmtree(entry, ignore_errors=True)
            half.rename(entry)
        finally:
            shutil.rmtree(half, ignore_errors=True)

    def _write(self, folder: Path) -> None:
        source, index = self.files[0].parent, dict[str, str]()
        for number, file in enumerate(self.files, start=1):
            count = len(self.files)
            own = f"{self.stem}.safetensors" if count == 1 else f"{self.stem}-{number:05d}-of-{count:05d}.safetensors"
            with readable(self.place, file):
                index |= dict.fromkeys(self._write_codes(file, folder / own), own)
        if len(self.files) > 1:
            table = {"metadata": {}, "weight_map": index}
            (folder / f"{self.stem}.safetensors.index.json").write_text(json.dumps(table), encoding="utf-8")
        for file in source.iterdir():
            if file.suffix in BESIDE and ".index." not in file.name and file.name != RECORD:
                shutil.copyfile(file, folder / file.name)
        (folder / "config.json").write_text(json.dumps(self._config(), indent=2), encoding="utf-8")
        held = {file.name: [file.stat().st_size, sha256_of(file)] for file in sorted(folder.iterdir())}
        record = {"format": FORMAT, "key": self._key(), "files": held}
        (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")

    @torch.no_grad()
    def _write_codes(self, file: Path, target: Path) -> list[str]:
        """Write one file, some of its weights as codes; the names of what it holds."""
        from safetensors import safe_open
        from safetensors.torch import save_file

        found = dict[str, Tensor]()
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - safe_open is no mapping
                weight = opened.get_tensor(name)
                refuse_non_finite([(name, weight)], self.place)
                found |= self._tensors_of(name, weight) if name in self.names else {name: weight}
        with room_for(target):
            save_file(found, target, {"format": "pt"})
        return [*found]

    def _tensors_of(self, name: str, weight: Tensor) -> dict[str, Tensor]:
        """The codes of a weight, or what they stand for, by the names in files."""
        codes = quantize(weight, self.double)
        if self.whole is None:
            return tensors_of(name, codes, weight.shape, weight.dtype)
        return {name: dequantize(codes, weight.numel(), self.whole).view(weight.shape)}


def description(double: bool, model: nn.Module | None = None, names: Collection[str] = ()) -> dict[str, object]:
    """`quantization_config` of a folder in bitsandbytes' layout; of a `model` on the meta device all but `names` are no codes."""
    left = [] if model is None else [name for name, one in model.named_modules() if isinstance(one, nn.Linear)]
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": double,
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_skip_modules": sorted(set(left) - set(names)),
    }


def is_whole(entry: Path) -> bool:
    """Does an entry of the cache hold every byte that was written, and for this key?"""
    try:
        record: Mapping[str, object] = json.loads((entry / RECORD).read_text(encoding="utf-8"))
        files = record["files"]
        assert isinstance(files, Mapping)
        sizes = all((entry / name).stat().st_size == size for name, (size, _) in files.items())
        is_own = record["format"] == FORMAT and entry.name.endswith(f"-{record['key']}")
        return is_own and sizes and all(sha256_of(entry / name) == own for name, (_, own) in files.items())
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        return False


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """A block that one process of a machine is in at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
