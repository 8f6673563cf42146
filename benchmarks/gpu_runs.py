"""Whole runs of the program on a card and on its machine's CPU, from the same command, many at a time.

    python benchmarks/gpu_runs.py --out gpu-runs [--only NAME ...] [--workers 12] [--seconds 240]

Each case is `mmrl train CONFIG` with two steps of a tiny model with random weights. Compared are the first step's samples (a card
adds in another order, so a close draw may fall elsewhere), mean reward and gradient norm, and on the card the mean log-ratio
between what was sampled and what was read again, which is 0 but for rounding. A resumed case is ended after its first step and
gone on with: its last weights are to equal those of the run in one piece to the bit.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WRITERS = (
    "qwen2_5_vl",
    "qwen3_vl",
    "smolvlm",
    "internvl",
    "llava_onevision",
    "gemma3",
    "qwen3_5",
    "qwen3_5_moe",
    "glm4v",
    "glm46v",
)
LATE_WRITERS = ("mistral3", "gemma4", "lfm2_vl", "minicpmv4_6", "ovis2", "kimi_k25")
PAINTERS = ("sd3", "flux", "qwen_image", "z_image", "chroma", "lumina2", "sd15", "sdxl", "sana", "flux2_klein", "krea2")
METHODS = ("flow_grpo", "mix_grpo", "temp_flow_grpo", "branch_grpo", "grpo_guard", "diffusion_nft", "awm")
OTHERS = ("clips", "mixture", "cold_start", "verifier_loop", "taught_drawing", "token_image")
AHEAD = ("ahead=1", "cluster.samplers=1", "cluster.samplers_share=true")
NF4 = ("policy.weights=nf4", "policy.lora.rank=4", "policy.lora.alpha=8")


@dataclass(frozen=True)
class Case:
    """A run that is tried on both."""

    name: str
    config: str
    words: tuple[str, ...] = ()
    resumed: bool = False


def cases() -> list[Case]:
    """All runs, those that say most first."""
    space = "policy.box_space=norm1000"
    image = [Case(f"image {family}", "tiny/image", (f"policy.model=tiny:{family}", space)) for family in WRITERS + LATE_WRITERS]
    modes = {
        "bfloat16": ("policy.dtype=bfloat16", "policy.lora.rank=4", "policy.lora.alpha=8"),
        "LoRA": NF4[1:],
        "checkpointing": ("policy.gradient_checkpointing=true",),
        "4 bits, equal": (*NF4, "policy.quantized.kernels=equal"),
        "4 bits, fast": (*NF4, "policy.quantized.kernels=fast"),
        "ahead": AHEAD,
        "muon": ("optimizer.kind=muon",),
        "moments on the CPU": ("optimizer.rest=cpu",),
        "repeated prompts": ("policy.prefix=repeated",),
    }
    turns = ("policy.model=tiny:qwen3_vl", "steps=2", "evaluation.num_prompts=4", "data.size=16", "evaluation.data.size=8")
    return [
        Case("image qwen3_vl resumed", "tiny/image", ("save_every=1",), resumed=True),
        Case("flow sd3 resumed", "tiny/flow", ("save_every=1",), resumed=True),
        Case("ahead resumed", "tiny/image", ("save_every=1", *AHEAD), resumed=True),
        *(Case(f"image, {name}", "tiny/image", words) for name, words in modes.items()),
        Case("turns with pictures", "tiny/look_twice", turns),
        *(
            Case(name, f"tiny/{name}")
            for name in ("clips", "mixture", "cold_start", "verifier_loop", "taught_drawing", "token_image")
        ),
        *image,
        *(Case(f"flow {family}", "tiny/flow", (f"policy.model=tiny:{family}",)) for family in PAINTERS),
        *(Case(f"flow, {method}", "tiny/flow", (f"algorithm={{preset={method!r}}}",)) for method in METHODS),
        Case("flow, LoRA in 4 bits", "tiny/flow", NF4),
    ]


def ran(case: Case, folder: Path, where: str, limit: float) -> dict[str, Any]:
    """Exit code, seconds, the last lines where it failed, and the first step's figures."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MMRL_CACHE": str(folder / "cache"), "PYTHONPATH": search_path()}
    if where == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    out = folder / where / case.name.replace(" ", "_").replace(",", "")
    start = time.monotonic()
    words = ["train", case.config, *(() if "steps=2" in case.words or has_stages(case) else ("steps=2",)), *case.words]
    code, said = mmrl([*words, f"output={out}"], env, limit)
    other = Path(f"{out}_resumed")
    if case.resumed and not code:
        first, _ = mmrl([*(word for word in words if word != "steps=2"), "steps=1", f"output={other}"], env, limit)
        code, said = (first, "") if first else mmrl(["train", "--resume", str(other), "steps=2"], env, limit)
    found: dict[str, Any] = {"code": code, "seconds": round(time.monotonic() - start, 1)}
    if code:
        return found | {"said": said[-1500:]}
    found |= figures(out)
    if case.resumed:
        found["resumed equal"] = same_weights(out, other)
    return found


