"""A reward of your own: a function from a group to one number per sample.

Use it with `--reward ./examples/my_reward.py`; run this file to see it score two texts.
"""

from mmrl import Box, Group, Prompt, Sample
from mmrl.answers.boxes.parsing import parse_boxes


def one_box(group: Group) -> list[float | None]:
    """1 for an answer with exactly one box, else 0; None (does not apply) for prompts that do not ask for one box."""
    if not isinstance(group.prompt.answer, Box):
        return [None] * len(group.samples)
    return [float(len(parse_boxes(sample.text or "", "pixel")) == 1) for sample in group.samples]


if __name__ == "__main__":
    texts = ("<answer>[10, 10, 50, 50]</answer>", "[1, 1, 2, 2] or [3, 3, 4, 4]")
    prompt = Prompt("7", "Where is the cat?", media=("cat.jpg",), answer=Box(10, 10, 50, 50))
    scores = one_box(Group(0, prompt, tuple(Sample(text) for text in texts)))
    assert scores == [1.0, 0.0], scores
    print("one_box scores", dict(zip(texts, scores, strict=True)))
