"""A run that continues: where it started, what may have changed since, and which callbacks hear of it."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved, RunConfig, as_table, resolve
from mmrl.app.files import replace_text
from mmrl.app.run.folder import CHANGED, RunDir, append_line
from mmrl.app.toml.tables import COMMAND_LINE, KeyPath, Table, Values, dotted_key, leaves
from mmrl.training.checkpoints.save import Checkpoints

ABSENT = "(not set)"
HELD: dict[KeyPath, str] = {
    ("ahead",): "the draws of steps in flight",
    ("seed",): "the place in the order of the prompts",
    ("stage",): "the place in the chain",
    ("optimizer", "kind"): "the optimizer's memory",
    ("policy", "kind"): "weights",
    ("policy", "model"): "weights",
    ("policy", "variant"): "weights",
    ("policy", "base"): "weights",
    ("policy", "lora"): "adapters",
    ("policy", "freeze"): "the weights that train",
    ("sampler", "kind"): "the sampler's place",
    ("sampler", "use"): "the sampler's place",
}
"""Settings that a checkpoint's state means nothing without, and what it holds."""


@dataclass(frozen=True)
class ChangedSetting:
    """One setting that is another one than the run had so far."""

    path: KeyPath
    before: str
    after: str

    def __str__(self) -> str:
        return f"{dotted_key(self.path)} {self.before} -> {self.after}"


def enter(run: RunDir) -> str:
    """Go to the folder that the run was started in, which its relative paths are of; returns what there is to say about it."""
    if not run.start_file.exists():
        return ""
    start = Path(run.start_file.read_text(encoding="utf-8").strip())
    if not start.is_dir():
        return f"the run was started in {start}, which is not there: its relative paths are looked for in {Path.cwd()}"
    if start == Path.cwd():
        return ""
    os.chdir(start)
    return f"relative paths are those of {start}, where the run was started"


def refuse_other_output(resolved: Resolved, run: RunDir) -> None:
    """Raise ValueError if the command line, or a config that is not the run's own, names another folder."""
    said = resolved.table.origin(("output",))
    output = resolved.config.output
    if said is None or said == str(run.config_file) or not output or Path(output).expanduser().resolve() == run.path.resolve():
        return
    given = "--output" if said == COMMAND_LINE else f"output of {said}"
    raise ValueError(
        f"{given} is {output!r}, and --resume continues {run.path} where it lies: leave the output out; "
        "to go on elsewhere, copy the folder and resume the copy"
    )


def changed_settings(before: RunConfig, after: RunConfig) -> list[ChangedSetting]:
    """The settings that differ, in the config's order; where a run lies is none of them."""
    old, new = ({path: str(value) for path, value in leaves(as_table(config))} for config in (before, after))
    pairs = [ChangedSetting(path, old.get(path, ABSENT), new.get(path, ABSENT)) for path in dict.fromkeys([*old, *new])]
    return [pair for pair in pairs if pair.before != pair.after and pair.path != ("output",)]


def refuse_lost_state(changes: Sequence[ChangedSetting], run: RunDir) -> None:
    """Raise ValueError for changes of settings under which the state of a checkpoint means nothing."""
    for change in changes:
        key, held = dotted_key(change.path), next((what for path, what in HELD.items() if change.path[: len(path)] == path), None)
        if held is not None:
            raise ValueError(
                f"{key} is {change.after}, and {run.path} was trained with {change.before}: its checkpoints hold {held} of that; "
                f"leave {key} as it was, or start a new run without --resume"
            )


def check_resume(resolved: Resolved, run: RunDir) -> None:
    """Refuse what cannot go on, before anything is loaded: another folder, or a change that makes checkpoints meaningless."""
    refuse_other_output(resolved, run)
    if Checkpoints(run.checkpoints).newest_whole() is not None:
        named = resolved.config.sampler if resolved.config.sampler.kind or resolved.config.sampler.use else None
        before, after = saved_config(run), resolved.config
        old, new = (one.algorithm.algorithm.shadows | one.evaluation.weights_beside for one in (before, after))
        if old != new and not after.stage:
            raise ValueError(
                f"{run.path} keeps {', '.join(sorted(old)) or 'no weights'} beside the live weights, and these settings want "
                f"{', '.join(sorted(new)) or 'none'}: leave [algorithm] and evaluation.weights as they were, or start a new run "
                "without --resume"
            )
        refuse_lost_state([one for one in changed_settings(before, after) if one.path[0] != "sampler" or named is not None], run)


