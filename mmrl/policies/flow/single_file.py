"""Generators whose networks lie in one .safetensors file, in the layout of their makers, as diffusers reads it.

Such a file holds no configs, and newer ones hold the transformer alone. The rest comes from the pipeline that it belongs to: the
one that policy.base names, or the one that diffusers knows for the file, if its configs were downloaded before.
"""

import hashlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.policies.flow.settings import SINGLE, FlowPolicyConfig
from mmrl.runtime.near import near
from mmrl.runtime.net.offline import offline_note
from mmrl.runtime.pretrained import readable, refuse_non_finite, without_reports

KINDS = frozenset(
    {"v1", "v2", "xl_base", "sd3", "sd35_medium", "sd35_large", "flux-dev", "flux-schnell", "flux-2-dev"}
    | {"sana", "wan-t2v-1.3B", "wan-t2v-14B", "z-image-turbo"}
)
"""The kinds of files that train here, as diffusers calls them."""
TRAINED = "Stable Diffusion 1, 2, XL, 3 and 3.5, FLUX.1, FLUX.2-dev, Sana, Wan 2.1 and Z-Image"
SURE = "model.diffusion_model.output_blocks.11.0.skip_connection.weight"
"""A name in files of the kind v1, which diffusers also takes unknown files for."""
QUANTIZED = (".scale_weight", ".weight_scale", ".absmax", "scaled_fp8", ".quant_map")
"""Ends of the names of numbers without which quantised weights mean nothing."""
T5 = "T5EncoderModel"
AUTOENCODERS = ("first_stage_model.", "vae.")
"""Beginnings of the names of an autoencoder's weights."""
CONFIGS = ("*.json", "*/*.json", "*.txt", "*/*.txt", "*/*.model")
SAMPLES, SAMPLE = 64, 2**16
"""Places of a file, and bytes at each, that say which file it is."""


def is_single(config: FlowPolicyConfig) -> bool:
    return config.model.endswith(SINGLE)


def pipeline_of(config: FlowPolicyConfig) -> FlowPolicyConfig:
    """The same settings with the pipeline that configs are read from as model: of a folder or hub model, itself.

    Raises:
        FileNotFoundError: no such file, or its pipeline is not on this machine and was not named.
        ValueError: a file that is broken, quantised, or of a kind that does not train here.
    """
    return replace(config, model=SingleFile(config).base, base=None) if is_single(config) else config


