"""Drawing by tokens, with a plan of words before or without: codes as by the model's own generate, read again exactly."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from PIL import Image

from mmrl.core.readings import ENTROPY, LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Prefix, Prompt, Request, Rollouts, StoredRow
from mmrl.lab.tiny.text.janus import build
from mmrl.policies.codes.policy import CodePolicy, CodePolicyConfig
from mmrl.policies.codes.settings import PlanSettings
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.read.evaluate import trace_of_nothing
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.trace import TextTrace
from tests.support.refused import refused

BOUND = 2e-5
"""Of |log ratio|, wherever the model is deep; the tiny one keeps 5e-6."""
TEXTS = ("a red fox", "two large dogs before a blue door")
PLAN = PlanSettings(12, "Of what is {prompt}?", "{prompt}: {plan}")
PLAN_BOUND = 1e-5
"""Of |log ratio| with a plan, which is written without guidance and keeps half of it."""
GUIDANCE = 5.0
TRAINED = {"language_model", "generation_embeddings", "generation_aligner", "generation_head"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build("janus", tmp_path_factory.mktemp("janus")))


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that ends some texts early."""
    place = build("janus", tmp_path_factory.mktemp("janus"))
    model, _ = plain(str(place))
    head, end = model.lm_head.weight.data, 258
    head *= 0.1
    head[end] *= 60
    model.save_pretrained(place)
    return str(place)


@pytest.fixture(scope="module")
def planned(planner: str) -> tuple[CodePolicy, Rollouts]:
    policy = CodePolicy(CodePolicyConfig(planner, guidance=GUIDANCE, plan=PLAN), {"ref"})
    return policy, policy.rollout(requests(16))


def requests(count: int = 3) -> list[Request]:
    return [Request(Prompt(str(i), text), count, i, seed=i) for i, text in enumerate(TEXTS)]


def draw(folder: str, **settings: Any) -> tuple[CodePolicy, Rollouts]:
    policy = CodePolicy(CodePolicyConfig(folder, **settings), {"ref"})
    return policy, policy.rollout(requests())


def trace_of(rollouts: Rollouts) -> TextTrace:
    return cast(TextTrace, rollouts.trace)


def reread(policy: CodePolicy, rollouts: Rollouts, rows: slice = slice(None)) -> torch.Tensor:
    places = torch.arange(len(rollouts))[rows]
    return policy.read(trace_of(rollouts).take(places), [LOGPROBS], rollouts.action_mask[places])[LOGPROBS].detach()


def plain(folder: str) -> tuple[Any, Any]:
    from transformers import AutoProcessor, JanusForConditionalGeneration

    return JanusForConditionalGeneration.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)


