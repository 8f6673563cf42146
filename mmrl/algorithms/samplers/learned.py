"""Samplers that learn from rewards which prompts, or kinds of prompts, still teach, or ask what the policy expects of them.

They keep statistics per prompt or per category, draw by them, and observe the total rewards of every prompt of a step. What is
drawn depends on the seed, the number of draws and what was observed, so every rank draws the same prompts and a resumed run
continues exactly.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from mmrl.algorithms.notes import Held, Tracked, begin
from mmrl.algorithms.samplers.base import refuse_other_data
from mmrl.core.protocols import State
from mmrl.core.types import Prompt
from mmrl.runtime.ranges import (
    BelowOne,
    Count,
    Large,
    NonNegative,
    Number,
    Positive,
    PositiveShare,
    Range,
    Seed,
    Share,
    check_ranges,
)

Floats = NDArray[np.float64]
Weight = TypeVar("Weight", float, Floats)


def softmax(values: Mapping[str, float], temperature: float) -> dict[str, float]:
    """exp(value / temperature), adding up to 1."""
    most = max(values.values())
    powers = {name: math.exp((value - most) / temperature) for name, value in values.items()}
    return {name: power / sum(powers.values()) for name, power in powers.items()}


def numpy_twin(rng: random.Random) -> np.random.RandomState:
    """A generator of arrays that goes on with the numbers of this one; numpy promises never to change what it draws."""
    *key, position = rng.getstate()[1]
    twin = np.random.RandomState(0)
    twin.set_state(("MT19937", np.array(key, np.uint32), position, 0, 0.0))
    return twin


def largest(values: Floats, count: int, margin: float = 0.0) -> NDArray[np.int64]:
    """Places of the largest values, in order, the first of equals first; with a margin also of those that come as close."""
    edge = np.partition(values, -count)[-count] if count < len(values) else -math.inf
    found = np.flatnonzero(values >= edge - margin)
    return found[np.argsort(-values[found], kind="stable")]


@dataclass
class Learning:
    """Prompts by id, a generator per draw, and states: shared by the samplers that learn."""

    prompts: Sequence[Prompt]
    seed: Seed = 0
    draws: int = field(default=0, init=False)
    """Number of draws so far."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not hasattr(self.prompts, "__getitem__") or not self.prompts:
            raise ValueError(
                f"{type(self).__name__} needs all prompts before it draws, and at least one: give it a data set that is a list, "
                'or take sampler.kind = "Streamed"'
            )
        self._orders: dict[str, tuple[int, list[int]]] = {}
        self._places = {prompt.id: i for i, prompt in reversed(list(enumerate(self.prompts)))}

    def generator(self) -> random.Random:
        """The generator of this draw; the next one has another."""
        self.draws += 1
        return random.Random(f"{self.seed}/{self.draws}")

    def in_epochs(self, name: str, places: Sequence[int], taken: int) -> Prompt:
        """The prompt that comes after so many of endless epochs over these places, each in an order of its own."""
        epoch, position = divmod(taken, len(places))
        if name not in self._orders or self._orders[name][0] != epoch:
            self._orders[name] = epoch, random.Random(f"{self.seed}/{name}/{epoch}").sample(places, len(places))
        return self.prompts[self._orders[name][1][position]]

    def rates(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]], at: float) -> dict[int, list[bool]]:
        """Index of a prompt -> which of its samples were right; unknown prompts, and samples without a total, are left out."""
        found: dict[int, list[bool]] = {}
        for prompt, rewards in zip(prompts, totals, strict=True):
            if prompt.id in self._places and (right := [reward >= at for reward in rewards if not math.isnan(reward)]):
                found.setdefault(self._places[prompt.id], []).extend(right)
        return found

    def state_dict(self) -> State:
        return {"draws": self.draws, "seed": self.seed, "num_prompts": len(self.prompts), "memory": self.memory()}

    def load_state_dict(self, state: State) -> None:
        refuse_other_data(state, self.prompts, self.seed)
        self.draws = state["draws"]
        self.remember(dict(state["memory"]))

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        """Learns nothing from rewards."""

    def memory(self) -> State | Held:
        """All that was learned besides the number of draws."""
        return {}

    def remember(self, memory: State) -> None:
        """Take over what was learned."""


