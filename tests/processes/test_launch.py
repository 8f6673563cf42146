"""Launches that would silently train something else are refused with a sentence; one process that fails ends all of them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmrl.app.config import run as configs
from mmrl.app.plugins.catalog import catalog
from mmrl.app.run import build as building
from mmrl.app.run import launch
from mmrl.core.ranks import Ranks
from mmrl.policies.shared.sharding import refuse_settings, refuse_unknown
from mmrl.runtime.accelerator import is_sharded
from tests.support.each import for_each
from tests.support.fakes import FakeAccelerator as Fake
from tests.support.fakes import PlayedRanks
from tests.support.launcher import started
from tests.support.refused import refused

FOLDER = Path(__file__).parents[2] / "configs" / "accelerate"


def zero(settings: dict[str, Any], **more: Any) -> Any:
    """Two processes under DeepSpeed with these settings of ZeRO."""
    config = {"zero_optimization": settings} | more
    return Fake(2, "DEEPSPEED", deepspeed_plugin=SimpleNamespace(deepspeed_config=config))


@pytest.mark.parametrize("name", launch.DECLARED)
def test_several_processes_that_know_nothing_of_each_other(name: str):
    refused(f"{name} asks for 2 processes, but this one stands alone.*torchrun", launch.check_launch, Fake(), {name: "2"})
    launch.check_launch(Fake(), {name: "1"})
    launch.check_launch(Fake(2, "MULTI_CPU"), {name: "2"})


@pytest.mark.slow
def test_accelerate_launch_on_cpus_runs_one_process():
    """The launcher leaves no number behind, so the command above this one is read; here it is the real launcher."""
    code = "from mmrl.app.run.launch import open_accelerator; open_accelerator()"
    words = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--no_python", sys.executable, "-c", code]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "accelerate launch asks for 2 processes, but this one stands alone" in done.stderr


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python /bin/accelerate launch --cpu --num_processes 2 -m mmrl train x", 2),
        ("python /bin/accelerate launch --num-processes=4 x.py", 4),
        ("python /bin/accelerate launch --config_file {file} -m mmrl train x", 8),
        ("python /bin/accelerate launch --cpu -m mmrl train x", 1),
        ("bash start.sh --num_processes 2", 1),
    ],
)
def test_what_accelerate_was_asked_for(command: str, expected: int):
    assert launch.processes_asked_for(command.format(file=FOLDER / "ddp.yaml").split()) == expected


@pytest.mark.parametrize(
    ("found", "environment", "message"),
    [
        (Fake(2, "MULTI_CPU"), {"ACCELERATE_USE_FSDP": "true"}, "FSDP was asked for, but accelerate ignores it on CPUs"),
        (Fake(1, "NO"), {"ACCELERATE_USE_FSDP": "true"}, "nothing would be sharded"),
        (Fake(2, "MULTI_CPU"), {"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed was asked for, but accelerate ignores it"),
        (Fake(2, "MULTI_GPU", mixed_precision="bf16"), {}, "mixed precision 'bf16'.*policy.dtype"),
        (Fake(2, "MULTI_GPU", gradient_accumulation_steps=4), {}, "gradient_accumulation_steps = 4"),
    ],
)
def test_what_accelerate_would_change(found: Any, environment: dict[str, str], message: str):
    launch.check_launch(Fake(2, "FSDP"), {"ACCELERATE_USE_FSDP": "true", "WORLD_SIZE": "2"})
    refused(message, launch.check_launch, found, environment)


def test_engines_are_refused_before_they_are_loaded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
    refused(r"mmrl does not drive it: take configs/accelerate/fsdp2\.yaml", launch.open_accelerator)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (zero({"stage": 1}), "asked for ZeRO stage 1"),
        (zero({"stage": 2, "offload_optimizer": {"device": "cpu"}}), "asked for offload_optimizer"),
        (zero({"stage": 3, "offload_param": {"device": "nvme"}}), "asked for offload_param"),
        (zero({"stage": 2}, bf16={"enabled": True}), r"asked for bf16.*policy\.dtype"),
        (zero({"stage": 2}, optimizer={"type": "Adam"}), "an optimizer of its own"),
        (Fake(2, "MEGATRON_LM"), "MEGATRON_LM"),
        (Fake(2, "FSDP", is_fsdp2=False), "fsdp_version: 2"),
    ],
)
def test_policies_refuse_what_they_cannot_read_through(found: Any, message: str):
    refused(message, refuse_unknown, found)


def test_what_deepspeed_may_do():
    for stage in (2, 3):
        refuse_unknown(zero({"stage": stage, "offload_optimizer": {"device": "none"}}, bf16={"enabled": "auto"}))
    assert not is_sharded(zero({"stage": 2})) and is_sharded(zero({"stage": 3}))


def test_processes_with_other_settings_are_named():
    resolved = configs.load("tiny/image", ["steps=3"])
    launch.check_same(Ranks(), resolved)
    same = {key: repr(value) for key, value, _ in resolved.rows()} | {"mmrl's version": launch.__version__}
    launch.check_same(PlayedRanks(lambda x: [same, x], 1), resolved)
    with pytest.raises(ValueError, match="process 1 was started with steps = 3, process 0 with 4"):
        launch.check_same(PlayedRanks(lambda x: [same | {"steps": "4"}, x], 1), resolved)


def test_two_runs_do_not_share_a_folder(tmp_path: Path):
    lock = f"import fcntl; file = open({str(tmp_path / '.lock')!r}, 'w'); fcntl.lockf(file, fcntl.LOCK_EX)"
    code = f"{lock}; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ValueError, match=f"process is training into {tmp_path}"), launch.lock_folder(tmp_path, Ranks()):
            pytest.fail("both are inside")
        other.kill()
    with launch.lock_folder(tmp_path, Ranks()):
        pass


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_process_of_a_node_downloads_and_the_others_find(rank: int, monkeypatch: pytest.MonkeyPatch):
    log, ranks = list[str](), PlayedRanks(lambda x: [x, None], rank)

    @contextmanager
    def in_turns() -> Iterator[None]:
        """As accelerate does it: a wait before for all but the first process, and one after for that one."""
        log.extend(["wait"] * rank)
        yield
        log.extend(["wait"] * (1 - rank))

    ranks.accelerator = Fake(2, local_main_process_first=in_turns)
    monkeypatch.setattr(building, "Ranks", lambda *_: ranks)
    monkeypatch.setattr(building, "policy_of_run", lambda *_: pytest.fail("far enough"))
    for name in ("load_rewards", "load_prompts", "small_models"):
        real = getattr(building, name)
        monkeypatch.setattr(building, name, lambda *a, name=name, real=real: (log.append(name), real(*a))[1])
    resolved = configs.load("tiny/image", ["policy.box_space=norm1000"])
    refused("far enough", building.build, resolved, error=pytest.fail.Exception, accelerator=object())
    between = ["small_models", "wait", "load_rewards", "load_prompts", "load_prompts", "wait", "small_models"]
    assert log == ["wait"] * rank + between + ["wait"] * (1 - rank)


@for_each("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_accelerate_reads_its_configs(file: Path):
    from accelerate.commands.config.config_args import load_config_from_file

    config: Any = load_config_from_file(str(file))
    kinds = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}
    assert config.distributed_type == kinds[file.stem]
    assert (config.mixed_precision, config.num_machines) == ("no", 1)
    if file.stem == "fsdp2":
        assert config.fsdp_config["fsdp_version"] == 2 and not config.fsdp_config["fsdp_cpu_ram_efficient_loading"]
    if file.stem.startswith("zero"):
        check_deepspeed(config.deepspeed_config, int(file.stem[-1]))


def check_deepspeed(settings: dict[str, Any], stage: int) -> None:
    """The plug-in is built where DeepSpeed is installed; elsewhere its settings are compared with the plug-in's fields."""
    import inspect
    from importlib.util import find_spec

    from accelerate import DeepSpeedPlugin

    assert set(settings) <= set(inspect.signature(DeepSpeedPlugin).parameters)
    assert (settings["zero_stage"], settings["gradient_accumulation_steps"]) == (stage, 1)
    if find_spec("deepspeed") is not None:
        built = DeepSpeedPlugin(**settings).deepspeed_config
        refuse_settings(built)
        assert built["zero_optimization"]["stage"] == stage and built["gradient_clipping"] == 1.0


