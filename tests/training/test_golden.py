"""Twenty steps on the fake policy, number by number: a change that only moves code reproduces them.

`python tests/training/test_golden.py` writes them anew; look at the difference before committing it.
"""

import json
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).with_name("golden.json")
STEPS = 20
NAMES = ("grpo", "dapo", "gspo", "cispo", "rloo", "gdpo", "high_entropy")
WATCHED = ("loss", "policy/grad_norm", "reward/total", "rollout/length")


def trace(name: str) -> dict[str, list[float]]:
    from mmrl.algorithms.presets.text import PRESETS
    from tests.training.conftest import make_trainer

    trainer = make_trainer(PRESETS[name], steps=STEPS)
    steps = [trainer.step() for _ in range(STEPS)]
    return {metric: [step[metric] for step in steps] for metric in WATCHED}


@pytest.mark.parametrize("name", NAMES)
def test_trace_is_reproduced(name: str):
    expected = json.loads(GOLDEN.read_text())["traces"][name]
    found = trace(name)
    for metric in WATCHED:
        assert found[metric] == pytest.approx(expected[metric], rel=1e-3, abs=1e-4), metric


def main() -> None:
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    traces = {name: trace(name) for name in NAMES}
    GOLDEN.write_text(json.dumps({"torch": torch.__version__, "traces": traces}, indent=1) + "\n")


if __name__ == "__main__":
    main()
