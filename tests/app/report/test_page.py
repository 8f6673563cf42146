import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app.commands import train
from mmrl.app.config import run as configs
from mmrl.app.report.charts import (
    LEFT,
    RIGHT,
    WIDTH,
    Series,
    coarse_series,
    decimals,
    histogram,
    line_chart,
    moving_average,
    tick_text,
    ticks,
)
from mmrl.app.report.data import EVAL, RunData, changes, extremes, load, regressions, stages_taken
from mmrl.app.report.figures import bootstrap
from mmrl.app.report.page import write_report
from mmrl.app.report.rows import SampleLine
from mmrl.app.report.words import number
from mmrl.app.run.folder import RunDir
from mmrl.app.run.resume import choices, write_choices
from mmrl.app.run.trackers import JsonlTracker
from mmrl.core.types import Group, MediaSize, Prompt, Sample, Scores
from mmrl.training.callbacks import Examples
from tests.support.runs import evaluated, write_run

OUTSIDE = re.compile(
    r"""(?:src|href|action|srcset|poster)\s*=\s*["']?\s*(?!data:)[^"'\s>]+|url\(|@import|<link|<iframe""", re.IGNORECASE
)


def page_of(run: RunDir) -> str:
    return write_report(run.path).read_text(encoding="utf-8")


