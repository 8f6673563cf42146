"""Config -> objects: the only place where names become things, and where what cannot train is refused before it costs time."""

import inspect
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from mmrl import __version__
from mmrl.algorithms.samplers import Shuffled, Streamed
from mmrl.app import plugins
from mmrl.app.config import DataConfig, Resolved, RewardConfig, RunConfig
from mmrl.app.kinds import KINDS, Kind, PolicyConfig, kind_of
from mmrl.app.parts import check_keys, made_of
from mmrl.app.rundir import RunDir
from mmrl.app.tables import KeyPath, Table
from mmrl.app.trackers import AccelerateTrackers, JsonlTracker, Progress, Several
from mmrl.core.protocols import Policy, PromptSampler, Tracker
from mmrl.core.types import Prompt
from mmrl.data.validate import check
from mmrl.serving.reward_client import RemoteReward, is_url
from mmrl.training.checkpoint import Checkpoints
from mmrl.training.distributed import Ranks
from mmrl.training.evaluate import Evaluator
from mmrl.training.rewards import NamedReward, RewardRunner
from mmrl.training.trainer import Records, Trainer

TINY = "tiny:"
STREAM_LOOK = 64
"""Prompts of a stream that are looked at before training."""
Prompts = Sequence[Prompt] | Iterable[Prompt]


@dataclass(frozen=True)
class Job:
    """A run, ready to start."""

    config: RunConfig
    """With everything the model decided filled in."""
    policy: Policy
    trainer: Trainer
    evaluator: Evaluator | None
    tracker: Tracker | None


def build(resolved: Resolved, run: RunDir | None = None, accelerator: Any = None) -> Job:
    """Rewards, then data, then the model, then the trainer: what is cheap to refuse is refused first.

    Args:
        run: where metrics, samples and checkpoints go; None keeps nothing.
        accelerator: accelerate's Accelerator; None stays on the CPU in one process.

    Raises:
        FileNotFoundError: a plug-in, data file or model folder is missing.
        ValueError: names, settings, data or model do not fit together; the message says which and what to do.
    """
    config, table = resolved.config, resolved.table
    ranks = Ranks(accelerator) if accelerator is not None else Ranks()
    check_ranks(config, ranks)
    loaded = [load_reward(reward, ("reward", str(i)), table) for i, reward in enumerate(config.reward)]
    train_prompts = load_prompts(config.data, ("data",), table)
    held_out = held_out_prompts(config, table)
    config = with_local_model(config, ranks)
    kind = kind_of(config.policy)
    algorithm = kind.prepared(config.algorithm.algorithm, config.policy, config.algorithm.label)
    space = kind.box_space(config.policy)
    rewards = RewardRunner([named(*pair, space, kind) for pair in zip(config.reward, loaded, strict=True)])
    torch.manual_seed(config.seed)
    policy = build_policy(config.policy, algorithm.shadows, algorithm.ema_decay)
    algorithm.check(policy)
    if accelerator is not None:
        policy.prepare(accelerator)
    evaluator = None
    if held_out is not None:
        evaluator = Evaluator(policy, held_out, rewards, config.evaluation, kind.how(config.evaluation), ranks)
    config = replace(resolved.config, policy=kind.with_box_space(resolved.config.policy, space))
    records = build_records(config, run, space, ranks)
    sampler = build_sampler(train_prompts, config.seed)
    trainer = Trainer(policy, algorithm, sampler, rewards, config, ranks=ranks, evaluator=evaluator, records=records)
    return Job(config, policy, trainer, evaluator, records.tracker)


def check_ranks(config: RunConfig, ranks: Ranks) -> None:
    if config.prompts_per_step % ranks.world:
        raise ValueError(
            f"prompts_per_step is {config.prompts_per_step}, which {ranks.world} processes cannot share evenly: "
            f"set it to a multiple of {ranks.world}"
        )


def load_reward(reward: RewardConfig, path: KeyPath, table: Table) -> Callable[..., Any]:
    """The plug-in with its own fields filled in; one behind HTTP, once its server has said that it serves it."""
    own = [f.name for f in fields(RewardConfig) if f.name != "args"]
    if is_url(reward.use):
        check_keys(reward.args, [*own, "deadline_s", "token_env"], path, table)
        return made_of(RemoteReward, {"url": reward.use, **reward.args}, path, table).connected()
    function = plugins.load(reward.use, "rewards")
    return made_of(function, reward.args, path, table, beside=own)


