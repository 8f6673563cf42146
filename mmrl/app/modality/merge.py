"""Adapters added to the models below them, so that the files need no other; weight by weight where .safetensors allow."""

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mmrl.policies.codes.settings import CodePolicyConfig
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.quantized.table import (
    PARTS,
    STATE,
    Read,
    dequantize,
    facts_of_weight,
    file_of,
    is_part,
    method_of,
    read_codes,
    read_tensor,
    round_weight,
)
from mmrl.policies.text.settings import TextPolicyConfig

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


Deltas = Mapping[str, Callable[[], Tensor]]
"""Name of a weight -> what an adapter adds to it, computed when it is asked for."""
Onto = Literal["trained", "original"]
"""What an adapter that was trained beside 4 bits is added to: the numbers that these stand for, or those they were made from."""
TRANSFORMER = "diffusion_pytorch_model"
"""How diffusers names the files of a network."""


def on_original(policy: TextPolicyConfig | FlowPolicyConfig | CodePolicyConfig) -> TextPolicyConfig | FlowPolicyConfig:
    """The settings of a policy beside its weights as they are stored; ValueError where it was trained beside these."""
    if isinstance(policy, CodePolicyConfig) or policy.weights == "float" or is_stored_in_codes(policy):
        raise ValueError(
            f"the adapter was trained beside the weights that {policy.model!r} stores, so there are no others to merge it onto: "
            "leave --onto out"
        )
    usual: Any = type(policy.quantized)()
    return replace(policy, weights="float", quantized=usual)


def is_stored_in_codes(policy: TextPolicyConfig | FlowPolicyConfig) -> bool:
    """Are weights of the model quantized in its files?"""
    if isinstance(policy, TextPolicyConfig):
        files = [file_of(policy.model, "config.json")]
    else:
        from mmrl.policies.flow.families.known import own_family
        from mmrl.policies.flow.loading import load_index, pipeline_folder
        from mmrl.policies.flow.single_file import is_single

        if is_single(policy):
            return False
        files = [*pipeline_folder(policy.model, load_index(policy.model, own_family(policy))).glob("*/config.json")]
    return any(method_of(json.loads(file.read_text(encoding="utf-8"))) for file in files if file is not None)


def merge_adapter(
    folder: Path,
    base: str,
    trust_remote_code: bool = False,
    most: int = SHARD,
    variant: str | None = None,
    parts: Collection[str] = (),
    double: bool = True,
) -> None:
    """Replace peft's adapter in `folder` by the model with the adapter added, in files of at most `most` bytes.

    A folder of a model of several parts, as Qwen2.5-Omni's, stays one: the others' weights are copied.
    Sums are taken in float32 and stored as the base model's weights are. One file's weights and the adapter are in memory at
    a time, unless the model has code of its own, no .safetensors files, or an adapter that is no plain product of matrices.
    Linear layers of `parts` are rounded to 4 bits before, as they were when the adapter was trained beside them (`double`: see
    policy.quantized), and weights that are stored in 4 bits are made again; ValueError where files do not allow that.
    """
    stored = None if trust_remote_code else find_weights(partial(file_of, base), "model", variant)
    deltas = None if stored is None else text_deltas(folder, base, stored)
    is_coded = stored is not None and stored.is_coded
    names = () if not parts or stored is None or is_coded else names_to_round(base, stored, parts)
    if stored is None or deltas is None or names is None:
        if parts or is_coded:
            raise ValueError(
                f"the adapter was trained beside {base} in 4 bits, which its files do not allow to round alike: export it alone"
            )
        merge_in_memory(folder, base, trust_remote_code, variant)
        return
    write_weights(stored.sizes(), partial(add, deltas, stored, names=names, double=double), folder, "model", most)
    drop_adapter(folder)
    for name in ("config.json", "generation_config.json"):
        if (found := file_of(base, name)) is not None:
            copy_config(found, folder / name)


def merge_in_memory(folder: Path, base: str, trust_remote_code: bool = False, variant: str | None = None) -> None:
    """Merge like `merge_adapter`, with the whole model in memory, in float32; weights that are one with others' are cut loose."""
    from transformers import AutoConfig

    from mmrl.policies.shared.lora import LoraSettings, load_adapter
    from mmrl.policies.text.families import writing_part
    from mmrl.policies.text.loading import load_weights

    config = writing_part(AutoConfig.from_pretrained(base, trust_remote_code=trust_remote_code))
    stored = config.dtype or torch.float32
    options = {"trust_remote_code": trust_remote_code, **({} if variant is None else {"variant": variant})}
    model = load_weights(base, config, dtype=torch.float32, **options)
    adapted: Any = load_adapter(model, LoraSettings(adapter=str(folder)))
    untie(model)
    merged: Any = adapted.merge_and_unload()
    drop_adapter(folder)
    merged.to(stored).save_pretrained(folder)


