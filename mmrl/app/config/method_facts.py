"""The changes, costs and needs of an algorithm in a few words, read off its parts."""

from collections.abc import Iterator

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.config.algorithm import PART_SLOTS, presets
from mmrl.core.hooks import AdvantageHooks, with_hooks
from mmrl.core.readings import OLD_LOGPROBS

BASES = ("grpo", "flow_grpo")
"""What others are compared with: of models that write, of image generators."""


def base_of(algorithm: Algorithm) -> Algorithm:
    return presets()[BASES[algorithm.schedule is not None]]


def changes(algorithm: Algorithm) -> str:
    """The slots that differ from grpo or flow_grpo, each with its parts."""
    base = base_of(algorithm)
    found: list[str] = []
    for slot in PART_SLOTS:
        ours, theirs = getattr(algorithm, slot), getattr(base, slot)
        if ours != theirs:
            parts = ours if isinstance(ours, tuple) else (ours,)
            names = [type(part[1] if isinstance(part, tuple) else part).__name__ for part in parts if part is not None]
            found.append(f"{slot}: {' + '.join(names) or 'none'}")
    return "; ".join(found) or "nothing"


def costs(algorithm: Algorithm) -> str:
    """Calls and memory beside one sampling and one pass with a gradient."""
    return "; ".join(cost_words(algorithm)) or "nothing more"


def cost_words(algorithm: Algorithm) -> Iterator[str]:
    if algorithm.updates > 1:
        passes = f" in {algorithm.epochs} passes" if algorithm.epochs > 1 else ""
        yield f"{algorithm.updates} updates per step{passes}"
    if algorithm.planner.max_rounds > 1:
        yield f"up to {algorithm.planner.max_rounds} rounds of samples"
    read = {(reading.model, reading.view, reading.guidance) for reading in algorithm.frozen_reads if reading != OLD_LOGPROBS}
    if read:
        yield f"{len(read)} more {'pass' if len(read) == 1 else 'passes'} without gradient"
    if algorithm.shadows:
        yield f"weights kept beside: {', '.join(sorted(algorithm.shadows))}"
    if algorithm.scope in ("group", "batch"):
        yield "a whole minibatch in memory" if algorithm.scope == "batch" else "a whole group in memory"


def needs(algorithm: Algorithm) -> str:
    """All that must be there: rewards, views, groups."""
    return "; ".join(need_words(algorithm)) or "nothing special"


def need_words(algorithm: Algorithm) -> Iterator[str]:
    if algorithm.needs_rewards:
        yield f"the reward {', '.join(algorithm.needs_rewards)}"
    if algorithm.needs_turns:
        yield "samples of several turns, [environment]"
    if algorithm.views:
        yield f"prompts that can be shown {', '.join(sorted(algorithm.views))}"
    least = with_hooks(algorithm.advantage, AdvantageHooks).min_group_size
    if least > 1:
        yield f"groups of {least} or more"
    if algorithm.scope in ("group", "batch") and algorithm.minibatches > 1:
        yield f"{algorithm.minibatches} prompts per step"
