"""Models that were trained here, for rewards and worlds: a scoring head, a judge that answers questions, a painter."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from mmrl.app.config.run import RunConfig, resolve
from mmrl.app.modality.base import PolicyNeeds
from mmrl.app.run.build import with_local_model
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
from mmrl.serving.scorers.painting import Painting
from mmrl.training.evaluate import MODELS

OF_SAMPLING = ("sampling", "num_steps", "guidance", "base_from", "weights")
"""The keys of [evaluation] that say how a model answers."""
NOTHING_ELSE = {"algorithm": {"preset": "sft"}, "data": {"use": "prompts"}}
"""What a config must name beside a model."""


@dataclass(frozen=True)
class Scorer:
    """Scores completions with a run's policy: {axis: s} for each (prompt, completion)."""

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
        with keep_random_state(), self.held.ready() as net:
            rollouts = net.policy.rollout(requests)
            readings = [Reading(SCORE + axis) for axis in self.axes]
            found = net.policy.read(rollouts.trace, readings, rollouts.action_mask)
        order = rollouts.group_ids.argsort()
        values = torch.stack([found[reading][:, 0] for reading in readings], dim=1)[order]
        return [dict(zip(self.axes, row, strict=True)) for row in values.tolist()]


def row_of(prompt: Prompt, sample: Sample) -> tuple[Prompt, str]:
    """The prompt and the completion that a reward model reads: of a picture, the picture with its prompt, and nothing more."""
    if sample.image is None:
        return prompt, sample.text or ""
    return replace(prompt, media=(sample.image,)), ""


class HeldNet(nn.Module):
    """The network of a policy, held as rewards hold theirs."""

    def __init__(self, policy: TextPolicy) -> None:
        super().__init__()
        self.policy, self.net = policy, policy.net
        self.keep_float32 = ("net.model.score_head",) if hasattr(policy.net.model, "score_head") else ()


@dataclass(frozen=True)
class Judge:
    """Answers questions with a run's policy, sampled as the run's held-out prompts are."""

    sampling: Sampling | None
    held: HeldModel

    def answers(self, questions: Sequence[Prompt], batch_size: int = 8) -> list[Sample]:
        """One answer per question, in order, `batch_size` at a time; equal questions get equal answers."""
        return [found for i in range(0, len(questions), batch_size) for found in self._some(questions[i : i + batch_size])]

    def _some(self, questions: Sequence[Prompt]) -> list[Sample]:
        requests = [Request(question, 1, i, seed=0) for i, question in enumerate(questions)]
        with keep_random_state(), self.held.ready() as net:
            groups = net.policy.rollout(requests, self.sampling).groups
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
    """The config of a run that trained a reward model, and the axes that it scores; ValueError where it trained none."""
    config = config_of(run, trusted)
    axes = config.policy.scores if isinstance(config.policy, TextPolicyConfig) else ()
    if not axes:
        raise ValueError(f"{run} trained no reward model: its policy.scores names no axis; `mmrl reward train` makes one")
    return config, axes


def load_reward_model(run: str | Path, step: int | None = None, device: str = "auto", trust_remote_code: bool = False) -> Scorer:
    """The reward model that a run trained: `mmrl.load_reward_model("runs/rm").of_group(group)` gives {axis: score} per sample.

    Args:
        run: the run's folder.
        step: its checkpoint; None: the newest.
        device: auto (the GPU if there is one), cpu, cuda or cuda:1.
        trust_remote_code: Python files of the run's model may run, with your rights.

    Raises:
        FileNotFoundError: there is no such run.
        ValueError: it trained no reward model, its model runs Python files, or the checkpoint is damaged.
    """
    place = Path(run).expanduser()
    config, axes = axes_of(place, trust_remote_code)
    return Scorer(axes, hold_policy(place, config, step, device))


def load_judge(run: str | Path, step: int | None = None, device: str = "auto", trust_remote_code: bool = False) -> Judge:
    """The model that a run trained, to be asked: `mmrl.load_judge("runs/judge").answers([prompt])` gives a sample per prompt.

    Args:
        run: the run's folder.
        step: its checkpoint; None: the newest.
        device: auto (the GPU if there is one), cpu, cuda or cuda:1.
        trust_remote_code: Python files of the run's model may run, with your rights.

    Raises:
        FileNotFoundError: there is no such run.
        ValueError: its model draws, or runs Python files, or the checkpoint is damaged.
    """
    place = Path(run).expanduser()
    config = config_of(place, trust_remote_code)
    return Judge(config.evaluation.sampling, hold_policy(place, config, step, device))


def hold_policy(run: Path, config: RunConfig, step: int | None, device: str) -> HeldModel:
    """The policy of a run's checkpoint; CheckpointError where it is damaged or not there."""

    def build() -> HeldNet:
        place = RunDir.open(run)
        with keep_random_state(), hushed_saving():
            return HeldNet(cast(TextPolicy, revive(config, place, load_state(place, step))))

    return hold(("policy of a run", str(run.resolve()), "newest" if step is None else f"step {step}"), build, device)


