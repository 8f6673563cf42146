"""Processes that decode clips beside the policy; a dead or silent one gives an error, never a wait without end."""

import os
import pickle
import queue
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mmrl.core.samples import Video
from mmrl.policies.video.decode import Frames
from mmrl.policies.video.sampling import FramePlan

Job = tuple[Video, FramePlan, bool]
Jobs = queue.SimpleQueue[tuple["Future[Frames]", Job] | None]
COMMAND = (sys.executable, "-m", "mmrl.policies.video.worker")


@dataclass
class Worker:
    """One process, and the thread that talks to it."""

    timeout: float
    command: tuple[str, ...] = COMMAND
    process: Any = None
    """Its Popen, with pipes."""

    def __call__(self, job: Job) -> Frames:
        """Raises what the process raised; RuntimeError when it died or said nothing in time."""
        if self.process is None or self.process.poll() is not None:
            paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
            env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        process, late = self.process, threading.Event()
        alarm = threading.Timer(self.timeout, lambda: (late.set(), process.kill()))
        alarm.daemon = True
        alarm.start()
        try:
            answer = converse(process, job)
        except (EOFError, OSError, pickle.UnpicklingError):
            process.kill()
            code = process.wait()
            what = f"said nothing for {self.timeout:g} s and was stopped" if late.is_set() else f"died (exit {code})"
            raise RuntimeError(
                f"the process that decoded {job[0].source!r} {what}: take the clip out of the data, "
                "convert it to H.264, or raise policy.video.timeout"
            ) from None
        finally:
            alarm.cancel()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()


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
    """`Workers(2).ask(video, plan)` gives a Future of Frames at once. Processes start with the first question."""

    number: int
    timeout: float = 120.0
    command: tuple[str, ...] = COMMAND
    _jobs: Jobs = field(default_factory=queue.SimpleQueue, init=False)
    _workers: list[Worker] = field(default_factory=list[Worker], init=False)

    def ask(self, video: Video, plan: FramePlan, hashed: bool) -> "Future[Frames]":
        if not self._workers:
            self._start()
        future: Future[Frames] = Future()
        self._jobs.put((future, (video, plan, hashed)))
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
