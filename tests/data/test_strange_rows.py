"""Rows of any JSON: every layout gives a row in our words or a sentence, and both data sets a prompt or a sentence."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmrl.core.types import Prompt
from mmrl.data.grounding import GroundingLayout
from mmrl.data.layouts.base import Look
from mmrl.data.layouts.source import LAYOUTS, candidates
from mmrl.data.layouts.turns import each_question
from mmrl.data.questions import Questions
from mmrl.data.readers import Row
from mmrl.data.validate import BAD_ROW

WORDS = [
    "role", "content", "from", "value", "user", "assistant", "human", "gpt", "system", "type", "text", "image",
    "image_url", "url",
    "<image>", "<bbox>", "<ref-object>", "bbox", "ref", "A", "B", "norm1", "data:image/png;base64,AA", "[1, 2, 3, 4]", "label",
    "",
]  # fmt: skip
NUMBERS = st.one_of(st.integers(-5, 2000), st.floats(allow_nan=True), st.just(10**400))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.sampled_from(WORDS), st.text(max_size=8))
TURN = st.fixed_dictionaries(
    {}, optional={name: LEAVES | st.lists(LEAVES, max_size=2) for name in ("role", "content", "from", "value", "weight")}
)
VALUES = st.recursive(
    LEAVES | TURN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=10,
)
COLUMNS = sorted({name for layout in LAYOUTS.values() if layout.say for name in layout.columns})


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.say])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.data())
def test_a_row_of_anything_is_a_prompt_or_a_sentence(name: str, data: st.DataObject):
    layout = LAYOUTS[name]
    own = {column: data.draw(VALUES) for column in layout.columns[:6]}
    values = own | data.draw(st.dictionaries(st.sampled_from(COLUMNS), VALUES, max_size=4))
    look = Look(Path("rows.jsonl"), (values,))
    candidates(look)
    layout.data_set(look)
    row = Row(values, "rows.jsonl", 1)
    try:
        rows = [
            said
            for column in ("messages", "conversations")
            for one in each_question(row, column)
            for said in layout.translate(one)
        ]
    except BAD_ROW as error:
        assert str(error)
        return
    for said in rows:
        for reader in (GroundingLayout(), Questions()):
            try:
                assert all(isinstance(prompt, Prompt) for prompt in reader.prompts(said))
            except BAD_ROW as error:
                assert str(error)


DEEP = "[" * 100_000
QUESTION = [{"role": "user", "content": "<image>Where is <ref-object>?"}]
RAW = {"image_path": "a.png", "bbox": [1, 2, 3, 4], "raw_anns": '{"bbox": [1, 2, 3, 4]}', "raw_image_info": "{}"}


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        (
            "messages",
            {"messages": QUESTION, "objects": {"bbox": [[1, 2, 3, 4]], "ref": 5}},
            "objects.ref must be a list of texts",
        ),
        ("messages", {"messages": QUESTION, "objects": {"bbox": [[1, 2, 3, 4]], "bbox_type": {"a": 1}}}, "objects.bbox_type is"),
        ("refcoco_raw", {**RAW, "sentences": True}, "none of the columns sentences"),
        ("refcoco_raw", {**RAW, "sentences": DEEP}, "column sentences is not JSON"),
    ],
)
def test_cells_of_another_kind_than_their_layouts(name: str, values: dict[str, Any], sentence: str):
    layout = LAYOUTS[name]
    with pytest.raises(ValueError, match=sentence):
        list(layout.translate(Row(values, "rows.jsonl", 1)))


def test_a_size_that_is_no_list():
    row = Row({"image": "a.png", "question": "where?", "box": [1, 2, 3, 4], "size": 100}, "rows.jsonl", 1)
    with pytest.raises(ValueError, match=r"its picture has size 100, but it has \[64, 48\]"):
        GroundingLayout().prompts(row, lambda: (["a.png"], [(64, 48)]))
