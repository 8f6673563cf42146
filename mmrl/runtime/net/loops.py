"""The event loops of async rewards, in training and in the reward server, and of requests. Standard library only."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable
from functools import cache
from typing import TypeVar

from mmrl.runtime.blame import describe

T = TypeVar("T")
_ONE_AT_A_TIME = threading.Lock()


def loop(name: str = "reward-loop") -> asyncio.AbstractEventLoop:
    """The one event loop of all async rewards: clients and semaphores made in it stay usable from call to call.

    Another name is another loop, which a reward that blocks this one does not hold up.
    """
    # a cache alone would let threads that ask first at the same time make one each
    with _ONE_AT_A_TIME:
        # a process that forked off has the objects, but not the threads that run them
        return _new_loop(name, os.getpid())


@cache
def _new_loop(name: str, process: int) -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    threading.Thread(target=run_on, args=(made,), name=name, daemon=True).start()
    return made


def run_on(made: asyncio.AbstractEventLoop) -> None:
    """Run a loop for ever: a coroutine that exits or interrupts ends it, and all that others wait for would never come."""
    while True:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            made.run_forever()


def wait_for(answer: Awaitable[T]) -> T:
    """Run an awaitable in the one loop and return its answer; for callers outside the loop."""

    return asyncio.run_coroutine_threadsafe(contain(answer), loop()).result()


class EscapeError(RuntimeError):
    """A coroutine raised what would end the loop, or look as if somebody had cancelled it."""


async def contain(answer: Awaitable[T]) -> T:
    """The awaitable's answer; EscapeError for SystemExit, KeyboardInterrupt or an own CancelledError of it."""
    try:
        return await answer
    except Exception:
        # what the loop itself carries to whoever waits; only the rest would end it
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            # a true request to stop, which the task must obey
            raise
        raise EscapeError(describe(error)) from error
