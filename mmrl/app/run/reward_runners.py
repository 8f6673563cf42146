"""The rewards of a run as it uses them: loaded, named, and refused where they are for samples of another kind."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrl.app.config.reward_needs import declared_space, name_of, other_samples, with_inside
from mmrl.app.config.run import RewardConfig, RunConfig, UnweightedReward
from mmrl.app.errors import waiting
from mmrl.app.modality.registry import MODALITIES, AnyModality, modality_of
from mmrl.app.plugins.resolve import PlugIn, modalities
from mmrl.app.run.beforehand import evaluation_scorer, unknown_space
from mmrl.core.episodes import Worlds
from mmrl.core.ranks import Ranks
from mmrl.serving.scorers.painting import unpinned
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.rewards.runner import NamedReward, RewardRunner


def load_rewards(makes: Sequence[Callable[[], PlugIn]]) -> list[PlugIn]:
    """The rewards, which may load models or ask servers."""
    with waiting("loading rewards"):
        return [make() for make in makes]


def reward_runners(
    config: RunConfig, loaded: Sequence[PlugIn], loaded_more: Sequence[PlugIn], space: str | None
) -> tuple[RewardRunner, RewardRunner]:
    """Who scores samples to train on, and who scores held-out ones: the same where nothing is only watched.

    Raises ValueError where a reward is for samples of another kind, or reads boxes written otherwise.
    """
    modality = modality_of(config.policy)
    output = modality.output_of(config.policy)
    unscored = config.algorithm.algorithm.unscored
    trained = [named_reward(*pair, space, modality, output) for pair in zip(config.reward, loaded, strict=True)]
    rewards = RewardRunner(trained, unscored)
    more = [named_reward(*pair, space, modality, output) for pair in zip(config.evaluation.reward, loaded_more, strict=True)]
    instead = [evaluation_scorer(function) for function in loaded]
    if not more and not any(instead):
        return RewardRunner([], unscored) if unscored else rewards, rewards
    own = [
        one if scorer is None else named_reward(reward, scorer, space, modality, output)
        for one, reward, scorer in zip(rewards.rewards, config.reward, instead, strict=True)
    ]
    return RewardRunner([], unscored) if unscored else rewards, RewardRunner([*own, *more], unscored)


def named_reward(
    reward: UnweightedReward,
    function: Any,
    space: str | None,
    modality: AnyModality = MODALITIES["text"],
    output: str | None = None,
    name: str = "",
) -> NamedReward:
    """The reward as the run uses it: with its name, and reading boxes as the policy writes them.

    It sees samples of the kind `output` (None: the modality's); rewards inside it see what it `shows`, or the same, and
    are blamed under their own names.
    """
    output = modality.output if output is None else output
    shown = getattr(function, "shows", output)
    name = name or reward.label

    def inside(inner: object) -> PlugIn:
        return named_reward(reward, inner, space, modality, shown, f"{name_of(inner)} in {name}").function

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
