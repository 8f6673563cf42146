"""Real sizes on a CPU: a VLM of Qwen2.5-VL-3B's shape and a pipeline of SD3.5-medium's, from `mmrl plan` to merged weights.

    python -m benchmarks.real_size --folder models          more than half an hour, 13 GiB of memory, 25 GB of disk
    python -m benchmarks.real_size --folder models --small  the same commands on narrow models, in a minute

Weights are random, in bfloat16, written once to the folder. Every command runs in a process of its own, one at a time, whose
resident memory is read from /proc; the table puts it beside what `mmrl plan` said. One that comes to use more than `--most` GiB
is stopped.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.shapes import QUESTION, pipeline_with_weights, vlm_with_weights

GIB = 2**30
EVERY_S = 0.1
STEPS = 2
VARIETY = """def variety(group):
    return [len(set(sample.text)) / 100 for sample in group.samples]
"""
"""A reward that tells the texts of random weights apart, so that every row trains."""
COMMANDS = ("plan", "load", "check", "train", "resume", "export", "merge")
LOAD = """
import sys
from mmrl.app.config import run
from mmrl.policies.shared.quantized.layer import nf4_layers
from mmrl.policies.text.policy import TextPolicy
net = TextPolicy(run.load(sys.argv[1], sys.argv[2:]).config.policy).net
layers = dict(nf4_layers(net))
linear, held = sum(layer.size for layer in layers.values()), sum(layer.num_bytes for layer in layers.values())
rest = sum(x.numel() * x.element_size() for x in net.parameters()) - sum(layer.weight.numel() for layer in layers.values())
print(f"{held / 2**30:.2f} GiB for {linear} weights in 4 bits, {held / linear:.4f} bytes a weight; {rest / 2**30:.2f} GiB beside")
"""
"""A model that writes is loaded, and no more: what its weights take."""
AT_MOST = re.compile(r"at most\s+([\d.]+) (GiB|MiB)")


@dataclass
class Use:
    """A process that came to its end: seconds, most resident bytes, and those of them that belong to no file."""

    code: int
    output: str
    wall: float
    peak: int
    anonymous: int


@dataclass(frozen=True)
class Shape:
    """A model, the shipped config that it is run with, and what is changed of it."""

    title: str
    config: str
    words: Sequence[str]
    small: Sequence[str] = ()
    """Changes for narrow models."""


VLM = "image/qwen25vl_3b_refcoco_24gb"
FEW = (
    *("prompts_per_step=2", "algorithm.group_size=4", "policy.sampling.max_new_tokens=24"),
    *("policy.max_pixels=200704", "evaluation.num_prompts=0", "max_unparsed=1.0"),
)
NARROW = ("policy.lora.rank=4", "policy.max_pixels=12544", "policy.sampling.max_new_tokens=6")
SHAPES = {
    "vlm": Shape("Qwen2.5-VL-3B's shape, LoRA", VLM, FEW, NARROW),
    "nf4": Shape("Qwen2.5-VL-3B's shape in 4 bits, LoRA", VLM, ("policy.weights=nf4", *FEW), NARROW),
    "pipeline": Shape(
        "SD3.5-medium's shape, LoRA",
        "t2i/sd35_medium_pickscore",
        (
            *("prompts_per_step=2", "algorithm.group_size=2", "policy.height=256", "policy.width=256"),
            *("algorithm.schedule.num_steps=4", "algorithm.schedule.size=1", "algorithm.schedule.high=2"),
            *("reward=[{use='jpeg_size'}]", "evaluation.num_prompts=0"),
        ),
        ("policy.lora.rank=4", "policy.height=16", "policy.width=16", "policy.max_prompt_tokens=8"),
    ),
}


@dataclass
class Bench:
    """The commands of one shape, and the lines of its table."""

    shape: Shape
    folder: Path
    small: bool
    most: float
    changes: Sequence[str] = ()
    """Words of the config, after the shape's own."""
    lines: list[str] = field(default_factory=list[str])
    planned: float = 0.0
    """Bytes that `mmrl plan` said."""

    def run(self, what: str, *words: str, planned: bool = False, code: Sequence[str] = ("-m", "mmrl")) -> Use:
        """Run a command of mmrl or other code, and note what it took."""
        log = self.folder / f"{re.sub('[^a-z]+', '-', what)}.log"
        use = watch([sys.executable, *code, *words], log, self.most * GIB)
        said = off = ""
        if planned and self.planned:
            said, off = f"{self.planned / GIB:.2f}", f"{self.planned / use.peak - 1:+.0%}"
        ended = "" if use.code == 0 else f", exit {use.code}"
        line = f"| {what}{ended} | {use.wall:.0f} | {use.peak / GIB:.2f} | {use.anonymous / GIB:.2f} | {said} | {off} |"
        self.lines.append(line)
        print(line, flush=True)
        return use

    def all(self, model: Path, rows: Sequence[str], commands: Sequence[str] = COMMANDS) -> None:
        """Plan, check, train, resume, export and merge, or some of these."""
        shape, out = self.shape, self.folder / "run"
        words = [shape.config, f"policy.model={model}", *rows, *shape.words, *(shape.small if self.small else ()), *self.changes]
        if "plan" in commands:
            found = AT_MOST.search(self.run("plan", "plan", *words).output)
            self.planned = 0.0 if found is None else float(found[1]) * (GIB if found[2] == "GiB" else 2**20)
        if "load" in commands:
            for what in ("load, codes made", "load"):
                print(self.run(what, *words, code=("-c", LOAD)).output.splitlines()[-1])
        refused = "check" in commands and self.run("check", "check", *words, planned=True).code
        bounds = ["ratio_bound=10", "mean_ratio_bound=10"] if refused else []
        train = [*words, *bounds, f"output={out}", "save_every=1", f"steps={STEPS}", *self.changes]
        if "train" in commands:
            self.run("train", "train", *train, planned=True)
        if "resume" in commands:
            # two: a single one has no checkpoint's copy beside it, which a plan of a whole run counts
            self.run("resume, 2 steps more", "train", f"steps={STEPS + 2}", "--resume", str(out), planned=True)
        if "export" in commands:
            self.run("export (adapter)", "export", str(out), str(self.folder / "adapter"))
        if "merge" in commands:
            self.run("export --merge", "export", str(out), str(self.folder / "merged"), "--merge")


