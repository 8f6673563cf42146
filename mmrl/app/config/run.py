"""A run as data: frozen dataclasses, read from TOML and the command line, checked once at this boundary.

Unknown keys, wrong types and impossible values are errors that name where the value was given and its key.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import InstanceOf

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.config.algorithm import Assembly, add_engine_defaults, algorithm_table, as_plain, assemble
from mmrl.app.config.cluster import ClusterConfig
from mmrl.app.config.data import DataConfig, check_sources, read_data_tables
from mmrl.app.config.reward_needs import names_in, read_runs_as_rewards
from mmrl.app.files import replace_text
from mmrl.app.modality.base import EvaluationTable
from mmrl.app.modality.registry import MODALITIES, POLICIES, AnyModality, PolicyConfig, modality_of
from mmrl.app.plugins.catalog import find_config
from mmrl.app.plugins.resolve import default_name
from mmrl.app.plugins.resolve import load as load_plug_in
from mmrl.app.toml.reader import NONE, UnknownKeyError, check_keys, keys_below, make
from mmrl.app.toml.tables import COMMAND_LINE, KeyPath, Table, Values, dotted_key, leaves, value_at
from mmrl.core.episodes import Limits
from mmrl.policies.flow.settings import OWN_FAMILIES, FlowPolicyConfig
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.near import did_you_mean, elsewhere, nearest
from mmrl.runtime.ranges import CountOrNone, LargeOrNone, Number, Positive, PositiveShare, Share, check_ranges, hints_of
from mmrl.training.rewards.calls import Calling, Transform
from mmrl.training.settings import StageSettings, TrainSettings, in_turn
from mmrl.training.worlds.runner import WorldCalling

LR: KeyPath = ("optimizer", "lr")


@dataclass(frozen=True)
class SamplerConfig:
    """Which prompts come next: a sampler of mmrl by its kind, or one of the user's own, and its settings."""

    kind: str = ""
    """Empty, with no `use`: Shuffled for sequences of prompts, Streamed for streams, Mixture for several data sets."""
    use: str = ""
    """`mine.py:Mine`, called with the prompts and the run's seed."""
    args: Mapping[str, object] = field(default_factory=dict)
    """All other keys of the table."""


@dataclass(frozen=True)
class UnweightedReward:
    """A reward that is only looked at: which plug-in, how it is called, and its own fields."""

    use: str
    """A name that `mmrl ls rewards` lists, or a file of your own: ./my_reward.py or ./my_reward.py:name."""
    name: str = ""
    """Empty: the callable's name if `use` gives one, else the file's."""
    timeout_s: Positive | None = None
    """Per group; longer counts as failed. The wait for a server that is away has a deadline of its own."""
    max_failed: Share = 0.5
    """Share of a step's samples that may fail before the run stops."""
    call: Calling = field(default_factory=Calling)
    """How the reward is called: see `[reward.call]`."""
    transform: Transform | None = None
    """None: the reward counts as it is."""
    sources: tuple[str, ...] = ()
    """The names of the `[[data]]` tables whose prompts it scores; to others it does not apply. Empty: all."""
    args: Mapping[str, object] = field(default_factory=dict)
    """All other keys of the table."""

    __post_init__ = check_ranges

    @property
    def label(self) -> str:
        """The name in metrics."""
        return self.name or default_name(self.use)


@dataclass(frozen=True)
class RewardConfig(UnweightedReward):
    """A reward to train on, and how much it counts."""

    weight: Number = 1.0
    """0 = logged, never trained on."""


