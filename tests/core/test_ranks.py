"""One process pays for nothing; of several, all do the same things equally often."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmrl.core.ranks import NoTrace, Ranks
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Group, Prompt, Rollouts, Sample
from mmrl.runtime.accelerator import is_sharded
from tests.support.fakes import FakeAccelerator, PlayedRanks, Steps
from tests.support.refused import refused


def test_one_process_waits_for_nobody():
    ranks = Ranks()
    assert (ranks.most(3), ranks.forwards(3), ranks.passes(0), ranks.anyone(False)) == (3, 3, 0, False)


def loud(kind: str = "MULTI_GPU", **more: Any) -> FakeAccelerator:
    """An accelerator whose other process says 5 whenever tensors are gathered."""
    return FakeAccelerator(2, kind, gather=lambda x: torch.cat([x, torch.full_like(x, 5)]), **more)


def test_replicas_talk_where_there_is_a_gradient():
    ranks = Ranks(loud())
    assert ranks.forwards(3) == 5
    with torch.no_grad():
        assert ranks.forwards(3) == 3
    assert (ranks.passes(0), ranks.passes(2), ranks.anyone(False)) == (1, 2, False)


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_shards_talk_at_every_forward(kind: str):
    plugin = SimpleNamespace(deepspeed_config={"zero_optimization": {"stage": 3}})
    accelerator = loud(kind, deepspeed_plugin=plugin)
    assert is_sharded(accelerator) and not is_sharded(loud())
    ranks = Ranks(accelerator)
    with torch.no_grad():
        assert (ranks.forwards(3), ranks.passes(0), ranks.anyone(False)) == (5, 5, True)


def second() -> Ranks:
    """The second of two processes, both of which have the same to say."""
    return PlayedRanks(lambda x: [x, x], 1)


def uneven(other: Rollouts) -> Ranks:
    """The second of two processes, of which the first has other rows."""
    return PlayedRanks(lambda x: [other, x] if isinstance(x, Rollouts) else [x, x], 1)


def rollouts(num_rows: int, length: int) -> Rollouts:
    prompt, samples = Prompt("p", media=("a.png",)), tuple(Sample("x", image=object(), sound=object()) for _ in range(num_rows))
    ids = torch.zeros(num_rows, dtype=torch.long)
    mask = torch.ones(num_rows, length, dtype=torch.bool)
    return Rollouts((Group(0, prompt, samples),), ids, torch.arange(num_rows), mask, Steps({}))


def test_rows_of_all_processes_without_pictures_and_sounds():
    own = rollouts(3, 2)
    everyone, mine = second().all_rows(own)
    assert (len(everyone), mine) == (6, slice(3, 6))
    assert everyone.sample_ids.tolist() == [0, 1, 2, 0, 1, 2]
    assert all(group.prompt.media == () and sample.output is None for group in everyone.groups for sample in group.samples)
    alone, mine = Ranks().all_rows(own)
    assert (len(alone), mine) == (3, slice(0, 3))
    assert alone.groups == everyone.groups[:1] and type(alone.trace) is type(everyone.trace) is NoTrace


def test_what_was_recorded_is_seen_on_one_process_as_on_two():
    noted = {ROLLOUT_LOGPROBS: torch.tensor([[-1.0, -2.0], [torch.nan, torch.nan], [-3.0, -4.0]])}
    own = replace(rollouts(3, 2), recorded=noted)
    everyone, mine = second().all_rows(own)
    alone, _ = Ranks().all_rows(own)
    for seen in (everyone.recorded[ROLLOUT_LOGPROBS][mine], everyone.recorded[ROLLOUT_LOGPROBS][:3], *alone.recorded.values()):
        torch.testing.assert_close(seen, noted[ROLLOUT_LOGPROBS], equal_nan=True)


def test_what_one_process_did_not_record_is_seen_by_none():
    own = replace(rollouts(3, 2), recorded={ROLLOUT_LOGPROBS: torch.zeros(3, 2)})
    everyone, mine = uneven(replace(rollouts(2, 5), trace=NoTrace())).all_rows(own)
    assert (everyone.recorded, mine, everyone.action_mask.shape) == ({}, slice(2, 5), (5, 5))


def test_rows_of_all_processes_are_made_equally_long():
    short, long = rollouts(1, 2), rollouts(2, 3)
    nodes = torch.tensor([[4, 5, 6], [4, 5, 7]])
    everyone, mine = uneven(replace(long, node_ids=nodes)).all_rows(replace(short, node_ids=torch.tensor([[8, 9]])))
    assert mine == slice(2, 3)
    assert everyone.action_mask.tolist() == [[True] * 3, [True] * 3, [True, True, False]]
    assert everyone.node_ids is not None and everyone.node_ids.tolist() == [[4, 5, 6], [4, 5, 7], [8, 9, 0]]


@pytest.mark.parametrize(("world", "done"), [(1, []), (2, ["wait", "end"])])
def test_only_several_processes_leave_together(world: int, done: list[str]):
    told = list[str]()
    wait, end = (lambda word=word: told.append(word) for word in ("wait", "end"))
    Ranks(FakeAccelerator(world, wait_for_everyone=wait, end_training=end)).close()
    assert told == done


def test_prompts_that_do_not_divide_are_refused():
    assert second().share_out([1, 2, 3, 4]) == [3, 4]
    refused("3 prompts do not divide over 2 processes: set prompts_per_step to a multiple of 2", second().share_out, [1, 2, 3])


def test_a_problem_of_one_is_raised_by_all():
    for ranks in (Ranks(), second()):
        ranks.agree(None)
        refused("no room", ranks.agree, "no room")
    refused("of the first", PlayedRanks(lambda x: ["of the first", x], 1).agree, None)
