import pytest

from mmrl.core.types import Prompt
from mmrl.data.difficulty import keep_learnable, success_share

PROMPTS = [Prompt(name) for name in "abcd"]
SCORES = {"a": [0.0, 0.2, 0.4, 0.1], "b": [0.5, 0.0, 0.0, 0.0], "c": [0.9, 0.9, 0.9, 0.2], "d": [1.0] * 4}


def test_always_and_never_right_leave():
    kept = keep_learnable(PROMPTS, SCORES)
    assert [prompt.id for prompt in kept.prompts] == ["b", "c"]
    assert (kept.num_too_easy, kept.num_too_hard) == (1, 1)
    assert str(kept) == "2 of 4 prompts kept, 1 too easy, 1 too hard"
    assert [prompt.id for prompt in keep_learnable(PROMPTS, SCORES, 0.25, 0.25).prompts] == ["b"]
    assert [prompt.id for prompt in keep_learnable(PROMPTS, SCORES, success_at=0.1).prompts] == ["a", "b"]


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="'d' has no scores"):
        keep_learnable(PROMPTS, {name: SCORES[name] for name in "abc"})
    with pytest.raises(ValueError, match="interval"):
        keep_learnable(PROMPTS, SCORES, 0.9, 0.1)
    with pytest.raises(ValueError, match="at least one"):
        success_share([])
    with pytest.raises(ValueError, match="numbers"):
        success_share([float("nan")])