@dataclass(frozen=True)
class EnvironmentConfig:
    """The plug-in that answers the policy's turns, how far an episode may go, and how worlds are called."""

    use: str
    """A name, a file of your own (./mine.py or ./mine.py:Name), or one of another library, as gymnasium:FrozenLake-v1."""
    limits: Limits = field(default_factory=Limits)
    """How far an episode may go: see `[environment.limits]`."""
    call: WorldCalling = field(default_factory=WorldCalling)
    """How worlds are called: see `[environment.call]`."""
    wave: PositiveShare = 1.0
    """The share of the episodes under way that must be answered before their next turns are written together. Below 1, slow
    worlds hold up less, and the last bits of log-probabilities depend on who answers first."""
    args: Mapping[str, object] = field(default_factory=dict)
    """All other keys of the table."""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class EvaluationConfig(EvaluationTable):
    """Held-out prompts, and how they are answered there."""

    data: DataConfig | None = None
    """None: nothing is evaluated."""
    reward: tuple[UnweightedReward, ...] = ()
    """Held-out rewards, for watching only: what the run does not train on but might ruin."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Which checkpoints stay."""

    keep: LargeOrNone = 2
    """Newest ones; 0 = all."""
    keep_every: LargeOrNone = 0
    """Those of steps that this divides stay for good; 0 = none."""
    keep_best: str = ""
    """A metric, higher being better, such as eval/total: the checkpoint where it was best stays too. It is known where a step is
    both evaluated and saved."""
    asynchronous: bool = True
    """Written beside the run, which waits for the copy of its state only; costs memory for that copy."""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class TrackerConfig:
    """Where metrics go beside the run's own files and the terminal."""

    names: tuple[str, ...] = ()
    """Any of tensorboard, wandb, trackio."""
    project: str = "mmrl"
    """The project that wandb and trackio put the run into."""
    num_examples: CountOrNone = 8
    """Groups shown each time."""

    __post_init__ = check_ranges


@dataclass(frozen=True, kw_only=True)
class RunConfig(TrainSettings):
    """Everything a run is made of."""

    algorithm: InstanceOf[Assembly]
    policy: PolicyConfig
    data: DataConfig
    reward: tuple[RewardConfig, ...] = ()
    sampler: SamplerConfig = SamplerConfig()
    environment: EnvironmentConfig | None = None
    """None: a completion is one turn."""
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    trackers: TrackerConfig = TrackerConfig()
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Who runs where when `mmrl launch` starts the run."""
    stage: tuple[StageSettings, ...] = ()
    """The stages of a chain, one after the other on the same weights; empty: the run is one stage."""
    output: str = ""
    """The run's folder; empty: the next free one of runs/<name of the config>."""

    @property
    def num_seen(self) -> int:
        """The training prompts that are answered every samples_every steps; none in a run with held-out prompts."""
        asked = self.evaluation
        return asked.seen if asked.data is None and asked.num_prompts and self.samples_every else 0

    @property
    def modality(self) -> AnyModality:
        """The kind of its policy."""
        return modality_of(self.policy)

    @property
    def makes(self) -> str:
        """The kind of its samples, which rewards see: text, image, video, sound or "video with sound"."""
        return self.modality.output_of(self.policy)


@dataclass(frozen=True)
class Resolved:
    """A config with the memory of who said what."""

    config: RunConfig
    table: Table
    name: str
    """Of the config's file; names the run's folder unless `output` does."""

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Dotted key, value and origin of everything, defaults included."""
        for path, value in leaves(as_table(self.config)):
            yield dotted_key(path), value, self.origin(path)

    def origin(self, path: KeyPath) -> str:
        said = self.table.origin(path)
        if said is not None:
            return said
        if path[0] == "algorithm":
            return algorithm_origin(path, self.config.algorithm.preset, self.table)
        if path == LR:
            return f"default where {'all weights' if self.config.policy.lora is None else 'adapters'} train"
        modality = self.config.modality
        if path[:2] == ("evaluation", "sampling") and path[2] != "temperature":
            return f"as policy.sampling ({self.table.origin(('policy', *path[1:])) or 'default'})"
        by_modality = path[0] == "evaluation" and path[1] in modality.evaluation_keys
        return f"default for {modality.name}" if by_modality else "default"


def algorithm_origin(path: KeyPath, preset: str, table: Table) -> str:
    """The origin of a value of the algorithm that was not given: the preset, or a part that took the place of the preset's."""
    for depth in range(len(path) - 1, 1, -1):
        named = [word for word in ("kind", "use") if (*path[:depth], word) in table.origins]
        if named:
            return f"default of {value_at(table.values, *path[:depth], named[0])}"
    return f"preset {preset}"


