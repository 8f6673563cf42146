"""The trained model of a run as a folder that its own library loads, with processor and model card."""

import gc
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mmrl.app.config import run as configs
from mmrl.app.config.run import RunConfig
from mmrl.app.modality.registry import modality_of
from mmrl.app.report.data import RunData, changes, load
from mmrl.app.report.words import number, signed
from mmrl.app.run.build import TINY, build_policy, with_local_model
from mmrl.training.checkpoint import Checkpoints
from mmrl.training.evaluate import Weights


def export(run: Path, out: Path, merge: bool = False, step: int | None = None, weights: Weights = "live") -> Path:
    """Write the policy of checkpoint `step` (default: the newest whole one) to `out` and return it.

    All weights trained: a model folder for AutoModelForImageTextToText or DiffusionPipeline. LoRA: an adapter folder for peft
    or load_lora_weights, or with `merge` a model folder that holds the sum. `weights` = ema writes the average that the run kept
    of them. Nothing is left behind when it fails.

    Raises:
        FileNotFoundError: `run` holds no run, or its base model is gone.
        ValueError: `out` is not empty, there is no such checkpoint, no average, or nothing to merge.
    """
    data = load(run)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not empty: give a new folder to export to")
    config = configs.load(str(data.run.config_file)).config
    if merge and config.policy.lora is None:
        raise ValueError(f"{data.run.path} trained the model's own weights, so there is no adapter to merge: leave out --merge")
    state = Checkpoints(data.run.checkpoints).load(step)
    state = {name: state[name] for name in ("policy", "index")}
    if weights == "ema":
        if "ema" not in state["policy"]["shadows"]:
            raise ValueError(
                f"{data.run.path} kept no average of its weights: export the live ones, or train with evaluation.weights = 'ema' "
                "or an algorithm that keeps one"
            )
        state["policy"]["weights"] = state["policy"]["shadows"]["ema"]
    policy_config = with_local_model(config).policy
    policy = build_policy(policy_config, frozenset(state["policy"]["shadows"]))
    policy.load_state_dict(state["policy"])
    with whole_or_absent(out) as folder:
        policy.save(folder)
        is_adapter = config.policy.lora is not None and not merge
        modality = modality_of(policy_config)
        snippet = modality.snippet(policy, shown_name(config.policy.model), is_adapter)
        card = model_card(data, config, int(state["index"]), is_adapter, snippet, weights, modality.task(policy))
        if merge:
            # The policy's parts know each other, so its memory goes back only when cycles are looked for.
            del policy, state
            gc.collect()
            modality.merge(folder, policy_config)
        (folder / "README.md").write_text(card, encoding="utf-8")
    return out


@contextmanager
def whole_or_absent(out: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `out` when all went well and vanishes otherwise."""
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if out.exists():
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def is_on_hub(model: str) -> bool:
    return model.count("/") == 1 and not model.startswith((".", "/", "~")) and not Path(model).exists()


def shown_name(model: str) -> str:
    """A name for readers elsewhere: of a folder its last part."""
    return model if is_on_hub(model) or model.startswith(TINY) else Path(model).name


def model_card(
    data: RunData, config: RunConfig, step: int, adapter: bool, snippet: Sequence[str], weights: Weights, task: str
) -> str:
    """README.md: what was trained how, on what, with which result, and how to load it."""
    base, label, loading = config.policy.model, config.algorithm.label, modality_of(config.policy).loading
    shown = shown_name(base)
    rewards = [f"{reward.label} (weight {reward.weight:g})" for reward in config.reward]
    library = loading.adapter_library if adapter else loading.library
    front = [f"library_name: {library}", *([f"base_model: {base}"] if is_on_hub(base) else [])]
    lines = [
        "---",
        *front,
        f"pipeline_tag: {task}",
        "tags: [mmrl, reinforcement-learning]",
        "---",
        "",
        f"# {shown.rpartition('/')[2]} after {label}",
        "",
        f"- method: {label}, step {step} of {config.steps}, {config.prompts_per_step} prompts a step",
        f"- rewards: {', '.join(rewards)}",
        f"- data: {config.data.use}",
        f"- base model: {shown}",
        f"- weights: {f'a LoRA adapter for {library}' if adapter else 'merged LoRA' if config.policy.lora else 'all trained'}"
        + (", averaged over training (ema)" if weights == "ema" else ""),
        f"- mmrl {data.versions.get('mmrl', 'unknown')}, {loading.library} {data.versions.get(loading.library, 'unknown')}",
        "",
        "## Results",
        "",
        *results(data, step),
        *([] if weights == config.evaluation.weights else ["", f"The {config.evaluation.weights} weights were evaluated."]),
        "",
        "## Load it",
        "",
        *([loading.adapter_note, ""] if adapter else []),
        "```python",
        *snippet,
        "```",
    ]
    return "\n".join(lines) + "\n"


def results(data: RunData, step: int) -> list[str]:
    """The held-out figures of the run as a table, if they belong to this checkpoint."""
    found = changes(data)
    if not found or data.after[0].line["step"] != step:
        return ["Held-out prompts were not evaluated both before training and at this step."]
    intervals = [f"{signed(c.low)} to {signed(c.high)}" if c.has_interval else "too few prompts" for c in found]
    numbers = [
        (c.name, number(c.before), number(c.after), signed(c.difference), interval)
        for c, interval in zip(found, intervals, strict=True)
    ]
    return [
        f"On {found[0].num_prompts} held-out prompts; shares are written as fractions.",
        "",
        "| held out | before | after | change | 95 % interval |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in numbers),
    ]