@for_each("file", sorted(FOLDER.glob("*.sh")), ids=lambda file: file.name)
def test_scripts_are_shell(file: Path):
    assert file.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(file)], check=True, timeout=60)


def test_they_are_no_runs():
    assert not [listed.name for listed in catalog("configs") if listed.name.startswith("accelerate")]


OWN = "tests/processes/mixed.py"
RUN = ["train", "tiny/image", f"data={{use='{OWN}:breaking'}}", f"reward=[{{use='{OWN}:Breaking'}}]", "evaluation.num_prompts=0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        pytest.param(
            "data", ["1 of 2: command line: data: ", "raised KeyError: 'the column of process 1'"], marks=pytest.mark.evidence
        ),
        ("reward", ["1 of 2: step 1", "the judge of process 1 is gone"]),
    ],
)
def test_one_process_fails_and_all_end(tmp_path: Path, breaks: str, words: list[str]):
    done = started("mmrl", *RUN, f"output='{tmp_path / 'run'}'", BREAKS=breaks, MMRL_CACHE=str(tmp_path))
    assert done.returncode != 0
    assert f"mmrl, process {words[0]}" in done.stderr and words[1] in done.stderr, done.stderr[-3000:]
    others = [line for line in done.stderr.splitlines() if line.startswith("mmrl, process 0 of 2")]
    assert all("stopped because another process did" in line for line in others), others


@pytest.mark.evidence
def test_two_processes_leave_in_peace(tmp_path: Path):
    done = started("mmrl", *RUN, f"output='{tmp_path / 'run'}'", MMRL_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run" / "report.html").is_file()
    assert done.stderr.count("report: ") == 1
