"""Two processes are one, replicated (DDP) and sharded (FSDP2), and so is another device: the same numbers, weights and files."""

import math
import shutil
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from safetensors.torch import load_file

from mmrl.app.commands import train as jobs
from mmrl.app.export.export import export
from mmrl.app.run.folder import RunDir
from mmrl.training.checkpoints.save import Checkpoints
from tests.processes.cases import BREADTH, CASES, ON_CARD, SAMPLERS, WRITERS
from tests.processes.run_cases import Ran, distance, run_alone, trained
from tests.support.each import for_each
from tests.support.launcher import KINDS, Kind, both, forked, results

pytestmark = pytest.mark.slow
COMPARED = ("text", "flow", "unseeing", "probes", "team")
REPLICAS = ("episodes", "sampled", "sampled_twice")
"""Sharded weights have no environment and no samplers, and say so."""
ONCE = ("probes", "dynamic", "bandit")
"""How processes share rows, planners and samplers has nothing to do with where weights lie: sharded, these are evidence."""
REST = {
    *(("sharded", case) for case in ONCE),
    *((kind, "text_adamw") for kind in KINDS),  # runs that are continued take AdamW
    *(("replicated", case) for case in ("sampled_twice", "half")),  # it is sharding that minds weights of two types
}
"""What is evidence."""


def kinds_of(case: str) -> list[Any]:
    """Parameters of a test."""
    return [pytest.param(kind, marks=pytest.mark.evidence if (kind, case) in REST else ()) for kind in KINDS]


class Several(Protocol):
    """What two processes of a kind left of a case, and of those that were launched with it."""

    def __call__(self, kind: Kind, case: str = "text") -> Ran: ...


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    others = ("dynamic", "half", "sampled", "sampled_twice", "text_adamw")
    return run_alone(tmp_path_factory.mktemp("one"), [case for case in [*CASES, *SAMPLERS] if case not in others])


@pytest.fixture(scope="module")
def several(alone: Ran, tmp_path_factory: pytest.TempPathFactory) -> Several:
    """Kind and case -> what two processes left; two launches for all, the second for what is evidence."""
    folder, module = tmp_path_factory.mktemp("two"), "tests.processes.run_cases"

    @cache
    def launched(rest: bool) -> dict[Kind, Ran]:
        place = folder / str(rest)
        for kind in KINDS:
            for begun in ("short", "bandit_short"):
                shutil.copytree(alone.folder / begun, place / kind / f"begun_{begun}")
        pairs = [(kind, case) for kind in KINDS for case in (*CASES, "bandit") if kind == "replicated" or case not in REPLICAS]
        words = {"long": ["long=begun_short"], "bandit": ["bandit", "bandit=begun_bandit_short"]}
        asked = [f"{kind}:{word}" for kind, case in pairs if ((kind, case) in REST) == rest for word in words.get(case, [case])]
        return {kind: Ran(place / kind, seen) for kind, seen in both(module, place, *asked).items()}

    return lambda kind, case="text": launched((kind, case) in REST)[kind]


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, marks=pytest.mark.evidence if (kind, case) in REST else ())
        for kind in KINDS
        for case in (*COMPARED, *(("episodes",) if kind == "replicated" else ()))
    ],
)
def test_two_processes_equal_one(alone: Ran, several: Several, kind: Kind, case: str):
    two = several(kind, case)
    assert [rank[case].get("shard") for rank in two.ranks] == ([0.5, 0.5] if kind == "sharded" else [None, None])
    assert distance(alone.weights(case), alone.weights(case, "before")) > 1e-3
    torch.testing.assert_close(two.rows(case), alone.rows(case), atol=0, rtol=0, equal_nan=True)
    assert all(0 < len(rows) < 16 for rank in two.ranks for rows in rank[case]["steps"])
    assert distance(two.weights(case), alone.weights(case)) < 1e-5
    for a, b in zip(alone.metrics(case), two.metrics(case), strict=True):
        assert b == {name: pytest.approx(x, abs=2e-5, rel=1e-4, nan_ok=True) for name, x in a.items()}
        assert case != "episodes" or a["rollout/kept_tokens"] > 0.2, "each turn reads what came since the last one"


