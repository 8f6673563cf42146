"""Settings of published models that come with mmrl, so that a plan needs neither network nor download; weights do not.

Every file of known_models/ holds the numbers of a repository's configs that shapes follow from, and how many weights the network
that trains has. Processors have the published sizes of pictures and a tokenizer that writes one token per letter.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from mmrl.app.config.run import RunConfig
from mmrl.app.plugins.lab import small_models
from mmrl.app.run.build import with_local_model
from mmrl.runtime.cache import cache_folder, keep

FOLDER = Path(__file__).parent / "known_models"
IDS = ("_token_id", "_token_index")
"""Ends of the names of ids, which are the tokenizer's."""
Known = Mapping[str, Any]
"""A file of known_models/."""


@cache
def files_by_name() -> Mapping[str, Path]:
    """Hub name in small letters -> the file with its settings."""
    return {file.stem.replace("--", "/").lower(): file for file in FOLDER.glob("*.json")}


def with_settings(config: RunConfig) -> RunConfig:
    """The run with a model whose configs can be read here: a known one that is not on this machine is made of its settings."""
    config = with_local_model(config)
    found = settings_of(config)
    if found is None:
        return config
    digest = hashlib.blake2b(found.read_bytes() + Path(__file__).read_bytes(), digest_size=6).hexdigest()
    # Families look at the name of a model.
    folder = cache_folder() / f"settings-{digest}" / found.stem
    read: Known = json.loads(found.read_text(encoding="utf-8"))
    folder = keep(folder, "", config.modality.index_file, partial(write_files, read))
    return replace(config, policy=replace(config.policy, model=str(folder)))


def settings_of(config: RunConfig) -> Path | None:
    """The file with the settings of a run's model; None for one that is on this machine, is not known, or is of another kind."""
    model, index_file = config.policy.model, config.modality.index_file
    found = files_by_name().get(model.lower())
    if found is None or Path(model).expanduser().exists():
        return None
    from huggingface_hub import try_to_load_from_cache

    is_generator = "files" in json.loads(found.read_text(encoding="utf-8"))
    if isinstance(try_to_load_from_cache(model, index_file), str) or is_generator != (index_file == "model_index.json"):
        return None
    return found


def note_of(config: RunConfig) -> str:
    """A sentence where a plan is made of settings that come with mmrl; else empty."""
    found = settings_of(config)
    if found is None:
        return ""
    said = f"{config.policy.model} is not on this machine, so its published settings are counted, which come with mmrl"
    letters = config.modality.output == "text"
    return said + ("; texts count one token per letter, which is too much" if letters else "")


def write_files(known: Known, folder: Path) -> None:
    """The configs of a pipeline's parts, or of a model that writes, with a tokenizer of letters and its class's processor."""
    for name, config in known.get("files", {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(config), encoding="utf-8")
    if "files" in known:
        return
    model, processor = small_models().writer(known["family"])
    small, config = model.config.to_dict(), dict[str, Any](known["config"])
    ids = {"eos_token_id", "pad_token_id", "bos_token_id"}
    for part in ("text_config", "vision_config"):
        kept = {name: value for name, value in small[part].items() if name == "model_type" or name in ids}
        config[part] = {**kept, **config[part]}
    config |= {name: value for name, value in small.items() if name == "model_type" or name.endswith(IDS)}
    for name, value in known["image_processor"].items():
        setattr(processor.image_processor, name, value)
    for name, value in known["processor"].items():
        setattr(processor, name, value)
    processor.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
