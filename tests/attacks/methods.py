"""Attacks by configs that name a method without what it is made of, or settings of pruning that make no sense."""

from functools import partial
from pathlib import Path

from tests.attacks.attack import Attack, expect_sentence, run_mmrl

VOTE = 'reward=[{use = "majority_vote", weight = 0.0}, {use = "format"}]'
PENALTY = 'reward=[{use = "majority_vote", weight = -1.0}, {use = "format"}]'


def plan(config: str, settings: tuple[str, ...], words: tuple[str, ...], folder: Path) -> str:
    """Settings on top of a shipped config must be refused in words."""
    return expect_sentence(run_mmrl(["plan", config, *settings], folder), *words)


def text(name: str, *settings: str, words: tuple[str, ...]) -> Attack:
    return Attack("config", name, partial(plan, "tiny/image", settings, words))


def tree(name: str, setting: str, *words: str) -> Attack:
    settings = ("algorithm.preset=branch_grpo", f"algorithm.advantage.{setting}")
    return Attack("config", name, partial(plan, "tiny/flow", settings, words))


ATTACKS = [
    text("urpa without its pseudo-label", "algorithm.preset=urpa", words=("urpa", "pseudo_span", "needs_rewards")),
    text("MM-UPT without its vote", "algorithm.preset=mm_upt", words=("mm_upt", "majority_vote")),
    text("MM-UPT with a vote that does not count", "algorithm.preset=mm_upt", VOTE, words=("majority_vote", "weight above 0")),
    text("MM-UPT that punishes the majority", "algorithm.preset=mm_upt", PENALTY, words=("majority_vote", "weight above 0")),
    text("a need that no reward can meet", 'algorithm.needs_rewards=["nowhere"]', words=("nowhere", "needs_rewards")),
    text("a need that is a number", "algorithm.needs_rewards=3", words=("algorithm.needs_rewards",)),
    Attack(
        "config",
        "Pref-GRPO without comparisons",
        partial(
            plan,
            "tiny/flow",
            ("algorithm.preset=pref_grpo", "algorithm.schedule.trained_per_row=3"),
            ("pref_grpo", "pairwise_win_rate"),
        ),
    ),
    tree("pruning that keeps nothing", "kept_chains=0.0", "kept_chains", "above 0"),
    tree("pruning that keeps less than nothing", "kept_chains=-0.5", "kept_chains", "above 0"),
    tree("pruning that keeps more than there is", "kept_chains=50", "kept_chains", "above 0"),
    tree("pruning that keeps no number", "kept_chains=nan", "kept_chains", "above 0"),
    tree("pruning of an unknown kind", "pruning=worst", "advantage.pruning", "best_per_branch"),
]
