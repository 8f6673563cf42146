"""Starts a module as one process or as two that talk through gloo, and what such a module needs inside."""

import faulthandler
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, cast

import torch

from tests.support.forked import run
from tests.support.ports import free_ports

Kind = Literal["one", "replicated", "sharded", "zero2", "zero3"]
KINDS: tuple[Kind, ...] = ("replicated", "sharded")
TORCHRUN = ["-m", "torch.distributed.run", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "--nproc_per_node", "2"]


Done = subprocess.CompletedProcess[str]


def started(module: str | Path, *words: Any, **env: str) -> Done:
    """A module or a script with words, under torchrun as two processes; killed after 15 minutes."""
    what = [str(module)] if isinstance(module, Path) else ["-m", module]
    argv = [sys.executable, *TORCHRUN, *what, *map(str, words)]
    path = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **env}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=900, check=False)


def forked(module: str | Path, *words: Any, processes: int = 2, **env: str) -> Done:
    """The same without torchrun, by processes that share their imports."""
    here = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
    here |= {"MASTER_PORT": str(free_ports(1)), **env}
    ranks = [{**here, "RANK": str(i), "LOCAL_RANK": str(i)} for i in range(processes)] if processes > 1 else [env]
    what = [str(module)] if isinstance(module, Path) else ["-m", module]
    return run(*what, *map(str, words), variables=ranks)


def results(module: str | Path, kind: Kind, out: Path, *words: Any, processes: int = 2) -> list[dict[str, Any]]:
    """What every process of `module kind out words...` saved with `leave`, in rank order."""
    out.mkdir(parents=True, exist_ok=True)
    done = forked(module, kind, out, *words, processes=1 if kind == "one" else processes)
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(path, weights_only=True) for path in sorted(out.glob("rank-*.pt"))]


def both(module: str | Path, folder: Path, *words: Any) -> dict[Kind, list[dict[str, Any]]]:
    """The same of `module replicated,sharded folder words...`, whose two processes are one kind after the other.

    What a kind leaves lies in `folder / kind`.
    """
    for kind in KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
    done = forked(module, ",".join(KINDS), folder, *words)
    assert done.returncode == 0, done.stderr[-4000:]
    return {kind: [torch.load(path, weights_only=True) for path in sorted((folder / kind).glob("rank-*.pt"))] for kind in KINDS}


def kinds_in(words: str) -> list[Kind]:
    """The kinds that `both` has named."""
    return cast("list[Kind]", words.split(","))


def accelerator_of(kind: Kind, **more: Any) -> Any:
    """accelerate's Accelerator on CPUs: alone, with replicas (DDP), sharded weights (FSDP2), or DeepSpeed."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    torch.set_num_threads(1)
    AcceleratorState._reset_state()
    # Processes that wait for each other say where, and end.
    faulthandler.dump_traceback_later(float(os.environ.get("MMRL_TEST_PATIENCE", "800")), exit=True)
    if kind in ("zero2", "zero3"):
        accelerator = deepspeed_on_cpus(int(kind[-1]))
    elif kind == "sharded":
        accelerator = Accelerator(cpu=True, fsdp_plugin=sharding(), **more)
        # accelerate has no FSDP on a CPU unless told so.
        for state in (AcceleratorState, PartialState):
            state._shared_state["distributed_type"] = DistributedType.FSDP
        renew(accelerator)
    else:
        accelerator = Accelerator(cpu=True, **more)
    assert accelerator.num_processes == (1 if kind == "one" else int(os.environ["WORLD_SIZE"]))
    assert (accelerator.distributed_type == DistributedType.FSDP) == (kind == "sharded")
    assert (accelerator.distributed_type == DistributedType.DEEPSPEED) == (kind in ("zero2", "zero3"))
    return accelerator


def deepspeed_on_cpus(stage: int) -> Any:
    """accelerate has no DeepSpeed on a CPU unless told so."""
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    from mmrl.app.run.launch import load_whole

    os.environ["DS_ACCELERATOR"] = "cpu"
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_CPU)  # type: ignore[method-assign]
    plugin = DeepSpeedPlugin(zero_stage=stage, gradient_accumulation_steps=1)
    # Small weights would stay whole on all processes.
    plugin.deepspeed_config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    accelerator = Accelerator(deepspeed_plugin=plugin)
    load_whole(accelerator)
    return accelerator


def sharding() -> Any:
    from accelerate.utils import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")


def renew(accelerator: Any) -> None:
    """Forget the models of before: the plug-in remembers the layers of the first one."""
    accelerator.free_memory()
    if accelerator.distributed_type.value == "FSDP":
        accelerator.state.fsdp_plugin = sharding()


def keep(accelerator: Any, out: str | Path, result: dict[str, Any]) -> None:
    """Save this process's result, and wait for the others."""
    torch.save(result, Path(out) / f"rank-{accelerator.process_index}.pt")
    accelerator.wait_for_everyone()


def leave(accelerator: Any, out: str | Path, result: dict[str, Any]) -> None:
    """Save this process's result, wait for the others, and end."""
    keep(accelerator, out, result)
    end()


def end() -> None:
    """End this process."""
    sys.stdout.flush()
    os._exit(0)  # gloo's threads sometimes abort the interpreter's own farewell on a busy machine
