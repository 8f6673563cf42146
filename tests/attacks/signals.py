"""Attacks by signals, terminals that close, and programs that start together."""

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mmrl.app.cluster.supervise import descendants
from tests.attacks.attack import Attack, begin, expect_clean, expect_done, expect_words, refused, run_mmrl

LIMIT_S = 90.0
SHORT = ("data.size=8", "evaluation.num_prompts=0", "policy.sampling.max_new_tokens=2", "prompts_per_step=1")
LONG = (*SHORT, "steps=100000", "save_every=0", "output=run")
ENDINGS = [chr(code) for code in range(33, 127) if chr(code) not in "\"'\\"]
"""So many texts end a turn that a random model is hardly ever cut."""
PLAYS = (*LONG, "policy.sampling.max_new_tokens=40", f"policy.sampling.stop={ENDINGS}".replace("'", '"'))
HANGS = "import time\ndef mine(*asked):\n    open('hangs', 'w').close()\n    time.sleep(3600)\n"
SLOW_DATA = "import time\ndef mine():\n    open('loading', 'w').close()\n    time.sleep(60)\n"


def start(folder: Path, *words: str, prefix: tuple[str, ...] = (), stderr: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    """`mmrl train` in a session of its own."""
    words = ("train", *(words or ("tiny/image", *LONG)))
    return begin(words, folder, prefix=prefix, stdout=subprocess.DEVNULL, stderr=stderr)


def wait_until(what: Callable[[], bool], process: subprocess.Popen[str], name: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not what():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(f"{name} did not happen (exit code {process.poll()})")
        time.sleep(0.05)


def has_trained(folder: Path) -> bool:
    file = folder / "run" / "metrics.jsonl"
    return file.exists() and '"loss"' in file.read_text()


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        said = process.communicate(timeout=LIMIT_S)[1] or ""
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError(f"did not end within {LIMIT_S:g} s") from None
    return process.returncode, said


def expect_saved(folder: Path, code: int, said: str, *words: str) -> str:
    assert code == 0, f"exit code {code}: {said[-300:]!r}"
    assert any((folder / "run" / "checkpoints").glob("step-*")), "no checkpoint"
    expect_words(said, words)
    return "saved, exit code 0"


def stopped(numbers: tuple[signal.Signals, ...], folder: Path) -> str:
    """Signals during training: saved, with the way to go on."""
    process = start(folder)
    wait_until(lambda: has_trained(folder), process, "a step")
    for number in numbers:
        process.send_signal(number)
    return expect_saved(folder, *end_of(process), "stopped by SIG", f"--resume {folder}/run")


def to_all_processes(number: signal.Signals, folder: Path) -> str:
    """A signal to the whole process group, with a reward in a process of its own."""
    (folder / "mine.py").write_text("def mine(group):\n    return [float(len(s.text or '')) for s in group.samples]\n")
    process = start(folder, "tiny/image", *LONG, "reward=[{use='./mine.py:mine', call={where='process'}}]")
    wait_until(lambda: has_trained(folder), process, "a step")
    os.killpg(process.pid, number)
    code, said = end_of(process)
    assert "Traceback" not in said, f"a traceback: {said[-300:]!r}"
    return expect_saved(folder, code, said, f"stopped by {number.name}")


def beside_a_world_that_hangs(where: str, folder: Path) -> str:
    """SIGTERM while a world does not answer, for which the run would wait an hour."""
    (folder / "mine.py").write_text(HANGS)
    world = f"environment={{use='./mine.py:mine', call={{where='{where}'}}, limits={{timeout_s=3600}}}}"
    process = start(folder, "tiny/image", *PLAYS, world)
    wait_until((folder / "hangs").exists, process, "a question to the world")
    process.send_signal(signal.SIGTERM)
    return expect_saved(folder, *end_of(process), "stopped by SIGTERM")


def killed(words: tuple[str, ...], folder: Path) -> str:
    """SIGKILL amid what processes of the run do: none of them stays, or complains."""
    (folder / "mine.py").write_text(HANGS)
    process = start(folder, "tiny/image", *LONG, *words)
    wait_until(lambda: (folder / "hangs").exists() or has_trained(folder), process, "a step")
    own = [os.pidfd_open(pid) for pid in descendants(process.pid)]
    process.kill()
    said = end_of(process)[1]
    left = [handle for handle in own if not select.select([handle], [], [], LIMIT_S)[0]]
    assert not left and own and "Traceback" not in said, f"{len(left)} of {len(own)} processes stayed: {said[-300:]!r}"
    return "nothing stayed"


def under_nohup(folder: Path) -> str:
    """SIGHUP under nohup means nothing; the run is then stopped by SIGTERM."""
    process = start(folder, prefix=("nohup",))
    wait_until(lambda: has_trained(folder), process, "a step")
    process.send_signal(signal.SIGHUP)
    metrics = folder / "run" / "metrics.jsonl"
    lines = len(metrics.read_text().splitlines())
    wait_until(lambda: len(metrics.read_text().splitlines()) > lines + 2, process, "another step after SIGHUP")
    process.send_signal(signal.SIGTERM)
    return "went on; " + expect_saved(folder, *end_of(process), "stopped by SIGTERM")


def terminal_closes(folder: Path) -> str:
    """The terminal is gone, with every write to it failing; and then the hang-up comes."""
    ours, theirs = pty.openpty()
    process = start(folder, stderr=theirs)
    os.close(theirs)
    os.set_blocking(ours, False)
    wait_until(lambda: read_all(ours) is not None and has_trained(folder), process, "a step")
    os.close(ours)
    time.sleep(0.5)
    process.send_signal(signal.SIGHUP)
    return expect_saved(folder, end_of(process)[0], "")


def read_all(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except (BlockingIOError, OSError):
        return b""


def while_it_is_built(number: signal.Signals, folder: Path) -> str:
    """A signal while data is still loaded: no run folder stays."""
    (folder / "mine.py").write_text(SLOW_DATA)
    process = start(folder, "tiny/image", "data={use='./mine.py:mine'}")
    wait_until((folder / "loading").exists, process, "loading")
    process.send_signal(number)
    code, said = end_of(process)
    assert code == 128 + number and "Traceback" not in said, f"exit code {code}: {said[-300:]!r}"
    assert not (folder / "runs").exists(), "a run folder stayed"
    return f"left with {code}, no folder stayed"


def started_together(folder: Path) -> str:
    """Three one-line runs at once."""
    processes = [start(folder, "tiny/image", *SHORT, "steps=1") for _ in range(3)]
    codes = [end_of(process) for process in processes]
    assert not any(code for code, _ in codes), f"exit codes {[code for code, _ in codes]}: {codes[0][1][-300:]!r}"
    runs = sorted(path.name for path in (folder / "runs").iterdir() if (path / "report.html").is_file())
    assert runs == ["image", "image-2", "image-3"], f"the runs are in {runs}"
    return "three folders"


def same_output(folder: Path) -> str:
    """A second run into the folder of one that is training."""
    first = start(folder)
    wait_until(lambda: has_trained(folder), first, "a step")
    refused(["train", "tiny/image", *LONG], ["already holds a run"], folder)
    refused(["train", "--resume", "run"], ["another process is training into"], folder)
    first.send_signal(signal.SIGTERM)
    expect_saved(folder, *end_of(first))
    return "refused, and resuming too"


def failed_start(words: tuple[str, ...], folder: Path) -> str:
    outcome = refused(["train", "tiny/image", *words], [], folder)
    assert not (folder / "runs").exists() and not (folder / "out").exists(), "a folder stayed"
    return f"{outcome}, no folder"


def escape_on_a_terminal(folder: Path) -> str:
    """A message with escape sequences, on a real terminal."""
    ours, theirs = pty.openpty()
    process = start(folder, "tiny/image", "optimizer.\x1b]0;owned\x07\x1b[2Jlr=1", stderr=theirs)
    os.close(theirs)
    said = b""
    while process.poll() is None:
        said += read_all(ours)
    said += read_all(ours)
    os.close(ours)
    for sequence in (b"\x1b]", b"\x07", b"\x1b[2J"):
        assert sequence not in said, f"{sequence!r} reached the terminal"
    return "written out" if b"\\x1b]0;owned" in said else f"not shown: {said[-200:]!r}"


def narrow_encoding(folder: Path) -> str:
    ended = run_mmrl(["show", "grpo"], folder, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"})
    expect_clean(ended.out + ended.err)
    expect_done(ended)
    return "written in ASCII"


HANG_UP = signal.SIGHUP
NOWHERE, LONG_NAME = "policy.model=./nowhere", "policy.model=" + "x" * 100_000
HUNG = "reward=[{use='./mine.py:mine', call={where='process'}}]"
ATTACKS = [
    Attack("signals", "SIGTERM while it trains", partial(stopped, (signal.SIGTERM,))),
    Attack("signals", "SIGHUP while it trains", partial(stopped, (HANG_UP,))),
    Attack("signals", "three SIGHUPs", partial(stopped, (HANG_UP, HANG_UP, HANG_UP))),
    Attack("signals", "SIGHUP and SIGTERM together", partial(stopped, (HANG_UP, signal.SIGTERM))),
    Attack("signals", "Ctrl-C for all processes of a run", partial(to_all_processes, signal.SIGINT)),
    Attack("signals", "SIGHUP for all processes of a run", partial(to_all_processes, HANG_UP)),
    Attack("signals", "SIGTERM while a world hangs", partial(beside_a_world_that_hangs, "thread")),
    Attack("signals", "SIGTERM while a world hangs in a process", partial(beside_a_world_that_hangs, "process")),
    Attack("signals", "SIGKILL while a reward hangs in a process", partial(killed, (HUNG,))),
    Attack("signals", "SIGKILL while a sampler draws", partial(killed, ("ahead=1", "cluster.samplers=1"))),
    Attack("signals", "SIGHUP under nohup", under_nohup),
    Attack("signals", "the terminal closes", terminal_closes),
    Attack("signals", "SIGTERM while it is built", partial(while_it_is_built, signal.SIGTERM)),
    Attack("signals", "SIGHUP while it is built", partial(while_it_is_built, HANG_UP)),
    Attack("signals", "Ctrl-C while it is built", partial(while_it_is_built, signal.SIGINT)),
    Attack("signals", "three runs started together", started_together),
    Attack("signals", "a second run into the same folder", same_output),
    Attack("signals", "a start that fails, in a folder of its own", partial(failed_start, (NOWHERE,))),
    Attack("signals", "a start that fails, in a named folder", partial(failed_start, (NOWHERE, "output=out/put"))),
    Attack("signals", "escape sequences in a key", partial(refused, ("train", "tiny/image", "optimizer.\x1b[2Jlr=1"), ())),
    Attack("signals", "escape sequences in a name", partial(refused, ("report", "run\x1b]0;owned\x07\x9b2J"), ())),
    Attack("signals", "a name of 100,000 characters", partial(refused, ("train", "tiny/image", LONG_NAME), ())),
    Attack("signals", "escape sequences on a real terminal", escape_on_a_terminal),
    Attack("signals", "an encoding without most characters", narrow_encoding),
]
