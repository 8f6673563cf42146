"""A one-line run fitted to its model and card: settings from the model's config, sizes from the counted memory.

The smallest sizes are planned first; what does not fit then is refused with what would help most. Else they grow into the room
that is left, and that plan is counted too before it is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mmrl.app.config.run import Resolved, is_free, with_values
from mmrl.app.fit.plan import Estimates, Plan, check_geometry, prompts_of
from mmrl.app.fit.remedies import refusal
from mmrl.app.fit.sizes import Sizes, larger_sizes, least_sizes, size_choices, smaller_sizes
from mmrl.app.planning.choices import CHOSEN, ModelFacts, PlannedSetting, area_of, in_4_bits, usual_choices, with_choices
from mmrl.app.planning.device import Device
from mmrl.app.planning.known import with_settings
from mmrl.app.planning.memory import reward_memory, size_text
from mmrl.app.run.beforehand import refuse_unknown_space


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
        wanted = smaller_sizes(wanted, least)
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
