"""Config -> objects: the only place where names become things, and where what cannot train is refused before it costs time."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import is_
from pathlib import Path
from typing import Any

import torch

from mmrl import __version__
from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.config.plug_ins import Loaded, NamedMake, Prompts, read_data, read_plug_ins, with_kind, worlds_of
from mmrl.app.config.reward_needs import declared_space, name_of, other_samples, with_gradients, with_inside
from mmrl.app.config.reward_needs import parts_of as parts_of_reward
from mmrl.app.config.run import DataConfig, Resolved, RewardConfig, RunConfig, UnweightedReward, as_table
from mmrl.app.config.stages import Stage
from mmrl.app.errors import waiting
from mmrl.app.modality.base import PolicyNeeds
from mmrl.app.modality.on_cards import refuse_ways_apart
from mmrl.app.modality.registry import PolicyConfig
from mmrl.app.modality.taught import bind_taught
from mmrl.app.plugins.lab import TINY, small_models
from mmrl.app.plugins.resolve import PlugIn, modalities
from mmrl.app.run.beforehand import (
    check_context,
    evaluation_scorer,
    look_at_scoring,
    look_at_settings,
    refuse_unknown_space,
    unknown_space,
)
from mmrl.app.run.folder import SEEN, RunDir
from mmrl.app.run.trackers import AccelerateTrackers, JsonlTracker, Losses, Progress, StepSpans
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.core.episodes import Worlds
from mmrl.core.hooks import PolicyHooks, with_hooks
from mmrl.core.protocols import Policy
from mmrl.core.ranks import Ranks
from mmrl.core.types import Prompt
from mmrl.data.sources import Sources, StreamedSources, first_of_each
from mmrl.data.validate import Report, check
from mmrl.policies.shared.workers.remote import SamplerSettings
from mmrl.policies.text.settings import TextPolicyConfig, TextTeacher, refuse_rest
from mmrl.runtime.cache import cache_folder, note_use
from mmrl.runtime.process_state import seed
from mmrl.serving.scorers.painting import unpinned
from mmrl.training.callbacks import Callback
from mmrl.training.checkpoints.save import Checkpoints, Pace
from mmrl.training.evaluate import Evaluator, SeenPrompts, check_columns
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import Until
from mmrl.training.stopping import goal_of
from mmrl.training.trainer import Records, Trainer

log = logging.getLogger("mmrl")
LOOK = 5000
"""Prompts of a sequence whose text and pictures are looked at before training."""
STREAM_LOOK = 64
"""Prompts of a stream that are looked at before training."""


@dataclass(frozen=True)
class Job:
    """A run, ready to start."""

    config: RunConfig
    """With everything the model decided filled in."""
    policy: Policy
    trainer: Trainer
    evaluator: Evaluator | None
    first: Prompt | None = None
    """The first prompt of the training data."""
    watched: RewardRunner | None = None
    """All rewards of the run, where it trains on none of them, too."""


def on_the_terminal(config: RunConfig) -> Sequence[Callback]:
    """Who watches a run of the command line, beside its own files and the trackers it names."""
    return (Progress(config.steps, config.prompts_per_step, denoises=config.modality.name == "flow"),)


def build(
    resolved: Resolved,
    run: RunDir | None = None,
    accelerator: Any = None,
    watchers: Callable[[RunConfig], Sequence[Callback]] = lambda config: (),
    stage: Stage | None = None,
    after: Job | None = None,
) -> Job:
    """Rewards, then data, then the model, then the trainer: what is cheap to refuse is refused first.

    Without `run` nothing is kept, and without `accelerator` it stays on the CPU in one process; `watchers` are made on the main
    process. A `stage` goes on with the policy of the job `after` which it comes, if there is one.
    Raises FileNotFoundError without a plug-in, data file or model folder, and ValueError where names, settings, data or model do
    not fit together.
    """
    config = resolved.config
    ranks = Ranks(accelerator) if accelerator is not None else Ranks()
    seed(config.seed)
    look_before(config, ranks)
    plug_ins = read_plug_ins(resolved)
    with ranks.main_first():
        loaded, train_prompts = load_rewards(plug_ins.rewards), load_prompts(plug_ins.data, f"[data] {config.data.use}")
        held_out, scored = held_out_prompts(config, plug_ins.held_out)
    sampler, config = plug_ins.sampler(train_prompts, config.seed), with_local_model(config, ranks)
    modality, firsts = config.modality, first_prompts(train_prompts)
    looked_at = [*firsts, *held_out]
    refuse_ways_apart(config.policy, looked_at, ranks)
    modality.check_prompts(config.policy, looked_at)
    algorithm = adapted(config, train_prompts)
    modality.check_plans(config.policy, algorithm, config.evaluation, looked_at)
    to_fetch = not Path(config.policy.model).expanduser().is_dir()
    with ranks.main_first(to_fetch):
        space = modality.box_space(config.policy)
    rewards, watched = reward_runners(config, loaded, space)
    algorithm = with_rewards(algorithm, config, loaded, rewards, space, firsts)
    look_at_scoring(config, loaded, firsts, scored)
    worlds = draw_alike(worlds_of(config, plug_ins, firsts, space, ranks.world), ranks)
    torch.manual_seed(config.seed)
    if after is None:
        with ranks.main_first(to_fetch), waiting(f"loading model {resolved.config.policy.model}"):
            policy = policy_of_run(config, algorithm, worlds)
    else:
        policy = after.policy
        with_hooks(policy, PolicyHooks).begin_stage(shadows_of(config, algorithm), algorithm.ema_decay, algorithm.views)
    modality.warn_after_load(policy, algorithm, config.evaluation, looked_at)
    if accelerator is not None and after is None:
        policy.prepare(accelerator)
    evaluator = evaluator_of(config, policy, scored, watched, ranks) if scored else None
    config = replace(
        resolved.config,
        policy=modality.with_box_space(resolved.config.policy, space),
        sampler=with_kind(resolved.config.sampler, sampler),
    )
    records = build_records(config, run, space, ranks, watchers) if after is None else after.trainer.records
    shown = prompts_to_show(config, policy, train_prompts, ranks, run, space)
    records = replace(in_stage(records, stage, run, evaluator, held_out), seen=shown)
    trainer = Trainer(policy, algorithm, sampler, rewards, config, ranks=ranks, evaluator=evaluator, records=records)
    return Job(config, policy, trainer, evaluator, firsts[0] if firsts else None, watched)


def with_rewards(
    algorithm: Algorithm, config: RunConfig, loaded: Loaded, rewards: RewardRunner, space: str | None, prompts: Sequence[Prompt]
) -> Algorithm:
    """The algorithm with what it takes of the run's rewards: how they read what is taught, and their gradients."""
    inside = [part for reward, one in loaded if isinstance(reward, RewardConfig) for part in parts_of_reward(one)]
    taught = bind_taught(algorithm, config.policy, space, prompts, inside)
    return with_gradients(taught, rewards.rewards, bool(config.evaluation.reward), prompts)


