"""Do an image generator's recorded rollouts, its plan and its pictures agree with each other?"""

import torch
from torch import Tensor

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Rollouts, Sample
from mmrl.policies.flow.families.base import FlowFamily
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.prompt.encode import key_of
from mmrl.policies.flow.read.evaluate import of_the_schedule
from mmrl.policies.flow.sizes import Size, size_text
from mmrl.policies.flow.trace import FlowTrace
from mmrl.runtime.blame import about


def audit_rollouts(policy: FlowHost, rollouts: Rollouts) -> None:
    """Check that ratios are of noisy steps, and each row's times, sizes and embeddings; ValueError naming prompt and sample."""
    trace = rollouts.trace
    assert isinstance(trace, FlowTrace)
    check_latents(policy, trace)
    refuse_deterministic(rollouts, trace)
    for row, (group, sample) in enumerate(rollouts.samples()):
        with about(name_of(rollouts, row)):
            check_row(rollouts, trace, row)
            size = trace.sigma_tables[int(trace.course_index[row])].size
            if size != (asked := policy.family.size_of(group.prompt)):
                raise ValueError(f"it was drawn at {size_text(size)} pixels, but its prompt asks for {size_text(asked)}")
            if not policy.family.draws_sound:
                check_picture(sample, size, policy.config.frames)
            if policy.family.rate is not None:
                check_sound(sample, policy.family.at(size))
            check_condition(policy, trace, row, group.prompt)


def name_of(rollouts: Rollouts, row: int) -> str:
    """The row by its prompt, sample and group."""
    group_id = int(rollouts.group_ids[row])
    group = next(group for group in rollouts.groups if group.id == group_id)
    return f"prompt {group.prompt.id!r}, sample {int(rollouts.sample_ids[row])} of group {group_id}"


def refuse_deterministic(rollouts: Rollouts, trace: FlowTrace) -> None:
    """Raise ValueError, naming the row, where a ratio would be taken of a step that draws nothing."""
    if not trace.has_densities:
        return
    found = (rollouts.action_mask & ~(of_the_schedule(trace, "std") > 0)).nonzero().tolist()
    if found:
        row, action = found[0]
        raise ValueError(
            f"{name_of(rollouts, row)}: deterministic step under a ratio: step {int(trace.steps[row, action]) + 1} draws no "
            f"noise (its deviation is 0) but may train, as {len(found)} actions may: give it noise, or do not train it"
        )


def check_latents(policy: FlowHost, trace: FlowTrace) -> None:
    """Raise ValueError unless latents have the size that the pictures need."""
    for sigma_table, latents in zip(trace.sigma_tables, trace.latents.parts, strict=True):
        family = policy.family.at(sigma_table.size)
        wanted, found = family.pack(torch.zeros(1, *family.latent_shape)).shape[1:], latents.shape[1:]
        if found != wanted:
            what = (
                f"sounds of {family.seconds:g} s" if family.draws_sound else f"pictures of {size_text(sigma_table.size)} pixels"
            )
            raise ValueError(f"latents are {tuple(found)}, but {what} need {tuple(wanted)}")


def check_row(rollouts: Rollouts, trace: FlowTrace, row: int) -> None:
    """Raise ValueError unless times, latents and noted log-probabilities of the row are in order."""
    actions = (rollouts.action_mask[row] & (trace.steps[row] >= 0)).nonzero()[:, 0]
    if len(actions) < int(rollouts.action_mask[row].sum()):
        raise ValueError("its action mask is True where it took no step: masks must not be shifted")
    touched = torch.cat([trace.before[row, actions], trace.after[row, actions]])
    if not bool(trace.latents[touched].isfinite().all()):
        raise ValueError("its latents are not finite: look for weights that diverged, or set policy.dtype = 'float32'")
    noted = rollouts.recorded.get(ROLLOUT_LOGPROBS)
    if noted is not None and not bool(noted[row, actions].isfinite().all()):
        raise ValueError("its noted log-probabilities are not finite, although every one of its actions was sampled")
    sigma_table = trace.sigma_tables[int(trace.course_index[row])]
    if trace.is_forward:
        return
    for name, scheduled in (("sigma", sigma_table.sigmas[:-1]), ("timesteps", sigma_table.timesteps)):
        mine: Tensor = getattr(trace, name)[row, actions]
        if not torch.equal(mine, scheduled[trace.steps[row, actions]]):
            raise ValueError(f"its {name} are not those of its schedule: the network would get wrong times")


def check_picture(sample: Sample, size: Size, frames: int) -> None:
    """Raise ValueError unless the picture has the promised size, or the clip size and length."""
    if frames > 1:
        shape = None if sample.video is None else tuple(sample.video.shape)
        if shape != (frames, size[1], size[0], 3):
            raise ValueError(f"its clip is {shape}, not {frames} frames of {size[0]} x {size[1]} pixels with 3 colours")
    elif sample.image is None or sample.image.size != size:
        found = "missing" if sample.image is None else f"{sample.image.size[0]} x {sample.image.size[1]} pixels"
        raise ValueError(f"its picture is {found}, not {size[0]} x {size[1]} pixels")


def check_sound(sample: Sample, family: FlowFamily) -> None:
    """Raise ValueError unless the sound has the promised rate and length, and every sample of it is a number in [-1, 1]."""
    assert family.rate is not None
    wave, wanted = sample.sound, int(family.seconds * family.rate)
    if wave is None or sample.rate != family.rate or wave.shape[1:] != (wanted,):
        found = "missing" if wave is None else f"{wave.shape[1]} samples at {sample.rate} a second"
        raise ValueError(f"its sound is {found}, not {wanted} samples at {family.rate} a second")
    if not bool((abs(wave) <= 1).all()):
        raise ValueError("its sound holds samples beyond [-1, 1], or none that are numbers")


def check_condition(policy: FlowHost, trace: FlowTrace, row: int, prompt: Prompt) -> None:
    """Raise ValueError unless the row was sampled with the embeddings that the encoder remembers of its prompt."""
    known, used = policy.encoder.known.get(key_of(prompt)), trace.conditions[int(trace.prompt_index[row])]
    if known is not None and not (known.keys() == used.keys() and all(torch.equal(known[name], used[name]) for name in known)):
        raise ValueError("the embeddings it is trained with are not those of its prompt: look for mixed-up rows")