def load(name: str, overrides: Sequence[str] = ()) -> Resolved:
    """A config by path or shipped name, with `key=value` overrides; FileNotFoundError without one, and errors of `resolve`."""
    file = find_config(name)
    table = Table.read(file)
    is_of_a_run = file.name == "config.toml" and (file.parent / "versions.json").is_file()
    if (
        is_of_a_run
        and "stage" not in table.values
        and any(assignment.startswith("algorithm.preset=") for assignment in overrides)
    ):
        # a run's file, which mmrl wrote, spells every part out, and these would stay under the new preset's name
        table.set(("algorithm",), {}, COMMAND_LINE)
    return resolve(table, overrides, file.stem)


def resolve(table: Table, overrides: Sequence[str] = (), name: str = "run") -> Resolved:
    """The run that a table describes once the command line has spoken; else ValueError naming file (or command line) and key."""
    for assignment in overrides:
        table.override(assignment)
    try:
        return read_run(table, name)
    except UnknownKeyError as error:
        meant = likely_key(error.path, table)
        raise (error if meant is None else ValueError(f"{error}; did you mean {meant!r}?")) from None


def read_run(table: Table, name: str) -> Resolved:
    """The run of a table; errors are those of `resolve`."""
    add_engine_defaults(table)
    read_runs_as_rewards(table)
    check_keys(table.values, [f.name for f in fields(RunConfig)], (), table)
    ready: dict[str, object] = {"algorithm": assemble(table)}
    given = table.values.get("policy", {})
    if not isinstance(given, Mapping):
        raise ValueError(f"{table.at(('policy',))} is {given!r}, and must be a table: write [policy] with kind and model")
    if given:
        policy = ready["policy"] = read_policy(given, table)
        ready |= by_modality(policy, table)
    data = read_data_tables(table.values.get("data"), ("data",), table)
    config = make(RunConfig, table.values, (), table, ready=ready if data is None else ready | {"data": data})
    if table.origin(LR) is None:
        usual = config.modality.rates[config.policy.lora is None]
        config = replace(config, optimizer=replace(config.optimizer, lr=usual))
    rewards = [(("reward", str(i)), one.label, one.sources, one.weight) for i, one in enumerate(config.reward)]
    # a chain's own tables are looked at stage by stage
    check_sources(config.data, rewards, table, scored=not config.stage and not config.algorithm.algorithm.unscored)
    if config.stage:
        if "steps" in table.values:
            raise ValueError(f"{table.at(('steps',))} is of a run without stages: give every [[stage]] its own steps")
        steps = sum(config.stage[i].num_steps for i, _ in in_turn(config.stage))
        return Resolved(replace(config, steps=steps), table, name)
    evaluated = config.evaluation.data is not None and not config.evaluation.reward
    check_needed_rewards(config.algorithm, config.reward, table, evaluated and config.algorithm.algorithm.unscored)
    return Resolved(config, table, name)


def check_needed_rewards(assembly: Assembly, rewards: Sequence[RewardConfig], table: Table, evaluated: bool = False) -> None:
    """Raise ValueError for a method without the rewards, of a weight above 0, that it is made of or `evaluated` by."""
    if not rewards and evaluated:
        raise ValueError(
            f"{table.at(('evaluation', 'data'))} has prompts to evaluate on, and no reward says how good an answer is: add "
            "[[reward]] with use = ..., which a stage that teaches does not train on, or leave them out"
        )
    if not rewards and not assembly.algorithm.unscored:
        raise ValueError(
            f"{table.at(('reward',))} is missing: say what is to be rewarded by [[reward]] with use = ..., or --reward"
        )
    trained = {name for reward in rewards if reward.weight > 0 for name in names_in(reward.use, reward.args)}
    if missing := [name for name in assembly.algorithm.needs_rewards if name not in trained]:
        near = ((name, needed) for needed in missing for name in sorted(trained) if nearest(name, [needed]))
        guess = next((f" ({name!r}: did you mean {needed!r}?)" for name, needed in near), "")
        raise ValueError(
            f"{table.at(('algorithm', 'preset'))} is {assembly.preset!r}, a method that trains on the reward "
            f"{' and '.join(map(repr, missing))}, and no [[reward]] with a weight above 0 is it{guess}: add [[reward]] with "
            f"use = {' and one with use = '.join(map(repr, missing))}, or set algorithm.needs_rewards = [] where one of yours "
            "takes its place"
        )


