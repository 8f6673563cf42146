"""Reference and averaged weights that rest on the CPU are no part of a card's memory, in the plan as in the run."""

import pytest

from mmrl.app.commands.plan import draw_up
from mmrl.app.config import run as configs
from mmrl.app.planning.memory import Memory

KEPT = "weights kept beside: ref"
pytestmark = pytest.mark.usefixtures("empty_desk")


def memory(where: str) -> Memory:
    """Of a run with a reference for its KL."""
    return draw_up(configs.load("tiny/image", ["algorithm.preset=grpo", f"policy.copies_on={where}", "data.size=8"])).memory


def test_copies_on_the_cpu_leave_the_card_and_are_told_of_the_host():
    near, far = memory("device"), memory("cpu")
    size = near.stays[KEPT]
    assert size > 0 and KEPT not in far.stays and KEPT not in near.host
    assert far.host[KEPT] == size
    # the live weights are put aside there, too, while the reference is looked through
    assert near.phases["read"] - far.phases["read"] == size
    assert near.peak - far.peak >= size