def shadows_of(config: RunConfig, algorithm: Algorithm) -> frozenset[str]:
    """The weights that a run keeps beside the live ones."""
    return algorithm.shadows | config.evaluation.weights_beside


def evaluator_of(config: RunConfig, policy: Policy, scored: Sequence[Prompt], rewards: RewardRunner, ranks: Ranks) -> Evaluator:
    """Who answers and scores held-out prompts."""
    modality, settings = config.modality, config.evaluation
    sampling, variants = modality.eval_sampling(settings), modality.variants(settings)
    return Evaluator(policy, scored, rewards, settings, sampling, ranks, variants)


def look_before(config: RunConfig, ranks: Ranks) -> None:
    """Refuse, or warn of, what the config alone and the servers that it names tell."""
    check_ranks(config, ranks.world, ranks)
    config.algorithm.algorithm.check_step(config.prompts_per_step)
    look_at_settings(config, ranks)
    if ranks.is_main:
        limits = None if config.environment is None else config.environment.limits
        config.modality.look_around(config.policy, config.algorithm.algorithm, limits)
    with ranks.main_first():
        refuse_unknown_space(with_local_model(config))


def check_ranks(config: RunConfig, processes: int, ranks: Ranks = Ranks()) -> None:
    """Raise ValueError for processes that cannot share prompts evenly, or be cut into teams that read rows together."""
    if isinstance(config.policy, TextPolicyConfig):
        refuse_rest(config.policy.context, processes)
    check_context(config, ranks)
    if config.prompts_per_step % processes:
        raise ValueError(
            f"prompts_per_step is {config.prompts_per_step}, which {processes} processes cannot share evenly: "
            f"set it to a multiple of {processes}"
        )


