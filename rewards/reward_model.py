"""(s - shift) / scale, s the score of a reward model that was trained here (`mmrl reward train`).

`use = "runs/rm"` is the same as `use = "reward_model"` with `run = "runs/rm"`. A model that learnt from pairs orders outputs, and
its zero means nothing; one that learnt from ratings gives ratings. Parts: the other axes of the model.

Modality: text, image
Range: any
Source: your own data; Bradley and Terry's model as in arXiv:2203.02155
Licence: own code Apache-2.0; the weights are yours, under the licence of the model that they began from
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mmrl import Group, Need, Scored, load_reward_model
from mmrl.runtime.ranges import CountOrNone, Number, Positive
from mmrl.serving.files import refuse_own_code
from mmrl.serving.scorers.models import HeldModel, OnDevice
from mmrl.serving.scorers.sizes import ModelSize, hub_size


@dataclass(frozen=True)
class RewardModel(OnDevice):
    """What a reward model of yours thinks of the completion, or of the picture with its prompt."""

    run: str = ""
    """The folder of the run that trained it; it must be named."""
    axis: str = ""
    """What is scored; empty: the first axis of policy.scores."""
    step: CountOrNone = 0
    """Its checkpoint; 0: the newest."""
    scale: Positive = 1.0
    """Divides the score, after the shift."""
    shift: Number = 0.0
    """Subtracted from the score first."""
    trust_remote_code: bool = False
    """True: Python files of the run's model run, with your rights, where its config says that it needs them."""
    needs = Need(setup="run (the folder of a run whose policy has policy.scores)")

    def ready(self) -> None:
        """Raises FileNotFoundError where there is no such run, ValueError where its model would run Python files unasked."""
        if not (Path(self.run).expanduser() / "config.toml").is_file():
            raise FileNotFoundError(f"reward_model.run: {self.run!r} holds no run: give the folder that mmrl reward train wrote")
        refuse_own_code(self.run, self.trust_remote_code, f"reward_model.run: {self.run}")

    def models(self) -> Sequence[ModelSize]:
        """The model that learnt to score, by the run's own config."""
        file = Path(self.run).expanduser() / "config.toml"
        if not file.is_file():
            return []
        config = tomllib.loads(file.read_text())
        return [hub_size(config["policy"]["model"], self.device, "AutoModelForImageTextToText")]

    def held(self) -> HeldModel:
        return self._scorer.held

    def __call__(self, group: Group) -> list[float | Scored | None]:
        wanted = self.axis or self._scorer.axes[0]
        if wanted not in self._scorer.axes:
            raise ValueError(f"reward_model.axis is {wanted!r}, and {self.run} scores {', '.join(self._scorer.axes)}")
        found = self._scorer.of_group(group, self.batch_size)
        return [Scored((row.pop(wanted) - self.shift) / self.scale, row) for row in found]

    @cached_property
    def _scorer(self):
        return load_reward_model(self.run, self.step or None, self.device, self.trust_remote_code)
