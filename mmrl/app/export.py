"""The trained model of a run as a folder that its own library loads, with processor and model card."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmrl.app import config as configs
from mmrl.app import plugins
from mmrl.app.build import TINY, build_policy, with_local_model
from mmrl.app.config import RunConfig
from mmrl.app.report import number, signed
from mmrl.app.report_data import RunData, changes, load
from mmrl.training.checkpoint import Checkpoints

ADAPTER = "adapter_config.json"
"""What peft writes beside an adapter, and transformers does not."""


def export(run: Path, out: Path, merge: bool = False, step: int | None = None) -> Path:
    """Write the policy of checkpoint `step` (default: the newest whole one) to `out` and return it.

    All weights trained: a model folder for AutoModelForImageTextToText. LoRA: an adapter folder for peft, or with `merge`
    a model folder that holds the sum. Nothing is left behind when it fails.

    Raises:
        FileNotFoundError: `run` holds no run, or its base model is gone.
        ValueError: `out` is not empty, there is no such checkpoint, or nothing to merge.
    """
    data = load(run)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not empty: give a new folder to export to")
    config = configs.load(str(data.run.config_file)).config
    if merge and config.policy.lora is None:
        raise ValueError(f"{data.run.path} trained the model's own weights, so there is no adapter to merge: leave out --merge")
    state = Checkpoints(data.run.checkpoints).load(step)
    policy_config = with_local_model(config).policy
    policy = build_policy(policy_config, frozenset(state["policy"]["shadows"]))
    policy.load_state_dict(state["policy"])
    with whole_or_absent(out) as folder:
        policy.save(folder)
        if merge:
            merge_adapter(folder, policy_config.model)
        (folder / "README.md").write_text(
            model_card(data, config, int(state["index"]), (folder / ADAPTER).exists()), encoding="utf-8"
        )
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


def merge_adapter(folder: Path, base: str) -> None:
    """Replace the adapter in `folder` by the base model with the adapter added; the sum is taken in float32."""
    import torch
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForImageTextToText

    stored = AutoConfig.from_pretrained(base).dtype or torch.float32
    model: Any = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    merged = PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    for file in (*folder.glob("adapter_*"), folder / "README.md"):
        file.unlink(missing_ok=True)
    merged.to(stored).save_pretrained(folder)


def model_card(data: RunData, config: RunConfig, step: int, adapter: bool) -> str:
    """README.md: what was trained how, on what, with which result, and how to load it."""
    base, label = config.policy.model, config.algorithm.label
    on_hub = base.count("/") == 1 and not base.startswith((".", "/", "~")) and not Path(base).exists()
    shown = base if on_hub or base.startswith(TINY) else Path(base).name
    rewards = [f"{reward.name or plugins.default_name(reward.use)} (weight {reward.weight:g})" for reward in config.reward]
    front = [f"library_name: {'peft' if adapter else 'transformers'}", *([f"base_model: {base}"] if on_hub else [])]
    lines = [
        "---",
        *front,
        "pipeline_tag: image-text-to-text",
        "tags: [mmrl, reinforcement-learning]",
        "---",
        "",
        f"# {shown.rpartition('/')[2]} after {label}",
        "",
        f"- method: {label}, step {step} of {config.steps}, {config.prompts_per_step} prompts a step",
        f"- rewards: {', '.join(rewards)}",
        f"- data: {config.data.use}",
        f"- base model: {shown}",
        f"- weights: {'a LoRA adapter for peft' if adapter else 'merged LoRA' if config.policy.lora else 'all trained'}",
        f"- mmrl {data.versions.get('mmrl', 'unknown')}, transformers {data.versions.get('transformers', 'unknown')}",
        "",
        "## Results",
        "",
        *results(data, step),
        "",
        "## Load it",
        "",
        *(
            ["This needs the base model and `pip install peft`; to run without either, export with --merge.", ""]
            if adapter
            else []
        ),
        "```python",
        "from transformers import AutoModelForImageTextToText, AutoProcessor",
        "",
        'model = AutoModelForImageTextToText.from_pretrained("THIS_FOLDER")',
        'processor = AutoProcessor.from_pretrained("THIS_FOLDER")',
        "```",
    ]
    return "\n".join(lines) + "\n"


def results(data: RunData, step: int) -> list[str]:
    """The held-out figures of the run as a table, if they belong to this checkpoint."""
    found = changes(data)
    if not found or data.after[0].line["step"] != step:
        return ["Held-out prompts were not evaluated both before training and at this step."]
    numbers = [
        (c.name, number(c.before), number(c.after), signed(c.difference), f"{signed(c.low)} to {signed(c.high)}") for c in found
    ]
    return [
        f"On {found[0].num_prompts} held-out prompts; shares are written as fractions.",
        "",
        "| held out | before | after | change | 95 % interval |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in numbers),
    ]