@dataclass
class Bandit(Learning):
    """P(category) ~ exp(value / temperature), value an estimate of mean |A| in the category (SEC, DUMP).

    `rule = "td"` (SEC, arXiv:2505.14970): value <- rate |A| + (1 - rate) value for the categories of a step. `rule = "ucb"`
    (DUMP, arXiv:2504.09710): the mean of the last `window` |A| plus exploration sqrt(2 ln(N + 1) / (n + 1)), n rollouts of
    the category among N. A is the reward standardized within its group. Within a category prompts come in shuffled epochs.
    SEC's temperature was not found: 0.4 is ours; DUMP's is 0.1.
    """

    column: str = "category"
    """The column of the prompts that names their category."""
    rule: Literal["td", "ucb"] = "td"
    """How a category is valued: td as in SEC, ucb as in DUMP."""
    temperature: Positive = 0.4
    """The smaller, the more often the best category is drawn."""
    rate: PositiveShare = 0.5
    """td: how much of the value a step replaces."""
    window: Count = 300
    """ucb: rollouts that the mean is taken over."""
    exploration: NonNegative = 1.0
    """ucb: how much a rarely drawn category gains."""
    values: dict[str, float] = field(default_factory=dict[str, float], init=False)
    recent: dict[str, list[float]] = field(default_factory=dict[str, list[float]], init=False)
    seen: dict[str, int] = field(default_factory=dict[str, int], init=False)
    taken: dict[str, int] = field(default_factory=dict[str, int], init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._of: dict[str, list[int]] = {}
        for i, prompt in enumerate(self.prompts):
            name = prompt.columns.get(self.column)
            if name is None:
                raise ValueError(
                    f"prompt {prompt.id!r} has no column {self.column!r}, by which the sampler tells categories apart: "
                    "give every row one, or name another column in sampler.column"
                )
            self._of.setdefault(str(name), []).append(i)
        names = sorted(self._of)
        self.values, self.recent = dict.fromkeys(names, 0.0), {name: [] for name in names}
        self.seen, self.taken = dict.fromkeys(names, 0), dict.fromkeys(names, 0)

    def draw(self, num_prompts: int) -> list[Prompt]:
        rng, chances = self.generator(), self.chances()
        chosen = rng.choices(list(chances), weights=list(chances.values()), k=num_prompts)
        return [self._next(name) for name in chosen]

    def _next(self, name: str) -> Prompt:
        self.taken[name] += 1
        return self.in_epochs(name, self._of[name], self.taken[name] - 1)

    def chances(self) -> dict[str, float]:
        """Category -> the probability that the next prompt comes from it."""
        if self.rule == "td":
            return softmax(self.values, self.temperature)
        everything = math.log(sum(self.seen.values()) + 1)
        bonus = {name: self.exploration * math.sqrt(2 * everything / (n + 1)) for name, n in self.seen.items()}
        means = {name: sum(last) / len(last) if last else 0.0 for name, last in self.recent.items()}
        return softmax({name: means[name] + bonus[name] for name in means}, self.temperature)

    def learn(self, sizes: Mapping[str, Sequence[float]]) -> None:
        """Take in the |A| of a step's rollouts, by category."""
        for name in sorted(sizes):
            values = [abs(value) for value in sizes[name]]
            if values:
                self.values[name] = self.rate * sum(values) / len(values) + (1 - self.rate) * self.values[name]
                self.recent[name] = [*self.recent[name], *values][-self.window :]
                self.seen[name] += len(values)

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        sizes: dict[str, list[float]] = {}
        for prompt, rewards in zip(prompts, totals, strict=True):
            name = str(prompt.columns.get(self.column))
            if name in self.values:
                sizes.setdefault(name, []).extend(advantages([r for r in rewards if not math.isnan(r)]))
        self.learn(sizes)

    def memory(self) -> State:
        recent = {name: list(last) for name, last in self.recent.items()}
        return {"values": {**self.values}, "recent": recent, "seen": {**self.seen}, "taken": {**self.taken}}

    def remember(self, memory: State) -> None:
        """Raises ValueError when the categories are others."""
        if set(memory["values"]) != set(self.values):
            raise ValueError(
                f"the checkpoint's categories are {sorted(memory['values'])}, this run's are {sorted(self.values)}: "
                "resume with the same data and sampler.column"
            )
        self.values, self.seen, self.taken = dict(memory["values"]), dict(memory["seen"]), dict(memory["taken"])
        self.recent = {name: list(last) for name, last in memory["recent"].items()}


def advantages(rewards: Sequence[float]) -> list[float]:
    """The rewards of a group standardized by their biased deviation; 0 where they are equal."""
    if not rewards:
        return []
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / deviation if deviation > 1e-6 else 0.0 for r in rewards]


