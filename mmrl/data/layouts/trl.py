"""TRL's vision layout with a prompt that is one text: `prompt`, `image` or `images`, and the answer in a column of its own.

    {"prompt": "How many cats?", "images": ["cats.jpg"], "answer": 2}

A prompt that is a list of turns is the layout `messages`.
"""

from collections.abc import Iterator

from mmrl.data.layouts.answers import say_answer
from mmrl.data.layouts.base import ANSWERS, CLIPS, PICTURES, Look, RowLayout, one_of, row_like
from mmrl.data.readers import Row

ANSWER = (*ANSWERS, "completion")


def is_one(look: Look) -> bool:
    asks = isinstance(look.example("prompt"), str) and not look.has_one("question", "instruction")
    return asks and look.has_one(*PICTURES, *CLIPS, *ANSWER)


def one(row: Row) -> Iterator[Row]:
    text = row.values.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"column prompt must be a text that is not empty, not {str(text)[:80]!r}")
    pictures, clips = one_of(row, *PICTURES), one_of(row, *CLIPS)
    said = {"question": text.strip(), "image": pictures or None, "video": clips or None}
    answer = say_answer(one_of(row, *ANSWER), bool(pictures))
    yield row_like(row, ("prompt", *PICTURES, *CLIPS, *ANSWER), {**said, **answer})


TRL = RowLayout(
    "trl", "TRL's vision layout: prompt and images", ("prompt", *PICTURES, *CLIPS, *ANSWER, "id", "split"), is_one, one
)
