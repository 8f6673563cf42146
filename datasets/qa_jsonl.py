"""Your own questions with pictures, clips, sounds or only text: a file or folder with a question and its answer in every row.

    {"image": "clock.jpg", "question": "What time is it?", "answer": "10:10"}
    {"images": ["a.png", "b.png"], "question": "Which is larger?", "options": ["the first", "the second"], "answer": "B"}
    {"video": "match.mp4", "question": "How many goals?", "answer": 3}
    {"video": "match.mp4", "question": "Who scores first?", "A": "the red team", "B": "the blue team", "answer": "B"}
    {"video": "match.mp4", "question": "a goal is scored", "span": [12.5, 17.0]}
    {"audio": "hall.wav", "question": "the bell rings", "span": [3.0, 4.5]}
    {"question": "Solve x^2 = 2 for x > 0", "answer": "\\\\sqrt{2}", "kind": "math"}

Other layouts are recognized and reported: messages (OpenAI, ms-swift, TRL), llava, trl, problem. Each answer has a
kind, by which the reward `by_type` compares it: choice (letters), number, math (expressions), span (seconds of the clip or
sound; several are `spans`) or text (ROUGE). A row's column `kind` sets it; otherwise it is guessed, and the run reports how
often each kind was guessed. Options, of a list or of columns A, B, .., are listed below the question, and a choice is asked
for by letter, a span in seconds; nothing else is added to your question. Several turns in one row are refused.
Other columns are passed to the rewards. Licence: that of your data.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.data.layouts.load import load_prompts
from mmrl.data.layouts.source import open_source
from mmrl.data.questions import Kind, Numbering, Questions


def load(
    path: str | Path,
    split: str | None = None,
    image_root: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    layout: str | None = None,
    kind: Kind = "auto",
    numbering: Numbering = "letters",
    template: str | None = None,
) -> Sequence[Prompt]:
    """The prompts in their order; answers are letters ("A,C"), numbers or texts, None in data without labels.

    Args:
        path: a .jsonl, .json, .csv, .tsv, .parquet or .tar file; or a folder: with `<split>.jsonl`, of Hugging Face, or of
            pictures.
        split: of a folder the one to read; of a file, keep the rows whose column `split` says so.
        image_root: where relative paths of media start and which none leaves; the file's folder by default, and then
            absolute paths may name any file.
        columns: our name -> the file's, for question, answer, image, video, audio, options, kind, id, split, or a layout's own.
        layout: the layout of the file, by its name in `mmrl data check`; None: guessed and reported.
        kind: of all answers: choice, number, math or text; auto: each row's own, else guessed.
        numbering: how answers name options: letters (or wordings), or numbers counted from zero or one.
        template: the prompt's text, with {question} in it; None: the question, and for a choice that a letter is the answer.

    Raises:
        ValueError: several layouts that fit, or listing the first bad rows with file and line.
    """
    source = open_source(path, "qa_jsonl", layout, columns, split)
    root = source.root if image_root is None else Path(image_root)
    questions = Questions(root, kind, template, numbering, anywhere=image_root is None)
    prompts = load_prompts(source, questions)
    if questions.suspicion is not None:
        warnings.warn(f"{path}: {questions.suspicion}", stacklevel=2)
    kinds = ", ".join(f"{count} {name}" for name, count in questions.seen.most_common())
    source.tell(f"answers are compared as {kinds}; kind = NAME in the data set says otherwise")
    return prompts
