"""Two processes equal one: the same global batch gives the same rewards, metrics and weights.

Among the methods are those whose groups are compared, probed, given rows or sampled anew.
"""

from typing import Any

import pytest
import torch
from accelerate import Accelerator

from tests.support.launcher import forked
from tests.training.run_ranks import AHEAD, DRAWN, PLANNERS, STATE, VIDEO, trained

Results = dict[str, Any]
CLOSE = {
    **dict.fromkeys(("grpo", "minibatches", "high_entropy", "recorded"), (2e-5, 1e-5)),
    **dict.fromkeys((*VIDEO, *PLANNERS, *STATE, *DRAWN), (5e-5, 2e-5)),
}
"""Case -> how far metrics and weights may be apart."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    out = tmp_path_factory.mktemp("ranks") / "two.pt"
    done = forked("tests.training.run_ranks", out, 2)
    assert done.returncode == 0, done.stderr[-3000:]
    alone = Accelerator(cpu=True)
    assert alone.num_processes == 1
    return trained(alone), torch.load(out, weights_only=True)


@pytest.mark.parametrize("case", CLOSE)
def test_two_processes_equal_one(results: tuple[Results, Results], case: str):
    one, two = results[0][case], results[1][case]
    metrics_apart, weights_apart = CLOSE[case]
    for step, (a, b) in enumerate(zip(one["metrics"], two["metrics"], strict=True)):
        expected = {
            name: pytest.approx(value, abs=metrics_apart, nan_ok=True)
            for name, value in a.items()
            if not name.startswith("time/")
        }
        assert {name: value for name, value in b.items() if not name.startswith("time/")} == expected, f"step {step}"
    torch.testing.assert_close(one["weights"], two["weights"], atol=weights_apart, rtol=0)


def test_threads_beside_two_trainers_give_the_same_bits_whatever_takes_how_long_and_after_a_stop(
    results: tuple[Results, Results],
):
    one, other = (results[1][name] for name in AHEAD)
    assert torch.equal(one["weights"], other["weights"]) and torch.equal(one["weights"], one["resumed"])
    assert [metrics["rollout/staleness"] for metrics in one["metrics"]] == [0, 1, 1, 1]
    assert [metrics["reward/total"] for metrics in one["metrics"]] == [metrics["reward/total"] for metrics in other["metrics"]]
    assert not torch.equal(one["weights"], results[1]["dynamic"]["weights"])


def test_dynamic_sampling_on_two_processes_fills_every_step(results: tuple[Results, Results]):
    for metrics in results[1]["dynamic"]["metrics"]:
        assert metrics["reward/no_spread"] == 0
        assert metrics["rollout/discarded"] % 8 == 0
