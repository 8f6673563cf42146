"""Rewards of texts, of turns and steps of an episode, of spans without labels and of edits of photos: numbers by hand."""

import json
import random
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl import Group, Observation, Prompt, Sample, Scored, Turn
from mmrl.answers.photos import lab_of, render
from mmrl.app.plugins.resolve import load
from mmrl.lab.tiny.byte_tokens import byte_tokenizer
from mmrl.serving.judges.judge import Question, Reply
from tests.support.refused import refused


@pytest.mark.parametrize(
    ("template", "text", "value"),
    [
        ("think", "<think>a</think><answer>[1, 2, 3, 4]</answer>\n", 1),
        ("think", "a</think><answer>[1, 2, 3, 4]</answer>", 1),
        ("think", "<answer>[1, 2, 3, 4]</answer>", 0),
        ("direct", "<answer>[1, 2, 3, 4]</answer>", 1),
        ("direct", "[1, 2, 3, 4]", 0),
        ("json", '{"bbox_2d": [1, 2, 3, 4]}', 1),
        ("json", "box: [1, 2, 3, 4]", 0),
    ],
)
def test_format(template, text, value, reward, group_of):
    assert reward("format", template=template)(group_of(None, text)) == [value]


def test_format_can_demand_a_box_and_needs_a_text(reward, group_of):
    texts = [f"<answer>{inside}</answer>" for inside in ("[1, 2, 3, 4]", "left of the tree", "None", "[3, 4, 1, 2]")]
    assert reward("format", template="direct", needs_box=True)(group_of(None, *texts)) == [1, 0, 1, 0]
    refused("'p7' has no text", reward("format"), Group(0, Prompt("p7"), (Sample(image=object()),)))


def lengths(*counts):
    return Group(0, Prompt("p7"), tuple(Sample("x", tuple(range(n))) for n in counts))


def test_length_band(reward):
    scores = reward("length", low=4, high=8, slope=4)(lengths(0, 2, 3, 4, 8, 9, 10, 12, 99))
    assert scores == [0, 0.5, 0.75, 1, 1, 0.75, 0.5, 0, 0]
    assert reward("length", low=4, high=8, slope=0)(lengths(3, 4, 8, 9)) == [0, 1, 1, 0]
    refused("low <= high", reward, "length", low=9, high=8)
    refused("'p7' has no tokens", reward("length"), Group(0, Prompt("p7"), (Sample("x"),)))


@pytest.mark.parametrize(
    ("text", "value", "levels"),
    [
        ("body/hand/six fingers", 1.0, [1, 1, 1]),
        ("Body > Hand > Six Fingers", 1.0, [1, 1, 1]),
        ("body/hand/four fingers", 2 / 3, [1, 1, 0]),
        ("body/foot", 1 / 3, [1, 0, 0]),
        ("body", 1 / 3, [1, 0, 0]),
        ("text", 0.0, [0, 0, 0]),
        ("body/hand/six fingers; text", (2 / 3 + 1 + 1) / 3, [2 / 3, 1, 1]),
        ("", 0.0, [0, 0, 0]),
    ],
)
def test_labels_count_by_level(reward, group_of, text, value, levels):
    (found,) = reward("label_levels")(group_of("body/hand/six fingers", text))
    assert found.value == pytest.approx(value)
    assert [found.parts[f"level_{i}"] for i in (1, 2, 3)] == pytest.approx(levels)


def test_levels_of_labels_may_weigh_more(reward, group_of):
    (found,) = reward("label_levels", weights=(1.0, 3.0))(group_of("body/hand", "body/foot"))
    assert found.value == pytest.approx(1 / 4)
    (deeper,) = reward("label_levels", weights=(1.0, 3.0))(group_of("a/b/c", "a/b/d"))
    assert deeper.value == pytest.approx(4 / 7), "the last weight counts for finer levels"
    refused("weights are all 0, so nothing would count", reward, "label_levels", weights=(0.0,))


def span_group(*texts: str, **columns: float) -> Group:
    return Group(0, Prompt("clip", "when?", answer=None, columns=columns), tuple(Sample(text) for text in texts))


