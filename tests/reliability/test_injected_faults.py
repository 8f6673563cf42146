"""Faults that were thought of after the diagnosis was written: each is refused, and named rightly or not at all."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.algorithms.presets import PRESETS
from mmrl.core.types import Prompt, Rollouts
from mmrl.flow.schedules import Full
from mmrl.flow.sigmas import shift_by
from mmrl.lab.tiny.flow import pipelines
from mmrl.lab.tiny.text import vlms
from mmrl.policies.flow.check import diagnose as drawing
from mmrl.policies.flow.families.base import Condition
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.trace import FlowTrace, Latents, SigmaTable
from mmrl.policies.shared import hypotheses as common
from mmrl.policies.shared.lora import LoraSettings, adapter_layers
from mmrl.policies.text.check import diagnose as causes
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.read import evaluate
from mmrl.policies.text.trace import TextTrace
from mmrl.policies.video.sampling import VideoSettings
from tests.support import flow_policies
from tests.support.faults import Around, Change, Fault, Record, cause_in, guided, message_of, noted, questions, traced
from tests.support.text_policies import make, stir

GROUP = 3
OF_TEXT = replace(PRESETS["dr_grpo"], group_size=GROUP, minibatches=1).with_length(6)
OF_FLOW = replace(PRESETS["flow_grpo_fast"], schedule=Full(num_steps=4), group_size=GROUP)


def in_groups(size: int) -> Callable[[Tensor], Tensor]:
    """Every row becomes the next one of its group."""
    return lambda x: x.view(-1, size, *x.shape[1:]).roll(1, 1).view(x.shape)


def two_rows(x: Tensor) -> Tensor:
    """The first row of the first group and the last of the last change places."""
    order = torch.arange(len(x))
    order[0], order[-1] = len(x) - 1, 0
    return x[order]


def scaled(factor: float) -> Change:
    """Adapters add this many times what they should."""

    def change(policy: Any, patch: pytest.MonkeyPatch) -> None:
        for layer in adapter_layers(policy.net.modules()):
            patch.setattr(layer, "scaling", {name: factor * value for name, value in layer.scaling.items()})

    return change


def merged(policy: Any, patch: pytest.MonkeyPatch) -> None:
    """Adapters are in the weights already, and active."""
    for layer in adapter_layers(policy.net.modules()):
        own: Any = layer
        added = own.scaling["default"] * own.lora_B["default"].weight @ own.lora_A["default"].weight
        patch.setattr(own.base_layer.weight, "data", own.base_layer.weight.data + added.detach())


def older(policy: Any, patch: pytest.MonkeyPatch) -> None:
    """Weights that an update has changed since, each a little in a direction of its own."""
    generator = torch.Generator().manual_seed(5)
    for weight in policy.parameters():
        patch.setattr(weight, "data", weight.data + 0.05 * torch.randn(weight.shape, generator=generator))


def under_gradients(module: Callable[[Any], nn.Module]) -> Change:
    """A layer gives other numbers when gradients are on."""

    def change(policy: Any, patch: pytest.MonkeyPatch) -> None:
        layer = module(policy)
        right = layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return (1.2 if torch.is_grad_enabled() else 1.0) * right(*args, **kwargs)

        patch.setattr(layer, "forward", forward)

    return change


def half_under_gradients(policy: Any, patch: pytest.MonkeyPatch) -> None:
    """Autocast is on with gradients alone."""
    right = policy.net._precision
    half = torch.autocast("cpu", torch.bfloat16)
    patch.setattr(policy.net, "_precision", lambda: half if torch.is_grad_enabled() else right())


def pictures_policy(folder: str) -> TextPolicy:
    policy = make(folder, {"ema"}, lora=LoraSettings(rank=4))
    stir(policy, 0.1)
    return policy


def mlp(policy: TextPolicy) -> Any:
    return policy.net.core.language_model.layers[0].mlp


def at_temperature(factor: float) -> Change:
    """Logits are divided by another temperature than is said."""

    def change(policy: TextPolicy, patch: pytest.MonkeyPatch) -> None:
        right = policy.net.logits
        patch.setattr(policy.net, "logits", lambda hidden, temperature: right(hidden, factor * temperature))

    return change


def nothing_banned(policy: TextPolicy, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(policy.net._buffers, "banned", torch.zeros_like(policy.net.banned))


def other_cache(policy: TextPolicy, patch: pytest.MonkeyPatch) -> None:
    """What follows the cache is computed a little otherwise, on both sides."""
    right = policy.net.extend
    patch.setattr(policy.net, "extend", lambda *asked: 1.2 * right(*asked).roll(1, -1))


def other_packing(policy: TextPolicy, patch: pytest.MonkeyPatch) -> None:
    """Packed rows have other positions than rows that stand alone."""
    right = evaluate.pack_row

    def spread(*asked: Any, **more: Any) -> Any:
        row = right(*asked, **more)
        return replace(row, positions=3 * row.positions)

    patch.setattr(evaluate, "pack_row", spread)


def with_prompts(change: Callable[[Encoded], Encoded]) -> Record:
    """Training sees the prompts like this."""
    return traced(lambda trace: replace(trace, prompts=tuple(map(change, trace.prompts))))


def sampled_behind(change: Callable[[Encoded], Encoded]) -> Change:
    """Sampling sees the prompts like this."""

    def changed(policy: TextPolicy, patch: pytest.MonkeyPatch) -> None:
        class Wrong(Around):
            def write(self, *asked: Any, **_: Any) -> Any:
                prompts, *rest = asked
                return self.inner.write(list(map(change, prompts)), *rest)

        patch.setattr(policy, "generator", Wrong(policy.generator))

    return changed


def with_media(change: Callable[[Tensor], Tensor]) -> Callable[[Encoded], Encoded]:
    """Pixels are others."""
    return lambda one: replace(one, media={k: change(x) if k.startswith("pixel") else x for k, x in one.media.items()})


def noisy(x: Tensor) -> Tensor:
    return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(2))


def turned(one: Encoded) -> Encoded:
    """Height and width are exchanged."""
    return replace(one, positions=one.positions[[0, 2, 1]])


def timed(factor: float) -> Callable[[Encoded], Encoded]:
    """The time of a clip runs faster, its text follows."""

    def change(one: Encoded) -> Encoded:
        here, positions = one.type_ids == 2, one.positions.clone()
        first = positions[0, here].min()
        positions[0, here] = (first + factor * (positions[0, here] - first)).long()
        return replace(one, positions=positions)

    return change


def shortened(one: Encoded) -> Encoded:
    """The last token of the prompt is lost."""
    types = None if one.type_ids is None else one.type_ids[:-1]
    return replace(one, token_ids=one.token_ids[:-1], positions=one.positions[:, :-1], type_ids=types)


def with_completions(order: Callable[[Tensor], Tensor]) -> Record:
    """Training sees the completions in another order."""
    return traced(lambda trace: replace(trace, tokens=order(trace.tokens), lengths=order(trace.lengths)))


def other_prompts(trace: TextTrace) -> TextTrace:
    """Every row answers the next group's prompt."""
    return replace(trace, prompt_index=trace.prompt_index.roll(GROUP))


