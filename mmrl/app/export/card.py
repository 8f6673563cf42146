"""The model card of an export: what was trained how, with which result, how to load it, and how to have its numbers again."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrl.app.config.run import RunConfig, as_table
from mmrl.app.errors import printable
from mmrl.app.modality.base import ExportKind
from mmrl.app.modality.templates import Facts, template_line
from mmrl.app.plugins.lab import TINY
from mmrl.app.plugins.resolve import is_of_python
from mmrl.app.report.data import EVAL, RunData, read_rows
from mmrl.app.report.figures import Estimate, PairedChange, estimates, paired_changes
from mmrl.app.report.rows import SampleLine, Task, by_task
from mmrl.app.report.words import number, signed
from mmrl.training.evaluate import Weights

CONFIG = "run.toml"
"""The run's config, in the exported folder."""
TOO_FEW = "too few prompts"
MOST_PICTURES, PICTURES = 4, "samples"
"""How many held-out pictures of the run a card shows, and their folder."""
ON_ORIGINAL = (
    "LoRA that was trained beside weights in 4 bits, merged onto the original ones: answers differ from those of training, and "
    "no figure here was measured with these weights"
)
HOW = "shares are written as fractions. Intervals: 95 % over prompts, Wilson's for shares, by bootstrap else."


@dataclass(frozen=True)
class Exported:
    """The facts of an export that its card tells."""

    data: RunData
    config: RunConfig
    step: int
    kind: ExportKind
    weights: Weights
    task: str
    """The hub's pipeline_tag."""
    facts: Facts
    """Those of prompt_template.json."""
    snippet: Sequence[str]
    """Python that loads the folder."""
    again: Sequence[str]
    """How a held-out prompt is answered again without mmrl."""


def is_on_hub(model: str) -> bool:
    return model.count("/") == 1 and not model.startswith((".", "/", "~")) and not Path(model).exists()


def shown_name(model: str) -> str:
    """A name for readers elsewhere: of a folder its last part."""
    return model if is_on_hub(model) or model.startswith(TINY) else Path(model).name


def model_card(exported: Exported) -> str:
    """README.md of an exported folder."""
    one, config = exported, exported.config
    is_adapter, label = one.kind == "adapter", config.algorithm.label
    modality = config.modality
    shown = shown_name(config.policy.model)
    library = modality.adapter_library if is_adapter else modality.library
    held = {"adapter": f"a LoRA adapter for {library}", "merged": "merged LoRA", "whole": "all trained"}
    rewards = [f"{reward.label} (weight {reward.weight:g})" for reward in config.reward]
    versions, evaluated = one.data.versions, config.evaluation.weights
    lines = [
        *front_matter(config, library, one.task),
        f"# {shown.rpartition('/')[2]} after {label}",
        "",
        f"- method: {label}, step {one.step} of {config.steps}, {config.prompts_per_step} prompts a step",
        f"- rewards: {', '.join(rewards)}",
        f"- data: {config.data.use}",
        f"- base model: {shown}",
        f"- weights: {held.get(one.kind, ON_ORIGINAL)}{', averaged over training (ema)' if one.weights == 'ema' else ''}",
        f"- {template_line(one.facts)}",
        f"- evaluated with: {evaluation_words(config, one.facts)}",
        f"- mmrl {versions.get('mmrl', 'unknown')}, {modality.library} {versions.get(modality.library, 'unknown')}",
        "",
        "## Results",
        "",
        *results(one.data, one.step),
        *([] if one.weights == evaluated else ["", f"The {evaluated} weights were evaluated."]),
        "",
        *numbers_again(one),
        "",
        "## Load it",
        "",
        *([modality.adapter_note, ""] if is_adapter else []),
        "```python",
        *one.snippet,
        "```",
        "",
        f"## {'Draw' if one.facts.get('noise') else 'Write'} what the evaluation did",
        "",
        *one.again,
    ]
    return "\n".join(lines) + "\n"


def front_matter(config: RunConfig, library: str, task: str) -> list[str]:
    """The lines that the hub reads."""
    base = config.policy.model
    named = [f"base_model: {base}"] if is_on_hub(base) else []
    tags = "tags: [mmrl, reinforcement-learning]"
    return ["---", f"library_name: {library}", *named, f"pipeline_tag: {task}", tags, "---", ""]


