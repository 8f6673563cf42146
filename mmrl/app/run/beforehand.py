"""Mistakes that config, prompts and rewards show before a model is loaded: refused, or said in a warning."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, get_args

from mmrl.algorithms.advantages.decoupled import PerModality
from mmrl.algorithms.advantages.flow import StepRewards
from mmrl.algorithms.algorithm import OF_SCORES
from mmrl.algorithms.planners.begun import Wordings
from mmrl.algorithms.samplers.learned import NearestValue
from mmrl.algorithms.shaping.reference import Agreement
from mmrl.algorithms.views import SEEN
from mmrl.answers.block import Template
from mmrl.answers.needs import Need
from mmrl.app.config.plug_ins import Loaded
from mmrl.app.config.reward_needs import needs_of, parts_of, reads_boxes, refuse_missing_package
from mmrl.app.config.run import EvaluationConfig, RewardConfig, RunConfig, TrackerConfig, UnweightedReward
from mmrl.app.modality.on_cards import check_cards
from mmrl.app.modality.registry import modality_of
from mmrl.core.hooks import PlannerHooks, with_hooks
from mmrl.core.ranks import Ranks
from mmrl.core.readings import SCORE, TAUGHT, VALUE
from mmrl.core.types import Prompt
from mmrl.engine.server import resolve_sync
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.workers.remote import SamplerSettings
from mmrl.policies.text.prompt.templates import tags_of
from mmrl.policies.text.read.evaluate import QUANTITIES
from mmrl.policies.text.read.looks import ANSWERS
from mmrl.policies.text.settings import TextPolicyConfig, unshared
from mmrl.runtime.accelerator import zero_stage
from mmrl.runtime.blame import UnavailableError, refuse_where
from mmrl.runtime.pictures import Fit
from mmrl.serving.files import refuse_missing_model
from mmrl.serving.scorers.sizes import HoldsModels
from mmrl.training.ahead.lag import refuse_lag

log = logging.getLogger("mmrl")
FOR_SEEN = ("batch_size", "seed", "weights", "sampling", "num_steps", "guidance", "base_from")
"""Keys of [evaluation] by which a run without held-out prompts answers those that it has seen."""


def contents(prompt: Prompt) -> tuple[object, ...]:
    """Equal where two prompts show and ask the same."""
    return (prompt.text, *(medium.tobytes() if hasattr(medium, "tobytes") else str(medium) for medium in prompt.media))


def overlap_sentence(trained: Sequence[Prompt], held_out: Sequence[Prompt]) -> str:
    """The sentence about held-out prompts that show and ask the same as one to train on; empty where there are none."""
    texts = {prompt.text for prompt in held_out}
    known = {contents(prompt) for prompt in trained if prompt.text in texts}
    shared = [prompt for prompt in held_out if contents(prompt) in known]
    named = ", ".join(repr(prompt.id) for prompt in shared[:3])
    remedy = "take another split, or mmrl data split"
    return f"{len(shared)} of {len(held_out)} prompts are trained on, too ({named}): {remedy}" if shared else ""


def look_at_settings(config: RunConfig, ranks: Ranks) -> None:
    """Refuse settings that do not go together, and warn of those that change nothing."""
    check_environment(config, ranks)
    check_episode_cache(config)
    check_cards(config.policy, ranks)
    check_axes(config)
    check_judged(config)
    check_signs(config)
    if isinstance(advantage := config.algorithm.algorithm.advantage, PerModality):
        advantage.check_names([reward.label for reward in config.reward])
    check_named_rewards(config)
    check_companions(config)
    check_samplers(config, ranks)
    check_ahead(config, ranks)
    for sentence in idle_settings(config):
        log.warning(sentence)


def check_axes(config: RunConfig) -> None:
    """Refuse scores and values of an axis that the policy's head does not have, and values that no term trains."""
    algorithm = config.algorithm.algorithm
    axes = getattr(config.policy, "scores", ())
    reads_values = any(reading.quantity == VALUE.quantity for reading in algorithm.all_reads)
    reasons = {
        "which models that write have alone: take another advantage": not isinstance(config.policy, TextPolicyConfig),
        f'and the policy has none: set policy.scores = ["{VALUE.quantity}"]': VALUE.quantity not in axes,
        'and no term trains the head: add {kind = "ValueFit", coef = 0.5} to algorithm.objective': VALUE
        not in algorithm.live_reads,
    }
    if reads_values:
        refuse_where(f"algorithm {config.algorithm.label} reads what a value head expects, ", reasons)
    asked = [reading.quantity for reading in algorithm.live_reads if reading.quantity.startswith(SCORE)]
    missing = [name.removeprefix(SCORE) for name in asked if name.removeprefix(SCORE) not in axes]
    if missing:
        raise ValueError(
            f"algorithm {config.algorithm.label} trains scores on the axis {missing[0]!r}, and policy.scores has "
            f"{', '.join(axes) or 'none'}: set policy.scores, or the term's axes"
        )


