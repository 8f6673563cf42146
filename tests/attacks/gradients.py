"""Attacks by rewards whose gradient is missing, broken or a lie: each is refused before a model is loaded."""

from functools import partial
from pathlib import Path

from tests.attacks.attack import Attack, BrokenError, expect_sentence, run_mmrl

REWARD = """import torch
class mine:
    def __call__(self, group):
        return [0.0] * len(group.samples)
    def of_pixels(self, pixels, prompts):
        blue = pixels[:, 2].flatten(1).mean(1)
        {}
"""
LIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("scores that were detached", "return blue.detach()", ("without a gradient", "of_pixels")),
    ("scores by numpy", "return torch.from_numpy(blue.detach().numpy())", ("without a gradient",)),
    ("one score for all pictures", "return blue.sum()", ("a finite number each",)),
    ("scores that are no numbers", "return blue * float('nan')", ("a finite number each",)),
    ("a root at 0", "return blue + (0 * blue).sqrt()", ("not finite",)),
    ("a gradient that points away", "return 2 * blue.detach() - blue", ("points away",)),
)


def train(body: str, words: tuple[str, ...], folder: Path) -> str:
    """A run of draft_k with the reward, which must not begin."""
    (folder / "mine.py").write_text(REWARD.format(body))
    settings = ("algorithm={preset='draft_k'}", "algorithm.schedule.num_steps=4", "reward=[{use='./mine.py:mine'}]", "output=run")
    outcome = expect_sentence(run_mmrl(["train", "tiny/flow", *settings], folder), "reward 'mine'", *words)
    if (folder / "run").exists():
        raise BrokenError("a run was begun")
    return outcome


ATTACKS = [Attack("gradients", name, partial(train, body, words)) for name, body, words in LIES]
