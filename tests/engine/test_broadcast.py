"""Weights over the network into two servers, as copies on a machine, and as what 4 bits stand for: whole, exact and in time."""

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mmrl.engine.facts import Wanted, ask_facts, look_at_engine, refuse_other
from mmrl.engine.generator import text_parts
from mmrl.engine.sync import BroadcastSync, FileSync, Update, checkpoint_weights, kind_for
from mmrl.engine.wire.client import EngineClient
from mmrl.engine.worker import weight_copy
from mmrl.engine.worker.weight_copy import SUMS, copy_near, drop_copies, place_of, write_sums
from mmrl.engine.worker.weight_group import Card, TensorFacts, bundles, read_tensors, tensors_as_json
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.quantized import kept
from mmrl.policies.text.loading import server_model
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import EngineConfig, QuantizedSettings
from mmrl.runtime.blame import EngineUnavailableError
from tests.engine.servers import gap, policies_on, server_of
from tests.engine.test_servers import BOUND, sample_around_a_broken_reset
from tests.policies.text.test_quantized import in_4_bits, with_adapter
from tests.support import text_policies
from tests.support.fake_engines import BROADCAST, FakeEngine, engines, impatient, make_environment
from tests.support.refused import refused
from tests.support.stored_codes import change_weights
from tests.support.text_policies import logprobs, mixed, move

Make = Callable[..., TextPolicy]
SHORT, LORA = Sampling(max_new_tokens=5), LoraSettings(rank=4, alpha=8)


@pytest.fixture(scope="module")
def two(tiny: Callable[[str], str]) -> Iterator[list[FakeEngine]]:
    split = (*BROADCAST, "--tensor-parallel-size", "2")
    with engines(tiny("qwen2_5_vl"), 1, BROADCAST) as plain, engines(tiny("qwen2_5_vl"), 1, split) as other:
        yield [*plain, *other]


@pytest.fixture
def make(tiny: Callable[[str], str], two: list[FakeEngine]) -> Iterator[Make]:
    """Policies that broadcast their weights to the first `count` servers."""
    with policies_on(two) as made:

        def build(count: int = 2, lora: LoraSettings | None = None) -> TextPolicy:
            engine = EngineConfig(url=tuple(one.url for one in two[:count]), sync="broadcast", timeout_s=60.0)
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
    policy = make(1, lora=LORA)
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


def test_a_worker_that_stands_still_is_given_up_in_time(make: Make, two: list[FakeEngine], monkeypatch: pytest.MonkeyPatch):
    policy = make(1)
    policy.rollout(mixed())
    move(policy)
    two[0].order(stall=True)
    with monkeypatch.context() as patch:
        impatient(patch)
        patch.setattr(sync_of(policy), "timeout_s", 3.0)
        refused(r'not take all weights over the network \(.*sync = "file"', policy.rollout, mixed(), error=EngineUnavailableError)
    two[0].order()
    assert gap(policy, policy.rollout(mixed())) < BOUND, "and it goes on once the worker does"


def test_a_worker_that_does_not_join_is_given_up_in_time(make: Make, two: list[FakeEngine], monkeypatch: pytest.MonkeyPatch):
    policy = make(1)
    impatient(monkeypatch)
    monkeypatch.setattr("mmrl.engine.sync.JOIN_S", 2.0)
    two[0].order(deaf=1000)
    refused(r"its 1 worker\(s\) did not join", policy.rollout, mixed(), error=EngineUnavailableError)


def test_weights_of_another_shape_are_refused_before_any_is_touched(make: Make, two: list[FakeEngine], monkeypatch):
    policy = make(1)
    before = policy.rollout(mixed())
    sync, updates = sync_of(policy), two[0].told()["calls"].count("/start_weight_update")
    client = EngineClient(two[0].url)
    some = next(iter(sync.weights))
    monkeypatch.setattr(sync, "weights", {**sync.weights, some: sync.weights[some][:1]})
    refused(f"cannot take the weights .*{some}", sync.push, client, Update("bad-9", server_of(policy).folder))
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


@pytest.fixture
def local() -> Iterator[str]:
    """A folder of a machine's own."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Weights of one update, of the run `one`."""
    return written(tmp_path / "one-1", b"first")


def written(folder: Path, content: bytes) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_bytes(b"{}")
    write_sums(folder)
    return folder


def test_many_ask_and_one_reads(shared: Path, local: str, monkeypatch: pytest.MonkeyPatch):
    copy, read = weight_copy.copy_file, list[str]()

    def count(source: Path, target: Path, wanted: str) -> None:
        read.append(source.name)
        copy(source, target, wanted)

    monkeypatch.setattr(weight_copy, "copy_file", count)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: copy_near(str(shared), local), range(8))) == {place_of(str(shared), local)}
    assert read == ["config.json", "model.safetensors"]
    assert (place_of(str(shared), local) / "model.safetensors").read_bytes() == b"first"
    drop_copies(local)
    assert [path.name for path in Path(local).iterdir()] == ["mmrl-weights.lock"]


