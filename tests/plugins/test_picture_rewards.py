"""Rewards of pictures by their pixels: file sizes, drawn shapes, edits beside source and mask, and the gradients of models."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrl.core.types import Group, Prompt, Sample, Scored
from mmrl.data.drawn import shape_edits, shapes
from mmrl.data.drawn.shape_edits import INSTRUCTIONS, Instruction, State, to_bytes
from mmrl.data.drawn.shapes import WISHES, Wish, stain
from mmrl.data.validate import check
from mmrl.serving.scorers.encoders import HubEncoder, OpenClipEncoder, encoder_of, prepare
from tests.plugins.conftest import pictured
from tests.support.refused import refused

FLAT, NOISY = Image.new("RGB", (64, 64), (90, 140, 60)), Image.effect_noise((64, 64), 80).convert("RGB")
WISH, RED = Wish("red", "square", "top"), State("red", "square", "top")
STILL = (0.2, -0.4, 0.1)
NOISE = np.random.default_rng(0).random((32, 32, 3))
NOTHING = {"blank": np.full((32, 32, 3), 0.92), "black": np.zeros((32, 32, 3)), "noise": NOISE}


def kilobytes(image, quality=95):
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=quality)
    return file.tell() / 1000


def test_a_plain_picture_compresses_best_by_the_size_of_its_file_in_units_of_the_scale(reward):
    (less,) = reward("jpeg_size", scale=0.5)(pictured("a fox", NOISY))
    (more,) = reward("jpeg_size", goal="incompressible", quality=50)(pictured("a fox", NOISY))
    assert less.value == pytest.approx(-2 * kilobytes(NOISY)) and less.parts["kb"] == pytest.approx(kilobytes(NOISY))
    assert more.value == pytest.approx(kilobytes(NOISY, 50))
    assert reward("jpeg_size")(pictured("a fox", FLAT.convert("RGBA")))[0].value == pytest.approx(-kilobytes(FLAT))
    assert reward("jpeg_size")(pictured("a fox", Image.new("RGB", (6000, 4000), "white")))[0].parts["kb"] > 0, "however large"
    plain, worse = reward("jpeg_size")(pictured("a fox", FLAT, NOISY))
    assert plain.value > worse.value
    plain, best = reward("jpeg_size", goal="incompressible")(pictured("a fox", FLAT, NOISY))
    assert best.value > plain.value > 0


def picture(pixels: Any) -> Image.Image:
    return Image.fromarray(to_bytes(np.asarray(pixels, np.float32)))


def drawn(wish: Wish = WISH, **change: str) -> Any:
    return shapes.draw(wish._replace(**change), 32)


def edited(state: State, **change: str) -> Any:
    return shape_edits.draw(state._replace(**change), STILL, 32)


def task(instruction: Instruction, state: State = RED) -> Prompt:
    columns = {**state._asdict(), **instruction._asdict(), "jitter": list(STILL)}
    return Prompt("p1", instruction.text, (picture(edited(state)),), columns=columns)


@pytest.fixture
def score(reward):
    """A wish, or an instruction for a red square on top, and pixels -> (value, parts)."""

    def score_pixels(asked: Wish | Instruction, pixels: Any):
        own = isinstance(asked, Wish)
        prompt = Prompt("p1", asked.caption, columns=asked._asdict()) if own else task(asked)
        (found,) = reward("shapes" if own else "shape_edits")(Group(0, prompt, (Sample(image=picture(pixels)),)))
        return found.value, found.parts

    return score_pixels


@pytest.mark.parametrize("wish", WISHES[::5], ids=lambda wish: wish.caption)
def test_what_was_asked_for_scores_near_one(score, wish):
    value, parts = score(wish, shapes.draw(wish, 32, np.random.default_rng(0)))
    assert value > 0.9 and min(parts.values()) > 0.8
    assert value == pytest.approx(np.mean(list(parts.values())))


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_and_noise_score_zero(score, name):
    value, parts = score(WISH, NOTHING[name])
    assert value == 0 and set(parts.values()) == {0.0}
    value, parts = score(Instruction("colour", "blue"), NOTHING[name])
    assert value == 0 and parts["fulfilled"] == parts["kept"] == 0


@pytest.mark.parametrize(("part", "other"), [("colour", "blue"), ("side", "bottom"), ("shape", "triangle")])
def test_one_wrong_word_costs_its_part_alone(score, part, other):
    (_, right), (_, wrong) = score(WISH, drawn()), score(WISH, drawn(**{part: other}))
    assert wrong[part] < 0.1
    others = [name for name in right if name != part]
    assert all(abs(wrong[name] - right[name]) < 0.15 for name in others)


def test_stains_cost_the_background_and_a_blob_or_a_second_shape_the_shape(score):
    (_, clean), (_, stained) = score(WISH, drawn()), score(WISH, stain(drawn(), np.random.default_rng(1)))
    assert clean["background"] > 0.95 and stained["background"] < 0.5
    assert stained["shape"] > 0.6 and stained["side"] > 0.9
    (_, square), (_, circle) = score(WISH, drawn()), score(WISH, drawn(shape="circle"))
    assert circle["shape"] < 0.6 < 0.9 < square["shape"]
    _, two = score(WISH, np.minimum(drawn(), drawn(side="bottom")))
    assert two["shape"] == 0 and two["side"] < 0.2


def test_pixels_score_as_pictures_do_and_ascent_raises_colour_and_background(reward):
    stained = [stain(one, np.random.default_rng(i)) for i, one in enumerate((drawn(), drawn(colour="yellow")))]
    prompts, shown = [Prompt("a", columns=WISH._asdict())] * 3, [picture(one) for one in (*stained, NOTHING["blank"])]
    told = [reward("shapes")(Group(0, prompts[0], (Sample(image=one),)))[0].value for one in shown]
    pixels = torch.stack([torch.from_numpy(np.asarray(one).copy()).permute(2, 0, 1) / 255 for one in shown]).requires_grad_()
    found = reward("shapes").of_pixels(pixels, prompts)
    assert found.tolist() == pytest.approx(told, abs=1e-6) and told[2] == 0
    (gradient,) = torch.autograd.grad(found.sum(), pixels)
    better = reward("shapes").of_pixels((pixels + 0.3 * gradient / gradient.abs().amax()).detach(), prompts)
    assert bool((better > found)[:2].all()) and not gradient[2].any() and bool(gradient.isfinite().all())


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda instruction: instruction.text)
def test_the_edit_that_was_asked_for_scores_near_one_and_doing_nothing_near_zero(score, instruction):
    if getattr(RED, instruction.part) == instruction.value:
        pytest.skip("it would change nothing")
    value, parts = score(instruction, edited(instruction.after(RED)))
    assert value > 0.75 and parts["idle"] == 0
    value, parts = score(instruction, edited(RED))
    # A red square has a tenth of yellow's colour, and nearly half of a circle's shape.
    assert value < (0.5 if instruction.part == "shape" else 0.15) and parts["idle"] == 1


def test_each_part_that_is_lost_costs_its_third(score):
    instruction = Instruction("side", "left")
    whole, _ = score(instruction, edited(instruction.after(RED)))
    for other in ({"colour": "blue"}, {"shape": "triangle"}):
        value, parts = score(instruction, edited(instruction.after(RED), **other))
        assert parts["fulfilled"] > 0.9 and value == pytest.approx(2 / 3 * whole, abs=0.12)
    stained, parts = score(instruction, stain(edited(instruction.after(RED)), np.random.default_rng(1)))
    assert parts["ground"] < 0.5 and stained < 0.85 * whole


BLACK, TALL, WORDS = Sample(image=picture(NOTHING["black"])), Sample(image=picture(np.zeros((32, 16, 3)))), Sample("words")


@pytest.mark.parametrize(
    ("name", "prompt", "sample", "words"),
    [
        ("jpeg_size", Prompt("p7"), WORDS, "'p7' has no picture"),
        ("shapes", Prompt("p1", "a fox"), BLACK, r"no column 'colour'.*data set 'shapes'"),
        ("shapes", Prompt("p1", columns=WISH._asdict() | {"colour": "purple"}), BLACK, "a purple square, which cannot be drawn"),
        ("shapes", Prompt("p1", columns=WISH._asdict()), WORDS, "'p1' has no square picture"),
        ("shape_edits", Prompt("p1", "x"), BLACK, r"prompt 'p1' has no column 'part'.*data set 'shape_edits'"),
        ("shape_edits", task(Instruction("colour", "purple")), BLACK, "the colour 'purple', which cannot be drawn here"),
        ("shape_edits", task(INSTRUCTIONS[2]), TALL, r"is not square: set policy\.height"),
    ],
)
def test_what_cannot_be_scored_is_named(reward, name, prompt, sample, words):
    refused(words, reward(name), Group(0, prompt, (sample,)))


def test_settings_and_splits_that_do_not_exist_are_named(reward, dataset):
    refused("JpegSize", reward, "jpeg_size", scale=0)
    refused(r"JpegSize\.quality is 96: it must be 1 to 95", reward, "jpeg_size", quality=96)
    refused(r"data\.size is 40, but the split 'train' has 36 captions", dataset("shapes"), size=40)
    for name in ("shapes", "shape_edits"):
        refused(r"data\.split is 'test': choose one of train, held_out", dataset(name), split="test")


def test_prompts_of_the_two_splits(dataset):
    train, held_out = dataset("shapes")(), dataset("shapes")(split="held_out")
    assert (len(train), len(held_out)) == (36, 12)
    assert not {prompt.text for prompt in train} & {prompt.text for prompt in held_out}
    first = train[0]
    assert first.text == Wish(**first.columns).caption and first.id == "-".join(first.columns.values())
    assert [p.id for p in dataset("shapes")(seed=1)] != [p.id for p in train] == [p.id for p in dataset("shapes")()]
    assert len(dataset("shapes")(size=5)) == 5


def test_pairs_of_the_two_splits(dataset):
    load = dataset("shape_edits")
    train, held_out, again, other = load(times=2), load(split="held_out"), load(times=2), load(times=2, seed=1)
    assert (len(shape_edits.TASKS), len(shape_edits.TRAIN), len(shape_edits.HELD_OUT)) == (432, 324, 108)
    assert (len(train), len(held_out)) == (648, 108)
    pairs = [{(*(one.columns[name] for name in State._fields), one.text) for one in some} for some in (train, held_out)]
    assert not pairs[0] & pairs[1]
    assert {prompt.text for prompt in held_out} == {instruction.text for instruction in INSTRUCTIONS}
    assert check(train).ok and train[0].media[0].size == (32, 32)
    assert [p.id for p in again] == [p.id for p in train] != [p.id for p in other]
    shown, columns = np.asarray(train[3].media[0]), train[3].columns
    made = shape_edits.draw(State(*(columns[name] for name in State._fields)), tuple(columns["jitter"]), 32)
    assert np.array_equal(np.asarray(again[3].media[0]), shown) and np.array_equal(to_bytes(made), shown)


SOURCE = picture(shape_edits.draw(RED, shape_edits.jitter_of(np.random.default_rng(3)), 32))


def changed(left: int, right: int) -> Image.Image:
    """The source with a black stripe from column `left` to `right`."""
    found = SOURCE.copy()
    found.paste((0, 0, 0), (left, 0, right, 32))
    return found


def keeps(reward: Any, image: Image.Image, mask: Any = None, source: Any = SOURCE, **settings: Any) -> Any:
    prompt = Prompt("p7", "x", (source,) if source else (), columns={} if mask is None else {"mask": mask})
    return reward("keeps_rest", **settings)(Group(0, prompt, (Sample(image=image),)))[0]


def test_what_lies_under_the_mask_may_change_and_a_picture_left_as_it_was_earns_nothing(reward, tmp_path):
    mask = Image.new("L", (32, 32))
    mask.paste(255, (0, 0, 16, 32))
    mask.save(tmp_path / "mask.png")
    for given in (mask, str(tmp_path / "mask.png")):
        assert keeps(reward, changed(0, 16), given).value == 1
        assert keeps(reward, changed(16, 32), given).value < 0.1
    without = keeps(reward, changed(0, 16))
    assert without.value < 0.1 and without.parts["difference"] > 0.3
    half = keeps(reward, changed(16, 20), mask)
    assert 0 < half.value < 1 and half.value == pytest.approx(1 - half.parts["difference"] / 0.25)
    still = keeps(reward, SOURCE)
    assert still.value == 0 and still.parts == {"difference": 0.0, "idle": 1.0}
    assert keeps(reward, SOURCE, same=0.0, source=changed(0, 1)).parts["idle"] == 0


def test_grain_costs_less_at_less_detail_and_sources_of_another_size_are_fitted(reward):
    grainy = picture(np.asarray(SOURCE, np.float32) / 255 + np.random.default_rng(0).normal(0, 0.2, (32, 32, 3)))
    assert keeps(reward, grainy, detail=4).value > keeps(reward, grainy).value + 0.2
    wide = Image.new("RGB", (64, 32), "white")
    wide.paste(SOURCE, (16, 0))
    assert keeps(reward, changed(0, 2), source=wide, fit="crop").value > 0.7 > keeps(reward, changed(0, 2), source=wide).value


def test_faults_of_masks_and_sources_are_named(reward):
    for mask, words in (
        (Image.new("L", (16, 32)), r"the mask of prompt 'p7' is 16 x 32 pixels, but its picture has 32 x 32: cut them alike"),
        (Image.new("L", (32, 32), 255), r"the mask of prompt 'p7' is white all over"),
        ("nowhere.png", r"prompt 'p7': column mask: there is no picture 'nowhere.png'"),
        (3, r"prompt 'p7': column mask: a picture is a path or a PIL image, not int"),
    ):
        refused(words, keeps, reward, changed(0, 4), mask, error=(ValueError, FileNotFoundError))
    refused(r"prompt 'p7' has no picture: .* for prompts with a column image", keeps, reward, changed(0, 4), source=None)


def test_the_way_to_a_target(reward):
    def gone(image: Image.Image, target: Any = changed(0, 16)) -> Any:
        prompt = Prompt("p7", "x", (SOURCE,), columns={} if target is None else {"target": target})
        return reward("toward_target")(Group(0, prompt, (Sample(image=image),)))[0]

    assert gone(changed(0, 16)).value == 1
    assert gone(changed(0, 8)).value == pytest.approx(0.5, abs=0.15)
    assert gone(SOURCE).value == 0 and gone(SOURCE).parts["idle"] == 1
    assert gone(changed(16, 32)).value == 0 and gone(changed(16, 32)).parts["idle"] == 0
    refused("the target of prompt 'p7' is its source: remove the row", gone, SOURCE, SOURCE)
    refused("prompt 'p7' has no column 'target'", gone, SOURCE, None)


TEXTS = ("a red fox", "two dogs")


@pytest.fixture(scope="module")
def folder(clip_folder: Path) -> Path:
    """A tiny CLIP with a head for aesthetic."""
    torch.manual_seed(0)
    torch.save({"layers.0.weight": torch.randn(1, 16), "layers.0.bias": torch.zeros(1)}, clip_folder / "head.pth")
    return clip_folder


def waves(seed: int, size: tuple[int, int]) -> Image.Image:
    """Smooth waves of colour."""
    y, x = np.mgrid[: size[1], : size[0]]
    rng = np.random.default_rng(seed)
    colours = [127 + 100 * np.sin(rng.uniform(0.05, 0.3) * x + rng.uniform(0.05, 0.3) * y + seed) for _ in range(3)]
    return Image.fromarray(np.stack(colours, -1).astype(np.uint8))


def pixels_of(pictures: list[Image.Image]) -> Tensor:
    return torch.stack([torch.from_numpy(np.asarray(one).copy()).permute(2, 0, 1) / 255 for one in pictures])


def ascended(one: Any, size: tuple[int, int], texts: tuple[str, str] = TEXTS) -> tuple[float, Tensor, Tensor]:
    """How far scores of pixels lie from those of pictures at most, how much a step uphill raises each, and each's gradient."""
    prompts, shown = [Prompt(text, text) for text in texts], [waves(i, size) for i in range(2)]
    told = [one(Group(0, p, (Sample(image=image),)))[0] for p, image in zip(prompts, shown, strict=True)]
    pixels = pixels_of(shown).requires_grad_()
    found = one.of_pixels(pixels, prompts)
    gap = found.detach() - torch.tensor([score.value if isinstance(score, Scored) else score for score in told])
    (gradient,) = torch.autograd.grad(found.sum(), pixels)
    better = one.of_pixels((pixels + 1e-3 * gradient / gradient.abs().mean()).detach(), prompts)
    return float(gap.abs().max()), better - found.detach(), gradient


