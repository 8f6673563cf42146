"""CPU seconds of mmrl's update by samples per prompt (G), prompt length (P) and completion length (R), and how they grow.

    python benchmarks/vlm_scaling.py --plot docs/assets/vlm_scaling.svg

The model and prompts of benchmarks/small_vlm.py, 2 prompts a step, one thread, gradient checkpointing as all shipped configs of
VLMs have it (--checkpointing off for the other). One process; the cases take turns, round after round, and the median counts.
What one more sample of a prompt costs is the line through the seconds over G; where it is flat in P, a prompt is paid for once,
however many samples it has. A trainer that repeats the prompt in every row pays P for each.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sides import markdown, slope, write_json
from small_vlm import Case, build, mmrl_trainer

Seconds = dict[tuple[int, int, int], float]
"""(P, G, R) -> seconds of an update."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 200, 400, 800], help="P")
    parser.add_argument("--groups", type=int, nargs="+", default=[2, 4, 8, 16], help="G")
    parser.add_argument("--completions", type=int, nargs="+", default=[16, 32, 64, 128], help="R")
    parser.add_argument(
        "--at", type=int, nargs=3, default=[400, 8, 32], metavar=("P", "G", "R"), help="what stays while one changes"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--checkpointing", choices=["off", "on"], default="on")
    parser.add_argument("--prefix", default="auto", help="mmrl's policy.prefix")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--plot", type=Path, help="log-log picture")
    return parser.parse_args()


def measure(args: argparse.Namespace, model: str) -> Seconds:
    """Medians over the rounds, of updates whose rollouts were sampled once."""
    length, group, completion = args.at
    cases = [(p, g, completion) for p in args.lengths for g in args.groups]
    cases += [(length, group, r) for r in args.completions if (length, group, r) not in cases]
    base = Case(model, checkpointing=args.checkpointing == "on", prefix=args.prefix)
    policies: dict[int, Any] = {}
    updates = {}
    for p, g, r in cases:
        trainer = mmrl_trainer(replace(base, length=p, group_size=g, tokens=r), policies.get(r))
        policies[r] = trainer.policy
        updates[p, g, r] = update_of(trainer)
    found: dict[tuple[int, int, int], list[float]] = {case: [] for case in cases}
    for _ in range(args.rounds):
        for case, update in updates.items():
            start = time.process_time()
            update()
            found[case].append(time.process_time() - start)
    return {case: statistics.median(seconds) for case, seconds in found.items()}


def update_of(trainer: Any) -> Callable[[], object]:
    """Take a step, and give its update, to be done again."""
    update, batches = trainer.update, []

    def keep(batch: Any) -> Any:
        batches.append(batch)
        return update(batch)

    trainer.update = keep
    trainer.step()
    return partial(update, batches[0])


def per_sample(seconds: Seconds, length: int, groups: list[int], completion: int) -> float:
    """Seconds that one more sample per prompt adds: least squares over G."""
    ys = [seconds[length, g, completion] for g in groups]
    mean_g, mean_y = statistics.mean(groups), statistics.mean(ys)
    above = sum((g - mean_g) * (y - mean_y) for g, y in zip(groups, ys, strict=True))
    return above / sum((g - mean_g) ** 2 for g in groups)


def tables(args: argparse.Namespace, seconds: Seconds) -> str:
    length, group, completion = args.at
    more = [per_sample(seconds, p, args.groups, completion) for p in args.lengths]
    head = ["P", *(f"G = {g}, s" for g in args.groups), "one more sample, ms"]
    rows = [
        [str(p), *(f"{seconds[p, g, completion]:.3f}" for g in args.groups), f"{1000 * cost:.1f}"]
        for p, cost in zip(args.lengths, more, strict=True)
    ]
    by_p = slope(args.lengths, [seconds[p, group, completion] for p in args.lengths])
    by_r = slope(args.completions, [seconds[length, group, r] for r in args.completions])
    by_g = slope(args.groups, [seconds[length, g, completion] for g in args.groups])
    extra = "-" if min(more) <= 0 else f"{slope(args.lengths, more):.2f}"
    slopes = [
        ["seconds over P", f"G = {group}, R = {completion}", f"{by_p:.2f}"],
        ["seconds over G", f"P = {length}, R = {completion}", f"{by_g:.2f}"],
        ["seconds over R", f"P = {length}, G = {group}", f"{by_r:.2f}"],
        ["one more sample over P", f"R = {completion}", extra],
    ]
    lines = [
        markdown(head, rows),
        "",
        markdown(["P, G", *(f"R = {r}, s" for r in args.completions)], [by_completion(args, seconds)]),
    ]
    return "\n".join(
        [*lines, "", markdown(["growth (slope of the logarithms; 0 = flat, 1 = in proportion)", "at", "slope"], slopes)]
    )


def by_completion(args: argparse.Namespace, seconds: Seconds) -> list[str]:
    length, group, _ = args.at
    return [f"{length}, {group}", *(f"{seconds[length, group, r]:.3f}" for r in args.completions)]


def plot(args: argparse.Namespace, seconds: Seconds) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "mmrl"
    completion = args.at[2]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.8))
    for p in args.lengths:
        left.loglog(args.groups, [seconds[p, g, completion] for g in args.groups], marker="o", label=f"P = {p}")
    left.set(xlabel="samples per prompt (G)", ylabel="seconds of an update", xticks=args.groups, xticklabels=args.groups)
    more = [max(1e-6, per_sample(seconds, p, args.groups, completion)) for p in args.lengths]
    right.loglog(args.lengths, more, marker="o", label="mmrl")
    right.loglog(args.lengths, [more[0] * p / args.lengths[0] for p in args.lengths], ls=":", label="in proportion to P")
    right.set(xlabel="tokens of a prompt (P)", ylabel="seconds of one more sample", xticks=args.lengths, xticklabels=args.lengths)
    for axis in (left, right):
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    args.plot.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.plot, metadata={"Date": None})


def main() -> None:
    import torch

    args = arguments()
    torch.set_num_threads(1)
    if args.at[0] not in args.lengths or args.at[1] not in args.groups or args.at[2] not in args.completions:
        raise SystemExit("--at must name values that --lengths, --groups and --completions hold")
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(args, build(Path(folder) / "model"))
    write_json(args.json, {"seconds": [{"P": p, "G": g, "R": r, "s": s} for (p, g, r), s in seconds.items()]})
    print(tables(args, seconds))
    if args.plot:
        plot(args, seconds)


if __name__ == "__main__":
    main()
