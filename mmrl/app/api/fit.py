"""`mmrl.fit`: what `mmrl train` does, for the objects of a Python program; and the run that it returns."""

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mmrl.app.api.inputs import (
    AlgorithmInput,
    Lent,
    PolicyInput,
    PromptsInput,
    RewardInput,
    kind_for,
    merge,
    policy_table,
)
from mmrl.app.api.notebook import NotebookProgress, in_notebook
from mmrl.app.chain.rows import rows_before
from mmrl.app.commands.train import run_job
from mmrl.app.config.run import Resolved, RunConfig, resolve
from mmrl.app.config.stages import stages_of
from mmrl.app.plugins.python_objects import offer
from mmrl.app.report.data import PairedChange, changes, load
from mmrl.app.run.build import build, on_the_terminal
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import load_state
from mmrl.app.toml.tables import Table
from mmrl.core.protocols import Policy
from mmrl.training.callbacks import Callback


@dataclass(frozen=True)
class Run:
    """The result of `mmrl.fit`. `mmrl report`, `compare`, `export` and `sample` take its folder."""

    folder: Path
    policy: Policy
    """The policy with the trained weights."""
    is_finished: bool
    """False: it was stopped and saved, and `resume=True` continues it."""

    @property
    def metrics(self) -> Sequence[Mapping[str, int | float]]:
        """The metrics of every step and evaluation, in order; `step` is among them."""
        return RunDir(self.folder).read_metrics().lines

    @property
    def changes(self) -> Sequence[PairedChange]:
        """Held-out figures before and after, with their uncertainty; empty without two evaluations."""
        return changes(load(self.folder))

    @property
    def report(self) -> Path:
        """The run's page; it exists where the extra `report` is installed."""
        return RunDir(self.folder).report_file

    def _repr_html_(self) -> str:
        """Curves and figures, for notebooks."""
        from mmrl.app.api.notebook import figures_html

        state = "finished" if self.is_finished else "stopped and saved; go on with resume=True"
        return f"<p><code>{escape(str(self.folder))}</code>: {state}</p>{figures_html(self.folder)}"


SOURCE = "mmrl.fit"
"""The origin of such a run's values, in errors and in `mmrl show`."""


def fit(
    policy: PolicyInput,
    algorithm: AlgorithmInput = "grpo",
    *,
    rewards: Sequence[RewardInput],
    prompts: PromptsInput,
    held_out: PromptsInput | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    **settings: object,
) -> Run:
    """Train a model with rewards: the same run as `mmrl train` with the same settings, with the same folder and report.

    `mmrl.fit("Qwen/Qwen2.5-VL-3B-Instruct", "dapo", rewards=["iou", short], prompts=prompts, steps=200)`

    Args:
        policy: a model's folder or name, `tiny:<family>`, a `[policy]` table, or its settings as an object.
        algorithm: a preset (`mmrl ls algorithms`), an `[algorithm]` table, or an `mmrl.Algorithm`.
        rewards: functions from a group to one number per sample, names, or `[[reward]]` tables; [] where stages only teach.
        prompts: what to train on: `mmrl.Prompt`s, texts, the name of a data set, or a `[data]` table.
        held_out: what to evaluate on before, after and every `evaluate_every` steps; None: no evaluation.
        output: the run's folder; None: the next free one of runs/fit.
        resume: continue from the last complete checkpoint in `output`, if there is one. Pass functions and prompts again.
        callbacks: called after steps, evaluations and checkpoints, on the main process.
        settings: any other key of a config: `steps=200`, `prompts_per_step=16`, `optimizer={"lr": 1e-5}`, ...

    Returns when the run is finished, or when SIGTERM or Ctrl-C has stopped and saved it; then `is_finished` is False.

    Raises:
        FileNotFoundError: a model, plug-in or data file is missing.
        TypeError: an argument has a type that is not listed above.
        ValueError: the settings do not fit together, the folder already has a run, or training cannot continue.
        RuntimeError: a process that the run started reads the program again and comes to this call.
    """
    refuse_second_reading()
    check_inputs(rewards, resume, output)
    lent = Lent()
    values = {
        "algorithm": lent.algorithm(algorithm),
        "policy": policy_table(policy, kind_for(algorithm)),
        "data": lent.data(prompts, "prompts"),
        "reward": [lent.reward(reward) for reward in rewards],
    }
    if held_out is not None:
        values["evaluation"] = {"data": lent.data(held_out, "held_out")}
    values = merge(values, settings) | ({} if output is None else {"output": str(output)})
    resolved = resolve(Table.of(values, SOURCE), name="fit")
    folder = RunDir(Path(output).expanduser()) if resume and output is not None else None

    def watchers(config: RunConfig) -> Sequence[Callback]:
        in_cell = [NotebookProgress(config.steps, denoises=config.modality.name == "flow")] if in_notebook() else ()
        return [*(in_cell or on_the_terminal(config)), *callbacks]

    with offer(lent.objects):
        resumed = folder.path if folder and folder.exists() else None
        run, job = run_job(resolved, resumed, watchers=watchers)
        if job is None:
            return Run(run.path, finished_policy(resolved, run), is_finished=True)
    return Run(run.path, job.policy, not job.trainer.is_stopped)


def finished_policy(resolved: Resolved, run: RunDir) -> Policy:
    """The policy of a run that was finished before, with its newest weights, its views and its worlds."""
    last = stages_of(resolved)[-1]
    with rows_before(last, run):
        policy = build(last.resolved).policy
    policy.load_state_dict(load_state(run)["policy"])
    return policy


def check_inputs(rewards: Sequence[RewardInput], resume: bool, output: str | Path | None) -> None:
    if isinstance(rewards, str):
        raise ValueError('rewards is a list: rewards=["iou"], rewards=[function]')
    if resume and output is None:
        raise ValueError("resume=True needs output: the folder of the run to go on with")


def refuse_second_reading() -> None:
    """Raise RuntimeError in a process that was started for samplers or rewards and is importing the program to begin."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "processes for samplers and rewards read this program again when they start, and it calls mmrl.fit outside of "
            '`if __name__ == "__main__":`: put the call under that line'
        )
