"""A packed row read by several processes together (policy.context): values and gradients are those of one process."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from mmrl.algorithms.presets import PRESETS
from mmrl.app.commands.check import check
from mmrl.app.config import run as configs
from mmrl.app.planning.plan import draw_up
from mmrl.app.run.beforehand import check_context
from mmrl.core.ranks import Ranks
from mmrl.policies.text.check.diagnose import PIECES
from mmrl.policies.text.dry_run import TextDryRun
from mmrl.policies.text.packed.attention import Packed
from mmrl.policies.text.packed.team import Team, repeated
from mmrl.policies.text.policy import TextPolicyConfig
from mmrl.policies.text.settings import refuse_rest
from tests.policies.text.packed.run_team import read
from tests.support.faults import Fault, message_of
from tests.support.launcher import KINDS, Kind, both, results
from tests.support.text_policies import make, prompts

BOUND = 2e-6
"""In float32, of log-probabilities and entropies, and relative of gradients."""
CASES = ("qwen3_vl=checkpointing", "qwen2_5_vl=lora,alone")
MORE = ("qwen3_vl=lora,checkpointing", "qwen3_vl=alone", "qwen2_5_vl=checkpointing")
"""Model and how it is trained, and whose the rows are; more in `make evidence`."""
OTHERS = [pytest.param(MORE, case, marks=pytest.mark.evidence) for case in MORE]


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Of all gradients, relative to the second ones; those of one process alone must be 0."""
    assert b.keys() <= a.keys() and not any(bool(a[name].any()) for name in a.keys() - b.keys())
    apart = sum(float((a[name] - x).double().square().sum()) for name, x in b.items())
    return math.sqrt(apart / sum(float(x.double().square().sum()) for x in b.values()))


def compare(many: list[dict[str, Any]], one: dict[str, Any], context: int) -> None:
    rows = {name: row for part in many for name, row in part["rows"].items()}
    assert rows.keys() == one["rows"].keys()
    for name, row in rows.items():
        for quantity, values in row.items():
            # all of a process's rows are compared as one group
            if quantity != "frozen group_divergence" or len(many[0]["rows"]) == len(rows):
                torch.testing.assert_close(values, one["rows"][name][quantity], atol=BOUND * 5, rtol=BOUND)
    assert distance(many[0]["grads"], one["grads"]) < BOUND
    assert all(part["tokens"] <= math.ceil(one["tokens"] / context) for part in many), "no process has more than its piece"


Read = Callable[[tuple[str, ...], Kind], dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]]


