"""Text before drawing: plans and codes as by the model's own generate, one row of log-probabilities, both stretches train."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch

from mmrl.core.readings import ENTROPY, LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request, Rollouts, StoredRow
from mmrl.lab.tiny.text.janus import build
from mmrl.policies.codes.policy import CodePolicy, CodePolicyConfig
from mmrl.policies.codes.settings import PlanSettings
from mmrl.policies.text.read.evaluate import trace_of_nothing
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.trace import TextTrace

BOUND = 1e-5
"""Of |log ratio|; plans, which are written without guidance, keep half of it."""
TEXTS = ("a red fox", "two large dogs before a blue door")
PLAN = PlanSettings(12, "Of what is {prompt}?", "{prompt}: {plan}")
GUIDANCE = 5.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that ends some texts early."""
    from transformers import JanusForConditionalGeneration

    place = build("janus", tmp_path_factory.mktemp("janus"))
    model: Any = JanusForConditionalGeneration.from_pretrained(place)
    head, end = model.lm_head.weight.data, 258
    with torch.no_grad():
        head *= 0.1
        head[end] *= 60
    model.save_pretrained(place)
    return str(place)


@pytest.fixture(scope="module")
def drawn(folder: str) -> tuple[CodePolicy, Rollouts]:
    policy = CodePolicy(CodePolicyConfig(folder, guidance=GUIDANCE, plan=PLAN), {"ref"})
    return policy, policy.rollout(requests(16))


def requests(count: int) -> list[Request]:
    return [Request(Prompt(str(i), text), count, i, seed=i) for i, text in enumerate(TEXTS)]


def trace_of(rollouts: Rollouts) -> TextTrace:
    return cast(TextTrace, rollouts.trace)


def plain_logprobs(model: Any, processor: Any, caption: str, plan: Sequence[int], codes: Sequence[int]) -> torch.Tensor:
    """Log-probabilities of a plan and of codes behind it, by transformers alone, one row without padding each."""

    def ids(text: str) -> list[int]:
        chat = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        return processor.tokenizer(processor.apply_chat_template(chat, add_generation_prompt=True))["input_ids"]

    tokenizer, end = processor.tokenizer, processor.tokenizer.eos_token_id
    begin = tokenizer.convert_tokens_to_ids("<begin_of_image>")
    asked = torch.tensor([[*ids(PLAN.ask.replace("{prompt}", caption)), *plan]])
    logits = model(input_ids=asked).logits[0, -len(plan) - 1 : -1]
    special = [token for token in tokenizer.all_special_ids if token != end] + [tokenizer.convert_tokens_to_ids("<|im_start|>")]
    logits[:, special] = -torch.inf
    of_plan = logits.log_softmax(-1).gather(-1, asked[0, -len(plan) :, None])[:, 0]
    chat = [{"role": "user", "content": [{"type": "text", "text": f"{caption}: \ue000"}]}]
    whole = processor.apply_chat_template(chat, add_generation_prompt=True)
    first, last = whole.split("\ue000")
    said = [token for token in plan if token != end]
    drawn = torch.tensor([[*tokenizer(first)["input_ids"], *said, *tokenizer(last)["input_ids"], begin]])
    free = torch.where((drawn == tokenizer.bos_token_id) | (drawn == begin), drawn, tokenizer.pad_token_id)
    scores: list[torch.Tensor] = []
    for prompt in (drawn, free):
        fed = model.prepare_embeddings_for_image_generation(torch.tensor([list(codes)])[:, :-1])
        embeds = torch.cat([model.get_input_embeddings()(prompt), fed], 1)
        hidden = model.model.language_model(inputs_embeds=embeds).last_hidden_state[0, prompt.shape[1] - 1 :]
        scores.append(model.model.generation_head(hidden))
    guided = (scores[1] + GUIDANCE * (scores[0] - scores[1])).log_softmax(-1)
    return torch.cat([of_plan, guided.gather(-1, torch.tensor(list(codes))[:, None])[:, 0]])


def test_both_stretches_are_read_again(drawn: tuple[CodePolicy, Rollouts]):
    policy, rollouts = drawn
    policy.audit(rollouts)
    noted, trace = rollouts.recorded[ROLLOUT_LOGPROBS], trace_of(rollouts)
    plans = (trace.tokens < policy.first_code).logical_and(rollouts.action_mask).sum(1)
    assert (trace.lengths - plans == 16).all() and len(plans.unique()) > 2, "plans of several lengths, and whole pictures"
    read = policy.read(trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS].detach()
    assert (read - noted).abs().max() <= BOUND
    assert (read - noted)[trace.tokens < policy.first_code].abs().max() <= BOUND / 2
    half = rollouts.action_mask & (torch.arange(read.shape[1]) % 2 == 0)
    some = policy.read(trace, [LOGPROBS], half)[LOGPROBS].detach()
    assert torch.allclose(some, read * half, atol=BOUND) and not some[~half].any()
    for one in policy.rounding.readings(rollouts):
        assert (one - noted).abs().max() < 2 * BOUND