def row(
    text: str, truth: list[list[float | None]], /, size: tuple[int, int, int, int] = (200, 100, 100, 50), **line: object
) -> SampleLine:
    """A samples line about a picture of 200 x 100 pixels that the model saw at half size."""
    values = {"prompt": "p", "completion": text, "total": 1.0, "answer_boxes": truth, "media": [], "media_sizes": [list(size)]}
    return SampleLine({**values, "scores": {}, "status": {}, **line}, "norm1000")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run with boxes."""
    return page_of(write_run(tmp_path_factory.mktemp("page") / "run"))


def test_a_report_is_one_file_with_nothing_loaded_from_elsewhere_and_what_the_model_wrote_stays_text(page: str) -> None:
    assert "<script>alert" not in page
    assert "I see &lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; nothing else" in page
    assert OUTSIDE.findall(page) == []
    assert page.count('src="data:image/png;base64,') >= 24
    script = page.partition("<script>")[2].partition("</script>")[0]
    assert "showModal" in script and "dialog.zoom" in page, "every picture can be enlarged"


def test_prompts_names_labels_warnings_and_settings_are_escaped_too(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    run.config_file.write_text('title = "<b>setting</b>"\n')
    evil = "<img src=x onerror=1>"
    box = Box(1, 1, 5, 5, label=evil)
    group = Group(0, Prompt(evil, evil, answer=box), (Sample(text="[1,1,5,5]", media_sizes=(MediaSize(9, 9, 9, 9),)),))
    scores = Scores((evil, "b"), torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.long), torch.ones(2))
    for step in (0, 1):
        JsonlTracker(run, "pixel").write(step, Examples([group], scores), "eval")
        run.append(step, {f"eval/{evil}": 1.0, f"reward/{evil}": 1.0})
    run.warnings_file.write_text(json.dumps({"step": 1, "level": "warning", "text": evil}) + "\n")
    page = page_of(run)
    assert "<img src=x" not in page and "<b>setting" not in page
    assert page.count("&lt;img src=x onerror=1&gt;") >= 4


@pytest.mark.parametrize("kind", ["boxes", "text", "images"])
def test_every_kind_of_run_shows_its_pairs(tmp_path: Path, kind: str) -> None:
    assert "evaluated once only" in page_of(write_run(tmp_path / "none", kind=kind, steps=0))
    page = page_of(write_run(tmp_path / "run", steps=2, kind=kind, num_prompts=5))
    assert page.count("data-direction=") == 5
    assert ("Mean IoU" in page) == (kind == "boxes")
    assert ("<img" in page) == (kind != "text")


def test_a_run_that_stopped_early_says_so_and_names_the_torn_line(tmp_path: Path) -> None:
    """Before its first step, too, or where nothing was evaluated."""
    run = RunDir.create(tmp_path / "died")
    run.config_file.write_text("steps = 7\n")
    page = page_of(run)
    assert "No step was finished" in page and "<b>0 of 7</b> steps" in page
    run = write_run(tmp_path / "run", steps=1, evaluate=False)
    page = page_of(run)
    assert "Held-out prompts were not evaluated" in page and "Reward in training" in page and "Best and worst" in page
    run.config_file.write_text(run.config_file.read_text().replace("steps = 1", "steps = 90"))
    with run.metrics_file.open("a") as file:
        file.write('{"step": 2, "reward/to')
    page = page_of(run)
    assert "stopped after 1 of 90 steps" in page and "torn" in page


def test_boxes_are_drawn_in_percent_of_the_picture(tmp_path: Path) -> None:
    prompt = Prompt("p", "?", (Image.new("RGB", (200, 100)),), Box(20, 20, 100, 80))
    sample = Sample(text="<answer>[100, 200, 500, 800]</answer>", media_sizes=(MediaSize(200, 100, 100, 50),))
    run = evaluated(RunDir.create(tmp_path / "run"), prompt, {0: [sample], 1: [sample]}, "norm1000")
    page = page_of(run)
    # 100..500 of 1000 are 20..100 of 200 pixels, 200..800 are 20..80 of 100
    place = 'x="20.000" y="20.000" width="80.000" height="60.000"'
    assert page.count('<svg viewBox="0 0 200 100"') == 3
    assert page.count(f'<rect class="truth" {place}') == page.count(f'<rect class="predicted" {place}') == 3
    assert changes(load(run.path))[0].after == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[0, 0, 500, 1000]", 1.0),
        ("[0, 0, 250, 1000]", 0.5),
        ("[0, 0, 500, 1000] [600, 0, 700, 100]", 0.5),
        ("[0, 0, 500, 1000] [0, 0, 500, 1000]", 1.0),
        ("[0, 0, 500, 1001]", 0.0),
        ("I do not know", 0.0),
    ],
    ids=["exact", "half", "one surplus box", "said twice", "beyond the picture", "no box"],
)
def test_iou_of_a_completion(text: str, expected: float) -> None:
    assert row(text, [[0, 0, 100, 100, None]]).iou == pytest.approx(expected)


def test_iou_matches_boxes_to_truths_and_is_unknown_without_truth_size_or_space() -> None:
    truth: list[list[Any]] = [[0, 0, 100, 100, "a"], [100, 0, 200, 100, "b"], [0, 0, 10, 10, None]]
    assert row("[500, 0, 1000, 1000] [0, 0, 500, 1000]", truth).iou == pytest.approx(2 / 3), "one is missing"
    unsized = SampleLine({**row("[0,0,500,1000]", truth).line, "media_sizes": []}, "norm1000")
    assert math.isnan(row("[0, 0, 1, 1]", []).iou) and math.isnan(unsized.iou)
    assert math.isnan(SampleLine(row("[0, 0, 1, 1]", truth).line, None).iou)


def test_headline_averages_samples_of_a_prompt_and_pairs_prompts(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    # totals by prompt; "c" failed before and "d" was evaluated once, so both leave every figure
    written = {0: {"a": [0.0, 1.0], "b": [0.2], "c": [None], "d": [9.0]}, 5: {"a": [1.0, 1.0], "b": [0.6], "c": [5.0]}}
    for step, prompts in written.items():
        lines = [
            {**row("", []).line, "step": step, "text": "", "box_space": None, "prompt": p, "total": t, "scores": {"r": t}}
            for p, totals in prompts.items()
            for t in totals
        ]
        run.samples_file(EVAL, step).write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.metrics_file.touch()
    (change,) = changes(load(run.path))
    assert (change.name, change.num_prompts) == ("Reward", 2)
    assert change.before == pytest.approx((0.5 + 0.2) / 2) and change.after == pytest.approx((1.0 + 0.6) / 2)


def test_bootstrap_interval_has_the_width_of_the_standard_error_and_is_a_point_where_nothing_differs() -> None:
    assert bootstrap(torch.full((9,), 0.25).numpy()) == (0.25, 0.25)
    differences = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    low, high = bootstrap(differences.numpy())
    error = float(differences.std()) / 20
    assert low == pytest.approx(float(differences.mean()) - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(float(differences.mean()) + 1.96 * error, abs=0.15 * error)


def test_extremes_are_one_per_prompt_and_never_the_same_sample(tmp_path: Path) -> None:
    data = load(write_run(tmp_path / "run", evaluate=False).path)
    best, worst = extremes(data, 4)
    totals = [r.total for r in data.last_train]
    assert best[0].total == max(totals) and worst[0].total == min(totals)
    assert len({row.prompt for row in best}) == 4 and not {id(r) for r in best} & {id(r) for r in worst}


def curve(values: Sequence[float], first: float = 0.0) -> str:
    """A chart of one value per step."""
    steps = [first + i for i in range(len(values))]
    return str(line_chart([Series("x", steps, list(values), "train")], "x"))


def test_chart_leaves_gaps_where_a_value_is_missing() -> None:
    chart = curve([1.0, 2.0, math.nan, 2.0, math.inf])
    assert chart.count("<polyline") == 2 and chart.count("<circle") == 3
    assert "No finite value" in curve([math.nan])
    drawn = curve([math.nan, 0.25, math.nan, *[0.1] * 20, math.nan, 0.0])
    assert re.findall(r'class="dot train" r="3".*?step (\d+)', drawn) == ["1", "24"], "seen between gaps of a long curve"


def test_the_name_of_the_axis_leaves_room_for_the_first_step() -> None:
    drawn = curve([0.0, 1.0], 1200.0)
    name, first = (float(re.findall(rf'x="([\d.]+)" y="202.0" text-anchor="\w+">{text}<', drawn)[0]) for text in ("step", "1200"))
    assert name + 3 <= first - 4 * 7 / 2


def test_histogram_draws_shares_of_each_group_and_names_on_charts_are_escaped() -> None:
    assert "<b>" not in line_chart([Series("<b>", [0.0], [1.0], "train")], "<b>")
    assert "<b>" not in histogram([("<b>", [1.0], "a")], "<b>")
    chart = histogram([("first", [0.1] * 3 + [0.9], "a"), ("last", [0.9], "b"), ("none", [], "b")], "r")
    assert "first: 75 % between" in chart and "first: 25 % between" in chart and "last: 100 % between" in chart


@pytest.mark.parametrize(
    ("low", "high", "wanted", "expected"),
    [
        (0.0, 1.0, 5, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (0.31, 0.79, 5, [0.2, 0.4, 0.6, 0.8]),
        (-3.0, 190.0, 5, [-50.0, 0.0, 50.0, 100.0, 150.0, 200.0]),
        (5.0, 5.0, 3, [4.5, 5.0, 5.5]),
        (0.0, 0.0, 5, [0.0, 0.25, 0.5, 0.75, 1.0]),
    ],
    ids=["unit", "inside", "negative", "a point", "zeros"],
)
def test_ticks_are_round_and_enclose(low: float, high: float, wanted: int, expected: list[float]) -> None:
    assert ticks(low, high, wanted) == pytest.approx(expected)


def test_axes_have_room_and_shares_do_not_pass_one():
    texts = [tick_text(value, decimals([0.0, 2e-5])) for value in (0.0, 2e-5, -7.5e-6)]
    assert texts == ["0", "2e\N{MINUS SIGN}5", "\N{MINUS SIGN}7.5e\N{MINUS SIGN}6"]
    assert max(ticks(1.0, 1.0, 5)) == 1.0 and max(ticks(0.5, 0.5, 5)) > 0.5
    few, many = (line_chart([Series("held out", [*range(n)], [0.0] * n, "eval", True, [(-0.1, 0.1)] * n)], "x") for n in (12, 13))
    assert (few.count('<line class="ci'), many.count('<line class="ci')) == (12, 0) and "polygon" in many
    assert [decimals(t) for t in ([0.0, 0.25, 0.5], [0.0, 5.0, 10.0], [0.0, 0.002], [7.0])] == [2, 0, 3, 0]


def test_long_curves_become_means_of_neighbours() -> None:
    short = coarse_series(Series("x", [float(i) for i in range(601)], [float(i) for i in range(601)], "train"))
    assert short.values[:2] == [1.0, 4.0] and short.steps[:2] == [0, 3] and short.name == "x, mean of 3 steps"
    assert moving_average([1.0, math.nan, 3.0, 8.0], 3) == [1.0, 2.0, 5.5, 5.5]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.123"),
        (-2.0, "\N{MINUS SIGN}2.000"),
        (17.04, "17.0"),
        (4321.4, "4321"),
        (2e-4, "2.0e\N{MINUS SIGN}4"),
        (0.0, "0.000"),
        (math.nan, "\N{EN DASH}"),
    ],
)
def test_numbers_are_written_briefly(value: float, text: str) -> None:
    assert number(value) == text


def test_an_axis_does_not_zoom_into_noise() -> None:
    still, moved = (heights(curve(values)) for values in ([1 + 1e-6 * (i % 2) for i in range(8)], [0.5, 0.6, 0.7]))
    assert max(still) - min(still) < 1, "a millionth of the value is no movement"
    assert max(moved) - min(moved) > 100


def heights(chart: str) -> list[float]:
    return [float(y) for y in re.findall(r'cy="(-?[\d.]+)"', chart)]


TINY = [
    *([1e-13, 2e-13, 3e-13], [5e-324, 1e-310, 0.0], [-1e-300, 1e-300], [1.0, 1.0 + 2**-52], [1e16, 1e16 + 2], [1e308, -1e308]),
    *([math.inf, 1e-17], [0.0, 0.0], [-3e-9]),
]


@pytest.mark.parametrize("values", TINY, ids=str)
def test_any_numbers_can_be_drawn(values: list[float]) -> None:
    text = curve(values) + str(histogram([("x", values, "a")], "x"))
    assert "nan" not in text and "inf" not in text.replace("finite", "")
    assert all(0 <= y <= 210 for y in heights(text))


@pytest.mark.parametrize(
    ("low", "high"), [(1e-13, 3e-13), (1e-280, 2e-280), (1e12, 1e12 + 5000), (-2e-20, 5e-20), (1.0, 1.0 + 2**-52)]
)
def test_ticks_of_any_size_differ_and_enclose(low: float, high: float) -> None:
    found = ticks(low, high, 5)
    assert 2 <= len(set(found)) == len(found) <= 12
    assert found[0] <= low and high <= found[-1]


@pytest.mark.parametrize(("num_prompts", "said"), [(9, False), (10, True)])
def test_nothing_is_said_of_fewer_than_ten_prompts(tmp_path: Path, num_prompts: int, said: bool) -> None:
    """Neither a verdict nor an interval, and held-out curves have no bands."""
    run = write_run(tmp_path / "run", num_prompts=num_prompts)
    page = page_of(run)
    assert (re.search(r"95 % interval( of the change:)? [+\u2212]", page) is not None) == said
    assert ("Too few prompts (9) to say whether anything changed" in page) is not said
    assert (re.search(r"\b(rose|fell|No clear change)\b", page) is not None) == said
    assert all(change.has_interval == said for change in changes(load(run.path)))
    has_bands = page.count('<polygon class="ci eval"') >= 2 and "band: 95 % interval" in page
    assert has_bands == said == ('<polygon class="ci' in page)


def test_a_report_of_pictures_has_the_words_of_pictures(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "pictures", kind="images"))
    assert "Trained steps per sample" in page and "after on the right" in page and "unparsed</th>" not in page
    assert not re.search(r"[Tt]oken|[Cc]ompletion|Surprise", page.partition("Resolved configuration")[0].partition("<header>")[2])
    assert "Tokens per completion" in page_of(write_run(tmp_path / "text", kind="text"))


@pytest.mark.parametrize("part", ["commands.train.load_run", "report.page.write_report"])
def test_a_fault_of_the_report_never_fails_a_trained_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    run = write_run(tmp_path / "run", steps=2)

    def broken(_: object) -> None:
        raise ZeroDivisionError("float division by zero " + "x" * 10_000)

    monkeypatch.setattr(f"mmrl.app.{part}", broken)
    train.announce(run)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("no report: ZeroDivisionError: float division by zero")
    assert warning.endswith(f"mmrl report {run.path} tries again")
    assert len(warning) < 1000


def test_a_band_is_an_area_and_a_bar_at_each_step() -> None:
    one = Series("x", [0.0, 1.0, 2.0], [0.5, 0.6, 0.7], "eval", True, [(0.4, 0.6), (0.5, 0.7), (math.nan, math.nan)])
    text = str(line_chart([one], "x"))
    (corners,) = re.findall(r'<polygon class="ci eval" points="([^"]*)"', text)
    assert len(corners.split()) == 4 and text.count('<line class="ci eval"') == 2
    lowest, highest = (min if i else max for i in (0, 1))
    heights = [float(pair.split(",")[1]) for pair in corners.split()]
    assert lowest(heights) <= 184 and highest(heights) >= 10, "the axis holds the ends of the intervals"


def run_of_totals(folder: Path, totals: dict[int, list[float]], parts: dict[int, list[float]]) -> RunDir:
    """Held-out prompts p0, p1, ... with these totals and shares of unread answers by step."""
    run = RunDir.create(folder)
    run.config_file.write_text("[evaluation]\nby = ['level']\n")
    for step, values in totals.items():
        lines = [
            {**row("said", []).line, "step": step, "split": "eval", "text": f"question {i}", "box_space": None, "prompt": f"p{i}"}
            | {"total": value, "scores": {"r": value}, "status": {"r": "ok"}, "answer": None, "image": None, "video": None}
            | {"parts": {"r/unparsed": parts[step][i]}, "columns": {"level": "easy" if i % 2 else "hard"}}
            | {"truncated": False, "role": "policy"}
            for i, value in enumerate(values)
        ]
        run.samples_file(EVAL, step).write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.metrics_file.touch()
    return run


def test_what_got_worse_comes_first_worst_first(tmp_path: Path) -> None:
    totals = {0: [0.5, 0.9, 0.5, 0.6], 4: [0.9, 0.1, 0.495, 0.3]}
    run = run_of_totals(tmp_path / "run", totals, {0: [1.0] * 4, 4: [0.0] * 4})
    assert [before.prompt for before, _ in regressions(load(run.path))] == ["p1", "p3"], "a change below 0.01 is none"
    page = page_of(run)
    worse = page.partition('<section id="regressions">')[2].partition("</section>")[0]
    assert worse.index("question 1") < worse.index("question 3") and "question 0" not in worse
    assert page.index('id="regressions"') < page.index('id="gallery"')


def test_the_share_of_unread_answers_stands_beside_the_mean_and_kinds_have_tables(tmp_path: Path) -> None:
    run = run_of_totals(tmp_path / "run", {0: [0.5] * 4, 4: [0.6] * 4}, {0: [1.0] * 4, 4: [1.0, 0.0, 0.0, 0.0]})
    page = page_of(run)
    assert re.search(r"unparsed: 100 % → <b>25 %</b>", page)
    kinds = page.partition('<section id="kinds">')[2].partition("</section>")[0]
    assert kinds.index("<td>easy</td>") < kinds.index("<td>hard</td>") and "100 % → 50 %" in kinds


def test_chosen_settings_are_told_with_what_they_would_have_been(tmp_path: Path) -> None:
    resolved = configs.load("tiny/image", ["optimizer.lr=5e-4", "algorithm.objective.0.high=0.28"])
    run = write_run(tmp_path / "run", steps=2, kind="text")
    write_choices(run, resolved)
    found = {one.key: one for one in choices(resolved)}
    rate = found["optimizer.lr"]
    assert (rate.value, rate.usual, rate.origin) == ("0.0005", "1e-06", "command line")
    assert found["algorithm.objective.0.high"].usual == "0.2" and found["steps"].origin.endswith("configs/tiny/image.toml")
    assert "policy.model" not in found and "algorithm.preset" not in found and "data.use" not in found
    page = page_of(run)
    assert "Chosen settings" in page and "<td>optimizer.lr</td><td>0.0005</td><td>1e-06</td><td>command line</td>" in page


def test_stages_lie_behind_the_curves_as_bands():
    loop = {"kind": "loop", "rounds": 2, "stages": ["pairs", "dpo"]}
    config = {"stage": [{"kind": "sft", "name": "cold start", "steps": 2}, loop, {"kind": "pairs"}, {"kind": "dpo", "steps": 3}]}
    trained = [(1, 1), (2, 1), (3, 3), (5, 3), (6, 5)]
    lines = [{"step": step, "loss": 0.0, "run/stage": float(stage)} for step, stage in trained] + [{"step": 2, "run/stage": 2.0}]
    stages = stages_taken(config, lines)
    assert stages == [(1, 2, "stage 1: cold start"), (3, 5, "stage 3: dpo, round 1"), (6, 6, "stage 5: dpo, round 2")]
    drawn = line_chart([Series("x", [1.0, 6.0], [0.0, 1.0], "train")], "x", stages=stages)
    bands = re.findall(r'<rect class="stage( dark)?" x="([\d.]+)" y="10.0" width="([\d.]+)"', str(drawn))
    assert [dark for dark, _, _ in bands] == ["", " dark", ""]
    ends = [(float(x), float(x) + float(width)) for _, x, width in bands]
    assert ends[0][0] == LEFT and ends[2][1] == pytest.approx(WIDTH - RIGHT, abs=0.2)
    assert ends[0][1] == pytest.approx(ends[1][0], abs=0.2) and ends[1][1] == pytest.approx(ends[2][0], abs=0.2)
    assert [one.steps for one in stages] == ["steps 1 to 2", "steps 3 to 5", "step 6"] and stages_taken({}, lines) == []
    assert [RunData(RunDir(Path()), one, "", [], []).steps_wanted for one in (config, {"steps": 9}, {})] == [8, 9, None]
