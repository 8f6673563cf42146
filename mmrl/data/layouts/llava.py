"""LLaVA's `conversations`: turns with `from` and `value`, and `<image>` where the picture stands.

{"id": "7", "image": "cat.jpg", "conversations": [{"from": "human", "value": "<image>\\nWhere is the cat?"},
 {"from": "gpt", "value": "[1, 2, 30, 40]"}]}
"""

from collections.abc import Iterator

from mmrl.data.layouts.base import ANSWERS, CLIPS, PICTURES, Look, RowLayout
from mmrl.data.layouts.turns import Turn, role_of, say_turns
from mmrl.data.readers import Cell, Row

COLUMN = "conversations"


def is_one(look: Look) -> bool:
    found: Cell = look.example(COLUMN)
    return isinstance(found, list) and bool(found) and isinstance(found[0], dict) and "from" in found[0]


def one(row: Row) -> Iterator[Row]:
    found: Cell = row.values.get(COLUMN)
    if not isinstance(found, list) or not found:
        raise ValueError(f"column {COLUMN} must be a list of turns, not {str(found)[:80]!r}")
    yield from say_turns(row, [_turn(item) for item in found], (COLUMN,))


def _turn(item: Cell) -> Turn:
    if not isinstance(item, dict) or "from" not in item or item.get("value") is None:
        raise ValueError(f"a turn must be an object with from and value, not {str(item)[:80]}")
    return Turn(role_of(item["from"]), item["value"])


LLAVA = RowLayout(
    "llava",
    "LLaVA's conversations of human and gpt",
    (COLUMN, *PICTURES, *CLIPS, *ANSWERS, "id", "split"),
    is_one,
    one,
)