def test_log_probabilities_are_those_of_transformers(folder: str, drawn: tuple[CodePolicy, Rollouts]):
    from transformers import AutoProcessor, JanusForConditionalGeneration

    model: Any = JanusForConditionalGeneration.from_pretrained(folder).eval()
    processor: Any = AutoProcessor.from_pretrained(folder)
    policy, rollouts = drawn
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    for row in (0, 17, 20):
        tokens = trace_of(rollouts).tokens[row, : trace_of(rollouts).lengths[row]].tolist()
        plan = [token for token in tokens if token < policy.first_code]
        codes = [token - policy.first_code for token in tokens[len(plan) :]]
        expected = plain_logprobs(model, processor, TEXTS[row // 16], plan, codes)
        assert torch.allclose(noted[row, : len(tokens)], expected, atol=2e-5)


def test_samples_hold_plan_and_picture_and_say_which_plans_were_cut(drawn: tuple[CodePolicy, Rollouts]):
    policy, rollouts = drawn
    tokenizer: Any = policy.tokenizer
    for _, sample in rollouts.samples():
        plan = [token for token in sample.token_ids or () if token < policy.first_code]
        assert sample.text == tokenizer.decode(plan, skip_special_tokens=True)
        assert sample.truncated == (plan[-1] != tokenizer.eos_token_id) and sample.image.size == (8, 8)
    assert {sample.truncated for _, sample in rollouts.samples()} == {True, False}


def test_a_sample_depends_on_its_own_seed_alone(drawn: tuple[CodePolicy, Rollouts]):
    policy, rollouts = drawn
    [group] = policy.rollout([Request(Prompt("1", TEXTS[1]), 2, 1, seed=1)]).groups
    assert [one.token_ids for one in group.samples] == [one.token_ids for one in rollouts.groups[1].samples[:2]]


def test_the_reward_of_a_picture_moves_the_plan_as_well(drawn: tuple[CodePolicy, Rollouts]):
    policy, rollouts = drawn
    names = set(policy.weights.named)
    assert {name.split(".")[1] for name in names} == {
        *("language_model", "generation_embeddings", "generation_aligner", "generation_head", "weight")
    }
    read = policy.read(rollouts.trace, [LOGPROBS, ENTROPY], rollouts.action_mask)
    head = policy.weights.named["lm_head.weight"]
    whole = torch.autograd.grad(read[LOGPROBS].sum(), head, retain_graph=True)[0]
    plans = trace_of(rollouts).tokens < policy.first_code
    own = torch.autograd.grad((read[LOGPROBS] * plans).sum(), head)[0]
    assert whole.abs().max() > 0.1 and torch.allclose(whole, own, atol=1e-5)
    assert bool((read[ENTROPY][rollouts.action_mask] > 0).all())


def test_a_process_without_rows_passes_both_heads_all_the_same(drawn: tuple[CodePolicy, Rollouts]):
    policy, _ = drawn
    nothing, mask = trace_of_nothing(policy, packed=False)
    work = policy.evaluation(nothing, nothing.prompts, mask, ("logprobs",))
    value = policy.net(work)["logprobs"]
    grads = torch.autograd.grad(value.sum(), policy.parameters(), allow_unused=True)
    assert value.tolist() == [[0.0]] and all(grad is not None for grad in grads)


def test_a_stored_row_is_taken_up_with_its_plan(drawn: tuple[CodePolicy, Rollouts]):
    policy, rollouts = drawn
    sample, noted = rollouts.groups[0].samples[0], rollouts.recorded[ROLLOUT_LOGPROBS][0]
    stored = StoredRow(sample.token_ids or (), tuple(noted[: len(sample.token_ids or ())].tolist()))
    [group] = policy.rollout([Request(requests(1)[0].prompt, 1, 0, role="replayed", written=stored)]).groups
    assert group.samples[0].image.tobytes() == sample.image.tobytes() and group.samples[0].text == sample.text


def test_without_a_plan_nothing_is_asked_and_a_picture_of_the_data_comes_behind_an_empty_one(folder: str):
    from PIL import Image

    planned = CodePolicy(CodePolicyConfig(folder, plan=PlanSettings(4, "{prompt}?", "{prompt}{plan}")))
    plain = CodePolicy(CodePolicyConfig(folder))
    prompt = Prompt("a", "a red fox", columns={"picture": Image.effect_noise((8, 8), 90).convert("RGB")})
    found: list[torch.Tensor] = []
    for policy in (planned, plain):
        rollouts = policy.rollout([Request(prompt, 1, 0, role="injected", written="picture")])
        found.append(policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS])
    assert torch.allclose(found[0], found[1], atol=BOUND)


def test_greedy_plans_are_drawn_greedily(folder: str):
    policy = CodePolicy(CodePolicyConfig(folder, plan=PLAN))
    pair = [policy.rollout(requests(2), Sampling(temperature=0.0)).groups[1].samples[i].token_ids for i in (0, 1)]
    assert pair[0] == pair[1]


def test_frames_that_leave_no_room_are_refused(folder: str):
    long = CodePolicy(CodePolicyConfig(folder, plan=PlanSettings(300, "{prompt}?", "{prompt} " + "x" * 200 + "{plan}")))
    with pytest.raises(ValueError, match=r"prompt 'a': what its picture follows has .* tokens beside the plan"):
        long.rollout([Request(Prompt("a", "a fox"), 1, 0)])
    with pytest.raises(ValueError, match=r"prompt 'a' holds the letter U\+E000"):
        long.rollout([Request(Prompt("a", "a \ue000 fox"), 1, 0)])