def test_agreement_with_the_mean_is_trusted_the_less_the_more_spans_spread(reward):
    # mean 2 to 6, deviations 1 and 1: u = 2 seconds = 0.2 of the clip
    found = reward("pseudo_span")(span_group("from 1 to 5", "from 3 to 7", duration=10.0))
    assert [one.parts["agreement"] for one in found] == [pytest.approx(3 / 5)] * 2
    assert found[0].value == pytest.approx(3 / 5 * exp(-0.2))
    assert reward("pseudo_span")(span_group("from 1 to 5", "from 3 to 7"))[0].value == pytest.approx(3 / 5 * exp(-2))
    assert reward("pseudo_span", gamma=0.0)(span_group("from 1 to 5", "from 3 to 7"))[0].value == pytest.approx(3 / 5)


def test_the_nearer_to_the_mean_the_better_and_one_span_or_one_injected_says_nothing(reward):
    near, far, none = reward("pseudo_span")(span_group("2 to 6", "5 to 6", "no idea", duration=10.0))
    assert near.value > far.value > none.value == 0  # the mean is 3.5 to 6
    assert [one.parts["unparsed"] for one in (near, far, none)] == [0, 0, 1]
    assert reward("pseudo_span")(span_group("2 to 6", "no idea")) == [None, None]
    plain = span_group("1 to 5", "3 to 7", "8 to 9", duration=10.0)
    given = replace(plain, samples=(*plain.samples[:2], replace(plain.samples[2], role="injected")))
    assert reward("pseudo_span")(given)[0].value == pytest.approx(3 / 5 * exp(-0.2))
    assert reward("pseudo_span")(plain)[0].value != pytest.approx(3 / 5 * exp(-0.2))


ROOT = Path(__file__).parents[2]
environment = load(str(ROOT / "rewards" / "environment.py"), "rewards")
ToolBonus = load(str(ROOT / "rewards" / "tool_bonus.py"), "rewards")
TurnFormat = load(str(ROOT / "rewards" / "turn_format.py"), "rewards")
Consistency = load(str(ROOT / "rewards" / "consistency.py"), "rewards")


def episode(*answers: Observation | None, text: str = "7") -> Sample:
    return Sample(text=text, turns=tuple(Turn("a", (i, i + 1), one) for i, one in enumerate(answers)))


def group(*samples: Sample) -> Group:
    return Group(0, Prompt("p", answer="7"), samples)


def test_rewards_of_turns_are_added():
    won = episode(Observation("go on", reward=0.25), Observation(reward=0.5, done=True))
    assert environment(group(won, episode(None), episode(Observation("hm")))) == [0.75, 0.0, 0.0]
    assert environment(group(episode(Observation("hm")), episode(None))) == [None, None]


def test_a_tool_counts_with_a_right_answer_alone():
    used, failed = Observation("", facts={"tool": 1.0}), Observation("", facts={"error": 1.0})
    samples = [episode(used, None), episode(used, None, text="8"), episode(failed, None), episode(None, text="7 <|image_pad|>")]
    right = ToolBonus(correct=lambda group: [float("7" in (one.text or "")) for one in group.samples])
    assert right(group(*samples)) == [1.0, 0.0, 0.0, 0.0]
    assert ToolBonus(correct=lambda group: [None])(group(samples[0])) == [None]

    async def later(group: Group) -> list[float]:
        return [1.0] * len(group.samples)

    assert ToolBonus(correct=later)(group(*samples)) == [1.0, 1.0, 0.0, 0.0]


def said(*texts: str) -> Sample:
    return Sample(text=texts[-1], turns=tuple(Turn(text, (i, i + 1)) for i, text in enumerate(texts)))


CALL = '<tool_call>{"name": "zoom", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("sample", "share"),
    [
        (said(f"<think>closer</think>{CALL}", "<answer>7</answer>"), 1.0),
        (said("so it is</think>7"), 1.0),
        (said(f"{CALL[:-5]}", "7"), 0.5),
        (said('<tool_call>{"name"}</tool_call>', "<answer>7"), 0.0),
        (said("<think>a<think>b</think>", "7</answer>", "7", "7"), 0.5),
        (Sample(text="7"), 1.0),
    ],
)
def test_turns_are_well_formed_or_not(sample: Sample, share: float):
    (found,) = TurnFormat()(group(sample))
    assert found.value == share
    assert found.parts["malformed"] == (1 - share) * max(1, len(sample.turns))
    (whole,) = TurnFormat(whole=True)(group(sample))
    assert whole.value == float(share == 1)