def held_out_prompts(config: RunConfig, load: Callable[[], Prompts] | None) -> tuple[Sequence[Prompt], list[Prompt]]:
    """The prompts of [evaluation.data], and the first of them, which are scored; none where nothing is evaluated."""
    settings = config.evaluation
    if settings.data is None or load is None or settings.num_prompts == 0:
        return (), []
    prompts = load_prompts(load, f"[evaluation.data] {settings.data.use}")
    prompts = prompts if isinstance(prompts, Sequence) else list(islice(prompts, settings.num_prompts))
    scored = first_of_each(prompts, settings.num_prompts)
    check_columns(scored, settings.by)
    return prompts, scored


def prompts_beyond(held_out: Sequence[Prompt], taken: int, until: Until) -> list[Prompt]:
    """The held-out prompts that a goal looks at, those behind the ones that score; ValueError where there are none."""
    found = first_of_each(held_out, taken + until.num_prompts)[taken:]
    if not found:
        raise ValueError(
            f"until looks at prompts of [evaluation.data] that do not score, and evaluation.num_prompts takes all {taken}: "
            "lower evaluation.num_prompts, or give [evaluation.data] more prompts"
        )
    return found


def load_data(data: DataConfig, path: KeyPath, table: Table) -> Prompts:
    """The prompts of a data set that a config names, looked at; errors as in `read_data` and `load_prompts`."""
    return load_prompts(read_data(data, path, table), f"[{'.'.join(path)}] {data.use}")


def load_prompts(load: Callable[[], Prompts], source: str) -> Prompts:
    """Load a data set's prompts and check them: all of a sequence, the beginning of a stream; ValueError lists bad ones."""
    with waiting(f"reading {source}"):
        prompts = load()
    if not isinstance(prompts, Iterable):
        raise ValueError(
            f"{source} gave {type(prompts).__name__} in place of prompts: return a list or an iterable of mmrl.Prompt"
        )
    for name, part in parts_of(prompts).items():
        report = look_at(part, f"{source}, source {name!r}" if name else source)
        report.raise_if_bad()
        if report.duplicates:
            place, first = report.duplicates[0]
            log.warning(
                f"{report.source}: {len(report.duplicates)} of {report.num_rows} prompts are exact duplicates of others ({place} "
                f"is {first}), which then count twice: remove them unless that is meant"
            )
    return prompts


def parts_of(prompts: Prompts) -> Mapping[str, Prompts]:
    """The prompts of each source by its name; those of a single data set have none."""
    return prompts.parts if isinstance(prompts, Sources | StreamedSources) else {"": prompts}


def look_at(prompts: Prompts, source: str) -> Report:
    """The report on a data set's prompts: all of a sequence, the beginning of a stream."""
    with waiting(f"looking at the prompts of {source}"):
        report = check(prompts, decode=False, max_rows=None if isinstance(prompts, Sequence) else STREAM_LOOK)
    report.source = source
    return report


def first_prompts(prompts: Prompts) -> Sequence[Prompt]:
    """The prompts that are looked at before training."""
    looks = ((part, LOOK if isinstance(part, Sequence) else STREAM_LOOK) for part in parts_of(prompts).values())
    return [prompt for part, most in looks for prompt in islice(part, most)]


def adapted(config: RunConfig, prompts: Prompts) -> Algorithm:
    """The algorithm as the policy's kind needs it; ValueError for one that it cannot follow, or not on these prompts: all of a
    sequence are looked at, of a stream the beginning."""
    algorithm, known = config.algorithm.algorithm, prompts if isinstance(prompts, Sequence) else first_prompts(prompts)
    algorithm.check_prompts(known)
    fitted = config.modality.adapt_algorithm(algorithm, config.policy, config.algorithm.label, known)
    fitted.check_kind(*config.modality.able(config.policy))
    return fitted


