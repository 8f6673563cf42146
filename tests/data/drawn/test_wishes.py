"""Wishes in users' words: none that captions know, and paraphrases of which one in three is."""

import numpy as np

from mmrl.app.plugins.resolve import load
from mmrl.data.drawn.shapes import COLOURS, HELD_OUT, SHAPES, SIDES, TRAIN, Wish
from mmrl.data.drawn.wishes import OPENINGS, OTHER, paraphrase

KNOWN = {*COLOURS, *SHAPES, *SIDES}


def test_no_user_says_a_word_of_the_captions_and_everything_is_asked_for_equally_often():
    wishes = load("wishes", "datasets")
    for split, combinations in (("train", TRAIN), ("held_out", HELD_OUT)):
        prompts = wishes(split)
        assert len({one.text for one in prompts}) == len(prompts) == len(combinations) * len(OPENINGS) * 8
        asked = [Wish(*(one.columns[name] for name in Wish._fields)) for one in prompts]
        assert {asked.count(wish) for wish in combinations} == {len(OPENINGS) * 8}
        for wish, one in zip(asked, prompts, strict=True):
            said = set(one.text.split())
            assert not said & KNOWN and all(said & set(OTHER[word]) for word in wish)
    assert wishes(size=5, seed=3) == wishes(seed=3)[:5] != wishes(size=5)


def test_a_paraphrase_says_each_thing_in_one_of_three_words():
    rng, wish = np.random.default_rng(0), Wish("red", "circle", "left")
    said = [paraphrase(wish, rng).split() for _ in range(600)]
    for place, word in ((1, "red"), (2, "circle"), (5, "left")):
        words = [one[place] for one in said]
        assert set(words) == {word, *OTHER[word]} and 150 < words.count(word) < 250
