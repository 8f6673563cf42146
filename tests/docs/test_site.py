"""What `make docs` built: what people look for stands on its pages, nothing comes from elsewhere, and a dead link is an error."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def site() -> Path:
    assert (ROOT / "site" / "index.html").is_file(), "run make docs"
    return ROOT / "site"


def text_of(page: Path) -> str:
    """The words that a reader sees."""
    body = page.read_text(encoding="utf-8").split("<article", 1)[-1].split("</article>", 1)[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


QUESTIONS = {
    "IoU inside an own reward": ("tutorials/own_reward.html", ["Box.iou", "parse_boxes"]),
    "the keys of grounding data": ("tutorials/own_data.html", ["image", "question", "boxes", "space", "split"]),
    "MixGRPO's window": ("tutorials/text_to_image.html", ["MixGRPO's window", "size", "dwell", "stride"]),
    "TempFlow's branch steps": ("tutorials/text_to_image.html", ["TempFlow's branch steps", "at_steps", "branches"]),
    "what the one-line command chooses": ("tutorials/grounding.html", ["What the one line chooses", "grpo", "128 tokens"]),
    "how to continue a killed run elsewhere": (
        "how_to/many_machines.html",
        ["--resume", "any other cluster", "number of processes"],
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_reader_without_the_source_finds(site: Path, question: str):
    page, words = QUESTIONS[question]
    text = text_of(site / page)
    assert [word for word in words if word not in text] == []


def test_words_that_name_a_page_of_the_site_are_links(site: Path):
    methods = (site / "reference" / "algorithms.html").read_text(encoding="utf-8")
    assert '<a href="methods/grpo.html">grpo</a>' in methods and '<a href="methods_compared.html">' in methods
    assert 'href="../reference/methods/draft_k.html"' in (site / "how_to" / "reward_gradients.html").read_text(encoding="utf-8")


def test_pages_have_the_titles_that_other_pages_name():
    from docs.generate import page
    from docs.site_hooks import TITLES

    assert {title: re.findall("^# (.*)", page(name), re.MULTILINE)[0] for title, name in TITLES.items()} == {t: t for t in TITLES}


def test_nothing_comes_from_elsewhere(site: Path):
    """No script, font, style or picture of another host; links that a reader may follow are another thing."""
    asked = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](https?:)?//""")
    pages = [page for page in site.rglob("*.html") if asked.search(page.read_text(encoding="utf-8"))]
    assert pages == []
    assert not any("url(http" in style.read_text(encoding="utf-8") for style in site.rglob("*.css"))


def test_search_works_without_a_server(site: Path):
    """Each page brings the index as a script, and a stand-in for web workers, which browsers do not start from file://."""
    assert (site / "search" / "search_index.js").is_file(), "the plugin `offline` writes the index as a script"
    worker = re.compile(r'<script src="([^"]*iframe-worker[^"]*)"')
    for page in site.rglob("*.html"):
        if page.name != "404.html":
            (script,) = worker.findall(page.read_text(encoding="utf-8"))
            assert (page.parent / script).resolve() == (site / "assets" / "iframe-worker.js").resolve()


def test_a_dead_link_would_be_found(tmp_path: Path):
    """On a site of one page, under the settings of the whole one."""
    hooks = ROOT / "docs" / "site_hooks.py"
    settings = f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: pages\nhooks: [{hooks}]\nnav:\n  - Home: index.md\n"
    (tmp_path / "mkdocs.yml").write_text(settings)
    (tmp_path / "pages").mkdir()

    def built(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "pages" / "index.md").write_text(text)
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)

    assert built("# Home").returncode == 0
    done = built("# Home\n\n[gone](tutorials/gone.md)")
    assert done.returncode != 0 and "tutorials/gone.md" in done.stdout + done.stderr
