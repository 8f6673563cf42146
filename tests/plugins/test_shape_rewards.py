"""The reward of coloured shapes and the captions it is for: real drawings near 1, nothing and noise 0, each part on its own."""

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.types import Group, Prompt, Sample
from mmrl.data.drawn.shapes import WISHES, Wish, draw, stain

WISH = Wish("red", "square", "top")


def picture(pixels):
    return Image.fromarray((np.asarray(pixels).clip(0, 1) * 255).round().astype(np.uint8))


@pytest.fixture
def score(reward):
    """A wish and a drawing -> (value, parts)."""

    def score_drawing(wish, image):
        prompt = Prompt("p1", wish.caption, columns=wish._asdict())
        (found,) = reward("shapes")(Group(0, prompt, (Sample(image=image),)))
        return found.value, found.parts

    return score_drawing


@pytest.mark.parametrize("wish", WISHES[::5], ids=lambda wish: wish.caption)
def test_what_was_asked_for_scores_near_one(score, wish):
    value, parts = score(wish, picture(draw(wish, 32, np.random.default_rng(0))))
    assert value > 0.9 and min(parts.values()) > 0.8
    assert value == pytest.approx(np.mean(list(parts.values())))


@pytest.mark.parametrize(
    "pixels",
    [
        np.full((32, 32, 3), 0.92),
        np.zeros((32, 32, 3)),
        np.random.default_rng(0).random((32, 32, 3)),
    ],
    ids=["blank", "black", "noise"],
)
def test_nothing_and_noise_score_zero(score, pixels):
    value, parts = score(WISH, picture(pixels))
    assert value == 0 and set(parts.values()) == {0.0}


@pytest.mark.parametrize(
    ("part", "drawn"),
    [
        ("colour", WISH._replace(colour="blue")),
        ("side", WISH._replace(side="bottom")),
        ("shape", WISH._replace(shape="triangle")),
    ],
)
def test_one_wrong_word_costs_its_part_alone(score, part, drawn):
    _, right = score(WISH, picture(draw(WISH, 32)))
    _, wrong = score(WISH, picture(draw(drawn, 32)))
    assert wrong[part] < 0.1
    others = [name for name in right if name != part]
    assert all(abs(wrong[name] - right[name]) < 0.15 for name in others)


def test_stains_cost_the_background_and_little_else(score):
    _, clean = score(WISH, picture(draw(WISH, 32)))
    _, stained = score(WISH, picture(stain(draw(WISH, 32), np.random.default_rng(1))))
    assert clean["background"] > 0.95 and stained["background"] < 0.5
    assert stained["shape"] > 0.6 and stained["side"] > 0.9


def test_a_round_blob_is_no_square_and_a_second_shape_costs(score):
    _, square = score(WISH, picture(draw(WISH, 32)))
    _, circle = score(WISH, picture(draw(WISH._replace(shape="circle"), 32)))
    assert circle["shape"] < 0.6 < 0.9 < square["shape"]
    both = np.minimum(draw(WISH, 32), draw(WISH._replace(side="bottom"), 32))
    _, two = score(WISH, picture(both))
    assert two["shape"] == 0 and two["side"] < 0.2


def test_pixels_score_as_pictures_do_and_ascent_raises_colour_and_background(reward):
    drawn = [stain(draw(one, 32), np.random.default_rng(i)) for i, one in enumerate((WISH, WISH._replace(colour="yellow")))]
    prompts, blank = [Prompt("a", columns=WISH._asdict())] * 3, np.full((32, 32, 3), 0.92)
    shown = [picture(one) for one in (*drawn, blank)]
    told = [reward("shapes")(Group(0, prompts[0], (Sample(image=one),)))[0].value for one in shown]
    pixels = torch.stack([torch.from_numpy(np.asarray(one).copy()).permute(2, 0, 1) / 255 for one in shown]).requires_grad_()
    found = reward("shapes").of_pixels(pixels, prompts)
    assert found.tolist() == pytest.approx(told, abs=1e-6) and told[2] == 0
    (gradient,) = torch.autograd.grad(found.sum(), pixels)
    better = reward("shapes").of_pixels((pixels + 0.3 * gradient / gradient.abs().amax()).detach(), prompts)
    assert bool((better > found)[:2].all()) and not gradient[2].any() and bool(gradient.isfinite().all())


def test_mistakes_are_named(reward):
    with pytest.raises(ValueError, match=r"no column 'colour'.*data set 'shapes'"):
        reward("shapes")(Group(0, Prompt("p1", "a fox"), (Sample(image=picture(np.zeros((8, 8, 3)))),)))
    with pytest.raises(ValueError, match="a purple square, which cannot be drawn"):
        reward("shapes")(Group(0, Prompt("p1", columns=WISH._replace(colour="purple")._asdict()), ()))
    with pytest.raises(ValueError, match="'p1' has no square picture"):
        reward("shapes")(Group(0, Prompt("p1", columns=WISH._asdict()), (Sample("words"),)))


def test_prompts_of_the_two_splits(dataset):
    train, held_out = dataset("shapes")(), dataset("shapes")(split="held_out")
    assert (len(train), len(held_out)) == (36, 12)
    assert not {prompt.text for prompt in train} & {prompt.text for prompt in held_out}
    first = train[0]
    assert first.text == Wish(**first.columns).caption and first.id == "-".join(first.columns.values())
    assert [p.id for p in dataset("shapes")(seed=1)] != [p.id for p in train] == [p.id for p in dataset("shapes")()]
    assert len(dataset("shapes")(size=5)) == 5
    with pytest.raises(ValueError, match=r"data\.split is 'test': choose one of train, held_out"):
        dataset("shapes")(split="test")
    with pytest.raises(ValueError, match=r"data\.size is 40, but the split 'train' has 36 captions"):
        dataset("shapes")(size=40)
