"""A demo's claim on several seeds: held-out figures before and after reinforcement, and the seconds of both parts.

    python benchmarks/demo_evidence.py grounding --seeds 0 1 2
    python benchmarks/demo_evidence.py t2i --seeds 0 1 2 --no-cache

Every seed has its own imitation, data and training. Both models are judged on what nothing was chosen on (`--fresh`): held-out
scenes of another series, or held-out captions from other noise. The tables printed here stand in docs/measurements.md.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mmrl.app.config import run as configs
from mmrl.app.run.build import build
from mmrl.app.run.context import distributed_run
from mmrl.app.run.folder import RunDir
from mmrl.lab import demos as demo
from mmrl.lab.models import teach
from mmrl.lab.tiny.taught import BOXES
from mmrl.training.checkpoints.save import Checkpoints

Control = Callable[[int, int, Path], Path]


def longer_imitation(seed: int, steps: int, folder: Path) -> Path:
    """The grounding demo's model after so many steps of imitation."""
    words = [*BOXES.words(seed, False), f"stage.0.steps={steps}", f"policy.model={str(BOXES.build(folder, seed))!r}"]
    teach(configs.load(BOXES.config, words), folder, None)
    return folder


@dataclass(frozen=True)
class Evidence:
    """The measurements of a demo."""

    figures: Mapping[str, str]
    """Title -> metric."""
    fresh: tuple[str, ...]
    """Overrides of the evaluation, with {series} and {size} in them."""
    size: int
    """Held-out scenes, or pictures per caption."""
    control: Control | None = None
    unheard: tuple[str, ...] = ()
    """Overrides of an evaluation in which the model does not hear what it is asked about: what it scores then is guessing."""


EVIDENCE = {
    "grounding": Evidence(
        {"mean IoU": "eval/iou", "hits": "eval/iou/hit", "Acc@0.5": "eval/iou/acc50"},
        ("evaluation.data.seed={series}", "evaluation.data.size={size}", "evaluation.num_prompts={size}"),
        512,
        longer_imitation,
    ),
    "look-twice": Evidence(
        {"right": "eval/number", "right at once": "eval/alone/number"},
        ("evaluation.data.seed={series}", "evaluation.data.size={size}", "evaluation.num_prompts={size}"),
        256,
    ),
    "video": Evidence(
        {
            "temporal IoU": "eval/by_type/span",
            **{f"R@0.{tenth}": f"eval/by_type/recall{tenth}0" for tenth in (3, 5, 7)},
            "letters right": "eval/by_type/exact",
        },
        ("evaluation.data.seed={series}", "evaluation.data.size={size}", "evaluation.num_prompts={size}"),
        512,
    ),
    "beeps": Evidence(
        {"temporal IoU": "eval/temporal_iou", **{f"R@0.{tenth}": f"eval/temporal_iou/recall{tenth}0" for tenth in (5, 7)}},
        ("evaluation.data.seed={series}", "evaluation.data.size={size}", "evaluation.num_prompts={size}"),
        256,
        unheard=("evaluation.data.heard='another'",),
    ),
    "t2i": Evidence(
        {"reward": "eval/shapes"} | {part: f"eval/shapes/{part}" for part in ("colour", "side", "shape", "background")},
        ("evaluation.seed={series}", "evaluation.num_samples={size}"),
        32,
    ),
    "writer": Evidence(
        {"reward": "eval/drawn", "user's words": "eval/drawn/beside"},
        ("evaluation.data.seed={series}", "evaluation.data.size={size}", "evaluation.num_prompts={size}"),
        96,
    ),
    "edit": Evidence(
        {"reward": "eval/shape_edits"}
        | {part: f"eval/shape_edits/{part}" for part in ("fulfilled", "kept", "colour", "shape", "side", "ground")},
        ("evaluation.data.seed={series}", "evaluation.seed={series}", "evaluation.num_samples={size}"),
        8,
    ),
    "t2v": Evidence(
        {"reward": "eval/gliding_shapes"}
        | {part: f"eval/gliding_shapes/{part}" for part in ("way", "colour", "shape", "smooth", "paper")},
        ("evaluation.seed={series}", "evaluation.num_samples={size}"),
        16,
    ),
    "tones": Evidence(
        {"energy in the band": "eval/band_energy", "overlap with the quarter": "eval/onset_iou"},
        ("evaluation.seed={series}", "evaluation.num_samples={size}"),
        32,
    ),
    "t2i-text": Evidence(
        {"reward (1 - edit distance / length)": "eval/ocr", "read exactly": "eval/ocr/exact"},
        ("evaluation.seed={series}", "evaluation.num_samples={size}"),
        32,
    ),
}


