"""Faults between sampling and training of a vision-language model with an adapter, and of a model that watches clips."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.core.types import Prompt, Rollouts
from mmrl.policies.shared import hypotheses as common
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.check import diagnose as causes
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.read import evaluate
from mmrl.policies.text.trace import TextTrace
from mmrl.policies.video.sampling import VideoSettings
from tests.support.faults import Around
from tests.support.injected import (
    Change,
    Injected,
    half_under_gradients,
    in_groups,
    merged,
    noted,
    older,
    scaled,
    traced,
    two_rows,
    under_gradients,
)
from tests.support.text_policies import make

GROUP = 3
ALGORITHM = replace(PRESETS["dr_grpo"], group_size=GROUP, minibatches=1).with_length(6)


def pictures_policy(folder: str) -> TextPolicy:
    policy = make(folder, {"ema"}, sampling=Sampling(max_new_tokens=6), lora=LoraSettings(rank=4))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return policy


def clips_policy(folder: str) -> TextPolicy:
    return make(folder, {"ema"}, sampling=Sampling(max_new_tokens=6), video=VideoSettings(workers=0))


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


def with_prompts(change: Callable[[Encoded], Encoded]) -> Callable[[Any, Rollouts], Rollouts]:
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


def with_media(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Encoded], Encoded]:
    """Pixels are others."""
    return lambda one: replace(one, media={k: change(x) if k.startswith("pixel") else x for k, x in one.media.items()})


def noisy(x: torch.Tensor) -> torch.Tensor:
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


def with_rows(order: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Rollouts], Rollouts]:
    """Training sees the completions in another order."""
    return traced(lambda trace: replace(trace, tokens=order(trace.tokens), lengths=order(trace.lengths)))


def other_prompts(trace: TextTrace) -> TextTrace:
    """Every row answers the next group's prompt."""
    return replace(trace, prompt_index=trace.prompt_index.roll(GROUP))


PICTURES = {
    "sampled at another temperature": Injected(causes.TEMPERATURE, sampling=at_temperature(0.7)),
    "read at another temperature": Injected(causes.TEMPERATURE, training=at_temperature(1.3)),
    "read much hotter": Injected(causes.TEMPERATURE, training=at_temperature(3.0)),
    "adapter twice as strong in sampling": Injected(common.SCALE, sampling=scaled(2.0)),
    "adapter half as strong in training": Injected(common.SCALE, training=scaled(0.5)),
    "adapter merged and active in sampling": Injected(common.SCALE, sampling=merged),
    "records exchanged in groups": Injected(common.ROWS, record=noted(in_groups(GROUP))),
    "records exchanged between groups": Injected(common.ROWS, record=noted(lambda x: x.roll(GROUP, 0))),
    "two records exchanged": Injected(common.ROWS, record=noted(two_rows)),
    "completions exchanged in groups": Injected(common.ROWS, record=with_rows(in_groups(GROUP))),
    "completions exchanged between groups": Injected(common.ROWS, record=with_rows(lambda x: x.roll(GROUP, 0))),
    "prompts exchanged between groups": Injected(common.ROWS, record=traced(other_prompts)),
    "record two columns late": Injected(common.SHIFT, record=noted(lambda x: x.roll(2, 1))),
    "record in float16": Injected(common.PRECISION, record=noted(lambda x: x.half().float())),
    "prompt without its last token": Injected(causes.PROMPT, record=with_prompts(shortened)),
    "height and width exchanged": Injected(causes.POSITIONS, record=with_prompts(turned)),
    "pixels darkened": Injected(causes.PIXELS, record=with_prompts(with_media(lambda x: 0.5 * x))),
    "nothing forbidden in training": Injected(causes.BANNED, training=nothing_banned),
    "packed rows read otherwise": Injected(causes.PREFIX, training=other_packing),
    "the cache computes otherwise": Injected(causes.CACHE, sampling=other_cache, training=other_cache),
    "a layer that looks at gradients": Injected(common.GRADIENT, training=under_gradients(mlp)),
    "autocast under gradients": Injected(common.GRADIENT, training=half_under_gradients),
    "sampled with older weights": Injected(None, sampling=older),
    "record in bits": Injected(None, record=noted(lambda x: 1.4427 * x)),
    "record of a cut distribution": Injected(None, record=noted(lambda x: 0.8 * x)),
}
CLIPS = {
    "frames reversed": Injected(causes.PIXELS, record=with_prompts(with_media(lambda x: x.flip(0)))),
    "frames with noise": Injected(causes.PIXELS, record=with_prompts(with_media(noisy))),
    "time runs faster in training": Injected(causes.POSITIONS, record=with_prompts(timed(3.0))),
    "time runs faster in sampling": Injected(causes.POSITIONS, sampling=sampled_behind(timed(2.0))),
    "sampled colder": Injected(causes.TEMPERATURE, sampling=at_temperature(0.9)),
    "records of clips exchanged": Injected(common.ROWS, record=noted(lambda x: x.roll(1, 0))),
    "a layer of clips that looks at gradients": Injected(common.GRADIENT, training=under_gradients(mlp)),
    "record in bfloat16": Injected(common.PRECISION, record=noted(lambda x: x.bfloat16().float())),
    "frames black in sampling": Injected(None, sampling=sampled_behind(with_media(torch.zeros_like))),
    "clips sampled with older weights": Injected(None, sampling=older),
}


def clip_prompts(clips: Sequence[Any]) -> list[Prompt]:
    return [Prompt(name, "when is it?", (clip,)) for name, clip in zip("abc", clips, strict=True)]
