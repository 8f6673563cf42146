"""`mmrl launch --on ray`: Ray finds the machines, and an agent on each runs the `mmrl launch` of that machine.

Ray knows nothing of training: agents keep a watchdog, as every launch does, and where a machine is lost all end and a new group
of machines goes on from the last checkpoint.
"""

import math
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from mmrl.app.cluster.supervise import children, noted_signals
from mmrl.app.config.cluster import ClusterConfig
from mmrl.app.run.folder import RunDir
from mmrl.engine.server import end, start_below_watchdog, tail
from mmrl.training.checkpoints.save import Checkpoints

PASSED = re.compile(r"PYTHONPATH|(MMRL|HF|XDG|TORCH|PYTORCH|NCCL|GLOO|VLLM|WANDB|OMP|MKL|CUBLAS)_.*")
"""Variables of the shell that agents are given: a machine's own program of Ray knows nothing of them."""
Ray: TypeAlias = Any
"""The module: mmrl is installed without it, so nothing is known of its types."""
Actor: TypeAlias = Any
"""What Ray hands out: actors, groups, answers to come."""
POLL_S = 1.0
END_S = 60.0
"""An agent may take this long to begin or to end its machine's processes; one that does not is gone."""
HEAD_S = 20.0
"""Ray's head node may be silent for so long; after 60 s Ray ends this program without a word of ours."""


class Agent:
    """One machine's part of a launch: an actor of Ray, whose processes end with it."""

    def __init__(self) -> None:
        self.running: subprocess.Popen[bytes] | None = None
        self.log = Path()

    def host(self) -> str:
        """The address of this machine."""
        return import_module("ray").util.get_node_ip_address()

    def start(self, words: Sequence[str], variables: Mapping[str, str], folder: str, log: str) -> None:
        """Start the launch below a watchdog, in a folder where this machine has it."""
        # Ray sets threads for its own workers: sums would be rounded otherwise
        own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        with suppress(OSError):
            os.chdir(folder)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)  # Ray starts its workers with 15
        self.log = Path(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.running = start_below_watchdog((sys.executable, *words), {**own, **variables}, self.log)

    def wait(self) -> int:
        """The exit code of the launch."""
        assert self.running is not None
        return self.running.wait() % 256

    def ask_to_save(self) -> None:
        """Ask what trains to save and end."""
        for pid in [] if self.running is None else children(self.running.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def end(self) -> str:
        """End everything; the last lines of the log."""
        if self.running is not None:
            end(self.running, END_S / 2)
        return tail(self.log)


@dataclass(frozen=True)
class RayLaunch:
    """A run on machines that Ray lends: the words of `mmrl launch`, and where all machines see the run."""

    cluster: ClusterConfig
    words: tuple[str, ...]
    output: Path
    resumed: bool = False
    keys: frozenset[str] = frozenset()
    """Variables that the config names as holders of secrets."""
    engine_key: str = "MMRL_ENGINE_TOKEN"
    asked_by: list[signal.Signals] = field(default_factory=list[signal.Signals])

    @property
    def bundle(self) -> dict[str, float]:
        """The resources that every machine must have free."""
        return {"CPU": 1.0} | ({"GPU": float(self.cluster.gpus_per_node)} if self.cluster.gpus_per_node else {})

    def lines(self) -> list[str]:
        """For a dry run."""
        what = ", ".join(f"{name}: {count:g}" for name, count in self.bundle.items())
        return [f"ray: {self.cluster.nodes} bundle(s) of {{{what}}}, each on a machine of its own (STRICT_SPREAD)"]

    def newest(self) -> int | None:
        return Checkpoints(RunDir(self.output).checkpoints).newest_whole()


def run_on_ray(job: RayLaunch, tell: Callable[[str], None], ray: Ray = None) -> int:
    """Run to the end, on new machines where some are lost, `cluster.restarts` times; the exit code.

    Raises ValueError: Ray is not installed or reached through its client, or too few machines are free in `cluster.patience_s`.
    """
    if ray is None:
        ray = open_ray()
        try:
            return run_on_ray(job, tell, ray)
        finally:
            ray.shutdown()
    code = 0
    variables = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name) or name in job.keys}
    for key in ("MMRL_REWARD_TOKEN", job.engine_key):
        variables.setdefault(key, secrets.token_hex(24))
    with noted_signals(job.asked_by):
        for left in reversed(range(job.cluster.restarts + 1)):
            before = job.newest()
            try:
                code, is_gone = run_once(job, variables, tell, ray)
            except HeadLostError as error:
                tell(f"{error}; go on with\nmmrl launch {shlex.join([*job.words, '--on', 'ray', '--resume', str(job.output)])}")
                return 1
            if code == 0 or job.asked_by:
                break
            if not is_gone and job.newest() == before:
                tell("no machine is gone and no step was saved since the start, so another start would end alike")
                break
            tell(f"a new group of machines is asked for, {left - 1} more time(s) after this" if left else "no start is left")
    return code


