"""The public surface of mmrl, held by a list; `python tests/house/test_public.py --write` writes it anew.

A name that leaves the list must warn for one minor version first; see docs/api.md.
"""

import ast
import dataclasses
import importlib
import inspect
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import mmrl

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).parent / "public_surface.txt"
STUB = ROOT / "mmrl" / "__init__.pyi"
POLICY = (
    *("rollout", "read", "split", "join", "parameters", "advance", "state_dict", "load_state_dict", "save", "prepare", "shadows"),
)
PARTLY = {
    "TextPolicy": POLICY,
    "FlowPolicy": POLICY,
    "Trainer": ("fit", "step", "evaluate", "save", "state_dict", "load_state_dict"),
    "Algorithm": ("check", "trainable", "shape_rewards", "loss_weights", "loss", "with_length"),
}
"""Class -> the members that are promised; of other classes all that have no underscore."""


def surface() -> list[str]:
    """A line per name, argument (with its default) and member; types are left to pyright."""
    lines: list[str] = []
    for name in sorted(mmrl.__all__):
        thing = getattr(mmrl, name)
        lines.append(name)
        if isinstance(thing, Mapping):
            lines += [f"{name}[{key!r}]" for key in sorted(thing)]
        elif callable(thing) and name != "Callback":
            lines += [f"{name}({argument})" for argument in arguments(thing)]
        if inspect.isclass(thing):
            lines += [f"{name}.{member}" for member in members(name, thing)]
    return lines


def arguments(thing: object) -> list[str]:
    """`policy`, `algorithm='grpo'`, `*, rewards`, `**settings`, each by itself."""
    assert callable(thing)
    words: list[str] = []
    for one in inspect.signature(thing).parameters.values():
        mark = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**", one.KEYWORD_ONLY: "*, "}.get(one.kind, "")
        shown = isinstance(one.default, str | int | float | bool | None)
        words.append(mark + one.name + ("" if one.default is one.empty else f"={one.default!r}" if shown else "=..."))
    return [word for word in words if word != "self"]


def members(name: str, cls: type) -> list[str]:
    """Methods and properties; fields are arguments of the class."""
    fields = {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set[str]()
    found: list[str] = []
    for member in PARTLY.get(name, sorted(set(vars(cls)) - fields)):
        value = inspect.getattr_static(cls, member)
        if isinstance(value, property):
            found.append(member)
        elif inspect.isfunction(value) and not member.startswith("_"):
            found.append(f"{member}({', '.join(arguments(value))})")
    return found


def test_nothing_that_was_promised_is_gone():
    gone = sorted(set(LIST.read_text().splitlines()) - set(surface()))
    assert not gone, "these are public: keep them, and warn, for one minor version (docs/api.md), then run this file with --write"


def test_no_name_is_public_by_accident():
    listed = {line for line in LIST.read_text().splitlines() if line.isidentifier()}
    assert set(mmrl.__all__) == listed, "describe new names in docs/api.md, then run this file with --write"


def test_what_is_gone_would_be_found(monkeypatch: pytest.MonkeyPatch):
    def fit(policy: str, rewards: object) -> None: ...

    monkeypatch.setattr(mmrl, "fit", fit)
    monkeypatch.delattr(mmrl.Box, "iou")
    gone = set(LIST.read_text().splitlines()) - set(surface())
    assert gone >= {"Box.iou(other)", "fit(algorithm='grpo')", "fit(*, rewards)"} and "fit(policy)" not in gone


def test_the_stub_names_the_same_things():
    names: set[str] = set()
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mmrl"):
            for alias in node.names:
                assert alias.asname == alias.name, "a re-export is written `import X as X`"
                assert getattr(importlib.import_module(node.module or ""), alias.name) is getattr(mmrl, alias.name)
                names.add(alias.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
    assert names - {"__all__"} == set(mmrl.__all__)


def test_every_public_name_is_described():
    page = (ROOT / "docs" / "api.md").read_text()
    assert [name for name in mmrl.__all__ if f"`{name}" not in page and f"`mmrl.{name}" not in page] == []


def test_looking_at_the_names_loads_nothing():
    program = "import sys, mmrl; dir(mmrl); mmrl.__all__; print(sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_a_wrong_name_is_an_error_that_lists_the_right_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'Promt'.*'Prompt'"):
        getattr(mmrl, "Promt")  # noqa: B009 - pyright knows that it is wrong


def test_boxes_and_spans_overlap():
    assert mmrl.Box(0, 0, 2, 2).iou(mmrl.Box(1, 0, 3, 2)) == pytest.approx(2 / 6)
    assert mmrl.Interval(0, 2).iou(mmrl.Interval(1, 4)) == pytest.approx(1 / 4)
    with pytest.raises(ValueError, match=r"different spaces: convert one with \.to"):
        mmrl.Box(0, 0, 2, 2).iou(mmrl.Box(0, 0, 1, 1, "norm1"))
    with pytest.raises(ValueError, match="units"):
        mmrl.Interval(0, 2).iou(mmrl.Interval(0, 1, "norm"))


if __name__ == "__main__" and "--write" in sys.argv:
    LIST.write_text("\n".join(surface()) + "\n")