AT_SIGHT = Prompt("painter", "a picture")
"""What a painter is tried with before its weights load."""


class PaintersParts(nn.Module):
    """All that a policy draws with, on one device; its numbers keep the types that its settings give them."""

    def __init__(self, policy: Any, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.policy, self.parts = policy, nn.ModuleList(parts)

    def to(self, *args: Any, **kwargs: Any) -> "PaintersParts":
        device = args[0] if args else kwargs["device"]
        for part in self.parts:
            part.to(device)
        return self


@dataclass(frozen=True)
class Painter:
    """Draws a picture per prompt, as held-out prompts are drawn; one that is drawn alone is the same to the bit."""

    painting: Painting
    config: RunConfig

    @property
    def held(self) -> HeldModel:
        """Its networks, loaded once per process; CheckpointError for a damaged checkpoint."""
        run = Path(self.painting.run).expanduser() if self.painting.run else None
        who = self.painting.model if run is None else str(run.resolve())
        return hold(
            ("painter", who, hashlib.sha256(repr(self.painting).encode()).hexdigest()[:8]), self._build, self.painting.device
        )

    @property
    def num_weights(self) -> int:
        """How many numbers it holds, counted by its config files; nothing is loaded."""
        policy = self.config.policy
        dry = self.config.modality.build_dry_run(policy, PolicyNeeds(frozenset()))
        each = 2 if policy.dtype == "bfloat16" else 4
        return sum(weight.numel() for weight in dry.network.parameters()) + sum(dry.beside().values()) // each

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError for prompts that the model cannot draw; nothing is loaded."""
        self.config.modality.check_prompts(self.config.policy, prompts)

    def draw(self, asked: Sequence[tuple[Prompt, int]]) -> list[Sample]:
        """A sample per prompt and seed of its noise; ValueError for a prompt that the model cannot draw."""
        prompts, evaluation = [prompt for prompt, _ in asked], self.config.evaluation
        self.check_prompts(prompts)
        weights = MODELS[evaluation.weights]
        requests = [Request(prompt, 1, i, model=weights, seed=seed) for i, (prompt, seed) in enumerate(asked)]
        with keep_random_state(), self.held.ready() as parts:
            groups = parts.policy.rollout(requests, self.config.modality.eval_sampling(evaluation)).groups
        return [group.samples[0] for group in sorted(groups, key=lambda group: group.id)]

    def tokens(self, text: str) -> tuple[int, int]:
        """How many tokens a text has, and how many of them the model reads."""
        # tokenizers keep the cut of whoever used them last
        with self.held.ready() as parts:
            return self.config.modality.tokens_read(parts.policy, text)

    def to(self, device: str) -> None:
        self.held.to(device)

    def _build(self) -> PaintersParts:
        run = RunDir.open(Path(self.painting.run).expanduser()) if self.painting.run else None
        state = None if run is None else load_state(run, self.painting.step)
        with keep_random_state(), hushed_saving():
            policy: Any = revive(self.config, run, state, self.config.evaluation.weights_beside)
        if run is None and self.config.policy.dtype == "bfloat16":
            policy.net.bfloat16()  # nothing trains, so no float32 copy is needed
        return PaintersParts(policy, self.config.modality.parts(policy))


def load_painter(painting: Painting) -> Painter:
    """A generator that draws for rewards and worlds: `load_painter(Painting(run="runs/t2i")).draw([(prompt, seed)])`.

    Raises:
        FileNotFoundError: there is no such model or run.
        ValueError: it writes, draws no pictures, or runs Python files.
    """
    if painting.server:
        raise ValueError(f"{painting.place} draws in another process: Painting.painter() asks it")
    if painting.run:
        given = kept_of(Path(painting.run).expanduser(), painting.trust_remote_code)
        if own := given["policy"].get("family") if not painting.trust_remote_code else None:
            raise ValueError(
                f"{painting.place}: its policy.family {own!r} is a Python file that would run with your rights: read it, and if "
                "you trust it set painter.trust_remote_code = true"
            )
    else:
        size = {"width": painting.width, "height": painting.height}
        sized = {key: value for key, value in size.items() if value is not None}
        policy = {"kind": "flow", "model": painting.model, **sized, **painting.policy}
        given = {"policy": policy, "evaluation": dict[str, object]()}
    wanted = {"num_steps": painting.num_steps, "guidance": painting.guidance}
    given["evaluation"] |= {key: value for key, value in wanted.items() if value is not None}
    config = resolve(Table.of({**given, **NOTHING_ELSE}, painting.place)).config
    modality = config.modality
    output = modality.output_of(config.policy)
    if output != "image":
        made = "writes" if output == "text" else f"draws {output}"
        raise ValueError(f"{painting.place} {made}, and a painter draws pictures: name a model that does")
    config = with_local_model(replace(config, policy=modality.alone(config.policy, painting.rows)))
    modality.check_prompts(config.policy, [AT_SIGHT])
    return Painter(painting, config)