def check_judged(config: RunConfig) -> None:
    """Refuse a sampler that asks a value head where there is none, or where it could not answer before prompts are drawn."""
    if config.sampler.kind != NearestValue.__name__:
        return
    reasons = {
        'no term trains a value head: set policy.scores = ["value"], and add {kind = "ValueFit", coef = 0.5, group = true} to '
        "algorithm.objective": VALUE not in config.algorithm.algorithm.live_reads,
        "ahead has prompts drawn while the head trains: set ahead = 0": bool(config.ahead),
        "the run has an environment, whose worlds answer no text that is given: leave [environment] out": (
            config.environment is not None
        ),
    }
    refuse_where(f"sampler.kind is {config.sampler.kind!r}, and ", reasons)


def check_signs(config: RunConfig) -> None:
    """Say that rewards may not be negative where steps are weighed by them, and refuse weights that make them so."""
    advantage = config.algorithm.algorithm.advantage
    if not isinstance(advantage, StepRewards) or not advantage.weigh:
        return
    said = (
        f"algorithm {config.algorithm.label} weighs steps by their total reward, which may not be negative: give such rewards a "
        "transform (reward.transform), or set algorithm.advantage.weigh = false"
    )
    if negative := [reward.label for reward in config.reward if reward.weight < 0]:
        raise ValueError(f"{said}. The weight of reward {negative[0]!r} is below 0")
    log.warning("%s", said)


def check_named_rewards(config: RunConfig) -> None:
    """Refuse the parts of mmrl that look at rewards first and name none of the run; others may name what those before add."""
    algorithm, known = config.algorithm.algorithm, [reward.label for reward in config.reward]
    first = {"shaping.0": algorithm.shaping[0]} if algorithm.shaping else {"advantage": algorithm.advantage}
    for place, part in {"planner": algorithm.planner, **first}.items():
        for key in ("correct",) if place == "advantage" else ("by", "reward", "rewards"):
            named = getattr(part, key, None) or ()
            for name in (named,) if isinstance(named, str) else named if isinstance(named, tuple) else ():
                if name not in known and "@" not in name and f"algorithm.{place}" not in config.algorithm.uses:
                    raise ValueError(
                        f"algorithm.{place}.{key} is {name!r}, and no reward is called so: name one of {', '.join(known)}"
                    )


def check_companions(config: RunConfig) -> None:
    """Refuse a bonus for answers to other wordings than the planner asks."""
    algorithm, planner = config.algorithm.algorithm, config.algorithm.algorithm.planner
    for part in algorithm.shaping:
        if isinstance(part, Agreement) and isinstance(planner, Wordings) and part.column != planner.column:
            raise ValueError(
                f"algorithm {config.algorithm.label}: Agreement counts wordings in the column {part.column!r}, and the planner "
                f"asks those in {planner.column!r}: name the same column for both"
            )


def check_samplers(config: RunConfig, ranks: Ranks) -> None:
    """Refuse processes that sample where they cannot have the policy's model, its weights or a card."""
    count, policy = config.cluster.samplers, config.policy
    if not count:
        return
    reasons = {
        f"policy.kind is {modality_of(policy).name!r}, and they sample for 'text' and 'flow': set cluster.samplers = 0": (
            not isinstance(policy, TextPolicyConfig | FlowPolicyConfig)
        ),
        "the servers of [policy.engine] write: leave one of the two out": getattr(policy, "engine", None) is not None,
        f"FSDP or ZeRO-3 spreads the weights over the run's {ranks.world} processes, of which none has all that they need: "
        "start with configs/accelerate/ddp.yaml, or set cluster.samplers = 0": ranks.is_sharded,
        "policy.compile has the network that trains round otherwise than theirs: leave policy.compile out": (
            isinstance(policy, FlowPolicyConfig) and policy.compile
        ),
        "policy.compile has the network that trains write otherwise than theirs: leave it out, or set policy.decode = 'plain'": (
            isinstance(policy, TextPolicyConfig) and policy.compile and policy.decode != "plain" and unshared(policy) is None
        ),
        "policy.family is a file of your own, which they do not load: leave policy.family out, or set cluster.samplers = 0": (
            isinstance(policy, FlowPolicyConfig) and policy.family is not None
        ),
    }
    refuse_where(f"cluster.samplers is {count}, and ", reasons)
    if ranks.accelerator is not None and ranks.accelerator.device.type == "cuda":
        SamplerSettings(count, shares=config.cluster.samplers_share).places()


