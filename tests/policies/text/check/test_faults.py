"""Faults between sampling and training, and within episodes, are found before the first update, and so is their cause."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.core.episodes import Limits
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Observation, Prompt, Request, Rollouts, Sample, Turn
from mmrl.policies.shared import hypotheses as common
from mmrl.policies.text.check import diagnose as causes
from mmrl.policies.text.check.audit import audit_rollouts
from mmrl.policies.text.check.diagnose import CACHE
from mmrl.policies.text.policy import LoraSettings, Sampling, TextPolicy, VideoSettings
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.read.looks import answer_mask
from mmrl.policies.text.trace import Inset, append
from mmrl.policies.text.write.episodes import Episode
from mmrl.policies.text.write.generate import Completions
from tests.support.faults import (
    Around,
    Dropping,
    Fault,
    assert_named,
    message_of,
    questions,
    traced,
    trainer_of,
    usual_faults,
    wrap,
)
from tests.support.refused import refused
from tests.support.text_policies import EVERY, FP32_BOUND, gap, make, picture, prompts, stir, text_trace
from tests.support.worlds import LIMITS, Inline, looking, player

GRPO = replace(PRESETS["dr_grpo"], group_size=3, minibatches=1).with_length(6)
LORA = (("lora", LoraSettings(rank=4)),)


def mlp_of(policy: TextPolicy) -> tuple[Any, str]:
    return policy.net.core.language_model.layers[0], "mlp"


def prompts_changed(change: Any) -> Any:
    """A record by which training sees the prompts like this."""

    def record(policy: TextPolicy, rollouts: Rollouts) -> Rollouts:
        trace = text_trace(rollouts.trace)
        return replace(rollouts, trace=replace(trace, prompts=tuple(change(policy, trace.prompts))))

    return record


def exchanged(policy: TextPolicy, encoded: tuple[Encoded, ...]) -> list[Encoded]:
    """Every prompt with the media of the next one."""
    return [replace(one, media=other.media) for one, other in zip(encoded, (*encoded[1:], encoded[0]), strict=True)]


def faster(policy: TextPolicy, encoded: Encoded) -> Encoded:
    """Time runs three times as fast within clips, and height within pictures."""
    positions, config = encoded.positions.clone(), policy.family.config
    for axis, token in ((0, config.video_token_id), (1, config.image_token_id)):
        here = encoded.token_ids == token
        positions[axis, here] = 3 * positions[axis, here]
    return replace(encoded, positions=positions)


def sampled_with(change: Any) -> tuple[Any, Any]:
    """(sampling, record): sampling saw the prompts like this, training sees them right."""
    right: dict[str, Encoded] = {}

    def sampling(policy: TextPolicy, patch: pytest.MonkeyPatch) -> None:
        class Wrong(Around):
            def write(self, *asked: Any, **_: Any) -> Completions:
                prompts, *rest = asked
                right.update({prompt.prompt_id: prompt for prompt in prompts})
                return self.inner.write(change(policy, tuple(prompts)), *rest)

        patch.setattr(policy, "generator", Wrong(policy.generator))

    return sampling, prompts_changed(lambda policy, encoded: [right[one.prompt_id] for one in encoded])


def on_one_axis(policy: TextPolicy, encoded: tuple[Encoded, ...]) -> list[Encoded]:
    return [replace(one, positions=torch.arange(len(one)).repeat(len(one.positions), 1)) for one in encoded]


SAMPLED_SWAPPED, SAMPLED_FLAT = sampled_with(exchanged), sampled_with(on_one_axis)
FAULTS = {
    **usual_faults(mlp_of, stir, LORA),
    "tokens rolled": Fault(common.SHIFT, record=traced(lambda trace: replace(trace, tokens=trace.tokens.roll(1, 1)))),
    "dropout in training only": Fault(
        common.DROPOUT, throughout=wrap(mlp_of, Dropping), settings=(("gradient_checkpointing", True),)
    ),
    "pixels permuted in training": Fault(causes.PIXELS, record=prompts_changed(exchanged)),
    "pixels permuted in sampling": Fault(causes.PIXELS, *SAMPLED_SWAPPED),
    "positions scaled in training": Fault(
        causes.POSITIONS, record=prompts_changed(lambda policy, encoded: [faster(policy, one) for one in encoded])
    ),
    "positions on one axis in sampling": Fault(causes.POSITIONS, *SAMPLED_FLAT),
}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Prompt]]:
    return questions(tmp_path_factory.mktemp("faults"))


POLICIES = {"pictures": "qwen3_vl", "clips": "qwen2_5_vl"}


def policy_of(folder: str, shadows: Any = (), **settings: Any) -> TextPolicy:
    return make(folder, shadows, video=VideoSettings(workers=0), sampling=Sampling(max_new_tokens=6), **settings)


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_named(tiny, data, name, kind):
    fault = FAULTS[name]
    policy = policy_of(tiny(POLICIES[kind]), {"ema"}, **dict(fault.settings))
    assert_named(policy, GRPO, data[kind], fault)


QUICK = ("tokens rolled", "dropout in training only", "rows mixed", "sampling without adapter", "pixels permuted in sampling")
IN_HALF = [
    pytest.param(name, marks=() if name in (*QUICK, "positions scaled in training") else pytest.mark.evidence)
    for name in sorted(FAULTS)
    if "bfloat16" not in name
]


@pytest.mark.parametrize("name", IN_HALF)
def test_every_fault_is_named_in_bfloat16_too(tiny, data, name):
    """Its bounds are hundreds of times wider, and what is wrong is far beyond them."""
    fault = FAULTS[name]
    policy = policy_of(tiny("qwen3_vl"), {"ema"}, dtype="bfloat16", **dict(fault.settings))
    message = message_of(policy, GRPO, data["pictures"], fault)
    assert f"Likely cause: {fault.cause} (" in message, message
    assert "equal readings differ by" in message, "the bounds were measured"


@pytest.mark.parametrize("family", EVERY)
def test_clean_runs_in_bfloat16_are_not_stopped(tiny, family):
    settings = {"gradient_checkpointing": family == "qwen3_vl"}
    trainer = trainer_of(policy_of(tiny(family), dtype="bfloat16", **settings), GRPO, prompts(), micro_batch=300)
    trainer.step()
    assert not trainer.reader.gate.closed


def test_decoding_that_rounds_otherwise_is_named_and_precision_is_not(tiny, data):
    """Both sides compute in bfloat16: to ask for the same policy.dtype would send somebody on a wild-goose chase."""
    policy = policy_of(tiny("internvl"), dtype="bfloat16")
    message = message_of(policy, GRPO, prompts(), Fault(causes.CACHE), mean_ratio_bound=1e-5)
    assert f"Likely cause: {causes.CACHE} (" in message, message


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.evidence)])
@pytest.mark.parametrize("family", EVERY)
def test_clean_runs_are_not_stopped(tiny, family, seed):
    policy = policy_of(tiny(family))
    trainer = trainer_of(policy, GRPO, prompts(), seed=seed, micro_batch=300, audit_steps=1)
    for _ in range(2):
        trainer.step()
    assert not trainer.reader.gate.closed


@pytest.mark.parametrize("settings", [{"gradient_checkpointing": True}, dict(LORA), {"prefix": "repeated"}], ids=str)
@pytest.mark.parametrize("kind", POLICIES)
def test_clean_runs_of_other_ways_to_train_are_not_stopped(tiny, data, kind, settings):
    trainer = trainer_of(policy_of(tiny(POLICIES[kind]), **settings), GRPO, data[kind], micro_batch=300)
    for _ in range(2):
        trainer.step()


@pytest.mark.parametrize(("temperature", "tried"), [(0.7, ["0.7", "1"]), (1.0, ["1"]), (0.0, ["1"])])
def test_rows_are_read_again_at_one_and_at_the_temperature_of_the_settings(tiny, temperature: float, tried: list[str]):
    policy = make(tiny("qwen3_vl"), sampling=Sampling(temperature=temperature, max_new_tokens=2))
    rollouts = policy.rollout([Request(Prompt("p", "where?", (picture(0),)), 1, 0)])
    changes = [hypothesis.change for hypothesis in policy.diagnostics.hypotheses(rollouts)]
    assert [change.removeprefix("at temperature ") for change in changes if change.startswith("at temperature")] == tried


def test_rows_are_decoded_again_where_layers_that_train_keep_no_activations(tiny):
    policy = make(tiny("qwen3_vl"), gradient_checkpointing=True, sampling=Sampling(max_new_tokens=3))
    rollouts = policy.rollout([Request(Prompt("p", "where?", (picture(0),)), 1, 0)])
    found = [one for one in policy.diagnostics.hypotheses(rollouts) if one.cause == CACHE]
    assert torch.is_grad_enabled() and len(found) == 1 and found[0].read is not None
    torch.testing.assert_close(found[0].read(), rollouts.recorded[ROLLOUT_LOGPROBS], atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def played(tiny: Any) -> tuple[TextPolicy, Rollouts]:
    """Two rows of two turns, with a picture of one size between them."""
    policy = player(tiny("qwen3_vl"), Inline(lambda prompt, turns, seed: Observation("see", (picture(seed % 99, 64, 64),))))
    return policy, policy.rollout([Request(prompts()[0], 2, 0, seed=3, turns=2)])


def with_sample(rollouts: Rollouts, change: Callable[[Sample], Sample]) -> Rollouts:
    [group] = rollouts.groups
    return replace(rollouts, groups=(replace(group, samples=tuple(map(change, group.samples))),))


def with_inset(rollouts: Rollouts, change: Callable[[Inset], Inset]) -> Rollouts:
    trace = text_trace(rollouts.trace)
    return replace(rollouts, trace=replace(trace, insets=tuple(tuple(map(change, row)) for row in trace.insets)))


def changed(sample: Sample, **changes: Any) -> Sample:
    """The sample with another first turn."""
    first: Turn = replace(sample.turns[0], **changes)
    return replace(sample, turns=(first, *sample.turns[1:]))


UNFIT: dict[str, tuple[Callable[[Rollouts], Rollouts], str]] = {
    "span": (lambda r: with_sample(r, lambda one: changed(one, span=(0, 2))), "its turns are the tokens .* and the policy wrote"),
    "text": (lambda r: with_sample(r, lambda one: changed(one, text="no")), "the tokens of a turn read .* but rewards saw 'no'"),
    "observation": (
        lambda r: with_sample(r, lambda one: changed(one, observation=Observation("seen", (picture(0, 64, 64),)))),
        "tokens between its turns 1 and 2 are not the",
    ),
    "silence": (lambda r: with_sample(r, lambda one: changed(one, observation=None)), "was not answered, and another"),
    "picture": (
        lambda r: with_sample(r, lambda one: changed(one, observation=Observation("see", (picture(99, 64, 64),)))),
        "the pictures of its observations, or their positions",
    ),
    "positions": (
        lambda r: with_inset(r, lambda one: replace(one, positions=one.positions + 1)),
        "the pictures of its observations, or their positions",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_found(played: tuple[TextPolicy, Rollouts], name: str):
    policy, rollouts = played
    audit_rollouts(policy, rollouts)
    break_it, error = UNFIT[name]
    refused(f"prompt 'one', sample 0 of group 0: .*{error}", audit_rollouts, policy, break_it(rollouts))


def audited(folder: str, answer: Any, repeats: bool = True, limits: Limits = LIMITS) -> Inline:
    """Plays two episodes of up to three turns, and lets the policy audit them."""
    worlds = Inline(answer, limits, repeats=repeats)
    policy = player(folder, worlds)
    policy.audit(policy.rollout([Request(prompts()[0], 2, 0, seed=3, turns=3)]))
    assert sorted(worlds.closed) == list(range(len(worlds.opened)))
    return worlds


def now_and_then(what: Callable[[int], Observation | None]) -> Callable[..., Observation | None]:
    """A world that counts how often it was asked since it was made, whatever the seed."""
    calls = count()
    return lambda prompt, turns, seed: what(next(calls))


MOODS: dict[str, tuple[Callable[[int], Observation | None], str]] = {
    "text": (lambda i: Observation("one" if i < 6 else "two"), "answers 'two' with 0 pictures, and the episode was shown 'one'"),
    "picture": (lambda i: Observation("see", (picture(i // 6, 64, 64),), key="same"), "answers 'see' with 1 pictures"),
    "reward": (lambda i: Observation("on", reward=float(i // 6)), "answers 'on'"),
    "fact": (lambda i: Observation("on", facts={"looks": float(i // 6)}), "answers 'on'"),
    "end": (lambda i: Observation("on") if i < 6 else None, "answers nothing, and the episode was shown 'on'"),
    "fault": (lambda i: Observation("on") if i < 6 else None.text, r"broke: AttributeError"),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("name", MOODS)
def test_a_world_that_answers_differently_for_the_same_seed_is_found(tiny: Any, name: str):
    what, error = MOODS[name]
    with pytest.raises(ValueError, match=f"prompt 'one', turn 1: its world, opened again with the same seed, .*{error}"):
        audited(tiny("qwen3_vl"), now_and_then(what))
    assert len(audited(tiny("qwen3_vl"), now_and_then(what), repeats=False).opened) == 2, "it was not asked again"


def test_worlds_that_repeat_pass_and_broken_ones_are_left_out(tiny: Any):
    worlds = audited(tiny("qwen3_vl"), looking)
    assert worlds.opened[:2] == worlds.opened[2:]
    assert [len(turns) for turns in worlds.turns[:2]] == [len(turns) for turns in worlds.turns[2:]]
    assert all(turn.observation is None for turns in worlds.turns for turn in turns)
    assert len(audited(tiny("qwen3_vl"), lambda prompt, turns, seed: turns[99]).opened) == 2
    crowded = Limits(pictures=0)
    assert len(audited(tiny("qwen3_vl"), lambda *_: Observation("see", (picture(1, 64, 64),)), limits=crowded).opened) == 4


def swap(rollouts: Rollouts) -> Rollouts:
    """The two rows' pictures exchanged."""
    trace = text_trace(rollouts.trace)
    [[a], [b]] = trace.insets
    return replace(rollouts, trace=replace(trace, insets=((replace(a, media=b.media),), (replace(b, media=a.media),))))


