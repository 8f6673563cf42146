"""docs/how_to/layouts.md shows every layout, each by files that are recognised as it."""

import re
from pathlib import Path

import pytest

from mmrl.data.layouts.source import guess
from mmrl.data.layouts.table import LAYOUTS

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "layouts.md").read_text(encoding="utf-8")
BLOCKS = [
    (name, block)
    for name, words in re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for block in re.findall(r"```text\n(.*?)```", words, re.DOTALL)
]


def test_every_layout_has_an_example():
    assert {name for name, _ in BLOCKS} == LAYOUTS.keys()


@pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(BLOCKS)])
def test_an_example_has_two_lines_and_is_recognised(name: str, block: str, tmp_path: Path):
    lines = [line.partition(" | ")[::2] for line in block.splitlines()]
    assert len(lines) == 2
    files = {file: [text for other, text in lines if other == file] for file, _ in lines}
    for file, texts in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        # an object may take both lines
        whole = file.endswith(".jsonl") and not texts[0].endswith("}")
        (tmp_path / file).write_text((" " if whole else "\n").join(texts) + "\n", encoding="utf-8")
    assert guess(tmp_path / next(iter(files)) if len(files) == 1 else tmp_path).layout == name