def check_ahead(config: RunConfig, ranks: Ranks) -> None:
    """Refuse sampling ahead of training where the network that trains would have to sample."""
    if not config.ahead:
        return
    policy = config.policy if isinstance(config.policy, TextPolicyConfig) else None
    engine = None if policy is None else policy.engine
    broadcasts = policy is not None and engine is not None and resolve_sync(policy, engine) == "broadcast"
    draws, own = isinstance(config.policy, FlowPolicyConfig), engine is None and not config.cluster.samplers
    reasons = {
        "there is no [policy.engine] and cluster.samplers is 0, so the network that trains writes": own and not draws,
        "cluster.samplers is 0, so the network that trains draws": own and draws,
        "policy.engine.sleep has servers rest while the policy trains": engine is not None and engine.sleep,
        'policy.engine.sync = "broadcast" keeps one version of the weights, so it allows 1': broadcasts and config.ahead > 1,
        "ahead_drain waits for checkpoints of save_every, which is 0": config.ahead_drain and not config.save_every,
        f"FSDP or ZeRO-3 spreads the weights over the run's {ranks.world} processes": ranks.is_sharded,
    }
    refuse_where(f"ahead is {config.ahead}, and ", reasons, ": change that, or set ahead = 0")
    refuse_lag(config.algorithm.algorithm, config.ahead)


def check_context(config: RunConfig, ranks: Ranks) -> None:
    """Refuse rows that several processes read together where that was not tried."""
    policy = config.policy
    if not isinstance(policy, TextPolicyConfig) or policy.context == 1:
        return
    asked = {reading.quantity for reading in config.algorithm.algorithm.all_reads if reading.model != OF_SCORES}
    others = sorted(asked - {*QUANTITIES, ANSWERS})
    reasons = {
        f"ahead = {config.ahead} was not tried with it": config.ahead > 0,
        f"cluster.samplers = {config.cluster.samplers} was not tried with it": config.cluster.samplers > 0,
        f"algorithm {config.algorithm.label} reads {', '.join(others)}, which was not tried with it": bool(others),
        "DeepSpeed was not tried with it: start with configs/accelerate/ddp.yaml or fsdp2.yaml": (
            ranks.accelerator is not None and zero_stage(ranks.accelerator) > 0
        ),
    }
    refuse_where(f"policy.context is {policy.context}, and ", reasons, ": change that, or leave policy.context out")


def check_environment(config: RunConfig, ranks: Ranks) -> None:
    """Refuse what samples of several turns cannot have; ValueError with the remedy."""
    environment, policy = config.environment, config.policy
    algorithm, label = config.algorithm.algorithm, config.algorithm.label
    if environment is None:
        turned = [one.name for one in config.evaluation.also if one.turns is not None]
        reasons = {
            f"evaluation.also {' and '.join(turned)} sets turns, and the run has no environment: write [environment] use": bool(
                turned
            ),
            f"algorithm.preset is {config.algorithm.preset!r}, a method of samples of several turns, and the run has no "
            'environment: write [environment] with use = "zoom" or one of yours, or set algorithm.needs_turns = false': (
                algorithm.needs_turns
            ),
        }
        return refuse_where("", reasons)
    if not isinstance(policy, TextPolicyConfig):
        raise ValueError(f"policy.kind is {modality_of(policy).name!r}, whose samples have no turns: remove [environment]")
    room, longest = environment.limits.tokens, policy.sampling.max_new_tokens
    reasons = {
        f"algorithm {label} shows prompts under views, and worlds answer plain samples: take another algorithm": (
            bool({*algorithm.views} - {SEEN})
        ),
        f"algorithm {label} tells a teacher what another sample wrote, and what the world showed it cannot be told: take another "
        "view of FollowTeacher, or leave [environment] out": TAUGHT in algorithm.all_reads and SEEN in algorithm.views,
        f"algorithm {label} trains rows of earlier steps again, of which one process keeps what the world showed, and the run "
        f"has {ranks.world}: start one, take another algorithm.planner, or leave [environment] out": (
            algorithm.replays and ranks.world > 1
        ),
        f"algorithm.planner {type(algorithm.planner).__name__} shows prompts with hints, begins samples or changes their "
        "temperature, and worlds answer plain samples: take another planner, or leave [environment] out": (
            not with_hooks(algorithm.planner, PlannerHooks).samples_plainly
        ),
        "the weights are sharded, and all processes would have to write equally many turns: run [environment] on one GPU, or on "
        "processes that each hold all weights": ranks.is_sharded,
        f"environment.limits.tokens is {room}, and two turns of policy.sampling.max_new_tokens = {longest} need {2 * longest}: "
        "raise the one or lower the other": room < 2 * longest,
        f"environment.wave is {environment.wave:g}, and deterministic = true needs 1: slow worlds are waited for": (
            environment.wave < 1 and config.deterministic
        ),
    }
    refuse_where("", reasons)


