"""The processes of a run: how accelerate sees them, launches that would do something else, its folder, and one end for all."""

import fcntl
import os
import re
import shutil
import struct
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from mmrl import __version__
from mmrl.app.config.run import Resolved
from mmrl.app.errors import is_for_people, sentence
from mmrl.app.run.folder import RunDir
from mmrl.core.ranks import Ranks
from mmrl.runtime.blame import is_from_outside, place_of, refuse_where

PATIENCE = timedelta(hours=2)
"""How long a process waits for the others: one may download a model, or wait for a slow reward."""
DECLARED = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""Where launchers note how many processes they started."""
REMEDY = "start it with `torchrun --nproc_per_node N -m mmrl ...` or with a file of configs/accelerate"
NEIGHBOUR = re.compile(r"gloo|nccl|connection (closed|reset)", re.IGNORECASE)
"""What errors speak of when a process can no longer be talked to."""


def open_accelerator() -> Any:
    """Accelerate's processes and devices; ValueError for others than asked for, or where it would change what is trained."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    if is_on(os.environ, "ACCELERATE_USE_MEGATRON_LM"):
        raise ValueError(
            "accelerate was asked for Megatron-LM, which keeps gradients and optimizer steps to itself, and mmrl does not "
            "drive it: take configs/accelerate/fsdp2.yaml, which spreads weights, gradients and optimizer too"
        )
    # Without cpu=True, accelerate takes several processes on a machine without accelerators for as many single ones.
    accelerator = Accelerator(
        cpu=not torch.accelerator.is_available(), kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)]
    )
    check_launch(accelerator, os.environ)
    load_whole(accelerator)
    return accelerator


def load_whole(accelerator: Any) -> None:
    """Under DeepSpeed's ZeRO-3 transformers would spread every model it loads, rewards' models too; policies do it themselves."""
    if accelerator.distributed_type.value == "DEEPSPEED":
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        unset_hf_deepspeed_config()


def check_launch(accelerator: Any, environment: Mapping[str, str]) -> None:
    """ValueError where the run would silently be another one than was asked for."""
    world, kind = accelerator.num_processes, accelerator.distributed_type.value
    asked = {name: int(value) for name in DECLARED if (value := environment.get(name, "")).isdigit()}
    if "ACCELERATE_MIXED_PRECISION" in environment:
        asked["accelerate launch"] = processes_asked_for(command_of(os.getppid()))
    found = next((name for name in asked if asked[name] > 1), None)
    if world == 1 and found is not None:
        raise ValueError(
            f"{found} asks for {asked[found]} processes, but this one stands alone, so each would train a model of its own or "
            f"only one trains at all: {REMEDY}; for a run of one process, leave the launcher out and unset {found}"
        )
    for engine in ("FSDP", "DeepSpeed"):
        if is_on(environment, f"ACCELERATE_USE_{engine.upper()}") and kind != engine.upper():
            where = "on CPUs" if accelerator.device.type == "cpu" else f"for {world} process(es)"
            raise ValueError(
                f"{engine} was asked for, but accelerate ignores it {where}, so nothing would be sharded: "
                f"start without {engine} (configs/accelerate/ddp.yaml), or on several accelerators"
            )
    mixed, parts = accelerator.mixed_precision, accelerator.gradient_accumulation_steps
    reasons = {
        f"mixed precision {mixed!r}, which config.toml would not know of: set mixed_precision to no, and policy.dtype = "
        "'bfloat16' in the config": mixed != "no",
        f"gradient_accumulation_steps = {parts}, which would divide every gradient by it: set it to 1; mmrl cuts batches to "
        "`micro_batch` by itself": parts != 1,
    }
    refuse_where("accelerate was asked for ", reasons)


def is_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in ("1", "true", "yes", "on")