@dataclass(frozen=True)
class SingleFile:
    """The file of `policy.model`."""

    config: FlowPolicyConfig

    @property
    def place(self) -> str:
        """The file's name in errors."""
        return f"policy.model {self.config.model!r}"

    @cached_property
    def shapes(self) -> Mapping[str, Tensor]:
        """Name -> a tensor of its shape, on the meta device; weights are not read."""
        from safetensors import safe_open

        path = Path(self.config.model).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"policy.model: there is no file {self.config.model!r}{near(path)}: check the path")
        with readable(self.place, path), safe_open(path, framework="pt") as file:
            names = list(file.keys())
            found = {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name in names}
        if odd := next((name for name in names if name.endswith(QUANTIZED)), None):
            raise ValueError(f"{self.place} holds quantised weights ({odd}), which do not train here: take one in bf16 or fp16")
        return found

    @property
    def base(self) -> str:
        """Folder or hub name of the pipeline that the file belongs to; raises as `pipeline_of`."""
        shapes = self.shapes
        if self.config.base is not None:
            folder = Path(self.config.base).expanduser()
            if folder.is_dir() and not (folder / "model_index.json").is_file():
                raise ValueError(f"policy.base: the folder {self.config.base!r} has no model_index.json: give that of a pipeline")
            if not folder.is_dir() and self.config.base.startswith((".", "/", "~")):
                raise FileNotFoundError(f"policy.base: there is no folder {self.config.base!r}{near(folder)}: check the path")
            return self.config.base
        from huggingface_hub import try_to_load_from_cache

        known = import_module("diffusers.loaders.single_file_utils")
        kind = kind_of(shapes)
        if kind is None:
            raise ValueError(
                f"{self.place} is no checkpoint that diffusers recognises: set policy.base to the folder or hub name of the "
                "pipeline that it belongs to"
            )
        if kind not in KINDS:
            raise ValueError(
                f"{self.place} is of the kind that diffusers calls {kind!r}, which does not train here from one file: take one "
                f"of {TRAINED}"
            )
        name: str = known.DIFFUSERS_DEFAULT_PIPELINE_PATHS[kind]["pretrained_model_name_or_path"]
        if not isinstance(try_to_load_from_cache(name, "model_index.json"), str):
            wanted = " ".join(f"--include '{one}'" for one in CONFIGS)
            raise FileNotFoundError(
                f"{self.place} goes with the configs of {name}, which are not on this machine: get them with "
                f"`hf download {name} {wanted}`, or set policy.base to the folder of such a pipeline"
            )
        return name

    def parts(self, modules: Mapping[str, type[nn.Module]], trained: Collection[str]) -> list[str]:
        """The parts of a pipeline whose weights are in the file, or should be: those of the network that trains."""
        if len([name for name in trained if name in modules]) > 1:
            raise ValueError(
                f"{self.place} is one file, and the pipeline {self.base!r} has the networks {' and '.join(trained)}: give the "
                "folder of the pipeline"
            )
        return [name for name, part in modules.items() if name in trained or self.holds(part)]

    def holds(self, part: type[nn.Module]) -> bool:
        """Are the weights of an autoencoder or a text encoder in the file?"""
        utils = import_module("diffusers.loaders.single_file_utils")
        if hasattr(part, "from_single_file"):
            return any(key.startswith(AUTOENCODERS) for key in self.shapes)
        if part.__name__ == T5:
            return utils.is_t5_in_single_file(self.shapes)
        return utils.is_clip_model_in_single_file(part, self.shapes)

    def load(self, name: str, part: Any, dtype: torch.dtype, folder: Path) -> nn.Module:
        """A part with the weights of the file and the config in `folder`; ValueError unless all of them are there."""
        from safetensors.torch import load_file

        path, place = Path(self.config.model).expanduser(), f"{self.place} ({name})"
        utils, model = import_module("diffusers.loaders.single_file_utils"), None
        # NotImplementedError: what the file lacks is still without values when diffusers moves the model.
        with readable(place, path), without_reports(), suppress(NotImplementedError):
            # Converters take out what they have read.
            weights = load_file(path)
            if hasattr(part, "from_single_file"):
                options: dict[str, object] = {"config": str(folder), "subfolder": name, "local_files_only": True}
                model = part.from_single_file(weights, **options)
            else:
                is_t5 = part.__name__ == T5
                make = utils.create_diffusers_t5_model_from_checkpoint if is_t5 else utils.create_diffusers_clip_model_from_ldm
                model = make(part, weights, subfolder=name, config=str(folder), local_files_only=True)
                model.tie_weights()
        if model is None or any(held.is_meta for held in (*model.parameters(), *model.buffers())):
            raise ValueError(
                f"{place} lacks weights of the {part.__name__} that {self.base} describes: take a whole file, or set policy.base "
                "to the pipeline that it belongs to"
            )
        cast(model, dtype)
        refuse_non_finite(model.named_parameters(), place)
        return model

    def folder(self, absent: Collection[str]) -> Path:
        """Where the files of the pipeline lie; of one on the hub the configs are had, and the weights of the `absent` parts."""
        base = self.base
        folder = Path(base).expanduser()
        if folder.is_dir():
            return folder
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        wanted = [*CONFIGS, *(f"{name}/*.safetensors" for name in absent)]
        try:
            # What was not named is taken as it is here.
            return Path(snapshot_download(base, allow_patterns=wanted, local_files_only=self.config.base is None))
        except LocalEntryNotFoundError as error:
            reason = str(error).splitlines()[0]
            raise FileNotFoundError(f"policy.base {base!r} is not to be had ({reason}){offline_note()}") from None

    def refuse_other_prediction(self, scheduler: Mapping[str, object]) -> None:
        """Raise ValueError for a file that says it predicts v, with a pipeline that predicts noise."""
        if "v_pred" in self.shapes and scheduler.get("prediction_type") != "v_prediction":
            raise ValueError(
                f"{self.place} predicts v, and the scheduler of its pipeline says {scheduler.get('prediction_type')!r}: set "
                'policy.base to a pipeline whose scheduler_config.json has prediction_type "v_prediction"'
            )

    def fingerprint(self) -> str:
        """A hash of the file's size, beginning, end and places between: another file has another one."""
        path = Path(self.config.model).expanduser()
        size = path.stat().st_size
        made = hashlib.blake2b(str(size).encode(), digest_size=8)
        with path.open("rb") as file:
            for i in range(SAMPLES + 1):
                file.seek(max(0, size - SAMPLE) * i // SAMPLES)
                made.update(file.read(SAMPLE))
        return made.hexdigest()


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Bring a model to a type, but for what from_pretrained keeps in float32, which from_single_file does not."""
    kept = getattr(model, "_keep_in_fp32_modules", None) or ()
    for name, held in (*model.named_parameters(), *model.named_buffers()):
        if held.is_floating_point():
            held.data = held.data.to(torch.float32 if any(word in name.split(".") for word in kept) else dtype)


def kind_of(shapes: Mapping[str, Tensor]) -> str | None:
    """The kind of a checkpoint, as diffusers calls it; None where it does not recognise one."""
    try:
        kind: str = import_module("diffusers.loaders.single_file_utils").infer_diffusers_model_type(shapes)
    except (KeyError, IndexError, RuntimeError, UnboundLocalError, ValueError):
        # What it looks at is not there, or has no values here.
        return None
    return None if kind == "v1" and SURE not in shapes else kind