def read_policy(given: Mapping[str, object], table: Table) -> PolicyConfig:
    """The settings of `[policy]`, by its kind; ValueError for an unknown kind, or settings that are not like this."""
    kind = given.get("kind", "text")
    if not isinstance(kind, str) or kind not in POLICIES:
        raise ValueError(f"{table.at(('policy', 'kind'))} is {kind!r}: {did_you_mean(str(kind), POLICIES)}")
    policy = make(POLICIES[kind], given, ("policy",), table, beside=["kind"])
    if isinstance(policy, FlowPolicyConfig) and policy.family is not None:
        OWN_FAMILIES[policy.family] = load_plug_in(policy.family, "families")
    return policy


def by_modality(policy: PolicyConfig, table: Table) -> dict[str, object]:
    """The parts of a run whose defaults depend on the policy's modality; ValueError for an [evaluation] of another one."""
    modality, given = modality_of(policy), table.values.get("evaluation", {})
    if not isinstance(given, Mapping):
        return {}
    for other in MODALITIES.values():
        for key in sorted(set(other.evaluation_keys) - set(modality.evaluation_keys)):
            if given.get(key) not in (None, [], (), NONE):
                raise ValueError(
                    f"{table.at(('evaluation', key))} is for policy.kind = {other.name!r}, and this is {modality.name!r}: "
                    f"use evaluation.{modality.evaluation_keys[0]}"
                )
    usual = EvaluationConfig(**modality.evaluation_defaults(policy))
    data = read_data_tables(given.get("data"), ("evaluation", "data"), table, draws=False)
    ready = {} if data is None else {"data": data}
    return {"evaluation": make(EvaluationConfig, given, ("evaluation",), table, usual, ready=ready)}


def as_table(config: RunConfig) -> Values:
    """The config as plain TOML values, every default spelled out; None is left out. `resolve` reads it back.

    Of a chain [algorithm] is what it says and no more: under a stage's other preset all of it stays.
    """
    table: Values = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if (config.stage and f.name == "steps") or (f.name == "stage" and not value):
            continue
        if f.name == "algorithm":
            table[f.name] = deepcopy(dict(value.given)) if config.stage else algorithm_table(value)
        elif f.name == "policy":
            table[f.name] = {"kind": modality_of(value).name} | as_plain(value)
        elif value is not None:
            table[f.name] = as_plain(value)
    return table


def save(config: RunConfig, file: Path) -> None:
    """Write the resolved config."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, f"# {config.algorithm.label}\n" + tomli_w.dumps(as_table(config)))


def likely_key(path: KeyPath, table: Table) -> str | None:
    """The key, with dots, that an unknown path of a run's table may mean; None without one: `optimizer.lr` for `lr`."""
    said = next((found for found in table.origins if found[: len(path)] == path), path)
    kind = str(value_at(table.values, "policy", "kind"))
    types = hints_of(RunConfig) | {"policy": POLICIES.get(kind, TextPolicyConfig)}
    keys = [key for name, hint in types.items() for key in ((name,), *keys_below(hint, (name,)))]
    return elsewhere(said, [*keys, *(("algorithm", f.name) for f in fields(Algorithm))])


def is_free(resolved: Resolved, key: str) -> bool:
    """Does the command line say nothing of a setting (`policy.lora`), nor of what is in it?"""
    return COMMAND_LINE not in (resolved.table.origin(tuple(key.split("."))) or "")


def with_values(resolved: Resolved, values: Mapping[str, object], origin: str) -> Resolved:
    """The run with these settings, by dotted key, and who said them."""
    table = Table(deepcopy(resolved.table.values), dict(resolved.table.origins))
    for key, value in values.items():
        table.set(tuple(key.split(".")), value, origin)
    return resolve(table, (), resolved.name)


def without_engine(resolved: Resolved) -> Resolved:
    """The run with its own network as writer, one step after the other: no server is needed to look at what was trained."""
    config = resolved.config
    policy = replace(config.policy, engine=None) if isinstance(config.policy, TextPolicyConfig) else config.policy
    return replace(resolved, config=replace(config, ahead=0, policy=policy, cluster=replace(config.cluster, samplers=0)))
