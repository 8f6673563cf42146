"""Everything a lent GPU is for, in one command that keeps to its minutes: the tests marked gpu, then speed at real sizes.

    make gpu-wheels
    python benchmarks/gpu.py --minutes 8 --out gpu-results --wheels gpu-wheels

It needs the repository, a Python with torch for the card, and the wheels (`make gpu-wheels`); no network. Weights are random,
in models of published sizes that are written to a temporary folder first. Results are written as they come, as JSON and as a
table of markdown; before each measurement the clock is looked at, and what no longer fits is listed as not measured. On a
machine without a card, `--tiny` runs the same code on tiny models.

What is measured: Qwen2.5-VL-3B's shape with LoRA, 8 prompts x 8 samples, one long picture each, packed prompts and gradient
checkpointing on and off, TRL beside it where it is installed; Qwen2.5-VL-7B's shape in 4 bits, with both kinds of
kernels (fast ones need bitsandbytes, which is too large for the wheels), and in bfloat16; SD3.5-medium's shape with LoRA under
Flow-GRPO, MixGRPO and TempFlow-GRPO at 512 and 1024 pixels. MFU is that of the update (benchmarks/gpu_measures.py says how it is
counted).
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("tests", "vlm", "nf4", "images")
METHODS = ("flow_grpo", "mix_grpo", "temp_flow_grpo")
GRACE = 15.0
"""Seconds kept for the end."""
HEAD = ("measured", "s/step", "rollout s", "update s", "tokens/s", "update MFU", "in the transformer", "GiB")


@dataclass
class Session:
    """The clock, the results so far and where they go."""

    out: Path
    minutes: float
    began: float = field(default_factory=time.monotonic)
    about: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    longest: dict[str, float] = field(default_factory=dict)
    """Part -> seconds of its longest measurement."""

    def left(self) -> float:
        """Seconds until the end, without those kept for it."""
        return 60 * self.minutes - GRACE - (time.monotonic() - self.began)

    def measure(self, part: str, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """Do it if there is time for another one as long as the longest of its part, and write the result."""
        row: dict[str, Any] = {"part": part, "name": name}
        if self.left() < 1.1 * self.longest.get(part, 10.0):
            row["error"] = "not measured: out of time"
        else:
            start = time.monotonic()
            row |= self.attempt(work)
            self.longest[part] = max(self.longest.get(part, 0.0), time.monotonic() - start)
        self.rows.append(row)
        self.write()

    def attempt(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What was found, or what went wrong; one failure does not cost the others."""
        try:
            with stopped_after(self.left()):
                return work()
        except Exception as error:  # noqa: BLE001 - whatever fails on a card seen for the first time, the rest is still wanted
            return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"}

    def write(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        found = {"about": self.about, "seconds": time.monotonic() - self.began, "rows": self.rows}
        (self.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        (self.out / "gpu.md").write_text(table(self.about, self.rows))


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """TimeoutError in the block once so many seconds are over."""

    def stop(*_: Any) -> None:
        raise TimeoutError("the minutes were over")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def table(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Markdown, ready for docs/measurements.md."""

    def cell(row: dict[str, Any], key: str, form: str, scale: float = 1.0) -> str:
        value = row.get(key)
        return "" if value is None else format(scale * value, form)

    lines = [f"`{about.get('command', '')}` on {about.get('device', '?')}, torch {about.get('torch', '?')}.", ""]
    lines += [f"| {' | '.join(HEAD)} |", "|---|" + "--:|" * (len(HEAD) - 1)]
    for row in rows:
        if "error" in row or "summary" in row:
            note = row.get("error") or row["summary"]
            lines.append(f"| {row['name']} | {note} |" + " |" * (len(HEAD) - 2))
            continue
        cells = [cell(row, f"{name}_s", ".2f") for name in ("step", "rollout", "update")]
        cells += [cell(row, "tokens_per_s", ".0f"), cell(row, "mfu", ".1%"), cell(row, "share", ".3f"), cell(row, "gib", ".1f")]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def install_wheels(wheels: Path) -> Path:
    """Unpack the wheels into a folder that goes before everything else on the path, and leave the machine's own Python alone."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-wheels-"))
    words = ["--no-index", "--no-deps", "--quiet", "--target", str(folder), *map(str, sorted(wheels.glob("*.whl")))]
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *words], check=True)
    return folder


def gpu_tests(limit: float) -> dict[str, Any]:
    """Run the tests marked gpu, and give pytest's last line; the files that hold some are found by reading."""
    files = [str(file) for file in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in file.read_text()]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
    said = (done.stdout + done.stderr).strip().splitlines()
    failed = [line for line in said if line.startswith(("FAILED", "ERROR"))]
    return {"summary": pytest_summary(said), "failed": failed, "tail": said[-40:]}


def pytest_summary(lines: list[str]) -> str:
    """The line in which pytest counts: `2 passed, 1 skipped in 3.10s`."""
    counts = [line.strip("= ") for line in lines if re.search(r"\d+ (passed|failed|skipped|deselected|errors?)\b.* in ", line)]
    return counts[-1] if counts else (lines[-1] if lines else "pytest said nothing")


def vlm_part(session: Session, card: Any, folder: Path, args: argparse.Namespace) -> None:
    from gpu_measures import TINY, Sizes, text, trl
    from gpu_models import vlm

    sizes = TINY if args.tiny else Sizes()
    model = vlm(folder / "vlm", card.device, args.tiny)
    card.reset()
    cases = [(True, "auto"), (False, "auto"), (True, "repeated"), (False, "repeated")]
    for checkpointing, prefix in cases[:2] + ([] if args.tiny else cases[2:]):
        words = (
            f"{'once per prompt' if prefix == 'auto' else 'once per sample'}, checkpointing {'on' if checkpointing else 'off'}"
        )
        work = partial(text, card, model, sizes, checkpointing, prefix)
        session.measure("vlm", f"VLM, mmrl, prompts read {words}", work)
        card.reset()
        if checkpointing and prefix == "auto" and find_spec("trl") is not None and not args.tiny:
            session.measure("trl", "VLM, TRL, checkpointing on", partial(trl, card, model, sizes, True))
            card.reset()
    if args.compiled:
        work = partial(text, card, model, sizes, checkpointing=False, prefix="auto", compiled=True)
        session.measure("vlm", "VLM, mmrl, prompts read once per prompt, layers compiled", work)
        card.reset()


def nf4_part(session: Session, card: Any, folder: Path, args: argparse.Namespace) -> None:
    from gpu_measures import TINY, Sizes, text
    from gpu_models import vlm

    sizes = TINY if args.tiny else Sizes()
    model = vlm(folder / "vlm-7b", card.device, args.tiny, is_7b=True)
    card.reset()
    for kernels in ("equal", "fast") if args.tiny else ("equal", "fast", None):
        words = "weights in bfloat16" if kernels is None else f"weights in 4 bits, {kernels} kernels"
        work = partial(text, card, model, sizes, checkpointing=True, prefix="auto", kernels=kernels)
        session.measure("nf4", f"VLM of 7B, mmrl, {words}", work)
        card.reset()


def image_part(session: Session, card: Any, folder: Path, args: argparse.Namespace) -> None:
    from gpu_measures import TINY, Sizes, pixels
    from gpu_models import images

    sizes = TINY if args.tiny else Sizes()
    model = images(folder / "images", card.device, args.tiny)
    card.reset()
    sides = (16,) if args.tiny else (512, 1024)
    for side in sides:
        for method in METHODS:
            session.measure(f"images {side}", f"images of {side}, {method}", partial(pixels, card, model, sizes, method, side))
            card.reset()
    for compiled in (False, True) if args.compiled else ():
        work = partial(pixels, card, model, sizes, METHODS[0], sides[-1], twice=False, compiled=compiled)
        session.measure(
            f"images {sides[-1]}", f"images of {sides[-1]}, {METHODS[0]}, blocks {'compiled' if compiled else 'as written'}", work
        )
        card.reset()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json and gpu.md")
    parser.add_argument("--wheels", type=Path, help="folder that `make gpu-wheels` filled")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--compiled", action="store_true", help="with policy.compile too; its first steps take minutes")
    parser.add_argument("--tiny", action="store_true", help="tiny models, on a CPU too")
    parser.add_argument("--models", type=Path, help="folder to write the models to; by default a temporary one")
    return parser.parse_args()


def describe(card: Any, args: argparse.Namespace) -> dict[str, Any]:
    from importlib.metadata import version

    words = [f"--minutes {args.minutes:g}", *(["--tiny"] if args.tiny else [])]
    libraries = {name: version(name) for name in ("torch", "transformers", "diffusers", "peft", "accelerate")}
    peak = None if card.peak is None else card.peak / 1e12
    return {"command": f"python benchmarks/gpu.py {' '.join(words)}", "device": card.name, "peak_tflops": peak, **libraries}


def main() -> None:
    args = arguments()
    if args.wheels is not None:
        # A fresh interpreter, for packages that this one may have loaded are among the wheels.
        words = [word for word in sys.argv[1:] if word not in ("--wheels", str(args.wheels), f"--wheels={args.wheels}")]
        path = os.pathsep.join([str(install_wheels(args.wheels)), str(ROOT), os.environ.get("PYTHONPATH", "")])
        os.execve(sys.executable, [sys.executable, __file__, *words], {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"})
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    session = Session(args.out, args.minutes)
    if "tests" in args.only:
        session.measure("tests", "tests marked gpu", partial(gpu_tests, max(1.0, min(120.0, session.left() / 3))))
    import torch
    from gpu_measures import Card

    from mmrl.app.run.launch import open_accelerator

    if not (args.tiny or torch.cuda.is_available()):
        raise SystemExit("no GPU is here: run it on a machine with one, or add --tiny")
    if args.tiny:
        torch.set_num_threads(1)
    card = Card(open_accelerator())
    session.about = describe(card, args)
    folder = args.models or Path(tempfile.mkdtemp(prefix="gpu-models-"))
    try:
        if "vlm" in args.only:
            vlm_part(session, card, folder, args)
        if "nf4" in args.only:
            nf4_part(session, card, folder, args)
        if "images" in args.only:
            image_part(session, card, folder, args)
    finally:
        session.write()
        if args.models is None:
            shutil.rmtree(folder, ignore_errors=True)
    print((args.out / "gpu.md").read_text())


if __name__ == "__main__":
    main()