def check_episode_cache(config: RunConfig) -> None:
    """Refuse a bound for what episodes keep that was chosen where nothing is kept."""
    policy = config.policy
    if not isinstance(policy, TextPolicyConfig) or policy.episode_cache_mib == TextPolicyConfig.episode_cache_mib:
        return
    reasons = {
        "there is no [environment], whose episodes keep what they have read": config.environment is None,
        "the servers of [policy.engine] write, with caches of their own": policy.engine is not None,
        "the processes of cluster.samplers write, and read every turn from its beginning": config.cluster.samplers > 0,
    }
    refuse_where(f"policy.episode_cache_mib is {policy.episode_cache_mib}, and ", reasons, ": leave it out")


def look_at_scoring(config: RunConfig, loaded: Loaded, trained: Sequence[Prompt], asked: Sequence[Prompt]) -> None:
    """Look whether every reward can score the run's prompts and groups, and whether its files, packages and servers are there.

    Held-out prompts that are trained on get a warning, and so do a reward that is only watched and one that few prompts are wrong
    for. Raises ValueError for another reward.
    """
    output, evaluation = config.makes, config.evaluation
    asks = tags_of(config.policy.answer_format) if isinstance(config.policy, TextPolicyConfig) else None
    if seen := overlap_sentence(trained, asked):
        log.warning(f"held-out data: {seen}")
    group_size = config.algorithm.algorithm.group_size
    for reward, function in loaded:
        weighed = isinstance(reward, RewardConfig)
        found = list[str]()
        if weighed and not config.algorithm.algorithm.unscored:
            found += look_at_reward(reward, function, trained, "[data]", group_size, output)
        if asked:
            instead = evaluation_scorer(function)
            found += look_at_reward(
                reward, instead or function, asked, "[evaluation.data]", evaluation.num_samples, output, bool(instead)
            )
        found += other_fit(function, getattr(config.policy, "source_fit", None))
        wanted = [getattr(part, "template", asks) for part in parts_of(function)]
        if other := [one for one in get_args(Template) if asks and one != asks and one in wanted]:
            log.warning(
                f"reward {reward.label!r} has template = {other[0]!r}, and policy.answer_format asks for {asks!r}, which is 0 "
                f"there: set reward.template = {asks!r}, or another policy.answer_format"
            )
        if config.environment is None and any(need.turns for _, need, _ in needs_of(function)):
            found.append(
                "reads what a world answered, and the run has no environment: write [environment], or take another reward"
            )
        if missing := what_is_missing(function):
            found.append(missing)
        sentence = f"reward {reward.label!r} {'; and it '.join(found)}"
        if found and weighed and reward.weight:
            raise ValueError(sentence)
        if found:
            log.warning(sentence)


def look_at_reward(
    reward: UnweightedReward,
    function: object,
    prompts: Sequence[Prompt],
    place: str,
    samples: int,
    output: str,
    is_scorer: bool = False,
) -> list[str]:
    """Phrases about prompts and groups that do not fit a reward, or those inside it; `is_scorer`: it is asked in its place."""
    own, found = [prompt for prompt in prompts if not reward.sources or prompt.source in reward.sources], list[str]()
    for name, need, made in needs_of(function):
        if is_scorer and need.samples > 1:
            continue
        if samples < need.samples and not need.alone:
            key = "evaluation.num_samples" if place == "[evaluation.data]" else "algorithm.group_size"
            found.append(f"compares the samples of a prompt, and {key} is {samples}: set it to {need.samples} or more")
        elif samples < need.samples:
            log.warning(f"reward {name!r} of one sample is {need.alone}: set evaluation.num_samples to {need.samples} or more")
        try:
            refuse_missing_package(name, need)
        except ModuleNotFoundError as error:
            found.append(f"cannot run: {error}")
        if sentence := misfit(need, made, own, place, output, reward.max_failed):
            found.append(sentence)
    return found


