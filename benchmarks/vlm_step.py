"""Seconds and memory per GRPO step of TRL's GRPOTrainer and of mmrl: same model, pictures, reward, group size and length.

    python benchmarks/vlm_step.py --rounds 3 --steps 6

Needs the extra `bench` (trl). Each side runs in a process of its own, the sides take turns, and each process reports its own
peak memory. The model is a small Qwen3-VL with random weights, which hardly ever stops early, so both sides write the same
number of tokens within a few per cent (printed). The first two steps of every process are warm-up and left out.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIDES = ("trl", "mmrl")
WARM_UP = 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes per side")
    parser.add_argument("--steps", type=int, default=6, help="timed steps per process")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24, help="max new tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    return parser.parse_args()


def rows(count: int) -> list[Any]:
    """Prompts of the demo's pictures, each with a picture and a true box."""
    from mmrl.app.plugins.resolve import load

    prompts = load("digits_grounding", "datasets")(split="train", size=count, seed=0)
    return [prompts[i] for i in range(count)]


def overlap(text: str, answer: Any) -> float:
    """IoU of the first box in the text with the true one, both in thousandths of the picture."""
    from mmrl.answers.boxes.box import iou
    from mmrl.answers.boxes.parsing import parse_boxes

    boxes = parse_boxes(text, "norm1000")
    return iou(boxes[0], answer) if boxes else 0.0


def thousandths(prompt: Any) -> Any:
    from mmrl.core.types import MediaSize

    width, height = prompt.media[0].size
    return prompt.answer[0].to("norm1000", MediaSize(width, height, width, height))


def run_mmrl(args: argparse.Namespace) -> dict[str, Any]:
    from dataclasses import replace

    from mmrl.algorithms.presets.text import PRESETS
    from mmrl.algorithms.samplers.base import Shuffled
    from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
    from mmrl.training.optim import OptimizerSettings
    from mmrl.training.rewards import NamedReward, RewardRunner
    from mmrl.training.settings import TrainSettings
    from mmrl.training.trainer import Trainer

    prompts = rows(256)
    truth = {prompt.id: thousandths(prompt) for prompt in prompts}
    policy = TextPolicy(TextPolicyConfig(model=args.model, sampling=Sampling(max_new_tokens=args.tokens)))
    algorithm = replace(PRESETS["grpo"], objective=PRESETS["grpo"].objective[:1], group_size=args.group_size)
    reward = NamedReward("iou", lambda group: [overlap(s.text or "", truth[group.prompt.id]) for s in group.samples])
    settings = TrainSettings(prompts_per_step=args.prompts, micro_batch=100_000, optimizer=OptimizerSettings(lr=1e-6))
    trainer = Trainer(policy, algorithm, Shuffled(prompts, seed=0), RewardRunner([reward]), settings)
    steps = [trainer.step() for _ in range(WARM_UP + args.steps)][WARM_UP:]
    split = {name: [step[f"time/{name}_s"] for step in steps] for name in ("rollout", "reward", "read", "update")}
    return {"seconds": [step["time/step_s"] for step in steps], "tokens": steps[-1]["rollout/actions"], "split": split}


def run_trl(args: argparse.Namespace) -> dict[str, Any]:
    import datasets
    import transformers

    trl: Any = __import__("trl")  # its names are made at run time

    prompts = rows(256)
    table = datasets.Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": prompt.text}] for prompt in prompts],
            "image": [prompt.media[0] for prompt in prompts],
            "index": list(range(len(prompts))),
        }
    )
    truth = [thousandths(prompt) for prompt in prompts]
    lengths: list[int] = []

    def reward(completions: list[Any], index: list[int], completion_ids: list[list[int]], **_: Any) -> list[float]:
        lengths.append(sum(map(len, completion_ids)))
        return [overlap(completion[0]["content"], truth[i]) for completion, i in zip(completions, index, strict=True)]

    class Clock(transformers.TrainerCallback):
        times: list[float] = []  # noqa: RUF012 - one clock per process

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.times.append(time.perf_counter() - self.start)

    count = args.prompts * args.group_size
    config = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=count,
        num_generations=args.group_size,
        max_completion_length=args.tokens,
        max_steps=WARM_UP + args.steps,
        beta=0.0,
        loss_type="grpo",
        learning_rate=1e-6,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1000,
        disable_tqdm=True,
    )
    model = transformers.AutoModelForImageTextToText.from_pretrained(args.model)
    processor = transformers.AutoProcessor.from_pretrained(args.model)
    trainer = trl.GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=table, processing_class=processor)
    clock = Clock()
    trainer.add_callback(clock)
    timed: dict[str, list[float]] = {"rollout and scoring": []}
    inner = trainer._generate_and_score_completions

    def measure(*inputs: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        out = inner(*inputs, **kwargs)
        timed["rollout and scoring"].append(time.perf_counter() - start)
        return out

    trainer._generate_and_score_completions = measure
    trainer.train()
    split = {name: values[WARM_UP:] for name, values in timed.items()}
    total = [*clock.times[WARM_UP:]]
    split["update"] = [a - b for a, b in zip(total, split["rollout and scoring"], strict=True)]
    return {"seconds": total, "tokens": lengths[-1], "split": split}


def one_side(args: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(args.threads)
    result = run_trl(args) if args.side == "trl" else run_mmrl(args)
    result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))


def main() -> None:
    args = arguments()
    if args.side:
        one_side(args)
        return
    from mmrl.tiny.grounding import build

    model = build(Path(tempfile.mkdtemp()) / "model")
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(args.rounds):
        for side in SIDES:
            command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--model", str(model)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{side} failed:\n{done.stderr[-2000:]}")
            found[side].append(json.loads(done.stdout.strip().splitlines()[-1]))
    report(found)


def report(found: dict[str, list[dict[str, Any]]]) -> None:
    print("| side | s/step (median) | s/step of each process | peak MiB | tokens/step | where the time goes (median s) |")
    print("|---|---|---|---|---|---|")
    middle: dict[str, float] = {}
    for side, runs in found.items():
        middle[side] = statistics.median(second for run in runs for second in run["seconds"])
        each = ", ".join(f"{statistics.median(run['seconds']):.3f}" for run in runs)
        peak = max(run["peak_mib"] for run in runs)
        names = runs[0]["split"]
        split = ", ".join(f"{name} {statistics.median(s for run in runs for s in run['split'][name]):.3f}" for name in names)
        print(f"| {side} | {middle[side]:.3f} | {each} | {peak:.0f} | {runs[-1]['tokens']:.0f} | {split} |")
    print(f"\nTRL / mmrl: {middle['trl'] / middle['mmrl']:.2f}x the seconds per step")


if __name__ == "__main__":
    main()
