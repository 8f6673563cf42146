"""Processes that decode clips beside the policy; a dead or silent one is replaced once per clip, never waited for forever."""

import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mmrl.core.samples import Video
from mmrl.policies.video.decode import Frames
from mmrl.policies.video.sampling import FrameRule
from mmrl.runtime.workers import WorkerError

log = logging.getLogger("mmrl")
Job = tuple[Video, FrameRule, bool]
Jobs = queue.SimpleQueue[tuple["Future[Frames]", Job] | None]
COMMAND = (sys.executable, "-m", "mmrl.policies.video.worker")
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that a process brings upon itself: the clip is to blame."""
BAD_CLIP = "take the clip out of the data, or convert it to H.264"
NO_WORKERS = "set policy.video.workers = 0 to decode in the run's own process"


@dataclass
class Worker:
    """One process, and the thread that talks to it."""

    timeout: float
    command: tuple[str, ...] = COMMAND
    process: Any = None
    """Its Popen, with pipes."""

    is_over: bool = False
    """True once it was stopped for good."""

    def __call__(self, job: Job) -> Frames:
        """Raises what the process raised; WorkerError when two in a row died or did not answer in time."""
        try:
            return self._ask(job)
        except WorkerError as error:
            if self.is_over:
                raise
            log.warning("%s; a new process decodes the clip", str(error).rpartition(": ")[0])
        return self._ask(job)

    def _ask(self, job: Job) -> Frames:
        if self.process is None or self.process.poll() is not None:
            paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
            env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        process, late = self.process, list[str]()
        alarm = threading.Timer(self.timeout, lambda: (late.append(silence(process, self.timeout)), process.kill()))
        alarm.daemon = True
        alarm.start()
        try:
            answer = converse(process, job)
        except (EOFError, OSError, pickle.UnpicklingError):
            code = self._end()
            why = late[0] if late else death(code)
            raise WorkerError(f"the process that decoded {job[0].source!r} {why}") from None
        finally:
            alarm.cancel()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        """Kill the process for good. Its pipes are for the thread that reads them to close."""
        self.is_over = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        if self.process is not None:
            self._end()

    def _end(self) -> int:
        """The exit code of the process, which is killed if it lives."""
        self.process.kill()
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            # half a question may still be buffered for a process that is gone
            with suppress(OSError):
                pipe.close()
        return code


def silence(process: subprocess.Popen[bytes], timeout: float) -> str:
    """Why a living process does not answer, and what to do about it."""
    what, stopped = f"said nothing for {timeout:g} s", None
    # macOS has no waitid before Python 3.13; an end that comes meanwhile is Popen's to see.
    with suppress(AttributeError, ChildProcessError):
        stopped = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    if stopped is None:
        return f"{what} and was killed: {BAD_CLIP}, or raise policy.video.timeout"
    return (
        f"was stopped by {name_of(stopped.si_status)}, {what} and was killed: find out what stops the run's processes, "
        f"or {NO_WORKERS}"
    )


def death(code: int) -> str:
    """How a process ended by itself or was killed, and what to do about it."""
    if code >= 0:
        return f"ended with exit code {code}: {BAD_CLIP}"
    remedy = f"if memory ran out, lower policy.video.workers or policy.video.max_frames, or {NO_WORKERS}"
    return f"was killed by {name_of(-code)}: {BAD_CLIP if -code in CRASHES else remedy}"


def name_of(number: int) -> str:
    return next((one.name for one in signal.Signals if one == number), f"signal {number}")


def converse(process: Any, job: Job) -> Frames | Exception:
    """One question, one answer: frames, or what is wrong with the clip. Raises EOFError or OSError when the process ends."""
    pickle.dump(job, process.stdin)
    process.stdin.flush()
    answer = pickle.load(process.stdout)  # noqa: S301 - from a process that this one started
    if isinstance(answer, Exception):
        return answer
    frames, shape = answer
    pixels = np.empty(shape, np.uint8)
    if process.stdout.readinto(pixels.reshape(-1).data) != pixels.size:
        raise EOFError
    return replace(frames, pixels=pixels)


@dataclass
class Workers:
    """`Workers(2).ask(video, rule)` gives a Future of Frames at once. Processes start with the first question."""

    number: int
    timeout: float = 120.0
    command: tuple[str, ...] = COMMAND
    _jobs: Jobs = field(default_factory=queue.SimpleQueue, init=False)
    _workers: list[Worker] = field(default_factory=list[Worker], init=False)

    def ask(self, video: Video, rule: FrameRule, hashed: bool) -> "Future[Frames]":
        if not self._workers:
            self._start()
        future: Future[Frames] = Future()
        self._jobs.put((future, (video, rule, hashed)))
        return future

    def _start(self) -> None:
        self._workers += [Worker(self.timeout, self.command) for _ in range(self.number)]
        for worker in self._workers:
            threading.Thread(target=work, args=(self._jobs, worker), daemon=True).start()
        weakref.finalize(self, stop, self._jobs, list(self._workers))


def stop(jobs: Jobs, workers: list[Worker]) -> None:
    for worker in workers:
        jobs.put(None)
        worker.stop()


def work(jobs: Jobs, worker: Worker) -> None:
    """Until a None comes: take a job, answer it."""
    while (job := jobs.get()) is not None:
        future, asked = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(worker(asked))
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to whoever asked
            future.set_exception(error)
    worker.close()
