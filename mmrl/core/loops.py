"""The event loop of async rewards, in training and in the reward server. Standard library only."""

import asyncio
import threading
from functools import cache


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The one event loop of all async rewards: clients and semaphores made in it stay usable from call to call."""
    made = asyncio.new_event_loop()
    threading.Thread(target=made.run_forever, name="reward-loop", daemon=True).start()
    return made