def open_ray() -> Ray:
    """Ray, connected to the cluster of RAY_ADDRESS, or to the one of this machine."""
    if os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        raise ValueError(
            "RAY_ADDRESS begins with ray://, Ray's client, whose proxy ends with the connection: submit the command with "
            "`ray job submit`, or run it on a machine of the cluster with RAY_ADDRESS=auto"
        )
    try:
        ray = import_module("ray")
    except ImportError:
        raise ValueError('--on ray needs Ray: pip install "mmrl[ray]", on every machine the same version') from None
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False, configure_logging=False)
    except ConnectionError as error:
        raise ValueError(f"there is no Ray cluster ({error}): start one with `ray start --head`, or set RAY_ADDRESS") from None
    return ray


class HeadLostError(RuntimeError):
    """Ray cannot go on: what it knows of machines was kept by one that is gone."""


class Head:
    """The node of Ray that knows of all others; `Head("10.0.0.1:6379")`."""

    def __init__(self, address: str) -> None:
        self.address, self.heard, self.is_lost = address, time.monotonic(), False

    @property
    def lost(self) -> str:
        return f"Ray's head node ({self.address}) has not answered for {HEAD_S:.0f} s"

    def is_silent(self) -> bool:
        """Look whether it still answers; True once it has not for `HEAD_S`."""
        from mmrl.engine.worker.weight_group import own_address  # imports torch, which agents do without

        host, port = self.address.rsplit(":", 1)
        with suppress(OSError):
            own_address(host, int(port), POLL_S)
            self.heard = time.monotonic()
        self.is_lost = time.monotonic() - self.heard > HEAD_S
        return self.is_lost


def run_once(job: RayLaunch, variables: Mapping[str, str], tell: Callable[[str], None], ray: Ray) -> tuple[int, bool]:
    """One group of machines, to the end of all launches or to the first failure: its exit code, and is a machine gone?"""
    nodes, group = job.cluster.nodes, None
    agents, head = list[Actor](), Head(ray.get_runtime_context().gcs_address)
    try:
        group = ray.util.placement_group([job.bundle] * nodes, strategy="STRICT_SPREAD")
        agents = agents_on(job, group, variables, ray)
        hosts = ready(job, [group.ready(), *(agent.host.remote() for agent in agents)], head, ray)[1:]
        if not hosts:
            return 128 + job.asked_by[-1], False
        # a run that has a checkpoint goes on
        goes_on = ["--resume", str(job.output)] if job.resumed or job.newest() is not None else []
        words, log = ["-m", "mmrl", "launch", *job.words, *goes_on], f"{job.output}.logs"
        tell(f"{nodes} machine(s): {', '.join(hosts)}; their logs are {log}/launch-N.log")
        waiting: dict[Actor, int] = {}
        for node, agent in enumerate(agents):
            own = [*words, "--hosts", ",".join(hosts), "--node", str(node)]
            try:
                ray.get(agent.start.remote(own, variables, os.getcwd(), f"{log}/launch-{node}.log"), timeout=END_S)
            except ray.exceptions.GetTimeoutError:
                tell(f"machine {node} ({hosts[node]}) did not begin its launch in {END_S:.0f} s, and counts as lost")
                return 1, True
            except ray.exceptions.RayTaskError as error:
                raise ValueError(f"machine {node} ({hosts[node]}) cannot begin its launch ({error.cause})") from None
            waiting[agent.wait.remote()] = node
        failed, code = watch(job, agents, waiting, head, tell, ray)
        gone = end_all(agents, failed, code, f"{log}/launch-{failed}.log", tell, ray)
        return code, bool(gone)
    except ray.exceptions.RayActorError as error:
        tell(f"a machine was lost while its processes started: {str(error).splitlines()[0]}")
        return 1, True
    finally:
        if not head.is_lost:
            for agent in agents:
                ray.kill(agent)
            if group is not None:
                ray.util.remove_placement_group(group)


