"""Config -> objects: the only place where names become things, and where what cannot train is refused before it costs time."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from mmrl import __version__
from mmrl.algorithms.samplers.base import Shuffled, Streamed
from mmrl.app.config.algorithm import made_of
from mmrl.app.config.plugin_checks import SERVED, check_data, check_plug_ins
from mmrl.app.config.run import DataConfig, Resolved, RewardConfig, RunConfig, WatchedReward
from mmrl.app.modality.base import Modality
from mmrl.app.modality.registry import MODALITIES, PolicyConfig, modality_of
from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins import resolve as plugins
from mmrl.app.run.folder import RunDir
from mmrl.app.run.trackers import AccelerateTrackers, JsonlTracker, Progress, Several
from mmrl.app.toml.keys import check_keys
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.core.protocols import Policy, PromptSampler, Tracker, View
from mmrl.core.types import Prompt
from mmrl.data.validate import check
from mmrl.serving.reward_client import RemoteReward, is_url
from mmrl.training.checkpoint import Checkpoints
from mmrl.training.distributed import Ranks
from mmrl.training.evaluate import Evaluator
from mmrl.training.rewards import NamedReward, RewardRunner
from mmrl.training.state import seed
from mmrl.training.trainer import Records, Trainer

TINY = "tiny:"
LOOK = 5000
"""Prompts of a sequence whose text and pictures are looked at before training."""
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
    seed(config.seed)
    check_ranks(config, ranks.world)
    check_plug_ins(resolved)
    known: dict[str, Any] = {}
    with ranks.main_first():
        loaded = load_rewards(config.reward, ("reward",), table, known)
        loaded_more = load_rewards(config.evaluation.reward, ("evaluation", "reward"), table, known)
        train_prompts = load_prompts(config.data, ("data",), table)
        held_out = held_out_prompts(config, table)
    config = with_local_model(config, ranks)
    kind = modality_of(config.policy)
    looked_at = [*seen(train_prompts), *(held_out or ())]
    kind.check_prompts(looked_at)
    algorithm = kind.adapt_algorithm(config.algorithm.algorithm, config.policy, config.algorithm.label)
    to_fetch = not Path(config.policy.model).expanduser().is_dir()
    with ranks.main_first(to_fetch):
        space = kind.box_space(config.policy)
    rewards = RewardRunner([named(*pair, space, kind) for pair in zip(config.reward, loaded, strict=True)])
    more = [named(*pair, space, kind) for pair in zip(config.evaluation.reward, loaded_more, strict=True)]
    watched = RewardRunner([*rewards.rewards, *more]) if more else rewards
    torch.manual_seed(config.seed)
    shadows = algorithm.shadows | config.evaluation.all_weights - {"live"}
    with ranks.main_first(to_fetch):
        policy = build_policy(config.policy, shadows, algorithm.ema_decay, algorithm.views)
    algorithm.check(policy)
    kind.warn_after_load(policy, algorithm, config.evaluation, looked_at)
    if accelerator is not None:
        policy.prepare(accelerator)
    evaluator = None
    if held_out is not None:
        sampling, variants = kind.eval_sampling(config.evaluation), kind.variants(config.evaluation)
        evaluator = Evaluator(policy, held_out, watched, config.evaluation, sampling, ranks, variants)
    config = replace(resolved.config, policy=kind.with_box_space(resolved.config.policy, space))
    records = build_records(config, run, space, ranks)
    sampler = build_sampler(train_prompts, config.seed)
    trainer = Trainer(policy, algorithm, sampler, rewards, config, ranks=ranks, evaluator=evaluator, records=records)
    return Job(config, policy, trainer, evaluator, records.tracker)


def check_ranks(config: RunConfig, processes: int) -> None:
    if config.prompts_per_step % processes:
        raise ValueError(
            f"prompts_per_step is {config.prompts_per_step}, which {processes} processes cannot share evenly: "
            f"set it to a multiple of {processes}"
        )


def load_rewards(rewards: Sequence[WatchedReward], path: KeyPath, table: Table, known: dict[str, Any]) -> list[Any]:
    """The plug-ins of a list of rewards; equal entries are one object, which `known` remembers."""
    found = []
    for i, reward in enumerate(rewards):
        key = repr((reward.use, sorted(reward.args.items(), key=lambda item: item[0])))
        if key not in known:
            known[key] = load_reward(reward, (*path, str(i)), table)
        found.append(known[key])
    return found


def load_reward(reward: WatchedReward, path: KeyPath, table: Table) -> Callable[..., Any]:
    """The plug-in with its own fields filled in; one behind HTTP, once its server has said that it serves it."""
    own = [f.name for f in fields(reward) if f.name != "args"]
    return reward_of(reward.use, reward.args, path, table, own)


def reward_of(use: str, args: Mapping[str, Any], path: KeyPath, table: Table, beside: Sequence[str] = ()) -> Callable[..., Any]:
    """A reward by name, file, address or another trainer's function; its fields may hold rewards: `scorer.use = "pick_score"`."""
    args = {key: with_rewards(value, (*path, key), table) for key, value in args.items()}
    if is_url(use):
        check_keys(args, [*beside, *SERVED], path, table)
        return made_of(RemoteReward, {"url": use, **args}, path, table).connected()
    style, plug_in = adapters.split(use)
    function = plugins.load(plug_in, "rewards")
    if style:
        return adapters.adapt(style, function, args, table.at(path))
    adapters.refuse_foreign(function, use, table.at(path))
    return made_of(function, args, path, table, beside=beside)


