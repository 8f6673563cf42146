"""The audit of a vision-language model's rollouts: silent on prompts of any size, and precise about what is broken."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmrl.algorithms.presets import PRESETS
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prefix, Prompt, Request, Rollouts, Shown, StoredRow, Tempering, Video
from mmrl.policies.text.policy import Sampling, TextPolicy, VideoSettings
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.training.stopping import TrainingStoppedError
from tests.support.faults import Fault, injected, trainer_of
from tests.support.refused import refused
from tests.support.text_policies import EVERY, make, picture, text_trace
from tests.support.videos import even, uneven, write_video

WITH_CLIPS = ("qwen2_5_vl", "qwen3_vl", "smolvlm", "internvl")
ALGORITHM = replace(PRESETS["dr_grpo"], group_size=2, minibatches=1).with_length(4)
QUICK = settings(
    max_examples=8, deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="session")
def policy_of(tiny: Any) -> Any:
    """Family -> one policy for all tests that do not change it."""

    @cache
    def policy(family: str) -> TextPolicy:
        return make(tiny(family), video=VideoSettings(workers=0), sampling=Sampling(max_new_tokens=4))

    return policy


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("clips")
    times = {"even": even(75), "uneven": uneven(40)}
    return {name: write_video(folder / f"{name}.mp4", at, size=(112, 56)) for name, at in times.items()}


def given_rows(policy: TextPolicy, prompts: list[Prompt]) -> Rollouts:
    """Rows that nobody has to sample."""
    return policy.rollout([Request(prompt, 2, i, role="injected", written=f"{i}") for i, prompt in enumerate(prompts)])


sides = st.tuples(st.integers(28, 220), st.integers(28, 220))
BOTH = st.tuples(st.integers(1, 2), st.booleans())
words = st.text(st.sampled_from("aß漢 \n?<|>0"), min_size=1, max_size=20)


@pytest.mark.parametrize("family", EVERY)
@given(pictures=st.lists(sides, max_size=3), text=words)
@QUICK
def test_pictures_of_any_size_pass(policy_of, family, pictures, text):
    policy = policy_of(family)
    media = tuple(picture(i, *size) for i, size in enumerate(pictures))
    between = [text if i == 0 else f"<image>{text}" for i in range(len(media) + 1)]
    policy.audit(given_rows(policy, [Prompt("first", text, media), Prompt("between", "".join(between), media)]))


@pytest.mark.parametrize("family", WITH_CLIPS)
@given(
    name=st.sampled_from(["even", "uneven"]), frames=st.integers(1, 6), start=st.floats(0, 1), end=st.floats(2, 2.9), both=BOTH
)
@QUICK
def test_clips_of_any_length_pass(policy_of, clips, family, name, frames, start, end, both):
    """One clip or two, of any part of a file, alone or beside a picture."""
    policy, (count, pictured) = policy_of(family), both
    clip = Video(clips[name], start=start, end=end, frames=2 * (frames if name == "even" else min(frames, 2)))
    beside = (picture(1, 60, 90),) if pictured and family != "smolvlm" else ()
    policy.audit(given_rows(policy, [Prompt("clip", "when?", (clip,) * count + beside)]))


def with_prompt(rollouts: Rollouts, **changes: Any) -> Rollouts:
    """The second prompt is recorded otherwise."""
    trace = text_trace(rollouts.trace)
    changed = replace(trace.prompts[1], **changes)
    return replace(rollouts, trace=replace(trace, prompts=(trace.prompts[0], changed, *trace.prompts[2:])))


def second(rollouts: Rollouts) -> Encoded:
    return text_trace(rollouts.trace).prompts[1]


def without_tokens(rollouts: Rollouts, start: int, end: int) -> Rollouts:
    """Some tokens of the prompt were cut, and everything that is counted with them."""
    old = second(rollouts)
    keep = torch.tensor([not start <= i < end for i in range(len(old))])
    types = None if old.type_ids is None else old.type_ids[keep]
    positions = torch.arange(int(keep.sum())).repeat(len(old.positions), 1)
    return with_prompt(rollouts, token_ids=old.token_ids[keep], positions=positions, type_ids=types)


def moved(rollouts: Rollouts, axis: int, token: int) -> Rollouts:
    positions = second(rollouts).positions.clone()
    positions[axis, second(rollouts).token_ids == token] += 1
    return with_prompt(rollouts, positions=positions)


def with_trace(rollouts: Rollouts, **changes: Any) -> Rollouts:
    return replace(rollouts, trace=replace(text_trace(rollouts.trace), **changes))


def other_token(rollouts: Rollouts, token: int | None = None) -> Rollouts:
    tokens = text_trace(rollouts.trace).tokens.clone()
    tokens[3, 0] = (tokens[3, 0] + 1) % 250 if token is None else token
    return with_trace(rollouts, tokens=tokens)


def late_mask(rollouts: Rollouts) -> Rollouts:
    mask = rollouts.action_mask.clone()
    mask[3, 0] = False
    return replace(rollouts, action_mask=mask)


def noted_as(value: float) -> Any:
    """The first token of the last row was drawn, and this is its log-probability."""

    def change(policy: TextPolicy, rollouts: Rollouts) -> Rollouts:
        noted = rollouts.recorded[ROLLOUT_LOGPROBS].clone()
        noted[3, 0] = value
        return replace(rollouts, recorded={ROLLOUT_LOGPROBS: noted})

    return change


def other_text(rollouts: Rollouts) -> Rollouts:
    group = rollouts.groups[1]
    samples = (group.samples[0], replace(group.samples[1], text="42"))
    return replace(rollouts, groups=(rollouts.groups[0], replace(group, samples=samples)))


ROW = r"prompt 'b', sample 1 of group 1: "
PROMPT = r"prompt 'b': "
BROKEN: dict[str, tuple[Any, str]] = {
    "grids": (
        lambda policy, rows: with_prompt(rows, media={**(own := second(rows).media), "pixel_values": own["pixel_values"][:-4]}),
        PROMPT + "the grids of its pictures speak of",
    ),
    "placeholders": (
        lambda policy, rows: without_tokens(rows, *bounds(policy, rows)),
        PROMPT + r"its text holds \d+ image placeholders, its pictures give",
    ),
    "time": (
        lambda policy, rows: moved(rows, 0, policy.family.image_token_id),
        PROMPT + r"\d+ of its \d+ tokens stand at wrong positions",
    ),
    "width": (lambda policy, rows: moved(rows, 2, policy.family.image_token_id), PROMPT + r".* token \d+ of a picture, at"),
    "types": (
        lambda policy, rows: with_prompt(rows, type_ids=torch.zeros_like(second(rows).token_ids)),
        PROMPT + "its token types do not mark exactly",
    ),
    "media token": (
        lambda policy, rows: other_token(rows, policy.family.image_token_id),
        PROMPT + "a completion holds the media tokens",
    ),
    "token": (lambda policy, rows: other_token(rows), ROW + "the tokens that train are not those of the sample"),
    "mask": (lambda policy, rows: late_mask(rows), ROW + r"the action mask is True at \d places"),
    "text": (lambda policy, rows: other_text(rows), ROW + "its tokens read .*, but rewards saw '42'"),
    **{
        f"noted {value}": (noted_as(value), ROW + f"the noted log-probability of token 0 is {value:g}, which is none")
        for value in (math.nan, math.inf, -math.inf, 0.5)
    },
    "rows": (
        lambda policy, rows: with_trace(rows, prompt_index=1 - text_trace(rows.trace).prompt_index),
        r"sample 0 of group 0: the row answers prompt 'a', but its record shows the model another one",
    ),
}


def test_a_sampler_that_notes_nothing_of_what_it_drew_stops_the_run(tiny):
    """It draws as usual, so neither the gate nor any reading would notice: both take NaN for "not sampled"."""
    policy = make(tiny("qwen3_vl"), sampling=Sampling(max_new_tokens=4))
    write = policy.generator.write

    def forgetful(*asked: Any, **more: Any) -> Any:
        drawn = write(*asked, **more)
        return replace(drawn, logprobs=torch.full_like(drawn.logprobs, torch.nan))

    object.__setattr__(policy.generator, "write", forgetful)
    trainer = trainer_of(policy, ALGORITHM, [Prompt("a", "what?"), Prompt("b", "where?")])
    refused(r"step 1: prompt '\w', .*noted log-probability of token 0 is nan", trainer.step, error=TrainingStoppedError)


def test_rows_that_were_not_drawn_as_training_reads_them_need_no_record(policy_of):
    """Given texts, beginnings that train, other temperatures, other prompts, and rows of an earlier step."""
    policy, prompt = policy_of("qwen3_vl"), Prompt("a", "what?")
    plain = policy.rollout([Request(prompt, 2, 0)])
    (first, _), noted = plain.groups[0].samples, plain.recorded[ROLLOUT_LOGPROBS][0, : len(plain.groups[0].samples[0].token_ids)]
    stored = StoredRow(first.token_ids, (math.nan, *noted[1:].tolist()), segments=first.segments)
    requests = [
        Request(prompt, 1, 0, role="injected", written="7"),
        Request(prompt, 1, 0, written=Prefix(first.token_ids, 0.5, forced="So:", trained=True)),
        Request(prompt, 1, 0, tempering=Tempering(2.0)),
        Request(prompt, 1, 0, shown=Shown(Prompt("a", "what, then?"))),
        Request(prompt, 1, 0, written=stored, role="replayed"),
    ]
    for request in requests:
        rollouts = policy.rollout([request])
        assert bool(rollouts.recorded[ROLLOUT_LOGPROBS][0].isnan().any())
        policy.audit(rollouts)
    begun = policy.rollout(requests[1:2])
    late = int(text_trace(begun.trace).noted_from[0])
    assert 0 < late < int(text_trace(begun.trace).lengths[0])
    begun.recorded[ROLLOUT_LOGPROBS][0, late] = math.nan
    refused(f"the noted log-probability of token {late} is nan", policy.audit, begun)


def bounds(policy: TextPolicy, rollouts: Rollouts) -> tuple[int, int]:
    """One placeholder."""
    at = int((second(rollouts).token_ids == policy.family.image_token_id).nonzero()[0, 0])
    return at, at + 1


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("name", BROKEN)
def test_every_single_break_names_the_row(policy_of, name, family):
    policy, (change, message) = policy_of(family), BROKEN[name]
    prompts = [Prompt("a", "what?", (picture(0),)), Prompt("b", "where is <image> to be seen?", (picture(1, 90, 60),))]
    rollouts = policy.rollout([Request(prompt, 2, i, seed=i) for i, prompt in enumerate(prompts)])
    policy.audit(rollouts)
    refused(message, policy.audit, change(policy, rollouts))


@pytest.mark.parametrize("cut", [(0, 3), (8, 12), (-6, -1), (-12, None)], ids=str)
@pytest.mark.parametrize("family", EVERY)
def test_a_cut_prompt_is_found(policy_of, family, cut):
    """Anywhere: at its start, amid its text, before its end, at its end."""
    policy = policy_of(family)
    prompts = [Prompt("a", "what?", (picture(0),)), Prompt("b", "where is it to be seen, then?")]
    rollouts = given_rows(policy, prompts)
    policy.audit(rollouts)
    start, end, _ = slice(*cut).indices(len(second(rollouts)))
    with pytest.raises(ValueError, match=r"prompt 'b': its \d+ tokens do not hold the text '.*' where the chat has it"):
        policy.audit(without_tokens(rollouts, start, end))


def test_wrong_times_of_clips_are_found(policy_of, clips):
    """Qwen2.5-VL is told them by positions, Qwen3-VL by text."""
    prompts = [Prompt("a", "what?"), Prompt("b", "when?", (Video(clips["uneven"], frames=6),))]
    policy = policy_of("qwen2_5_vl")
    rollouts = given_rows(policy, prompts)
    with pytest.raises(ValueError, match=r"prompt 'b': .* wrong positions; the first, token \d+ of a clip"):
        policy.audit(moved(rollouts, 0, policy.family.config.video_token_id))
    policy = policy_of("qwen3_vl")
    rollouts = given_rows(policy, prompts)
    text = policy.tokenizer.decode(second(rollouts).token_ids)
    at = text.index(" seconds>") - 1
    ids = second(rollouts).token_ids.clone()
    spelled = len(policy.tokenizer(text[:at], add_special_tokens=False)["input_ids"])
    ids[spelled] = policy.tokenizer("7" if text[at] != "7" else "3", add_special_tokens=False)["input_ids"][0]
    refused("prompt 'b': its clips should show frames at", policy.audit, with_prompt(rollouts, token_ids=ids))


class Cutting:
    """A processor that cuts what is longer than so many tokens and says nothing."""

    def __init__(self, processor: Any, most: int) -> None:
        self.processor, self.most = processor, most

    def __getattr__(self, name: str) -> Any:
        return getattr(self.processor, name)

    def __call__(self, **given: Any) -> Any:
        fed = self.processor(**given)
        return {key: value[:, : self.most] if "pixel" not in key and "grid" not in key else value for key, value in fed.items()}


def test_a_processor_that_cuts_in_silence_stops_the_run(tiny):
    policy = make(tiny("qwen3_vl"), sampling=Sampling(max_new_tokens=4))
    object.__setattr__(policy.encode, "processor", Cutting(policy.processor, 40))
    trainer = trainer_of(policy, ALGORITHM, [Prompt("short", "hi"), Prompt("long", "and what about this, then?" * 3)])
    refused(r"step 1: prompt 'long': its 40 tokens do not hold the text .*assistant", trainer.step, error=TrainingStoppedError)


def test_all_rows_at_first_and_one_group_later(tiny):
    policy = make(tiny("qwen3_vl"), sampling=Sampling(max_new_tokens=4))
    seen: list[list[int]] = []
    audit: Any = policy.audit
    policy.audit = lambda rollouts: (seen.append(rollouts.group_ids.tolist()), audit(rollouts))[1]
    trainer = trainer_of(policy, ALGORITHM, [Prompt(str(i), f"{i}?") for i in range(4)], steps=6, audit_steps=2, audit_every=2)
    for _ in range(6):
        trainer.step()
    assert [len(rows) for rows in seen] == [8, 8, 2, 2]
    assert all(len(set(rows)) == 1 for rows in seen[2:])


def test_what_breaks_later_is_found_too(tiny):
    policy = make(tiny("qwen3_vl"), sampling=Sampling(max_new_tokens=4))
    prompts = [Prompt("a", "what?", (picture(0),)), Prompt("b", "where?", (picture(1),))]
    trainer = trainer_of(policy, ALGORITHM, prompts, steps=20, audit_steps=1)
    late = Fault("", record=lambda policy, rows: late_mask(rows) if trainer.index >= 1 else rows)
    broken = pytest.raises(TrainingStoppedError, match=r"step \d+: prompt '\w', sample 1 of group \d+: the action mask")
    with injected(policy, late), broken:
        for _ in range(20):
            trainer.step()
    assert trainer.index >= 1
