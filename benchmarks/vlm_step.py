"""CPU seconds and memory per GRPO step of TRL's GRPOTrainer and of mmrl: same model, pictures, reward, group size and length.

    python benchmarks/vlm_step.py --lengths 300 900 --checkpointing off on --rounds 2 --steps 2

Needs the extra `bench` (trl). One thread, so that CPU seconds are what an idle machine takes. Every case (prompt length,
checkpointing) has processes of its own for each side, which take turns; each reports its own peak of memory, the libraries'
among it. The model, a Qwen3-VL with random weights, hardly ever stops early, so both sides write the same number of tokens within
a few per cent (printed). The first step of every process is warm-up and left out. "update" is all that is not sampling and
scoring.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from sides import Found, markdown, median_of, report_found, take_turns, write_json
from small_vlm import Case, build, mmrl_steps, trl_steps

SIDES = ("trl", "mmrl")
WARM_UP = 1
TARGETS = {("off", 300): 2.5, ("off", 900): 3.5, ("on", 300): 2.0, ("on", 900): 3.0}
"""How many times TRL's step is to last, by checkpointing and prompt length."""
HEAD = (
    "prompt tokens, checkpointing",
    "TRL s/step",
    "mmrl s/step",
    "TRL / mmrl",
    "aim",
    "TRL update s",
    "mmrl update s",
    "ratio",
    "TRL MiB",
    "mmrl MiB",
    "tokens a step",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[300, 900], help="tokens of a prompt")
    parser.add_argument("--checkpointing", nargs="+", choices=["off", "on"], default=["off", "on"])
    parser.add_argument("--rounds", type=int, default=2, help="processes per side and case")
    parser.add_argument("--steps", type=int, default=2, help="timed steps per process")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32, help="max new tokens")
    parser.add_argument("--prefix", default="auto", help="mmrl's policy.prefix")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--profile", action="store_true", help="print where mmrl's time goes in the first case, and stop")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    return parser.parse_args()


def case_of(args: argparse.Namespace) -> Case:
    """The one case that a side measures."""
    on = args.checkpointing[0] == "on"
    return Case(args.model, args.lengths[0], args.prompts, args.group_size, args.tokens, on, args.prefix)


def one_side(args: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    run = mmrl_steps if args.side == "mmrl" else trl_steps
    report_found(run(case_of(args), args.steps, WARM_UP))


def profile(args: argparse.Namespace) -> None:
    """Print the functions in which a step of mmrl spends its time, by their own seconds."""
    import cProfile
    import pstats

    import torch
    from small_vlm import mmrl_trainer

    torch.set_num_threads(1)
    trainer = mmrl_trainer(case_of(args))
    trainer.step()
    profiler = cProfile.Profile()
    profiler.runcall(trainer.step)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def measure(args: argparse.Namespace) -> list[Found]:
    """All cases, each with both sides in turns."""
    found = []
    for length in args.lengths:
        for checkpointing in args.checkpointing:
            words = [
                f"--lengths={length}",
                f"--checkpointing={checkpointing}",
                f"--model={args.model}",
                f"--prefix={args.prefix}",
            ]
            names = ("steps", "prompts", "group_size", "tokens")
            words += [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in names]
            sides = take_turns(__file__, SIDES, words, args.rounds)
            found.append({"length": length, "checkpointing": checkpointing, "sides": sides})
    return found


def row(case: Found) -> list[str]:
    """One line of the table."""
    trl, mmrl = (case["sides"][side] for side in SIDES)
    whole, update = [(median_of(runs, "seconds"), median_of(runs, "split", "update")) for runs in (trl, mmrl)], []
    (trl_s, trl_update), (mmrl_s, mmrl_update) = whole
    update = [f"{trl_update:.2f}", f"{mmrl_update:.2f}", f"{trl_update / mmrl_update:.2f}"]
    aim = TARGETS.get((case["checkpointing"], case["length"]))
    peaks = [f"{max(run['peak_mib'] for run in runs):.0f}" for runs in (trl, mmrl)]
    name = f"{mmrl[0]['prompt_tokens']}, {case['checkpointing']}"
    tokens = " / ".join(f"{median_of(runs, 'tokens'):.0f}" for runs in (trl, mmrl))
    step = [f"{trl_s:.2f}", f"{mmrl_s:.2f}", f"**{trl_s / mmrl_s:.2f}**", f"{aim}" if aim else ""]
    return [name, *step, *update, *peaks, tokens]


def main() -> None:
    args = arguments()
    if args.side:
        one_side(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        args.model = args.model or build(Path(folder) / "model")
        if args.profile:
            profile(args)
            return
        found: list[Any] = measure(args)
    write_json(args.json, {"settings": {**vars(args), "json": None}, "cases": found})
    print(markdown(HEAD, map(row, found)))


if __name__ == "__main__":
    main()