def flatten(rollouts: Rollouts) -> Rollouts:
    """The record read with pictures on one axis, so that what was sampled stays and the trace is wrong."""
    return with_inset(rollouts, lambda one: replace(one, positions=torch.arange(one.positions.shape[1]).expand_as(one.positions)))


@pytest.mark.parametrize(("break_it", "change"), [(swap, "of other turns"), (flatten, "between turns encoded afresh")])
def test_the_reason_for_other_numbers_is_named(played: tuple[TextPolicy, Rollouts], break_it: Any, change: str):
    policy, rollouts = played
    broken = break_it(rollouts)
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    [found] = [one for one in policy.diagnostics.hypotheses(broken) if one.change.endswith(change) and one.read is not None]
    assert found.read is not None
    with torch.no_grad():
        values = found.read()
    assert float((values - noted)[rollouts.action_mask].abs().max()) <= FP32_BOUND


def test_observations_that_train_are_named(played: tuple[TextPolicy, Rollouts]):
    policy, rollouts = played
    lengths = text_trace(rollouts.trace).lengths
    broken = replace(rollouts, action_mask=torch.arange(rollouts.action_mask.shape[1]) < lengths[:, None])
    assert not torch.equal(broken.action_mask, rollouts.action_mask)
    found = {one.change: one for one in policy.diagnostics.hypotheses(broken)}
    read = found["with no token that an environment wrote, and none behind a completion's end"].read
    plain = found["with nothing changed"].read
    assert read is not None and plain is not None
    with torch.no_grad():
        gaps = [float((one() - rollouts.recorded[ROLLOUT_LOGPROBS])[broken.action_mask].abs().max()) for one in (read, plain)]
    assert gaps[0] <= FP32_BOUND < gaps[1]


