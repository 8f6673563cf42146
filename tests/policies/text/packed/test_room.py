"""Completions that share their prompt while they are written: the same tokens as when each has a copy."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmrl.core.episodes import Limits
from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request, Rollouts
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.dry_run import TextDryRun
from mmrl.policies.text.packed import room
from mmrl.policies.text.packed.room import SharedRoom
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import QuantizedSettings
from tests.support.each import for_each
from tests.support.text_policies import FP32_BOUND, make, prompts, text_trace
from tests.support.worlds import Inline, looking, player

LORA = LoraSettings(rank=4)
LONG = Sampling(max_new_tokens=24, stop=("a", "e", "t"))
PAIRS: dict[str, dict[str, Any]] = {
    "stop texts, so that rows leave": {"sampling": LONG},
    "greedy": {"sampling": Sampling(temperature=0.0, max_new_tokens=12)},
    "top_p": {"sampling": Sampling(top_p=0.7, max_new_tokens=12)},
    "one token": {"sampling": Sampling(max_new_tokens=1)},
    "LoRA": {"sampling": LONG, "lora": LORA},
    "4 bits": {"sampling": LONG, "lora": LORA, "weights": "nf4", "quantized": QuantizedSettings(double=False)},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "chunks that cut groups": {"sampling": LONG, "rollout_rows": 5},
}


def asked(counts: Sequence[int] = (4, 4, 2, 4)) -> list[Request]:
    return [
        Request(prompt, count, group_id=i, seed=70 + i) for i, (prompt, count) in enumerate(zip(prompts(), counts, strict=True))
    ]


def stir(policy: TextPolicy) -> TextPolicy:
    generator = torch.Generator().manual_seed(0)
    for name, weight in policy.weights.named.items():
        if "lora_" in name:
            weight.data.normal_(std=0.05, generator=generator)
    return policy


def check(plain: TextPolicy, shared: TextPolicy, requests: Sequence[Request]) -> Rollouts:
    """The rollouts of both, which are the same and read again as they were noted."""
    one, other = stir(plain).rollout(requests), stir(shared).rollout(requests)
    assert torch.equal(text_trace(one.trace).tokens, text_trace(other.trace).tokens)
    values = shared.read(other.trace, [LOGPROBS], other.action_mask)[LOGPROBS].detach()
    assert float((values - other.recorded[ROLLOUT_LOGPROBS])[other.action_mask].abs().max()) <= FP32_BOUND
    return other


@for_each("name", PAIRS)
def test_whatever_the_settings(folder: str, name: str):
    check(make(folder, **PAIRS[name]), make(folder, decode="shared", **PAIRS[name]), asked())


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "internvl"])
def test_episodes_share_and_keep(tiny: Any, family: str):
    worlds = [Inline(looking, Limits(turns=3, tokens=2000)) for _ in range(2)]
    both = [player(tiny(family), world, decode=how) for world, how in zip(worlds, ("plain", "shared"), strict=True)]
    check(both[0], both[1], asked())
    assert both[1].drain_metrics()["rollout/kept_tokens"] == both[0].drain_metrics()["rollout/kept_tokens"] > 0.3


def test_storage_grows_by_doubling(folder: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "FIRST", 3)
    longer = Sampling(max_new_tokens=14)
    check(make(folder, sampling=longer), make(folder, decode="shared", sampling=longer), asked())


class Looks(TorchDispatchMode):
    """Counts how often the host asks for a value."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_a_prompt_is_there_once_and_nothing_moves(folder: str):
    policy = make(folder, decode="shared")
    work: Any = policy.generator
    generation = work.generation(
        [policy.encode(one) for one in prompts()[:2]], [0, 1, 0, 1, 1, 0], [(1, i) for i in range(6)], LONG
    )
    hidden, cache, _, order = generation.read(policy.net)
    assert isinstance(cache, SharedRoom) and order == [0, 2, 5, 1, 3, 4] and cache.group == 3
    assert all(len(keys) == 2 for keys, _ in cache.prompts) and hidden.shape[0] == 6
    positions, token = generation.prompts.next_positions[:, generation.prompt_index[order]], torch.full((6, 1), 5)
    policy.net.extend(cache, token, positions, None)
    places = [x.data_ptr() for x in cache.tensors]
    with Looks() as looks:
        for t in range(1, 5):
            policy.net.extend(cache, token, positions + t, None)
    assert [x.data_ptr() for x in cache.tensors] == places and looks.count == 0 and cache.written == 5
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
