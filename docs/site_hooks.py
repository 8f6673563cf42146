"""Hooks of `mkdocs build`: pages that the code writes, pages from the repository's root, and links.

In the repository a page names what exists on the site only in words that say where else it is found: `mmrl show NAME`,
"the site's page *Families*". On the site such words are links.
"""

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
FROM_ROOT = ("CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
NAMED = re.compile(r"the site's page \*([^*]+)\*")
"""In committed pages: a page that exists on the site only, by its title."""
SHOWN = re.compile(r"(?<!\[)`mmrl show (\w+)`")
LISTED = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
TITLES = {
    "Methods compared": "reference/methods_compared.md",
    "Rewards in full": "reference/rewards_in_full.md",
    "Data sets": "reference/datasets.md",
    "Families": "reference/families.md",
    "Metrics": "reference/metrics.md",
    "Recipes": "reference/recipes.md",
    "Prompt templates": "reference/templates.md",
    "Published test sets": "how_to/suites.md",
    "Attacks": "attacks.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie beside the docs folder, and those that are not committed."""
    if Path(config.docs_dir) == ROOT / "docs":
        from docs.generate import ON_THE_SITE, page

        for name in ON_THE_SITE:
            files.append(File.generated(config, name, content=page(name)))
    for name in FROM_ROOT:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links out of the docs folder into pages where there is one, else into the file's path, and words into links.

    Raises:
        FileNotFoundError: the link leads nowhere.
        KeyError: the site has no page of this title.
    """
    here = "." if page.file.src_uri in FROM_ROOT else posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def to(uri: str) -> str:
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")

    def method(match: re.Match[str], text: str, around: str = "{}") -> str:
        uri = "reference/metrics.md" if match[1] == "metrics" else f"reference/methods/{match[1]}.md"
        known = files.get_file_from_path(uri) is not None and uri != page.file.src_uri
        return around.format(f"[{text}]({to(uri)})") if known else match[0]

    def follow(match: re.Match[str]) -> str:
        text, target, anchor = match[1], posixpath.normpath(posixpath.join(here, match[2])), match[3] or ""
        uri = target.removeprefix("docs/")
        known = files.get_file_from_path(uri) is not None
        if not known and not (ROOT / target).exists():
            raise FileNotFoundError(f"{page.file.src_uri}: the link to {match[2]} leads nowhere")
        if not known:
            return text if target in text else f"{text} (`{target}`)"
        return f"[{text}]({to(uri)}{anchor})"

    markdown = LINK.sub(follow, markdown)
    markdown = NAMED.sub(lambda match: f"[{match[1]}]({to(TITLES[match[1]])})", markdown)
    markdown = SHOWN.sub(lambda match: method(match, f"`mmrl show {match[1]}`"), markdown)
    return LISTED.sub(lambda match: method(match, match[1], "| {} |"), markdown)
