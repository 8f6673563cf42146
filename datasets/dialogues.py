"""Conversations that a model is taught turn by turn: LLaVA's and ShareGPT's `conversations`, OpenAI's and ms-swift's `messages`.

    {"image": "cat.jpg", "conversations": [{"from": "human", "value": "<image>What is it?"}, {"from": "gpt", "value": "A cat."},
     {"from": "human", "value": "Where?"}, {"from": "gpt", "value": "On the left."}]}
    {"images": ["cat.jpg", "part.png"], "messages": [{"role": "user", "content": "<image>How old is it?"},
     {"role": "assistant", "content": "<tool_call>..</tool_call>"}, {"role": "tool", "content": "<image>"},
     {"role": "assistant", "content": "A year."}]}

The first question is the prompt, and what follows is the column `completion`, for a stage of the kind `sft`: the model's turns
are taught, what users and tools say in between is shown. Pictures stand at their <image> markers, in the order of the row's list,
or first without any; clips only in the first question. System messages are refused, for the policy has its own.
Rows may be JSONL, JSON, parquet, tar files or data of Hugging Face. Licence: that of your data.
"""

from collections.abc import Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.data.dialogues import dialogue
from mmrl.data.layouts.files import prompts_in
from mmrl.runtime.ranges import Count


def load(
    path: str | Path, split: str | None = None, image_root: str | Path | None = None, size: Count | None = None
) -> Sequence[Prompt]:
    """The file's dialogues, in its order.

    Args:
        path: a JSONL, JSON, parquet or tar file; or a folder: with `<split>.jsonl`, of Hugging Face, or of pictures.
        split: of a folder the one to read; of a file, keep the rows whose column `split` says so.
        image_root: where relative paths start and which none leaves; the file's folder by default, and then absolute paths may
            name any file.
        size: how many rows are read; None: all.

    Raises:
        ValueError: listing the first bad rows with file and line.
    """
    return prompts_in(path, split, image_root, dialogue, size)