def with_rewards(value: Any, path: KeyPath, table: Table) -> Any:
    """A setting of a reward, in which every table with a `use` has become the reward it names."""
    if isinstance(value, Mapping):
        inside = {key: with_rewards(item, (*path, key), table) for key, item in value.items()}
        return reward_of(inside.pop("use"), inside, path, table) if isinstance(inside.get("use"), str) else inside
    if isinstance(value, list):
        return [with_rewards(item, (*path, str(i)), table) for i, item in enumerate(value)]
    return value


def named(reward: WatchedReward, function: Any, space: str | None, kind: Modality = MODALITIES["text"]) -> NamedReward:
    """As the run uses it: with its name, and reading boxes as the policy writes them."""
    function = with_inside(function, lambda inner: named(reward, inner, space, kind).function)
    name, declared = reward.label, declared_space(function)
    if declared is not None:
        kind.refuse_box_reward(name)
    wanted = plugins.modalities(function)
    if wanted and kind.output not in wanted:
        raise ValueError(
            f"reward {name!r} scores {' or '.join(wanted)}, but policy.kind is {kind.name!r}, whose samples are {kind.output}: "
            "take a reward for those (the files of `mmrl ls rewards` say under Modality what they score)"
        )
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
    weight = reward.weight if isinstance(reward, RewardConfig) else 0.0
    return NamedReward(name, function, weight, reward.timeout_s, reward.max_failed, reward.call, reward.transform)


def with_inside(function: Any, change: Callable[[Any], Any]) -> Any:
    """A reward whose rewards inside are changed."""
    if not is_dataclass(function) or isinstance(function, type):
        return function
    inside = {f.name: getattr(function, f.name) for f in fields(function) if f.init}
    held = {name: value for name, value in inside.items() if is_dataclass(value) and callable(value)}
    changed = {name: change(value) for name, value in held.items()}
    return replace(function, **changed) if any(changed[name] is not held[name] for name in held) else function


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
    check_data(data, path, table)
    load = plugins.load(data.use, "datasets")
    prompts = load(**data.args)
    report = check(prompts, decode=False, max_rows=None if isinstance(prompts, Sequence) else STREAM_LOOK)
    report.source = f"[{'.'.join(path)}] {data.use}"
    report.raise_if_bad()
    return prompts


def seen(prompts: Prompts) -> Sequence[Prompt]:
    """The prompts that are looked at before training."""
    return [*islice(prompts, LOOK if isinstance(prompts, Sequence) else STREAM_LOOK)]


def build_sampler(prompts: Prompts, seed: int) -> PromptSampler:
    return Shuffled(prompts, seed) if isinstance(prompts, Sequence) else Streamed(prompts, seed)


def build_policy(
    config: PolicyConfig,
    shadows: frozenset[str],
    ema_decay: Callable[[int], float] | None = None,
    views: Mapping[str, View] = MappingProxyType({}),
) -> Policy:
    return modality_of(config).build(config, shadows, ema_decay, views)


def with_local_model(config: RunConfig, ranks: Ranks = Ranks()) -> RunConfig:
    """`tiny:qwen3_vl` becomes the folder of a tiny random model of that family, built once and by one process of a node."""
    model, kind = config.policy.model, modality_of(config.policy)
    if not model.startswith(TINY):
        return config
    with ranks.main_first():
        folder = tiny_model(model, kind)
    return replace(config, policy=replace(config.policy, model=str(folder)))


def tiny_model(name: str, kind: Modality = MODALITIES["text"]) -> Path:
    """The folder of a small model, made once: `tiny:grounding` and `tiny:shapes` are taught, `tiny:<family>` is random.

    Raises:
        ValueError: there is no such family.
    """
    from mmrl.tiny import grounding
    from mmrl.tiny.taught import TAUGHT

    family = name.removeprefix(TINY)
    if family in TAUGHT.get(kind.name, {}):
        return TAUGHT[kind.name][family](0, None)
    folder = grounding.cache_folder() / f"random-{__version__}" / family
    if not (folder / kind.index_file).is_file():
        partial = folder.with_name(f"{family}.{os.getpid()}.partial")
        partial.parent.mkdir(parents=True, exist_ok=True)
        kind.build_tiny(family, partial)
        try:
            partial.rename(folder)
        except OSError:
            # Another process was faster; its model is the same.
            shutil.rmtree(partial)
    return folder


def build_records(config: RunConfig, run: RunDir | None, space: str | None, ranks: Ranks) -> Records:
    if run is None:
        return Records()
    chosen = config.checkpoint
    checkpoints = Checkpoints(run.checkpoints, chosen.keep, chosen.keep_every, chosen.keep_best, chosen.asynchronous)
    if not ranks.is_main:
        return Records(checkpoints=checkpoints)
    trackers: list[Tracker] = [JsonlTracker(run, space), Progress(config.steps, config.prompts_per_step)]
    if config.trackers.names:
        trackers.append(build_trackers(config, run))
    return Records(Several(trackers), checkpoints)


def build_trackers(config: RunConfig, run: RunDir) -> Tracker:
    from mmrl.app.config.run import as_table

    settings: Mapping[str, Any] = as_table(config)
    chosen = config.trackers
    return AccelerateTrackers(chosen.names, run.path, chosen.project, settings, chosen.num_examples)
