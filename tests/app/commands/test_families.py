"""`mmrl ls families`: every family is a row with its tasks, its licence, where that was read, and what was tested."""

from mmrl.app.commands.families import HEAD, WIDTHS, published, table
from mmrl.app.commands.things import families
from mmrl.policies.shared.published import NOTES, Published
from mmrl.tiny import vlms


def cells(line: str) -> list[str]:
    """A line of the table, cut at its columns."""
    starts = [sum(width + 2 for width in WIDTHS[:i]) for i in range(len(WIDTHS))]
    return [line[start : start + width].rstrip() for start, width in zip(starts, WIDTHS, strict=True)]


def read(name: str) -> list[str]:
    """The row of a family, its cells in one piece each."""
    lines = list(table())
    first = next(i for i, line in enumerate(lines) if cells(line)[0] == name)
    parts = [cells(line) for line in lines[first : lines.index("", first)]]
    return [" ".join(part for part in column if part) for column in zip(*parts, strict=True)]


def test_every_family_has_a_row_with_all_its_facts():
    assert cells(next(table()))[0] == HEAD[0]
    for name in families():
        row = read(name)
        assert row[0] == name and all(row), name
    assert read("FluxPipeline")[1:3] == ["text to image", "dev: FLUX.1 dev Non-Commercial; schnell: Apache-2.0"]
    assert read("text_only")[1] == "text to text" and "clips to text" in read("qwen3_vl")[1]


def test_a_licence_that_was_not_read_says_so():
    facts = Published(("text to text",), "MIT", "nowhere", "nothing")
    assert facts.licence_and_note == "MIT (not checked)"
    every = [one for kinds in published().values() for one in kinds.values()]
    assert {one.read for one in every} == set(NOTES)
    assert all(one.licence_and_note.endswith(f"({NOTES[one.read]})") for one in every if one.read != "makers")


def test_a_row_promises_tests_only_where_a_tiny_model_is():
    """A family is tested on a model of its own class, or says whose it shares."""
    for name, one in published()["text"].items():
        if name not in ("generic", "text_only"):
            assert (name in vlms.FAMILIES) != one.tested.startswith("nothing of its own"), name
