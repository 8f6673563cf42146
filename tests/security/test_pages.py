"""Pages show what models, prompts, files and configs say; none of it becomes markup, and the page's policy forbids the rest."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app.commands.reward import write_gallery
from mmrl.app.evaluation.compare import compare, write_comparison
from mmrl.app.report.page import write_report
from mmrl.app.run.folder import RunDir
from mmrl.app.run.trackers import JsonlTracker
from mmrl.core.types import Group, MediaSize, Prompt, Sample, Scores
from mmrl.training.callbacks import Examples

EVIL = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style></title></textarea></pre><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "<a href=javascript:alert(1)>x</a>",
    "<iframe src=//evil.example></iframe>",
    "{{ 7 * 7 }}{% raw %}",
    "]]><!--<script>",
    "\u202e<b>\u0000</b>",
]


class Page(HTMLParser):
    """A page as a browser would find it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.policies: list[str] = []
        self.wrong: list[str] = []
        self.inside = ""
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        given = {name: value or "" for name, value in attrs}
        if tag == "script":
            self.scripts.append("")
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(given["content"])
        if tag == "a" and given.pop("href", "").startswith("samples/"):
            return
        if tag in ("iframe", "object", "embed", "base", "link", "form", "input", "textarea", "a"):
            self.wrong.append(f"<{tag}>")
        self.wrong += [f"{tag} {name}" for name in given if name.startswith("on")]
        for name in {"src", "href", "action", "srcdoc"} & set(given):
            if not given[name].startswith("data:video/mp4;base64," if tag == "video" else "data:image/"):
                self.wrong.append(f"{tag} {name}={given[name]}")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.inside == "script":
            self.scripts[-1] += data


def check_page(file: Path, num_scripts: int) -> Page:
    """No handlers, no addresses, no foreign elements; our scripts only, and the policy allows no other."""
    page = Page(file.read_text(encoding="utf-8"))
    assert page.wrong == []
    assert len(page.scripts) == num_scripts and not any("alert" in script for script in page.scripts)
    [policy] = page.policies
    assert re.match(r"default-src 'none'; img-src data:; (media-src data:; )?style-src 'unsafe-inline'", policy)
    hashes = {f"sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}" for s in page.scripts}
    assert set(re.findall(r"sha256-[\w+/=]+", policy)) == hashes and policy.count("script-src") == num_scripts
    return page


def evil_run(folder: Path) -> RunDir:
    """A run in which everything that can be named is named to do harm."""
    run = RunDir.create(folder)
    said = json.dumps(EVIL)
    run.config_file.write_text(
        f'steps = 2\n[algorithm]\npreset = {json.dumps(EVIL[0])}\n[policy]\nmodel = "m"\n'
        f"[data]\nuse = {json.dumps(EVIL[2])}\nwords = {said}\n"
    )
    groups = [
        Group(
            i,
            Prompt(f"{i}{text}", text, (Image.new("RGB", (9, 9)),), Box(1, 1, 5, 5, label=text), {text: text}),
            (Sample(text=f"[1, 1, 5, 5] {text}", media_sizes=(MediaSize(9, 9, 9, 9),)),),
        )
        for i, text in enumerate(EVIL)
    ]
    answers = [Group(100 + i, Prompt(f"a{i}{text}", text, answer=text), (Sample(text=text),)) for i, text in enumerate(EVIL)]
    for step in (0, 1, 2):
        for split in ("eval", "train"):
            tracker = JsonlTracker(run, "pixel")
            both = [*groups, *answers]
            values = torch.rand(len(both), 2)
            scores = Scores((EVIL[1], EVIL[3]), values, torch.zeros(len(both), 2, dtype=torch.long), torch.ones(2))
            tracker.write(step, Examples(both, scores), split)
        run.append(step, {f"{room}/{text}": 0.5 + step for room in ("eval", "reward", "policy") for text in EVIL})
    run.warnings_file.write_text("".join(json.dumps({"step": 1, "level": "warning", "text": text}) + "\n" for text in EVIL))
    return run


def test_a_report_is_text(tmp_path: Path):
    run = evil_run(tmp_path / "<img src=x onerror=alert(1)>")
    page = check_page(write_report(run.path), num_scripts=1)
    shown = "".join(page.words)
    assert all(text.replace("\0", "") in shown.replace("\0", "").replace("\ufffd", "") for text in EVIL)


def test_a_comparison_is_text(tmp_path: Path):
    runs = [evil_run(tmp_path / f"{name}<script>alert(1)<") for name in "ab"]
    file = tmp_path / "page.html"
    write_comparison(compare(runs[0].path, runs[1].path), file)
    check_page(file, num_scripts=0)


def test_a_gallery_is_text(tmp_path: Path):
    cards = [
        {
            "id": text,
            "output": text,
            "prompt": text,
            "completion": text,
            "score": None if i % 2 else 0.5,
            "status": text,
            "parts": {text: 0.5},
            "image": Image.new("RGB", (4, 4)),
            "clip": "data:video/mp4;base64,AAAA",
        }
        for i, text in enumerate(EVIL)
    ]
    write_gallery(tmp_path / "page.html", EVIL[0], EVIL[2], cards)
    check_page(tmp_path / "page.html", num_scripts=0)


@pytest.mark.parametrize("text", ["<p onclick=x>", "<script>1</script>", "<a href=javascript:x>", "<img src=http://x>"])
def test_the_parser_finds_what_it_looks_for(text: str):
    page = Page(text)
    assert page.wrong or page.scripts


def test_long_answers_are_cut_and_the_samples_file_has_them_whole(tmp_path: Path):
    """Six answers of 1 MB with direction marks took a browser 6.7 GB."""
    run = RunDir.create(tmp_path / "run")
    run.config_file.write_text('steps = 1\n[algorithm]\npreset = "grpo"\n[policy]\nmodel = "m"\n[data]\nuse = "x"\n')
    text = "begin " + "a\u202e\u2066" * 150_000 + " end"
    groups = [Group(i, Prompt(f"p{i}", text, answer=text), (Sample(text=text),)) for i in range(6)]
    scores = Scores(("r",), torch.arange(6.0)[:, None], torch.zeros(6, 1, dtype=torch.long), torch.ones(1))
    for step in (0, 1):
        JsonlTracker(run, "pixel").write(step, Examples(groups, scores), "eval")
        run.append(step, {"eval/total": 0.5})
    file = write_report(run.path)
    assert file.stat().st_size < 3_000_000
    page = check_page(file, num_scripts=1)
    shown = "".join(page.words)
    assert "begin a" in shown and "characters left out" in shown
    links = set(re.findall(r'href="([^"]+)"', file.read_text(encoding="utf-8")))
    assert links == {"samples/eval-000000.jsonl", "samples/eval-000001.jsonl"}
    assert all(text in json.loads((run.path / link).read_text(encoding="utf-8").splitlines()[0])["completion"] for link in links)
    card = {"id": "a", "output": "a", "prompt": text, "completion": text, "score": 1.0, "status": "ok", "parts": {}}
    write_gallery(tmp_path / "page.html", "r", "f", [{**card, "image": None, "clip": ""}] * 6)
    assert (tmp_path / "page.html").stat().st_size < 500_000