def untie(model: Any) -> None:
    """Give adapted layers whose weight is another layer's, too, one of their own: the adapter is added to one of the two."""
    tied = tied_layers(model)
    for layer in tied:
        layer.weight = nn.Parameter(layer.weight.detach().clone())
    for config in (model.config, model.config.get_text_config(decoder=True)) if tied else ():
        config.tie_word_embeddings = False


def tied_layers(model: nn.Module) -> list[Any]:
    """The layers below adapters whose weight is another layer's, too, as that of a head which is the input embedding."""
    from peft.tuners.lora.layer import LoraLayer

    plain = [module for module in model.modules() if not isinstance(module, LoraLayer)]
    held = Counter(id(module.weight) for module in plain if isinstance(getattr(module, "weight", None), Tensor))
    layers = [module.get_base_layer() for module in model.modules() if isinstance(module, LoraLayer)]
    return [layer for layer in layers if held[id(getattr(layer, "weight", None))] > 1]


def copy_config(source: Path, target: Path) -> None:
    """Copy a model's config, but for what it says about quantized weights."""
    config: dict[str, object] = json.loads(source.read_text(encoding="utf-8"))
    if config.pop("quantization_config", None) is None:
        shutil.copyfile(source, target)
    else:
        target.write_text(json.dumps(config, indent=2), encoding="utf-8")


def drop_adapter(folder: Path) -> None:
    """Remove what peft wrote."""
    for file in (*folder.glob("adapter_*"), folder / "README.md"):
        file.unlink(missing_ok=True)


def text_deltas(folder: Path, base: str, stored: StoredWeights) -> Deltas | None:
    """The share of peft's adapter in `folder`, by the names of the stored weights.

    None where files do not allow it, or where a weight that an adapter changes is another layer's, too.
    """
    from peft import LoraConfig, get_peft_model
    from peft.utils import load_peft_weights

    with torch.device("meta"):
        model, names = named_model(base, stored)
        settings = LoraConfig.from_pretrained(str(folder))
        if type(settings) is not LoraConfig:
            return None
        adapted = get_peft_model(model, settings)
    found = plain_deltas(adapted, load_peft_weights(str(folder), device="cpu"))
    if found is None or tied_layers(adapted):
        return None
    deltas = {names.get(name.removeprefix("base_model.model.")): delta for name, delta in found.items()}
    return None if None in deltas else {name: delta for name, delta in deltas.items() if name is not None}


def names_to_round(base: str, stored: StoredWeights, parts: Collection[str]) -> Collection[str] | None:
    """The stored weights of the linear layers of `parts` that rest in 4 bits; None where transformers does more than rename."""
    from mmrl.policies.text.families import family_of
    from mmrl.policies.text.loading import layers_to_quantize

    with torch.device("meta"):
        model, names = named_model(base, stored)
    found = {names.get(f"{name}.weight") for name in layers_to_quantize(model, family_of(model.config), parts)}
    return None if None in found else {name for name in found if name is not None}


def named_model(base: str, stored: StoredWeights) -> tuple[Any, Mapping[str, str]]:
    """A model that writes, without weights, and the stored names of its weights by its own."""
    from transformers import AutoConfig

    from mmrl.policies.shared.quantized.load import checkpoint_names
    from mmrl.policies.text.families import model_class, writing_part

    config = writing_part(AutoConfig.from_pretrained(base))
    model: Any = model_class(config).from_config(config)
    return model, checkpoint_names(model, stored.files)


def plain_deltas(adapted: nn.Module, saved: Mapping[str, Tensor]) -> Deltas | None:
    """The share of saved adapter weights in each weight of a network on the meta device that has such an adapter.

    None where it is more than a product of two matrices beside a linear layer: that is for peft alone.
    """
    from peft.tuners.lora import Linear
    from peft.tuners.lora.layer import LoraLayer

    from mmrl.policies.shared.lora import ADAPTER

    deltas: dict[str, Callable[[], Tensor]] = {}
    used: set[str] = set()
    for name, layer in adapted.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        own = {f"lora_{side}.{ADAPTER}.weight": f"{name}.lora_{side}.weight" for side in "AB"}
        if type(layer) is not Linear or layer.lora_variant or not saved.keys() >= set(own.values()):
            return None
        layer.load_state_dict({key: saved[there] for key, there in own.items()}, strict=False, assign=True)
        used |= set(own.values())
        deltas[f"{name}.weight"] = partial(layer.get_delta_weight, ADAPTER)
    return deltas if used == saved.keys() else None


@torch.no_grad()
def add(
    deltas: Deltas,
    stored: StoredWeights,
    name: str,
    dtype: torch.dtype | None = None,
    names: Collection[str] = (),
    double: bool = True,
) -> Tensor:
    """A stored weight with what belongs to it added, in `dtype` or as it was; the sum is taken in float32.

    Those of `names` are rounded to 4 bits before.
    """
    weight = stored.read(name)
    kept = weight.dtype if dtype is None or not weight.is_floating_point() else dtype
    if name in names:
        weight = round_weight(weight, double)
    return (weight.float() + deltas[name]().float() if name in deltas else weight).to(kept)


