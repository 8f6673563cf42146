"""What is written keeps what was read and shares its prompt, compiled or not: the same tokens as when each has a copy."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.views import Hint
from mmrl.core.episodes import Limits
from mmrl.core.ranks import Ranks
from mmrl.core.types import Observation, Prefix, Prompt, Request, Rollouts, Shown, Turn
from mmrl.policies.shared.hypotheses import COMPILED
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.check.diagnose import SHARED
from mmrl.policies.text.dry_run import TextDryRun
from mmrl.policies.text.kept import Keeper, KeptStrip, Past, drained, keeper_of
from mmrl.policies.text.loading import load_config
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.packed import room
from mmrl.policies.text.packed.room import SharedRoom
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.read.packable import shares_prompts
from mmrl.policies.text.settings import EngineConfig, QuantizedSettings
from mmrl.policies.text.write import generate
from mmrl.policies.text.write.generate import Generation, bare
from mmrl.runtime.blame import UnavailableError
from tests.support.devices import host_looks
from tests.support.each import for_each
from tests.support.fakes import PlayedRanks
from tests.support.faults import Fault, message_of
from tests.support.text_policies import FP32_BOUND, gap, ids_of, make, picture, prompts, text_trace
from tests.support.worlds import Inline, branch_of, looking, player

LIMITS = Limits(turns=4, tokens=2000)
LORA = LoraSettings(rank=4)
LONG = Sampling(max_new_tokens=24, stop=("a", "e", "t"))
SHARING: dict[str, dict[str, Any]] = {
    "stop texts, so that rows leave": {"sampling": LONG},
    "greedy rows, which are alike": {"sampling": Sampling(temperature=0.0, max_new_tokens=8)},
    "top_p": {"sampling": Sampling(top_p=0.7, max_new_tokens=12)},
    "one token": {"sampling": Sampling(max_new_tokens=1)},
    "LoRA": {"sampling": LONG, "lora": LORA},
    "4 bits": {"lora": LORA, "weights": "nf4", "quantized": QuantizedSettings(double=False)},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "chunks that cut groups": {"sampling": LONG, "rollout_rows": 5},
}
PAIRS = SHARING | {
    "repeated prompts": {"prefix": "repeated"},
    "eager attention": {"attn_implementation": "eager", "prefix": "repeated"},
    "no cache of pictures": {"vision_cache_mib": 0},
}


def talking(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """Answers of very different lengths, some with pictures; some samples end early."""
    drawn = seed % 89 + 5 * len(turns)
    if len(turns) > 1 and drawn % 7 == 0:
        return None
    shown = (picture(drawn % 11, 60 + 20 * (drawn % 3), 60),) if drawn % 3 == 0 else ()
    return Observation("word " * (1 + drawn % 4) * (12 if drawn % 5 == 0 else 1), shown)


def asked(counts: Sequence[int] = (4, 4)) -> list[Request]:
    return [Request(prompt, count, i, seed=70 + i) for i, (prompt, count) in enumerate(zip(prompts(), counts, strict=False))]


def stir(policy: TextPolicy) -> TextPolicy:
    generator = torch.Generator().manual_seed(0)
    for name, weight in policy.weights.named.items():
        if "lora_" in name:
            weight.data.normal_(std=0.05, generator=generator)
    return policy


def is_same(one: Rollouts, other: Rollouts) -> bool:
    a, b = text_trace(one.trace).tokens, text_trace(other.trace).tokens
    return a.shape == b.shape and torch.equal(a, b)


def check(plain: TextPolicy, shared: TextPolicy, requests: Sequence[Request]) -> Rollouts:
    """The rollouts of both, which are the same and read again as they were noted."""
    one, other = stir(plain).rollout(requests), stir(shared).rollout(requests)
    assert is_same(one, other), "the same tokens"
    assert gap(shared, other) <= FP32_BOUND
    return other


def both(folder: str, world: Any = talking, most: int | None = None, **settings: Any) -> tuple[TextPolicy, Rollouts]:
    """A policy that keeps, and its episodes, which are those of one that does not."""
    plain, kept = (player(folder, Inline(world, LIMITS), episode_cache_mib=mib, **settings) for mib in (0, 64))
    assert plain.keeper is None and kept.keeper is not None
    kept.keeper.most = kept.keeper.most if most is None else most
    rollouts = check(plain, kept, asked())
    assert kept.keeper.peak <= kept.keeper.most and not kept.keeper.held, "nothing outlives its episodes"
    return kept, rollouts


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "gemma3", "internvl"])
def test_no_token_is_read_twice(tiny: Any, family: str):
    policy, rollouts = both(tiny(family))
    assert policy.keeper is not None and sum(map(len, text_trace(rollouts.trace).insets)) > 3, "pictures were shown"
    metrics = policy.drain_metrics()
    assert metrics["rollout/dropped_turns"] == 0 and "rollout/kept_tokens" not in policy.drain_metrics()
    if family != "gemma3":
        # each prompt once, what came between turns once, and the last token of each turn that was gone on from
        rows = [sample for _, sample in rollouts.samples()]
        between = sum(turn.span[0] - before.span[1] + 1 for one in rows for before, turn in pairwise(one.turns))
        known = sum(len(policy.encode(one.prompt)) for one in asked())
        share = metrics["rollout/kept_tokens"]
        starts = sum(len(policy.encode(prompts()[i // 4])) + turn.span[0] for i, one in enumerate(rows) for turn in one.turns[1:])
        assert share == pytest.approx(1 - (known + between) / (known + starts)), "and nothing else"


def test_windows_are_looked_through_as_from_the_beginning(tiny: Any):
    """Rows many times as long as the window."""
    both(tiny("gemma3"), lambda prompt, turns, seed: Observation("word " * (40 + seed % 9)))


def test_rows_beyond_the_bound_are_read_again(folder: str):
    policy, _ = both(folder, most=60_000)
    metrics = policy.drain_metrics()
    assert metrics["rollout/dropped_turns"] > 3 and 0 < metrics["rollout/kept_tokens"] < 1
    assert policy.keeper is not None and policy.keeper.peak > 30_000, "the bound is made use of"
    policy, _ = both(folder, most=10)
    assert policy.drain_metrics()["rollout/kept_tokens"] == 0


@for_each("name", PAIRS)
def test_whatever_the_settings(folder: str, name: str):
    policy, _ = both(folder, looking, **PAIRS[name])
    assert policy.drain_metrics()["rollout/kept_tokens"] > 0.2, "something was kept"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many prompts every forward reads in front of what is written."""
    read, prefill = list[int](), TextNet.prefill

    def counted(net: TextNet, batch: Any, *rest: Any) -> Any:
        read.append(len(batch.token_ids))
        return prefill(net, batch, *rest)

    monkeypatch.setattr(TextNet, "prefill", counted)
    return read


