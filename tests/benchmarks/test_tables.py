"""Tables of docs/measurements.md: who writes them, where they stand, and the figures that stand in them."""

import json
from functools import partial
from pathlib import Path

import pytest

SIDE = """
import json, sys
side = sys.argv[sys.argv.index("--side") + 1]
open(sys.argv[-1], "a").write(side)
if side == "broken":
    sys.exit("nothing works")
print("a line of chatter")
print(json.dumps({"side": side}))
"""


@pytest.fixture
def sides(script, tmp_path):
    """benchmarks/sides.py, a script to compare, and a file with the letters of the sides in the order they ran."""
    file = tmp_path / "side.py"
    file.write_text(SIDE)
    return script("sides"), str(file), tmp_path / "order"


def test_sides_take_turns_and_one_that_fails_says_why(sides):
    module, file, order = sides
    found = module.take_turns(file, ["a", "b"], [str(order)], rounds=2)
    assert order.read_text() == "abab"
    assert found == {"a": [{"side": "a"}] * 2, "b": [{"side": "b"}] * 2}
    for compare in (partial(module.take_turns, rounds=1), module.side_by_side):
        with pytest.raises(SystemExit, match="broken failed:\nnothing works"):
            compare(file, ["a", "broken"], [str(order)])


def test_the_slope_is_the_power_or_what_one_more_sample_costs(script):
    slope = script("sides").slope
    xs = [1.0, 2.0, 4.0, 8.0]
    assert slope(xs, [3 * x**1.5 for x in xs]) == pytest.approx(1.5)
    assert slope(xs, [7.0] * 4) == pytest.approx(0.0)
    seconds = {(100, g, 32): 1.0 + 0.25 * g for g in (2, 4, 16)}
    assert script("vlm_scaling").per_sample(seconds, 100, [2, 4, 16], 32) == pytest.approx(0.25)


def test_a_table_replaces_its_own_place_only(script):
    tables = script("write_tables")
    page = "a\n<!-- table x -->\nold\n<!-- /table -->\nb\n<!-- table y -->\nkept\n<!-- /table -->\nc\n"
    written = tables.place(page, "x", "| new |\n")
    assert written == page.replace("old", "| new |")
    assert tables.place(written, "x", "| new |\n") == written
    with pytest.raises(ValueError, match="has 0 places for the table 'z': write `<!-- table z -->`"):
        tables.place(page, "z", "")
    with pytest.raises(ValueError, match="has 2 places"):
        tables.place(page + page, "x", "")


def test_tables_are_taken_out_of_chatter(script):
    said = "Loading\n| a |\n|---|\n| 1 |\nwarning\n\n| b |\n|---|\nend\n"
    assert script("write_tables").tables_in(said) == "| a |\n|---|\n| 1 |\n\n| b |\n|---|"


def test_a_script_without_a_table_fails(script, tmp_path, monkeypatch):
    tables = script("write_tables")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "silent.py").write_text("print('no table')")
    with pytest.raises(RuntimeError, match=r"silent\.py: exit status 0"):
        tables.measure("silent", tables.Table("silent.py", 0))
    (tmp_path / "benchmarks" / "good.py").write_text("print('chatter\\n| a |\\n|---|\\n| 1 |')")
    head, table = tables.measure("good", tables.Table("good.py --fast", 0)).split("\n\n")
    assert head.startswith("`python benchmarks/good.py --fast` (") and table == "| a |\n|---|\n| 1 |"


def test_the_page_has_one_place_per_table_and_no_other(script):
    tables = script("write_tables")
    places = [match["name"] for match in tables.MARKS.finditer(tables.PAGE.read_text())]
    assert sorted(places) == sorted([*tables.TABLES, "gpu"])
    assert sum(table.minutes for table in tables.TABLES.values() if table.by_default) <= 28, "minutes"