def named(reward: RewardConfig, function: Any, space: str | None, kind: Kind = KINDS["text"]) -> NamedReward:
    """As the run uses it: with its name, and reading boxes as the policy writes them."""
    name, declared = reward.name or plugins.default_name(reward.use), declared_space(function)
    if declared is not None:
        kind.refuse_box_reward(name)
    if declared == "auto":
        if space is None:
            raise ValueError(
                f"reward {name!r} reads boxes, and nobody says how this model writes them: "
                "set policy.box_space to pixel, resized, norm1000 or norm1"
            )
        function = replace(function, space=space)
    elif declared is not None and space is not None and declared != space:
        raise ValueError(
            f"reward {name!r} reads boxes in {declared!r}, but the policy writes them in {space!r}: "
            f'remove `space` from the reward, or set policy.box_space = "{declared}" if the model was taught so'
        )
    return NamedReward(name, function, reward.weight, reward.timeout_s, reward.max_failed)


def declared_space(function: Any) -> str | None:
    """The `space` of a reward that has one."""
    return getattr(function, "space", None) if is_dataclass(function) else None


def held_out_prompts(config: RunConfig, table: Table) -> Sequence[Prompt] | None:
    """The prompts to evaluate on, or None where nothing is evaluated."""
    settings = config.evaluation
    if settings.data is None or settings.num_prompts == 0:
        return None
    prompts = load_prompts(settings.data, ("evaluation", "data"), table)
    return prompts if isinstance(prompts, Sequence) else list(islice(prompts, settings.num_prompts))


def load_prompts(data: DataConfig, path: KeyPath, table: Table) -> Prompts:
    """What the data set's `load` gives, looked at: all of a sequence, the beginning of a stream.

    Raises:
        ValueError: listing the first prompts that cannot be trained on.
    """
    load = plugins.load(data.use, "datasets")
    parameters = inspect.signature(load).parameters
    check_keys(data.args, [*parameters, "use"], path, table)
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in data.args]
    if missing:
        raise ValueError(f"{table.at((*path, missing[0]))} is missing: the data set {data.use!r} needs {', '.join(missing)}")
    prompts = load(**data.args)
    report = check(prompts, decode=False, max_rows=None if isinstance(prompts, Sequence) else STREAM_LOOK)
    report.source = f"[{'.'.join(path)}] {data.use}"
    report.raise_if_bad()
    return prompts


def build_sampler(prompts: Prompts, seed: int) -> PromptSampler:
    return Shuffled(prompts, seed) if isinstance(prompts, Sequence) else Streamed(prompts, seed)


def build_policy(config: PolicyConfig, shadows: frozenset[str], ema_decay: Callable[[int], float] | None = None) -> Policy:
    return kind_of(config).build(config, shadows, ema_decay)


def with_local_model(config: RunConfig, ranks: Ranks = Ranks()) -> RunConfig:
    """`tiny:qwen3_vl` becomes the folder of a tiny random model of that family, built once and by one process."""
    model, kind = config.policy.model, kind_of(config.policy)
    if not model.startswith(TINY):
        return config
    if ranks.is_main:
        tiny_model(model, kind)
    ranks.wait()
    return replace(config, policy=replace(config.policy, model=str(tiny_model(model, kind))))


def tiny_model(name: str, kind: Kind = KINDS["text"]) -> Path:
    """The folder of a small model, made once: `tiny:grounding` is the demo's and taught its task, `tiny:<family>` is random.

    Raises:
        ValueError: there is no such family.
    """
    from mmrl.tiny import grounding

    family = name.removeprefix(TINY)
    if family == "grounding" and kind.name == "text":
        return grounding.warm_start()
    folder = grounding.cache_folder() / f"random-{__version__}" / family
    if not (folder / kind.index_file).is_file():
        partial = folder.with_name(f"{family}.{os.getpid()}.partial")
        partial.parent.mkdir(parents=True, exist_ok=True)
        kind.tiny(family, partial)
        try:
            partial.rename(folder)
        except OSError:
            # Another process was faster; its model is the same.
            shutil.rmtree(partial)
    return folder


def build_records(config: RunConfig, run: RunDir | None, space: str | None, ranks: Ranks) -> Records:
    if run is None:
        return Records()
    checkpoints = Checkpoints(run.checkpoints, config.checkpoint.keep)
    if not ranks.is_main:
        return Records(checkpoints=checkpoints)
    trackers: list[Tracker] = [JsonlTracker(run, space), Progress(config.steps, config.prompts_per_step)]
    if config.trackers.names:
        trackers.append(build_trackers(config, run))
    return Records(Several(trackers), checkpoints)


def build_trackers(config: RunConfig, run: RunDir) -> Tracker:
    from mmrl.app.config import as_table

    settings: Mapping[str, Any] = as_table(config)
    chosen = config.trackers
    return AccelerateTrackers(chosen.names, run.path, chosen.project, settings, chosen.num_examples)
