"""A model that draws what a reward or a world asks for: a run's, or any generator of pictures that mmrl can train."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from mmrl.app.config.run import RunConfig, resolve
from mmrl.app.modality.registry import AnyModality, modality_of
from mmrl.app.reward_model.scorer import NOTHING_ELSE, kept_of
from mmrl.app.run.build import with_local_model
from mmrl.app.run.context import hushed_saving
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import load_state, revive, to_answer
from mmrl.app.toml.tables import Table
from mmrl.core.types import Prompt, Request, Sample
from mmrl.runtime.process_state import keep_random_state
from mmrl.serving.scorers.models import HeldModel, hold
from mmrl.serving.scorers.painting import Painting
from mmrl.training.evaluate import MODELS

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
    def modality(self) -> AnyModality:
        return modality_of(self.config.policy)

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
        dry = self.modality.build_dry_run(policy, frozenset(), {})
        each = 2 if policy.dtype == "bfloat16" else 4
        return sum(weight.numel() for weight in dry.network.parameters()) + sum(dry.beside().values()) // each

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError for prompts that the model cannot draw; nothing is loaded."""
        self.modality.check_prompts(self.config.policy, prompts)

    def draw(self, asked: Sequence[tuple[Prompt, int]]) -> list[Sample]:
        """A sample per prompt and seed of its noise; ValueError for a prompt that the model cannot draw."""
        prompts, evaluation = [prompt for prompt, _ in asked], self.config.evaluation
        self.check_prompts(prompts)
        weights = MODELS[evaluation.weights]
        requests = [Request(prompt, 1, i, model=weights, seed=seed) for i, (prompt, seed) in enumerate(asked)]
        with keep_random_state(), self.held.ready() as parts:
            groups = parts.policy.rollout(requests, self.modality.eval_sampling(evaluation)).groups
        return [group.samples[0] for group in sorted(groups, key=lambda group: group.id)]

    def tokens(self, text: str) -> tuple[int, int]:
        """How many tokens a text has, and how many of them the model reads."""
        # tokenizers keep the cut of whoever used them last
        with self.held.ready() as parts:
            return self.modality.tokens_read(parts.policy, text)

    def to(self, device: str) -> None:
        self.held.to(device)

    def _build(self) -> PaintersParts:
        run = RunDir.open(Path(self.painting.run).expanduser()) if self.painting.run else None
        state = None if run is None else load_state(run, self.painting.step)
        with keep_random_state(), hushed_saving():
            policy: Any = revive(self.config, run, state, to_answer(self.config))
        if run is None and self.config.policy.dtype == "bfloat16":
            policy.net.bfloat16()  # nothing trains, so no float32 copy is needed
        return PaintersParts(policy, self.modality.parts(policy))


def painter_of(painting: Painting) -> Painter:
    """The painter of a table, from config files alone; its weights load with its first picture.

    Raises FileNotFoundError without such a model or run, and ValueError for one that writes, draws other things than pictures, or
    does not draw from text.
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
    modality = modality_of(config.policy)
    output = modality.output_of(config.policy)
    if output != "image":
        made = "writes" if output == "text" else f"draws {output}"
        raise ValueError(f"{painting.place} {made}, and a painter draws pictures: name a model that does")
    config = with_local_model(replace(config, policy=modality.alone(config.policy, painting.rows)))
    modality.check_prompts(config.policy, [AT_SIGHT])
    return Painter(painting, config)
