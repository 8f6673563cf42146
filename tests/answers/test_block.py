import pytest

from mmrl.answers.block import answer_block, keeps_format, opened_text
from mmrl.core.samples import Sample


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> B </answer>", "B"),
        ("<answer>A</answer> no, <answer>B</answer>", "B"),
        ("<answer>A</answer> no, <answer>B", "A"),
        ("<answer>A <answer>B</answer>", "B"),
        ("plain", "plain"),
        ("<think>A</think> B", "B"),
        ("A</think> B", "B"),
        ("<think>A, cut", ""),
        ("<think>A? <answer>A</answer>, but", ""),
        ("<think>So <answer>A</answer>\n", "A"),
        ("</answer><answer>", "</answer><answer>"),
        ("", ""),
    ],
)
def test_answer_block(text, answer):
    assert answer_block(text) == answer


def test_a_text_stands_behind_the_tag_that_its_template_opened():
    texts = {("B", ""): "B", ("B", "<think>"): "<think>B", ("\n<think>x</think>B", "<think>"): "\n<think>x</think>B"}
    assert {key: opened_text(Sample(key[0], opened=key[1])) for key in texts} == texts


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<think>a</think><answer>b</answer>", True),
        ("<think>a</think>\n\n<answer>b</answer>", True),
        ("<think>a\nb</think><answer>b\nc</answer>", True),
        ("<think></think><answer></answer>", True),
        # Video-R1's and VLM-R1's expression refuses blanks at the ends
        ("<think>a</think><answer>b</answer>\n", True),
        (" <think>a</think><answer>b</answer> ", True),
        # the chat template has opened the thought
        ("a</think><answer>b</answer>", True),
        # and accepts a second answer, because its `.*?` stretches
        ("<think>a</think><answer>b</answer><answer>c</answer>", False),
        ("<think>a</think><answer>b</answer> c", False),
        ("x <think>a</think><answer>b</answer>", False),
        ("<think>a<answer>b</answer>", False),
        ("<think>a</think>x<answer>b</answer>", False),
        ("<think>a</think></think><answer>b</answer>", False),
        ("<think><think>a</think><answer>b</answer>", False),
        ("<think>a <answer>c</answer></think><answer>b</answer>", False),
        ("<answer>b</answer>", False),
        ("", False),
    ],
)
def test_think_template(text, kept):
    assert keeps_format(text, "think") is kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<answer>[1, 2, 3, 4]</answer>", True),
        ("\n<answer>b</answer>\n", True),
        ("<answer>b</answer><answer>c</answer>", False),
        ("b", False),
        ("<answer>b", False),
        ("<answer></answer", False),
        ("well: <answer>b</answer>", False),
        ("<think>a</think><answer>b</answer>", False),
    ],
)
def test_direct_template(text, kept):
    assert keeps_format(text, "direct") is kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('[{"bbox_2d": [1, 2, 3, 4]}]', True),
        ('```json\n{"a": 1}\n```\n', True),
        ("```\n[1]\n```", True),
        ("{'a': 1}", False),
        ("[1, 2", False),
        ("text [1]", False),
        ("[" * 100_000, False),
    ],
    ids=range(7),
)
def test_json_template(text, kept):
    assert keeps_format(text, "json") is kept
