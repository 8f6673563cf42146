"""`mmrl.fit` and `mmrl.evaluate`: commands for the objects of a Python program, and what they return; plug-ins as objects."""

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from mmrl.app.api.inputs import (
    AlgorithmInput,
    Lent,
    PolicyInput,
    PromptsInput,
    RewardInput,
    kind_for,
    kind_of_model,
    merge,
    policy_table,
)
from mmrl.app.api.notebook import NotebookProgress, in_notebook
from mmrl.app.chain.rows import rows_before
from mmrl.app.commands.train import run_job
from mmrl.app.config.plug_ins import read_data, reward_of
from mmrl.app.config.run import DataConfig, Resolved, RunConfig, resolve
from mmrl.app.config.stages import stages_of
from mmrl.app.plugins.resolve import offer
from mmrl.app.report.data import PairedChange, changes, load
from mmrl.app.run.build import build, load_prompts, on_the_terminal
from mmrl.app.run.context import distributed_run
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import ask, load_state, prepare
from mmrl.app.toml.tables import Table, Values
from mmrl.core.protocols import Policy
from mmrl.core.samples import Prompt
from mmrl.runtime.repeating import deterministic
from mmrl.training.callbacks import Callback, Examples


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
    if isinstance(rewards, str):
        raise ValueError('rewards is a list: rewards=["iou"], rewards=[function]')
    if resume and output is None:
        raise ValueError("resume=True needs output: the folder of the run to go on with")
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
    resolved = resolve(Table.of(values, "mmrl.fit"), name="fit")
    folder = RunDir(Path(output).expanduser()) if resume and output is not None else None
    with offer(lent.objects):
        resumed = folder.path if folder and folder.exists() else None
        run, job = run_job(resolved, resumed, watchers=lambda config: [*watchers(config), *callbacks])
        if job is None:
            return Run(run.path, finished_policy(resolved, run), is_finished=True)
    return Run(run.path, job.policy, not job.trainer.is_stopped)


def watchers(config: RunConfig) -> Sequence[Callback]:
    """The progress that a cell of a notebook, or the terminal, shows."""
    return [NotebookProgress(config.steps, denoises=config.modality.name == "flow")] if in_notebook() else on_the_terminal(config)


def finished_policy(resolved: Resolved, run: RunDir) -> Policy:
    """The policy of a run that was finished before, with its newest weights, its views and its worlds."""
    last = stages_of(resolved)[-1]
    with rows_before(last, run):
        policy = build(last.resolved).policy
    policy.load_state_dict(load_state(run)["policy"])
    return policy


def refuse_second_reading() -> None:
    """Raise RuntimeError in a process that was started for samplers or rewards and is importing the program to begin."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "processes for samplers and rewards read this program again when they start, and it calls mmrl.fit outside of "
            '`if __name__ == "__main__":`: put the call under that line'
        )


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
        resolved = resolve(Table.of(values, "mmrl.evaluate"), name="evaluate")
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


def load_data(use: str, **settings: object) -> Sequence[Prompt] | Iterable[Prompt]:
    """The prompts of a data set, checked for rows that cannot be trained on: `mmrl.load_data("prompts", path="a.txt")`.

    Args:
        use: a name from `mmrl ls datasets`, or `./mine.py[:function]`.
        settings: arguments of its `load`; `mmrl show NAME` lists them.

    Raises:
        FileNotFoundError: no such plug-in file, or no data.
        ValueError: a setting that it does not know, or prompts that cannot be trained on, listed by file and row.
    """
    table = Table.of({"data": {"use": use, **settings}}, "mmrl.load_data")
    return load_prompts(read_data(DataConfig(use, settings), ("data",), table), use)


def load_reward(use: str, **settings: object) -> Callable[..., Any]:
    """A reward as a function from a group to one score per sample: `mmrl.load_reward("iou", threshold=0.5)`.

    A reward that reads boxes and has no `space` set gets it from the policy, in `mmrl.fit` and `mmrl.evaluate` only.

    Args:
        use: a name from `mmrl ls rewards`, `./mine.py[:Callable]`, or the address of a served reward.
        settings: its own settings; `mmrl show NAME` lists them.

    Raises:
        FileNotFoundError: no such plug-in file.
        ValueError: no such reward, or a setting that it does not know.
    """
    table = Table.of({"reward": {"use": use, **settings}}, "mmrl.load_reward")
    return reward_of(use, settings, ("reward",), table)()
