"""`[cluster]`: how many processes of which kind `mmrl launch` starts, and on how many machines."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mmrl.runtime.blame import refuse_where
from mmrl.runtime.ranges import CountOrNone, Positive, Range, check_ranges

Port = Annotated[int, Range(1024, 65535)]
Cards = Annotated[int, Range(0, 256, why="no machine has more")]
MOST_PROCESSES = 256
"""Of one machine."""


@dataclass(frozen=True)
class ClusterConfig:
    """Machines and processes of a run that `mmrl launch` starts; `mmrl train` looks at `samplers` alone."""

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
    samplers: Annotated[int, Range(0, 256)] = 0
    """Processes of each trainer that sample with copies of its weights, started by it, `mmrl train` too; each takes a card of
    its own. 0 = the network that trains samples, or [policy.engine]."""
    samplers_share: bool = False
    """True: samplers use their trainer's card, which pays where rewards take long and the card has memory for all."""
    rewards: tuple[str, ...] = ()
    """Specs of reward servers (`mmrl reward serve SPEC`); the spec says the port."""
    rewards_on: Literal["every", "first"] = "every"
    """Machines that have reward servers and judges. every: each has all of them, and its trainers ask its own. first: the reward
    servers of the first machine answer all trainers, as one must that remembers; with judges that is for one machine."""
    gpus_per_reward: Cards = 0
    """Cards of each reward server; 0 = it computes on the CPU."""
    judges: tuple[str, ...] = ()
    """Models that vLLM serves to rewards, names of the hub or folders; a [[reward]] asks one whose server.url
    has its port."""
    gpus_per_judge: Annotated[int, Range(1, 256)] = 1
    """Cards of each judge: more than one splits the model among them."""
    judge_port: Port = 8200
    """Of the first judge; the next ones count on from it."""
    judge_options: tuple[str, ...] = ()
    """Further words of `vllm serve` for every judge: `["--max-model-len", "8192"]`."""
    port: Port = 29500
    """The port where trainers meet, on the first machine."""
    restarts: CountOrNone = 3
    """How often an engine, a reward server or a judge that died is started again. The run ends with a judge that stays down."""
    patience_s: Positive = 1800.0
    """Seconds that servers may take until they answer: large models are read from disk first."""

    def __post_init__(self) -> None:
        check_ranges(self)
        most, shards = max(self.trainers_per_node, self.most_engines), self.weights == "shards"
        reasons = {
            f".trainers is {self.trainers}, which {self.nodes} nodes cannot share evenly: set it to a multiple of {self.nodes}": (
                self.trainers % self.nodes > 0
            ),
            f" starts {most} processes of a kind on each machine, and at most {MOST_PROCESSES} are started: set cluster.nodes, "
            "or fewer trainers and engines": most > MOST_PROCESSES,
            f'.samplers is {self.samplers}, and cluster.weights is "shards", of which no trainer has all that its samplers need'
            ": take replicas, or set cluster.samplers = 0": self.samplers > 0 and shards,
            f'.judges names {len(self.judges)} model(s), cluster.nodes is {self.nodes} and cluster.rewards_on is "first": '
            'judges answer trainers of their own machine, so set cluster.rewards_on = "every"': (
                bool(self.judges) and self.nodes > 1 and not self.is_local
            ),
            '.weights is "shards", which needs cards: set cluster.gpus_per_node, or take replicas': (
                not self.gpus_per_node and shards
            ),
        }
        refuse_where("cluster", reasons)
        if not self.gpus_per_node:
            return
        engines, rewards = self.most_engines * self.gpus_per_engine, len(self.rewards) * self.gpus_per_reward
        judges = len(self.judges) * self.gpus_per_judge
        wanted = self.cards_of_trainers + engines + rewards + judges
        if wanted > self.gpus_per_node:
            raise ValueError(
                f"cluster.gpus_per_node is {self.gpus_per_node}, and the first node needs {wanted}: {self.cards_of_trainers} for "
                f"trainers{' and samplers' if self.samplers else ''}, {engines} for {self.most_engines} engine(s), "
                f"{rewards} for {len(self.rewards)} reward server(s), {judges} for {len(self.judges)} judge(s): "
                "start fewer, or more nodes"
            )

    @property
    def trainers_per_node(self) -> int:
        return self.trainers // self.nodes

    @property
    def cards_of_trainers(self) -> int:
        """Cards of a machine's trainers and of their samplers, which come first."""
        return self.trainers_per_node * (1 if self.samplers_share else 1 + self.samplers)

    @property
    def is_local(self) -> bool:
        """Do reward servers and judges answer their own machine alone?"""
        return self.nodes == 1 or self.rewards_on == "every"

    @property
    def most_engines(self) -> int:
        """Engines of the first machine, which has the most."""
        return -(-self.engines // self.nodes)
