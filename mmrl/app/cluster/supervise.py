"""The processes of one machine, started and watched until the trainers end; then all of them end.

Servers that die are started again; where a judge stays down, the run is asked to save and end. Signals go to the processes that
train, which save and end well; a second one ends everything.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from mmrl.app.run.launch import command_of
from mmrl.app.run.signals import NUMBERS, handled, is_ignored
from mmrl.engine.server import Supervised, ask_to_end, kill_group, tail
from mmrl.engine.wire.client import EngineClient

POLL_S = 0.2
GRACE_S = 15.0
"""A server may take this long to end."""


@dataclass
class Supervisor:
    """All processes of one machine.

    Args:
        servers: what answers requests of the trainers; started first.
        trainers: started when everything in `wait_for` answers.
        wait_for: addresses, those of other machines' servers among them.
        patience_s: how long servers may take until they answer.
        tell: where lines for people go.
    """

    servers: Sequence[Supervised]
    trainers: Supervised
    wait_for: Sequence[str]
    patience_s: float
    tell: Callable[[str], None]
    asked_by: list[signal.Signals] = field(default_factory=list[signal.Signals])
    """Signals that this program got."""
    is_lost: bool = False
    """A server stays down that nothing trains without."""

    def run(self) -> int:
        """Start, watch and end everything; the exit code of the trainers. ValueError where a server does not come to answer."""
        try:
            with noted_signals(self.asked_by):
                for server in self.servers:
                    server.start()
                return self._train() if self._wait_until_ready() else 128 + self.asked_by[0]
        finally:
            for process in (self.trainers, *self.servers):
                ask_to_end(process.running)
            for process in (self.trainers, *self.servers):
                process.end(GRACE_S)

    def _wait_until_ready(self) -> bool:
        """Wait until every server answers; False when a signal came first."""
        waiting, until = list(self.wait_for), time.monotonic() + self.patience_s
        while waiting and not self.asked_by:
            waiting = [url for url in waiting if not answers(url)]
            for server in self.servers:
                if (code := server.code()) is not None:
                    where = f"look into {server.log}{tail(server.log)}"
                    raise ValueError(f"{server.name} ended with exit code {code} before the trainers started: {where}")
            if waiting and time.monotonic() > until:
                raise ValueError(
                    f"{', '.join(waiting)} did not answer within {self.patience_s:.0f} s: look into the logs, or raise "
                    "cluster.patience_s"
                )
            time.sleep(POLL_S if waiting else 0.0)
        return not self.asked_by

    def _train(self) -> int:
        """Run the trainers to their end, and start servers that die again; an exit code above 0 where one is lost."""
        self.trainers.start()
        num_reported = 0
        while (code := self.trainers.code()) is None:
            for number in self.asked_by[num_reported:]:
                self._pass_on(number, first=num_reported == 0)
                num_reported += 1
            for server in self.servers:
                self._look_after(server)
            time.sleep(POLL_S)
        return code or int(self.is_lost)

    def _look_after(self, server: Supervised) -> None:
        code = server.code()
        if code is None or server.running is None:
            return
        server.end(0.0)
        server.running = None
        if server.restarts <= 0:
            where = f", and the run ends with it: look into {server.log}" if server.is_needed else ""
            self.tell(
                f"{server.name} died (exit code {code}) and stays down: cluster.restarts are used up{where}{tail(server.log)}"
            )
            if server.is_needed and not self.is_lost:
                self.is_lost = True
                self.asked_by.append(signal.SIGTERM)
            return
        server.restarts -= 1
        self.tell(f"{server.name} died (exit code {code}): it is started again, {server.restarts} more time(s) after this")
        server.start()

    def _pass_on(self, number: signal.Signals, first: bool) -> None:
        """Hand a signal to what trains; from the second one on nothing is waited for."""
        assert self.trainers.running is not None
        if first:
            self.tell(f"{number.name}: the trainers are asked to save and end; once more to end at once")
            for pid in training_processes(self.trainers.running.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        elif number != signal.SIGHUP:
            for pid in (*training_processes(self.trainers.running.pid), *descendants(self.trainers.running.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            kill_group(self.trainers.running)


def noted_signals(asked_by: list[signal.Signals]) -> AbstractContextManager[None]:
    """Note signals in place of dying of them, in the main thread."""
    numbers = [number for number in NUMBERS if not is_ignored(number)]
    return handled(numbers, lambda number, _: asked_by.append(signal.Signals(number)))


def answers(url: str) -> bool:
    """Does the server at this address say that it is well? Engines and reward servers have the same page for it."""
    client = EngineClient(url)
    try:
        return client.is_healthy()
    finally:
        client.close()


def training_processes(watchdog: int) -> list[int]:
    """The processes that train, below a watchdog: a launcher's children, or the one process itself.

    A launcher would give its children 30 s to save before it kills them; asked themselves, they take the time they need.
    """
    below = children(watchdog)
    launchers = {"torch.distributed.run", "accelerate.commands.launch"}
    found = [pid for child in below if launchers.intersection(command_of(child)) for pid in children(child)]
    return found or below


def children(pid: int) -> list[int]:
    """The processes that this one started, where the system says so."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Everything below a process, the nearest first."""
    found = children(pid)
    for one in found:
        found += children(one)
    return found