def test_branches_read_what_they_share_once(folder: str, read: list[int]):
    world = Inline(lambda prompt, turns, seed: Observation("go on", (picture(len(turns)),)), LIMITS)
    policy, [request, *_] = player(folder, world), asked((1, 1))
    first = policy.rollout([request])
    read.clear()
    rollouts = policy.rollout([replace(request, count=3, seed=99, written=branch_of(first, 0, 1, (request.seed, 0)))])
    assert read == [1, 3, 3] and gap(policy, rollouts) <= FP32_BOUND
    assert all(len(one.turns) == 4 for _, one in rollouts.samples())


def test_a_group_shares_its_prompt(folder: str, read: list[int]):
    """Its keys and values are there once, and read once."""
    world = Inline(lambda prompt, turns, seed: Observation("go on"), Limits(turns=2, tokens=2000))
    policy = player(folder, world)
    policy.rollout([Request(prompts()[0], 6, 0, seed=1)])
    assert read == [1, 6]
    text = policy.net.model.config.get_text_config()
    token = 8 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim
    prompt = len(policy.encode(prompts()[0]))
    assert policy.keeper is not None and prompt * token <= policy.keeper.peak <= (prompt + 6 * 7) * token, "not 6 prompts"


def test_models_with_states_read_again_and_say_so(tiny: Any, caplog: pytest.LogCaptureFixture):
    config = TextPolicyConfig(tiny("qwen3_5"))
    with caplog.at_level(logging.WARNING, "mmrl"):
        policy = player(config.model, Inline(looking, LIMITS))
    assert policy.keeper is None and "every turn of an episode is read from its beginning" in caplog.text
    assert gap(policy, policy.rollout(asked((2, 2)))) <= FP32_BOUND
    assert keeper_of(replace(config, episode_cache_mib=0), policy.net.model.config) is None


