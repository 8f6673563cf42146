"""`mmrl ls families`: every family is a row with its tasks, its licence, where that was read, and what was tested."""

from mmrl.app.inspect.things import HEAD, MARKS, WIDTHS, families, public_weights, table
from mmrl.lab.tiny.text import janus, vlms
from mmrl.policies.shared.published import NOTES, Published


def cells(line: str) -> list[str]:
    """A line of the table, cut at its columns."""
    starts = [sum(width + 2 for width in WIDTHS[:i]) for i in range(len(WIDTHS))]
    return [line[start : start + width].rstrip() for start, width in zip(starts, WIDTHS, strict=True)]


def rows() -> dict[str, list[str]]:
    """Family -> the cells of its row, each in one piece."""
    lines, found = [cells(line) for line in list(table())[2:]], dict[str, list[str]]()
    for line in lines[: lines.index([""] * len(WIDTHS))]:
        name = line[0] or list(found)[-1]
        before = found.get(name, [""] * len(WIDTHS))
        found[name] = [f"{old} {new}".strip() for old, new in zip(before, line, strict=True)]
    return found


def test_every_family_has_a_row_with_all_its_facts():
    assert cells(next(table())) == list(HEAD)
    found = rows()
    assert found.keys() == families().keys() == public_weights().keys()
    assert [row for row in found.values() if not all(row)] == []
    assert found["FluxPipeline"][1:3] == ["text to image", "dev: FLUX.1 dev Non-Commercial; schnell: Apache-2.0"]
    assert found["text_only"][1] == "text to text" and "clips to text" in found["qwen3_vl"][1]


def test_letters_stand_for_what_was_tested():
    lines = list(table())
    told = {line.split()[0]: line for line in lines[lines.index("tested on tiny models of the real classes") + 1 :]}
    for name, row in rows().items():
        assert public_weights()[name].tested.startswith(told[row[3]].strip()[3:].strip()), name


def test_a_licence_that_was_not_read_says_so():
    facts = Published(("text to text",), "MIT", "nowhere", "nothing")
    assert facts.licence_and_note == "MIT (not checked)"
    found = rows()
    assert {one.read for one in public_weights().values()} == set(NOTES)
    for name, one in public_weights().items():
        assert found[name][2] == f"{one.licence}{MARKS[one.read]}" and one.licence_and_note.startswith(one.licence)
    assert [f"  {MARKS[read].strip():<2} {note}" in list(table()) for read, note in NOTES.items() if note] == [True, True]


def test_a_row_promises_tests_only_where_a_tiny_model_is():
    """A family is tested on a model of its own class, or says whose it shares."""
    for name, one in public_weights().items():
        if not name.endswith("Pipeline") and name not in ("generic", "hearing", "text_only"):
            assert (name in {*vlms.FAMILIES, *janus.FAMILIES}) != one.tested.startswith("nothing of its own"), name
