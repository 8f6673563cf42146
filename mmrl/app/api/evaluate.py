"""`mmrl.evaluate`: evaluate an untrained model, or a run's newest checkpoint, on prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mmrl.app.api.fit import Run
from mmrl.app.api.inputs import Lent, PolicyInput, PromptsInput, RewardInput, kind_of_model, merge, policy_table
from mmrl.app.config.run import resolve
from mmrl.app.plugins.python_objects import offer
from mmrl.app.run.context import distributed_run
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import ask, prepare
from mmrl.app.toml.tables import Table, Values
from mmrl.runtime.repeating import deterministic
from mmrl.training.callbacks import Examples

SOURCE = "mmrl.evaluate"


@dataclass(frozen=True)
class Evaluation:
    """The result of `mmrl.evaluate`."""

    metrics: Mapping[str, float]
    """`eval/total`, `eval/<reward>`, `eval/<reward>/<part>`, ...: means over prompts."""
    examples: Examples
    """All samples with their scores."""

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{value:.4f}</td></tr>" for name, value in self.metrics.items())
        return f"<table>{rows}</table>"


def evaluate(
    policy: PolicyInput | Run, *, prompts: PromptsInput, rewards: Sequence[RewardInput], **settings: object
) -> Evaluation:
    """Sample answers to prompts and score them; greedily for text, deterministically for pictures, unless settings say otherwise.

    `mmrl.evaluate("runs/fit", prompts=held_out, rewards=["iou"], num_samples=4)`

    Args:
        policy: as in `mmrl.fit`, or the run that it returned, or a run's folder: its newest complete checkpoint and `[policy]`.
        prompts: as in `mmrl.fit`; all of them are used unless `num_prompts` is set.
        rewards: as in `mmrl.fit`.
        settings: keys of `[evaluation]`: `num_prompts`, `num_samples`, `seed`, `sampling`, `num_steps`, `guidance`, ...

    Raises:
        FileNotFoundError: a model, plug-in or data file is missing.
        TypeError: an argument has a type that is not listed.
        ValueError: the settings do not fit together, or the run has no complete checkpoint.
    """
    lent, run = Lent(), run_of(policy)
    if run is not None:
        values: Values = {key: value for key, value in Table.read(run.config_file).values.items() if key != "evaluation"}
    else:
        assert not isinstance(policy, Run)
        table = policy_table(policy, kind_of_model(policy))
        values = {"policy": table, "algorithm": {"preset": "cps" if table["kind"] == "flow" else "dr_grpo"}}
    data = lent.data(prompts, "prompts")
    values |= {"data": data, "reward": [lent.reward(reward) for reward in rewards]}
    values["evaluation"] = merge({"data": data, "num_prompts": 2**31}, settings)
    with offer(lent.objects):
        resolved = resolve(Table.of(values, SOURCE), name="evaluate")
        with deterministic(resolved.config.deterministic), distributed_run() as (accelerator, ranks):
            asked = ask(resolved, ranks, run)
            return Evaluation(*prepare(asked, ranks, accelerator).evaluator.run(asked.step))


def run_of(policy: object) -> RunDir | None:
    """The run that is meant, if one is."""
    folder = policy.folder if isinstance(policy, Run) else policy
    if not isinstance(folder, str | Path):
        return None
    run = RunDir(Path(folder).expanduser())
    return run if run.config_file.is_file() else None
