"""Episodes keep what they have read: the same tokens and log-probabilities as when every turn is read from its beginning."""

import logging
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from mmrl.core.episodes import Limits
from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Branch, Observation, Prompt, Request, Rollouts, Turn
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.dry_run import TextDryRun
from mmrl.policies.text.kept import Keeper, KeptStrip, Past, drained, keeper_of
from mmrl.policies.text.loading import load_config
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import EngineConfig, QuantizedSettings
from mmrl.policies.text.write.generate import Generation, bare
from mmrl.runtime.blame import UnavailableError
from tests.support.each import for_each
from tests.support.text_policies import FP32_BOUND, picture, prompts, text_trace
from tests.support.worlds import Inline, looking, player

LIMITS = Limits(turns=4, tokens=2000)
PAIRS: dict[str, dict[str, Any]] = {
    "LoRA": {"lora": LoraSettings(rank=4)},
    "4 bits": {"lora": LoraSettings(rank=4), "weights": "nf4", "quantized": QuantizedSettings(double=False)},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "repeated prompts": {"prefix": "repeated"},
    "eager attention": {"attn_implementation": "eager", "prefix": "repeated"},
    "chunks": {"rollout_rows": 3},
    "greedy rows, which are alike": {"sampling": Sampling(temperature=0.0, max_new_tokens=8)},
    "turns of one token": {"sampling": Sampling(max_new_tokens=1)},
    "stop texts": {"sampling": Sampling(max_new_tokens=12, stop=("a", "e"))},
    "no cache of pictures": {"vision_cache_mib": 0},
}


def talking(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """Answers of very different lengths, some with pictures; some samples end early."""
    drawn = seed % 89 + 5 * len(turns)
    if len(turns) > 1 and drawn % 7 == 0:
        return None
    shown = (picture(drawn % 11, 60 + 20 * (drawn % 3), 60),) if drawn % 3 == 0 else ()
    return Observation("word " * (1 + drawn % 4) * (12 if drawn % 5 == 0 else 1), shown)


def asked(count: int = 4) -> list[Request]:
    return [Request(prompt, count, group_id=i, seed=70 + i) for i, prompt in enumerate(prompts()[:2])]


def worst(policy: TextPolicy, rollouts: Rollouts) -> float:
    values = policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS].detach()
    return float((values - rollouts.recorded[ROLLOUT_LOGPROBS])[rollouts.action_mask].abs().max())


def is_same(one: Rollouts, other: Rollouts) -> bool:
    a, b = text_trace(one.trace).tokens, text_trace(other.trace).tokens
    return a.shape == b.shape and torch.equal(a, b)


def both(folder: str, world: Any = talking, most: int | None = None, **settings: Any) -> tuple[TextPolicy, Rollouts]:
    """A policy that keeps, and its episodes, which are those of one that does not."""
    plain, kept = (player(folder, Inline(world, LIMITS), episode_cache_mib=mib, **settings) for mib in (0, 64))
    assert plain.keeper is None and kept.keeper is not None
    for policy in (plain, kept):
        generator = torch.Generator().manual_seed(0)
        for name, weight in policy.weights.named.items():
            if "lora_" in name:
                weight.data.normal_(std=0.05, generator=generator)
    kept.keeper.most = kept.keeper.most if most is None else most
    rollouts = kept.rollout(asked())
    assert is_same(rollouts, plain.rollout(asked())), "the same tokens"
    assert worst(kept, rollouts) <= FP32_BOUND, "as they are read again"
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
    policy, [request, *_] = player(folder, world), asked(1)
    first = policy.rollout([request])
    [(_, sample)] = first.samples()
    turns = [replace(one, observation=one.observation and replace(one.observation, media=())) for one in sample.turns[:1]]
    ids = text_trace(first.trace).tokens[0, : sample.turns[1].span[0]].tolist()
    noted = first.recorded[ROLLOUT_LOGPROBS][0, : len(ids)].tolist()
    branch = Branch(tuple(turns), tuple(ids), tuple(noted), (request.seed, 0))
    read.clear()
    rollouts = policy.rollout([replace(request, count=3, seed=99, written=branch)])
    assert read == [1, 3, 3] and worst(policy, rollouts) <= FP32_BOUND
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
    assert worst(policy, policy.rollout(asked(2))) <= FP32_BOUND
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
    assert is_same(*found) and worst(policy, found[1]) <= FP32_BOUND
    assert policy.drain_metrics()["rollout/kept_tokens"] > 0.2


def test_half_precision_keeps_what_it_would_read(folder: str):
    """Measured: 0.016 with and 0.027 without."""
    policy = player(folder, Inline(talking, LIMITS), dtype="bfloat16")
    assert worst(policy, policy.rollout(asked())) <= 0.1
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
    class Two(Ranks):
        def gather(self, x: Any) -> list[Any]:
            return [x, [50, 100, 3]]

    keeper = Keeper(1, read=10, spared=40, dropped=2)
    assert drained(keeper, Two()) == {"rollout/kept_tokens": 0.7, "rollout/dropped_turns": 5.0}
    assert not drained(keeper, Ranks()) and not drained(None, Two())


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
