"""Every kind of teacher against everything else that a run may have: the test that has both, or the refusal."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
SAME = "tests/policies/text/test_teachers.py::test_a_teacher_that_is_the_student_says_nothing"
FAR = "tests/engine/test_teachers.py::test_a_served_teacher_is_the_one_that_is_here"
RUN = "tests/engine/test_teachers.py::test_a_run_waits_for_a_teacher_that_is_started_again"
AHEAD = "tests/policies/text/write/test_remote.py::test_each_teacher_has_its_weights_and_a_resumed_run_has_the_same"
CHAIN = "tests/app/modality/test_tokens.py::test_every_kind_of_teacher_stands_in_a_chain"
ENGINE = "tests/engine/test_training.py::test_a_teacher_reads_what_an_engine_wrote_and_servers_never_see_its_adapter"
PROCESSES = "tests/policies/text/test_processes.py::test_processes_that_keep_features_of_pictures_equal_one"
HERE, KINDS = "model adapter ref ema policy", {"model", "adapter", "server", "ref", "ema", "policy"}
PAIRS: dict[str, dict[str, str]] = {
    "pictures": {HERE: f"{SAME} LoRA", "server": FAR},
    "clips": {HERE: f"{SAME} clips", "server": FAR},
    "sounds": {HERE: f"{SAME} sounds", "server": "tests/engine/test_teachers.py::test_sounds_are_not_sent_to_a_teacher"},
    "episodes": {HERE: f"{SAME} episodes", "server": "which is not sent the pictures of .environment.: set"},
    "packed rows": {HERE: f"{SAME} LoRA", "server": FAR},
    "LoRA": {HERE: f"{SAME} LoRA", "server": RUN},
    "4 bit": {HERE: f"{SAME} 4 bit", "server": RUN},
    "checkpointing": {HERE: f"{SAME} checkpointing", "server": RUN},
    "ahead, drawn by samplers": {HERE: AHEAD, "server": AHEAD},
    "an engine": {"adapter": ENGINE, "model server ref ema policy": AHEAD},
    "several processes": {"model ref ema": PROCESSES, "adapter": "tests/policies/text/test_teachers.py::"
        "test_a_process_without_rows_keeps_step_with_those_that_have_some"},
    "a resumed run": {HERE: AHEAD, "server": RUN},
    "stages": {HERE: CHAIN, "server": CHAIN},
    "drawing by tokens": {"model adapter server": "follows policy.teachers, which models that draw by tokens have none of",
        "ref ema policy": "compares the next token's distribution with a teacher's, and policy.kind is 'token_image'"},
}  # fmt: skip
UNTRIED = {"several processes": {"server", "policy"}}
"""Together in no test: the teacher reads the same rows there, whoever wrote them."""


def is_there(where: str) -> bool:
    """Is there a test of this name, with a case of this name; or a refusal in these words?"""
    if "::" not in where:
        return any(where in file.read_text() for file in (ROOT / "tests" / "refusals").glob("*.toml"))
    file, _, rest = where.partition("::")
    test, _, case = rest.partition(" ")
    text = (ROOT / file).read_text()
    return f"def {test}(" in text and (not case or f'"{case}": ' in text)


def test_every_pair_has_a_test_or_a_refusal():
    found = {thing: [kind for kinds in cells for kind in kinds.split()] for thing, cells in PAIRS.items()}
    assert all(len(kinds) == len(set(kinds)) for kinds in found.values())
    left = {thing: KINDS - set(kinds) for thing, kinds in found.items()}
    assert {thing: kinds for thing, kinds in left.items() if kinds} == UNTRIED
    assert [where for cells in PAIRS.values() for where in cells.values() if not is_there(where)] == []
