"""Teachers against their twins, one seed of one comparison: `python -m tests.evidence.teachers opd --seed 0`.

A tiny Qwen3-VL finds digits. Each comparison is several runs at equal samples whose held-out reward is printed at the end, and
written to FOLDER/COMPARISON-SEED.json. The models that teach, or begin, are taught first and kept in FOLDER; a run that
is there is not repeated. `--steps` cuts every run short, to see that it works.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mmrl.app.commands.train import run_job
from mmrl.app.config.run import load
from mmrl.app.export.export import export
from mmrl.app.run.folder import RunDir, read_lines

Compare = Callable[[str, int, Path, int | None], dict[str, Any]]
"""Comparison, seed, folder and the steps of a short one -> what is printed."""
HERE = Path(__file__).resolve().parent
STEPS = {"opd": 60, "sees_more": 40, "told": 40}
SERIES = "seed = 1000003"
TAUGHT = {
    "good": (1200, "tiny:untaught_grounding", f"use = 'digits_grounding', written = 'right', size = 19200, {SERIES}"),
    "listening": (400, "tiny:grounding", f"use = {str(HERE / 'told_digits.py')!r}, size = 6400, {SERIES}"),
}
"""Models that are made first: steps, where they begin, and what they imitate: right boxes; or what the sloppy one does, and boxes
that they are told."""
GRPO = ('algorithm={preset = "grpo", group_size = 4, objective = [{kind = "Clip", high = 0.28}]}', "optimizer.lr=3e-4")
HEARS = ("optimizer.kind=muon", "optimizer.lr=3e-3")
SMALL = ("data.shown=0.5", "evaluation.data.shown=0.5", "policy.min_pixels=1024", "policy.max_pixels=4096")
EIGHT = ("algorithm.group_size=8", "prompts_per_step=8", f"reward=[{{use = {str(HERE / 'right_box.py')!r}}}]")


def runs_of(name: str, out: Path, steps: int | None) -> Mapping[str, tuple[str, ...]]:
    """Run -> its words, over configs/tiny/grounding; the first is the method's, or several are."""
    if name == "told":
        alike = (*EIGHT, f"policy.model={made('listening', out, steps)!r}")
        view = "algorithm.objective.{}.view={{column = 'told', text = '{{text}}'}}"
        told = {one: (f"algorithm={{preset = {one!r}}}", view.format(place)) for one, place in (("sdpo", 0), ("srpo", 1))}
        return {key: (*words, "optimizer.lr=3e-4", *alike) for key, words in told.items()} | {"grpo": (*GRPO, *alike)}
    good = made("good", out, steps)
    opd = 'algorithm={preset = "opd", group_size = 4, objective = [{kind = "FollowTeacher", %s}]}'
    if name == "opd":
        teacher = f"policy.teachers=[{{name = 'good', model = {good!r}, dtype = 'float32'}}]"
        forms = {"exact, beta 1": "beta = 1.0", "exact, beta 0.5": "beta = 0.5", "sampled": 'form = "sampled", beta = 1.0'}
        return {form: (opd % words, teacher, "optimizer.lr=1e-3") for form, words in forms.items()} | {"grpo": GRPO}
    start = (*SMALL, f"policy.model={good!r}")
    seeing = {"sees more": 'view = {media = "full"}, ', "sees the same": ""}
    told = {key: (opd % f'model = "ref", {view}beta = 0.0', *HEARS, *start) for key, view in seeing.items()}
    return told | {"grpo": (*GRPO, *start)}


def run(folder: Path, config: str, words: tuple[str, ...], steps: int) -> RunDir:
    """The run in this folder after so many steps; it is begun, or goes on, where it has fewer."""
    is_there = (folder / "metrics.jsonl").is_file()
    if not is_there or max(curve(RunDir.open(folder)), default=0) < steps:
        run_job(load(config, [*words, f"output={str(folder)!r}"]), resume=folder if is_there else None)
    return RunDir.open(folder)


def made(name: str, out: Path, steps: int | None) -> str:
    """The folder of a model that is taught first."""
    count, start, data = TAUGHT[name]
    count = steps or count
    words = (f"stage.0.steps={count}", f"policy.model={start}", f"data={{{data}}}")
    taught, folder = run(out / name, "tiny/hurried_boxes", words, count), out / f"{name}-model"
    if not folder.is_dir():
        export(taught.path, folder)
    return str(folder)


def curve(run: RunDir) -> dict[int, float]:
    """Step -> held-out reward."""
    lines = read_lines(run.metrics_file).lines
    return {int(line["step"]): round(float(line["eval/total"]), 3) for line in lines if "eval/total" in line}


def reached(name: str, key: str, seed: int, out: Path, steps: int | None = None) -> dict[int, float]:
    """The held-out curve of one run of a comparison."""
    count = steps or STEPS[name]
    common = (f"seed={seed}", f"steps={count}", f"evaluate_every={count}", "save_every=0", "prompts_per_step=16")
    common += ("evaluation.num_prompts=256", 'optimizer.lr_schedule="constant"', 'reward=[{use = "iou"}]')
    folder = out / f"{name}-{seed}" / key.replace(" ", "-").replace(",", "")
    return curve(run(folder, "tiny/grounding", (*common, *runs_of(name, out, steps)[key]), count))


def compare(name: str, seed: int, out: Path, steps: int | None = None) -> dict[str, Any]:
    """The held-out curves of a comparison at one seed."""
    found = {key: reached(name, key, seed, out, steps) for key in runs_of(name, out, steps)}
    result = {"comparison": name, "seed": seed, "steps": steps or STEPS[name], "held-out reward": found}
    (out / f"{name}-{seed}.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def main(compare: Compare, choices: Iterable[str], description: str | None, out: str) -> None:
    """A comparison from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("comparison", choices=choices)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--steps", type=int)
    asked = parser.parse_args()
    print(json.dumps(compare(asked.comparison, asked.seed, asked.out.resolve(), asked.steps), indent=1))  # noqa: T201 - the command's result


if __name__ == "__main__":
    main(compare, STEPS, __doc__, "runs/teachers")
