"""Rewards that were trained here: a run's policy with its scoring head, or as a judge that answers questions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from mmrl.app.config.run import RunConfig, resolve
from mmrl.app.run.context import hushed_saving
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import load_state, revive
from mmrl.app.toml.tables import Table
from mmrl.core.readings import SCORE
from mmrl.core.types import Group, Prompt, Reading, Request, Sample
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import Sampling, TextPolicyConfig
from mmrl.runtime.process_state import keep_random_state
from mmrl.serving.files import refuse_own_code
from mmrl.serving.scorers.models import HeldModel, hold

OF_SAMPLING = ("sampling", "num_steps", "guidance", "base_from", "weights")
"""The keys of [evaluation] that say how a model answers."""
NOTHING_ELSE = {"algorithm": {"preset": "sft"}, "data": {"use": "prompts"}}
"""What a config must name beside a model."""


@dataclass(frozen=True)
class Scorer:
    """Scores completions with a run's policy: {axis: s} for each (prompt, completion)."""

    policy: TextPolicy
    axes: tuple[str, ...]
    held: HeldModel

    def scores(self, rows: Sequence[tuple[Prompt, str]], batch_size: int) -> list[dict[str, float]]:
        """In the order of the rows, which are read `batch_size` at a time."""
        return [found for i in range(0, len(rows), batch_size) for found in self._some(rows[i : i + batch_size])]

    def of_group(self, group: Group, batch_size: int = 16) -> list[dict[str, float]]:
        """The scores of a group's samples."""
        return self.scores([row_of(group.prompt, sample) for sample in group.samples], batch_size)

    def _some(self, rows: Sequence[tuple[Prompt, str]]) -> list[dict[str, float]]:
        requests = [Request(prompt, 1, i, role="injected", written=text) for i, (prompt, text) in enumerate(rows)]
        with keep_random_state(), self.held.ready():
            rollouts = self.policy.rollout(requests)
            readings = [Reading(SCORE + axis) for axis in self.axes]
            found = self.policy.read(rollouts.trace, readings, rollouts.action_mask)
        order = rollouts.group_ids.argsort()
        values = torch.stack([found[reading][:, 0] for reading in readings], dim=1)[order]
        return [dict(zip(self.axes, row, strict=True)) for row in values.tolist()]


def row_of(prompt: Prompt, sample: Sample) -> tuple[Prompt, str]:
    """The prompt and the completion that a reward model reads: of a picture, the picture with its prompt, and nothing more."""
    if sample.image is None:
        return prompt, sample.text or ""
    return replace(prompt, media=(sample.image,)), ""


class PolicyNet(nn.Module):
    """The network of a policy, held as rewards hold theirs."""

    def __init__(self, policy: TextPolicy) -> None:
        super().__init__()
        self.policy, self.net = policy, policy.net
        self.keep_float32 = ("net.model.score_head",) if hasattr(policy.net.model, "score_head") else ()


@dataclass(frozen=True)
class Judge:
    """Answers questions with a run's policy, sampled as the run's held-out prompts are."""

    policy: TextPolicy
    sampling: Sampling | None
    held: HeldModel

    def answers(self, questions: Sequence[Prompt], batch_size: int = 8) -> list[Sample]:
        """One answer per question, in order, `batch_size` at a time; equal questions get equal answers."""
        return [found for i in range(0, len(questions), batch_size) for found in self._some(questions[i : i + batch_size])]

    def _some(self, questions: Sequence[Prompt]) -> list[Sample]:
        requests = [Request(question, 1, i, seed=0) for i, question in enumerate(questions)]
        with keep_random_state(), self.held.ready():
            groups = self.policy.rollout(requests, self.sampling).groups
        return [group.samples[0] for group in sorted(groups, key=lambda group: group.id)]


def config_of(run: Path, trusted: bool) -> RunConfig:
    """The model of a run that writes and how it is sampled, as `kept_of`; ValueError for one that draws."""
    kept = kept_of(run, trusted)
    if kept["policy"].get("kind", "text") != "text":
        raise ValueError(f"{run} trained a model that draws, and one that writes is asked: name a run whose policy.kind is text")
    return resolve(Table.of({**kept, **NOTHING_ELSE}, str(run))).config


def kept_of(run: Path, trusted: bool) -> dict[str, dict[str, Any]]:
    """The tables about the model of a run and how it is sampled; nothing else is read, for the rest may name Python files.

    Raises FileNotFoundError where there is no such run, and ValueError where its model would run Python files of its own although
    whoever asks has not said that they are `trusted`.
    """
    table = Table.read(RunDir.open(run).config_file).values
    refuse_own_code(run, trusted, str(run))
    policy = {key: value for key, value in table.get("policy", {}).items() if key not in ("engine", "teachers")}
    evaluation = {key: value for key, value in table.get("evaluation", {}).items() if key in OF_SAMPLING}
    return {"policy": policy, "evaluation": evaluation, "seed": table.get("seed", 0)}


def axes_of(run: Path, trusted: bool = False) -> tuple[RunConfig, tuple[str, ...]]:
    """The config of a run that trained a reward model, and the axes that it scores; ValueError where it trained none, and as
    `config_of`."""
    config = config_of(run, trusted)
    axes = config.policy.scores if isinstance(config.policy, TextPolicyConfig) else ()
    if not axes:
        raise ValueError(f"{run} trained no reward model: its policy.scores names no axis; `mmrl reward train` makes one")
    return config, axes


def scorer_of(run: Path, step: int | None = None, device: str = "auto", trusted: bool = False) -> Scorer:
    """The reward model of a run's checkpoint `step`, or of its newest; loaded once per process.

    Raises:
        FileNotFoundError, ValueError: as `axes_of`; CheckpointError where the checkpoint is damaged or not there.
    """
    config, axes = axes_of(run, trusted)
    held = hold_policy(run, config, step, device)
    return Scorer(cast(PolicyNet, held.model).policy, axes, held)


def judge_of(run: Path, step: int | None = None, device: str = "auto", trusted: bool = False) -> Judge:
    """The judge of a run's checkpoint `step`, or of its newest; loaded once per process. Raises as `scorer_of`."""
    config = config_of(run, trusted)
    held = hold_policy(run, config, step, device)
    return Judge(cast(PolicyNet, held.model).policy, config.evaluation.sampling, held)


def hold_policy(run: Path, config: RunConfig, step: int | None, device: str) -> HeldModel:
    """The policy of a run's checkpoint; CheckpointError where it is damaged or not there."""

    def build() -> PolicyNet:
        place = RunDir.open(run)
        with keep_random_state(), hushed_saving():
            return PolicyNet(cast(TextPolicy, revive(config, place, load_state(place, step))))

    return hold(("policy of a run", str(run.resolve()), "newest" if step is None else f"step {step}"), build, device)
