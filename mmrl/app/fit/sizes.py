"""Sizes that a one-line run takes from the card: the smallest first, then as much more as the counted memory leaves room for."""

from collections.abc import Mapping

from mmrl.app.config.run import RunConfig
from mmrl.app.fit.plan import Plan
from mmrl.app.planning.choices import PlannedSetting
from mmrl.app.planning.device import Device
from mmrl.app.planning.memory import size_text
from mmrl.policies.flow.settings import FlowPolicyConfig

Sizes = Mapping[str, int | bool]
"""Key of the config -> how much is done at a time."""
LEAST_POSITIONS, LEAST_ROWS = 2048, 8
MOST_POSITIONS, MOST_ROWS, MOST_LATENTS, MOST_DECODED = 32768, 256, 16, 8
PROMPTS, MOST_PROMPTS = 8, 32
"""Per step and process."""


def least_sizes(config: RunConfig, processes: int) -> Sizes:
    """The sizes that need least memory."""
    prompts = {"prompts_per_step": PROMPTS * processes}
    if not isinstance(config.policy, FlowPolicyConfig):
        return {"micro_batch": LEAST_POSITIONS, "policy.rollout_rows": LEAST_ROWS, **prompts}
    one = dict.fromkeys(("micro_batch", "policy.forward_rows", "policy.decode_rows"), 1)
    return {**one, "policy.vae_slicing": True, "policy.rest_text_encoders": True, **prompts}


def larger_sizes(made: Plan, device: Device) -> Sizes:
    """The sizes that should fill a device, from the plan of the smallest: bytes grow at most as fast as they do."""
    phases, policy = made.memory.phases, made.config.policy
    # what the largest phase may take, beside what stays
    free = device.usable - (device.use_of(made.memory) - max(phases.values(), default=0))
    update = max(phases.get("update", 1), phases.get("read", 1))
    begun = made.config.micro_batch
    micro_batch = begun if isinstance(begun, int) else LEAST_POSITIONS
    if isinstance(policy, FlowPolicyConfig):
        encoders = phases.get("encode", 0)
        stay = 2 * encoders < free
        free -= encoders if stay else 0
        rows = grow(policy.forward_rows, free, max(update, phases.get("rollout", 1)), MOST_LATENTS)
        decoded = grow(policy.decode_rows, free, phases.get("decode", 1), MOST_DECODED)
        rest = {"policy.vae_slicing": decoded == 1, "policy.rest_text_encoders": not stay}
        return {"micro_batch": rows, "policy.forward_rows": rows, "policy.decode_rows": decoded, **rest}
    group = made.config.algorithm.algorithm.group_size
    rows = grow(policy.rollout_rows, free, phases.get("rollout", 1), MOST_ROWS)
    prompts = min(MOST_PROMPTS, max(PROMPTS, rows // group))
    positions = grow(micro_batch, free, update, MOST_POSITIONS)
    rows = min(rows, prompts * group)
    return {"micro_batch": positions, "policy.rollout_rows": rows, "prompts_per_step": prompts * made.processes}


def grow(size: int, free: int, taken: int, most: int) -> int:
    """The size, doubled as often as bytes allow."""
    while 2 * size <= most and 2 * taken <= free:
        size, taken = 2 * size, 2 * taken
    return size


def smaller_sizes(sizes: Sizes, least: Sizes) -> Sizes:
    """Half of every size, and no less than the smallest; parts that may leave the card leave it."""
    half = {key: value if isinstance(value, bool) else max(int(least[key]), value // 2) for key, value in sizes.items()}
    return half | {key: True for key, value in least.items() if isinstance(value, bool)}


def size_choices(sizes: Sizes, made: Plan) -> list[PlannedSetting]:
    """The sizes of a plan with their reasons."""
    phases, group = made.memory.phases, made.config.algorithm.algorithm.group_size
    samples = group * made.config.prompts_per_step
    what = "positions" if made.is_text else "denoising steps"
    why = {
        "micro_batch": f"{what} in one forward and backward pass: {size_text(phases.get('update', 0))} beside what stays",
        "policy.rollout_rows": f"completions decoded side by side: {size_text(phases.get('rollout', 0))}",
        "policy.forward_rows": f"latents in one forward pass: {size_text(phases.get('rollout', 0))} while sampling",
        "policy.decode_rows": f"pictures decoded side by side: {size_text(phases.get('decode', 0))}",
        "policy.vae_slicing": "pictures are decoded one by one",
        "policy.rest_text_encoders": "text encoders come to the card only for new prompts",
        "prompts_per_step": f"with groups of {group}, {samples} samples a step; no more memory than fewer",
    }
    return [PlannedSetting(key, value, why[key]) for key, value in sizes.items() if value is not False]