def test_a_past_stays_in_its_process(folder: str):
    encoded = player(folder, Inline(looking, LIMITS)).encode(prompts()[0])
    assert bare(replace(encoded, past=Past(Keeper(1)))).past is None


@pytest.mark.parametrize("decode", ["plain", "shared"])
def test_rows_that_are_fed_beyond_their_end_keep_nothing_of_it(folder: str, decode: Any):
    """As on accelerators, where the host looks now and then which rows are done."""
    sampling, found = Sampling(max_new_tokens=12, stop=("a", "e")), list[Rollouts]()
    for mib in (0, 64):
        policy = player(folder, Inline(talking, LIMITS), episode_cache_mib=mib, decode=decode, sampling=sampling)
        writer: Any = policy.generator
        policy.generator = replace(writer, kind=lambda **work: Generation(**{**work, "look_every": 5}))
        found.append(policy.rollout(asked()))
    assert is_same(*found) and gap(policy, found[1]) <= FP32_BOUND
    assert policy.drain_metrics()["rollout/kept_tokens"] > 0.2


def test_half_precision_keeps_what_it_would_read(folder: str):
    """Measured: 0.016 with and 0.027 without."""
    policy = player(folder, Inline(talking, LIMITS), dtype="bfloat16")
    assert gap(policy, policy.rollout(asked())) <= 0.1
    assert policy.drain_metrics()["rollout/kept_tokens"] > 0.2 and policy.keeper is not None and not policy.keeper.held


def test_nothing_is_kept_once_an_error_ends_the_episodes(folder: str):
    def breaking(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation:
        if len(turns) == 2:
            raise UnavailableError("the world is gone")
        return Observation("go on")

    policy = player(folder, Inline(breaking, LIMITS))
    with pytest.raises(UnavailableError) as raised:
        policy.rollout(asked())
    assert raised.tb is not None and policy.keeper is not None and policy.keeper.peak and not policy.keeper.held


def test_what_is_kept_is_told_of_all_processes():
    keeper, two = Keeper(1, read=10, spared=40, dropped=2), PlayedRanks(lambda x: [x, [50, 100, 3]])
    assert drained(keeper, two) == {"rollout/kept_tokens": 0.7, "rollout/dropped_turns": 5.0}
    assert not drained(keeper, Ranks()) and not drained(None, two)


def test_where_servers_write_nothing_is_kept_nor_said(tiny: Any, caplog: pytest.LogCaptureFixture):
    for family in ("qwen3_vl", "qwen3_5"):
        config = TextPolicyConfig(tiny(family), engine=EngineConfig(url=("http://127.0.0.1:1",)))
        assert keeper_of(config, load_config(config)) is None
    assert "is read from its beginning" not in caplog.text


def test_a_keeper_counts_what_is_held():
    keeper = Keeper(100)
    one = keeper.hold(KeptStrip((), 3, 60))
    assert not keeper.has_room(41) and keeper.has_room(40) and keeper.dropped == 1
    del one
    assert keeper.has_room(100) and keeper.peak == 60


def test_the_plan_counts_what_is_kept(folder: str):
    limits, sampling = Limits(turns=3, tokens=400, pictures=1, text=200), Sampling(max_new_tokens=8)
    dry = TextDryRun(TextPolicyConfig(folder, sampling=sampling), limits=limits)
    dry.policy.rollout(asked())
    real = player(folder, Inline(lambda prompt, turns, seed: Observation("x" * 100), limits), sampling=sampling)
    real.rollout(asked())
    assert real.keeper is not None and 0 < real.keeper.peak <= dry.kept <= 8 * real.keeper.peak
    base = TextDryRun(TextPolicyConfig(folder, sampling=sampling, episode_cache_mib=0), limits=limits)
    base.policy.rollout(asked())
    assert dry.log.counts["rollout"].positions < base.log.counts["rollout"].positions, "what is kept is not read"
    assert dry.activations()["rollout"] == base.activations()["rollout"] + dry.kept
    assert dry.kept in dry.parts_of_activations().values() and dry.kept not in base.parts_of_activations().values()


@for_each("name", SHARING)
def test_completions_share_whatever_the_settings(folder: str, name: str):
    check(make(folder, **SHARING[name]), make(folder, decode="shared", **SHARING[name]), asked((4, 4, 2, 4)))


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "internvl"])
def test_episodes_share_and_keep(tiny: Any, family: str):
    worlds = [Inline(looking, Limits(turns=3, tokens=2000)) for _ in range(2)]
    both = [player(tiny(family), world, decode=how) for world, how in zip(worlds, ("plain", "shared"), strict=True)]
    check(both[0], both[1], asked((4, 4, 2, 4)))
    assert both[1].drain_metrics()["rollout/kept_tokens"] == both[0].drain_metrics()["rollout/kept_tokens"] > 0.3


