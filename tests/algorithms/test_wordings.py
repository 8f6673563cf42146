"""A prompt asked in several words: who answers which, how far answers agree across them, and what is refused."""

from dataclasses import replace

import pytest
import torch

from mmrl.algorithms.planners.begun import Wordings
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.algorithms.shaping.reference import Agreement, agreement
from mmrl.core.types import Group, Prompt, Sample
from tests.support import fakes
from tests.support.rows import rollouts, scores
from tests.support.trainers import make_trainer

PROMPT = Prompt("p", "Which colour?", columns={"paraphrases": ["What hue is it?", "Name its colour."]})


def test_the_wordings_share_a_group_and_train_as_they_are_asked():
    asked = Wordings().first([PROMPT], 7, 4, 0)
    assert [one.count for one in asked] == [3, 2, 2] and {one.group_id for one in asked} == {4}
    assert [one.shown_prompt.text for one in asked] == ["Which colour?", "What hue is it?", "Name its colour."]
    assert [one.shown.trained for one in asked] == [False, True, True] and len({one.seed for one in asked}) == 3


def test_a_sample_is_compared_with_those_of_the_other_wordings_alone():
    """Three answer the first wording, two each of the others, as the planner asks; one row was dropped."""
    texts = ["a red car", "a red car", "blue", "a red bus", "blue", "blue", "a red car"]
    found = rollouts(torch.ones(7, 1))
    group = Group(0, PROMPT, tuple(Sample(text) for text in texts))
    found = replace(found, groups=(group,))
    kept = torch.tensor([0, 2, 3, 6])
    made = scores(torch.zeros(7, 1, dtype=torch.float64))
    expected = [value for row in agreement([texts[:3], texts[3:5], texts[5:]]) for value in row]
    shaped = Agreement(weight=0.5)(made.take(kept), found.take(kept), {})
    assert shaped.values[:, -1].tolist() == pytest.approx([expected[i] for i in kept.tolist()])
    assert shaped.total().tolist() == pytest.approx([0.5 * expected[i] for i in kept.tolist()])
    assert expected[2] == pytest.approx(2 / 4), "blue: one of two, and one of two"


def test_a_step_is_sampled_and_trained():
    data = [replace(one, columns={**one.columns, "paraphrases": f"{one.text} Please."}) for one in fakes.prompts()]
    algorithm = replace(PRESETS["grpo"], planner=Wordings(), shaping=(Agreement(),), group_size=4)
    trainer = make_trainer(algorithm, sampler=Shuffled(data, seed=0), prompts_per_step=4)
    metrics = trainer.step()
    assert 0 < metrics["reward/agreement"] < 1 and metrics["policy/grad_norm"] > 0


def test_sets_of_one_and_groups_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match="'q' has no other wording in the column 'paraphrases', and a set of one agrees"):
        Wordings().check_prompts([PROMPT, Prompt("q", "Where?")])
    with pytest.raises(ValueError, match=r"'p' has 3 wordings, and algorithm.group_size is 2: set it to 3 or more"):
        Wordings().first([PROMPT], 2, 0, 0)
    with pytest.raises(ValueError, match="at least two paraphrases"):
        Agreement().of_group(Group(0, Prompt("q"), (Sample("a"), Sample("b"))))
