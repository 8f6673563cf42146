"""Hooks of `mkdocs build`: pages from the repository's root, and links to files that are not pages."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FROM_ROOT = ("CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie beside the docs folder."""
    for name in FROM_ROOT:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links out of the docs folder into pages where there is one, else into the file's path.

    Raises:
        FileNotFoundError: the link leads nowhere.
    """
    here = "." if page.file.src_uri in FROM_ROOT else posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def follow(match: re.Match[str]) -> str:
        text, target, anchor = match[1], posixpath.normpath(posixpath.join(here, match[2])), match[3] or ""
        if not (ROOT / target).exists() and target not in FROM_ROOT:
            raise FileNotFoundError(f"{page.file.src_uri}: the link to {match[2]} leads nowhere")
        uri = target.removeprefix("docs/")
        if files.get_file_from_path(uri) is None:
            return text if target in text else f"{text} (`{target}`)"
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    return LINK.sub(follow, markdown)