def guided(model: Any, tokenizer: Any, prompt: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of every code at each place behind a prompt, (1, codes, vocabulary), by transformers alone."""
    begin, scores = tokenizer.convert_tokens_to_ids("<begin_of_image>"), list[torch.Tensor]()
    free = torch.where((prompt == tokenizer.bos_token_id) | (prompt == begin), prompt, tokenizer.pad_token_id)
    for one in (prompt, free):
        embeds = model.get_input_embeddings()(one), model.prepare_embeddings_for_image_generation(codes[:, :-1])
        hidden = model.model.language_model(inputs_embeds=torch.cat(embeds, 1)).last_hidden_state[:, prompt.shape[1] - 1 :]
        scores.append(model.model.generation_head(hidden))
    return (scores[1] + GUIDANCE * (scores[0] - scores[1])).log_softmax(-1)


def generate(folder: str, guidance: float) -> tuple[list[tuple[int, ...]], list[Image.Image]]:
    """Greedy codes and pictures by transformers alone."""
    model, processor = plain(folder)
    chats = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in TEXTS]
    written = [processor.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
    inputs = processor(text=written, generation_mode="image", padding=True, return_tensors="pt")
    codes = model.generate(**inputs, generation_mode="image", guidance_scale=guidance, do_sample=False, max_length=256)
    pixels = model.decode_image_tokens(codes)
    shown = processor.postprocess(list(pixels), return_tensors="pt")["pixel_values"]
    return [tuple(row) for row in codes.tolist()], [Image.fromarray(one.permute(1, 2, 0).numpy()) for one in shown]


@pytest.mark.parametrize("guidance", [1.0, 2.0, 5.0])
def test_what_was_sampled_is_read_again(folder: str, guidance: float):
    policy, rollouts = draw(folder, guidance=guidance)
    policy.audit(rollouts)
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    assert rollouts.action_mask.all() and rollouts.action_mask.shape == (6, 16)
    assert (reread(policy, rollouts) - noted).abs().max() < BOUND
    assert (reread(policy, rollouts, slice(0, 1)) - noted[:1]).abs().max() < BOUND, "alone, without padding"


def test_greedy_codes_and_pictures_are_those_of_transformers(folder: str):
    policy = CodePolicy(CodePolicyConfig(folder))
    groups = policy.rollout(requests(1), Sampling(temperature=0.0)).groups
    codes, pictures = generate(folder, 5.0)
    drawn = [group.samples[0] for group in groups]
    assert [sample.token_ids for sample in drawn] == codes
    assert [sample.image.tobytes() for sample in drawn] == [picture.tobytes() for picture in pictures]
    assert all(sample.text is None and not sample.truncated for sample in drawn)


def test_its_entropy_is_that_of_the_guided_distribution(folder: str):
    policy, rollouts = draw(folder)
    read = policy.read(rollouts.trace, [ENTROPY], rollouts.action_mask)[ENTROPY]
    model, _ = plain(folder)
    logprobs = guided(model, policy.tokenizer, trace_of(rollouts).prompts[0].token_ids[None], trace_of(rollouts).tokens[:1])
    expected = -(logprobs.exp() * logprobs).sum(-1)
    assert torch.allclose(read[:1], expected, atol=1e-4)


def test_the_language_model_trains_and_what_sees_decodes_or_writes_text_does_not(folder: str):
    policy, rollouts = draw(folder)
    assert {name.split(".")[1] for name in policy.weights.named} == TRAINED
    values = policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS]
    values.sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in policy.parameters())


def test_checkpointed_layers_give_the_same_gradient(folder: str):
    found: list[torch.Tensor] = []
    for twice in (False, True):
        policy, rollouts = draw(folder, gradient_checkpointing=twice)
        policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS].sum().backward()
        found.append(torch.cat([weight.grad.flatten() for weight in policy.parameters() if weight.grad is not None]))
    assert torch.allclose(found[0], found[1], atol=1e-5)


def test_an_adapter_draws_the_same_codes_once_it_was_loaded_by_peft(folder: str, tmp_path: Path):
    policy, _ = draw(folder, lora=LoraSettings(rank=2))
    for weight in policy.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    policy.save(tmp_path)
    own = policy.rollout(requests(1), Sampling(temperature=0.0)).groups
    again = CodePolicy(CodePolicyConfig(folder, lora=LoraSettings(adapter=str(tmp_path))))
    assert [g.samples[0].token_ids for g in again.rollout(requests(1), Sampling(temperature=0.0)).groups] == [
        g.samples[0].token_ids for g in own
    ]


def test_a_saved_model_draws_the_same_codes_in_plain_transformers(folder: str, tmp_path: Path):
    policy, _ = draw(folder)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.05 * torch.sign(weight))
    policy.save(tmp_path)
    own = policy.rollout(requests(1), Sampling(temperature=0.0)).groups
    codes, _ = generate(str(tmp_path), 5.0)
    assert [group.samples[0].token_ids for group in own] == codes


def test_pictures_of_the_data_become_the_codes_of_the_models_own_encoder(folder: str):
    policy = CodePolicy(CodePolicyConfig(folder))
    assert policy.config.max_prompt_tokens == 512 - 16, "prompts leave room for the codes"
    wide = Image.effect_noise((16, 8), 90).convert("RGB")
    prompt = Prompt("a", "a red fox", columns={"picture": wide})
    [group] = policy.rollout([Request(prompt, 1, 0, role="injected", written="picture")]).groups
    model, processor = plain(folder)
    square = wide.crop((4, 0, 12, 8))
    pixels = processor.image_processor(square, do_resize=False, do_pad=False, return_tensors="pt")["pixel_values"]
    assert group.samples[0].token_ids == tuple(model.model.vqmodel.encode(pixels).image_tokens.flatten().tolist())


def test_a_stored_row_is_taken_up_code_by_code(folder: str):
    policy, rollouts = draw(folder)
    sample, noted = rollouts.groups[0].samples[0], rollouts.recorded[ROLLOUT_LOGPROBS][0]
    stored = StoredRow(sample.token_ids or (), tuple(noted.tolist()))
    again = policy.rollout([Request(requests()[0].prompt, 1, 0, role="replayed", written=stored)])
    assert again.groups[0].samples[0].image.tobytes() == sample.image.tobytes()
    assert (reread(policy, again) - noted).abs().max() < BOUND


def test_requests_that_no_picture_answers_are_refused(folder: str):
    policy = CodePolicy(CodePolicyConfig(folder, max_prompt_tokens=60))
    request = requests()[0]
    for odd, complaint in (
        (replace(request, written=Prefix((1, 2))), "goes on from an earlier sample, or gives turns"),
        (replace(request, role="note"), "asks for a note, and the policy draws"),
        (replace(request, role="injected", written="picture"), "gives 'picture', which is none of its columns"),
        (replace(request, prompt=Prompt("a", "x" * 60)), "policy.max_prompt_tokens is 60"),
        (replace(request, prompt=Prompt("a", media=(Image.new("RGB", (8, 8)),))), "janus"),
    ):
        refused(complaint, policy.rollout, [odd])
    _, rollouts = draw(folder)
    refused("read with guidance 1", policy.read, rollouts.trace, [LOGPROBS._replace(guidance=1.0)], rollouts.action_mask)


def test_a_folder_without_its_head_of_codes_is_refused(folder: str, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    for file in Path(folder).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: x for name, x in weights.items() if "generation_head" not in name},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    refused("generation_head", CodePolicy, CodePolicyConfig(str(tmp_path)))


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
    logprobs = guided(model, tokenizer, drawn, torch.tensor([list(codes)]))[0]
    return torch.cat([of_plan, logprobs.gather(-1, torch.tensor(list(codes))[:, None])[:, 0]])


def test_both_stretches_are_read_again(planned: tuple[CodePolicy, Rollouts]):
    policy, rollouts = planned
    policy.audit(rollouts)
    noted, trace = rollouts.recorded[ROLLOUT_LOGPROBS], trace_of(rollouts)
    plans = (trace.tokens < policy.first_code).logical_and(rollouts.action_mask).sum(1)
    assert (trace.lengths - plans == 16).all() and len(plans.unique()) > 2, "plans of several lengths, and whole pictures"
    read = policy.read(trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS].detach()
    assert (read - noted).abs().max() <= PLAN_BOUND
    assert (read - noted)[trace.tokens < policy.first_code].abs().max() <= PLAN_BOUND / 2
    half = rollouts.action_mask & (torch.arange(read.shape[1]) % 2 == 0)
    some = policy.read(trace, [LOGPROBS], half)[LOGPROBS].detach()
    assert torch.allclose(some, read * half, atol=PLAN_BOUND) and not some[~half].any()
    for one in policy.rounding.readings(rollouts):
        assert (one - noted).abs().max() < 2 * PLAN_BOUND


def test_log_probabilities_of_plans_and_codes_are_those_of_transformers(planner: str, planned: tuple[CodePolicy, Rollouts]):
    model, processor = plain(planner)
    policy, rollouts = planned
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    for row in (0, 17, 20):
        tokens = trace_of(rollouts).tokens[row, : trace_of(rollouts).lengths[row]].tolist()
        plan = [token for token in tokens if token < policy.first_code]
        codes = [token - policy.first_code for token in tokens[len(plan) :]]
        expected = plain_logprobs(model, processor, TEXTS[row // 16], plan, codes)
        assert torch.allclose(noted[row, : len(tokens)], expected, atol=2e-5)


def test_samples_hold_plan_and_picture_and_say_which_plans_were_cut(planned: tuple[CodePolicy, Rollouts]):
    policy, rollouts = planned
    tokenizer: Any = policy.tokenizer
    for _, sample in rollouts.samples():
        plan = [token for token in sample.token_ids or () if token < policy.first_code]
        assert sample.text == tokenizer.decode(plan, skip_special_tokens=True)
        assert sample.truncated == (plan[-1] != tokenizer.eos_token_id) and sample.image.size == (8, 8)
    assert {sample.truncated for _, sample in rollouts.samples()} == {True, False}


def test_a_sample_depends_on_its_own_seed_alone(planned: tuple[CodePolicy, Rollouts]):
    policy, rollouts = planned
    [group] = policy.rollout([Request(Prompt("1", TEXTS[1]), 2, 1, seed=1)]).groups
    assert [one.token_ids for one in group.samples] == [one.token_ids for one in rollouts.groups[1].samples[:2]]


def test_the_reward_of_a_picture_moves_the_plan_as_well(planned: tuple[CodePolicy, Rollouts]):
    policy, rollouts = planned
    assert {name.split(".")[1] for name in policy.weights.named} == TRAINED | {"weight"}
    read = policy.read(rollouts.trace, [LOGPROBS, ENTROPY], rollouts.action_mask)
    head = policy.weights.named["lm_head.weight"]
    whole = torch.autograd.grad(read[LOGPROBS].sum(), head, retain_graph=True)[0]
    plans = trace_of(rollouts).tokens < policy.first_code
    own = torch.autograd.grad((read[LOGPROBS] * plans).sum(), head)[0]
    assert whole.abs().max() > 0.1 and torch.allclose(whole, own, atol=1e-5)
    assert bool((read[ENTROPY][rollouts.action_mask] > 0).all())


def test_a_process_without_rows_passes_both_heads_all_the_same(planned: tuple[CodePolicy, Rollouts]):
    policy, _ = planned
    nothing, mask = trace_of_nothing(policy, packed=False)
    work = policy.evaluation(nothing, nothing.prompts, mask, ("logprobs",))
    value = policy.net(work)["logprobs"]
    grads = torch.autograd.grad(value.sum(), policy.parameters(), allow_unused=True)
    assert value.tolist() == [[0.0]] and all(grad is not None for grad in grads)


def test_a_stored_row_is_taken_up_with_its_plan(planned: tuple[CodePolicy, Rollouts]):
    policy, rollouts = planned
    sample, noted = rollouts.groups[0].samples[0], rollouts.recorded[ROLLOUT_LOGPROBS][0]
    stored = StoredRow(sample.token_ids or (), tuple(noted[: len(sample.token_ids or ())].tolist()))
    [group] = policy.rollout([Request(requests(1)[0].prompt, 1, 0, role="replayed", written=stored)]).groups
    assert group.samples[0].image.tobytes() == sample.image.tobytes() and group.samples[0].text == sample.text


def test_without_a_plan_nothing_is_asked_and_a_picture_of_the_data_comes_behind_an_empty_one(planner: str):
    with_plan = CodePolicyConfig(planner, plan=PlanSettings(4, "{prompt}?", "{prompt}{plan}"))
    prompt = Prompt("a", "a red fox", columns={"picture": Image.effect_noise((8, 8), 90).convert("RGB")})
    found: list[torch.Tensor] = []
    for policy in map(CodePolicy, (with_plan, CodePolicyConfig(planner))):
        rollouts = policy.rollout([Request(prompt, 1, 0, role="injected", written="picture")])
        found.append(policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS])
    assert torch.allclose(found[0], found[1], atol=PLAN_BOUND)


def test_greedy_plans_are_drawn_greedily(planner: str):
    policy = CodePolicy(CodePolicyConfig(planner, plan=PLAN))
    pair = [policy.rollout(requests(2), Sampling(temperature=0.0)).groups[1].samples[i].token_ids for i in (0, 1)]
    assert pair[0] == pair[1]


def test_frames_that_leave_no_room_are_refused(planner: str):
    long = CodePolicy(CodePolicyConfig(planner, plan=PlanSettings(300, "{prompt}?", "{prompt} " + "x" * 200 + "{plan}")))
    with pytest.raises(ValueError, match=r"prompt 'a': what its picture follows has .* tokens beside the plan"):
        long.rollout([Request(Prompt("a", "a fox"), 1, 0)])
    refused(r"prompt 'a' holds the letter U\+E000", long.rollout, [Request(Prompt("a", "a \ue000 fox"), 1, 0)])
