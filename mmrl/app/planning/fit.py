"""A one-line run fitted to its model and card: settings from the model's config, sizes from the counted memory.

The smallest sizes are planned first; what does not fit then is refused with what would help most. Else they grow into the room
that is left, and that plan is counted too before it is taken.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mmrl.app.config.run import Resolved, RunConfig, is_free, with_values
from mmrl.app.modality.registry import PolicyConfig
from mmrl.app.planning.choices import CHOSEN, ModelFacts, PlannedSetting, area_of, in_4_bits, usual_choices, with_choices
from mmrl.app.planning.known import with_settings
from mmrl.app.planning.memory import (
    SMALL_CACHE_MB,
    Device,
    Memory,
    add_server,
    engine_beside,
    reward_memory,
    size_text,
    without_server,
)
from mmrl.app.planning.plan import Estimates, Plan, check_geometry, prompts_of
from mmrl.app.run.beforehand import refuse_unknown_space
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text.settings import TextPolicyConfig

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


@dataclass(frozen=True)
class Fit:
    """A run that fits, and why it is as it is."""

    resolved: Resolved
    choices: Sequence[PlannedSetting]
    plan: Plan
    device: Device
    weights: int
    """Numbers of the model."""


def fit_to(resolved: Resolved, device: Device, processes: int = 1) -> Fit:
    """The run with the settings and sizes that fit its model to a device; its weights are not loaded.

    Raises the errors of `draw_up`, and ValueError if nothing fits: with the changes that help most.
    """
    refuse_unknown_space(with_settings(resolved.config))
    prompts = sorted(prompts_of(resolved), key=area_of, reverse=True)
    facts = ModelFacts.of(with_settings(resolved.config).policy, prompts)
    usual = usual_choices(resolved, facts)
    chosen = with_choices(resolved, usual)
    card = device.size if device.is_card else None
    estimates = Estimates(processes, prompts, reward_memory(chosen, device.is_card), card)
    if facts.is_tiny:
        check_geometry(chosen, processes)
        made = estimates.of(chosen)
        if device.fits(made.memory):
            return Fit(chosen, usual, made, device, facts.weights)
    least = free_sizes(chosen, least_sizes(chosen.config, processes))
    smallest = with_values(chosen, least, CHOSEN)
    check_geometry(smallest, processes)
    made = estimates.of(smallest)
    whole, small = chosen, list[PlannedSetting]()
    for fewer in in_4_bits(chosen, facts, device, device.need_of(made.memory)):
        if device.fits(made.memory):
            break
        small, chosen = fewer, with_choices(whole, fewer)
        smallest = with_values(chosen, least, CHOSEN)
        made = estimates.of(smallest)
    usual = [*usual, *small]
    if not device.fits(made.memory):
        raise ValueError(refusal(estimates, smallest, made, device, facts))
    sizes, best, planned = least, smallest, made
    wanted = {**least, **free_sizes(chosen, larger_sizes(made, device))}
    while wanted != least:
        larger = with_values(chosen, wanted, CHOSEN)
        planned_larger = estimates.of(larger)
        if device.fits(planned_larger.memory):
            sizes, best, planned = wanted, larger, planned_larger
            break
        half = {key: value if isinstance(value, bool) else max(int(least[key]), value // 2) for key, value in wanted.items()}
        wanted = half | {key: True for key, value in least.items() if isinstance(value, bool)}
    return Fit(best, [*usual, *size_choices(sizes, planned)], planned, device, facts.weights)


def free_sizes(resolved: Resolved, sizes: Sizes) -> Sizes:
    """The sizes of which the command line says nothing."""
    return {key: value for key, value in sizes.items() if is_free(resolved, key)}


def fit_lines(fit: Fit) -> list[str]:
    """The choices of a fit as lines: what, how much and why."""
    config, table = fit.resolved.config, fit.resolved.table
    head = f"{config.policy.model}: {fit.weights / 1e6:,.1f} million weights, {fit.device.name}"
    rows = [(choice.key, value_text(choice.value), choice.why) for choice in fit.choices]
    held_out = config.evaluation.data
    every = [("evaluate_every", "evaluations")] if held_out is not None else []
    every += [("save_every", "checkpoints")] if config.save_every else []
    rows += [(key, str(getattr(config, key)), f"steps between {what}, of {config.steps}") for key, what in every]
    rows += [] if config.save_every else [("save_minutes", f"{config.save_minutes:g}", SAVED[config.saves_by_time])]
    place = None if held_out is None else held_out.args.get("path", held_out.use)
    if held_out is not None and "split" in held_out.args:
        place = f"{place}, split {held_out.args['split']}"
    rows.append(("held out", "nothing" if place is None else str(place), HELD_OUT[table.origin(("evaluation", "data")) is None]))
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    lines = [f"  {key:<{widths[0]}}  {value:<{widths[1]}}  {why}" for key, value, why in rows]
    taken = f"takes {size_text(fit.device.need_of(fit.plan.memory))} of it at most, as mmrl plan counts"
    return [head, *lines, f"  {taken}; any of this can be said otherwise: key=value"]


SAVED = {True: "that a killed run loses at most", False: "the only checkpoint is that of the end"}
HELD_OUT = {
    True: "so nothing says what it learned, only a few training prompts are shown: give --held-out, or put `test` next to "
    "`train` (mmrl data split)",
    False: "scored before, while and after it trains; a warning says if any of them train, too",
}


def value_text(value: object) -> str:
    """A value in a line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(str(item.get("kind", item.get("use"))) if isinstance(item, dict) else str(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


SHOWN = 3
SMALL_RANK, SMALL_SIDE, SMALL_PIXELS, FEW_TOKENS = 8, 256, 200_704, 64
MOST_CARDS = 8
WORTH = 0.1
"""Share of a run's memory from which on its largest phase is worth a look."""
SHARDS = "accelerate launch --config_file configs/accelerate/fsdp2.yaml --num_processes {cards} -m mmrl train ..."

Remedy = tuple[int, str]
"""Bytes of a card that a change to a run saves, and the change in words."""


def refusal(estimates: Estimates, resolved: Resolved, made: Plan, device: Device, facts: ModelFacts) -> str:
    """The error of a run that does not fit with its smallest sizes: what it needs, and what would help most, largest first."""
    memory = made.memory
    largest = sorted(parts_of(memory).items(), key=lambda part: -part[1])[:SHOWN]
    named = ", ".join(f"{name} {size_text(size)}" for name, size in largest)
    known = list(remedies(estimates, resolved, made, device, facts))
    if len(known) < SHOWN or memory.phases[memory.largest_phase] > WORTH * memory.peak:
        for words, values in cheaper(resolved):
            less = device.use_of(estimates.of(with_values(resolved, values, CHOSEN)).memory)
            known += [(device.use_of(memory) - less, words)] if less < device.use_of(memory) else []
    found = sorted(known, key=lambda remedy: -remedy[0])[:SHOWN]
    missing = device.use_of(memory) - device.usable
    lines = "\n".join(f"  -{size_text(saves)}: {words}" for saves, words in found)
    return (
        f"{resolved.config.policy.model} ({facts.weights / 1e9:.2f} billion weights) does not fit: with the smallest sizes it "
        f"needs {size_text(device.need_of(memory))} of {device.name}, {size_text(missing)} too much; most: {named}. "
        f"What helps most:\n{lines}"
    )


def parts_of(memory: Memory) -> Mapping[str, int]:
    """The parts of a sum of bytes: what stays, and the phase that counts."""
    return {**memory.stays, f"while {memory.largest_phase}": memory.phases[memory.largest_phase]}


def remedies(estimates: Estimates, resolved: Resolved, made: Plan, device: Device, facts: ModelFacts) -> Iterator[Remedy]:
    """The changes whose bytes follow from the plan, and weights in 4 bits where a config said otherwise; in no order."""
    memory, policy = made.memory, resolved.config.policy
    weights = sum(size for name, size in memory.stays.items() if name.startswith("weights in"))
    trained = sum(size for name, size in memory.stays.items() if name.startswith(("gradients", "optimizer")))
    missing = device.use_of(memory) - device.usable
    if facts.weights and weights > missing:
        fitting = (weights - missing) * facts.weights / weights
        yield missing, f"a smaller model: at most {fitting / 1e9:.1f} billion weights fit beside the rest"
    if device.is_card and rests_whole(policy):
        cards = next((n for n in (2, 4, MOST_CARDS) if (weights + trained) * (n - 1) // n >= missing), MOST_CARDS)
        saved = (weights + trained) * (cards - 1) // cards
        yield saved, f"{cards} such cards that share the weights: {SHARDS.format(cards=cards)}"
    if device.is_card:
        if held := sum(made.rewards.stays.values()):
            yield held, 'rewards in a process of their own (mmrl reward serve), or device = "cpu" in [[reward]]'
        yield from less_server(made.config, memory)
    if policy.lora is not None and policy.lora.rank > SMALL_RANK:
        adapter = trained + sum(size for name, size in memory.stays.items() if name.startswith("weights kept beside"))
        share = 1 - SMALL_RANK / policy.lora.rank
        yield int(share * (adapter + 4 * memory.trained)), f"smaller adapters: policy.lora.rank={SMALL_RANK}"
    if device.is_card and facts.parts and rests_whole(policy) and policy.lora is not None:
        small = with_values(resolved, {"policy.weights": "nf4"}, CHOSEN)
        yield memory.peak - estimates.of(small).memory.peak, "weights in 4 bits: policy.weights=nf4"


def rests_whole(policy: PolicyConfig) -> bool:
    """May its weights rest in 4 bits, or be shared by cards, and do they rest as they are?"""
    return isinstance(policy, TextPolicyConfig | FlowPolicyConfig) and policy.weights == "float"


def less_server(config: RunConfig, memory: Memory) -> Iterator[Remedy]:
    """An engine's server that takes less of the trainer's card, or nothing."""
    engine, policy = engine_beside(config), config.policy
    if engine is None or not isinstance(policy, TextPolicyConfig):
        return
    alone = without_server(memory).peak
    yield memory.peak - alone, 'the server on another card (policy.engine.devices = "1"), or no engine'
    small = replace(engine, cache_mb=SMALL_CACHE_MB)
    less = add_server(without_server(memory), replace(config, policy=replace(policy, engine=small)), 0).peak
    words = f"a server with {SMALL_CACHE_MB / 1024:.0f} GiB for keys and values: policy.engine.cache_mb={SMALL_CACHE_MB}"
    if less < memory.peak:
        yield memory.peak - less, words


def cheaper(resolved: Resolved) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Words for a setting that the largest phase, or all of the model, depends on, and the setting by its key."""
    policy = resolved.config.policy
    if policy.dtype != "bfloat16" or policy.lora is None:
        adapters = {"policy.dtype": "bfloat16", "policy.lora": {"rank": SMALL_RANK}}
        yield f"adapters in bfloat16: policy.dtype=bfloat16 policy.lora.rank={SMALL_RANK}", adapters
    if isinstance(policy, TextPolicyConfig) and policy.max_pixels is not None and policy.max_pixels > SMALL_PIXELS:
        yield f"smaller pictures: policy.max_pixels={SMALL_PIXELS}", {"policy.max_pixels": SMALL_PIXELS}
    if isinstance(policy, TextPolicyConfig) and policy.sampling.max_new_tokens > FEW_TOKENS:
        few = {"policy.sampling.max_new_tokens": FEW_TOKENS}
        yield f"shorter answers: policy.sampling.max_new_tokens={FEW_TOKENS}", few
    if isinstance(policy, FlowPolicyConfig) and policy.seconds is None and min(policy.height, policy.width) > SMALL_SIDE:
        sides = {"policy.height": SMALL_SIDE, "policy.width": SMALL_SIDE}
        yield f"smaller pictures: policy.height={SMALL_SIDE} policy.width={SMALL_SIDE}", sides
