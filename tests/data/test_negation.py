"""Forty questions and what becomes of them, checked by eye: the right answers of one are the wrong ones of the other."""

import pytest

from mmrl.data.negation import NEGATED, negate

NEGATIONS = {
    "what color is the cylinder?": "what color isn't the cylinder?",
    "Why did the boy pick up the toy?": "Why didn't the boy pick up the toy?",
    "what did the girl do after she sat down": "what didn't the girl do after she sat down",
    "What is the man holding?": "What isn't the man holding?",
    "what was the lady doing when the dog ran in?": "what wasn't the lady doing when the dog ran in?",
    "how did the baby get down from the chair?": "how didn't the baby get down from the chair?",
    "where are the people sitting?": "where aren't the people sitting?",
    "Which of the following is responsible for the collision?": "Which of the following isn't responsible for the collision?",
    "What will happen next?": "What won't happen next?",
    "Which event will happen if the red sphere is removed?": "Which event won't happen if the red sphere is removed?",
    "Without the gray cube, what will happen?": "Without the gray cube, what won't happen?",
    "If the cylinder is removed, which event will happen?": "If the cylinder is removed, which event won't happen?",
    "When the ball hits the cube, what does the cube do?": "When the ball hits the cube, what doesn't the cube do?",
    "when did the man stop?": "when didn't the man stop?",
    "In the video, what is he doing?": "In the video, what isn't he doing?",
    "In which room was the woman cooking?": "In which room wasn't the woman cooking?",
    "what has the man done with the cup?": "what hasn't the man done with the cup?",
    "Why were the children laughing while they were running?": "Why weren't the children laughing while they were running?",
    "what can the robot reach?": "what can't the robot reach?",
    "Which shape would the sphere hit first?": "Which shape wouldn't the sphere hit first?",
    "What should the player do after the whistle?": "What shouldn't the player do after the whistle?",
    "whose bag was stolen?": "whose bag wasn't stolen?",
    "To whom is the man talking?": "To whom isn't the man talking?",
    "what have the dogs been chasing?": "what haven't the dogs been chasing?",
    "when the man who is tall sits, what is he holding?": "when the man who is tall sits, what isn't he holding?",
}
KEPT = (
    "What's the man doing?",
    "Who broke the vase?",
    "what happens after the ball is thrown?",
    "How many balls are there?",
    "Is the man happy?",
    "Which of the following will not happen?",
    "Why isn't he running?",
    "Who has the ball?",
    "who did it?",
    "what do you think the man is doing?",
    "Why the man ran when the dog was barking?",
    "which man that is sitting will leave?",
    "what may he do?",
    "Describe what is happening.",
    "why?",
)


def test_there_are_forty_questions():
    assert len(NEGATIONS) + len(KEPT) == 40


@pytest.mark.parametrize("question", NEGATIONS)
def test_the_auxiliary_of_the_main_clause_is_negated(question: str):
    assert negate(question) == NEGATIONS[question]


@pytest.mark.parametrize("question", KEPT)
def test_what_has_no_plain_negation_stays(question: str):
    assert negate(question) is None


@pytest.mark.parametrize("question", NEGATIONS)
def test_one_word_changes_and_it_is_an_auxiliary(question: str):
    negated = negate(question)
    assert negated is not None and negate(negated) is None, "nothing is negated twice"
    pairs = [(a, b) for a, b in zip(question.split(), negated.split(), strict=True) if a != b]
    assert len(pairs) == 1 and NEGATED[pairs[0][0]] == pairs[0][1]
