"""Small pictures and the rows that speak of them."""

import json

import pytest
from PIL import Image


@pytest.fixture
def picture(tmp_path):
    """Write a picture of one colour; gives its name."""

    def write(name, size=(64, 48), colour="red"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, colour).save(path)
        return name

    return write


@pytest.fixture
def jsonl(tmp_path):
    """Write rows (objects, or raw lines) as a JSONL file; gives its path."""

    def write(*rows, name="boxes.jsonl"):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write
