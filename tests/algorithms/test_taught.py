"""Rows that are taught: whose text, which thoughts, and what is refused."""

from dataclasses import replace

import pytest
import torch

from mmrl.algorithms.advantages.experts import Demonstrated
from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.planners.taught import Taught
from mmrl.core.types import Prompt, Request
from tests.support.rows import rollouts, scores

PROMPT = Prompt("p", "which?", answer="(3,4)", columns={"completion": "<think>Left.</think>(3,4)", "number": 7})


def asked(planner: Taught, *prompts: Prompt, seed: int = 0) -> list[Request]:
    return list(planner.first(prompts, 8, 0, seed))


def test_one_row_per_prompt_with_the_text_of_its_column():
    requests = asked(Taught(), PROMPT, replace(PROMPT, id="q", columns={}), replace(PROMPT, id="r", answer=12, columns={}))
    assert [request.written for request in requests] == ["<think>Left.</think>(3,4)", "(3,4)", "12"]
    assert {(request.count, request.role) for request in requests} == {(1, "injected")}


def test_thoughts_are_dropped_by_seed_and_share_and_the_answer_stays():
    prompts = [replace(PROMPT, id=str(i)) for i in range(400)]
    texts = [request.written for request in asked(Taught(thought_dropout=0.25), *prompts)]
    assert set(texts) == {"<think>Left.</think>(3,4)", "<think>\n\n</think>(3,4)"}
    assert 70 < texts.count("<think>\n\n</think>(3,4)") < 130
    assert texts == [request.written for request in asked(Taught(thought_dropout=0.25), *prompts)]
    assert texts != [request.written for request in asked(Taught(thought_dropout=0.25), *prompts, seed=1)]
    assert {request.written for request in asked(Taught(thought_dropout=1.0), *prompts)} == {"<think>\n\n</think>(3,4)"}


@pytest.mark.parametrize(
    ("planner", "prompt", "message"),
    [
        (Taught("trace"), PROMPT, r"prompt 'p' has nothing in the column 'trace', where .* \(its columns: completion, number\)"),
        (Taught("number"), PROMPT, "prompt 'p' has '7' in the column 'number'"),
        (Taught(), replace(PROMPT, answer=None, columns={}), r"has nothing in the column 'completion', .* \(its columns: none\)"),
        (Taught(), replace(PROMPT, answer=object(), columns={}), "has '<object .* in the column 'completion'"),
        (Taught(thought_dropout=0.5), replace(PROMPT, columns={}), "none of the 1 completions that were looked at has a thought"),
    ],
)
def test_refused(planner: Taught, prompt: Prompt, message: str):
    with pytest.raises(ValueError, match=message):
        planner.check_prompts([prompt])
    Taught().check_prompts([PROMPT])


def test_rows_without_a_reward_are_kept():
    rows = rollouts(torch.tensor([[1, 1, 1], [1, 1, 0]]), [0, 1])
    credit = Demonstrated()(scores(torch.tensor([[float("nan")], [1.0]])), rows)
    assert bool(credit.keep.all()) and torch.equal(credit.values, torch.ones(2, 3))
    assert KINDS["sft"].unscored
