"""The trained model of a run as a folder that its own library or others load, with its model card; and its way to the hub."""

import gc
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import tomli_w
from rich.console import Console
from rich.filesize import decimal
from torch import Tensor

from mmrl.app.config import run as configs
from mmrl.app.config.run import RunConfig, as_table
from mmrl.app.errors import Terminal
from mmrl.app.export.card import CONFIG, ON_ORIGINAL, Exported, model_card, pictures, shown_name
from mmrl.app.modality.base import ExportKind
from mmrl.app.modality.merge import Onto, on_original
from mmrl.app.modality.registry import modality_of
from mmrl.app.modality.templates import FACTS, MERGED, template_text
from mmrl.app.plugins.resolve import is_of_python
from mmrl.app.report.data import load
from mmrl.app.run.build import with_local_model
from mmrl.app.run.context import hushed_saving
from mmrl.app.run.revive import load_state, revive
from mmrl.core.protocols import State
from mmrl.policies.flow.adapters import WEIGHTS
from mmrl.policies.flow.loading import describe
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.runtime.disk import room_for
from mmrl.runtime.net.offline import SWITCHES, hub_trouble, is_offline
from mmrl.serving.files import first_line
from mmrl.training.evaluate import Weights

Form = Literal["diffusers", "peft", "kohya"]
LOAD = re.compile(r'^pipeline\.load_lora_weights\("(THIS_FOLDER\S*?)".*\)$')
"""How a card loads an adapter in the form diffusers, and in kohya's."""


def check_form(form: Form, policy: object, is_adapter: bool) -> None:
    """Raise ValueError where there is no adapter to write in another form, or the form does not know this kind of model."""
    if form == "diffusers":
        return
    if not is_adapter:
        raise ValueError(f"--form {form} is about adapters, and this export is a whole model: leave --form out")
    if not isinstance(policy, FlowPolicyConfig):
        raise ValueError(f"--form {form} is about image generators; adapters of text models are peft's anyway: leave --form out")
    _, index, kind = describe(policy)
    if not hasattr(getattr(import_module("diffusers"), index["_class_name"]), "load_lora_weights"):
        raise ValueError(
            f"--form {form} rewrites adapters that a pipeline loads, and {policy.model!r} leaves that to its transformer: leave "
            "--form out"
        )
    if form == "kohya" and kind.networks != ("unet",):
        raise ValueError(
            f"--form kohya writes the names of Stable Diffusion's UNet, which {policy.model!r} lacks: leave --form out, for "
            "ComfyUI and others read the adapters of newer models in the form diffusers"
        )


def rewrite(folder: Path, form: Form) -> None:
    """Replace each adapter file of diffusers in `folder`, and in the folder of a second network, by one in `form`."""
    for file in [*folder.glob(WEIGHTS), *folder.glob(f"*/{WEIGHTS}")]:
        weights, settings = read(file)
        network = next(iter(weights)).partition(".")[0]
        plain = {key.removeprefix(f"{network}."): weight for key, weight in weights.items()}
        if form == "peft":
            write_peft(file.parent, plain, {key.removeprefix(f"{network}."): value for key, value in settings.items()})
            file.unlink()
        elif form == "kohya":
            write_kohya(file, plain)


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and peft's settings, by names that begin with the network's."""
    from diffusers.loaders.lora_base import LORA_ADAPTER_METADATA_KEY
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(file, "pt") as opened:
        return load_file(file), json.loads(opened.metadata()[LORA_ADAPTER_METADATA_KEY])


def write_peft(folder: Path, weights: Mapping[str, Tensor], settings: Mapping[str, Any]) -> None:
    """adapter_model.safetensors and adapter_config.json."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    known = set(LoraConfig.__dataclass_fields__)
    LoraConfig(**{key: value for key, value in settings.items() if key in known}).save_pretrained(str(folder))
    save_file({f"base_model.model.{key}": weight for key, weight in weights.items()}, folder / "adapter_model.safetensors")


def write_kohya(file: Path, weights: Mapping[str, Tensor]) -> None:
    """The same file with kohya's names, and an alpha beside each layer."""
    from diffusers.utils.state_dict_utils import convert_state_dict_to_kohya
    from safetensors.torch import save_file

    found = convert_state_dict_to_kohya({f"unet.{key}": weight for key, weight in weights.items()})
    save_file({key: weight.contiguous() for key, weight in found.items()}, file, {"format": "pt"})