def tokenized_again(policy: TextPolicy, episode: Episode) -> Encoded:
    """The row so far as a sampler sees it that is given texts."""
    tokens = list[int]()
    for segment in episode.row.segments:
        piece = episode.row.tokens[segment.start : segment.stop]
        if segment.who == "policy":
            stop = piece[-1] in policy.eos_token_ids
            text = policy.decode([piece[: len(piece) - stop]])[0]
            piece = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], *piece[len(piece) - stop :]]
        tokens += piece
    return append(episode.prompt, tokens) if tokens else episode.prompt


def test_turns_that_the_sampler_tokenized_again_are_named(tiny: Any, monkeypatch: pytest.MonkeyPatch):
    policy = player(tiny("qwen3_vl"), Inline(lambda *_: Observation("Go on.")))
    monkeypatch.setattr(Episode, "shown", property(lambda episode: tokenized_again(policy, episode)))
    rollouts = policy.rollout([Request(prompts()[0], 4, 0, seed=3, turns=3)])
    [read] = [one.read for one in policy.diagnostics.hypotheses(rollouts) if one.cause == "turns tokenized again"]
    assert read is not None
    with torch.no_grad():
        values = read()
    assert float((values - rollouts.recorded[ROLLOUT_LOGPROBS])[rollouts.action_mask].abs().max()) <= FP32_BOUND
    assert gap(policy, rollouts) > 100 * FP32_BOUND


def test_an_answer_that_an_observation_quotes_is_none(tiny: Any):
    policy = player(
        tiny("qwen3_vl"), Inline(lambda *_: Observation("So <answer>7</answer>?")), sampling=Sampling(max_new_tokens=12)
    )
    rollouts = policy.rollout([Request(prompts()[0], 2, 0, seed=3, turns=2)])
    trace = text_trace(rollouts.trace)
    said = policy.tokenizer("<answer>4")["input_ids"]
    marks = answer_mask(trace, policy.decode, rollouts.action_mask)
    assert not bool(marks[~rollouts.action_mask].any())
    _, sample = next(iter(rollouts.samples()))
    start, stop = sample.turns[-1].span
    tokens = trace.tokens.clone()
    tokens[0, start : start + len(said)] = torch.tensor(said)
    marks = answer_mask(replace(trace, tokens=tokens), policy.decode, rollouts.action_mask)
    assert bool(marks[0, stop - 1]) and not bool(marks[0, :start].any())