def search_path() -> str:
    return os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])


def has_stages(case: Case) -> bool:
    return "[[stage]]" in (ROOT / "configs" / f"{case.config}.toml").read_text()


def mmrl(words: list[str], env: dict[str, str], limit: float) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mmrl", *words], env=env, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, "out of time"
    return done.returncode, done.stdout + done.stderr


def figures(out: Path) -> dict[str, Any]:
    """What the first step that trained said, and its samples."""
    files = sorted(out.rglob("metrics.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    steps = [line for line in lines if "policy/grad_norm" in line and line["step"] > 0]
    first = sorted(out.rglob("samples/train-*.jsonl"))[:1]
    samples = [json.loads(line) for file in first for line in file.read_text().splitlines()]
    names = ("reward/total", "policy/grad_norm", "rollout/log_ratio", "policy/kl_old", "time/step_s")
    # a drawing goes by the name of its file, which is a hash of its pixels
    seen = [line.get("completion") or (line.get("image") or {}).get("file") for line in samples]
    return {name: steps[0].get(name) for name in names if steps} | {"samples": [one for one in seen if one]}


def same_weights(one: Path, other: Path) -> bool:
    """True if the policies of both runs' last checkpoints are equal to the bit."""
    import torch
    from torch.utils._pytree import tree_leaves

    held = []
    for run in (one, other):
        last = max((run / "checkpoints").glob("step-*"), key=lambda step: int(step.name.partition("-")[2]))
        held.append(
            [x for x in tree_leaves(torch.load(last / "policy.pt", "cpu", weights_only=True)) if isinstance(x, torch.Tensor)]
        )
    if not held[0]:
        raise ValueError(f"{one} holds no weights: there is nothing to compare")
    return len(held[0]) == len(held[1]) and all(torch.equal(x, y) for x, y in zip(*held, strict=True))


def compared(card: dict[str, Any], cpu: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    if card["code"] or cpu["code"]:
        return {"ended": f"card {card['code']}, CPU {cpu['code']}"}
    gaps = {
        name: abs(card[name] - cpu[name])
        for name in ("reward/total", "policy/grad_norm")
        # a gradient of 0, from groups without spread, says nothing
        if isinstance(card.get(name), float) and isinstance(cpu.get(name), float) and (cpu[name] or name == "reward/total")
    }
    same = card["samples"] == cpu["samples"] if card["samples"] else None
    more = {"resumed equal": card["resumed equal"]} if "resumed equal" in card else {}
    return {"ended": "both", "same samples": same, "log_ratio": card.get("rollout/log_ratio"), **gaps, **more}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=None, help="parts of names")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=240.0, help="after which no further run begins")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in cases() if args.only is None or any(word in case.name for word in args.only)]
    begin, found = time.monotonic(), dict[str, Any]()

    def work(job: tuple[str, Case]) -> None:
        where, case = job
        left = args.seconds - (time.monotonic() - begin)
        if left > 5:
            found[f"{case.name} / {where}"] = ran(case, args.out, where, left + 20)
            (args.out / "runs.json").write_text(json.dumps(dict(found), indent=1))

    jobs = [(where, case) for case in chosen for where in ("card", "cpu")]
    with ThreadPoolExecutor(args.workers) as pool:
        list(pool.map(work, jobs))
    for case in chosen:
        card, cpu = (found.get(f"{case.name} / {where}") for where in ("card", "cpu"))
        line = compared(card, cpu) if card and cpu else {"ended": "not run"}
        print(f"{case.name:28} {json.dumps(line)}")
    for name, one in found.items():
        if one["code"]:
            print(f"--- {name} ({one['code']})\n{one['said'][-700:]}")


if __name__ == "__main__":
    main()
