"""Checks of an image generator's run that come before it costs time."""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.advantages.decoupled import PerModality
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.planners.flow import TaughtPairs, TaughtPictures
from mmrl.core.hooks import AdvantageHooks, PlannerHooks, TermHooks, with_hooks
from mmrl.core.readings import DT, MEAN, PIXELS, PULL, SAMPLED_MEAN, SOUND_ADVANTAGE, STD, TARGET_VELOCITY
from mmrl.core.samples import Video
from mmrl.core.types import ClipRange, Prompt
from mmrl.data.files.pictures import picture_size
from mmrl.data.validate import FILE_ROW
from mmrl.flow.plan import RolloutPlan, in_few_steps
from mmrl.policies.flow.families.base import FlowFamily
from mmrl.policies.flow.read.evaluate import OF_LATENTS
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.sizes import Size, own_size, size_text
from mmrl.policies.flow.write.given import refuse_other_kind
from mmrl.policies.video.decode import frames_to_take
from mmrl.runtime.blame import refuse_where

OF_NOISE = {"logprobs", *(reading.quantity for reading in (MEAN, SAMPLED_MEAN, STD, PULL, DT))}
"""Quantities that only noisy steps have."""
USUAL_ELEMENTS = 65536
"""Of a latent of 512 x 512 pixels, which published clip ranges are for."""
PLAIN, NORMALIZED = (1e-5, 1e-4), (2e-6, 4e-6)
"""(narrowest, usual) published clip ranges there, of plain ratios and of those that RatioNorm takes."""

BENT = 0.05
"""Ratio of two shapes, as a logarithm, from which on a picture looks stretched."""

log = logging.getLogger("mmrl")


def check_objective(algorithm: Algorithm, plan: RolloutPlan, label: str) -> None:
    """Raise ValueError where the schedule lacks what the objective reads, or nothing trains."""
    read = {reading.quantity for reading in algorithm.all_reads}
    of_noise = OF_NOISE - ({MEAN.quantity} if plan.imitate else set())
    schedule, noisy = type(algorithm.schedule).__name__, any(step.trained for step in plan.steps)
    grouped = [type(term).__name__ for _, term in algorithm.objective if term.scope == "group" and TARGET_VELOCITY in term.reads]
    looks, advantage = with_hooks(algorithm.advantage, AdvantageHooks).previews, type(algorithm.advantage).__name__
    reasons = {
        f" compares densities of noisy steps (it reads {', '.join(sorted(read & of_noise))}), but its schedule {schedule} has no "
        "noisy step that trains: take the schedule Full, Window, Tree or Branching, or an objective on velocities such as "
        "diffusion_nft's": bool(read & of_noise) and not noisy,
        f" trains on noised copies of its samples, but its schedule {schedule} makes none: "
        'set algorithm.schedule.kind = "Forward"': TARGET_VELOCITY.quantity in read and plan.forward is None,
        f" trains on the gradient of rewards, but its schedule {schedule} keeps no path that carries one: "
        'set algorithm.schedule.kind = "Surrogate"': PIXELS.quantity in read and plan.surrogate is None,
        f" draws samples for the gradient of rewards by the schedule {schedule}, and no term takes one: add the term "
        "RewardGradient to [[algorithm.objective]], or set another schedule": (
            plan.surrogate is not None and PIXELS.quantity not in read
        ),
        f": {', '.join(grouped[:1])} compares the errors of a prompt's samples, which are noised at different times: "
        "set algorithm.schedule.times.shared = true": bool(grouped) and plan.forward is not None and not plan.forward.shared,
        f": the advantage {advantage} compares rewards of what every step predicts, and the schedule {schedule} decodes none: "
        'set algorithm.schedule.kind = "Full" with previews = true': looks and not plan.previews,
        f" decodes what every step predicts, and the advantage {advantage} does not look at it: set "
        "algorithm.schedule.previews = false, or take the advantage StepRewards": plan.previews and not looks,
    }
    refuse_where(f"algorithm {label}", reasons)
    if with_hooks(algorithm.planner, PlannerHooks).scouts:
        try:
            in_few_steps(plan, 1)
        except ValueError as error:
            raise ValueError(f"algorithm {label}: {type(algorithm.planner).__name__}: {error}") from error
    if not plan.trains:
        raise ValueError(f"the schedule {schedule} of algorithm {label} trains no step at training step 0: give it noisy steps")


