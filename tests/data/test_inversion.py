from itertools import pairwise

import pytest

from mmrl.core.types import Prompt
from mmrl.data.inversion import LETTERS, Inversion

OPTIONS = ("a dog", "a cat", "a cow", "a hen")


def ask(i: int = 0, answer: object = "B", **columns: object) -> Prompt:
    told = {"question": "What is He holding now?", "options": OPTIONS, "kept": 7, **columns}
    return Prompt(f"row {i}", "old text", ("clip",), answer, told)


def test_what_was_right_is_the_only_wrong_one():
    sizes, places = set(), set()
    for prompt in Inversion(probability=1.0)([ask(i) for i in range(60)]):
        options = prompt.columns["options"]
        right = {options[LETTERS.index(letter)] for letter in prompt.answer.split(",")}
        assert set(options) - right == {"a cat"}
        assert right <= set(OPTIONS)
        assert prompt.answer.split(",") == sorted(prompt.answer.split(","))
        assert prompt.columns["question"] == "what is not he holding now?"
        lines = prompt.text.split("\n")
        assert lines == ["what is not he holding now?", *(f"{LETTERS[i]}. {one}" for i, one in enumerate(options))]
        assert (prompt.media, prompt.columns["kept"]) == (("clip",), 7)
        sizes.add(len(right))
        places.add(options.index("a cat"))
    assert sizes == {1, 2, 3}
    assert places == {0, 1, 2, 3}


def test_about_half_are_inverted_and_always_the_same_ones():
    prompts = [ask(i) for i in range(200)]
    some = Inversion()(prompts)
    changed = [one.id for one in some if one.columns.get("inverted")]
    assert 70 < len(changed) < 130
    assert [one for one in some if not one.columns.get("inverted")] == [p for p in prompts if p.id not in changed]
    assert Inversion()(prompts[50:60]) == some[50:60]
    assert Inversion(seed=1)(prompts) != some
    assert Inversion(probability=0.0)(prompts) == prompts


def test_questions_that_cannot_be_turned_round_stay():
    for prompt in (ask(answer="A,C"), ask(answer=["A", "C"]), ask(question="Why?"), ask(answer="A", options=("one",))):
        assert Inversion(probability=1.0)([prompt]) == [prompt]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (ask(options=None), r"prompt 'row 0' cannot be inverted: give its row a column `question`"),
        (ask(question=3), r"column `question`"),
        (ask(answer="E"), r"prompt 'row 0' has the answer 'E', not letters of its 4 options"),
        (ask(answer=2), r"has the answer 2"),
    ],
)
def test_rows_that_do_not_fit_are_named(prompt, message):
    with pytest.raises(ValueError, match=message):
        Inversion()([prompt])


def test_own_layout_and_bad_probability():
    assert Inversion(1.0, write=lambda question, options: f"{question}|{len(options)}")([ask()])[0].text.startswith("what is not")
    with pytest.raises(ValueError, match=r"Inversion.probability is 1.5"):
        Inversion(1.5)
    texts = [Inversion(1.0, seed=seed)([ask()])[0].text for seed in range(5)]
    assert any(a != b for a, b in pairwise(texts))