@dataclass
class Thompson(Learning):
    """The prompts whose p (1 - p) is largest, p drawn from Beta(right + 1, wrong + 1) with counts that fade (VADE).

    VADE, arXiv:2511.18902, of which only the idea was available: counts of a visited prompt are multiplied by `fade_visited`
    before the step's are added, those of all others by `fade`; the score and both factors are ours. Prompts that were never drawn
    all have the same distribution.
    """

    success_at: Number = 0.5
    """Total reward from which a sample is right."""
    fade_visited: PositiveShare = 0.8
    """Share of a visited prompt's counts that stays at a step."""
    fade: PositiveShare = 0.99
    """The same of all others."""
    right: Floats = field(init=False, repr=False, compare=False)
    """alpha of every prompt, 1 at the start."""
    wrong: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.right, self.wrong = np.ones(len(self.prompts)), np.ones(len(self.prompts))

    def draw(self, num_prompts: int) -> list[Prompt]:
        """Different prompts as long as there are enough of them."""
        drawn: list[Prompt] = []
        while len(drawn) < num_prompts:
            rates = numpy_twin(self.generator()).beta(np.maximum(self.right, 1e-3), np.maximum(self.wrong, 1e-3))
            left = num_prompts - len(drawn)
            drawn += [self.prompts[i] for i in largest(rates * (1 - rates), left)[:left].tolist()]
        return drawn

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        self.learn(self.rates(prompts, totals, self.success_at))

    def learn(self, visits: Mapping[int, Sequence[bool]]) -> None:
        """Take in which samples of the visited prompts, by place, were right."""
        before = self.right, self.wrong
        self.right, self.wrong = self.fade * self.right, self.fade * self.wrong
        for i, seen in visits.items():
            right = float(sum(seen))
            self.right[i] = self.fade_visited * before[0][i] + right
            self.wrong[i] = self.fade_visited * before[1][i] + len(seen) - right

    def memory(self) -> Held:
        # `learn` makes new arrays
        right, wrong = self.right, self.wrong
        return Held(lambda: {"right": right.tolist(), "wrong": wrong.tolist()})

    def remember(self, memory: State) -> None:
        self.right, self.wrong = np.array(memory["right"]), np.array(memory["wrong"])


