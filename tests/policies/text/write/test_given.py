"""Completions that are given, in whole or in part: dialogues, beginnings, forced texts, prompts that are shown in their place."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.algorithms.planners.segments import SegmentValues
from mmrl.algorithms.views import Hint
from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.samples import Observation, Sample, Turn, Video, segments_of
from mmrl.core.types import Dialogue, Given, Prefix, Prompt, Request, Rollouts, Shown, StoredRow
from mmrl.policies.text.check.audit import audit_rollouts
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.training.collect import merge_rollouts
from tests.support.refused import refused
from tests.support.rows import scores
from tests.support.text_policies import FP32_BOUND, ids_of, logprobs, make, prompts, text_of, text_trace
from tests.support.videos import write_video

Tiny = Callable[[str], str]
FAMILIES = ("qwen2_5_vl", "smolvlm", "gemma3")
"""Positions on three axes and on one, and tokens that say what kind they are."""
HINT = Hint("It is blue.")
LONG = Sampling(max_new_tokens=8)


def forced(sample: Sample) -> tuple[int, int]:
    """From where to where its tokens were given and do not train."""
    return next(((one.start, one.stop) for one in sample.segments if one.who == "forced"), (0, 0))


def recorded(rollouts: Rollouts) -> torch.Tensor:
    return rollouts.recorded[ROLLOUT_LOGPROBS]


def assert_read_as_recorded(policy: TextPolicy, rollouts: Rollouts) -> None:
    read, mask = logprobs(policy, rollouts).detach(), rollouts.action_mask & ~recorded(rollouts).isnan()
    assert mask.any()
    torch.testing.assert_close(recorded(rollouts)[mask], read[mask], atol=FP32_BOUND, rtol=0)


def asked(prompt: Prompt, group_id: int = 0, **changes: object) -> Request:
    return replace(Request(prompt, 2, group_id, seed=5), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_shown_is_what_is_trained_where_that_is_wanted(tiny: Tiny, family: str):
    policy = make(tiny(family), sampling=LONG)
    one, two = prompts()[:2]
    requests = [asked(one), asked(one, shown=Shown(HINT(one, 0), trained=True)), asked(two, 1, shown=Shown(HINT(two, 0)))]
    rollouts = policy.rollout(requests)
    audit_rollouts(policy, rollouts)
    texts = [prompt.prompt.text for prompt in text_trace(rollouts.trace).prompts if prompt.prompt is not None]
    assert [text.endswith("blue.") for text in texts] == [False, True, False], "the last is trained without its hint"
    assert [group.prompt.text for group in rollouts.groups] == [one.text, two.text], "rewards see the plain prompt"
    assert not recorded(rollouts)[:4].isnan().any() and recorded(rollouts)[4:].isnan().all()
    assert_read_as_recorded(policy, rollouts)
    stored = [StoredRow(ids_of(sample)) for sample in rollouts.groups[1].samples]
    given = policy.rollout([asked(two, 1, count=1, role="replayed", written=one) for one in stored])
    torch.testing.assert_close(logprobs(policy, given), logprobs(policy, rollouts)[4:], atol=FP32_BOUND, rtol=0)


def test_a_view_may_be_trained_as_well(tiny: Tiny):
    policy = make(tiny("qwen2_5_vl"))
    policy.views["hinted"] = HINT
    one = prompts()[0]
    viewed = policy.rollout([asked(one, view="hinted", shown=Shown(trained=True))])
    shown = policy.rollout([asked(one, shown=Shown(HINT(one, 0), trained=True))])
    assert torch.equal(text_trace(viewed.trace).tokens, text_trace(shown.trace).tokens)
    assert torch.equal(recorded(viewed), recorded(shown))


@pytest.mark.parametrize("prefix", ["packed", "repeated"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_completions_go_on_as_they_began(tiny: Tiny, family: str, prefix: str):
    policy = make(tiny(family), sampling=LONG, prefix=prefix)
    greedy = Sampling(temperature=0.0, max_new_tokens=8)
    requests = [asked(prompt, i, count=1) for i, prompt in enumerate(prompts())]
    whole = policy.rollout(requests, greedy)
    again = [replace(r, written=Prefix(ids_of(g.samples[0]), 0.5)) for r, g in zip(requests, whole.groups, strict=True)]
    rollouts = policy.rollout(again, greedy)
    audit_rollouts(policy, rollouts)
    assert torch.equal(text_trace(rollouts.trace).tokens, text_trace(whole.trace).tokens)
    starts = [forced(sample)[1] for group in rollouts.groups for sample in group.samples]
    assert min(starts) >= 3
    proper = whole.action_mask & (torch.arange(8) >= torch.tensor(starts)[:, None])
    assert torch.equal(rollouts.action_mask, proper)
    assert_read_as_recorded(policy, rollouts)


def test_clips_go_on_as_well(tiny: Tiny, tmp_path: Path):
    policy = make(tiny("qwen2_5_vl"), sampling=LONG)
    prompt = Prompt("clip", "when?", (Video(str(write_video(tmp_path / "a.mp4", [i / 5 for i in range(12)])), fps=2.0),))
    greedy = Sampling(temperature=0.0, max_new_tokens=8)
    whole = policy.rollout([asked(prompt, count=1)], greedy)
    rollouts = policy.rollout([asked(prompt, count=1, written=Prefix(ids_of(whole.groups[0].samples[0]), 0.5))], greedy)
    assert torch.equal(text_trace(rollouts.trace).tokens, text_trace(whole.trace).tokens)
    shown = policy.rollout([asked(prompt, shown=Shown(HINT(prompt, 0), trained=True))])
    for one in (rollouts, shown):
        audit_rollouts(policy, one)
        assert_read_as_recorded(policy, one)


def test_forced_text_never_trains_and_kept_tokens_train_if_asked(tiny: Tiny):
    policy = make(tiny("qwen2_5_vl"), sampling=LONG)
    prompt = prompts()[0]
    tokens = tuple(policy.tokenizer("so it is </think> blue", add_special_tokens=False)["input_ids"])
    end = len(policy.tokenizer("END", add_special_tokens=False)["input_ids"])
    rollouts = policy.rollout(
        [
            asked(prompt, written=Prefix(tokens, before="</think>", forced="END")),
            asked(prompt, 1, written=Prefix(tokens, before="</think>", forced="END", trained=True)),
        ],
        Sampling(max_new_tokens=2),
    )
    audit_rollouts(policy, rollouts)
    masked, trained = (group.samples[0] for group in rollouts.groups)
    kept = forced(trained)[0]
    assert text_of(trained).startswith("so it is END") or text_of(trained).startswith("so it isEND")
    assert masked.segments == segments_of([("forced", kept + end), ("policy", 1)]) and kept > 0
    assert trained.segments == segments_of([("policy", kept), ("forced", end), ("policy", 1)])
    assert len(ids_of(masked)) == kept + end + 1, "one token at least is sampled, beyond max_new_tokens"
    assert rollouts.action_mask.tolist() == [[False] * (kept + end) + [True]] * 2 + [[True] * kept + [False] * end + [True]] * 2
    assert recorded(rollouts)[2:, :kept].isnan().all() and not recorded(rollouts)[:2].isnan().any()


@pytest.mark.parametrize("family", FAMILIES)
def test_segments_are_valued_by_what_goes_on_from_their_ends(tiny: Tiny, family: str):
    policy, planner = make(tiny(family), sampling=LONG), SegmentValues(interval=3, continuations=2)
    asked_first = list(planner.first(prompts()[:2], 2, 0, seed=3))
    whole = policy.rollout(asked_first)
    planner.inspect(Ranks().all_rows(whole)[0])
    ones = scores(torch.ones(4, 1))
    more = planner.revise(whole.groups, ones, whole.group_ids, 2, 0).requests
    assert len(more) >= 4, "a tiny model of random weights is never sure"
    further = policy.rollout(more)
    audit_rollouts(policy, further)
    assert_read_as_recorded(policy, further)
    both = merge_rollouts(policy, whole, further)
    rewards = torch.rand(len(both), 1, generator=torch.Generator().manual_seed(0))
    revision = planner.revise(both.groups, scores(rewards), both.group_ids, 2, 1)
    for group in both.groups:
        mine = rewards[both.group_ids == group.id, 0].double().tolist()[2:]
        valued = [(group.samples[i], *cut) for i in range(2) for cut in revision.values[group.id, i]]
        for k, (sample, kept, value) in enumerate(valued):
            for other in group.samples[2 + 2 * k : 4 + 2 * k]:
                assert ids_of(other)[:kept] == ids_of(sample)[:kept] and forced(other) == (0, kept)
            assert value == pytest.approx(sum(mine[2 * k : 2 * k + 2]) / 2)
        assert 2 * len(valued) == len(mine)
    assert revision.drop_samples == {(g.id, i) for g in both.groups for i in range(2, len(g.samples))}


def test_notes_are_no_samples(tiny: Tiny):
    policy = make(tiny("qwen2_5_vl"))
    prompt = prompts()[0]
    rollouts = policy.rollout([asked(prompt), asked(prompt, shown=Shown(HINT(prompt, 0)), role="note", count=3)])
    assert len(rollouts) == len(rollouts.groups[0].samples) == 2 and len(rollouts.groups[0].notes) == 3
    alone = policy.rollout([asked(prompt, role="note", count=1)])
    assert len(alone) == 0 and len(policy.join([rollouts.trace, alone.trace])) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shown": Shown(Prompt("other"))}, "shows prompt 'other'"),
        ({"role": "injected"}, "give Request.written, or Request.shown"),
        ({"role": "note", "written": "a"}, "leave Request.written out"),
        ({"written": Prefix((1,), forced="<|image_pad|>")}, "forced for prompt 'one' holds the tokens"),
    ],
)
def test_requests_that_contradict_themselves(tiny: Tiny, changes: dict[str, Any], said: str):
    refused(said.replace("|", r"\|"), make(tiny("qwen2_5_vl")).rollout, [asked(prompts()[0], **changes)])


PICTURE, PART = Image.new("RGB", (56, 56), (200, 30, 30)), Image.new("RGB", (84, 56), (20, 30, 200))
ASKED = Prompt("p", "What is it?", (PICTURE,))
TURNS = (
    Turn('<tool_call>{"name": "zoom"}</tool_call>', (0, 0), Observation("Here it is: <image>", (PART,))),
    Turn("A cat.", (0, 0), Observation("Sure?")),
    Turn("Yes.", (0, 0)),
)


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl", "internvl"])
def policy(request: pytest.FixtureRequest, tiny: Tiny) -> TextPolicy:
    return TextPolicy(TextPolicyConfig(tiny(request.param)))


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


def test_turns_that_the_template_writes_otherwise_in_a_whole_dialogue_are_refused(tiny: Tiny):
    policy = make(tiny("qwen3_vl"))
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

    def says(role: str, content: object) -> dict[str, object]:
        return {"role": role, "content": content}

    shown = says("tool", [{"type": "image", "image": PART}, {"type": "text", "text": "b"}])
    chat = [says("user", "?"), says("assistant", "a"), shown, says("assistant", [{"type": "text", "text": "<think>x</think>c"}])]
    prompt = replace(ASKED, columns={"completion": chat})
    first, second = dialogue_at(prompt, "")
    assert first.observation == Observation("<image>b", (PART,), "tool")
    assert (first.text, second.text) == ("a", "<think>x</think>c")
    [request] = Taught(thought_dropout=1.0, turns="last").first([prompt], 1, 0, 0)
    assert request.given is not None and [piece.who for piece in request.given.pieces] == ["forced", "policy"]
    assert request.given.turns[1].text == "<think>\n\n</think>c"
    assert Taught().first([replace(ASKED, columns={"completion": chat[:2]})], 1, 0, 0)[0].written == "a"
    for bad, words in (
        ([*chat[1:], chat[2]], "has turns by assistant, tool, assistant, tool.*has the last word"),
        ([chat[1], says("critic", "no"), chat[3]], "takes turns with user or tool"),
        ([chat[1], chat[2], says("assistant", " ")], "turn 2 of its dialogue is ' ': it must be a text"),
    ):
        refused(words, Taught().check_prompts, [replace(ASKED, columns={"completion": bad})])
    with pytest.raises(ValueError, match="turns is 'last', and none of the 1 completions"):
        Taught(turns="last").check_prompts([replace(ASKED, columns={"completion": "a"})])
