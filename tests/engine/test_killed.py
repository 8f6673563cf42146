"""vLLM is killed while it writes: it is started again, given the weights of the step, and the step goes on."""

import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmrl.core.types import Prompt, Request, Rollouts
from mmrl.policies.text.policy import Sampling, TextPolicy
from tests.engine.servers import CLOSE, gap, move, server_of

pytestmark = pytest.mark.engine
SAMPLING = Sampling(max_new_tokens=256)


def engine_process(group: int) -> int:
    """The process of a server's group that computes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # the command's name may hold spaces and brackets, so what follows the last bracket is read
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and b"EngineCore" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    (one,) = found
    return one


def wait_until_it_writes(policy: TextPolicy) -> None:
    generator = server_of(policy)
    assert generator.fleet is not None
    for _ in range(10_000):
        text = str(generator.fleet.members[0].client.get("/metrics"))
        running = re.search(r"^vllm:num_requests_running\{.*?\} (\d+)", text, re.M)
        if running and int(running[1]) > 0:
            return
        time.sleep(0.02)
    raise AssertionError("it was never seen writing")


def test_it_is_started_again_with_the_weights_of_the_step(owner: TextPolicy, asked: Sequence[Prompt]):
    requests = [Request(prompt, 2, group_id=i, seed=41 + i) for i, prompt in enumerate(asked)]
    move(owner, by=0.2)
    undisturbed = owner.rollout(requests, SAMPLING)
    assert gap(owner, undisturbed) < CLOSE
    server, found, killed = server_of(owner).server, list[Rollouts](), threading.Event()
    assert server is not None
    before = server.process.pid

    def write() -> None:
        """Steps after steps, so that the kill falls into one; the last begins before it and ends after it."""
        while not killed.is_set():
            found.append(owner.rollout(requests, SAMPLING))

    writing = threading.Thread(target=write)
    writing.start()
    wait_until_it_writes(owner)
    os.kill(engine_process(before), signal.SIGKILL)
    killed.set()
    writing.join()
    found.append(owner.rollout(requests, SAMPLING))
    assert server.process.pid != before, "another server has answered"
    assert all(rollouts.groups == undisturbed.groups for rollouts in found), "the same seeds and weights: the same samples"
    assert gap(owner, found[-1]) < CLOSE
    assert found[-1].weights_version == undisturbed.weights_version
