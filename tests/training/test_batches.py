"""Minibatches and what they are divided by."""

from dataclasses import replace

import pytest
import torch

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.ranks import Ranks
from mmrl.core.readings import REF_LOGPROBS
from mmrl.core.types import Credit
from mmrl.training.batches import Batches
from tests.support.rows import rollouts
from tests.support.trainers import make_trainer

MASK = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]])
IDS = [4, 4, 4, 7, 7]
"""Row 1 is masked in a group that trains; the whole group 7 is masked."""


def batches(algorithm: Algorithm) -> Batches:
    return Batches(algorithm, Ranks(), torch.Generator().manual_seed(0))


def test_rows_and_groups_without_a_trainable_action_are_not_counted():
    counts = batches(Algorithm()).counts(rollouts(MASK, IDS))
    assert (counts.rollouts, counts.actions, counts.groups) == (2, 3, 1)


def test_counts_of_nothing_are_one():
    counts = batches(Algorithm()).counts(rollouts(torch.zeros(2, 3)))
    assert (counts.rollouts, counts.actions, counts.groups) == (1, 1, 1)


def test_shares_of_the_rows_that_train_add_up_to_one():
    credit = Credit(torch.ones(5, 3), torch.ones(5, dtype=torch.bool))
    (batch,) = batches(Algorithm())(rollouts(MASK, IDS), credit, {})
    # means per rollout of rows with 2 and 1 actions, halved
    expected = torch.tensor([[0.25, 0.25, 0], [0, 0, 0], [0.5, 0, 0], [0, 0, 0], [0, 0, 0]])
    torch.testing.assert_close(batch.share, expected)


def test_a_process_without_rows_has_one_of_no_share():
    algorithm = replace(Algorithm(), minibatches=1)
    some = rollouts(torch.ones(2, 3))
    credit = Credit(torch.ones(2, 3), torch.ones(2, dtype=torch.bool))
    batch = batches(algorithm).batch(some, credit, {}, torch.arange(0))
    assert len(batch) == 1 and not batch.share.any() and not batch.rollouts.action_mask.any()


def test_processes_agree_on_how_often_they_read_before_they_do(monkeypatch: pytest.MonkeyPatch):
    """Sharded weights are gathered while reading: whoever asked in between would meet a process that reads."""
    trainer = make_trainer(micro_batch=4)
    collected, done = trainer.collector.collect().rollouts, list[str]()
    read = trainer.policy.read
    monkeypatch.setattr(trainer.policy, "read", lambda *asked: (done.append("read"), read(*asked))[1])
    monkeypatch.setattr(trainer.ranks, "most", lambda count: (done.append("most"), count + 1)[1])
    trainer.reader.read_rows(collected, [REF_LOGPROBS])
    assert done[0] == "most" and done.count("most") == 1
    assert done.count("read") > 3 and done[1:] == ["read"] * (len(done) - 1)