def agents_on(job: RayLaunch, group: Actor, variables: Mapping[str, str], ray: Ray) -> list[Actor]:
    """An actor for each bundle; never detached, so that all end with this program."""
    place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    # workers import this module by its name
    needs = {"env_vars": {"PYTHONPATH": variables["PYTHONPATH"]}} if variables.get("PYTHONPATH") else {}
    kind = ray.remote(num_cpus=1, num_gpus=job.cluster.gpus_per_node, max_concurrency=4, runtime_env=needs)(Agent)
    return [kind.options(scheduling_strategy=place(group, i)).remote() for i in range(job.cluster.nodes)]


def ready(job: RayLaunch, asked: Sequence[Actor], head: Head, ray: Ray) -> list[Actor]:
    """The answers of all machines, none after a signal; ValueError where they are not to be had in time, with what is free."""
    for _ in range(math.ceil(job.cluster.patience_s / POLL_S)):
        if job.asked_by:
            return []
        if head.is_silent():
            raise HeadLostError(f"{head.lost} before all machines were there")
        with suppress(ray.exceptions.GetTimeoutError):
            return ray.get(list(asked), timeout=POLL_S)
    with suppress(ray.exceptions.GetTimeoutError):
        ray.get(asked[0], timeout=POLL_S)
        raise ValueError(
            f"Ray lent {job.cluster.nodes} machine(s), and its programs on them did not begin in {job.cluster.patience_s:.0f} s: "
            "look whether they are busy or cannot import mmrl, and raise cluster.patience_s"
        )
    alive = [(one["NodeManagerAddress"], one["Resources"]) for one in ray.nodes() if one["Alive"]]
    has = "; ".join(f"{host} has {_counted(resources)}" for host, resources in alive)
    raise ValueError(
        f"{job.cluster.nodes} machine(s) with {_counted(job.bundle)} each were not free in {job.cluster.patience_s:.0f} s "
        f"(alive: {has or 'none'}; free on all together: {_counted(ray.available_resources())}): lower cluster.nodes or "
        "cluster.gpus_per_node, add machines, end what `ray status` shows to hold the rest, or raise cluster.patience_s"
    )


def _counted(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU") if name == "CPU" or name in resources)


def watch(
    job: RayLaunch, agents: Sequence[Actor], waiting: dict[Actor, int], head: Head, tell: Callable[[str], None], ray: Ray
) -> tuple[int | None, int]:
    """Wait for all launches, or for the first that fails: its machine, None for none, and the exit code.

    Raises HeadLostError: the head node does not answer; all launches were asked to save and end.
    """
    heard = 0
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=POLL_S)
        if head.is_silent():
            # answers of agents come from their machines: they need no head
            for agent in agents:
                agent.ask_to_save.remote()
            ended, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=END_S / 2)
            raise HeadLostError(
                f"{head.lost}: all machines were asked to save and end, and {len(ended)} of {len(waiting)} did; start another "
                "cluster with `ray start --head`"
            )
        for number in job.asked_by[heard:]:
            heard += 1
            tell(f"{number.name}: all machines are asked to save and end" if heard == 1 else f"{number.name}: all end at once")
            for agent in agents if heard == 1 else ():
                agent.ask_to_save.remote()
        if heard > 1:
            return None, 128 + job.asked_by[-1]
        for one in done:
            node = waiting.pop(one)
            try:
                code = ray.get(one)
            except ray.exceptions.RayActorError:
                code = 1
            if code:
                return node, code
    return None, 0


def end_all(agents: Sequence[Actor], failed: int | None, code: int, log: str, tell: Callable[[str], None], ray: Ray) -> list[int]:
    """End the processes of all machines, and say which one failed, with its last lines; the machines that do not answer."""
    asked, gone, last, begun = [agent.end.remote() for agent in agents], list[int](), "", time.monotonic()
    for node, one in enumerate(asked):
        try:
            lines = ray.get(one, timeout=END_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            gone.append(node)
            continue
        last = lines if node == failed else last
    if failed is not None:
        what = "is gone" if failed in gone else f"ended with exit code {code}"
        more = f"; machine(s) {', '.join(map(str, gone))} gone" if gone and failed not in gone else ""
        tell(f"machine {failed} {what}{more}; the others ended in {time.monotonic() - begun:.0f} s{last or tail(Path(log))}")
    return gone