def merge_lora(folder: Path, policy: FlowPolicyConfig, most: int = SHARD) -> None:
    """Replace diffusers' adapter in `folder` by the pipeline with the adapter added, in files of at most `most` bytes.

    The sum is taken in float32 and written in the policy's dtype; the other parts of the pipeline are copied. One file's
    weights and the adapter are in memory at a time, unless the pipeline trains two networks, comes from one file or in a
    variant, its network has no .safetensors files, or the adapter is no plain product of matrices.
    """
    from mmrl.policies.flow.dry_run import part_of
    from mmrl.policies.flow.in_4_bits import parts_in_4_bits
    from mmrl.policies.flow.loading import describe, pipeline_folder
    from mmrl.policies.flow.single_file import is_single
    from mmrl.policies.shared.quantized.load import linear_names

    if is_single(policy) or policy.variant is not None:
        merge_pipeline_in_memory(folder, policy)
        return
    _, index, kind = describe(policy)
    names = kind.present(index)
    name = names[0]
    source = pipeline_folder(policy.model, index)
    dtype: torch.dtype = getattr(torch, policy.dtype)
    stored = find_weights(lambda file: path if (path := source / name / file).is_file() else None, TRANSFORMER)
    deltas = None if stored is None or len(names) > 1 else image_deltas(folder, policy.model, index, name)
    if stored is None or deltas is None or not deltas.keys() <= stored.files.keys():
        merge_pipeline_in_memory(folder, policy)
        return
    (folder / name).mkdir()
    small, double = parts_in_4_bits(policy, index, names), policy.quantized.double
    with torch.device("meta"):
        layers = linear_names(part_of(policy.model, index, name)) if name in small and not stored.is_coded else []
    merged = partial(add, deltas, stored, dtype=dtype, names={f"{layer}.weight" for layer in layers}, double=double)
    write_weights(stored.sizes(dtype), merged, folder / name, TRANSFORMER, most)
    copy_config(source / name / "config.json", folder / name / "config.json")
    shutil.copyfile(source / "model_index.json", folder / "model_index.json")
    for part, held in index.items():
        if isinstance(held, list) and held[0] is not None and part != name:
            shutil.copytree(source / part, folder / part)
            if part in small:
                round_reader(folder / part, part_of(policy.model, index, part), double, most)
    for file in folder.glob("*.safetensors"):
        file.unlink()


def round_reader(folder: Path, reader: nn.Module, double: bool, most: int) -> None:
    """Write the weights of a text encoder in `folder` again, its linear layers rounded to 4 bits."""
    from mmrl.policies.shared.quantized.load import checkpoint_names, linear_names

    stored = find_weights(lambda file: path if (path := folder / file).is_file() else None, "model")
    if stored is None or stored.is_coded:
        return
    names = checkpoint_names(reader, stored.files)
    rounded = {names[f"{layer}.weight"] for layer in linear_names(reader)}
    unfinished = folder / "rounded"
    unfinished.mkdir()
    write_weights(stored.sizes(), partial(add, {}, stored, names=rounded, double=double), unfinished, "model", most)
    for file in (*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")):
        file.unlink()
    for file in unfinished.iterdir():
        file.rename(folder / file.name)
    unfinished.rmdir()


def image_deltas(folder: Path, model: str, index: Mapping[str, Any], name: str) -> Deltas | None:
    """The share of the adapter in `folder` in the network `name`; None where it is no plain one of this alone."""
    from peft import LoraConfig

    from mmrl.policies.flow.dry_run import part_of

    kind = getattr(import_module("diffusers"), index["_class_name"])
    if not hasattr(kind, "lora_state_dict"):
        return None
    *read, adapter_metadata = kind.lora_state_dict(str(folder), return_lora_metadata=True)
    saved, prefix = read[0], f"{name}."
    settings = {key.removeprefix(prefix): value for key, value in (adapter_metadata or {}).items() if key.startswith(prefix)}
    if not settings or not all(key.startswith(prefix) for key in saved):
        return None
    with torch.device("meta"):
        network = part_of(model, dict(index), name)
        network.add_adapter(LoraConfig(**settings))
    return plain_deltas(network, {key.removeprefix(prefix): value for key, value in saved.items()})


def merge_pipeline_in_memory(folder: Path, policy: FlowPolicyConfig) -> None:
    """Merge like `merge_lora`, with the whole pipeline in memory, in float32; ValueError where it rests in 4 bits."""
    if policy.weights != "float":
        raise ValueError(
            f"the adapter was trained beside {policy.model} in 4 bits, which its files do not allow to round alike: export the "
            "adapter alone"
        )
    from mmrl.policies.flow.loading import load
    from mmrl.policies.shared.lora import LoraSettings

    family = load(replace(policy, lora=LoraSettings(adapter=str(folder)), dtype="float32"))
    for name, network in family.trained.items():
        network.fuse_lora()
        network.unload_lora()
        network.to(getattr(torch, policy.dtype))
        shutil.rmtree(folder / name, ignore_errors=True)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    family.pipeline.save_pretrained(folder)
