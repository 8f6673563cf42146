"""Weights over the network into two servers, one of them with two workers: whole and exact, and given up in time."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmrl.engine.facts import Wanted, ask_facts, refuse_other
from mmrl.engine.generator import text_parts
from mmrl.engine.sync import BroadcastSync, FileSync, Update, checkpoint_weights, kind_for
from mmrl.engine.wire.client import EngineClient
from mmrl.engine.worker.weight_group import Card, TensorFacts, bundles, read_tensors, tensors_as_json
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import EngineConfig
from mmrl.runtime.blame import EngineUnavailableError
from tests.engine.servers import gap, policies_on, server_of
from tests.engine.test_servers import BOUND, move, sample_around_a_broken_reset
from tests.support.fake_engines import BROADCAST, FakeEngine, engines
from tests.support.text_policies import mixed

Make = Callable[..., TextPolicy]
SHORT = Sampling(max_new_tokens=5)


@pytest.fixture(scope="module")
def two(tiny: Callable[[str], str]) -> Iterator[list[FakeEngine]]:
    split = (*BROADCAST, "--tensor-parallel-size", "2")
    with engines(tiny("qwen2_5_vl"), 1, BROADCAST) as plain, engines(tiny("qwen2_5_vl"), 1, split) as other:
        yield [*plain, *other]


@pytest.fixture
def make(tiny: Callable[[str], str], two: list[FakeEngine]) -> Iterator[Make]:
    """Policies that broadcast their weights to the first `count` servers."""
    with policies_on(two) as made:

        def build(count: int = 2, timeout_s: float = 60.0, lora: LoraSettings | None = None) -> TextPolicy:
            engine = EngineConfig(url=tuple(one.url for one in two[:count]), sync="broadcast", timeout_s=timeout_s)
            torch.manual_seed(0)
            config = TextPolicyConfig(tiny("qwen2_5_vl"), engine=engine, lora=lora, sampling=SHORT)
            made.append(TextPolicy(config, parts=text_parts(config)))
            return made[-1]

        yield build


def sync_of(policy: TextPolicy) -> BroadcastSync:
    sync = server_of(policy).sync
    assert isinstance(sync, BroadcastSync)
    return sync


def test_new_weights_reach_every_worker_of_every_server(make: Make, two: list[FakeEngine]):
    policy = make()
    for _ in range(3):
        rollouts = policy.rollout(mixed())
        assert gap(policy, rollouts) < BOUND
        move(policy)
        assert gap(policy, rollouts) > 10 * BOUND, "the weights moved far enough to be seen"
    told = [engine.told() for engine in two]
    assert [len(one["received"]) for one in told] == [1, 2]
    assert len({seen for one in told for seen in one["received"]}) == 1, "bit for bit the same everywhere"
    assert [one["calls"].count("/update_weights") for one in told] == [3, 3]
    sync = sync_of(policy)
    assert [group.kind for group in sync.groups.values()] == ["gloo", "gloo"]
    assert not torch.distributed.is_initialized(), "the run's own group is left alone"
    last = told[1]["calls"][-8 - len(told[1]["wrote"]) :]
    caches = [f"/reset_{name}_cache" for name in ("prefix", "encoder", "mm")]
    wanted = ["/pause?mode=wait", *caches, "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume"]
    assert [call for call in last if call in wanted][-8:] == wanted
    assert not server_of(policy).folder.joinpath(f"{server_of(policy).run}-2").exists(), "nothing lies on the disk"


def test_adapters_travel_merged(make: Make):
    policy = make(1, lora=LoraSettings(rank=4, alpha=8))
    move(policy, 0.2)
    assert gap(policy, policy.rollout(mixed())) < BOUND


def test_a_transfer_that_a_worker_gives_up_is_made_again_in_another_group(make: Make, two: list[FakeEngine]):
    policy = make(1)
    policy.rollout(mixed())
    (first,) = (group.place.name for group in sync_of(policy).groups.values())
    move(policy)
    two[0].order(refuse=1)
    assert gap(policy, policy.rollout(mixed())) < BOUND
    (second,) = (group.place.name for group in sync_of(policy).groups.values())
    assert first != second


def test_a_server_whose_caches_were_not_reset_is_given_the_weights_again(make: Make, two: list[FakeEngine]):
    sample_around_a_broken_reset(make(1), two[0], 2)


def test_rows_go_to_the_other_server_where_one_has_only_half_of_the_weights(make: Make, two: list[FakeEngine]):
    policy = make()
    policy.rollout(mixed())
    move(policy)
    written = len(two[0].told()["wrote"])
    two[0].order(refuse=1)
    assert gap(policy, policy.rollout(mixed())) < BOUND
    assert len(two[0].told()["wrote"]) == written, "it is asked for nothing before it has them all"
    move(policy)
    policy.rollout(mixed())
    assert len(two[0].told()["wrote"]) > written


def test_a_worker_that_stands_still_is_given_up_in_time(make: Make, two: list[FakeEngine]):
    policy = make(1, timeout_s=3.0)
    policy.rollout(mixed())
    move(policy)
    two[0].order(stall=True)
    with pytest.raises(
        EngineUnavailableError, match=r"did not take all weights over the network \(.*policy.engine.sync = \"file\""
    ):
        policy.rollout(mixed())
    two[0].order()
    assert gap(policy, policy.rollout(mixed())) < BOUND, "and it goes on once the worker does"


def test_a_worker_that_does_not_join_is_given_up_in_time(make: Make, two: list[FakeEngine]):
    policy = make(1, timeout_s=2.0)
    two[0].order(deaf=1000)
    with pytest.raises(EngineUnavailableError, match=r"its 1 worker\(s\) did not join"):
        policy.rollout(mixed())


def test_weights_of_another_shape_are_refused_before_any_is_touched(make: Make, two: list[FakeEngine], monkeypatch):
    policy = make(1)
    before = policy.rollout(mixed())
    sync, updates = sync_of(policy), two[0].told()["calls"].count("/start_weight_update")
    client = EngineClient(two[0].url)
    some = next(iter(sync.weights))
    monkeypatch.setattr(sync, "weights", {**sync.weights, some: sync.weights[some][:1]})
    with pytest.raises(ValueError, match=f"cannot take the weights .*{some}"):
        sync.push(client, Update("bad-9", server_of(policy).folder))
    assert two[0].told()["calls"].count("/start_weight_update") == updates
    monkeypatch.undo()
    assert policy.rollout(mixed()).groups == before.groups


def test_a_server_killed_in_a_transfer_and_started_again_gets_a_group_and_the_weights(tiny: Callable[[str], str]):
    folder = tiny("qwen2_5_vl")
    with contextlib.ExitStack() as stack:
        (first,) = stack.enter_context(engines(folder, 1, BROADCAST))
        engine = EngineConfig(url=(first.url,), sync="broadcast", timeout_s=60.0)
        config = TextPolicyConfig(folder, engine=engine, sampling=SHORT)
        policy = TextPolicy(config, parts=text_parts(config))
        stack.callback(server_of(policy).close)
        policy.rollout(mixed())
        move(policy)
        first.order(stall=True)

        def kill_and_start() -> None:
            while first.told()["calls"][-1] != "/update_weights":
                time.sleep(0.05)
            first.process.kill()
            stack.enter_context(engines(folder, 1, BROADCAST, int(first.url.rsplit(":", 1)[1])))

        killing = threading.Thread(target=kill_and_start)
        killing.start()
        rollouts = policy.rollout(mixed())
        killing.join()
        assert not first.process.runs and gap(policy, rollouts) < BOUND
        assert rollouts.weights_version == 1 and len(first.told()["received"]) == 1


def test_a_server_that_takes_files_alone_is_refused_and_one_that_takes_broadcasts_takes_files(two: list[FakeEngine]):
    facts = ask_facts(EngineClient(two[0].url))
    wanted = Wanted(facts.model, "float32", facts.tokens, "broadcast")
    refuse_other(facts, wanted, "here")
    refuse_other(facts, replace(wanted, sync="file"), "here")
    with pytest.raises(ValueError, match=r'by file, and the run sends them by broadcast: start it with .*"backend": "broadcast"'):
        refuse_other(replace(facts, transfer="file"), wanted, "here")
    assert EngineConfig(url=("http://node7:8000",), sync="broadcast").folder == "", "no shared folder is needed"


@pytest.mark.parametrize("family", ["gemma3", "internvl", "llava_onevision", "qwen2_5_vl", "qwen3_vl", "smolvlm"])
def test_what_travels_is_what_a_file_would_hold(family: str, tiny: Callable[[str], str], tmp_path: Path):
    policy = TextPolicy(TextPolicyConfig(tiny(family)))
    FileSync("bfloat16").save(policy, Update("one-1", tmp_path))
    held, sent = load_file(tmp_path / "model.safetensors"), checkpoint_weights(policy, torch.bfloat16)
    assert held.keys() - sent.keys() <= {"lm_head.weight"} and sent.keys() <= held.keys(), "a tied weight travels once"
    assert all(torch.equal(held[name], weight) and held[name].dtype == weight.dtype for name, weight in sent.items())


def test_bundles_hold_every_tensor_once_at_aligned_places():
    weights = {
        "odd": torch.arange(5, dtype=torch.uint8),
        "half": torch.randn(3, 5).bfloat16(),
        "large": torch.zeros(100, 7),
        "one": torch.tensor(2.5),
        "none": torch.zeros(0, 4),
        "count": torch.tensor([7, 8]),
    }
    facts = [TensorFacts.of(name, weight) for name, weight in weights.items()]
    assert read_tensors(tensors_as_json(facts)) == facts
    assert [one.nbytes for one in facts] == [5, 30, 2800, 4, 0, 16]
    found = bundles(facts, 64)
    # 16 + 32 bytes, 2800 alone for it is above 64, then 16 + 0 + 16
    assert [[(one.name, begin) for one, begin in bundle] for bundle in found] == [
        [("odd", 0), ("half", 16)],
        [("large", 0)],
        [("one", 0), ("none", 16), ("count", 16)],
    ]


def test_cards_that_can_talk_use_nccl_and_all_others_gloo():
    """NCCL of two versions, or twice on one card, is refused by itself with words that help nobody."""
    a, b, old = Card("a", (2, 28, 3)), Card("b", (2, 28, 3)), Card("b", (2, 27, 5))
    assert kind_for(a, [b, Card("c", (2, 28, 3))]) == ("nccl", "")
    assert kind_for(Card(), [b]) == kind_for(a, [b, Card()]) == ("gloo", "")
    assert kind_for(a, [old]) == ("gloo", "NCCL is 2.28.3 here and 2.27.5 there, and has to be the same")
    assert kind_for(a, [a])[0] == "gloo" and "share a card" in kind_for(a, [a])[1]