def misfit(need: Need, made: object, prompts: Sequence[Prompt], place: str, output: str, most: float) -> str:
    """Why a reward cannot score these prompts; empty where it can score all but a share of `most`, which is a warning."""
    errors, applies, wanted = list[str](), 0, need.prompts or "what it reads"
    for prompt in prompts:
        try:
            applies += need.reads(prompt, made, output) is not None
        except ValueError as error:
            errors.append(str(error))
    if errors and len(errors) > most * len(prompts):
        return f"cannot score {len(errors)} of {len(prompts)} prompts of {place}, which need {wanted}: {errors[0]}"
    if errors:
        log.warning(f"{len(errors)} of {len(prompts)} prompts of {place} lack {wanted}, so their samples fail: {errors[0]}")
    if prompts and not applies and not errors:
        return f"applies to none of the {len(prompts)} prompts of {place}, which need {wanted}: take another reward"
    return ""


def evaluation_scorer(function: object) -> Any:
    """The reward that scores held-out prompts in place of one that says nothing of them; None where it does so itself."""
    return getattr(function, "held_out", None)


def other_fit(function: object, shown: str | None) -> list[str]:
    """A phrase where a reward brings a prompt's picture to another shape than the policy is shown; None: it is shown none."""
    fits = {getattr(part, "fit", "") for part in parts_of(function) if shown}
    others = sorted(fits & set(get_args(Fit)) - {shown})
    return [f"has fit = {others[0]!r} for pictures, and policy.source_fit is {shown!r}: set its fit to that"] if others else []


def what_is_missing(function: object) -> str:
    """A phrase about the files, models and servers that a reward or those inside it miss; empty where all are there."""
    missing = [sentence for part in parts_of(function) for sentence in not_ready(part)]
    return f"is not ready: {'; '.join(missing)}" if missing else ""


def not_ready(function: object) -> Iterator[str]:
    """Sentences about the files, models and servers that a reward misses."""
    checks = [partial(refuse_missing_model, size.name) for size in function.models()] if isinstance(function, HoldsModels) else []
    ready = getattr(function, "ready", None)
    for check in (*checks, *([ready] if callable(ready) else ())):
        try:
            check()
        except (OSError, ValueError, ModuleNotFoundError, UnavailableError) as error:
            yield str(error)


def refuse_unknown_space(config: RunConfig) -> None:
    """Raise ValueError where a reward reads boxes and nothing says how the model writes them; no weights are loaded for it.

    The model's config is read, so that it raises the errors of a model that is not there, too.
    """
    modality = config.modality
    for reward in (*config.reward, *config.evaluation.reward):
        if reads_boxes(reward.use, reward.args):
            modality.refuse_box_reward(reward.label)
            if modality.box_space(config.policy) is None:
                raise ValueError(unknown_space(reward.label))


def unknown_space(reward: str) -> str:
    """The question that a user has to answer where the makers of a model do not say how it writes boxes."""
    return (
        f"reward {reward!r} reads boxes, but it is not known how this model writes them: set policy.box_space to pixel, resized, "
        "norm1000, norm1 or norm1000_yx (pixels of the file, pixels of the picture as the model sees it, 0 to 1000, 0 to 1, 0 to "
        "1000 with y before x)"
    )


def idle_settings(config: RunConfig) -> Iterator[str]:
    """A sentence for every setting that somebody gave and nothing of this run reads."""
    if config.evaluation.data is None:
        usual = EvaluationConfig(**config.modality.evaluation_defaults(config.policy))
        acting = ("num_prompts", "seen", *(FOR_SEEN if config.num_seen else ()))
        unread = [f"evaluation.{name}" for name in changed(config.evaluation, usual) if name not in acting]
        unread += ["evaluate_every"] if config.evaluate_every else []
        unread += ["checkpoint.keep_best"] if config.checkpoint.keep_best.startswith("eval/") else []
        if unread:
            yield f"{', '.join(unread)}: nothing is evaluated, so this cannot act: set [evaluation.data], or remove it"
    if config.ahead_drain and not config.ahead:
        yield "ahead_drain: ahead is 0, so no step is in flight and this cannot act: set ahead, or remove it"
    if not config.trackers.names and (unread := changed(config.trackers, TrackerConfig())):
        yield f"{', '.join(f'trackers.{name}' for name in unread)}: no tracker is on, so this cannot act: set trackers.names"


def changed(settings: EvaluationConfig | TrackerConfig, usual: EvaluationConfig | TrackerConfig) -> list[str]:
    """The names of the fields that differ."""
    return [f.name for f in fields(settings) if getattr(settings, f.name) != getattr(usual, f.name)]
