"""Who runs where: the processes of a run that `mmrl launch` starts, from `[cluster]` and the names of its machines."""

import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from torch import nn

from mmrl.app.config.cluster import ClusterConfig
from mmrl.app.config.run import Resolved, RunConfig
from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins.resolve import load
from mmrl.app.toml.tables import said_last
from mmrl.engine.server import ServeCommand, judge_command, serve_command
from mmrl.policies.text.settings import EngineConfig, TextPolicyConfig
from mmrl.runtime.near import link

Kind = Literal["engine", "sampler", "reward server", "judge", "trainers"]
HERE = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # servers that other machines reach ask for a token
TENSOR_PARALLEL = "--tensor-parallel-size"


@dataclass(frozen=True)
class Process:
    """One process of one machine, with all that it starts."""

    name: str
    kind: Kind
    node: int
    gpus: tuple[int, ...]
    """Cards of its machine, counted from 0."""
    port: int
    """Where it listens; of trainers, where they meet."""
    url: str
    """The address that answers once it is ready; empty for trainers and samplers."""
    words: tuple[str, ...]
    """Its command line; empty: the trainer starts it."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of its own."""
    missing: str = ""
    """Why it cannot run on this machine."""


@dataclass(frozen=True)
class Placement:
    """All processes of a run; trainers wait until every server answers."""

    hosts: tuple[str, ...]
    processes: tuple[Process, ...]
    overrides: tuple[str, ...] = ()
    """The words that tell trainers where their servers are."""

    def of_node(self, node: int) -> list[Process]:
        return [process for process in self.processes if process.node == node]

    def servers_of(self, node: int) -> list[Process]:
        """The processes that answer before the trainers of a machine start."""
        return [one for one in self.processes if one.url and (one.node == node or urlsplit(one.url).hostname != HERE)]


