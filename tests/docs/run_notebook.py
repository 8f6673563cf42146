"""Run a notebook's code cells in one namespace and print what each ends with: `python run_notebook.py FILE`."""

import ast
import json
import sys
from pathlib import Path


def run(file: Path) -> dict[str, object]:
    """The names after the last cell."""
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(file.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]), f"{file.name}, cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{file.name}, cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"{file.name}, cell {number}", "eval"), names)
            shown = value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
            print(f"cell {number}: {len(shown)} characters, {shown[:200]}")  # noqa: T201 - what a notebook would show
    return names


if __name__ == "__main__":
    run(Path(sys.argv[1]))