def test_what_is_not_what_was_written_is_refused_and_a_copy_that_broke_off_is_made_again(shared: Path, local: str):
    whole = (shared / "model.safetensors").read_bytes()
    for broken in (b"firs", b"fIrst"):
        (shared / "model.safetensors").write_bytes(broken)
        refused(r"as .* reads it, is not what was written", copy_near, str(shared), local)
    (shared / "model.safetensors").write_bytes(whole)
    assert (copy_near(str(shared), local) / "model.safetensors").read_bytes() == whole
    (shared / SUMS).unlink()
    assert copy_near(str(shared), local), "it is there"
    refused("cannot be copied to", copy_near, str(shared.with_name("one-2")), local)


def test_a_copy_that_finds_no_room_is_refused(shared: Path, local: str, monkeypatch: pytest.MonkeyPatch):
    full = shutil.disk_usage(local)._replace(free=3)
    monkeypatch.setattr(weight_copy.shutil, "disk_usage", lambda _: full)
    refused(r"has 0\.0 GB free, and the weights are 0\.0 GB: name a larger folder", copy_near, str(shared), local)


def test_a_file_of_weights_has_its_sums_where_copies_are_made(tmp_path: Path):
    for sync, held in ((FileSync(local="/dev/shm"), True), (FileSync(), False)):
        folder = tmp_path / str(held)
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"abc")
        sync.wrote(Update("one-1", folder))
        assert (folder / SUMS).exists() == held
    sums = json.loads((tmp_path / "True" / SUMS).read_text())
    assert sums == {"model.safetensors": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}, "FIPS 180-2, B.1"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def config_of(folder: str, engine: EngineConfig, **settings: Any) -> TextPolicyConfig:
    settings = {"weights": "nf4", "lora": LORA, "sampling": SHORT, **settings}
    return TextPolicyConfig(folder, engine=engine, **settings)


def test_rows_are_written_beside_the_same_numbers(tiny: Callable[[str], str], tmp_path: Path):
    engine = EngineConfig(environment=str(make_environment(tmp_path / "vllm")), timeout_s=60.0)
    config = config_of(tiny("qwen2_5_vl"), engine)
    look_at_engine(config)
    torch.manual_seed(0)
    policy = TextPolicy(config, parts=text_parts(config))
    with contextlib.closing(server_of(policy)) as generator:
        for _ in range(2):
            move(policy)
            assert gap(policy, policy.rollout(mixed())) < BOUND
        assert generator.model == server_model(config) and generator.fleet is not None
        assert generator.fleet.members[0].facts.model == generator.model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_folder_is_the_rounded_model(tiny: Callable[[str], str], dtype: str):
    own = in_4_bits(tiny("qwen3_vl"), dtype=dtype)
    folder = server_model(own.config)
    twin = with_adapter(text_policies.make(folder, lora=LORA, dtype=dtype))
    rollouts = own.rollout(mixed())
    assert torch.equal(logprobs(own, rollouts), logprobs(twin, rollouts))


def test_it_is_made_once_and_named_by_its_source(tiny: Callable[[str], str], monkeypatch: pytest.MonkeyPatch):
    config = config_of(tiny("qwen3_vl"), EngineConfig())
    folder = server_model(config)
    others = [replace(config, **one) for one in ({"quantized": QuantizedSettings(double=False)}, {"dtype": "bfloat16"})]
    others.append(config_of(tiny("qwen2_5_vl"), EngineConfig()))
    assert len({folder, *map(server_model, others)}) == 4
    monkeypatch.setattr(kept, "quantize", lambda *_: pytest.fail("it was made again"))
    assert server_model(config) == folder
    assert server_model(replace(config, weights="float")) == tiny("qwen3_vl")


def test_a_server_with_other_numbers_is_refused_before_anything_is_loaded(tiny: Callable[[str], str]):
    with engines(tiny("qwen3_vl")) as (engine,):
        config = config_of(tiny("qwen3_vl"), EngineConfig(url=(engine.url,)))
        refused(r"serves '.*qwen3_vl\w*', and the run needs '.*whole-\w{12}': serve that model", look_at_engine, config)


@pytest.mark.parametrize("sync", ["file", "broadcast"])
def test_ways_that_send_all_weights_are_refused(sync: Any):
    with pytest.raises(ValueError, match=rf'sync is "{sync}", which sends all weights, .*: set policy.engine.sync = "lora"'):
        config_of("m", EngineConfig(sync=sync))


def test_a_model_that_cannot_be_written_so_is_refused(tiny: Callable[[str], str], tmp_path: Path, cache: Path):
    config = config_of(tiny("qwen3_vl"), EngineConfig())
    with pytest.raises(ValueError, match=r"files or code of its own that do not allow to write what 4 bits stand for"):
        server_model(replace(config, trust_remote_code=True))
    cache.write_text("a file where the cache should be")
    refused(r"reads what the 4 bits of policy.model .* stand for, and mmrl's cache cannot take it", server_model, config)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("whole")]
    broken = tmp_path / "broken"
    os.unlink(cache)
    kept.shutil.copytree(tiny("qwen3_vl"), broken)
    change_weights(broken, lambda found: {name: weight * torch.nan for name, weight in found.items()})
    refused("holds NaN or infinity", server_model, config_of(str(broken), EngineConfig()))