def saved_config(run: RunDir) -> RunConfig:
    """The settings that the run has had so far; ValueError if its config.toml is damaged."""
    return configs.load(str(run.config_file)).config


def is_finished(resolved: Resolved, run: RunDir) -> str:
    """A sentence where the run has no step left to take; else empty."""
    step = Checkpoints(run.checkpoints).newest_whole()
    if step is None or step < resolved.config.steps:
        return ""
    if step > resolved.config.steps:
        wanted = saved_config(run).steps
        to_end = (
            f"leave steps out to go on to {wanted}" if wanted > step else f"resume it with steps={2 * step} or so to train on"
        )
        return f"steps is {resolved.config.steps}, and {run.path} has taken {step} already, so there is nothing to do: {to_end}"
    if resolved.config.stage:
        return f"{run.path} is finished, with step {step} of its last stage as its last"
    return f"{run.path} is finished, with step {step} as its last; to train on, resume it with steps={2 * max(step, 1)} or so"


def note_changes(run: RunDir, step: int, changes: Sequence[ChangedSetting]) -> None:
    """Write down what is another from the step after `step` on, in changes.jsonl and among the metrics."""
    for one in changes:
        append_line(run.changes_file, {"step": step, "key": dotted_key(one.path), "before": one.before, "after": one.after})
    if changes:
        run.append(step, {CHANGED: float(len(changes))})


NOBODY = ("default", "preset ", "as policy.")
"""Prefixes of the origins of settings that the user did not give."""
NAMES = ("use", "name", "sources")
"""What stays of a reward's table: the rest of it is settings."""


@dataclass(frozen=True)
class SettingChange:
    """`SettingChange("optimizer.lr", "1e-05", "1e-06", "command line")`."""

    key: str
    value: str
    usual: str
    """The preset's or the default value; empty where there is none."""
    origin: str
    """Who said it: a file, a task, or the command line."""


def choices(resolved: Resolved) -> list[SettingChange]:
    """The settings that differ from the preset and the defaults, in the config's order; where a run lies is none of them."""
    try:
        usual = {path: str(value) for path, value in leaves(as_table(bare(resolved).config))}
    except ValueError:
        usual = dict[KeyPath, str]()  # preset and defaults alone make no run
    found: list[SettingChange] = []
    for path, value in leaves(as_table(resolved.config)):
        origin, before = resolved.origin(path), usual.get(path, "")
        if path != ("output",) and not origin.startswith(NOBODY) and before != str(value):
            found.append(SettingChange(dotted_key(path), str(value), before, origin))
    return found


def bare(resolved: Resolved) -> Resolved:
    """The run with its preset, model, data and rewards, and nothing else said."""
    given = resolved.table.values
    policy: Values = given.get("policy", {})
    rewards: Sequence[Values] = given.get("reward", [])
    kept: Values = {
        "algorithm": {"preset": resolved.config.algorithm.preset},
        "policy": {name: policy[name] for name in ("kind", "model", "family") if name in policy},
        "data": given.get("data", {}),
        "reward": [{name: one[name] for name in NAMES if name in one} for one in rewards],
    }
    return resolve(Table.of(kept, "the preset and the defaults"), name=resolved.name)


def write_choices(run: RunDir, resolved: Resolved) -> None:
    """Keep what was chosen in the run's folder."""
    replace_text(run.settings_file, json.dumps([asdict(one) for one in choices(resolved)], indent=1) + "\n")


def read_choices(run: RunDir) -> list[SettingChange]:
    """The choices that were kept; none in runs of earlier versions."""
    if not run.settings_file.is_file():
        return []
    return [SettingChange(**one) for one in json.loads(run.settings_file.read_text(encoding="utf-8"))]