def test_with_json_every_turn_is_an_object():
    score = TurnFormat(form="json")
    good = '{"thought": "", "actions": [{"name": "Terminate", "arguments": {"ans": "7"}}]}'
    assert [one.value for one in score(group(said(good, good), said(good, "7"), said('{"actions": 3}')))] == [1.0, 0.5, 0.0]
    assert TurnFormat(form="code")(group(said("<code>\nprint(1)</code>", "<code>print(1)")))[0].value == 0.5


def test_a_judge_is_asked_about_right_answers_alone(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    def replies(server: object, questions: list[Question], read: Callable[[Reply], Scored]) -> list[Scored]:
        asked.extend(question.text for question in questions)
        return [read(Reply("0" if "it is 8" in question.text else "1")) for question in questions]

    monkeypatch.setattr(sys.modules[Consistency.__module__], "ask_for_scores", replies)
    samples = (Sample(text="7", earlier="it is 8, "), Sample(text="7", earlier="it is 7, "), Sample(text="9"))
    values = Consistency(correct=lambda group: [1.0, 1.0, 0.0])(group(*samples))
    assert [one.value if isinstance(one, Scored) else one for one in values] == [0.0, 1.0, 0.0]
    assert len(asked) == 2 and "it is 8, 7" in asked[0]
    assert Consistency(correct=lambda group: [None])(group(samples[0])) == [None] and len(asked) == 2
    Consistency()(group(*samples))
    assert len(asked) == 5
    refused("a sample of prompt 'p' has no text to judge", Consistency(), group(Sample()))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny encoder of bge-m3's class, saved to disk."""
    from transformers import XLMRobertaConfig, XLMRobertaModel

    folder, tokenizer = tmp_path_factory.mktemp("encoder"), byte_tokenizer({})
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = XLMRobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=66, pad_token_id=1, **sizes)
    XLMRobertaModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def step(query: str, retriever: str) -> str:
    return f"<think>so</think><sub-question>{query}</sub-question><ret>{retriever}</ret>"


def search(*texts: str, opened: str = "", retriever: object = "Text Retriever") -> Group:
    prompt = Prompt("p7", columns={"query": "Who painted it", "retriever": retriever})
    return Group(0, prompt, tuple(Sample(text, (1,), opened=opened) for text in texts))


def test_a_step_is_compared_with_the_true_query_by_a_real_encoder_and_needs_a_retriever(reward, encoder):
    made = reward("sub_question", model=encoder)
    texts = [step("who painted it", "text retriever"), step("WHO painted it", "table retriever")]
    texts += [step("when", "Text retriever"), "who"]
    right, misled, other, malformed = made(search(*texts))
    assert right == pytest.approx(1.0, abs=1e-5) and misled == pytest.approx(0.5, abs=1e-5)
    assert other < right and malformed == 0.0
    assert made(search(texts[0].removeprefix("<think>"), opened="<think>")) == [pytest.approx(1.0, abs=1e-5)]
    long = made(search(step("who " * 99, "text retriever")))
    assert -0.5 <= long[0] <= 1.0, "longer than the encoder reads"
    assert made(Group(0, Prompt("p8"), (Sample("x", (1,)),))) == [None]
    with pytest.raises(ValueError, match=r"'p7' names the retrievers \['web'\]: name one of text retriever, "):
        made.needs.reads(search(retriever="web").prompt, made, "text")
    refused("'p8' has no column retriever", made.needs.reads, Prompt("p8", columns={"query": "a"}), made, "text")


