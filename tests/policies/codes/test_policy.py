"""Drawing by tokens: codes as by the model's own generate, equal log-probabilities when read again, pictures as samples."""

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
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.trace import TextTrace

BOUND = 2e-5
"""Of |log ratio|, wherever the model is deep; the tiny one keeps 5e-6."""
TEXTS = ("a red fox", "two large dogs before a blue door")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build("janus", tmp_path_factory.mktemp("janus")))


def requests(count: int = 3) -> list[Request]:
    return [Request(Prompt(str(i), text), count, i, seed=i) for i, text in enumerate(TEXTS)]


def draw(folder: str, **settings: Any) -> tuple[CodePolicy, Rollouts]:
    policy = CodePolicy(CodePolicyConfig(folder, **settings), {"ref"})
    return policy, policy.rollout(requests())


def reread(policy: CodePolicy, rollouts: Rollouts, rows: slice = slice(None)) -> torch.Tensor:
    places, trace = torch.arange(len(rollouts))[rows], cast(TextTrace, rollouts.trace)
    return policy.read(trace.take(places), [LOGPROBS], rollouts.action_mask[places])[LOGPROBS].detach()


def plain(folder: str) -> tuple[Any, Any]:
    from transformers import AutoProcessor, JanusForConditionalGeneration

    return JanusForConditionalGeneration.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)


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


def test_reading_without_guidance_would_be_another_policy(folder: str):
    _, rollouts = draw(folder)
    other = CodePolicy(CodePolicyConfig(folder, guidance=1.0))
    assert (reread(other, rollouts) - rollouts.recorded[ROLLOUT_LOGPROBS]).abs().max() > 0.3


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
    trace: Any = rollouts.trace
    ids, codes = trace.prompts[0].token_ids[None], trace.tokens[:1]
    tokenizer: Any = policy.tokenizer
    begin = tokenizer.convert_tokens_to_ids("<begin_of_image>")
    free = torch.where((ids == tokenizer.bos_token_id) | (ids == begin), ids, tokenizer.pad_token_id)
    scores = []
    for prompt in (ids, free):
        embeds = model.get_input_embeddings()(prompt), model.prepare_embeddings_for_image_generation(codes[:, :-1])
        hidden = model.model.language_model(inputs_embeds=torch.cat(embeds, 1)).last_hidden_state[:, ids.shape[1] - 1 :]
        scores.append(model.model.generation_head(hidden))
    logprobs = (scores[1] + 5 * (scores[0] - scores[1])).log_softmax(-1)
    expected = -(logprobs.exp() * logprobs).sum(-1)
    assert torch.allclose(read[:1], expected, atol=1e-4)


def test_the_language_model_trains_and_what_sees_decodes_or_writes_text_does_not(folder: str):
    policy, rollouts = draw(folder)
    names = set(policy.weights.named)
    assert {name.split(".")[1] for name in names} == {
        *("language_model", "generation_embeddings", "generation_aligner", "generation_head")
    }
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
        with pytest.raises(ValueError, match=complaint):
            policy.rollout([odd])
    _, rollouts = draw(folder)
    with pytest.raises(ValueError, match="read with guidance 1"):
        policy.read(rollouts.trace, [LOGPROBS._replace(guidance=1.0)], rollouts.action_mask)


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
    with pytest.raises(ValueError, match="generation_head"):
        CodePolicy(CodePolicyConfig(str(tmp_path)))
