"""`mmrl launch`: all processes of a run, from its `[cluster]`: printed, started here, or in a batch script for Slurm."""

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from mmrl.app.cluster.hosts import found_hosts
from mmrl.app.cluster.on_ray import RayLaunch, run_on_ray
from mmrl.app.cluster.placement import EVERYWHERE, HERE, Placement, Process, place
from mmrl.app.cluster.supervise import Supervisor
from mmrl.app.commands.options import LaunchArguments, TrainArguments
from mmrl.app.config.cluster import ClusterConfig
from mmrl.app.config.run import Resolved, RunConfig
from mmrl.app.config.stages import chain_label, stages_of
from mmrl.app.errors import printable
from mmrl.app.plugins.resolve import shipped_folder
from mmrl.app.run.build import check_ranks, with_local_model
from mmrl.app.run.context import RUNS, console
from mmrl.app.run.folder import RunDir
from mmrl.app.toml.tables import said_last
from mmrl.engine.server import LAUNCHERS, Supervised, free_port
from mmrl.policies.text.loading import server_model
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.net.secrets import HIDDEN
from mmrl.training.checkpoints.save import Checkpoints

REWARD_TOKEN = "MMRL_REWARD_TOKEN"
SECRET = ("KEY", "TOKEN")
"""Ends of the names of variables whose values are not printed."""
AUTO = "auto"
CARDS = "CUDA_VISIBLE_DEVICES"


def launch(given: LaunchArguments) -> int:
    """Print, start or write what the config's cluster is made of; the exit code.

    Raises FileNotFoundError, or ValueError where processes do not fit together or to this machine, or one did not start.
    """
    resolved = given.resolve()
    config, cluster = resolved.config, resolved.config.cluster
    for stage in stages_of(resolved):
        own = stage.resolved.config
        check_ranks(own, cluster.trainers)
        own.algorithm.algorithm.check_step(own.prompts_per_step)
    if given.hosts == AUTO and not given.on:
        if given.node is not None:
            raise ValueError(f"--hosts {AUTO} finds the number of this node too: leave --node {given.node} out")
        hosts, node = found_hosts(os.environ, cluster.nodes)
        given = replace(given, hosts=",".join(hosts), node=node)
    job = job_on_ray(resolved, given) if given.on else None
    starts = not given.dry_run and (cluster.nodes == 1 or given.node is not None) and job is None
    if cluster.engines:
        resolved = replace(resolved, config=with_server_model(with_local_model(config) if starts else config, starts))
    placement = place(resolved, given.words, hosts_of(given, cluster.nodes), shipped_folder("configs"), given.node or 0)
    # what the trainers would refuse is refused before anything starts
    TrainArguments([*given.arguments, *placement.overrides], resume=given.resume).resolve()
    if starts:
        return start(config, placement, given)
    if job is not None and not given.dry_run:
        return run_on_ray(job, console.print)
    first = [] if job is None else job.lines()
    first += [f"stages: {chain_label(resolved)}"] if config.stage else []
    if resolved.config.policy.model != config.policy.model:
        first += [f"engines read {resolved.config.policy.model}: what 4 bits stand for, written before they start"]
    text = "\n".join([*first, *lines_of(placement)]) if given.dry_run else batch_script(cluster, given.words)
    typer.echo(printable(text))
    return 0


def job_on_ray(resolved: Resolved, given: LaunchArguments) -> RayLaunch:
    """The launch as agents of Ray start it; ValueError where the command line says what Ray finds, or no folder to go on from."""
    config = resolved.config
    if given.hosts or given.node is not None:
        raise ValueError("--on ray finds the machines: leave --hosts and --node out")
    if not config.output:
        raise ValueError(
            "--on ray goes on from the run's folder where a machine is lost: set output to one that all machines see"
        )
    output = (given.resume or Path(config.output)).expanduser().absolute()
    words = given.arguments if given.resume else said_last([*given.arguments, f"output={json.dumps(str(output))}"])
    keys = frozenset(value for key, value, _ in resolved.rows() if key.endswith("_env") and isinstance(value, str) and value)
    own = engine_key(config) or RayLaunch.engine_key
    return RayLaunch(config.cluster, tuple(words), output, given.resume is not None, keys, own)


def engine_key(config: RunConfig) -> str:
    """The variable that holds the key of the policy's engines; empty: none has one."""
    engine = config.policy.engine if isinstance(config.policy, TextPolicyConfig) else None
    return "" if engine is None else engine.token_env