def test_a_card_s_table_goes_into_the_page(script, tmp_path):
    tables = script("write_tables")
    with pytest.raises(SystemExit, match=r"holds no gpu\.md: run python benchmarks/gpu\.py"):
        tables.gpu_table(tmp_path)
    (tmp_path / "gpu.md").write_text("| a |\n")
    assert tables.gpu_table(tmp_path) == "| a |\n"


def test_a_row_of_two_sides(script):
    step = script("vlm_step")

    def runs(*seconds: float, peak: float) -> list[dict]:
        return [
            {"seconds": [s], "split": {"update": [s / 2]}, "peak_mib": peak + i, "tokens": 512, "prompt_tokens": 885}
            for i, s in enumerate(seconds)
        ]

    case = {"length": 900, "checkpointing": "on", "sides": {"trl": runs(6.0, 8.0, 100.0, peak=10), "mmrl": runs(2.0, peak=7)}}
    cells = step.row(case)
    assert cells == ["885, on", "8.00", "2.00", "**4.00**", "3.0", "4.00", "1.00", "4.00", "12", "7", "512 / 512"]
    assert len(cells) == len(step.HEAD)


def test_figures_are_kept_with_the_machine(script, tmp_path):
    sides = script("sides")
    file: Path = tmp_path / "a" / "b.json"
    sides.write_json(file, {"x": 1})
    kept = json.loads(file.read_text())
    assert kept["x"] == 1 and "torch" in kept["machine"]
    sides.write_json(None, {"x": 1})


def test_a_machine_without_an_engine_says_so(script, tmp_path, monkeypatch, capsys):
    engine = script("engine_step")
    monkeypatch.setattr("sys.argv", ["engine_step.py", "--environment", str(tmp_path / "mine")])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    engine.main()
    said = script("write_tables").tables_in(capsys.readouterr().out)
    assert "| not measured: there is no environment of vLLM in mine: run `mmrl engine install`, or name" in said
    assert str(tmp_path) not in said


def test_rows_of_the_engine(script):
    engine = script("engine_step")
    way = {"ms": [30.0, 10.0, 20.0], "mib": 20.04, "gap": 3e-6, "missed": 0.2}
    found = {
        "tokens_per_s": {"mmrl": {32: [100.0, 300.0, 200.0]}, "vllm": {32: [40.0, 60.0, 50.0]}},
        "gap": {"mmrl": 1e-6, "vllm": 2e-6},
        "start_s": 25.4,
        "file": way,
        "lora": way,
    }
    speeds, weights = (table.splitlines()[2:] for table in engine.tables(found).split("\n\n"))
    assert speeds == ["| 32 | 200 | 100 - 300 | 50 | 40 - 60 | 0.25 |"]
    assert weights[1] == "| vLLM, the weights it starts with (25 s) |  |  |  | 2e-06 |  |"
    assert weights[2] == "| vLLM, all weights by a file | 20.0 | 20 | 10 - 30 | 3e-06 | 2e-01 |"


def test_an_arena_becomes_a_table_with_its_command(script):
    rows = [
        {"method": "rloo", "place": 1, "mean": 0.51234, "half_width": 0.02, "steps": 31, "failures": []},
        {"method": "grpo", "place": 2, "mean": 0.4, "half_width": None, "steps": 20, "failures": []},
        {"method": "papo", "place": 0, "mean": None, "half_width": None, "steps": None, "failures": ["no eyes: leave it out"]},
    ]
    arena = {"task": "video", "budget_s": 15.0, "seeds": [0, 1], "start": 0.25, "rows": rows}
    lines = script("arena_tables").table_of(arena, {"overrides": ["data.size=64"]}).splitlines()
    assert lines[0].startswith(
        "`mmrl arena --task video --methods ... --budget-seconds 15 --seeds 0,1 data.size=64`, 3 methods, start 0.250"
    )
    assert lines[4:] == ["| 1 | rloo 0.512±0.020 (31) |", "| 2 | grpo 0.400 (20) |", "", "Refused or failed: papo."]