PICTURES = {
    "sampled at another temperature": Fault(causes.TEMPERATURE, sampling=at_temperature(0.7)),
    "read at another temperature": Fault(causes.TEMPERATURE, training=at_temperature(1.3)),
    "read much hotter": Fault(causes.TEMPERATURE, training=at_temperature(3.0)),
    "adapter twice as strong in sampling": Fault(common.SCALE, sampling=scaled(2.0)),
    "adapter half as strong in training": Fault(common.SCALE, training=scaled(0.5)),
    "adapter merged and active in sampling": Fault(common.SCALE, sampling=merged),
    "records exchanged in groups": Fault(common.ROWS, record=noted(in_groups(GROUP))),
    "records exchanged between groups": Fault(common.ROWS, record=noted(lambda x: x.roll(GROUP, 0))),
    "two records exchanged": Fault(common.ROWS, record=noted(two_rows)),
    "completions exchanged in groups": Fault(common.ROWS, record=with_completions(in_groups(GROUP))),
    "completions exchanged between groups": Fault(common.ROWS, record=with_completions(lambda x: x.roll(GROUP, 0))),
    "prompts exchanged between groups": Fault(common.ROWS, record=traced(other_prompts)),
    "record two columns late": Fault(common.SHIFT, record=noted(lambda x: x.roll(2, 1))),
    "record in float16": Fault(common.PRECISION, record=noted(lambda x: x.half().float())),
    "prompt without its last token": Fault(causes.PROMPT, record=with_prompts(shortened)),
    "height and width exchanged": Fault(causes.POSITIONS, record=with_prompts(turned)),
    "pixels darkened": Fault(causes.PIXELS, record=with_prompts(with_media(lambda x: 0.5 * x))),
    "nothing forbidden in training": Fault(causes.BANNED, training=nothing_banned),
    "packed rows read otherwise": Fault(causes.PREFIX, training=other_packing),
    "the cache computes otherwise": Fault(causes.CACHE, throughout=other_cache),
    "a layer that looks at gradients": Fault(common.GRADIENT, training=under_gradients(mlp)),
    "autocast under gradients": Fault(common.GRADIENT, training=half_under_gradients),
    "sampled with older weights": Fault(None, sampling=older),
    "record in bits": Fault(None, record=noted(lambda x: 1.4427 * x)),
    "record of a cut distribution": Fault(None, record=noted(lambda x: 0.8 * x)),
}
CLIPS = {
    "frames reversed": Fault(causes.PIXELS, record=with_prompts(with_media(lambda x: x.flip(0)))),
    "frames with noise": Fault(causes.PIXELS, record=with_prompts(with_media(noisy))),
    "time runs faster in training": Fault(causes.POSITIONS, record=with_prompts(timed(3.0))),
    "time runs faster in sampling": Fault(causes.POSITIONS, sampling=sampled_behind(timed(2.0))),
    "sampled colder": Fault(causes.TEMPERATURE, sampling=at_temperature(0.9)),
    "records of clips exchanged": Fault(common.ROWS, record=noted(lambda x: x.roll(1, 0))),
    "a layer of clips that looks at gradients": Fault(common.GRADIENT, training=under_gradients(mlp)),
    "record in bfloat16": Fault(common.PRECISION, record=noted(lambda x: x.bfloat16().float())),
    "frames black in sampling": Fault(None, sampling=sampled_behind(with_media(torch.zeros_like))),
    "clips sampled with older weights": Fault(None, sampling=older),
}


