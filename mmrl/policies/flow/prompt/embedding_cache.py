"""Embeddings of prompts on disk, for all runs that encode with the same files in the same way."""

import hashlib
import importlib.metadata
import logging
import math
from pathlib import Path

import torch

from mmrl.policies.flow.families.base import Condition, FlowFamily
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.single_file import SingleFile, is_single
from mmrl.policies.shared.quantized.layer import base_of
from mmrl.runtime.cache import bound, cache_folder, fingerprint, note_new, note_use
from mmrl.runtime.disk import whole_file

log = logging.getLogger("mmrl")
WORTH_KEEPING = 20_000_000
"""Weights of text encoders from which on `embeddings = "auto"` keeps embeddings: smaller ones encode as fast as a disk reads."""
LARGEST_SHARE = 0.5
"""Share of the cache's bound that the embeddings of one model may fill."""


class EmbeddingCache:
    """Text -> Condition, in files of a folder of mmrl's cache. A damaged file is removed, and its prompt encoded again.

    Several processes may share it: a file appears whole or not at all. It stops growing at half of the cache's bound.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.room: float = math.inf
        self.is_open = True
        try:
            is_new = not folder.is_dir()
            folder.mkdir(parents=True, exist_ok=True)
            (note_new if is_new else note_use)(folder)
            used = sum(file.stat().st_size for file in folder.iterdir())
            self.room = (LARGEST_SHARE * bound() or math.inf) - used
        except OSError as error:
            self._close(error)

    def read(self, text: str, device_type: str) -> Condition | None:
        """The embeddings of a text that were made on this kind of device; None where there are none."""
        from safetensors import SafetensorError, safe_open

        file = self._file(text, device_type)
        if not file.is_file():
            return None
        try:
            with safe_open(file, "pt") as opened:
                found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
                noted = (opened.metadata() or {}).get("digest")
            if found and noted == digest_of(found):
                return found
            problem = "its values are not those that were written"
        except (SafetensorError, OSError, ValueError) as error:
            problem = str(error).splitlines()[0]
        log.warning("%s is damaged (%s): its prompt is encoded again", file, problem)
        file.unlink(missing_ok=True)
        return None

    def write(self, text: str, device_type: str, condition: Condition) -> None:
        """Keep embeddings, unless there is no room."""
        from safetensors.torch import save

        if not self.is_open:
            return
        plain = {name: value.contiguous() for name, value in condition.items()}
        content = save(plain, {"digest": digest_of(plain)})
        if len(content) > self.room:
            self.is_open = False
            log.info("no more embeddings are kept in %s: it has its share of the cache (MMRL_CACHE_GB)", self.folder)
            return
        try:
            with whole_file(self._file(text, device_type)) as half:
                half.write_bytes(content)
        except OSError as error:
            self._close(error)
            return
        self.room -= len(content)

    def _file(self, text: str, device_type: str) -> Path:
        name = hashlib.blake2b(f"{device_type}\n{text}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return self.folder / f"{name}.safetensors"

    def _close(self, error: OSError) -> None:
        self.is_open = False
        log.warning("embeddings are not kept in %s (%s): set MMRL_CACHE to a folder that can be written", self.folder, error)


def digest_of(condition: Condition) -> str:
    """A digest of names, types, shapes and values."""
    made = hashlib.blake2b(digest_size=16)
    for name, value in sorted(condition.items()):
        made.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        made.update(value.contiguous().view(torch.uint8).numpy().data if value.numel() else b"")
    return made.hexdigest()


def open_cache(config: FlowPolicyConfig, family: FlowFamily) -> EmbeddingCache | None:
    """The embeddings on disk that belong to the text encoders of a pipeline; None where they are not to be kept."""
    encoders = family.text_encoders
    size = sum(weight.numel() for part in encoders.values() for weight in part.parameters())
    if config.embeddings == "memory" or (config.embeddings == "auto" and size < WORTH_KEEPING):
        return None
    folder = Path(family.pipeline.config._name_or_path)
    names = ("text_encoder", "tokenizer", *family.told_by, *(("vae", "processor", "image_") if family.sources[1] else ()))
    read = [part for part in sorted(folder.iterdir()) if part.name.startswith(names)]
    facts = [
        type(family).__name__,
        f"variant {config.variant}",
        *([f"file {SingleFile(config).fingerprint()}"] if is_single(config) else []),
        f"{family.prompt_tokens} tokens",
        *(
            [
                f"pictures of {family.source_size}, {family.settings.source_fit}, {family.pipeline.vae.dtype}",
                f"{family.settings.frames} frames",
            ]
            if family.sources[1]
            else []
        ),
        *(
            f"{name} {type(part).__name__} {next((weight.dtype for weight in part.parameters()), None)}"
            for name, part in sorted(encoders.items())
        ),
        *(f"{name} in 4 bits {base}" for name, part in sorted(encoders.items()) if (base := base_of(part)) is not None),
        *(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "diffusers", "transformers")),
        *(fact for part in read for fact in files_of(part)),
    ]
    key = hashlib.blake2b("\n".join(facts).encode(), digest_size=6).hexdigest()
    return EmbeddingCache(cache_folder() / f"embeddings-{key}")


def files_of(folder: Path) -> list[str]:
    """The files of a part of a model: name, size, time and ends of each."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [f"{folder.name}/{file.relative_to(folder)} {fingerprint(file)}" for file in files]