@torch.no_grad()
def test_a_prompt_is_there_once_and_nothing_moves(folder: str):
    policy = make(folder, decode="shared")
    work: Any = policy.generator
    generation = work.generation([policy.encode(p) for p in prompts()[:2]], [0, 1, 0, 1, 1, 0], [(1, i) for i in range(6)], LONG)
    hidden, cache, _, order = generation.read(policy.net)
    assert isinstance(cache, SharedRoom) and order == [0, 2, 5, 1, 3, 4] and cache.group == 3
    assert all(len(keys) == 2 for keys, _ in cache.prompts) and hidden.shape[0] == 6
    positions, token = generation.prompts.next_positions[:, generation.prompt_index[order]], torch.full((6, 1), 5)
    policy.net.extend(cache, token, positions, None)
    places = [x.data_ptr() for x in cache.tensors]
    with host_looks() as looks:
        for t in range(1, 5):
            policy.net.extend(cache, token, positions + t, None)
    assert [x.data_ptr() for x in cache.tensors] == places and not looks.total and cache.written == 5
    assert cache.rectangle([1, 3]) == [1, 3] and cache.rectangle([4, 5, 0]) == [0, 1, 4, 5]
    cache.reorder_cache(torch.tensor([4, 5]))
    assert cache.group == 2 and all(len(keys) == 1 for keys, _ in cache.prompts) and len(cache.own[0][0]) == 2


@torch.no_grad()
def test_layers_that_do_not_look_are_named(folder: str):
    policy = make(folder, decode="shared")
    work: Any = policy.generator
    generation = work.generation([policy.encode(prompts()[2])], [0], [(1, 0)], LONG)
    _, cache, _, _ = generation.read(policy.net)
    cache.prompts.append(cache.prompts[0])
    cache.own.append(cache.own[0])
    with pytest.raises(RuntimeError, match=r"layers share their prompts: set policy.decode = 'plain'"):
        policy.net.extend(cache, torch.full((1, 1), 5), generation.prompts.next_positions, None)


def test_the_plan_counts_less(folder: str):
    long = [Request(Prompt("p", "word " * 200), 8, 0, seed=1)]
    sizes = dict[str, int]()
    for decode in ("plain", "shared"):
        dry = TextDryRun(TextPolicyConfig(folder, decode=decode, sampling=Sampling(max_new_tokens=16)))
        dry.policy.rollout(long)
        dry.activations()
        sizes[decode] = dry.cache_bytes
    assert 5 * sizes["shared"] < sizes["plain"]


Tiny = Callable[[str], str]


