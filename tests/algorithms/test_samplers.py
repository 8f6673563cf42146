from collections.abc import Iterator

import pytest

from mmrl.algorithms.samplers.base import Shuffled, Streamed
from mmrl.core.protocols import PromptSampler
from mmrl.core.types import Prompt

PROMPTS = [Prompt(str(i)) for i in range(7)]


class Anew:
    """A stream that starts again each time it is read."""

    def __iter__(self) -> Iterator[Prompt]:
        yield from PROMPTS


def ids(prompts: list[Prompt]) -> list[str]:
    return [prompt.id for prompt in prompts]


SAMPLERS = {
    "shuffled": lambda seed=0: Shuffled(PROMPTS, seed),
    "streamed": lambda seed=0: Streamed(Anew(), seed, buffer_size=3),
}
both = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


def test_peeking_moves_nothing():
    sampler = Shuffled(PROMPTS, 3)
    for size in (3, 5, 9):
        ahead = ids(list(sampler.peek(size)))
        assert ids(list(sampler.peek(2))) == ahead[:2]
        assert ids(sampler.draw(size)) == ahead


@both
def test_every_epoch_holds_every_prompt_once_in_a_new_order(make):
    sampler = make()
    assert isinstance(sampler, PromptSampler)
    drawn = [prompt for size in (3, 9, 2) for prompt in ids(sampler.draw(size))]
    assert sorted(drawn[:7]) == sorted(drawn[7:]) == ids(PROMPTS)
    assert drawn[:7] != drawn[7:]
    assert drawn[:7] != ids(PROMPTS)


@both
def test_the_seed_decides(make):
    assert ids(make(1).draw(20)) == ids(make(1).draw(20))
    assert ids(make(1).draw(20)) != ids(make(2).draw(20))


@both
@pytest.mark.parametrize("before", [0, 4, 7, 17])
def test_resumed_is_uninterrupted(make, before):
    through, first, resumed = make(), make(), make()
    expected = ids(through.draw(before))[before:] + ids(through.draw(10))
    first.draw(before)
    resumed.draw(5)
    resumed.load_state_dict(first.state_dict())
    assert ids(resumed.draw(10)) == expected
    assert resumed.state_dict() == through.state_dict()


def test_a_checkpoint_of_other_data_is_refused():
    with pytest.raises(ValueError, match="num_prompts 7, this run has 6"):
        Shuffled(PROMPTS[1:]).load_state_dict(Shuffled(PROMPTS).state_dict())
    with pytest.raises(ValueError, match="buffer_size 3, this run has 4"):
        Streamed(Anew(), buffer_size=4).load_state_dict(Streamed(Anew(), buffer_size=3).state_dict())


def test_no_prompts_is_an_error():
    with pytest.raises(ValueError, match="the data set has no prompts"):
        Shuffled([])
    with pytest.raises(ValueError, match="gave nothing in epoch 0"):
        Streamed([]).draw(1)


def test_an_iterator_lasts_one_epoch_and_does_not_rewind():
    sampler = Streamed(iter(PROMPTS), buffer_size=2)
    state = sampler.state_dict()
    assert sorted(ids(sampler.draw(7))) == ids(PROMPTS)
    with pytest.raises(ValueError, match="cannot be rewound"):
        sampler.load_state_dict(state)
    with pytest.raises(ValueError, match=r"gave nothing in epoch 1.*__iter__ starts anew"):
        sampler.draw(1)


def test_a_buffer_of_one_keeps_the_order():
    assert ids(Streamed(Anew(), buffer_size=1).draw(14)) == ids(PROMPTS) * 2
    with pytest.raises(ValueError, match="buffer_size is 0"):
        Streamed(Anew(), buffer_size=0)