def check_parts(algorithm: Algorithm, policy: FlowPolicyConfig, family: FlowFamily | None, label: str) -> None:
    """Raise ValueError where clip and sound train apart without two advantages, or the model draws no sound beside clips."""
    apart, named = SOUND_ADVANTAGE in algorithm.score_reads, isinstance(algorithm.advantage, PerModality)
    reasons = {
        ": the advantage PerModality and a term NegativeAware with parts = true go together, and one of them is missing: take "
        "both, as the preset omninft does": apart != named,
        f" trains a clip and its sound apart, and policy.model {policy.model!r} draws no sound beside clips: take LTX-2, or the "
        "preset diffusion_nft": apart and (policy.frames == 1 or (family is not None and not family.sound_beside)),
    }
    refuse_where(f"algorithm {label}", reasons)


def check_taught(algorithm: Algorithm, policy: FlowPolicyConfig, prompts: Sequence[Prompt], family: FlowFamily | None) -> None:
    """Raise ValueError where a prompt's taught pictures or clips are none that the policy draws, or clips are too short."""
    fps, with_sound = (policy.fps, False) if family is None else (family.fps, family.sound_beside)
    planner = algorithm.planner
    if not isinstance(planner, TaughtPictures | TaughtPairs):
        return
    for prompt in prompts:
        for column in planner.columns_of(prompt):
            refuse_other_kind(prompt, column, policy, with_sound)
            if isinstance(source := prompt.columns[column], str | Path | Video) and policy.frames > 1:
                clip = source if isinstance(source, Video) else Video(str(source))
                frames_to_take(clip, policy.frames, fps, f"prompt {prompt.id!r}")


def refuse_sizes(prompts: Sequence[Prompt], family: FlowFamily | None) -> None:
    """Raise ValueError where a prompt asks for a size that the model cannot draw; None: only the loaded model knows."""
    troubles: list[str] = []
    for prompt in prompts:
        try:
            _ = own_size(prompt) if family is None else family.size_of(prompt)
        except ValueError as error:
            place = prompt.columns.get(FILE_ROW)
            troubles.append(str(error) if place is None else f"{place}: {error}")
    if troubles:
        more = f" (and {len(troubles) - 1} more of {len(prompts)} prompts cannot be drawn)" if len(troubles) > 1 else ""
        raise ValueError(troubles[0] + more)


def refuse_plans(plans: Mapping[str, RolloutPlan], families: Mapping[Size, FlowFamily]) -> None:
    """Raise ValueError where a model cannot draw along a plan; plans come by the table of the config that says so."""
    for table, plan in plans.items():
        for family in families.values():
            try:
                family.sigmas(plan)
            except ValueError as error:
                raise ValueError(f"{table}: {error}") from error


def refuse_comparison_of_sizes(algorithm: Algorithm, sizes: Collection[Size]) -> None:
    """Raise ValueError where an objective compares latents of all prompts of a minibatch, and these differ in size."""
    read = sorted({reading.quantity for reading in algorithm.all_reads} & OF_LATENTS)
    if algorithm.scope == "batch" and read and len(sizes) > 1:
        raise ValueError(
            f"the objective compares latents ({', '.join(read)}) of a whole minibatch (scope 'batch'), but prompts are drawn at "
            f"{', '.join(map(size_text, sorted(sizes)))} pixels: draw all at one size, or use another objective"
        )