def test_the_last_tags_of_a_step_count_however_often_they_come(reward):
    step_of = sys.modules[type(reward("sub_question")).__module__].step_of
    greedy = re.compile(r"<think>.*</think>.*<sub-question>(.*)</sub-question>.*<ret>(.*)</ret>", re.DOTALL)
    draw, pieces = random.Random(0), [*"a ", "<think>", "</think>", "<sub-question>", "</sub-question>", "<ret>", "</ret>"]
    matched = 0
    for _ in range(4000):
        text = "".join(draw.choice(pieces) for _ in range(14))
        found = greedy.search(text)
        inside = found and (found[1].strip(), [name.strip() for name in found[2].split(",")])
        assert step_of(text, [*(inside[1] if inside else ())]) == inside, text
        matched += inside is not None
    assert matched > 10
    assert step_of("".join(pieces[2:7]) * 20_000, ["none"]) is None, "in no time"


@pytest.mark.parametrize(
    ("text", "truth", "value"),
    [
        ("in the year 1,000", "1000", 1.0),
        ("red", ["green", "Red!"], 1.0),
        ("red and blue", "red blue green white black grey", 2 / 6),
        ("red and blue", ["red blue green white black grey", "teal"], 0.0),
        ("", "red", 0.0),
    ],
)
def test_words_of_the_true_answer_count(reward, group_of, text, truth, value):
    [found] = reward("answer_recall")(group_of(truth, f"<answer>{text}</answer>"))
    assert found.value == pytest.approx(value)


@pytest.mark.parametrize("truth", [7, [], ["the"], ""])
def test_an_answer_without_words_is_refused(reward, truth):
    with pytest.raises(ValueError, match=r"'p7' has the answer .*: give a text with words"):
        reward("answer_recall").needs.reads(Prompt("p7", answer=truth), None, "text")


PHOTO = Image.fromarray(np.random.default_rng(0).integers(30, 220, (8, 12, 3), dtype=np.uint8))
TRUTH = {"Exposure2012": 0.5, "Contrast2012": 10, "Clarity2012": 12}


def edits(*texts: str, truth: object = TRUTH) -> Group:
    return Group(0, Prompt("p7", media=(PHOTO,), answer=truth), tuple(Sample(text, (1,)) for text in texts))


def test_an_edit_is_judged_by_its_names_values_and_picture(reward):
    made = reward("photo_edit")
    whole = '```json\n{"Exposure2012": 0.5, "Contrast2012": 10, "Clarity2012": 12}\n```'
    darker = '{"Exposure2012": -2, "Contrast2012": 10, "Clarity2012": 12}'
    right, dark, less, nothing, odd, bad = made(
        edits(whole, darker, '{"Clarity2012": 42, "Texture": 1}', "{}", "brighter!", '{"Exposure2012": "much"}')
    )
    assert right.value == pytest.approx(1.0)
    assert dark.parts["names"] == dark.parts["values"] == 1.0 and dark.parts["picture"] < 0.7
    assert less.parts["names"] == 0.5 and less.parts["values"] == 0.0
    assert nothing.parts["names"] == 0.0 and 0.5 < nothing.parts["picture"] < 1.0, "doing nothing is not what was asked"
    assert odd.value == bad.value == 0.0 and odd.parts["unparsed"] == 1.0
    huge, unshown = made(edits(f'{{"Exposure2012": {"9" * 400}}}', f'{{"Clarity2012": {"9" * 400}}}'))
    assert huge.value == 0.0 and unshown.parts["values"] == 0.0
    refused(r"PhotoEdit.thresholds is .*: it must be above 0", reward, "photo_edit", thresholds={"Texture": 0.0})


def mask(*ends: float, exposure: float = 0.2, **told: object) -> dict[str, Any]:
    """A correction of one linear gradient."""
    part = {"What": "Mask/Gradient", **dict(zip(("ZeroX", "ZeroY", "FullX", "FullY"), ends, strict=True)), **told}
    return {"What": "Correction", "CorrectionMasks": [part], "LocalExposure2012": exposure}