@pytest.fixture(scope="module")
def together(tiny: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Cases and kind -> of each case what one process reads, and every one of the team."""
    module, folder = "tests.policies.text.packed.run_team", tmp_path_factory.mktemp("team")

    def asked(case: str) -> str:
        family, _, words = case.partition("=")
        return f"{tiny(family)}={words}"

    @cache
    def alone(case: str) -> dict[str, Any]:
        model, _, words = asked(case).partition("=")
        return read(model, words.split(","), Accelerator(cpu=True), folder, 1)

    @cache
    def two(cases: tuple[str, ...]) -> dict[Kind, list[dict[str, Any]]]:
        ones = [alone(case) for case in cases]
        assert len(ones) == len(cases)
        return both(module, folder, *map(asked, cases))

    return lambda cases, kind: {case: (alone(case), [part[asked(case)] for part in two(cases)[kind]]) for case in cases}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cases", "case"), [*((CASES, case) for case in CASES), *OTHERS])
def test_a_team_reads_what_one_process_reads(together: Read, cases: tuple[str, ...], case: str, kind: Kind):
    one, many = together(cases, kind)[case]
    compare(many, one, 2)


@pytest.mark.evidence
@pytest.mark.parametrize("kind", KINDS)
def test_four_processes_read_what_one_process_reads(tiny: Callable[[str], str], tmp_path: Path, kind: Kind):
    models = [f"{tiny('qwen3_vl')}=checkpointing", f"{tiny('qwen2_5_vl')}=lora", f"{tiny('qwen3_vl')}=pairs"]
    many = results("tests.policies.text.packed.run_team", kind, tmp_path, *models, processes=4)
    for case, context in zip(models, (4, 4, 2), strict=True):
        model, _, words = case.partition("=")
        one = read(model, words.split(","), Accelerator(cpu=True), tmp_path, 1)
        compare([part[case] for part in many], one, context)


def test_heads_of_keys_are_there_for_every_process():
    keys = torch.arange(2.0).view(1, 2, 1, 1)
    assert repeated(keys, 2, 4) is keys
    assert repeated(keys, 4, 8).flatten().tolist() == [0, 0, 1, 1]
    # six heads of queries over three processes: no two of them share one
    assert repeated(keys, 3, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]


def test_the_plan_counts_a_piece():
    words = ["micro_batch=512", "policy.prefix=packed"]
    made = [draw_up(configs.load("tiny/image", [*words, f"policy.context={size}"]), 4) for size in (1, 2, 4)]
    one, two, four = (plan.memory.phases["update"] for plan in made)
    assert four < 0.8 * two < 0.8 * 0.8 * one
    assert made[0].usual.counts == made[2].usual.counts, "a process still reads as many rows as it samples"
    with pytest.raises(ValueError, match=r"policy.context is 4, and the processes of the run are 2"):
        draw_up(configs.load("tiny/image", [*words, "policy.context=4"]), 2)


def test_plans_and_checks_know_of_processes_that_read_rows_together(capsys: pytest.CaptureFixture[str]):
    resolved = configs.load("tiny/image", ["policy.context=2"])
    assert draw_up(resolved).processes == 2
    assert draw_up(configs.load("tiny/image", ["policy.context=2", "cluster.trainers=4"])).processes == 4
    with pytest.raises(ValueError, match=r"policy.context is 2, and ahead = 1 was not tried with it"):
        draw_up(configs.load("tiny/image", ["policy.context=2", "ahead=1"]))
    check_context(configs.load("tiny/image", ["policy.context=2", "algorithm.preset=t_grpo"]).config, Ranks())
    assert check("tiny/image", ["policy.context=2"]), "one process tries what one can"
    assert "read whole here: policy.context = 2 takes as many processes" in " ".join(capsys.readouterr().out.split())


def test_pieces_of_a_row_make_the_row():
    teams, row = [Team(3, index) for index in range(3)], torch.arange(1.0, 8).view(1, 7)
    pieces = [team.piece(row, 3) for team in teams]
    assert torch.equal(torch.cat(pieces, 1), torch.nn.functional.pad(row, (0, 2)))


@pytest.mark.parametrize("live", [False, True], ids=["before the first update", "in the first forward with a gradient"])
def test_the_gate_names_an_exchange_that_goes_wrong(tiny: Callable[[str], str], live: bool, monkeypatch: pytest.MonkeyPatch):
    policy, right = make(tiny("qwen3_vl"), prefix="packed", gradient_checkpointing=True), Team.share_tokens
    policy.net.read_with(Team(1))

    def wrong(team: Team, seen: torch.Tensor, packed: Packed) -> torch.Tensor:
        return (1.1 if live == torch.is_grad_enabled() else 1.0) * right(team, seen, packed)

    monkeypatch.setattr(Team, "share_tokens", wrong)
    message = message_of(policy, PRESETS["dr_grpo"].with_length(6), prompts()[:1], Fault(PIECES))
    assert f"Likely cause: {PIECES} (" in message and "Leave policy.context out" in message, message


def test_processes_heads_and_models_that_do_not_fit_are_refused(tiny: Callable[[str], str]):
    with pytest.raises(ValueError, match=r"the processes of the run are 3: start a multiple of 2 .*cluster.trainers = 2"):
        refuse_rest(2, 3)
    with pytest.raises(ValueError, match=r"policy.context is 3, which does not divide the 4 heads of attention"):
        TextDryRun(TextPolicyConfig(tiny("qwen3_vl"), context=3))