@dataclass
class VarianceAware(Learning):
    """A share of the draws with weights p (1 - p), with replacement; the others in shuffled epochs (MMR1, arXiv:2509.21268).

    p is a prompt's success rate when it was last sampled, the weight min-max scaled over the prompts; w <- momentum w + (1 -
    momentum) new, and prompts that were never sampled have weight 1. The paper samples the whole data set again now and then and
    adds how different the answers are; here both come from training's own groups, and only rewards are seen.
    """

    share: Share = 0.5
    """Of a draw's prompts, rounded down, that are drawn by weight."""
    momentum: BelowOne = 0.0
    """Share of the old weight that is kept."""
    success_at: Number = 0.5
    """Total reward from which a sample is right."""
    weights: Floats = field(init=False, repr=False, compare=False)
    learnability: Floats = field(init=False, repr=False, compare=False)
    """p (1 - p) of every prompt, NaN where it was never sampled."""
    taken: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights, self.learnability = np.ones(len(self.prompts)), np.full(len(self.prompts), math.nan)

    def draw(self, num_prompts: int) -> list[Prompt]:
        weighted, rng = int(num_prompts * self.share), self.generator()
        sums = np.cumsum(self.weights if self.weights.any() else np.ones(len(self.weights)))
        drawn = rng.choices(self.prompts, cum_weights=cast(Sequence[float], sums), k=weighted)
        for _ in range(num_prompts - weighted):
            drawn.append(self.in_epochs("epoch", range(len(self.prompts)), self.taken))
            self.taken += 1
        return drawn

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        for i, right in self.rates(prompts, totals, self.success_at).items():
            rate = sum(right) / len(right)
            self.learnability[i] = rate * (1 - rate)
        known = ~np.isnan(self.learnability)
        if known.any():
            self.weights[known] = self.mix(self.weights[known], min_max(self.learnability[known]))

    def mix(self, old: Weight, new: Weight) -> Weight:
        """The weight of a prompt after it was estimated again."""
        return self.momentum * old + (1 - self.momentum) * new

    def memory(self) -> Held:
        weights, known, taken = self.weights.copy(), self.learnability.copy(), self.taken

        def write() -> State:
            learned = {str(i): float(known[i]) for i in np.flatnonzero(~np.isnan(known))}
            return {"weights": weights.tolist(), "learnability": learned, "taken": taken}

        return Held(write)

    def remember(self, memory: State) -> None:
        self.weights, self.taken = np.array(memory["weights"]), memory["taken"]
        self.learnability[:] = math.nan
        for i, value in memory["learnability"].items():
            self.learnability[int(i)] = value


