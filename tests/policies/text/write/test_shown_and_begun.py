"""Completions sampled behind another prompt, and completions that go on from given tokens, on real model classes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.algorithms.planners.segments import SegmentValues
from mmrl.algorithms.views import Hint
from mmrl.core.ranks import Ranks
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import Sample, Video, segments_of
from mmrl.core.types import Prefix, Prompt, Request, Rollouts, Shown
from mmrl.policies.text.check.audit import audit_rollouts
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.training.collect import merge_rollouts
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
    requests = [
        asked(one),
        asked(one, shown=Shown(HINT(one, 0), trained=True)),
        asked(two, 1, shown=Shown(HINT(two, 0))),
    ]
    rollouts = policy.rollout(requests)
    audit_rollouts(policy, rollouts)
    texts = [prompt.prompt.text for prompt in text_trace(rollouts.trace).prompts if prompt.prompt is not None]
    assert [text.endswith("blue.") for text in texts] == [False, True, False], "the last is trained without its hint"
    assert [group.prompt.text for group in rollouts.groups] == [one.text, two.text], "rewards see the plain prompt"
    assert not recorded(rollouts)[:4].isnan().any() and recorded(rollouts)[4:].isnan().all()
    assert_read_as_recorded(policy, rollouts)
    given = policy.rollout([asked(two, 1, count=1, role="injected", written=text_of(s)) for s in rollouts.groups[1].samples])
    assert [ids_of(s)[: len(ids_of(t)) - 1] for s, t in zip(given.groups[0].samples, rollouts.groups[1].samples, strict=True)]


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
    with pytest.raises(ValueError, match=said.replace("|", r"\|")):
        make(tiny("qwen2_5_vl")).rollout([asked(prompts()[0], **changes)])
