"""Small real processes, started, killed, asked and ended as `mmrl launch` does it with trainers and servers."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mmrl.app.cluster.supervise import Supervisor, answers, children, training_processes
from mmrl.engine.server import Supervised
from tests.support.ports import free_ports

SERVER = """
import sys, os
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())
    def log_message(self, *_): pass
print("serving", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
UNTIL = """
import sys, time
from pathlib import Path
Path(sys.argv[1] + ".started").touch()
while not Path(sys.argv[1]).exists(): time.sleep(0.02)
sys.exit(int(sys.argv[2]))
"""
"""Trains until a file is there, and ends with this exit code."""
POLITE = """
import signal, sys, time
from pathlib import Path
def stop(number, frame):
    Path(sys.argv[1]).write_text(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
Path(sys.argv[1] + ".ready").touch()
while True: time.sleep(0.02)
"""
"""Saves and ends well when it is asked to."""
LAUNCHER = """
import subprocess, sys
sys.exit(max(process.wait() for process in [subprocess.Popen([sys.executable, *sys.argv[2:]]) for _ in "12"]))
"""
"""Two processes, as `python -m torch.distributed.run` starts them: by the name in its command line."""


def script(*words: object) -> tuple[str, ...]:
    return (sys.executable, "-c", *map(str, words))


def server(folder: Path, restarts: int = 0, code: str = SERVER) -> Supervised:
    port = free_ports(1)
    log = folder / "server.log"
    return Supervised("engine 0", script(code, port), dict(os.environ), f"http://127.0.0.1:{port}", log, restarts)


def trainers(*words: object) -> Supervised:
    return Supervised("trainers", script(*words), dict(os.environ))


def watch(servers: Sequence[Supervised], trainer: Supervised, told: list[str], patience_s: float = 60.0) -> Supervisor:
    return Supervisor(servers, trainer, [one.url for one in servers], patience_s, told.append)


def meanwhile(act: Callable[[], None], done: Path | None = None) -> threading.Thread:
    """Act beside the test, and let trainers that wait for the file `done` end, even where acting failed."""

    def and_end() -> None:
        try:
            act()
        finally:
            if done is not None:
                done.touch()

    thread = threading.Thread(target=and_end)
    thread.start()
    return thread


def wait_until(true: Callable[[], object]) -> None:
    """Wait as long as it may take anywhere, but not for ever."""
    for _ in range(15_000):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("five minutes were not enough")


def ends(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("code", [0, 255])
def test_everything_ends_with_the_trainers_and_their_exit_code(tmp_path: Path, code: int):
    one, file = server(tmp_path), tmp_path / "done"
    pids: list[int] = []

    def act() -> None:
        wait_until(lambda: answers(one.url))
        assert one.running is not None
        pids.extend([one.running.pid, *children(one.running.pid)])
        file.touch()

    thread = meanwhile(act)
    assert watch([one], trainers(UNTIL, file, code), []).run() == code
    thread.join()
    assert len(pids) == 2 and all(map(ends, pids)) and not answers(one.url)
    assert (tmp_path / "server.log").read_text() == "serving\n"


def test_a_server_that_dies_is_started_again_until_that_is_used_up(tmp_path: Path):
    one, file, told = server(tmp_path, restarts=1), tmp_path / "done", list[str]()

    def act() -> None:
        wait_until((tmp_path / "done.started").exists)
        for _ in range(2):
            wait_until(lambda: answers(one.url))
            assert one.running is not None
            killed = children(one.running.pid)[0]
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda killed=killed: ends(killed))
            wait_until(lambda killed=killed: (told and one.running is None) or (len(told) == 1 and answers(one.url)))

    thread = meanwhile(act, file)
    assert watch([one], trainers(UNTIL, file, 0), told).run() == 0
    thread.join()
    assert told[0] == "engine 0 died (exit code 137): it is started again, 0 more time(s) after this"
    assert told[1].startswith("engine 0 died (exit code 137) and stays down: cluster.restarts are used up\n  serving")


def test_a_judge_that_stays_down_ends_the_run_which_is_saved_first(tmp_path: Path):
    one, told = server(tmp_path), list[str]()
    one.name, one.is_needed = "judge 0", True

    def act() -> None:
        wait_until((tmp_path / "said.ready").exists)
        assert one.running is not None
        os.kill(children(one.running.pid)[0], signal.SIGKILL)

    thread = meanwhile(act)
    assert watch([one], trainers(POLITE, tmp_path / "said"), told).run() == 1
    thread.join()
    assert (tmp_path / "said").read_text() == "SIGTERM"
    where = f"the run ends with it: look into {tmp_path / 'server.log'}\n  serving"
    assert told[0] == f"judge 0 died (exit code 137) and stays down: cluster.restarts are used up, and {where}"
    assert told[1].startswith("SIGTERM: the trainers are asked to save and end")


def test_a_server_that_does_not_start_or_never_answers_stops_the_launch(tmp_path: Path):
    one, file = server(tmp_path, code="print('no such model'); raise SystemExit(7)"), tmp_path / "started"
    with pytest.raises(ValueError, match=r"engine 0 ended with exit code 7 before the trainers started.*\n  no such model"):
        watch([one], trainers("import pathlib, sys; pathlib.Path(sys.argv[1]).touch()", file), []).run()
    assert not file.exists()
    one = server(tmp_path, code="import time; time.sleep(600)")
    with pytest.raises(ValueError, match=r"did not answer within 0 s: look into the logs, or raise cluster\.patience_s"):
        watch([one], trainers("pass"), [], patience_s=0.01).run()
    assert one.running is not None and ends(one.running.pid)


@pytest.mark.parametrize("launcher", [(), (LAUNCHER, "torch.distributed.run", "-c")], ids=["one process", "a launcher's two"])
def test_a_signal_goes_to_what_trains(tmp_path: Path, launcher: tuple[str, ...]):
    one, told = server(tmp_path), list[str]()
    trainer = trainers(*launcher, POLITE, tmp_path / "said")

    def act() -> None:
        wait_until((tmp_path / "said.ready").exists)
        assert trainer.running is not None
        watchdog = trainer.running.pid
        wait_until(lambda: len(training_processes(watchdog)) == (2 if launcher else 1))
        os.kill(os.getpid(), signal.SIGTERM)

    thread = meanwhile(act)
    assert watch([one], trainer, told).run() == 0
    thread.join()
    assert (tmp_path / "said").read_text() == "SIGTERM" and not answers(one.url)
    assert told == ["SIGTERM: the trainers are asked to save and end; once more to end at once"]


def test_a_second_signal_ends_what_does_not_listen(tmp_path: Path):
    deaf = trainers(
        "import signal, sys, time, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path(sys.argv[1]).touch()\nwhile True: time.sleep(0.1)",
        tmp_path / "ready",
    )
    told: list[str] = []

    def act() -> None:
        wait_until((tmp_path / "ready").exists)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: told)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = meanwhile(act)
    assert watch([], deaf, told).run() == 128 + signal.SIGKILL
    thread.join()


def test_nothing_outlives_a_launch_that_is_killed(tmp_path: Path):
    """The program that watches gets SIGKILL; what it started notices that its pipe is closed."""
    port, file = free_ports(1), tmp_path / "never"
    url, log = f"http://127.0.0.1:{port}", str(tmp_path / "log")
    code = f"""
import os, sys
from pathlib import Path
from mmrl.app.cluster.supervise import Supervisor
from mmrl.engine.server import Supervised
server = Supervised("engine 0", (sys.executable, "-c", {SERVER!r}, "{port}"), dict(os.environ), "{url}", Path({log!r}))
trainers = Supervised("trainers", (sys.executable, "-c", {UNTIL!r}, {str(file)!r}, "0"), dict(os.environ))
Supervisor([server], trainers, [server.url], 60.0, print).run()
"""
    with subprocess.Popen([sys.executable, "-c", code]) as program:
        wait_until((tmp_path / "never.started").exists)
        pids = [pid for dog in children(program.pid) for pid in (dog, *children(dog))]
        program.kill()
    assert len(pids) == 4, pids
    wait_until(lambda: all(map(ends, pids)))