def with_server_model(config: RunConfig, make: bool) -> RunConfig:
    """The config with the model that its engines read; see `server_model`. One that is not on this machine keeps its name."""
    policy = config.policy
    if not isinstance(policy, TextPolicyConfig) or not (make or Path(policy.model).is_dir()):
        return config
    return replace(config, policy=replace(policy, model=server_model(policy, make)))


def hosts_of(given: LaunchArguments, nodes: int) -> list[str]:
    """The names of the machines; ValueError where a machine's number is given, and not the names of all."""
    hosts = [host.strip() for host in given.hosts.split(",") if host.strip()]
    if hosts or nodes == 1:
        return hosts or [HERE]
    if given.node is not None:
        raise ValueError(f"--node {given.node} is one of {nodes} nodes: give the names of all with --hosts first,second,...")
    return [f"node-{i}" for i in range(nodes)]


def lines_of(placement: Placement) -> list[str]:
    """The plan as text: machine, GPUs, port, dependencies, variables and command line of every process."""
    lines: list[str] = []
    for node, host in enumerate(placement.hosts):
        servers = ", ".join(process.name for process in placement.servers_of(node))
        lines.append(f"node {node} ({'this machine' if len(placement.hosts) == 1 else host})")
        for process in placement.of_node(node):
            if process.kind == "sampler":
                lines.append(f"  {process.name}: {place_of(process)}, started by its trainer, and again when it dies")
                continue
            after = "starts first" if process.url or not servers else f"waits for {servers}"
            lines.append(f"  {process.name}: {place_of(process)}, port {process.port}, {after}")
            shown = {name: HIDDEN if name.endswith(SECRET) else value for name, value in process.environment}
            lines += [f"    {name}={shlex.quote(value)} \\" for name, value in shown.items()]
            lines.append(f"    {shlex.join(process.words)}")
            lines += [f"    not on this machine: {process.missing}"] if process.missing else []
    lines.append("when the trainers end, or one of them fails, everything ends; a server that dies is started again")
    return lines


def place_of(process: Process) -> str:
    """`GPU 0-5`, `GPU 6` or `no GPU`."""
    if not process.gpus:
        return "no GPU"
    first, last = process.gpus[0], process.gpus[-1]
    return f"GPU {first}" if first == last else f"GPU {first}-{last}"


def start(config: RunConfig, placement: Placement, given: LaunchArguments) -> int:
    """Run the processes of this machine to the end of its trainers; their exit code.

    Raises ValueError: a port is taken, there are too few cards, a program or a key is missing, or a server did not start.
    """
    mine = [process for process in placement.of_node(given.node or 0) if process.words]
    refuse_missing(config, mine, len(placement.hosts))
    cards = own_cards(max((max(process.gpus, default=-1) for process in mine), default=-1) + 1)
    run = given.resume or (Path(config.output).expanduser() if config.output else RUNS / "launch")
    folder = run.with_name(f"{run.name}.logs" + ("" if given.node is None else f"-node-{given.node}"))
    folder.mkdir(parents=True, exist_ok=True)  # next to the run's, which the run makes itself
    servers = [to_supervise(process, cards, folder, config.cluster.restarts) for process in mine if process.url]
    trainers = next(to_supervise(process, cards) for process in mine if not process.url)
    for server in servers:
        console.print(f"{server.name}: {server.url}, its log is {server.log}")
    urls = [process.url for process in placement.servers_of(given.node or 0)]
    supervisor = Supervisor(servers, trainers, urls, config.cluster.patience_s, console.print)
    code = supervisor.run()
    if code or supervisor.asked_by:
        console.print(f"the trainers ended with exit code {code}{how_to_go_on(config, given)}")
    return code


def refuse_missing(config: RunConfig, processes: Sequence[Process], nodes: int) -> None:
    """Raise ValueError where a program, a key or a port that these processes need is not to be had."""
    for process in processes:
        if process.missing:
            raise ValueError(f"{process.name} cannot run here: {process.missing}")
        # trainers of other nodes come to the first one's port
        if process.url or process.node == 0:
            refuse_busy(process)
    if nodes > 1:
        wanted = {"engine": engine_key(config), "reward server": REWARD_TOKEN}
        for kind in dict.fromkeys(process.kind for process in processes if EVERYWHERE in process.words):
            variable = wanted.get(kind, "")
            if variable and not os.environ.get(variable):
                raise ValueError(
                    f"the {kind}s of {nodes} nodes are reached by other machines, and the environment variable {variable} is not "
                    "set: set it to the same secret on all nodes, or start with the script that `mmrl launch` writes"
                )


