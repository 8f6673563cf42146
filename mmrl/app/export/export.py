"""The trained model of a run as a folder that its own library loads, with processor, prompt template and model card."""

import gc
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from mmrl.app.config import run as configs
from mmrl.app.config.run import RunConfig, as_table
from mmrl.app.errors import Terminal
from mmrl.app.export.card import CONFIG, ON_ORIGINAL, Exported, model_card, pictures, shown_name
from mmrl.app.export.forms import Form, check_form, in_form, rewrite
from mmrl.app.modality.again import FACTS, MERGED
from mmrl.app.modality.base import ExportKind
from mmrl.app.modality.merge import Onto, on_original
from mmrl.app.modality.registry import modality_of
from mmrl.app.modality.templates import template_text
from mmrl.app.plugins.python_objects import is_of_python
from mmrl.app.report.data import load
from mmrl.app.run.build import with_local_model
from mmrl.app.run.context import hushed_saving
from mmrl.app.run.revive import load_state, revive
from mmrl.core.protocols import State
from mmrl.runtime.disk import room_for
from mmrl.training.evaluate import Weights

log = logging.getLogger("mmrl")


def export_and_push(write: Callable[[], Path], push: str | None, private: bool) -> str:
    """Export, and upload the folder to a repository of the hub; where it lies then. Errors of `write` and `check_push`."""
    if push is None:
        if private:
            raise ValueError("--private is for a repository of the hub: name it with --push OWNER/NAME, or leave --private out")
        return str(write())
    from mmrl.app.export.hub import check_push, push_folder

    check_push(push)
    return push_folder(write(), push, private, Terminal())


def export(
    run: Path,
    out: Path,
    merge: bool = False,
    step: int | None = None,
    weights: Weights = "live",
    form: Form = "diffusers",
    onto: Onto = "trained",
) -> Path:
    """Write the policy of checkpoint `step` (default: the newest whole one) to `out` and return it.

    All weights trained: a model folder for AutoModelForImageTextToText or DiffusionPipeline. LoRA: an adapter folder for peft
    or load_lora_weights, or with `merge` a model folder that holds the sum. `weights` = ema writes the average that the run kept
    of them, `form` is that of a generator's adapter. `onto` = original merges onto the stored weights of a model that was
    trained beside 4 bits, in place of what these stand for. Nothing is left behind when it fails.
    Raises FileNotFoundError where `run` holds no run or its base model is gone, and ValueError where `out` is not empty, or
    there is no such checkpoint, no average, nothing to merge or to merge onto, or no such form of this model.
    """
    data = load(run)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not empty: give a new folder to export to")
    config = configs.load(str(data.run.config_file)).config
    if merge and config.policy.lora is None:
        raise ValueError(f"{data.run.path} trained the model's own weights, so there is no adapter to merge: leave out --merge")
    policy_config = below = with_local_model(config).policy
    kind: ExportKind = "whole" if config.policy.lora is None else "merged" if merge else "adapter"
    check_form(form, policy_config, kind == "adapter")
    if onto == "original":
        if not merge:
            raise ValueError("--onto original says what an adapter is merged onto: add --merge, or leave it out")
        kind, below = "onto original", on_original(policy_config)
    state = part_of_state(data.run.path, load_state(data.run, step), weights)
    modality = modality_of(policy_config)
    with hushed_saving():
        policy = revive(config, data.run, state)
    with whole_or_absent(out) as folder:
        with hushed_saving():
            policy.save(folder)
        base, facts = shown_name(config.policy.model), modality.template(policy, config.evaluation)
        snippet = in_form(modality.snippet(policy, base, kind == "adapter"), form, folder)
        again = in_form(modality.again(policy, config.evaluation, base, kind), form, folder)
        task, number = modality.task(policy), int(state["index"])
        card = model_card(Exported(data, config, number, kind, weights, task, facts, snippet, again))
        card += "".join(f"{line}\n" for line in pictures(data, number, folder))
        rewrite(folder, form)
        if merge:
            # The policy's parts know each other, so its memory goes back only when cycles are looked for.
            del policy, state
            gc.collect()
            with hushed_saving():
                modality.merge(folder, below)
        (folder / "README.md").write_text(card, encoding="utf-8")
        (folder / FACTS).write_text(template_text(facts), encoding="utf-8")
        write_config(config, kind, folder)
    if kind == "onto original":
        log.warning("%s holds %s", out, ON_ORIGINAL)
    return out


def part_of_state(run: Path, state: State, weights: Weights) -> dict[str, Any]:
    """The part of a checkpoint that is exported, with the wanted weights as its live ones; ValueError if no average was kept."""
    found: dict[str, Any] = {name: state[name] for name in ("policy", "index")}
    if weights == "ema":
        if "ema" not in found["policy"]["shadows"]:
            raise ValueError(
                f"{run} kept no average of its weights: export the live ones, or train with evaluation.weights = 'ema' "
                "or an algorithm that keeps one"
            )
        found["policy"]["weights"] = found["policy"]["shadows"]["ema"]
    return found


def write_config(config: RunConfig, kind: ExportKind, folder: Path) -> None:
    """Write the run's config for readers elsewhere: paths by their last part, no output folder, no adapter that was merged.

    Objects of a Python program cannot be named in a file, so a run that was made of some has none.
    """
    table = as_table(config)
    if is_of_python(table):
        return
    table.pop("output", None)
    if kind in MERGED:
        for name in ("lora", "weights", "quantized"):
            table["policy"].pop(name, None)
    text = tomli_w.dumps(without_folders(table))
    (folder / CONFIG).write_text(f"# {config.algorithm.label}; paths are cut to their last part\n{text}", encoding="utf-8")


def without_folders(value: Any) -> Any:
    """Absolute paths by their last part, at any depth."""
    if isinstance(value, Mapping):
        return {name: without_folders(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_folders(one) for one in value]
    return Path(value).name if isinstance(value, str) and is_place(value) else value


def is_place(text: str) -> bool:
    """Does a text name a file or folder by an absolute path? `/no_think` and the like are words for a model.

    What is not here counts by its looks: several parts and no blank.
    """
    if not text.startswith(("/", "~")) or "\n" in text:
        return False
    return os.path.exists(os.path.expanduser(text)) or (len(Path(text).parts) > 2 and " " not in text)


@contextmanager
def whole_or_absent(out: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `out` when all went well and vanishes otherwise."""
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with room_for(out, "export again"):
            yield partial
        if out.exists():
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
