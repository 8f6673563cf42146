"""Faults between sampling and training of a vision-language model: the run stops before its first update and names the cause."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.core.types import Prompt, Rollouts, Video
from mmrl.policies.shared import hypotheses as common
from mmrl.policies.text.check import diagnose as causes
from mmrl.policies.text.policy import LoraSettings, Sampling, TextPolicy, VideoSettings
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.write.generate import Completions
from tests.support.faults import Around, Dropping, Fault, message_of, traced, trainer_of, usual_faults, wrap
from tests.support.text_policies import EVERY, make, picture, prompts, stir, text_trace
from tests.support.videos import even, write_video

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


def slowed(policy: TextPolicy, encoded: tuple[Encoded, ...]) -> list[Encoded]:
    """Time runs three times as fast within clips, and height within pictures."""
    return [faster(policy, one) for one in encoded]


def faster(policy: TextPolicy, encoded: Encoded) -> Encoded:
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
    "positions scaled in training": Fault(causes.POSITIONS, record=prompts_changed(slowed)),
    "positions on one axis in sampling": Fault(causes.POSITIONS, *SAMPLED_FLAT),
}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Prompt]]:
    """Prompts with a picture each, and with a clip each, all of one size."""
    folder = tmp_path_factory.mktemp("faults")
    files = [write_video(folder / f"{i}.mp4", even(50 + 25 * i), size=(112, 56)) for i in range(3)]
    clips = [Video(file, frames=4, start=0.2 * i, end=1.8) for i, file in enumerate(files)]
    return {
        "pictures": [Prompt(name, "what is it?", (picture(i),)) for i, name in enumerate("abc")],
        "clips": [Prompt(name, "when is it?", (clip,)) for name, clip in zip("abc", clips, strict=True)],
    }


POLICIES = {"pictures": "qwen3_vl", "clips": "qwen2_5_vl"}


def policy_of(folder: str, shadows: Any = (), **settings: Any) -> TextPolicy:
    return make(folder, shadows, video=VideoSettings(workers=0), sampling=Sampling(max_new_tokens=6), **settings)


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_named(tiny, data, name, kind):
    fault = FAULTS[name]
    policy = policy_of(tiny(POLICIES[kind]), {"ema"}, **dict(fault.settings))
    before = [weight.detach().clone() for weight in policy.parameters()]
    message = message_of(policy, GRPO, data[kind], fault)
    assert f"Likely cause: {fault.cause} (" in message, message
    moved = not all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    assert moved == fault.moves, "no update was made"


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
