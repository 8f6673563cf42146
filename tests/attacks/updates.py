"""Attacks by numbers of updates: more minibatches than there is to share, and objectives that one update leaves idle."""

from functools import partial
from pathlib import Path

from tests.attacks.attack import Attack, Ended, expect_clean, run_mmrl

NOWHERE = "policy.model=nowhere"
"""A run that got as far as its model would name it."""


def say_idle(words: tuple[str, ...], settings: tuple[str, ...], folder: Path) -> str:
    """The plan says before anything else that the objective cannot act; then it ends at the model."""
    ended = run_mmrl(["plan", "tiny/image", *settings, NOWHERE], folder)
    said = flat(ended)
    missing = [word for word in ("acts only from the second update on", *words) if word not in said]
    assert not missing, f"it does not say {missing}: {said[-300:]!r}"
    expect_clean(ended.out + ended.err)
    return "said before the run"


def say_nothing(settings: tuple[str, ...], folder: Path) -> str:
    """An objective that acts, or whose paper takes one update, is not warned about."""
    assert "second update" not in flat(run_mmrl(["plan", "tiny/image", *settings, NOWHERE], folder)), (
        "it warns of an objective that is as its paper has it"
    )
    return "nothing to say"


def flat(ended: Ended) -> str:
    """All that was printed, without line breaks."""
    return " ".join((ended.out + ended.err).split())


ONE = "algorithm.minibatches=1"
ATTACKS = [
    Attack("config", "a gate that never acts", partial(say_idle, ("Sapo",), ("algorithm.preset=sapo", ONE))),
    Attack("config", "one update as its paper has it", partial(say_nothing, ("algorithm.preset=grpo",))),
    Attack(
        "config", "two passes instead of minibatches", partial(say_nothing, ("algorithm.preset=gspo", ONE, "algorithm.epochs=2"))
    ),
]
