"""The tests of the real vLLM, in bounded time: `python -m tests.engine [--family qwen2_5_vl] [--folder FOLDER] [WORDS]`.

The environment is mmrl's own where `mmrl engine install` has made it, else one in .cache/, made once (`--environment` makes it
and runs nothing). Where it cannot be made because there is no package, no room or no time, this prints why and leaves with 0.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from mmrl.engine.venv import RECIPES, VERSION, engine_folder, is_made
from tests.engine.servers import ENVIRONMENT, FAMILY

ROOT = Path(__file__).resolve().parents[2]
WHOLE_S, INSTALL_S = 360.0, 200.0
"""Seconds for everything, and for the environment."""
BUSY = 4
"""Processes that want a core, of each core, beyond which a machine is too busy; on idle cores all takes half of the time."""
MEMORY_GB = 3.0
"""Memory that a server and the trainer beside it take."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", default="qwen3_vl", choices=("qwen3_vl", "qwen2_5_vl"))
    parser.add_argument("--folder", type=Path, help="of the environment")
    parser.add_argument("--environment", action="store_true", help="make it, and run no test")
    options, words = parser.parse_known_args(words)
    begun = time.monotonic()
    folder, why_not = options.folder or place(), missing()
    if not why_not and not is_made(folder, RECIPES["cpu"]):
        why_not = make(folder)
    if why_not:
        say(f"vLLM was not tested: {why_not}")
        return 0
    if options.environment:
        return 0
    left = WHOLE_S - (time.monotonic() - begun)
    say(f"vLLM {VERSION} from {folder}, for at most {left:.0f} s")
    environment = {**os.environ, ENVIRONMENT: str(folder), FAMILY: options.family, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "engine", "--durations=8", *words, "tests/engine"]
    code = within(left, command, environment)
    if code is None:
        say(f"the tests of vLLM were stopped after {WHOLE_S:.0f} s")
    return 1 if code is None else code


def place() -> Path:
    """The environment of this machine where it is whole, else the one in .cache/."""
    return engine_folder() if is_made(engine_folder(), RECIPES["cpu"]) else ROOT / ".cache" / "engines" / f"vllm-{VERSION}"


def missing() -> str:
    """The thing this machine lacks."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if load > BUSY * cores:
        return f"the load is {load:.0f} on {cores} cores, so it would not end within {WHOLE_S:.0f} s"
    if sys.platform != "linux":
        return f"its packages are for Linux, and this is {sys.platform}"
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            free = int(line.split()[1]) * 1024 / 1e9
    return "" if free >= MEMORY_GB else f"{free:.1f} GB of memory are free, and it takes {MEMORY_GB:g}"


def make(folder: Path) -> str:
    """Make the environment as a user would; the reason why it is not there, if it is not."""
    mmrl = str(Path(sys.executable).with_name("mmrl"))
    command = [mmrl, "engine", "install", "--accelerator", "cpu", "--yes", "--folder", str(folder)]
    code = within(INSTALL_S, command, dict(os.environ))
    return "" if code == 0 else f"its environment was not made within {INSTALL_S:.0f} s" if code is None else "see above"


def within(seconds: float, command: list[str], environment: dict[str, str]) -> int | None:
    """Run a command with all that it starts for so long; its exit code, None where it was stopped."""
    running = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return running.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