def measure(
    name: str, model: Path, args: argparse.Namespace, seed: int, run: RunDir | None = None, also: Sequence[str] = ()
) -> dict[str, float]:
    """Figures on the fresh held-out prompts, of the model as it is or as the run left it; `also`: more overrides."""
    evidence = EVIDENCE[name]
    size = args.fresh_size or evidence.size
    fresh = [word.format(series=args.fresh + seed, size=size) for word in evidence.fresh]
    words = [*args.overrides, f"policy.model={str(model)!r}", *fresh, *also]
    with distributed_run():
        job = build(configs.load(demo.demo_of(name).config, words))
        if run is not None:
            job.policy.load_state_dict(Checkpoints(run.checkpoints).load()["policy"])
        assert job.evaluator is not None
        metrics = job.evaluator.run(0)[0]
    return {title: metrics[metric] for title, metric in evidence.figures.items()}


def row(name: str, before: dict[str, float], after: dict[str, float], seconds: str) -> str:
    cells = " | ".join(f"{before[title]:.3f} -> {after[title]:.3f}" for title in before)
    return f"| {name} | {cells} | {seconds} |"


def seconds_since(wall: float, cpu: float) -> str:
    return f"{time.perf_counter() - wall:.0f} ({time.process_time() - cpu:.0f} CPU)"


def one_seed(name: str, seed: int, args: argparse.Namespace) -> list[str]:
    start = time.perf_counter(), time.process_time()
    taught = demo.taught_model(name, seed)
    imitation_s = seconds_since(*start)
    before = measure(name, taught, args, seed)
    start = time.perf_counter(), time.process_time()
    output = args.runs or Path(tempfile.mkdtemp())
    run = demo.run(name, output / f"{name}-{seed}", seed, [f"policy.model={str(taught)!r}", *args.overrides])
    seconds = f"{imitation_s} + {seconds_since(*start)}"
    lines = [row(f"seed {seed}", before, measure(name, taught, args, seed, run), seconds)]
    if unheard := EVIDENCE[name].unheard:
        both = [measure(name, taught, args, seed, trained, unheard) for trained in (None, run)]
        lines.append(row(f"what is not heard, seed {seed}", both[0], both[1], ""))
    control = EVIDENCE[name].control
    if args.control and control is not None:
        start = time.perf_counter(), time.process_time()
        model = control(seed, args.control, Path(tempfile.mkdtemp()) / "model")
        after = measure(name, model, args, seed)
        lines.append(row(f"imitation only, {args.control} steps, seed {seed}", before, after, seconds_since(*start)))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", choices=sorted(EVIDENCE))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fresh", type=int, default=9_000, help="series of held-out scenes or noise; the seed is added")
    parser.add_argument("--fresh-size", type=int, help="held-out scenes, or pictures per caption")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-cache", action="store_true", help="teach by imitation again, so that its seconds are real")
    parser.add_argument("--control", type=int, default=0, help="grounding: also imitate for so many steps instead")
    parser.add_argument("--runs", type=Path, help="folder to keep the runs in")
    parser.add_argument("--set", dest="overrides", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of the config")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.no_cache:
        os.environ["MMRL_CACHE"] = tempfile.mkdtemp()
    print(f"| {args.demo} | {' | '.join(EVIDENCE[args.demo].figures)} | seconds |")
    print(f"|{'---|' * (len(EVIDENCE[args.demo].figures) + 2)}", flush=True)
    for seed in args.seeds:
        for line in one_seed(args.demo, seed, args):
            print(line, flush=True)


if __name__ == "__main__":
    main()