def min_max(values: Floats) -> Floats:
    """Scaled so that the least is 0 and the largest 1; all 1 where they are equal."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.ones(len(values))


@dataclass
class Curriculum(Learning):
    """The prompts with column <= edges[k], k = draws // draws_per_stage: easy ones first (CRAFT-GUI, arXiv:2508.11360).

    Only the idea of the paper was available. Each stage adds harder prompts; after the last
    stage all are drawn. A draw takes open prompts at random, none twice as long as there are enough.
    """

    column: str = "difficulty"
    """The column that holds a number, the larger the harder."""
    edges: tuple[Number, ...] = (0.33, 0.66)
    """Largest numbers of the stages, rising."""
    draws_per_stage: Large = 100
    """Steps that a stage lasts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.edges) != sorted(set(self.edges)) or not self.edges:
            raise ValueError(
                f"sampler.edges is {list(self.edges)}: give rising numbers, the largest {self.column!r} of each stage"
            )
        for prompt in self.prompts:
            if not isinstance(prompt.columns.get(self.column), int | float):
                raise ValueError(
                    f"prompt {prompt.id!r} has {prompt.columns.get(self.column)!r} in column {self.column!r}, by which the "
                    "curriculum goes: give every row a number there, or name another column in sampler.column"
                )
        self._hard = np.array([float(cast(float, prompt.columns[self.column])) for prompt in self.prompts])
        if not (self._hard <= self.edges[0]).any():
            raise ValueError(f"no prompt has {self.column!r} <= {self.edges[0]:g}, the first stage: raise sampler.edges[0]")
        self._opened: tuple[int, list[int]] = -1, []

    @property
    def stage(self) -> int:
        """The next draw belongs to it; from 0 to len(edges), when all are open."""
        return min(self.draws // self.draws_per_stage, len(self.edges))

    def draw(self, num_prompts: int) -> list[Prompt]:
        if self._opened[0] != self.stage:
            most = [*self.edges, math.inf][self.stage]
            self._opened = self.stage, np.flatnonzero(self._hard <= most).tolist()
        open_ones, rng, drawn = self._opened[1], self.generator(), list[int]()
        while len(drawn) < num_prompts:
            drawn += rng.sample(open_ones, min(len(open_ones), num_prompts - len(drawn)))
        return [self.prompts[i] for i in drawn]


@dataclass
class Prioritized(Learning):
    """P(prompt) ~ sqrt(v (1 - v)) + least, v its tracked success rate (SPO, arXiv:2509.13232); no prompt twice in a draw.

    The sampler keeps v itself: v = right / (right + wrong), right <- keep right + r, wrong <- keep wrong + 1 - r, where the
    paper's `keep` follows how far the policy has moved. Rewards in [0, 1]; others are clamped.
    """

    start: Share = 0.5
    """The rate of a prompt that was never sampled."""
    samples: Positive = 8.0
    """How many samples that counts for."""
    keep: PositiveShare = 0.875
    """How much of the evidence stays at a visit."""
    least: Positive = 0.05
    """The weight of a prompt that is always or never solved."""
    known: dict[int, Tracked] = field(default_factory=dict[int, Tracked], init=False)
    weights: Floats = field(init=False, repr=False, compare=False)
    """How often every prompt is to be drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights = self.weigh({})

    def weigh(self, known: Mapping[int, Tracked]) -> Floats:
        weights = np.full(len(self.prompts), begin(self.start, self.samples).weight(self.least))
        for place, one in known.items():
            weights[place] = one.weight(self.least)
        return weights

    def draw(self, num_prompts: int) -> list[Prompt]:
        twin, drawn = numpy_twin(self.generator()), list[Prompt]()
        while len(drawn) < num_prompts:
            # The largest u^(1 / w) are a draw by weight without replacement.
            uniform, left = twin.random_sample(len(self.prompts)), num_prompts - len(drawn)
            near = largest(uniform ** (1 / self.weights), left, margin=1e-9).tolist()
            # powers of arrays are rounded as the CPU has it, so they only say which may be among the largest
            keys = {place: float(uniform[place]) ** (1 / float(self.weights[place])) for place in sorted(near)}
            drawn += [self.prompts[place] for place in sorted(keys, key=lambda place: -keys[place])[:left]]
        return drawn

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        for prompt, rewards in zip(prompts, totals, strict=True):
            place = self._places.get(prompt.id)
            for reward in rewards if place is not None else ():
                if reward == reward and place is not None:
                    before, right = self.known.get(place, begin(self.start, self.samples)), min(max(reward, 0.0), 1.0)
                    self.known[place] = Tracked(self.keep * before.right + right, self.keep * before.wrong + 1 - right)
                    self.weights[place] = self.known[place].weight(self.least)

    def memory(self) -> Held:
        known = dict(self.known)
        return Held(lambda: {"known": {str(place): list(one) for place, one in known.items()}})

    def remember(self, memory: State) -> None:
        self.known = {int(place): Tracked(*one) for place, one in memory["known"].items()}
        self.weights = self.weigh(self.known)


Judge = Callable[[Sequence[Prompt]], Sequence[float]]


class Judged:
    """A sampler that wants to know what a policy's value head expects of prompts, the same on all ranks."""

    def ask(self, judge: Judge) -> None:
        """Called once, before the first draw."""


@dataclass
class NearestValue(Learning, Judged):
    """Draws `pool` times as many prompts at random, and keeps those of a value nearest to `target` (PCL, arXiv:2510.01135).

    The value is what the policy's head expects to come of a prompt. Of equally near ones the earlier drawn come first. Set
    policy.scores = ["value"], and take the term ValueFit with `group` with it.
    """

    target: Number = 0.5
    """The value that teaches most, in units of the total reward: half of the samples are right."""
    pool: Annotated[int, Range(2, 2**10)] = 4
    """How many times the prompts of a step are looked at."""
    judge: Judge | None = field(default=None, init=False)

    def ask(self, judge: Judge) -> None:
        self.judge = judge

    def draw(self, num_prompts: int) -> list[Prompt]:
        """Raises ValueError where no policy says what it expects."""
        wanted, places = self.pool * num_prompts, range(len(self.prompts))
        drawn = self.generator().sample([*places] * -(-wanted // len(places)), wanted)
        if self.judge is None:
            raise ValueError('sampler.kind = "NearestValue" asks a value head: set policy.scores = ["value"]')
        return [self.prompts[drawn[i]] for i in nearest(self.judge([self.prompts[i] for i in drawn]), self.target, num_prompts)]


def nearest(values: Sequence[float], target: float, count: int) -> list[int]:
    """The places of the values nearest to the target, in order; of equally near ones the earlier.

    Prompts without a value (NaN) are the nearest: drawn, they are refused, or counted among those that are skipped.
    """
    near = [-1.0 if math.isnan(value) else round(abs(value - target), 9) for value in values]
    return sorted(sorted(range(len(values)), key=lambda i: (near[i], i))[:count])
