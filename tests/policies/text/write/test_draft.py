"""Decoding asks the device as seldom as it is told to, and writes the same whenever it asks."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmrl.core.types import Prompt, Request
from mmrl.policies.shared.hypotheses import in_precision
from mmrl.policies.shared.lora import LoraSettings, casting_layers
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.policies.text.write.generate import LOOK_EVERY, Completions, Draft, Generation, LocalGenerator, Stops
from tests.support.host_looks import host_looks
from tests.support.second_device import META, SecondDevice
from tests.support.text_policies import FAMILIES, FP32_BOUND, bias_toward, make, prompts

ROWS = 5
LORA = LoraSettings(rank=4, alpha=8)


def generation(policy: TextPolicy, shown: Sequence[Prompt], sampling: Sampling, every: int) -> Generation:
    """The work of five rows for every prompt."""
    encoded = [policy.encode(prompt) for prompt in shown]
    index = [i for i in range(len(shown)) for _ in range(ROWS)]
    work = LocalGenerator(policy).generation(encoded, index, [(7, i) for i in range(len(index))], sampling)
    return replace(work, look_every=every)


def same(one: Completions, other: Completions) -> None:
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
    assert LocalGenerator(policy).generation([policy.encode(prompts()[2])], [0], [(0, 0)], Sampling()).look_every == 1


def test_all_processes_make_as_many_forwards_as_the_one_with_most_to_do(tiny):
    policy, forwards, asked = make(tiny("qwen3_vl")), list[int](), list[bool]()
    policy.net.core.register_forward_hook(lambda *_: forwards.append(1))

    def others_want_two_looks(flag: bool) -> bool:
        asked.append(flag)
        return len(asked) < 3

    work = replace(generation(policy, prompts()[:1], Sampling(max_new_tokens=16), every=4), anyone=others_want_two_looks)
    policy.run(replace(work, idle=True))
    assert asked == [False] * 3 and len(forwards) == 1 + 11, "the prompt, and a token after each but the twelfth"


def test_tokens_after_the_end_are_dropped():
    draft = Draft(2, 6, 99, Stops((0,), lambda rows: ["".join(map(str, row)) for row in rows], ("45",)), torch.device("cpu"))
    live, ids = torch.tensor([True, True]), torch.arange(2)
    for one, two in ((4, 1), (5, 0), (7, 7)):
        live = draft.note(torch.tensor([one, two]), torch.tensor([-1.0, -2.0]), live)
    assert draft.look(ids, live).tolist() == [False, False]
    tokens, logprobs, lengths, stopped = draft.cut()
    assert tokens.tolist() == [[4, 5], [1, 0]] and logprobs.tolist() == [[-1, -1], [-2, -2]]
    assert lengths.tolist() == [2, 2] and stopped.tolist() == [True, True]


def test_a_stop_text_may_begin_before_the_last_look():
    draft = Draft(1, 6, 99, Stops((0,), lambda rows: ["".join(map(str, row)) for row in rows], ("456",)), torch.device("cpu"))
    live, ids = torch.tensor([True]), torch.arange(1)
    for token in (3, 4):
        live = draft.note(torch.tensor([token]), torch.zeros(1), live)
    live = draft.look(ids, live)
    for token in (5, 6, 8):
        live = draft.note(torch.tensor([token]), torch.zeros(1), live)
    assert draft.look(ids, live).tolist() == [False]
    assert draft.cut()[0].tolist() == [[3, 4, 5, 6]]


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
    writer = LocalGenerator(policy)
    work = writer.generation(encoded, [0] * ROWS, [(7, i) for i in range(ROWS)], Sampling(max_new_tokens=24, stop=stop))
    assert work.look_every == LOOK_EVERY > 1
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

    written: list[Completions] = []
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
