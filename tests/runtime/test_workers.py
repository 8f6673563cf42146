"""A function in a process of its own: kept from call to call, started anew after a kill."""

import os
import signal
import struct
import sys
import time

import pytest

from mmrl.runtime.workers import WorkerError, WorkerProcess


def test_a_process_serves_call_after_call_and_a_killed_one_is_replaced():
    process = WorkerProcess(os.getpid)
    try:
        first = process()
        assert first != os.getpid() and process() == first
        process.close()
        assert process() != first
    finally:
        process.close()


def die_amid_the_answer() -> None:
    """Send the beginning of a message of 1,000 bytes, and be killed."""
    connection = sys._getframe(1).f_locals["connection"]
    os.write(connection.fileno(), struct.pack("!i", 1000) + b"half")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_amid_its_answer_has_died():
    """As one for whose memory the machine has no room."""
    with pytest.raises(WorkerError, match="its process died with exit code -9"):
        WorkerProcess(die_amid_the_answer)()


def test_what_takes_too_long_is_killed():
    process = WorkerProcess(time.sleep)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        process(60, timeout_s=0.01)
