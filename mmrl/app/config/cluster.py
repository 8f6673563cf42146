"""`[cluster]`: how many processes of which kind `mmrl launch` starts, and on how many machines."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mmrl.core.ranges import CountOrNone, Positive, Range, check_ranges

Port = Annotated[int, Range(1024, 65535)]
Cards = Annotated[int, Range(0, 256, why="no machine has more")]
MOST_PROCESSES = 256
"""Of one machine."""


@dataclass(frozen=True)
class ClusterConfig:
    """Machines and processes of a run that `mmrl launch` starts; `mmrl train` does not look at it."""

    nodes: Annotated[int, Range(1, 2**12)] = 1
    """Machines, all alike."""
    gpus_per_node: Cards = 0
    """Cards of each machine; 0 = everything runs on CPUs."""
    trainers: Annotated[int, Range(1, 2**16)] = 1
    """Processes that train, on all machines together, as many on each; every one takes a card."""
    weights: Literal["replicas", "shards"] = "replicas"
    """replicas: every trainer holds the whole model. shards: FSDP2 spreads weights, gradients and optimizer over all trainers."""
    engines: Annotated[int, Range(0, 2**12)] = 0
    """Servers of [policy.engine] on all machines together, dealt out in turn; 0 = none are started."""
    gpus_per_engine: Annotated[int, Range(1, 256)] = 1
    """Cards of each engine: more than one splits the model among them."""
    engine_port: Port = 8100
    """Of the first engine of every machine; the next ones count on from it."""
    rewards: tuple[str, ...] = ()
    """Specs of reward servers (`mmrl reward serve SPEC`), all on the first machine; the spec says the port."""
    gpus_per_reward: Cards = 0
    """Cards of each reward server; 0 = it computes on the CPU."""
    port: Port = 29500
    """The port where trainers meet, on the first machine."""
    restarts: CountOrNone = 3
    """How often an engine or a reward server that died is started again."""
    patience_s: Positive = 1800.0
    """Seconds that engines and reward servers may take until they answer: large models are read from disk first."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.trainers % self.nodes:
            raise ValueError(
                f"cluster.trainers is {self.trainers}, which {self.nodes} nodes cannot share evenly: "
                f"set it to a multiple of {self.nodes}"
            )
        if self.trainers_per_node > MOST_PROCESSES or self.most_engines > MOST_PROCESSES:
            raise ValueError(
                f"cluster starts {max(self.trainers_per_node, self.most_engines)} processes of a kind on each machine, and at "
                f"most {MOST_PROCESSES} are started: set cluster.nodes, or fewer trainers and engines"
            )
        if not self.gpus_per_node:
            if self.weights == "shards":
                raise ValueError('cluster.weights is "shards", which needs cards: set cluster.gpus_per_node, or take replicas')
            return
        wanted = self.trainers_per_node + self.most_engines * self.gpus_per_engine + len(self.rewards) * self.gpus_per_reward
        if wanted > self.gpus_per_node:
            raise ValueError(
                f"cluster.gpus_per_node is {self.gpus_per_node}, and the first node needs {wanted}: {self.trainers_per_node} for "
                f"trainers, {self.most_engines * self.gpus_per_engine} for {self.most_engines} engine(s), "
                f"{len(self.rewards) * self.gpus_per_reward} for {len(self.rewards)} reward server(s): start fewer, or more nodes"
            )

    @property
    def trainers_per_node(self) -> int:
        return self.trainers // self.nodes

    @property
    def most_engines(self) -> int:
        """Engines of the first machine, which has the most."""
        return -(-self.engines // self.nodes)