def in_form(code: Sequence[str], form: Form, folder: Path) -> list[str]:
    """A card's Python with the adapter in `folder`, which is still diffusers', loaded as it is loaded in this form."""
    if form != "peft":
        return list(code)
    first = next(iter(read(folder / WEIGHTS)[0])).partition(".")[0]

    def lines(text: str) -> list[str]:
        found = LOAD.match(text)
        if found is None:
            return [text]
        network = f"pipeline.{found[1].partition('/')[2] or first}"
        return ["from peft import PeftModel", f'{network} = PeftModel.from_pretrained({network}, "{found[1]}")']

    return [line for text in code for line in lines(text)]


log = logging.getLogger("mmrl")


def export_and_push(write: Callable[[], Path], push: str | None, private: bool) -> str:
    """Export, and upload the folder to a repository of the hub; where it lies then. Errors of `write` and `check_push`."""
    if push is None:
        if private:
            raise ValueError("--private is for a repository of the hub: name it with --push OWNER/NAME, or leave --private out")
        return str(write())
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


TOKEN = "run `hf auth login` with a token that may write, or set HF_TOKEN"
REFUSALS = {
    400: "check the name",
    401: f"it does not know the token: {TOKEN}",
    403: f"the token may not write there: {TOKEN}",
    404: f"there is no such repository for this token: {TOKEN}",
    409: "somebody else wrote there at the same time: try again",
}
"""Status of an answer -> what to do about it."""


def check_push(name: str) -> None:
    """Look whether a folder could be pushed to the repository `name` (OWNER/NAME), before anything is loaded.

    Raises FileNotFoundError without a connection, and ValueError for a name that no repository can have, HF_HUB_OFFLINE, no
    token, or one that the hub does not know.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        is_right = name.count("/") == 1
    except HFValidationError:
        is_right = False
    if not is_right:
        raise ValueError(f"--push {name}: write OWNER/NAME, of letters, digits, '-', '_' and '.', as in me/my-model")
    if is_offline():
        raise ValueError(f"--push {name}: nothing goes to the hub while {' or '.join(SWITCHES)} is set: unset it, or push later")
    if get_token() is None:
        raise ValueError(f"--push {name}: there is no token for the Hugging Face hub: {TOKEN}")
    if trouble := hub_trouble():
        raise FileNotFoundError(f"--push {name}: {trouble}: check the network, or export without --push")
    with refusals(name):
        HfApi().whoami()


def push_folder(folder: Path, name: str, private: bool, console: Console) -> str:
    """Say what is pushed, then make the repository unless it is there, and add the folder's files as a commit; its address.

    Raises ValueError where the hub refuses it, or the repository is there and public though it was to be private.
    """
    from huggingface_hub import HfApi

    api: Any = HfApi()
    console.print("\n".join(announcement(folder, name, private)), highlight=False, markup=False)
    with refusals(name):
        made = api.create_repo(name, private=private, exist_ok=True)
        if private and not api.repo_info(made.repo_id).private:
            raise ValueError(
                f"--push {name}: it is there already, and public: make it private in its settings, or choose a new name"
            )
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Export of a run of mmrl")
    return str(made)


def announcement(folder: Path, name: str, private: bool) -> Iterator[str]:
    """The files that are about to be pushed, with their sizes."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    total = sum(file.stat().st_size for file in files)
    yield f"pushing {len(files)} files, {decimal(total)}, to {name} ({'private' if private else 'public'}):"
    yield from (f"  {file.relative_to(folder).as_posix()}  {decimal(file.stat().st_size)}" for file in files)


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """A block in which what the hub refuses becomes one sentence; ValueError for an answer, FileNotFoundError for none."""
    from huggingface_hub import errors

    # The class of broken connections belongs to another package in every version of huggingface_hub.
    broken: Any = getattr(errors, "HTTPError")  # noqa: B009 - as an attribute no checker knows it in all of them
    try:
        yield
    except errors.LocalTokenNotFoundError:
        raise ValueError(f"--push {name}: there is no token for the Hugging Face hub: {TOKEN}") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        remedy = REFUSALS.get(status, "try again later")
        raise ValueError(f"--push {name}: the hub answered {status} ({first_line(error)}): {remedy}") from None
    except (broken, ConnectionError, RuntimeError) as error:
        cause = error.__cause__ or error
        raise FileNotFoundError(
            f"--push {name}: the upload broke off ({first_line(cause)}): check the network and push again; the exported folder "
            "is whole"
        ) from None
