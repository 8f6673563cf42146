"""Your own sampler: which prompts come next. Run it with `python examples/my_sampler.py`.

In a config: `[sampler]` with `use = "examples/my_sampler.py:HardOnesMore"`; its other fields are settings, and what it remembers
is in the run's checkpoints.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmrl.core.protocols import State
from mmrl.core.types import Prompt


@dataclass
class HardOnesMore:
    """p(prompt) ~ ease + 1 - mean reward, of the last time it was sampled (rewards from 0 to 1; never sampled counts as 0)."""

    prompts: Sequence[Prompt]
    seed: int = 0
    ease: float = 0.1
    """Above 0, so that solved prompts still come now and then."""
    num_drawn: int = field(default=0, init=False)
    rewards: dict[str, float] = field(default_factory=dict[str, float], init=False)
    """Prompt id -> mean reward."""

    def __post_init__(self) -> None:
        if not self.ease > 0:
            raise ValueError(f"HardOnesMore.ease is {self.ease}: set it above 0")

    def draw(self, num_prompts: int) -> list[Prompt]:
        """Chance depends on seed and count alone, so every process draws the same."""
        rng = random.Random(f"{self.seed}/{self.num_drawn}")
        self.num_drawn += num_prompts
        return rng.choices(self.prompts, [self.ease + 1 - self.rewards.get(p.id, 0.0) for p in self.prompts], k=num_prompts)

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        """Remember how well each prompt went; NaN where nothing answered."""
        for prompt, rewards in zip(prompts, totals, strict=True):
            known = [reward for reward in rewards if reward == reward]
            if known:
                self.rewards[prompt.id] = min(1.0, max(0.0, sum(known) / len(known)))

    def state_dict(self) -> State:
        return {"num_drawn": self.num_drawn, "rewards": dict(self.rewards)}

    def load_state_dict(self, state: State) -> None:
        self.num_drawn, self.rewards = state["num_drawn"], dict(state["rewards"])


def main() -> None:
    prompts = [Prompt("solved"), Prompt("hard")]
    sampler = HardOnesMore(prompts)
    sampler.observe(prompts, [[1.0, 1.0], [0.0, 1.0]])
    drawn = [prompt.id for prompt in sampler.draw(1000)]
    print({prompt.id: drawn.count(prompt.id) for prompt in prompts})  # near 1 : 6


if __name__ == "__main__":
    main()