def warn_of_stretching(prompts: Sequence[Prompt], size: tuple[int, int], fit: str) -> None:
    """Say so where pictures of prompts have another shape than the model sees."""
    if fit != "resize":
        return
    found = [(prompt.id, picture_size(media)) for prompt in prompts for media in prompt.media]
    bent = [(id, (w, h)) for id, (w, h) in found if abs(math.log(w / h * size[1] / size[0])) > BENT]
    if bent:
        id, (width, height) = bent[0]
        log.warning(
            f"{len(bent)} of {len(found)} pictures of prompts have another shape than the {size[0]} x {size[1]} pixels that the "
            f"model sees and are stretched to it (the first is prompt {id!r}'s of {width} x {height}): set policy.height and "
            'policy.width to their shape, or policy.source_fit to "crop" or "pad"'
        )


def warn_of_guidance(policy: FlowPolicyConfig, default: float, algorithm: Algorithm | None = None) -> None:
    """Say so where a model that was made to be drawn without guidance is given some, or is held near guided weights."""
    reads = () if algorithm is None else algorithm.all_reads
    guided = [reading.guidance for reading in reads if reading.guidance not in (None, 1)]
    if default == 1 and guided:
        log.warning(
            f"the objective reads weights with guidance {guided[0]:g}, but {policy.model} was made to be drawn without: set the "
            "guidance of its FlowKL to 1"
        )
    if default == 1 and policy.guidance is not None and policy.guidance != 1:
        log.warning(
            f"policy.guidance is {policy.guidance:g}, but {policy.model} was made to be drawn without guidance: a second pass "
            "per step costs twice the time, and pictures are not its pipeline's; leave policy.guidance away, or set it to 1"
        )


def warn_of_idle_network(boundary: float | None, plans: Sequence[tuple[RolloutPlan, Float[Tensor, " _"]]]) -> None:
    """Say so where one of two networks trains at no step, so that its adapter stays as it is; `plans` come with their sigmas."""
    if boundary is None or any(plan.forward is not None for plan, _ in plans):
        return
    times = [1000 * float(sigmas[i]) for plan, sigmas in plans for i, step in enumerate(plan.steps) if step.trained]
    for name, side, idle in (
        ("first", "from", all(time < boundary for time in times)),
        ("second", "below", all(time >= boundary for time in times)),
    ):
        if idle:
            log.warning(
                f"the {name} network of policy.model draws {side} time {boundary:g}, where no step of the first {len(plans)} "
                "trains, so it stays as it is: let the schedule train steps there too, unless that is meant"
            )


def warn_of_half_precision(algorithm: Algorithm, policy: FlowPolicyConfig) -> None:
    """In bfloat16 batches of another size give other numbers, so ratios start at 1 only where forwards are alike."""
    if policy.dtype == "bfloat16" and not policy.equal_forwards and "logprobs" in {r.quantity for r in algorithm.live_reads}:
        log.warning(
            "policy.dtype is 'bfloat16', where forwards of different size differ by more than a clip range of 1e-4: ratios may "
            "not start at 1 (training stops if so): set policy.equal_forwards = true"
        )


def fitting_clip(clipped: ClipRange, num_elements: int) -> float | None:
    """The usual clip range at latents of this size, where a range is too narrow for them; else None."""
    narrowest, usual = NORMALIZED if clipped.of == "scaled_ratio" else PLAIN
    wider = math.sqrt(USUAL_ELEMENTS / num_elements)
    return usual * wider if clipped.narrowest < 0.7 * narrowest * wider else None


def warn_of_clip_ranges(algorithm: Algorithm, num_elements: int) -> None:
    """Say so where latents are too small for a clip range: log-ratios, means over a latent, spread as 1 / sqrt(elements)."""
    for i, (_, term) in enumerate(algorithm.objective):
        clipped = with_hooks(term, TermHooks).clip_range
        fitting = None if clipped is None else fitting_clip(clipped, num_elements)
        if clipped is not None and fitting is not None:
            usual = fitting / math.sqrt(USUAL_ELEMENTS / num_elements)
            log.warning(
                f"algorithm.objective.{i}: the clip range {clipped.narrowest:g} of {type(term).__name__} is narrow for latents "
                f"of {num_elements} elements, so nearly everything is clipped after one update (log-ratios are means over "
                f"elements and spread as 1 / sqrt(elements); {usual:g} at {USUAL_ELEMENTS} is {fitting:.1g} here): "
                "set low and high to it"
            )