@pytest.mark.parametrize(
    ("name", "settings", "within"),
    [
        ("clip_score", {}, 0.003),
        ("clip_score", {"form": "paper"}, 0.008),
        ("pick_score", {"processor": "", "shift": 18.0, "scale": 8.0}, 0.04),
        ("aesthetic", {"head": "head.pth"}, 0.02),
    ],
)
@pytest.mark.parametrize("size", [(64, 48), (28, 28), (20, 20)])
def test_scores_are_those_of_pictures_and_ascent_raises_them(
    reward: Any, folder: Path, name: str, settings: dict[str, Any], within: float, size: tuple[int, int]
):
    settings = settings | ({"head": str(folder / "head.pth")} if "head" in settings else {})
    one = reward(name, model=str(folder), batch_size=1, **settings)
    gap, rise, gradient = ascended(one, size)
    moves = (gradient.flatten(1) != 0).any(1)
    assert gap < within and bool((rise[moves] > 0).all())
    assert bool(moves.all() if name != "clip_score" or "form" not in settings else True)


def test_pictures_of_the_encoders_own_size_are_prepared_exactly(folder: Path):
    encoder = encoder_of(str(folder), device="cpu")
    assert isinstance(encoder, HubEncoder)
    shown = [waves(i, (28, 28)) for i in range(2)]
    torch.testing.assert_close(prepare(encoder.processor, pixels_of(shown)), encoder.pixels(shown), atol=1e-5, rtol=1e-5)


