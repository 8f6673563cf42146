"""The head of a reward model: what it scores, in both ways of reading, and its files."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.readings import VALUE
from mmrl.core.types import Prompt, Reading, Request, Rollouts
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import TextPolicy
from tests.support.text_policies import make, picture, plain_model

AXES = ("looks", "text")
READINGS = [Reading(f"score/{axis}") for axis in AXES]
TEXTS = ("a red square", "no")


def scorer(folder: str, **settings: Any) -> TextPolicy:
    """A policy whose head is not 0."""
    policy = make(folder, scores=AXES, **settings)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in policy.net.model.score_head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return policy


def given(policy: TextPolicy) -> Rollouts:
    prompt = Prompt("p", "what is it?", (picture(0),))
    return policy.rollout([Request(prompt, 1, 0, role="injected", written=text) for text in TEXTS])


def scores(policy: TextPolicy, rollouts: Rollouts) -> torch.Tensor:
    """(rows, axes)."""
    found = policy.read(rollouts.trace, READINGS, rollouts.action_mask)
    assert all(torch.equal(values, values[:, :1].expand_as(values)) for values in found.values())
    return torch.stack([found[reading][:, 0] for reading in READINGS], dim=1)


def by_hand(folder: str, policy: TextPolicy) -> torch.Tensor:
    """The head on what transformers alone computes behind each text."""
    model, processor = plain_model(folder)
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}]
    asked = processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    rows: list[torch.Tensor] = []
    for text in TEXTS:
        inputs = processor(images=[picture(0)], text=[asked + text], return_tensors="pt")
        with torch.no_grad():
            rows.append(policy.net.model.score_head(model.model(**inputs).last_hidden_state[0, -1:])[0])
    return torch.stack(rows)


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3"])
def test_scores_are_the_head_on_the_state_that_predicts_the_end(tiny: Any, family: str):
    packed = scorer(tiny(family), prefix="packed")
    found = scores(packed, rollouts := given(packed))
    assert (found - by_hand(tiny(family), packed)).abs().max() < 1e-4
    repeated = scorer(tiny(family), prefix="repeated")
    assert (found - scores(repeated, given(repeated))).abs().max() < 1e-5
    assert (found[0] - found[1]).abs().min() > 1e-3, "texts differ"
    (gradient,) = torch.autograd.grad(scores(packed, rollouts)[0].sum(), [packed.net.model.score_head.weight])
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("prefix", ["packed", "repeated"])
def test_values_are_the_head_on_every_state_that_predicts_a_token(tiny: Any, prefix: Any):
    policy = make(tiny("qwen3_vl"), prefix=prefix, scores=("other", "value"))
    head = policy.net.model.score_head
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(3)))
    rollouts = given(policy)
    mask = rollouts.action_mask.clone()
    mask[0, 1] = False
    values = policy.read(rollouts.trace, [VALUE], mask)[VALUE]
    model, processor = plain_model(tiny("qwen3_vl"))
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}]
    asked = processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    for i, text in enumerate(TEXTS):
        inputs = processor(images=[picture(0)], text=[asked + text], return_tensors="pt")
        count = int(rollouts.action_mask[i].sum())
        with torch.no_grad():
            expected = head(model.model(**inputs).last_hidden_state[0, -count:])[:, 1]
        expected = torch.where(mask[i, :count], expected, 0.0)
        assert (values[i, :count] - expected).abs().max() < 1e-4
    (gradient,) = torch.autograd.grad(values.sum(), [head.weight])
    assert gradient[1].abs().max() > 0 and not gradient[0].any()


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["all weights", "an adapter"])
def test_a_saved_head_is_loaded_and_a_fresh_one_scores_all_alike(tiny: Any, tmp_path: Path, lora: LoraSettings | None):
    fresh = make(tiny("qwen3_vl"), scores=AXES, lora=lora)
    assert not scores(fresh, given(fresh)).any()
    policy = scorer(tiny("qwen3_vl"), lora=lora)
    policy.save(tmp_path)
    assert (tmp_path / "score_head.safetensors").is_file() and not any("score_head" in name for name in held(tmp_path))
    if lora is None:
        again = make(str(tmp_path), scores=AXES)
        assert torch.equal(scores(again, given(again)), scores(policy, given(policy)))
        with pytest.raises(ValueError, match=r"scores looks, text: set policy.scores = \['looks', 'text'\]"):
            make(str(tmp_path), scores=("text",))
    other = make(tiny("qwen3_vl"), scores=AXES, lora=lora)
    other.load_state_dict(policy.state_dict())
    assert torch.equal(scores(other, given(other)), scores(policy, given(policy)))


def held(folder: Path) -> list[str]:
    """The names of the weights of a model or an adapter."""
    from safetensors import safe_open

    names: list[str] = []
    for file in folder.glob("*model.safetensors"):
        with safe_open(file, framework="pt") as opened:
            names += opened.keys()
    assert names
    return names


@pytest.mark.parametrize("axes", [("a", "a"), ("",), ("a,b",)])
def test_axes_without_a_name_of_their_own_are_refused(axes: tuple[str, ...]):
    with pytest.raises(ValueError, match="name every axis once, without commas"):
        make("nowhere", scores=axes)
