"""A server that two processes share: the first one gives it weights and empties its caches, the other waits until it has."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mmrl.engine.facts import ask_facts
from mmrl.engine.fleet import Fleet, Member, Probe, limits_of
from mmrl.engine.sync import FileSync, Update
from mmrl.engine.wire.client import EngineClient
from mmrl.engine.wire.completions import AnswerFacts, Ask, WirePrompt, sampling_params, share_rows
from mmrl.engine.wire_prompts import wire_prompts
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import EngineConfig
from mmrl.runtime.blame import EngineUnavailableError
from tests.support.fake_engines import FakeEngine, engines
from tests.support.launcher import results
from tests.support.ports import free_ports
from tests.support.text_policies import prompts

SHORT = Sampling(max_new_tokens=3)


def fleet_of(engine: FakeEngine, policy: TextPolicy, update: Update, rank: int, timeout_s: float = 20.0) -> Fleet:
    """The servers of a run as the process of this rank sees them, with the one server lost."""
    client = EngineClient(engine.url, 20.0)
    member = Member(client, ask_facts(client), alive=False, trouble="its caches were not reset")
    settings = EngineConfig(url=(engine.url,), timeout_s=timeout_s)
    return Fleet([member], FileSync(), settings, rank, update=update, probe=Probe.of(policy))


@pytest.fixture
def policy(tiny: Callable[[str], str]) -> TextPolicy:
    return TextPolicy(TextPolicyConfig(tiny("qwen2_5_vl")))


@pytest.fixture
def update(policy: TextPolicy, tmp_path: Path) -> Update:
    update = Update("one-1", tmp_path / "one-1")
    FileSync().save(policy, update)
    return update


def one_row(policy: TextPolicy) -> tuple[list[Ask], list[WirePrompt], dict[str, object], AnswerFacts]:
    params, asks = sampling_params(SHORT, policy.banned, policy.eos_token_ids), share_rows([0], [(1, 0)])
    return asks, wire_prompts(policy, [policy.encode(prompts()[0])]), params, limits_of(policy, SHORT)


def test_only_the_first_process_takes_a_server_back(policy: TextPolicy, update: Update):
    asked = one_row(policy)
    with engines(policy.config.model) as (engine,):
        first, second = fleet_of(engine, policy, update, 0), fleet_of(engine, policy, update, 1, timeout_s=0.6)
        engine.order(break_reset=2)
        with pytest.raises(EngineUnavailableError, match=r"no engine answers \(its caches were not reset"):
            second.write(*asked)
        assert not {"/pause?mode=wait", "/reset_prefix_cache", "/update_weights"} & set(engine.told()["calls"])
        first.write(*asked)
        calls = engine.told()["calls"]
        assert calls.count("/pause?mode=wait") == 2 and calls.count("/update_weights") == 1, "after a reset that failed, again"
        second.begin()
        second.members[0] = replace(second.members[0], alive=False)
        second.write(*asked)
        assert len(engine.told()["wrote"]) == 3, "a first question, and a row of each"


def test_a_server_that_lost_its_weights_gets_them_though_the_first_process_asks_nothing(
    policy: TextPolicy, update: Update, monkeypatch: pytest.MonkeyPatch
):
    """The first process may have its rows already, and wait for the others."""
    monkeypatch.setattr("mmrl.engine.fleet.LOOK_S", 0.01)
    port = free_ports(1)
    with engines(policy.config.model, port=port) as (engine,):
        first, second = (fleet_of(engine, policy, update, rank) for rank in (0, 1))
        first.update = None
        looking = threading.Thread(target=first.look_after_all)
        looking.start()
        time.sleep(0.3)
        first.update = update
        first.push()
    with engines(policy.config.model, port=port) as (engine,):
        second.write(*one_row(policy))
        first.is_over.set()
        looking.join()
        calls = engine.told()["calls"]
        assert calls.count("/update_weights") == 1 and len(engine.told()["wrote"]) == 2, "a first question, and the row"


@pytest.mark.slow
def test_two_processes_never_sample_with_stale_caches(tiny: Callable[[str], str], tmp_path: Path):
    with engines(tiny("qwen2_5_vl")) as (engine,):
        found = results("tests.engine.run_ranks", "replicated", tmp_path, tiny("qwen2_5_vl"), engine.url)
    assert len(found) == 2 and max(gap for one in found for gap in one["gaps"]) < 1e-4, found
    assert all(len(one["gaps"]) == 6 for one in found), "the last one of a thread, ahead of two updates"
