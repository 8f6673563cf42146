"""An observation's tokens are what a chat of the whole dialogue has between two turns; its pictures are seen as alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.core.types import Observation, Prompt
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.prompt.encode import TYPE_NAMES, Encoded
from mmrl.policies.text.trace import append
from mmrl.policies.text.write.episodes import inset_of, observe
from tests.support.text_policies import make, picture

SAID = "look here"


def dialogue(policy: TextPolicy) -> Encoded:
    """A dialogue of two pictures as the model's own processor encodes it in one go."""
    chat = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": SAID}]},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Here."}]},
    ]
    text = policy.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    bos = policy.tokenizer.bos_token
    options = {"add_special_tokens": False} if bos and text.startswith(bos) else {}
    fed = dict(policy.processor(text=[text], images=[[picture(1, 100, 70), picture(2, 80, 40)]], return_tensors="pt", **options))
    ids = fed.pop("input_ids")[0]
    fed.pop("attention_mask", None)
    types = next((fed.pop(name)[0] for name in TYPE_NAMES if name in fed), None)
    media = policy.family.tidy({name: torch.as_tensor(value) for name, value in fed.items()})
    return Encoded("whole", ids, policy.family.positions(policy.net.core, ids, types, media), types, media)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm", "gemma3"])
def test_a_row_is_the_dialogue_that_a_template_writes(tiny: Any, family: str):
    policy = make(tiny(family))
    whole = dialogue(policy)
    prompt = policy.encode(Prompt("p", "What is this?", (picture(1, 100, 70),)))
    said = [*policy.tokenizer(SAID, add_special_tokens=False)["input_ids"], policy.eos_token_ids[0]]
    stop = policy.tokenizer.convert_ids_to_tokens(said[-1])
    told = observe(policy.encode, Observation("Here.", (picture(2, 80, 40),)), stop)
    inset = inset_of(told, len(said))
    assert inset is not None and [size[:2] for size in told.sizes] == [(80, 40)]
    row = append(prompt, [*said, *told.token_ids.tolist()], (inset,))
    assert torch.equal(row.token_ids, whole.token_ids) and torch.equal(row.positions, whole.positions)
    if whole.type_ids is not None and row.type_ids is not None:
        assert torch.equal(row.type_ids.long(), whole.type_ids.long())
    joined = policy.family.collate([row.media, *row.more])
    assert {name: x.shape for name, x in joined.items()} == {name: x.shape for name, x in whole.media.items()}
    assert all(torch.allclose(x.float(), whole.media[name].float()) for name, x in joined.items())
    added = observe(policy.encode, Observation("Here.", (picture(2, 80, 40),)), None)
    assert len(added) > len(told), "a turn that was cut gets the template's mark"


def template(policy: TextPolicy, written: str) -> TextPolicy:
    """The policy with another chat template."""
    policy.processor.chat_template = written
    encoder = replace(policy.encode, tried=set())
    policy.encode = encoder
    return policy


def test_templates_that_no_turn_can_follow_are_refused(tiny: Any):
    each = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content[-1].text }}"
    policy = template(make(tiny("qwen3_vl")), each + "</s><|im_end|>{% endfor %}")
    with pytest.raises(ValueError, match=r"the chat template writes '</s>' between a turn and '<\|im_end\|>'"):
        observe(policy.encode, Observation("Here."), "<|im_end|>")
    last = template(policy, "{{ messages[-1].content[-1].text }}")
    with pytest.raises(ValueError, match="the chat template leaves out what the model said"):
        observe(last.encode, Observation("Here."), "<|im_end|>")
    other = template(policy, each + " |{% endfor %}")
    assert policy.decode([observe(other.encode, Observation("Here."), "<|im_end|>").token_ids.tolist()]) == [" |user: Here. |"]


def test_text_that_spells_a_special_token_is_refused(tiny: Any):
    policy = make(tiny("qwen3_vl"))
    with pytest.raises(ValueError, match=r"spells the special token '<\|im_end\|>'"):
        observe(policy.encode, Observation("so <|im_end|>"), None)
    with pytest.raises(ValueError, match="an observation shows pictures, and this one holds clips"):
        observe(policy.encode, Observation("", ("a.mp4",)), None)