def test_masks_are_matched_and_compared_by_place_and_values(reward):
    made, sky = reward("photo_edit"), mask(0.5, 0.1, 0.5, 0.6)
    said = {
        "same": [sky],
        "moved": [mask(0.6, 0.1, 0.6, 0.6)],
        "wrong": [mask(0.5, 0.1, 0.5, 0.6, exposure=0.16)],
        "turned": [mask(0.5, 0.1, 0.5, 0.6, MaskInverted=True)],
        "blended": [mask(0.5, 0.1, 0.5, 0.6, MaskBlendMode=1)],
        "weak": [mask(0.5, 0.1, 0.5, 0.6, MaskValue=0.5)],
        "too many": [mask(0.0, 0.9, 0.9, 0.9), sky],
        "two parts": [{**sky, "CorrectionMasks": [*sky["CorrectionMasks"], *sky["CorrectionMasks"]]}],
        "far": [mask(1e308, -1e308, 0.5, 0.6)],
        "none": [],
        "odd": "a gradient",
    }
    wanted = {"MaskGroupBasedCorrections": [sky]}
    scored = made(edits(*(json.dumps({"MaskGroupBasedCorrections": one}) for one in said.values()), "?", truth=wanted))
    found = dict(zip(said, (one.parts["masks"] for one in scored), strict=False))
    half = 0.4 + 0.6 * (0.7 * 0.5 + 0.3)
    assert found == pytest.approx({
        **{"same": 1.0, "moved": 0.4 + 0.6 * (0.7 * 0.8 + 0.3), "wrong": 0.4 + 0.6 * 0.5, "turned": 0.0, "weak": half},
        **{"blended": 0.4 + 0.6 * (0.7 * 0.4 + 0.3), "too many": 1.0, "two parts": 0.0, "far": half, "none": 0.0, "odd": 0.0},
    })  # fmt: skip
    assert scored[-1].value == scored[-1].parts["masks"] == 0.0 and "masks" not in made(edits("{}"))[0].parts
    two = {"MaskGroupBasedCorrections": [sky, mask(0.1, 0.9, 0.9, 0.9)]}
    [one_of_two] = made(edits(json.dumps(wanted), truth=two))
    assert one_of_two.parts["masks"] == pytest.approx(0.4 / 2 + 0.6)


@pytest.mark.parametrize(
    ("truth", "said"),
    [
        ({"MaskGroupBasedCorrections": [{"CorrectionMasks": [{"What": "Mask/Image"}]}]}, "no other kind of mask is compared"),
        ({"MaskGroupBasedCorrections": []}, "must be a list of corrections"),
        ({"Contrast2012": 400}, "Contrast2012 is 400: write a number from -100 to 100"),
        ({"ToneCurvePV2012": [[0, 0]]}, "write two points"),
        ({"ToneCurvePV2012": [[9, 0], [3, 255]]}, "and rising"),
        ({"ToneCurvePV2012": [[0, 0], [255, 300]]}, "and rising"),
        ({}, "needs a picture, and an object|needs a picture and an object"),
        ("brighter", "needs a picture and an object"),
    ],
)
def test_true_edits_that_cannot_be_drawn_are_refused(reward, truth, said):
    made = reward("photo_edit")
    refused(f"'p7'.*({said})", made.needs.reads, edits(truth=truth).prompt, made, "text")


def test_the_renderer_does_what_the_names_say_and_lab_is_that_of_the_standard():
    picture = np.asarray(PHOTO, dtype=np.float64) / 255
    np.testing.assert_allclose(render(picture, {}), picture, atol=1e-12)
    grey = np.full((1, 1, 3), 0.5)
    linear = ((0.5 + 0.055) / 1.055) ** 2.4
    np.testing.assert_allclose(render(grey, {"Exposure2012": 1}), 1.055 * (2 * linear) ** (1 / 2.4) - 0.055)
    assert render(picture, {"Contrast2012": 50}).std() > picture.std() > render(picture, {"Contrast2012": -50}).std()
    warm = render(grey, {"Temperature": 40})[0, 0]
    assert warm[0] > warm[1] > warm[2]
    inverted = render(picture, {"ToneCurvePV2012": [[0, 255], [255, 0]]})
    np.testing.assert_allclose(inverted, 1 - picture, atol=1e-12)
    colours = np.array([[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
    known = [[100.0, 0.0, 0.0], [0.0, 0.0, 0.0], [53.2408, 80.0925, 67.2032], [32.2970, 79.1875, -107.8602]]
    np.testing.assert_allclose(lab_of(colours)[0], known, atol=0.02)
