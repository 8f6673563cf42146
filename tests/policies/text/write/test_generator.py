"""Who writes completions can be replaced: an engine with a copy of the weights, which it is given when they have moved."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
import torch

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Request
from mmrl.policies.shared.weights import Weights
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.write.generate import Completions, Generator, LocalGenerator
from mmrl.training.collect import merge_rollouts
from tests.support.text_policies import logprobs, make, mixed, prompts, stir, text_of

SHORT = Sampling(max_new_tokens=5)


@dataclass
class Engine(Generator):
    """Stands for a server: it has its own copy of the network, and takes over one update of two."""

    host: TextHost
    exact: bool = False
    net: TextNet = field(init=False)
    version: int = -1
    told: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.net = deepcopy(self.host.net)

    def follow(self, weights: Weights, version: int) -> None:
        self.told.append(version)
        if version % 2 == 0:
            self.version = version
            named = dict(self.net.model.named_parameters())
            with torch.no_grad():
                for name, value in weights.state_dict()["weights"].items():
                    named[name].copy_(value)

    def write(
        self, prompts: Sequence[Encoded], prompt_index: Sequence[int], seeds: Sequence[tuple[int, int]], sampling: Sampling
    ) -> Completions:
        local = LocalGenerator(self.host)
        if self.host.weights.active != "policy":
            return local.write(prompts, prompt_index, seeds, sampling)
        return replace(self.net(local.generation(prompts, prompt_index, seeds, sampling)), weights_version=self.version)


def with_engine(folder: str, shadows: Sequence[str] = ()) -> tuple[TextPolicy, Engine]:
    policy = TextPolicy(TextPolicyConfig(folder, sampling=SHORT), shadows, parts=TextParts(generator=Engine))
    assert isinstance(policy.generator, Engine)
    return policy, policy.generator


def move(policy: TextPolicy, by: float) -> None:
    """Move the weights, and count an update."""
    stir(policy, by, seed=3)
    policy.advance()


def texts(policy: TextPolicy) -> list[str]:
    return [text_of(sample) for group in policy.rollout(mixed()).groups for sample in group.samples]


def test_an_engine_writes_what_the_policy_itself_would(tiny):
    policy, engine = with_engine(tiny("qwen3_vl"))
    assert make(tiny("qwen3_vl")).generator.exact
    assert texts(policy) == texts(make(tiny("qwen3_vl"), sampling=SHORT))
    assert engine.told == [0]
    texts(policy)
    assert engine.told == [0], "weights that have not moved are not sent again"


def test_rollouts_name_the_weights_that_wrote(tiny):
    policy, engine = with_engine(tiny("qwen3_vl"))
    versions = [policy.rollout(mixed()).weights_version]
    for _ in range(3):
        move(policy, 0.05)
        versions.append(policy.rollout(mixed()).weights_version)
    assert (versions, engine.told) == ([0, 0, 2, 2], [0, 1, 2, 3])
    late = policy.rollout(mixed())
    gap = (late.recorded[ROLLOUT_LOGPROBS] - logprobs(policy, late).detach()).abs()[late.action_mask]
    assert gap.max() > 1e-2, "the record is that of the engine's weights"
    assert late.take(torch.arange(1)).weights_version == 2
    assert merge_rollouts(policy, replace(late, weights_version=5), late).weights_version == 2


def test_an_engine_is_given_weights_that_were_loaded(tiny):
    policy, engine = with_engine(tiny("qwen3_vl"))
    start = policy.state_dict()
    before = texts(policy)
    move(policy, 0.3)
    move(policy, 0.3)
    assert texts(policy) != before
    policy.load_state_dict(start)
    assert texts(policy) == before
    assert engine.told == [0, 2, 0]


def test_weights_kept_beside_are_written_with_locally(tiny):
    policy, _ = with_engine(tiny("qwen3_vl"), ["ref"])
    asked = [replace(request, model="ref") for request in mixed()]
    before = policy.rollout(asked)
    move(policy, 0.3)
    move(policy, 0.3)
    assert policy.rollout(asked).groups == before.groups


def test_the_policy_counts_its_updates(tiny):
    policy = make(tiny("qwen3_vl"), {"ema"})
    assert policy.rollout(mixed()).weights_version == 0
    move(policy, 0.01)
    move(policy, 0.01)
    rollouts = policy.rollout(mixed())
    assert rollouts.weights_version == 2
    given = policy.rollout([Request(prompts()[0], 1, 0, role="injected", written="no")])
    assert given.weights_version == 2


def test_a_given_text_with_its_end_inside_is_refused(tiny):
    policy = make(tiny("qwen3_vl"))
    end = policy.tokenizer.eos_token
    asked = Request(prompts()[0], 1, 0, role="injected", written=f"no{end}")
    plain, ended = policy.rollout([replace(asked, written="no"), replace(asked, group_id=1)]).groups
    assert plain.samples[0].token_ids == ended.samples[0].token_ids
    with pytest.raises(ValueError, match=r"holds the tokens \[\d+\], which no answer may hold"):
        policy.rollout([replace(asked, written=f"no{end}\nyes")])
