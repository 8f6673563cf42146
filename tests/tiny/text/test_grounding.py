"""The demo's model: real classes, a warm start that lowers the loss, and a cache that tells settings apart."""

import numpy as np
import pytest
import torch

from mmrl.answers.boxes.box import Box, iou
from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.core.types import MediaSize
from mmrl.tiny.text import grounding
from mmrl.tiny.text.grounding import SIDE, WarmStart, answer_text, build, labels, warm_start

SHORT = WarmStart(steps=16, batch_size=8)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    return build(tmp_path_factory.mktemp("tiny") / "untrained", seed=1)


def reloaded(folder):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    return AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)


def fed(processor):
    batch = next(labels(WarmStart(batch_size=3)))
    return grounding._inputs(processor, batch), batch


def test_reloads_as_the_real_classes_with_the_same_ids_and_weights(untrained):
    built, processor = grounding._build(1)
    model, again = reloaded(untrained)
    assert type(model).__name__ == "Qwen3VLForConditionalGeneration" and type(again).__name__ == "Qwen3VLProcessor"
    assert type(again.tokenizer).__name__ == "Qwen2Tokenizer"
    assert all(torch.equal(a, b) for a, b in zip(built.state_dict().values(), model.state_dict().values(), strict=True))
    before, after = fed(processor)[0], fed(again)[0]
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert sum(weight.numel() for weight in model.parameters()) < 1_000_000


def test_chat_is_written_as_qwen3_vl_writes_it(untrained):
    _, processor = reloaded(untrained)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where is the 7?"}]}]
    text = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Where is the 7?<|im_end|>\n<|im_start|>assistant\n"
    assert processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == text
    plain = processor.apply_chat_template([{"role": "system", "content": "Be brief."}], tokenize=False)
    assert plain == "<|im_start|>system\nBe brief.<|im_end|>\n"


def test_questions_have_equal_lengths_and_digits_are_single_tokens(untrained):
    tokenizer = reloaded(untrained)[1].tokenizer
    assert len({len(tokenizer(f"Where is the {digit}?").input_ids) for digit in range(10)}) == 1
    assert len(tokenizer("1000").input_ids) == 4
    for text in (answer_text((0.0, 8.0, 33.0, 64.0)), "any other text: é, 漢"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    specials = [tokenizer(mark).input_ids for mark in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|image_pad|>")]
    assert all(len(ids) == 1 for ids in specials)


def test_only_the_answer_is_learnt(untrained):
    _, processor = reloaded(untrained)
    inputs, batch = fed(processor)
    for (scene, answer), ids in zip(batch, inputs["labels"], strict=True):
        assert processor.tokenizer.decode(ids[ids != -100]) == answer + "<|im_end|>"
        assert scene.question.startswith("Where is the ")


def test_labels_are_loose_and_half_of_them_confused():
    batch = next(labels(WarmStart(batch_size=400)))
    overlaps, wrong = [], 0
    for scene, answer in batch:
        (box,) = (found.to("norm1", None) for found in parse_boxes(answer, "norm1000"))
        size = MediaSize(SIDE, SIDE, SIDE, SIDE)
        truths = [Box(*placed.corners).to("norm1", size) for placed in (scene.asked, *scene.distractors)]
        found = [iou(box, truth) for truth in truths]
        wrong += found[0] < found[1]
        overlaps.append(max(found))
    assert 0.42 < wrong / 400 < 0.58
    assert 0.5 < np.mean(overlaps) < 0.75
    exact = next(labels(WarmStart(batch_size=20, loosen=0.0, confused=0.0)))
    assert all(answer == answer_text(scene.asked.corners) for scene, answer in exact)


def test_a_short_warm_start_lowers_the_loss_and_repeats_itself(tmp_path):
    losses, again = [], []
    first = warm_start(SHORT, tmp_path / "first", lambda step, steps, loss: losses.append(loss))
    second = warm_start(SHORT, tmp_path / "second", lambda step, steps, loss: again.append(loss))
    assert len(losses) == 16 and losses[-1] < 0.8 * losses[0]
    assert losses == again
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_the_cache_is_used_and_tells_settings_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    steps = []
    settings = WarmStart(steps=1, batch_size=2)
    folder = warm_start(settings, progress=lambda step, num_steps, loss: steps.append(step))
    assert folder.parent == tmp_path / "cache"
    assert warm_start(settings, progress=lambda step, num_steps, loss: steps.append(step)) == folder and steps == [1]
    assert grounding.fingerprint(settings) == folder.name.rsplit("-", 1)[1] != grounding.fingerprint(WarmStart(steps=2))


def test_a_picture_moves_the_answer(untrained):
    model, processor = reloaded(untrained)
    inputs, _ = fed(processor)
    inputs.pop("labels")
    turned = inputs | {"pixel_values": inputs["pixel_values"].flip(0)}
    with torch.no_grad():
        assert (model(**inputs).logits - model(**turned).logits).abs().max() > 0.01


def test_scenes_of_another_size_are_refused():
    from mmrl.data.drawn.scenes import SceneStyle

    with pytest.raises(ValueError, match="64 x 64"):
        WarmStart(style=SceneStyle(side=128))