def block(policy: FlowPolicy) -> Any:
    return policy.net.transformer.transformer_blocks[0].ff


def louder(factor: float) -> Callable[[SigmaTable], SigmaTable]:
    return lambda one: replace(one, plan=replace(one.plan, steps=tuple(drawing.noisier(step, factor) for step in one.plan.steps)))


def shifted(factor: float) -> Callable[[SigmaTable], SigmaTable]:
    return lambda one: replace(one, sigmas=shift_by(factor, one.sigmas.double()).float())


def sampled_along(change: Callable[[SigmaTable], SigmaTable]) -> Change:
    """Sampling follows this plan; `right_plans` makes the record say nothing of it."""

    def changed(policy: FlowPolicy, patch: pytest.MonkeyPatch) -> None:
        right = policy._sigma_table
        patch.setattr(policy, "_sigma_table", lambda *asked: change(right(*asked)))

    return changed


def planned(change: Callable[[SigmaTable], SigmaTable]) -> Record:
    """Training reads along this plan."""

    def changed(trace: FlowTrace) -> FlowTrace:
        plans = tuple(map(change, trace.sigma_tables))
        times = [plan.timesteps for plan in plans]
        return replace(trace, sigma_tables=plans, timesteps=drawing.times_by(trace, times))

    return traced(changed)


def right_plans(policy: FlowPolicy, rollouts: Rollouts) -> Rollouts:
    assert OF_FLOW.schedule is not None
    plan = OF_FLOW.schedule.at(0)
    return planned(lambda one: policy._sigma_table(plan, one.size))(policy, rollouts)


def with_conditions(change: Callable[[tuple[Condition, ...]], Any]) -> Record:
    return traced(lambda trace: replace(trace, conditions=tuple(change(trace.conditions))))


def pooled_of_others(conditions: tuple[Condition, ...]) -> list[Condition]:
    others = (*conditions[1:], conditions[0])
    return [{k: b[k] if x.ndim == 1 else x for k, x in a.items()} for a, b in zip(conditions, others, strict=True)]


def with_latents(order: Callable[[Tensor], Tensor]) -> Record:
    """Training sees the latents of other rows."""
    names = ("before", "after", "means")
    return traced(lambda trace: replace(trace, **{name: order(getattr(trace, name)) for name in names}))


