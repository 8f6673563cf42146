"""Do the rarer generators of clips learn at all? Tiny ones with random weights get lighter, and LTX-2's sound rises beside them.

Random weights draw nothing to look at, but what is learned goes the whole way: first frames, masks, steps, densities, decoders.
"""

import json
from pathlib import Path

import pytest

from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from tests.support import as_asked


def rises(folder: Path, kind: str, seed: int, from_frame: bool, weights: dict[str, float]) -> dict[str, float]:
    """How far every score has risen on held-out prompts after 30 steps, in deviations of samples at the first one."""
    side = as_asked.SIDES.get(kind, 16)
    own = {"use": f"{as_asked.__file__}:load"} | ({"side": side} if from_frame else {})
    resolved = configs.load("tiny/t2v")
    resolved.table.set(("data",), own, "test")
    resolved.table.set(("evaluation", "data"), {**own, "seed": 1}, "test")
    rewards = [{"use": f"{as_asked.__file__}:{name}", "weight": weight} for name, weight in weights.items()]
    resolved.table.set(("reward",), rewards, "test")
    model = as_asked.build_visible(kind, folder / "model")
    size = [f"policy.height={side}", f"policy.width={side}", "policy.fps=20.0", f"policy.sound={str('above' in weights).lower()}"]
    size += [f"policy.max_prompt_tokens={64 if kind == 'sana_i2v' else 24}", f"policy.model={str(model)!r}"]
    steps = ["steps=30", "prompts_per_step=4", "algorithm.group_size=16", "algorithm.objective.1.coef=0.0", "optimizer.lr=1e-2"]
    words = [f"seed={seed}", "evaluate_every=0", "evaluation.num_samples=8", f"output={str(folder / 'run')!r}"]
    run = run_training(configs.resolve(resolved.table, [*size, *steps, *words]))
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    spread = next(line for line in lines if "reward/total" in line)
    before, after = (line for line in lines if "eval/total" in line)
    return {name: (after[f"eval/{name}"] - before[f"eval/{name}"]) / spread[f"reward/{name}/std"] for name in weights}


@pytest.mark.evidence
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("kind", "from_frame", "rewards", "learned"),
    [
        ("ltx2", False, ("light", "above"), ("light", "above")),
        # Its clips vary less than its sounds, so the sum of both rewards is mostly the sound's: each part is shown by itself.
        ("ltx2_i2v", True, ("light", "above"), ("above",)),
        ("ltx2_i2v", True, ("light",), ("light",)),
        ("hunyuan15_i2v", True, ("light",), ("light",)),
        ("sana_i2v", True, ("light",), ("light",)),
    ],
)
def test_random_models_learn_what_is_rewarded(
    tmp_path: Path, kind: str, from_frame: bool, rewards: tuple[str, ...], learned: tuple[str, ...], seed: int
):
    found = rises(tmp_path, kind, seed, from_frame, dict.fromkeys(rewards, 1.0))
    assert min(found[name] for name in learned) > 0.7, found


@pytest.mark.evidence
def test_what_is_not_rewarded_is_not_learned(tmp_path: Path):
    """A reward of the sound alone raises the sound and leaves the clip about where it was."""
    found = rises(tmp_path, "ltx2", 0, False, {"light": 0.0, "above": 1.0})
    assert found["above"] > 0.7 and found["light"] < found["above"] / 2