def watch(command: Sequence[str], log: Path, most: float) -> Use:
    """Run a command to its end; one that comes to hold more than `most` bytes is killed."""
    begun, peak, anonymous = time.monotonic(), 0, 0
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment) as process:
        # Where memory runs out all the same, this process goes and no other.
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
        while process.poll() is None:
            own, highest = memory_of(process.pid)
            peak, anonymous = max(peak, highest), max(anonymous, own)
            if peak > most:
                process.kill()
            time.sleep(EVERY_S)
    return Use(process.returncode, log.read_text(), time.monotonic() - begun, peak, anonymous)


def memory_of(process: int) -> tuple[int, int]:
    """Bytes of a process that belong to no file, and the most it ever had resident; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    told = {name: value for name, _, value in (line.partition(":") for line in lines)}
    own, highest = (1024 * int(told[name].split()[0]) if name in told else 0 for name in ("RssAnon", "VmHWM"))
    return own, highest


def rows_of(kind: str, folder: Path) -> list[str]:
    """Data of each kind, written to the folder, and the words that name it."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "pipeline":
        for name in ("train", "test"):
            (folder / f"{name}.txt").write_text("\n".join(f"a red fox number {i}" for i in range(40)))
        return [f"data.path={folder / 'train.txt'}", f"evaluation.data.path={folder / 'test.txt'}"]
    (folder / "variety.py").write_text(VARIETY)
    for i in range(40):
        noise = np.random.default_rng(i).integers(0, 256, (480, 640, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{i}.png")
    box = [10, 20, 200, 180]
    rows = [
        {"image": f"{i}.png", "split": "val" if i % 2 else "train", "question": QUESTION, "box": [side + 4 * i for side in box]}
        for i in range(40)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    paths = [f"{where}.path={folder / 'rows.jsonl'}" for where in ("data", "evaluation.data")]
    return [*paths, f"reward=[{{use='iou'}}, {{use='{folder / 'variety.py'}'}}]"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where models, runs and logs go; models there are used again")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--small", action="store_true", help="narrow models, to see that all commands work")
    parser.add_argument("--layers", type=int, help="of every stack, in the real width; all by default")
    parser.add_argument("--most", type=float, default=14.0, help="GiB at which a command is stopped")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="other settings of every run")
    chosen = parser.parse_args(arguments)
    folder: Path = chosen.folder.resolve()
    for kind in chosen.shapes:
        cut = "-small" if chosen.small else "" if chosen.layers is None else f"-{chosen.layers}"
        name, make = ("pipeline", pipeline_with_weights) if kind == "pipeline" else ("vlm", vlm_with_weights)
        shape, model = SHAPES[kind], folder / (name + cut)
        if not model.exists():
            partial = folder / f"{model.name}.partial"
            make(partial, chosen.small, None if chosen.small else chosen.layers).rename(model)
        place = folder / time.strftime(f"{kind}{cut}-%Y%m%d-%H%M%S")
        print(f"\n{shape.title}: {shape.config} {' '.join((*shape.words, *chosen.set))}\n", flush=True)
        print("| command | seconds | peak GiB | of no file | plan said | off |\n|---|--:|--:|--:|--:|--:|", flush=True)
        Bench(shape, place, chosen.small, chosen.most, chosen.set).all(model, rows_of(kind, place), chosen.commands)


if __name__ == "__main__":
    main()