def test_siglip_gives_a_gradient_through_its_own_preparation(reward: Any, siglip_folder: Path):
    """Its pictures are squashed to a square, and its texts padded to their full length."""
    one = reward("clip_score", model=str(siglip_folder), batch_size=1)
    for size, within in (((28, 28), 1e-5), ((64, 48), 0.01)):
        gap, rise, _ = ascended(one, size, ("red", "dogs"))
        assert gap < within and bool((rise > 0).all())


@pytest.mark.parametrize("size", [(64, 48), (28, 28), (20, 33)])
def test_hps_scores_pixels_between_its_black_bars(reward: Any, open_clip_folder: Path, size: tuple[int, int]):
    """On the tensor from the start, so nothing but the order of sums may differ."""
    settings = {"checkpoint": str(open_clip_folder), "architecture": str(open_clip_folder / "small-vit.json"), "device": "cpu"}
    gap, rise, _ = ascended(reward("hps_v2", batch_size=1, **settings), size)
    assert gap < 1e-5 and bool((rise > 0).all())


def test_models_of_open_clip_have_no_gradient(reward: Any, monkeypatch: pytest.MonkeyPatch):
    one = reward("clip_score", model="open_clip:ViT-H-14")
    monkeypatch.setattr(type(one), "encoder", lambda self: OpenClipEncoder.__new__(OpenClipEncoder))
    with pytest.raises(ValueError, match="models of open_clip score PIL pictures, which carry no gradient: name a model of"):
        one.of_pixels(torch.zeros(1, 3, 8, 8), [Prompt("a", "a")])