def command_of(pid: int) -> list[str]:
    """The words of the command that started a process; none if they cannot be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return []


def processes_asked_for(command: Sequence[str]) -> int:
    """How many processes a command `accelerate launch ...` names, in its options or its config file; 1 where it does not."""
    if not any("accelerate" in word for word in command):
        return 1
    text = " ".join(command)
    number = re.search(r"--num[-_]processes[= ](\d+)", text)
    if number is not None:
        return int(number[1])
    file = re.search(r"--config[-_]file[= ](\S+)", text)
    if file is None or not Path(file[1]).is_file():
        return 1
    from accelerate.commands.config.config_args import load_config_from_file

    return int(getattr(load_config_from_file(file[1]), "num_processes", None) or 1)


def check_same(ranks: Ranks, resolved: Resolved) -> None:
    """ValueError on all processes when one of them was started with other settings."""
    mine = {key: repr(value) for key, value, _ in resolved.rows()} | {"mmrl's version": __version__}
    known = ranks.gather(mine)
    for rank, own in enumerate(known):
        for name in {**known[0], **own}:
            first, other = known[0].get(name, "nothing"), own.get(name, "nothing")
            if first != other:
                raise ValueError(
                    f"process {rank} was started with {name} = {other}, process 0 with {first}: "
                    "give all processes the same config, overrides and version of mmrl"
                )


@contextmanager
def lock_folder(folder: Path, ranks: Ranks) -> Iterator[None]:
    """Keep other runs from writing into this folder, or ValueError; the lock goes with the process that holds it."""
    file, problem = None, None
    if ranks.is_main:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
        try:
            # A lock of this kind is not inherited by workers, so none outlives the run.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"another process is training into {folder}: choose another output folder, or wait for its end"
    try:
        ranks.agree(problem)
        yield
    finally:
        if file is not None:
            file.close()


def is_locked(folder: Path) -> bool:
    """Does a process train into this folder? Looks at the lock without taking it; True where the system cannot be asked."""
    if sys.platform != "linux":
        return True
    layout = "hhqqi4x"
    try:
        with (folder / ".lock").open("rb") as file:
            asked = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            found = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return found[0] != fcntl.F_UNLCK


@contextmanager
def end_together(ranks: Ranks) -> Iterator[None]:
    """One of several processes that fails says so with its number and ends at once, so that its launcher ends the others."""
    try:
        yield
    except BaseException as error:
        # one that a plug-in asked to leave would be waited for by the others
        if ranks.world == 1 or is_from_outside(error) or not (isinstance(error, Exception) or place_of(error)):
            raise
        sys.stdout.flush()
        sys.stderr.write(describe_failure(error, ranks) + "\n")
        sys.stderr.flush()
        # An orderly end would wait for the threads of rewards and of gloo.
        os._exit(2 if is_for_people(error) else 1)


def describe_failure(error: BaseException, ranks: Ranks) -> str:
    """A user's mistake as a sentence, the end of a neighbour as another, anything else with its traceback."""
    name = f"process {ranks.rank} of {ranks.world}"
    if is_for_people(error):
        return f"mmrl, {name}: {sentence(error)}"
    talked = isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and NEIGHBOUR.search(str(error)))
    if talked:
        reason = str(error).strip().partition("\n")[0]
        return f"mmrl, {name}: stopped because another process did, whose own message says why ({reason})"
    return f"{''.join(traceback.format_exception(error))}mmrl, {name} failed (see above)"


OF_A_START = frozenset({".lock", "samples", "tensorboard", "trackio", "versions.json", "wandb"})
"""What a start writes before there is anything to keep."""


@contextmanager
def claimed_folder(wanted: Path, ranks: Ranks, may_be_another: bool = False) -> Iterator[Path]:
    """Hold a folder, the same on all ranks and absolute; one that was made for this and holds no run at the end is removed.

    With `may_be_another`, take `wanted-2`, `wanted-3`, ... where `wanted` exists. Raises ValueError if another process holds it.
    """
    path, made = wanted.absolute(), list[Path]()
    problem = None
    if ranks.is_main:
        try:
            path, made = take_next_free(path) if may_be_another else (path, missing_folders(path))
        except OSError as error:
            problem = f"the folder {path} cannot be made: {error.strerror}"
        if not may_be_another and os.path.lexists(path) and not path.is_dir():
            problem = f"{path} is no folder, and a run needs one: choose another output, or remove it"
    ranks.agree(problem)
    path = ranks.gather(path)[0]
    with lock_folder(path, ranks):
        try:
            yield path
        except BaseException:
            remove_start(path, made)
            raise


def take_next_free(path: Path) -> tuple[Path, list[Path]]:
    """Make `runs/image`, or `runs/image-2` where that exists, ...; and say which folders were made.

    Two programs that ask at the same time get different ones.
    """
    number, candidate = 1, path
    while True:
        missing = missing_folders(candidate)
        try:
            candidate.mkdir(parents=True)
            return candidate, missing
        except FileExistsError:
            if not candidate.is_dir() and not candidate.parent.is_dir():
                raise
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")


def missing_folders(path: Path) -> list[Path]:
    """The folder and those above it that do not exist, lowest first."""
    missing: list[Path] = []
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    return missing


def remove_start(path: Path, made: list[Path]) -> None:
    """Remove a folder that was made for a run that never began, and the folders that were made for it; others stay."""
    if not path.is_dir() or RunDir(path).exists() or {file.name for file in path.iterdir()} - OF_A_START:
        return
    with suppress(OSError):
        if path in made:
            shutil.rmtree(path)
        else:
            (path / ".lock").unlink(missing_ok=True)
        for folder in made[1:]:
            folder.rmdir()
