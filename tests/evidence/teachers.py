"""Teachers against their twins, one seed of one comparison: `python -m tests.evidence.teachers opd --seed 0 --out FOLDER`.

A tiny Qwen3-VL finds digits. Each comparison is two or more runs at equal samples whose held-out IoU is printed at the end, and
written to FOLDER/COMPARISON-SEED.json. The model that teaches, or begins, is taught first and kept in FOLDER; a run that
is there is not repeated. `--steps` cuts every run short, to see that it works.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrl.app.commands.train import run_job
from mmrl.app.config.run import load
from mmrl.app.export.export import export
from mmrl.app.run.folder import RunDir, read_lines

STEPS = {"opd": 60, "sees_more": 40, "sdpo": 60, "srpo": 60}
TAUGHT = ("stage.0.steps=1200", "data.size=19200", "data.written=right", "policy.model=tiny:untaught_grounding")
"""How the good model is made: as the sloppy one, with right boxes, three times as long."""
GRPO = ('algorithm={preset = "grpo", group_size = 4, objective = [{kind = "Clip", high = 0.28}]}', "optimizer.lr=3e-4")
HEARS = ("optimizer.kind=muon", "optimizer.lr=3e-3")
SMALL = ("data.shown=0.5", "evaluation.data.shown=0.5", "policy.min_pixels=1024", "policy.max_pixels=4096")
HARD = ('reward=[{use = "iou"}]', "algorithm.group_size=8", "prompts_per_step=8")


def runs_of(name: str, good: str) -> Mapping[str, tuple[str, ...]]:
    """Run -> its words, over configs/tiny/grounding; the first is the method's, or several are."""
    teacher = f"policy.teachers=[{{name = 'good', model = {good!r}, dtype = 'float32'}}]"
    opd = 'algorithm={preset = "opd", group_size = 4, objective = [{kind = "FollowTeacher", %s}]}'
    if name == "opd":
        forms = {"exact, beta 1": "beta = 1.0", "exact, beta 0.5": "beta = 0.5", "sampled": 'form = "sampled", beta = 1.0'}
        return {form: (opd % words, teacher, "optimizer.lr=1e-3") for form, words in forms.items()} | {"grpo": GRPO}
    start = (*SMALL, f"policy.model={good}")
    if name == "sees_more":
        seeing = {"sees more": 'view = {media = "full"}, ', "sees the same": ""}
        told = {key: (opd % f'model = "ref", {view}beta = 0.0', *HEARS, *start) for key, view in seeing.items()}
        return told | {"grpo": (*GRPO, *start)}
    method = (f"algorithm={{preset = '{name}'}}", "optimizer.lr=1e-3", *HARD)
    twins = {"grpo": (*GRPO, *HARD)} | (
        {"sdpo": ('algorithm={preset = "sdpo"}', "optimizer.lr=1e-3", *HARD)} if name == "srpo" else {}
    )
    return {name: method, **twins}


def run(folder: Path, config: str, words: tuple[str, ...]) -> RunDir:
    """The run in this folder, made where it is not there."""
    if not (folder / "metrics.jsonl").is_file():
        run_job(load(config, [*words, f"output={str(folder)!r}"]))
    return RunDir.open(folder)


def good_model(out: Path, steps: int | None) -> str:
    """The folder of a model that finds digits well."""
    words = TAUGHT if steps is None else (f"stage.0.steps={steps}", *TAUGHT[1:])
    made, folder = run(out / "good", "tiny/hurried_boxes", words), out / "good-model"
    if not folder.is_dir():
        export(made.path, folder)
    return str(folder)


def curve(made: RunDir) -> dict[int, float]:
    """Step -> held-out IoU."""
    lines = read_lines(made.metrics_file).lines
    return {int(line["step"]): round(float(line["eval/iou"]), 3) for line in lines if "eval/iou" in line}


def compare(name: str, seed: int, out: Path, steps: int | None = None) -> dict[str, Any]:
    """The held-out curves of a comparison at one seed."""
    good, count = good_model(out, steps), steps or STEPS[name]
    common = (f"seed={seed}", f"steps={count}", f"evaluate_every={max(1, count // 4)}", "save_every=0", "prompts_per_step=16")
    common += ("evaluation.num_prompts=128", 'optimizer.lr_schedule="constant"', 'reward=[{use = "iou"}]')
    found = {
        key: curve(run(out / f"{name}-{seed}" / key.replace(" ", "-").replace(",", ""), "tiny/grounding", (*common, *words)))
        for key, words in runs_of(name, good).items()
    }
    result = {"comparison": name, "seed": seed, "steps": count, "held-out IoU": found}
    (out / f"{name}-{seed}.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("comparison", choices=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("evidence-of-teachers"))
    parser.add_argument("--steps", type=int)
    asked = parser.parse_args()
    print(json.dumps(compare(asked.comparison, asked.seed, asked.out, asked.steps), indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