def policy_of_run(config: RunConfig, algorithm: Algorithm, worlds: Worlds | None) -> Policy:
    """The policy that trains, with what the run keeps beside its weights and who samples for it."""
    kept, cluster = shadows_of(config, algorithm), config.cluster
    samplers = SamplerSettings(cluster.samplers, cluster.restarts, cluster.samplers_share) if cluster.samplers else None
    needs = PolicyNeeds(kept, algorithm.ema_decay, algorithm.views, worlds, samplers)
    return config.modality.build(config.policy, needs)


def with_local_model(config: RunConfig, ranks: Ranks = Ranks()) -> RunConfig:
    """`tiny:qwen3_vl` becomes the folder of a tiny random model of that family, built once and by one process of a node."""
    policy, kind = config.policy, config.modality.name
    if not any(str(one.model).startswith(TINY) for one in (policy, *other_models(policy))):
        return config

    def local(model: str) -> str:
        return str(small_models().tiny_model(model, kind)) if model.startswith(TINY) else model

    with ranks.main_first():
        policy = replace(policy, model=local(policy.model))
        if others := other_models(policy):
            taken = {one.name: replace(one, model=local(str(one.model))) for one in others}
            teachers: Sequence[TextTeacher] = getattr(policy, "teachers", ())
            policy = replace(policy, teachers=tuple(taken.get(one.name, one) for one in teachers))
    return replace(config, policy=policy)


def other_models(policy: PolicyConfig) -> list[TextTeacher]:
    """The teachers of a policy that are models of their own."""
    teachers = policy.teachers if isinstance(policy, TextPolicyConfig) else ()
    return [one for one in teachers if one.model is not None]


def in_stage(
    records: Records, stage: Stage | None, run: RunDir | None, evaluator: Evaluator | None, held_out: Sequence[Prompt]
) -> Records:
    """The records of a run as a stage of it writes them."""
    if stage is None:
        return records
    note = run.append if run is not None and records.callbacks else lambda step, metrics: None
    goal = None
    if stage.until is not None and evaluator is not None:
        prompts = prompts_beyond(held_out, len(evaluator.prompts), stage.until)
        goal = goal_of(stage.until, evaluator, prompts, note, stage.where)
    for one in records.callbacks if stage.place else ():
        if isinstance(one, Progress | Losses):
            one.enter(stage.place, stage.begin, stage.end - stage.begin)
    return replace(records, begin=stage.begin, stage=stage.number if stage.place else 0, goal=goal)


def build_records(
    config: RunConfig, run: RunDir | None, space: str | None, ranks: Ranks, watchers: Callable[[RunConfig], Sequence[Callback]]
) -> Records:
    if run is None:
        return Records(watchers(config))
    chosen, sizes = config.checkpoint, sizes_file(config, ranks)
    pace = Pace(60 * config.save_minutes) if config.saves_by_time else None
    checkpoints = Checkpoints(run.checkpoints, chosen.keep, chosen.keep_every, chosen.keep_best, chosen.asynchronous, pace)
    if not ranks.is_main:
        return Records(checkpoints=checkpoints, sizes=sizes)
    named = config.trackers
    trackers = (
        [AccelerateTrackers(named.names, run.path, named.project, as_table(config), named.num_examples)] if named.names else []
    )
    watching = watchers(config)
    for one in watching:
        if isinstance(one, Progress):
            one.first |= next((line for line in run.read_metrics().lines if "eval/total" in line), {})
    files = [JsonlTracker(run, space), StepSpans(run)]
    return Records([*files, *trackers, *watching], checkpoints, sizes, run.take_requests)


def prompts_to_show(
    config: RunConfig, policy: Policy, prompts: Prompts, ranks: Ranks, run: RunDir | None, space: str | None
) -> Callable[[int], None]:
    """The training prompts that a run without held-out ones answers now and then; those that cannot be read are left out."""
    settings, count = replace(config.evaluation, num_samples=1), 0 if run is None else config.num_seen
    first = first_of_each(prompts if isinstance(prompts, Sequence) else list(islice(prompts, count)), count)
    wrong = with_hooks(policy, PolicyHooks).unreadable(first) if config.max_skipped else ()
    readable = [prompt for i, prompt in enumerate(first) if i not in wrong]
    if run is None or not readable:
        return Records().seen
    sampling, files = config.modality.eval_sampling(settings), JsonlTracker(run, space)
    return SeenPrompts(policy, readable, settings, sampling, ranks, partial(files.write, split=SEEN))


