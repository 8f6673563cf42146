"""Dialogues that are given: tokens of the chat template, a mask of the model's turns, packed as padded, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmrl.core.readings import LOGPROBS
from mmrl.core.samples import Observation, Prompt, Turn
from mmrl.core.types import Dialogue, Given, Request, Rollouts
from mmrl.lab.tiny.text.vlms import build
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig

PICTURE, PART = Image.new("RGB", (56, 56), (200, 30, 30)), Image.new("RGB", (84, 56), (20, 30, 200))
ASKED = Prompt("p", "What is it?", (PICTURE,))
TURNS = (
    Turn('<tool_call>{"name": "zoom"}</tool_call>', (0, 0), Observation("Here it is: <image>", (PART,))),
    Turn("A cat.", (0, 0), Observation("Sure?")),
    Turn("Yes.", (0, 0)),
)


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl", "internvl"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextPolicy:
    return TextPolicy(TextPolicyConfig(model=str(build(request.param, tmp_path_factory.mktemp("tiny") / "model"))))


def given(policy: TextPolicy, *dialogues: Given | str, prompt: Prompt = ASKED) -> Rollouts:
    """A row for each, all of one prompt."""
    return policy.rollout([Request(prompt, 1, 0, role="injected", written=one) for one in dialogues])


def spoken(policy: TextPolicy, rollouts: Rollouts, row: int = 0) -> str:
    """The tokens that train, as text."""
    tokens = rollouts.trace.tokens[row][rollouts.action_mask[row]]  # type: ignore[attr-defined]
    return policy.tokenizer.decode(tokens)


def test_tokens_are_those_of_the_chat_template_and_the_models_turns_alone_train(policy: TextPolicy):
    rollouts = given(policy, Dialogue(TURNS))
    [sample] = rollouts.groups[0].samples
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]
    for turn in TURNS:
        chat.append({"role": "assistant", "content": [{"type": "text", "text": turn.text}]})
        if turn.observation is not None:
            parts = [{"type": "text", "text": turn.observation.text.removesuffix("<image>")}]
            chat.append({"role": "user", "content": [*parts, *[{"type": "image"}] * len(turn.observation.media)]})
    text = policy.processor.apply_chat_template(chat, tokenize=False)
    options = {} if policy.tokenizer.bos_token is None else {"add_special_tokens": False}
    whole = policy.processor(text=[text], images=[[PICTURE, PART]], return_tensors="pt", **options)["input_ids"][0].tolist()
    fed = [*policy.encode(ASKED).token_ids.tolist(), *(sample.token_ids or ())]
    assert fed == whole[: len(fed)] and not policy.tokenizer.decode(whole[len(fed) :]).strip()
    mark = policy.tokenizer.decode(fed[-1:])
    assert spoken(policy, rollouts) == "".join(turn.text + mark for turn in TURNS)
    assert sample.text == "Yes." and "Sure?" in sample.earlier and len(sample.turns) == 3
    last = given(policy, Dialogue(TURNS, last_only=True))
    assert torch.equal(last.trace.tokens, rollouts.trace.tokens) and spoken(policy, last) == "Yes." + mark  # type: ignore[attr-defined]
    policy.audit(rollouts)


def test_a_dialogue_of_one_turn_is_a_text(policy: TextPolicy):
    one, text = given(policy, Dialogue(TURNS[2:])), given(policy, "Yes.")
    assert torch.equal(one.trace.tokens, text.trace.tokens) and torch.equal(one.action_mask, text.action_mask)  # type: ignore[attr-defined]


def test_packed_rows_with_pictures_between_turns_read_as_padded_ones(policy: TextPolicy):
    rollouts = given(policy, Dialogue(TURNS), Dialogue((TURNS[1], TURNS[2])), "A dog.")
    values = {}
    for packed in (True, False):
        part = replace(rollouts, trace=replace(rollouts.trace, packed=packed))  # type: ignore[type-var]
        values[packed] = policy.read(part.trace, [LOGPROBS], part.action_mask)[LOGPROBS]
    assert policy.packs and (values[True] - values[False]).abs().max() < 1e-4
    assert not values[True][~rollouts.action_mask].any() and values[True][rollouts.action_mask].all()
    other = replace(TURNS[0], observation=replace(TURNS[0].observation, media=(PICTURE.resize((84, 56)),)))  # type: ignore[type-var]
    seen = given(policy, Dialogue((other, *TURNS[1:])))
    moved = policy.read(seen.trace, [LOGPROBS], seen.action_mask)[LOGPROBS][0] - values[False][0, : seen.action_mask.shape[1]]
    assert moved.abs().max() > 1e-3, "the picture between the turns is not looked at"


@pytest.mark.parametrize("family", ["qwen3_vl"])
def test_turns_that_the_template_writes_otherwise_in_a_whole_dialogue_are_refused(family: str, tmp_path: Path):
    policy = TextPolicy(TextPolicyConfig(model=str(build(family, tmp_path / "model"))))
    policy.processor.chat_template = (
        "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}{% for part in message.content %}"
        "{{ part.text if message.role == 'user' or message == messages[-1] else part.text.split('</think>')[-1] }}"
        "{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    plain = Prompt("q", "What?")
    thought = replace(TURNS[1], text="<think>hm</think>A cat.")
    with pytest.raises(ValueError, match=r"prompt 'q': .* writes turn 1 of 2 otherwise once the whole.*--turns each"):
        given(policy, Dialogue((thought, TURNS[2])), prompt=plain)
    assert "hm" not in spoken(policy, given(policy, Dialogue(TURNS[1:]), prompt=plain))
    with pytest.raises(ValueError, match=r"prompt 'q'.*spells the special token"):
        given(policy, Dialogue((replace(TURNS[1], observation=Observation("<|im_end|>")), TURNS[2])), prompt=plain)


def test_lists_of_messages_become_dialogues_and_bad_ones_are_refused():
    from mmrl.algorithms.planners.taught import Taught, dialogue_at

    says = lambda role, content, **more: {"role": role, "content": content, **more}  # noqa: E731
    chat = [
        says("user", "?"),
        says("assistant", "a"),
        says("tool", [{"type": "image", "image": PART}, {"type": "text", "text": "b"}]),
    ]
    chat += [says("assistant", [{"type": "text", "text": "<think>x</think>c"}])]
    prompt = replace(ASKED, columns={"completion": chat})
    first, second = dialogue_at(prompt, "")
    assert first.observation == Observation("<image>b", (PART,), "tool") and (first.text, second.text) == (
        "a",
        "<think>x</think>c",
    )
    [request] = Taught(thought_dropout=1.0, turns="last").first([prompt], 1, 0, 0)
    assert request.given is not None and [piece.who for piece in request.given.pieces] == ["forced", "policy"]
    assert request.given.turns[1].text == "<think>\n\n</think>c"
    assert Taught().first([replace(ASKED, columns={"completion": chat[:2]})], 1, 0, 0)[0].written == "a"
    for bad, words in (
        ([*chat[1:], chat[2]], "has turns by assistant, tool, assistant, tool.*has the last word"),
        ([chat[1], says("critic", "no"), chat[3]], "takes turns with user or tool"),
        ([chat[1], chat[2], says("assistant", " ")], "turn 2 of its dialogue is ' ': it must be a text"),
    ):
        with pytest.raises(ValueError, match=words):
            Taught().check_prompts([replace(ASKED, columns={"completion": bad})])
    with pytest.raises(ValueError, match="turns is 'last', and none of the 1 completions"):
        Taught(turns="last").check_prompts([replace(ASKED, columns={"completion": "a"})])