def rounded_latents(trace: FlowTrace) -> FlowTrace:
    return replace(trace, latents=Latents(tuple(part.bfloat16().float() for part in trace.latents.parts)))


def other_negatives(policy: FlowPolicy, patch: pytest.MonkeyPatch) -> None:
    right = policy.encoder.empty
    patch.setattr(policy.encoder, "empty", lambda device: {k: x + 1 for k, x in right(device).items()})


FLOW = {
    "sampled with much guidance": Fault(drawing.GUIDANCE, sampling=guided(7.25)),
    "read with little guidance": Fault(drawing.GUIDANCE, training=guided(1.5)),
    "read with more noise": Fault(drawing.NOISE, record=planned(louder(1.25))),
    "sampled with less noise": Fault(drawing.NOISE, sampling=sampled_along(louder(0.7)), record=right_plans),
    "read along another shift": Fault(drawing.SCHEDULE, record=planned(shifted(0.7))),
    "sampled along another shift": Fault(drawing.SCHEDULE, sampling=sampled_along(shifted(1.5)), record=right_plans),
    "adapter twice as strong in sampling": Fault(common.SCALE, sampling=scaled(2.0)),
    "adapter half as strong in training": Fault(common.SCALE, training=scaled(0.5)),
    "adapter merged and active in training": Fault(common.WEIGHTS, training=merged),
    "records exchanged in groups": Fault(common.ROWS, record=noted(in_groups(GROUP))),
    "two records exchanged": Fault(common.ROWS, record=noted(two_rows)),
    "latents exchanged in groups": Fault(common.ROWS, record=with_latents(in_groups(GROUP))),
    "embeddings of nothing": Fault(
        drawing.PROMPT, record=with_conditions(lambda all: [{k: 0 * x for k, x in one.items()} for one in all])
    ),
    "half of the embeddings exchanged": Fault(drawing.PROMPT, record=with_conditions(pooled_of_others)),
    "times one step late": Fault(drawing.POSITIONS, record=traced(lambda x: replace(x, timesteps=x.timesteps.roll(1, 1)))),
    "record in float16": Fault(common.PRECISION, record=noted(lambda x: x.half().float())),
    "a layer that looks at gradients": Fault(common.GRADIENT, training=under_gradients(block)),
    "autocast under gradients": Fault(common.GRADIENT, training=half_under_gradients),
    "latents kept in bfloat16": Fault(None, record=traced(rounded_latents)),
    "another negative prompt": Fault(None, training=other_negatives),
    "densities without their constant": Fault(None, record=noted(lambda x: x + 0.5)),
    "sampled with older weights": Fault(None, sampling=older),
}
TABLE = {"pictures": PICTURES, "clips": CLIPS, "generator": FLOW}
"""Kind of policy -> fault -> the cause that must be named."""
QUICK = (
    *("sampled at another temperature", "adapter half as strong in training", "completions exchanged between groups"),
    *("a layer that looks at gradients", "time runs faster in sampling", "sampled with less noise", "read along another shift"),
    *("sampled with older weights",),
)
"""One or two of each kind; the others add breadth."""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Kind -> (policy, algorithm, prompts), made once."""
    folder = tmp_path_factory.mktemp("injected")

    @cache
    def kind(name: str) -> tuple[Any, Any, list[Prompt]]:
        if name == "generator":
            return flow_policies.make(str(pipelines.build("sd3", folder / "sd3")), ["ema"]), OF_FLOW, flow_policies.prompts()
        if name == "clips":
            policy = make(str(vlms.build("qwen2_5_vl", folder / "qwen2_5_vl")), {"ema"}, video=VideoSettings(workers=0))
            return policy, OF_TEXT, questions(folder)["clips"]
        return pictures_policy(str(vlms.build("qwen3_vl", folder / "qwen3_vl"))), OF_TEXT, questions(folder)["pictures"]

    return kind


CASES = [
    pytest.param(kind, name, marks=() if name in QUICK else pytest.mark.evidence)
    for kind, faults in TABLE.items()
    for name in faults
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_fault_is_refused_and_named_rightly_or_not_at_all(kinds, kind, name):
    policy, algorithm, prompts = kinds(kind)
    message = message_of(policy, algorithm, prompts, TABLE[kind][name])
    assert cause_in(message) == TABLE[kind][name].cause, message
