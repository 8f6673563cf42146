"""Two processes equal one for methods whose groups are compared, probed, given rows or sampled anew."""

from typing import Any

import pytest
import torch

from mmrl.algorithms.presets.video import PRESETS
from tests.training import test_ranks as ranks

SCRIPT = """
import os, sys
import torch
torch.set_num_threads(1)
from accelerate import Accelerator
from mmrl.algorithms.presets.video import PRESETS
from mmrl.core.ranks import Ranks
from mmrl.training.optim import OptimizerSettings
from tests.training.test_video_methods import CLIPS, video_trainer
from tests.support.fakes import prompts

accelerator = Accelerator(cpu=True)
ranks = Ranks(accelerator) if accelerator.num_processes > 1 else Ranks()
mixed = [*CLIPS[:3], *prompts()[3:]]
results = {}
for name in PRESETS:
    trainer = video_trainer(name, mixed, ranks=ranks, optimizer=OptimizerSettings(kind="sgd", lr=0.5))
    trainer.policy.prepare(accelerator)
    metrics = [trainer.step() for _ in range(4)]
    results[name] = {"metrics": metrics, "weights": torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])}
if ranks.is_main:
    torch.save(results, sys.argv[1])
ranks.close()
os._exit(0)  # gloo's threads sometimes abort the interpreter's own farewell on a busy machine
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "SCRIPT", SCRIPT)
        return ranks.run(folder, 1), ranks.run(folder, 2)


@pytest.mark.parametrize("case", sorted(PRESETS))
def test_two_processes_equal_one(results: tuple[dict[str, Any], dict[str, Any]], case: str):
    one, two = results[0][case], results[1][case]
    for step, (a, b) in enumerate(zip(one["metrics"], two["metrics"], strict=True)):
        expected = {name: pytest.approx(x, abs=5e-5, nan_ok=True) for name, x in a.items() if not name.startswith("time/")}
        assert {name: x for name, x in b.items() if not name.startswith("time/")} == expected, f"step {step}"
    torch.testing.assert_close(one["weights"], two["weights"], atol=2e-5, rtol=0)
