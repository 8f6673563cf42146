"""The one event loop of async rewards."""

import threading
from concurrent.futures import ThreadPoolExecutor

from mmrl.runtime.net.loops import loop, wait_for


def test_there_is_one_loop_whose_thread_keeps_no_program_alive():
    with ThreadPoolExecutor(4) as pool:
        assert len({id(found) for found in pool.map(lambda _: loop(), range(8))}) == 1
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "reward-loop"]
    assert thread.daemon


def test_an_answer_is_waited_for():
    async def answer() -> int:
        return 3

    assert wait_for(answer()) == 3
