"""Methods whose rows wait for their numbers, with the reason."""

from tests.evidence.task import Row

ROWS: list[Row] = []
"""Samplers, and presets of text_more.py."""
ELSEWHERE = {
    "rlpr": "no task shows that it acts; its reading is that of plain forwards: tests/policies/text/test_looks.py",
    "gui_g1": "no task shows that it acts; its weight by hand: tests/algorithms/test_more_methods.py",
    "attention_rhythm": "no task shows that it acts; its readings are those of transformers: tests/policies/text/test_looks.py",
}
"""Presets whose evidence is a test of another room."""