def made() -> tuple[int, dict[str, int]]:
    """How many graphs there are, and what broke one."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"], dict(counters["graph_break"])


def ready(policy: TextPolicy) -> TextPolicy:
    policy.prepare(Accelerator(cpu=True))
    # Readings as they are written: these tests are about the step alone.
    blocks: Any = policy.net.compiled
    for block in blocks:
        block._compiled_call_impl = None
    return policy


def pair(folder: str, **settings: Any) -> tuple[TextPolicy, TextPolicy]:
    return make(folder, **settings), ready(make(folder, compile=True, **settings))


@pytest.fixture
def traced() -> Iterator[None]:
    """Graphs are made and not compiled further, which takes a tenth of the time; breaks of others do not count."""
    from torch._dynamo.utils import counters

    counters["graph_break"].clear()
    with pytest.MonkeyPatch.context() as patch:
        usual = torch.compile
        patch.setattr(torch, "compile", lambda call, **how: usual(call, **how, backend="eager"))
        generate.program.cache_clear()
        yield
        generate.program.cache_clear()


@pytest.mark.usefixtures("traced")
def test_one_graph_whatever_the_lengths_and_the_rest(shallow: str, monkeypatch: pytest.MonkeyPatch):
    """Storage that doubles, other prompts and groups, chunks, another policy of the kind, episodes that keep what they have read,
    episodes that branch, completions that go on, and prompts under a view."""
    monkeypatch.setattr(room, "FIRST", 5)
    how: dict[str, Any] = {"sampling": Sampling(max_new_tokens=12)}
    before = made()[0]
    plain, shared = pair(shallow, **how)
    for policy in (plain, shared):
        policy.views["hinted"] = Hint("It is blue.")
    first = check(plain, shared, asked((4, 4, 4, 4)))
    assert made() == (before + 1, {}), "no breaks, so that the host looks at nothing within"
    for counts in ((2, 2), (6, 6), (3, 3, 3)):
        check(plain, shared, asked(counts))
    assert made() == (before + 1, {}), "for all lengths"
    check(plain, shared, [replace(one, view="hinted", shown=Shown(trained=True)) for one in asked((3, 3))])
    begun = [Prefix(ids_of(group.samples[0]), 0.5) for group in first.groups]
    check(plain, shared, [replace(one, written=prefix) for one, prefix in zip(asked((4, 4)), begun, strict=False)])
    check(*pair(shallow, rollout_rows=8, **how), asked((4, 4, 4)))
    worlds = [Inline(lambda *_: Observation("go on"), Limits(turns=3, tokens=2000)) for _ in range(2)]
    both = player(shallow, worlds[0], **how), ready(player(shallow, worlds[1], compile=True, **how))
    episodes = check(*both, asked())
    check(*both, [replace(asked((3,))[0], seed=99, written=branch_of(episodes, 0, 1, (asked((3,))[0].seed, 0)))])
    kept = [policy.drain_metrics()["rollout/kept_tokens"] for policy in both]
    assert kept[0] == kept[1] > 0.3
    assert made()[0] <= before + 3 and not made()[1], "lone rows of a prompt, and a lone prompt, are kinds of their own"


@pytest.mark.usefixtures("traced")
def test_with_adapters_while_rows_leave(shallow: str):
    """One graph more for a lone row of each prompt, and for a lone prompt."""
    before = made()[0]
    check(*pair(shallow, lora=LORA, sampling=LONG), asked((4, 4, 2, 4)))
    assert made()[0] <= before + 3 and not made()[1]


@pytest.mark.evidence
def test_what_a_compiler_makes_of_it(shallow: str):
    """With an adapter; readings of a model like this one are compiled in tests/policies/shared/test_compiled.py."""
    generate.program.cache_clear()
    check(*pair(shallow, lora=LORA, sampling=Sampling(max_new_tokens=8)), asked())


@pytest.mark.parametrize("wrong", ["step", "room"])
def test_numbers_that_leave_the_gate_name_what_wrote_them(shallow: str, monkeypatch: pytest.MonkeyPatch, wrong: str):
    """The compiled step alone, or what it was compiled from."""
    attend = SharedRoom.attend

    def off(own: Any, *rest: Any) -> Any:
        return 1.05 * attend(own, *rest)

    def program(net: Any, *rest: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SharedRoom, "attend", off)
            return generate.step(net, *rest)

    monkeypatch.setattr(generate, "program", lambda: program if wrong == "step" else generate.step)
    if wrong == "room":
        monkeypatch.setattr(SharedRoom, "attend", off)
    policy = ready(make(shallow, ("ref",), decode="shared", compile=True))
    message = message_of(policy, PRESETS["grpo"], prompts()[:2], Fault(""))
    cause, remedy = (COMPILED, "leave policy.compile out") if wrong == "step" else (SHARED, "Set policy.decode = 'plain'")
    assert f"Likely cause: {cause} (" in message and remedy in message, message


def test_what_auto_takes(tiny: Tiny):
    def shares(family: str = "qwen3_vl", **settings: Any) -> bool:
        config = TextPolicyConfig(tiny(family), **settings)
        return shares_prompts(SimpleNamespace(config=load_config(config)), config)  # type: ignore[arg-type] - all it looks at

    assert shares(compile=True) and not shares() and shares(decode="shared")
    assert not shares("gemma3", compile=True) and not shares("qwen3_5", compile=True)
    assert not shares(compile=True, prefix="repeated") and not shares(compile=True, decode="plain")