def sizes_file(config: RunConfig, ranks: Ranks) -> Path | None:
    """The file of mmrl's cache that remembers which micro-batches fit: one for every model, way to train it and device."""
    if config.micro_batch != "auto":
        return None
    table = as_table(config)
    device = "cpu" if not torch.cuda.is_available() else str(torch.cuda.get_device_properties(torch.cuda.current_device()))
    facts = [table["policy"], table["algorithm"], table["optimizer"], device, ranks.world, __version__]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]
    return note_use(cache_folder() / f"micro-batch-{key}" / "size.json")


def load_rewards(makes: Sequence[NamedMake]) -> Loaded:
    """The rewards, which may load models or ask servers."""
    with waiting("loading rewards"):
        return [(reward, make()) for reward, make in makes]


def reward_runners(config: RunConfig, loaded: Loaded, space: str | None) -> tuple[RewardRunner, RewardRunner]:
    """Who scores samples to train on, and who scores held-out ones: the same where nothing is only watched.

    Raises ValueError where a reward is for samples of another kind, or reads boxes written otherwise.
    """
    named = [named_reward(config, reward, function, space) for reward, function in loaded]
    asked, unscored = list[NamedReward](), config.algorithm.algorithm.unscored
    for one, (reward, function) in zip(named, loaded, strict=True):
        scorer = evaluation_scorer(function)
        asked.append(one if scorer is None else named_reward(config, reward, scorer, space))
    trained = [one for one, (reward, _) in zip(named, loaded, strict=True) if isinstance(reward, RewardConfig)]
    is_same = len(asked) == len(trained) and all(map(is_, asked, trained))
    rewards = RewardRunner([] if unscored else trained, unscored)
    return rewards, rewards if is_same and not unscored else RewardRunner(asked, unscored)


def named_reward(
    config: RunConfig, reward: UnweightedReward, function: Any, space: str | None, output: str = "", name: str = ""
) -> NamedReward:
    """The reward as the run uses it: with its name, and reading boxes as the policy writes them.

    It sees samples of the kind `output` (empty: what the policy makes); rewards inside it see what it `shows`, or the same, and
    are blamed under their own names.
    """
    modality, output = config.modality, output or config.makes
    shown = getattr(function, "shows", output)
    name = name or reward.label

    def inside(inner: object) -> PlugIn:
        return named_reward(config, reward, inner, space, shown, f"{name_of(inner)} in {name}").function

    function = with_inside(function, inside)
    declared = declared_space(function)
    if declared is not None:
        modality.refuse_box_reward(name)
    wanted = modalities(function)
    if wanted and not {output, *output.split(" with ")} & set(wanted):
        raise ValueError(other_samples(name, wanted, modality.name, output))
    if declared == "auto":
        if space is None:
            raise ValueError(unknown_space(name))
        function = replace(function, space=space)
    elif declared is not None and space is not None and declared != space:
        raise ValueError(
            f"reward {name!r} reads boxes in {declared!r}, but the policy writes them in {space!r}: "
            f'remove `space` from the reward, or set policy.box_space = "{declared}" if the model was taught so'
        )
    weight = reward.weight if isinstance(reward, RewardConfig) else 0.0
    how = reward.timeout_s, reward.max_failed, reward.call, reward.transform, reward.sources
    return NamedReward(name, function, weight, *how)


def draw_alike(worlds: Worlds | None, ranks: Ranks) -> Worlds | None:
    """The worlds, whose painters, as those of rewards, draw in all processes with the checkpoints that the first finds newest."""
    studios = unpinned() if ranks.world > 1 else []
    runs = sorted({studio.painting.run for studio in studios})
    first = ranks.gather({run: Checkpoints(Path(run).expanduser() / "checkpoints").newest_whole() for run in runs})[0]
    for studio in studios:
        if (step := first.get(studio.painting.run)) is not None:
            studio.pin(step)
    return worlds