def refuse_busy(process: Process) -> None:
    """Raise ValueError where somebody listens at the process's port already."""
    try:
        free_port(process.port)
    except ValueError:
        key = {"engine": "cluster.engine_port", "judge": "cluster.judge_port", "trainers": "cluster.port"}.get(
            process.kind, "the port of its spec"
        )
        raise ValueError(
            f"port {process.port} of {process.name} is taken by another program: end that, or change {key}"
        ) from None


def own_cards(wanted: int) -> list[str]:
    """The names of this machine's cards, as CUDA_VISIBLE_DEVICES knows them; ValueError for fewer than wanted."""
    if not wanted:
        return []
    if os.environ.get(CARDS):
        found, source = [name.strip() for name in os.environ[CARDS].split(",")], f" ({CARDS}={os.environ[CARDS]})"
    else:
        import torch

        found, source = [str(i) for i in range(torch.cuda.device_count())], ""
    if len(found) < wanted:
        raise ValueError(
            f"the processes of this node need {wanted} GPUs, and it shows {len(found)}{source}: change cluster.trainers, "
            "cluster.engines, cluster.judges or cluster.gpus_per_node"
        )
    return found


def to_supervise(process: Process, cards: Sequence[str], folder: Path | None = None, restarts: int = 0) -> Supervised:
    """The process with its whole environment: this program's, without variables of a launcher around it."""
    environment = {name: value for name, value in os.environ.items() if not (process.url and LAUNCHERS.fullmatch(name))}
    if process.kind == "reward server" and "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    environment |= dict(process.environment) | {CARDS: ",".join(cards[i] for i in process.gpus)}
    log = None if folder is None else folder / f"{process.name.replace(' ', '-')}.log"
    return Supervised(process.name, process.words, environment, process.url, log, restarts, process.kind == "judge")


def how_to_go_on(config: RunConfig, given: LaunchArguments) -> str:
    """The command that continues the run, where it left a checkpoint."""
    run = given.resume or (Path(config.output).expanduser() if config.output else None)
    if run is None or Checkpoints(RunDir(run).checkpoints).newest_whole() is None:
        return ""
    # the run's own file names this launch's servers, and no longer how to start others
    return f"; go on with\nmmrl launch {shlex.join([*given.arguments, '--resume', str(run)])}"


SCRIPT = """#!/usr/bin/env bash
# {nodes} node(s), {trainers} trainer(s), {engines} engine(s), {rewards} reward server(s):  sbatch FILE
# Add your partition and account, and change the time:
#SBATCH --nodes={nodes}
{gpus}#SBATCH --ntasks-per-node=1
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --job-name=mmrl
#SBATCH --output=%x-%j.log

set -euo pipefail
fail() {{ echo "mmrl: $1" >&2; exit 2; }}
[ -n "${{SLURM_JOB_NODELIST:-}}" ] || fail "this is a script for Slurm: start it with sbatch"
[ "$SLURM_JOB_NUM_NODES" = {nodes} ] || fail "the job has $SLURM_JOB_NUM_NODES node(s), and the config wants {nodes}"
command -v mmrl > /dev/null || fail "mmrl is not on PATH: activate its environment before sbatch, or in this script"

HOSTS="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd, -)"
# Servers that other machines reach ask for a key, made for this job alone:
MMRL_REWARD_TOKEN="${{MMRL_REWARD_TOKEN:-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \\n')}}"
MMRL_ENGINE_TOKEN="${{MMRL_ENGINE_TOKEN:-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \\n')}}"
export HOSTS MMRL_REWARD_TOKEN MMRL_ENGINE_TOKEN

# One launch per node; one that fails ends the others.
exec srun --kill-on-bad-exit=1 bash -c 'exec mmrl launch "$@" --hosts "$HOSTS" --node "$SLURM_NODEID"' mmrl {words}
"""


def batch_script(cluster: ClusterConfig, words: Sequence[str]) -> str:
    """A script for `sbatch`, which checks where it runs first; `words` follow `mmrl launch` and give the config."""
    gpus = f"#SBATCH --gpus-per-node={cluster.gpus_per_node}\n" if cluster.gpus_per_node else ""
    return SCRIPT.format(
        nodes=cluster.nodes,
        gpus=gpus,
        trainers=cluster.trainers,
        engines=cluster.engines,
        rewards=len(cluster.rewards),
        words=shlex.join(words),
    )