@dataclass(frozen=True)
class RewardSpec:
    """A spec of `mmrl reward serve`, and the port that it says."""

    file: str
    port: int
    uses: tuple[str, ...] = ()
    """What its rewards name."""

    @classmethod
    def read(cls, file: str, shipped: Path) -> "RewardSpec":
        """The port of a spec, a file or one that ships with mmrl; its rewards are not loaded.

        Raises FileNotFoundError, or ValueError where it is not TOML or has no port that a config could name.
        """
        given = Path(file).expanduser()
        path = given if given.is_file() else shipped / file
        if not path.is_file():
            raise FileNotFoundError(
                f"cluster.rewards names {file}, which does not exist{link(given)}: write one as for `mmrl reward serve`"
            )
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
            port, entries = table.get("port", 8500), table.get("reward", [])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"cluster.rewards: {file} is not TOML: {error}") from None
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            raise ValueError(f"cluster.rewards: {file} says port = {port!r}: write the one that [[reward]] asks, such as 8500")
        uses = [entry.get("use") for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
        return cls(str(path), port, tuple(use for use in uses if isinstance(use, str)))

    def refuse_memory(self) -> None:
        """Raise ValueError for a reward that remembers, of which several machines would hold unlike copies."""
        for use in self.uses:
            try:
                found = load(adapters.split(use)[1], "rewards")
            except (ValueError, OSError):
                continue  # its server, which may have other packages, says why
            if isinstance(found, type) and hasattr(found, "load_state_dict") and not issubclass(found, nn.Module):
                raise ValueError(
                    f"{self.file}: reward {use} has a state_dict, so it remembers, and a server on every node would remember "
                    'other groups than the next one: set cluster.rewards_on = "first"'
                )


def place(resolved: Resolved, train: Sequence[str], hosts: Sequence[str], shipped: Path, node: int = 0) -> Placement:
    """The processes of a run on these machines, whose first one leads.

    Args:
        train: the words after `mmrl train` that give this config.
        shipped: the folder of the configs that ship with mmrl.
        node: the machine whose command lines are made with its own interpreter and its own vLLM.

    Raises FileNotFoundError without a spec of a reward server, ValueError where the processes do not fit together, the config or
    the machines.
    """
    config, cluster = resolved.config, resolved.config.cluster
    if len(hosts) != cluster.nodes:
        raise ValueError(f"cluster.nodes is {cluster.nodes}, and {len(hosts)} host(s) are given: {', '.join(hosts) or 'none'}")
    if not 0 <= node < cluster.nodes:
        raise ValueError(f"--node is {node}, and cluster.nodes is {cluster.nodes}: count nodes from 0 to {cluster.nodes - 1}")
    if config.prompts_per_step % cluster.trainers:
        raise ValueError(
            f"prompts_per_step is {config.prompts_per_step}, which {cluster.trainers} trainers cannot share evenly: "
            f"set it to a multiple of {cluster.trainers}"
        )
    specs = [RewardSpec.read(file, shipped) for file in cluster.rewards]
    if cluster.nodes > 1 and cluster.is_local:
        for spec in specs:
            spec.refuse_memory()
    engines, rewards, judges = place_engines(config, hosts), place_rewards(cluster, specs, hosts), place_judges(config)
    every = [replace(one, node=node) for node in range(cluster.nodes if cluster.is_local else 1) for one in (*rewards, *judges)]
    refuse_same_ports(cluster, [*engines, *every])
    overrides = [*engine_overrides([engine.url for engine in engines]), *reward_overrides(config, rewards)]
    trainers = [trainers_of(cluster, node, hosts, shipped, said_last([*train, *overrides])) for node in range(cluster.nodes)]
    return Placement(tuple(hosts), (*engines, *every, *trainers, *samplers_of(cluster)), tuple(overrides))


def place_engines(config: RunConfig, hosts: Sequence[str]) -> list[Process]:
    """The engines, dealt out to machines in turn, their cards after the trainers'; ValueError where the config starts none."""
    cluster, policy = config.cluster, config.policy
    engine = policy.engine if isinstance(policy, TextPolicyConfig) else None
    if not cluster.engines:
        return []
    if engine is None or not isinstance(policy, TextPolicyConfig):
        raise ValueError(
            f"cluster.engines is {cluster.engines}, and the config has no [policy.engine] that would ask them: add "
            '[policy.engine] with kind = "vllm", or set cluster.engines = 0'
        )
    if engine.url:
        raise ValueError(
            f"cluster.engines is {cluster.engines}, and policy.engine.url names servers that others run: remove one of them"
        )
    found: list[Process] = []
    for number in range(cluster.engines):
        node, place = number % cluster.nodes, number // cluster.nodes
        port, first = cluster.engine_port + place, cluster.cards_of_trainers + place * cluster.gpus_per_engine
        gpus = tuple(range(first, first + cluster.gpus_per_engine)) if cluster.gpus_per_node else ()
        command, missing = engine_command(policy, engine, port, cluster)
        url = f"http://{HERE if cluster.nodes == 1 else hosts[node]}:{port}"
        own = (*command.environment, ("CUDA_VISIBLE_DEVICES", ",".join(map(str, gpus))))
        found.append(Process(f"engine {number}", "engine", node, gpus, port, url, command.words, own, missing))
    return found


def engine_command(policy: TextPolicyConfig, engine: EngineConfig, port: int, cluster: ClusterConfig) -> tuple[ServeCommand, str]:
    """The command of an engine, and why it cannot run here, if it cannot: plans are made on machines without vLLM too."""
    options = engine.options
    if cluster.gpus_per_engine > 1 and TENSOR_PARALLEL not in options:
        options = (*options, TENSOR_PARALLEL, str(cluster.gpus_per_engine))
    host = HERE if cluster.nodes == 1 else EVERYWHERE
    rank = 0 if policy.lora is None else policy.lora.rank
    try:
        return serve_command(policy, replace(engine, devices="", options=options), port, rank, host), ""
    except ValueError as error:
        words = ("vllm", "serve", policy.model, "--host", host, "--port", str(port), *options, "...")
        return ServeCommand(words, ()), str(error)


def place_rewards(cluster: ClusterConfig, specs: Sequence[RewardSpec], hosts: Sequence[str]) -> list[Process]:
    """The reward servers of the first machine; their cards come after the engines'."""
    found: list[Process] = []
    first = cluster.cards_of_trainers + cluster.most_engines * cluster.gpus_per_engine
    for number, spec in enumerate(specs):
        start = first + number * cluster.gpus_per_reward
        gpus = tuple(range(start, start + cluster.gpus_per_reward)) if cluster.gpus_per_node else ()
        host = HERE if cluster.is_local else EVERYWHERE
        words = (sys.executable, "-m", "mmrl", "reward", "serve", spec.file, "--host", host, "--port", str(spec.port))
        url = f"http://{HERE if cluster.is_local else hosts[0]}:{spec.port}"
        own = (("CUDA_VISIBLE_DEVICES", ",".join(map(str, gpus))),)
        found.append(Process(f"reward server {number}", "reward server", 0, gpus, spec.port, url, words, own))
    return found


def place_judges(config: RunConfig) -> list[Process]:
    """The judges of the first machine, whose cards come last; ValueError for one that no reward asks."""
    cluster, policy, found = config.cluster, config.policy, list[Process]()
    engine = policy.engine if isinstance(policy, TextPolicyConfig) else None
    rewards = [*config.reward, *config.evaluation.reward]
    asked = {port_of(str(server.get("url", ""))) for one in rewards if isinstance(server := one.args.get("server"), Mapping)}
    before = cluster.cards_of_trainers + cluster.most_engines * cluster.gpus_per_engine
    before += len(cluster.rewards) * cluster.gpus_per_reward
    for number, model in enumerate(cluster.judges):
        port, cards = cluster.judge_port + number, cluster.gpus_per_judge
        if port not in asked:
            raise ValueError(
                f"no [[reward]] asks judge {number} ({model}): write server = {{ url = "
                f'"http://{HERE}:{port}/v1" }} into one that asks a model, or remove it from cluster.judges'
            )
        first = before + number * cards
        gpus = tuple(range(first, first + cards)) if cluster.gpus_per_node else ()
        try:
            command, missing = judge_command(model, port, cards, cluster.judge_options, engine.environment if engine else ""), ""
        except ValueError as error:
            words = ("vllm", "serve", model, "--host", HERE, "--port", str(port), *cluster.judge_options, "...")
            command, missing = ServeCommand(words, ()), str(error)
        own = (*command.environment, ("CUDA_VISIBLE_DEVICES", ",".join(map(str, gpus))))
        url = f"http://{HERE}:{port}"
        found.append(Process(f"judge {number}", "judge", 0, gpus, port, url, command.words, own, missing))
    return found


def samplers_of(cluster: ClusterConfig) -> list[Process]:
    """The processes that trainers start, on cards after those of all trainers, or on their own one's."""
    found: list[Process] = []
    for number in range(cluster.trainers * cluster.samplers):
        node, place = divmod(number, cluster.trainers_per_node * cluster.samplers)
        card = place // cluster.samplers if cluster.samplers_share else cluster.trainers_per_node + place
        found.append(Process(f"sampler {number}", "sampler", node, (card,) if cluster.gpus_per_node else (), 0, "", ()))
    return found


def refuse_same_ports(cluster: ClusterConfig, servers: Sequence[Process]) -> None:
    """Raise ValueError where two processes of a machine would listen at one port."""
    owners = {(0, cluster.port): "the trainers meet (cluster.port)"}
    for server in servers:
        place = (server.node, server.port)
        if place in owners:
            raise ValueError(f"port {server.port} is given to {server.name}, and {owners[place]} there too: change one of them")
        owners[place] = f"{server.name} listens"


def engine_overrides(urls: Sequence[str]) -> list[str]:
    """The words that tell trainers where their engines are, in place of how mmrl would start one."""
    if not urls:
        return []
    own = ['policy.engine.environment=""', "policy.engine.port=0", 'policy.engine.devices=""', "policy.engine.options=[]"]
    return [f"policy.engine.url={json.dumps(list(urls))}", *own]


def reward_overrides(config: RunConfig, servers: Sequence[Process]) -> list[str]:
    """The words that say where reward servers on another machine are; ValueError for one that no reward asks."""
    found: list[str] = []
    uses = {f"reward.{i}": reward.use for i, reward in enumerate(config.reward)}
    uses |= {f"evaluation.reward.{i}": reward.use for i, reward in enumerate(config.evaluation.reward)}
    for server in servers:
        asked = {key: use for key, use in uses.items() if port_of(use) == server.port}
        if not asked:
            raise ValueError(
                f"no [[reward]] uses the reward server of {server.words[5]}: write use = "
                f'"http://{HERE}:{server.port}/NAME" in a [[reward]], or remove it from cluster.rewards'
            )
        for key, before in asked.items():
            use = urlunsplit(urlsplit(before)._replace(netloc=f"{urlsplit(server.url).hostname}:{server.port}"))
            found += [] if use == before else [f"{key}.use={json.dumps(use)}"]
    return found


def port_of(use: str) -> int | None:
    """The port of a reward's address; None for rewards that are no servers."""
    try:
        return urlsplit(use).port if use.startswith(("http://", "https://")) else None
    except ValueError:
        return None


def trainers_of(cluster: ClusterConfig, node: int, hosts: Sequence[str], shipped: Path, train: Sequence[str]) -> Process:
    """The trainers of one machine: one process alone, torchrun's, or accelerate's where weights are sharded."""
    count, main = cluster.trainers_per_node, f"{HERE if cluster.nodes == 1 else hosts[0]}"
    words = [sys.executable, "-m", "mmrl", "train", *train]
    if cluster.weights == "shards":
        file = shipped / "accelerate" / "fsdp2.yaml"
        words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file)]
        words += ["--num_machines", str(cluster.nodes), "--num_processes", str(cluster.trainers), "--machine_rank", str(node)]
        words += ["--main_process_ip", main, "--main_process_port", str(cluster.port), "-m", "mmrl", "train", *train]
    elif cluster.trainers > 1:
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(cluster.nodes), "--nproc_per_node", str(count)]
        words += ["--node_rank", str(node), "--master_addr", main, "--master_port", str(cluster.port)]
        words += ["-m", "mmrl", "train", *train]
    gpus = tuple(range(cluster.cards_of_trainers)) if cluster.gpus_per_node else ()
    own = (("CUDA_VISIBLE_DEVICES", ",".join(map(str, gpus))), ("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "4")))
    return Process("trainers" if count > 1 else "trainer", "trainers", node, gpus, cluster.port, "", tuple(words), own)
