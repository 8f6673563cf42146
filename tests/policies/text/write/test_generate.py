"""Sampling: seeds, filters, what ends a completion, how seldom the device is asked, and who writes."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from mmrl.core.types import Prompt, Request
from mmrl.policies.shared.hypotheses import in_precision
from mmrl.policies.shared.lora import LoraSettings, casting_layers
from mmrl.policies.shared.weights import Weights
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.write import generate
from mmrl.training.collect import merge_rollouts
from tests.support.devices import META, SecondDevice, host_looks
from tests.support.refused import refused
from tests.support.text_policies import (
    FAMILIES,
    FP32_BOUND,
    assert_noted,
    bias_toward,
    gap,
    hotter,
    ids_of,
    logprobs,
    make,
    mixed,
    move,
    prompts,
    text_of,
)

PROBABILITIES = torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15]])


def kept(sampling: Sampling) -> list[int]:
    return generate.filter_probabilities(PROBABILITIES.log(), sampling)[0].nonzero()[:, 0].tolist()


def test_filters_keep_what_they_say():
    assert kept(Sampling()) == [0, 1, 2, 3, 4]
    assert kept(Sampling(top_k=2)) == [1, 3]
    assert kept(Sampling(top_k=9)) == [0, 1, 2, 3, 4]
    assert kept(Sampling(top_p=0.6)) == [1, 3], "0.4 alone does not reach 0.6, 0.4 + 0.3 does"
    assert kept(Sampling(top_p=0.3)) == [1], "the token that crosses the bound stays"
    assert kept(Sampling(min_p=0.3)) == [1, 3, 4], "0.3 x 0.4 = 0.12"
    assert kept(Sampling(top_k=3, top_p=0.5)) == [1, 3], "top_p counts what top_k left: 0.4 / 0.85 is below one half"


def test_draw_inverts_the_cumulative_distribution():
    # Cumulative: 0.1 0.5 0.55 0.85 1.0
    points = torch.tensor([0.0, 0.099, 0.101, 0.499, 0.501, 0.56, 0.86, 1 - 2**-24])
    logits = PROBABILITIES.log().expand(len(points), -1)
    chosen, logprob = generate.draw(logits, points, Sampling())
    assert chosen.tolist() == [0, 0, 1, 1, 2, 3, 4, 4]
    torch.testing.assert_close(logprob, PROBABILITIES[0].log()[chosen])
    filtered_tokens, noted = generate.draw(logits, points, Sampling(top_k=2))
    assert filtered_tokens.tolist() == [1] * 6 + [3] * 2, "what is left is drawn by its shares: 4 to 3"
    torch.testing.assert_close(noted, PROBABILITIES[0].log()[filtered_tokens], msg="log-probabilities ignore the filters")
    assert generate.draw(logits, None, Sampling(temperature=0.0))[0].tolist() == [1] * len(points)


def test_noise_depends_on_seed_and_index_only():
    together = generate.noise([(3, 0), (3, 1), (4, 0)], 5)
    assert torch.equal(generate.noise([(3, 1)], 5)[0], together[1])
    assert torch.equal(generate.noise([(3, 1)], 3)[0], together[1, :3])
    assert len(together.unique(dim=0)) == 3


@pytest.mark.parametrize("family", ["qwen3_vl", "smolvlm"])
def test_a_sample_alone_equals_the_same_sample_in_a_batch(tiny, family):
    policy = make(tiny(family), sampling=Sampling(max_new_tokens=12))
    batch = policy.rollout(mixed())
    request = mixed()[1]
    alone = policy.rollout([request])
    assert [s.token_ids for s in alone.groups[0].samples] == [s.token_ids for s in batch.groups[1].samples]
    assert len({s.token_ids for s in batch.groups[1].samples}) == request.count
    narrow = make(tiny(family), sampling=Sampling(max_new_tokens=12), rollout_rows=2).rollout(mixed())
    assert [g.samples for g in narrow.groups] == [g.samples for g in batch.groups]
    other = policy.rollout(mixed(seed=70))
    assert [g.samples for g in other.groups] != [g.samples for g in batch.groups]


def test_a_completion_ends_at_the_stop_token(tiny):
    policy = make(tiny("qwen3_vl"), sampling=Sampling(max_new_tokens=16))
    (stop,) = policy.eos_token_ids
    hook = bias_toward(policy, [stop], 4.0)
    rollouts = policy.rollout([Request(prompt, 6, i, seed=i) for i, prompt in enumerate(prompts())])
    assert_noted(rollouts, logprobs(policy, rollouts))
    hook.remove()
    lengths = rollouts.action_mask.sum(1)
    assert len(lengths.unique()) > 3, "rows must end at different steps for this test to mean anything"
    for (_, sample), length in zip(rollouts.samples(), lengths.tolist(), strict=True):
        assert len(ids_of(sample)) == length
        assert stop not in ids_of(sample)[:-1]
        assert sample.truncated == (ids_of(sample)[-1] != stop)
        assert not sample.truncated or length == 16
    assert rollouts.truncated().tolist() == [sample.truncated for _, sample in rollouts.samples()]


def test_a_completion_ends_with_a_stop_text(tiny):
    policy = make(tiny("qwen3_vl"))
    x, y = (policy.tokenizer.convert_tokens_to_ids(letter) for letter in "xy")
    hook = bias_toward(policy, [x, y])
    stopping = hotter(policy, max_new_tokens=40, stop=("xyx", "yyyy"))
    rollouts = policy.rollout([Request(prompts()[0], 12, 0, seed=5)], stopping)
    hook.remove()
    texts = [text_of(sample) for _, sample in rollouts.samples()]
    assert len(set(map(len, texts))) > 2
    for (_, sample), text in zip(rollouts.samples(), texts, strict=True):
        assert not sample.truncated
        assert text.endswith(("xyx", "yyyy"))
        assert not any(stop in text[:-1] for stop in stopping.stop)


def test_a_cut_completion_is_truncated_and_a_stop_at_the_last_token_is_not(tiny):
    policy = make(tiny("qwen3_vl"))
    (x,) = (policy.tokenizer.convert_tokens_to_ids(letter) for letter in "x")
    hook = bias_toward(policy, [x])
    cut = policy.rollout([Request(prompts()[2], 1, 0)], hotter(policy, max_new_tokens=3))
    ended = policy.rollout([Request(prompts()[2], 1, 0)], hotter(policy, max_new_tokens=3, stop=("xxx",)))
    hook.remove()
    assert [r.groups[0].samples[0].text for r in (cut, ended)] == ["xxx", "xxx"]
    assert [r.groups[0].samples[0].truncated for r in (cut, ended)] == [True, False]


def test_filters_restrict_what_is_written(tiny):
    policy = make(tiny("qwen3_vl"))
    greedy = policy.rollout([Request(prompts()[0], 1, 0)], hotter(policy, temperature=0.0))
    narrow = policy.rollout([Request(prompts()[0], 5, 0, seed=9)], hotter(policy, top_k=1))
    assert {s.token_ids for s in narrow.groups[0].samples} == {greedy.groups[0].samples[0].token_ids}
    wide = policy.rollout([Request(prompts()[0], 5, 0, seed=9)])
    assert len({s.token_ids for s in wide.groups[0].samples}) == 5


@pytest.mark.parametrize(("name", "value"), {"temperature": -1.0, "top_p": 0.0, "max_new_tokens": 0, "stop": ("",)}.items())
def test_impossible_sampling_is_refused(name, value):
    refused(rf"(?i)sampling\.{name}", Sampling, **{name: value})


ROWS = 5
LORA = LoraSettings(rank=4, alpha=8)


def generation(policy: TextPolicy, shown: Sequence[Prompt], sampling: Sampling, every: int) -> generate.Generation:
    """The work of five rows for every prompt."""
    encoded = [policy.encode(prompt) for prompt in shown]
    index = [i for i in range(len(shown)) for _ in range(ROWS)]
    work = generate.LocalGenerator(policy).generation(encoded, index, [(7, i) for i in range(len(index))], sampling)
    return replace(work, look_every=every)


def same(one: generate.Completions, other: generate.Completions) -> None:
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.lengths.tolist() == other.lengths.tolist()
    assert one.stopped.tolist() == other.stopped.tolist()
    torch.testing.assert_close(one.logprobs, other.logprobs, atol=FP32_BOUND, rtol=0)


@pytest.mark.parametrize("stop", [(), ("x", "ab")])
def test_what_is_written_does_not_depend_on_when_one_looks(tiny, stop):
    policy = make(tiny("qwen3_vl"))
    letters = policy.tokenizer.convert_tokens_to_ids(["x", "a", "b"]) if stop else []
    hook = bias_toward(policy, [*policy.eos_token_ids, *letters], 4.5)
    sampling = Sampling(max_new_tokens=20, stop=stop)
    widths: list[int] = []
    policy.net.model.get_output_embeddings().register_forward_pre_hook(lambda module, args: widths.append(len(args[0])))
    found = [policy.run(generation(policy, prompts(), sampling, every)) for every in (1, 3, 7, 20)]
    hook.remove()
    assert len(found[0].lengths.unique()) > 4
    for other in found[1:]:
        same(found[0], other)
    assert widths[-1] == ROWS * len(prompts()), "one look at the end drops nobody"
    assert min(widths) <= 2 * ROWS, "others did"
    after = torch.arange(found[0].tokens.shape[1]) >= found[0].lengths[:, None]
    assert set(found[1].tokens[after].tolist()) == {policy.net.pad_token_id}
    assert not bool(found[1].logprobs[after].any())


def check_looks(policy: TextPolicy, shown: Sequence[Prompt]) -> None:
    asked: list[int] = []
    for length in (8, 24):
        work = generation(policy, shown, Sampling(max_new_tokens=length), every=8)
        with host_looks() as looks:
            policy.run(work)
        asked.append(looks.total)
    assert asked[1] - asked[0] == 2, f"two looks more for 16 tokens more, not {looks.at}"


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"gemma3", "qwen3_5"}))
@pytest.mark.parametrize("padded", [True, False])
def test_nothing_is_asked_of_the_device_between_looks(tiny, family, padded):
    check_looks(make(tiny(family)), prompts() if padded else prompts()[:1])


def test_a_window_that_slides_costs_looks_only_where_prompts_are_padded(tiny):
    policy = make(tiny("gemma3"))
    check_looks(policy, prompts()[:1])
    assert not policy.net.masks_are_plain
    assert not make(tiny("qwen3_vl"), attn_implementation="eager").net.masks_are_plain


def test_stop_texts_are_looked_for_together(tiny):
    policy, calls = make(tiny("qwen3_vl")), list[int]()
    work = generation(policy, prompts()[:1], Sampling(max_new_tokens=12, stop=("never said",)), every=4)

    def decode(tokens: list[list[int]]) -> list[str]:
        calls.append(len(tokens))
        return policy.decode(tokens)

    policy.run(replace(work, stops=replace(work.stops, decode=decode)))
    assert calls == [4 * ROWS] * 3


def test_a_cpu_is_looked_at_always(tiny):
    policy = make(tiny("qwen3_vl"))
    assert generate.LocalGenerator(policy).generation([policy.encode(prompts()[2])], [0], [(0, 0)], Sampling()).look_every == 1


def test_all_processes_make_as_many_forwards_as_the_one_with_most_to_do(tiny):
    policy, forwards, asked = make(tiny("qwen3_vl")), list[int](), list[bool]()
    policy.net.core.register_forward_hook(lambda *_: forwards.append(1))

    def others_want_two_looks(flag: bool) -> bool:
        asked.append(flag)
        return len(asked) < 3

    work = replace(generation(policy, prompts()[:1], Sampling(max_new_tokens=16), every=4), anyone=others_want_two_looks)
    policy.run(replace(work, idle=True))
    assert asked == [False] * 3 and len(forwards) == 1 + 11, "the prompt, and a token after each but the twelfth"


def test_chunks_hold_prompts_of_like_length(tiny):
    policy, widths = make(tiny("llava_onevision"), rollout_rows=2), list[int]()
    longest = {prompt.id: len(policy.encode(prompt)) for prompt in prompts()}
    prefill = policy.net.prefill
    policy.net.prefill = lambda batch: (widths.append(batch.token_ids.shape[1]), prefill(batch))[1]  # type: ignore[method-assign]
    rollouts = policy.rollout([Request(prompt, 2, i, seed=i) for i, prompt in enumerate(prompts())])
    assert widths == sorted(longest.values(), reverse=True)
    assert [group.prompt.id for group in rollouts.groups] == [prompt.id for prompt in prompts()], "groups stay in their order"


def test_adapters_cast_nothing_that_autocast_narrows_again(tiny):
    half, plain = make(tiny("qwen3_vl"), lora=LORA, dtype="bfloat16"), make(tiny("qwen3_vl"), lora=LORA)
    layers = casting_layers(half.net.modules())
    assert {layer.cast_input_dtype_enabled for layer in layers} == {False}
    assert {layer.cast_input_dtype_enabled for layer in casting_layers(plain.net.modules())} == {True}
    with in_precision(half.net, "float32"):
        assert {layer.cast_input_dtype_enabled for layer in layers} == {True}, "without autocast nobody else would"
    assert {layer.cast_input_dtype_enabled for layer in layers} == {False}
    work = generation(half, prompts()[:2], Sampling(max_new_tokens=6), every=1)
    without = half.run(work)
    for layer in layers:
        layer.cast_input_dtype_enabled = True
    cast = half.run(work)
    assert without.tokens.tolist() == cast.tokens.tolist() and torch.equal(without.logprobs, cast.logprobs)


@pytest.mark.parametrize("stop", [(), ("never said",)])
def test_everything_between_looks_happens_on_the_device(tiny, stop):
    policy = make(tiny("qwen3_vl"))
    encoded = [policy.encode(prompts()[2])]
    policy.net.to(META)
    writer = generate.LocalGenerator(policy)
    work = writer.generation(encoded, [0] * ROWS, [(7, i) for i in range(ROWS)], Sampling(max_new_tokens=24, stop=stop))
    assert work.look_every == generate.LOOK_EVERY > 1
    looks: list[int] = []
    for every in (6, 12):
        with SecondDevice() as device:
            policy.run(replace(work, look_every=every, anyone=lambda flag: True))
        looks.append(len(device.crossed.looks))
    assert looks[0] - looks[1] == 2 * (3 if stop else 1), "of every look: which rows are live, and for texts tokens and rows"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_is_waited_for_at_looks_alone_and_writes_what_a_cpu_writes(tiny, family):
    from accelerate import Accelerator

    written: list[generate.Completions] = []
    for cpu in (True, False):
        policy = make(tiny(family))
        policy.prepare(Accelerator(cpu=cpu))
        if not cpu:
            extend, logits = policy.net.extend, policy.net.logits
            policy.net.extend = unwaited(extend)  # type: ignore[method-assign]
            policy.net.logits = unwaited(logits)  # type: ignore[method-assign]
        written.append(policy.run(generation(policy, prompts()[:1], Sampling(max_new_tokens=24), every=1 if cpu else 8)))
    one, other = written
    assert one.tokens[:, 0].tolist() == other.tokens[:, 0].tolist()
    torch.testing.assert_close(one.logprobs[:, 0], other.logprobs[:, 0], atol=1e-3, rtol=0)


def unwaited(work: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same work, which raises where it waits for the GPU."""

    def wrapped(*args: object) -> Tensor:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return work(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return wrapped


SHORT = Sampling(max_new_tokens=5)


@dataclass
class Engine(generate.Generator):
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
    ) -> generate.Completions:
        local = generate.LocalGenerator(self.host)
        if self.host.weights.active != "policy":
            return local.write(prompts, prompt_index, seeds, sampling)
        return replace(self.net(local.generation(prompts, prompt_index, seeds, sampling)), weights_version=self.version)


def with_engine(folder: str, shadows: Sequence[str] = ()) -> tuple[TextPolicy, Engine]:
    policy = TextPolicy(TextPolicyConfig(folder, sampling=SHORT), shadows, parts=TextParts(generator=Engine))
    assert isinstance(policy.generator, Engine)
    return policy, policy.generator


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
    assert gap(policy, late) > 1e-2, "the record is that of the engine's weights"
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
    refused(r"holds the tokens \[\d+\], which no answer may hold", policy.rollout, [replace(asked, written=f"no{end}\nyes")])
