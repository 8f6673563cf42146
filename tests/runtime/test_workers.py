"""A function in a process of its own: kept from call to call, started anew after a kill."""

import os
import time

import pytest

from mmrl.runtime.workers import WorkerProcess


def test_a_process_serves_call_after_call_and_a_killed_one_is_replaced():
    process = WorkerProcess(os.getpid)
    try:
        first = process()
        assert first != os.getpid() and process() == first
        process.close()
        assert process() != first
    finally:
        process.close()


def test_what_takes_too_long_is_killed():
    process = WorkerProcess(time.sleep)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        process(60, timeout_s=0.01)