def evaluation_words(config: RunConfig, facts: Facts) -> str:
    """How held-out prompts were answered, in a line."""
    evaluation, sampling = config.evaluation, facts.get("evaluation_sampling")
    drawn = f"{evaluation.num_samples} {'sample' if evaluation.num_samples == 1 else 'samples'} of a prompt"
    seed = f"seed {evaluation.seed}"
    if isinstance(sampling, Mapping):
        how = "greedily" if not sampling["temperature"] else f"temperature {sampling['temperature']:g}"
        return f"{how}, at most {sampling['max_new_tokens']} tokens, {drawn}, {seed}"
    if "seconds" in facts:
        size = f"{facts['seconds']:g} s"
    else:
        size = f"{facts['width']} x {facts['height']} pixels" + (f", {facts['frames']} frames" if facts["frames"] != 1 else "")
    return (
        f"{facts['num_steps']} Euler steps, guidance {facts['guidance']:g}, {size}, {drawn}, {seed}, {evaluation.weights} weights"
    )


def numbers_again(one: Exported) -> Iterator[str]:
    """The command that measures the folder, or the run's checkpoint, again."""
    if one.config.evaluation.data is None or is_of_python(as_table(one.config)):
        yield "The run's held-out prompts have no name in a file, so that no command measures this again."
        return
    where = "policy.lora.adapter" if one.kind == "adapter" else "policy.model"
    yield "Measure it again:"
    yield from ("", "```sh", f"mmrl eval {CONFIG} {where}=THIS_FOLDER", "```", "")
    yield f"`{CONFIG}` is the run's config; it names files and folders by their last part, so say where yours lie."


def results(data: RunData, step: int) -> list[str]:
    """The held-out figures before training and at this step as a table, each with its interval."""
    after = by_task(read_rows(data.run, EVAL, [step], data.box_space)) if step in data.run.sample_steps(EVAL) else {}
    before = by_task(data.before) if data.before and data.before[0].line["step"] != step else {}
    if not after:
        return ["Held-out prompts were not evaluated at this step."]
    if not before:
        return ["Held-out prompts were not evaluated before training, so there is nothing to compare with.", "", *alone(after)]
    shared = {prompt: rows for prompt, rows in after.items() if prompt in before}
    now = estimates(shared)
    found = [change for change in paired_changes(before, shared) if change.name in now]
    if not found:
        other = "Before training other held-out prompts or rewards were evaluated, so there is nothing to compare with."
        return [other, "", *alone(after)]
    return [
        f"On {found[0].num_prompts} held-out prompts; {HOW}",
        "",
        "| held out | before | after | interval | change | interval of the change |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(cells(change, now[change.name]))} |" for change in found),
    ]


def cells(change: PairedChange, now: Estimate) -> tuple[str, ...]:
    moved = f"{signed(change.low)} to {signed(change.high)}" if change.has_interval else TOO_FEW
    return change.name, number(change.before), number(change.after), interval(now), signed(change.difference), moved


def alone(after: Mapping[Task, Sequence[SampleLine]]) -> list[str]:
    """The figures of one evaluation."""
    return [
        f"On {len(after)} held-out prompts; {HOW}",
        "",
        "| held out | mean | interval |",
        "|---|---|---|",
        *(f"| {name} | {number(one.mean)} | {interval(one)} |" for name, one in estimates(after).items()),
    ]


def interval(one: Estimate) -> str:
    return f"{number(one.low)} to {number(one.high)}" if one.has_interval else TOO_FEW


def pictures(data: RunData, step: int, folder: Path) -> Iterator[str]:
    """Copy the first picture of each of the first held-out prompts at this step to `folder`, and yield the lines that show them:
    what it drew, not the best of it.

    Nothing for models that write, or where held-out prompts were not evaluated at this step.
    """
    if step not in data.run.sample_steps(EVAL):
        return
    rows = [rows[0] for rows in by_task(read_rows(data.run, EVAL, [step], data.box_space)).values()]
    drawn = [row for row in rows if row.line["image"] is not None][:MOST_PICTURES]
    if drawn:
        yield from (
            "",
            "## Pictures",
            "",
            f"The first {len(drawn)} held-out prompts at step {step}, the first picture of each:",
            "",
        )
        (folder / PICTURES).mkdir(exist_ok=True)
    for i, row in enumerate(drawn):
        source = data.run.media / Path(row.line["image"]["file"]).name
        name = f"{PICTURES}/{i}{source.suffix}"
        shutil.copyfile(source, folder / name)
        text = (f"    {printable(line)}" for line in row.line["text"].splitlines())
        yield from (f"![Picture {i + 1}]({name})", "", *text, "")
