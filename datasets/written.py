"""Prompts of another data set, as a writer that was trained with mmrl puts them: what a generator trains on in its turn.

    source = { use = "prompts", path = "wishes.jsonl" }, writer = "runs/writer"

The text is the writer's, the column `asked` the user's, which the reward `asked` reads; answers and other columns stay. The
writer answers as it does its held-out prompts, with its own system prompt. Until its run has a checkpoint, the user's own words
are the prompts, and that is said.

Licence: that of the source
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mmrl import Prompt, load_data, load_judge
from mmrl.answers.block import answer_block, opened_text
from mmrl.runtime.ranges import Count

__all__ = ["load"]

log = logging.getLogger("mmrl")


def load(
    writer: str,
    source: Mapping[str, object],
    step: Count | None = None,
    batch_size: Count = 16,
    trust_remote_code: bool = False,
) -> Sequence[Prompt]:
    """The prompts of the source, in its order, each with the writer's words.

    Args:
        writer: the folder of the run that trained the writer.
        source: another data set's table, such as `{ use = "prompts", path = "wishes.txt" }`.
        step: the writer's checkpoint; None: its newest.
        batch_size: prompts that the writer reads at a time.
        trust_remote_code: Python files of the writer's model may run, with your rights.

    Raises:
        FileNotFoundError: no such source.
        ValueError: a source without `use`, or a run whose model draws; a text that the writer left empty, by its prompt.
    """
    settings = dict(source)
    use = settings.pop("use", None)
    if not isinstance(use, str):
        raise ValueError('data.source names no data set: write source = { use = "prompts", path = "wishes.txt" }')
    prompts = list(load_data(use, **settings))
    checkpoints = Path(writer).expanduser() / "checkpoints"
    if step is None and not any(checkpoints.glob("step-*")):
        log.warning("data.writer %r has no checkpoint yet: the user's own words are drawn", writer)
        texts = [prompt.text for prompt in prompts]
    else:
        judge = load_judge(writer, step, trust_remote_code=trust_remote_code)
        texts = [answer_block(opened_text(one)) for one in judge.answers(prompts, batch_size)]
    for prompt, text in zip(prompts, texts, strict=True):
        if not text:
            raise ValueError(f"the writer {writer!r} wrote nothing for prompt {prompt.id!r}: train it further, or leave that out")
    pairs = zip(prompts, texts, strict=True)
    return [replace(prompt, text=text, columns={**prompt.columns, "asked": prompt.text}) for prompt, text in pairs]