@pytest.mark.parametrize("case", ["sampled", pytest.param("sampled_twice", marks=pytest.mark.evidence)])
def test_samplers_of_each_trainer_draw_what_it_would(several: Several, case: str):
    """Batches of other sizes round otherwise: a chunk at a time is drawn, as by the samplers of one trainer."""
    two, drawn = several("replicated", case), several("replicated", "flow")
    assert distance(two.weights(case), drawn.weights("flow")) < 1e-6
    torch.testing.assert_close(two.rows(case), drawn.rows("flow"), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("kind", kinds_of("text_adamw"))
def test_adamw_differs_by_less_than_a_hundredth_of_what_it_moves(several: Several, kind: Kind, tmp_path: Path):
    """Measured: 1.5e-6 of 5.0e-3 after five steps of lr 1e-3 in float32."""
    one, two = run_alone(tmp_path, ["text_adamw"]), several(kind, "text_adamw")
    moved = distance(one.weights("text_adamw"), one.weights("text_adamw", "before"))
    assert distance(two.weights("text_adamw"), one.weights("text_adamw")) < moved / 100


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_spread_are_not_sampled_ahead(several: Several, kind: Kind):
    spread = "FSDP or DeepSpeed spreads the weights over the run's 2 processes: start it with configs/accelerate/ddp.yaml"
    for rank in several(kind).ranks:
        assert (spread in rank["text"]["lag"]) == (kind == "sharded")


@pytest.mark.parametrize("kind", kinds_of("dynamic"))
def test_a_process_without_any_informative_group_keeps_up(several: Several, kind: Kind):
    first, second = (rank["dynamic"] for rank in several(kind, "dynamic").ranks)
    assert any(not a or not b for a, b in zip(first["steps"], second["steps"], strict=True))
    assert distance(first["weights"], second["weights"]) == 0
    assert distance(first["weights"], first["before"]) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_is_saved_and_exported_whole(alone: Ran, several: Several, kind: Kind, tmp_path: Path):
    two, name = several(kind), "adapter_model.safetensors"
    one = load_file(alone.folder / "lora" / "saved" / name)
    assert distance(load_file(two.folder / "lora" / "saved" / name), one) < 1e-5
    assert distance(load_file(export(two.folder / "lora", tmp_path / "out") / name), one) < 1e-5
    assert max(float(x.abs().max()) for key, x in one.items() if "lora_B" in key) > 1e-4


@pytest.mark.parametrize("kind", kinds_of("half"))
def test_bfloat16_weights_with_float32_adapters_train(several: Several, kind: Kind):
    two = several(kind, "half")
    after, before = two.weights("half"), two.weights("half", "before")
    assert {x.dtype for x in after.values()} == {torch.float32}
    assert distance(after, before) > 1e-4 and all(bool(x.isfinite().all()) for x in after.values())
    assert all(math.isfinite(line["policy/grad_norm"]) and line["policy/grad_norm"] > 0 for line in two.metrics("half"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_one_process_is_continued_by_two(alone: Ran, several: Several, kind: Kind):
    two = several(kind)
    torch.testing.assert_close(two.rows("long"), alone.rows("long")[2:], atol=0, rtol=0)
    assert distance(two.weights("long"), alone.weights("long")) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_two_processes_is_continued_by_one(
    alone: Ran, several: Several, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobs, "announce", lambda run: None)
    shutil.copytree(several(kind).folder / "short", tmp_path / "begun")
    resumed = Ran(tmp_path, [{"long": trained("long", tmp_path / "long", tmp_path / "begun")}])
    torch.testing.assert_close(resumed.rows("long"), alone.rows("long")[2:], atol=0, rtol=0)
    assert distance(resumed.weights("long"), alone.weights("long")) < 1e-5


@pytest.mark.evidence
@pytest.mark.parametrize("kind", KINDS)
def test_four_processes_that_read_rows_in_pairs_equal_one(alone: Ran, kind: Kind, tmp_path: Path):
    many = Ran(tmp_path, results("tests.processes.run_cases", kind, tmp_path, "pairs", processes=4))
    torch.testing.assert_close(many.rows("pairs"), alone.rows("team"), atol=0, rtol=0)
    assert distance(many.weights("pairs"), alone.weights("team")) < 1e-5
    for a, b in zip(alone.metrics("team"), many.metrics("pairs"), strict=True):
        assert b == {name: pytest.approx(x, abs=2e-5, rel=1e-4, nan_ok=True) for name, x in a.items()}


@pytest.mark.evidence
def test_a_run_goes_on_with_rows_that_are_read_together_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one = run_alone(tmp_path / "one", ["team_short", "team_lora"])
    shutil.copytree(tmp_path / "one" / "team_short", tmp_path / "two" / "begun")
    words = "team_short", "team_lora=begun"
    two = Ran(tmp_path / "two", results("tests.processes.run_cases", "replicated", tmp_path / "two", *words))
    monkeypatch.setattr(jobs, "announce", lambda run: None)
    alone = Ran(tmp_path, [{"team_lora": trained("team_lora", tmp_path / "team_lora", tmp_path / "two" / "team_short")}])
    for resumed in (two, alone):
        torch.testing.assert_close(resumed.rows("team_lora"), one.rows("team_lora")[2:], atol=0, rtol=0)
        assert distance(resumed.weights("team_lora"), one.weights("team_lora")) < 1e-5


@pytest.mark.evidence
@pytest.mark.parametrize("cases", [BREADTH, WRITERS], ids=["methods whose rows are read together", "what is drawn for a writer"])
def test_two_processes_equal_one_in_breadth(cases: dict[str, list[str]], tmp_path: Path):
    one = run_alone(tmp_path / "one", cases)
    two = Ran(tmp_path / "two", results("tests.processes.run_cases", "replicated", tmp_path / "two", *cases))
    for case in cases:
        torch.testing.assert_close(two.rows(case), one.rows(case), atol=0, rtol=0, equal_nan=True)
        assert distance(two.weights(case), one.weights(case)) < 1e-5


def memory(run: Path, step: int) -> dict[str, Any]:
    """The sampler's own part of a checkpoint."""
    return Checkpoints(RunDir.open(run).checkpoints).load(step)["sampler"]


@pytest.mark.parametrize("kind", kinds_of("bandit"))
def test_a_sampler_that_learns_draws_and_remembers_as_in_one_process(alone: Ran, several: Several, kind: Kind):
    states, two = [memory(alone.folder / "bandit", step) for step in range(1, 5)], several(kind, "bandit").folder
    assert [memory(two / "bandit", step) for step in range(1, 5)] == states
    assert states[0]["memory"] != states[-1]["memory"], "it has learned something"
    assert memory(two / "begun_bandit_short", 4) == states[-1], "a run of one process goes on in two"


TABLE = Path(__file__).with_name("looks.toml")


@pytest.fixture(scope="module")
def on_card(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """What one process leaves of all cases, on either device."""
    out = tmp_path_factory.mktemp("card")
    words = [f"{case}=image" if case == "resumed" else case for case in ON_CARD]
    done = forked("tests.processes.run_on_card", out, *words, processes=1, MMRL_CACHE=str(cache))
    assert done.returncode == 0, done.stderr[-4000:]
    return out


@for_each("case", ON_CARD)
def test_a_step_on_another_device_gives_the_same_numbers(on_card: Path, case: str):
    ours, theirs = (torch.load(on_card / device / f"{case}.pt", weights_only=True) for device in ("cpu", "card"))
    assert len(ours["steps"]) == len(theirs["steps"]) > 0
    for a, b in zip(ours["steps"], theirs["steps"], strict=True):
        torch.testing.assert_close(b, a, atol=0, rtol=0, equal_nan=True)
    moved, gap = distance(theirs["weights"], theirs["before"]), distance(theirs["weights"], ours["weights"])
    assert moved > 1e-5
    assert gap < min(1e-4, moved / 10), f"weights moved by {moved:.1e} and differ by {gap:.1e}"


@for_each("case", ON_CARD)
def test_the_host_waits_no_more_than_it_did(on_card: Path, case: str):
    known, found = (tomllib.loads(path.read_text())[case] for path in (TABLE, on_card / "looks.toml"))
    more = [
        f"{place} {known[kind].get(place, 0)} -> {n}"
        for kind in found
        for place, n in found[kind].items()
        if n > known[kind].get(place, 0)
    ]
    gone = [place for kind in known for place in known[kind] if place not in found[kind]]
    assert not more, f"the host waits for the card more often: {'; '.join(more)}"
    assert not gone, f"the host waits no more at {'; '.join(gone)}: take {on_card / 'looks.toml'} as {TABLE.name}"
