"""The demo's model: real classes, the chat of Qwen3-VL, and a picture that it sees."""

import pytest
import torch

from mmrl.data.drawn.scenes import draw_scene, question
from mmrl.lab.tiny.taught import BOXES


@pytest.fixture(scope="module")
def untaught(tmp_path_factory):
    return BOXES.build(tmp_path_factory.mktemp("tiny") / "untaught", 1)


def reloaded(folder):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    return AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)


def test_reloads_as_the_real_classes(untaught):
    model, processor = reloaded(untaught)
    assert type(model).__name__ == "Qwen3VLForConditionalGeneration" and type(processor).__name__ == "Qwen3VLProcessor"
    assert type(processor.tokenizer).__name__ == "Qwen2Tokenizer"
    assert sum(weight.numel() for weight in model.parameters()) < 1_000_000


def test_chat_is_written_as_qwen3_vl_writes_it(untaught):
    _, processor = reloaded(untaught)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where is the 7?"}]}]
    text = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Where is the 7?<|im_end|>\n<|im_start|>assistant\n"
    assert processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == text
    plain = processor.apply_chat_template([{"role": "system", "content": "Be brief."}], tokenize=False)
    assert plain == "<|im_start|>system\nBe brief.<|im_end|>\n"


def test_questions_have_equal_lengths_and_digits_are_single_tokens(untaught):
    tokenizer = reloaded(untaught)[1].tokenizer
    assert len({len(tokenizer(question(digit)).input_ids) for digit in range(10)}) == 1
    assert len(tokenizer("1000").input_ids) == 4
    for text in ('[{"bbox_2d": [125, 125, 625, 625]}]', "any other text: é, 漢"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    specials = [tokenizer(mark).input_ids for mark in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|image_pad|>")]
    assert all(len(ids) == 1 for ids in specials)


def test_a_picture_moves_the_answer(untaught):
    model, processor = reloaded(untaught)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question(7)}]}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    fed = [processor(text=[text], images=[[draw_scene(0, i).image]], return_tensors="pt") for i in (0, 1)]
    with torch.no_grad():
        first, second = (model(**one).logits for one in fed)
    assert (first - second).abs().max() > 0.01
