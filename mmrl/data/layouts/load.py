"""Prompts of a source, all checked before training starts."""

from collections.abc import Sequence

from mmrl.core.types import Prompt
from mmrl.data.layouts.hf_prompts import StoredPrompts
from mmrl.data.layouts.read import RowReader, TranslatingReader, read_prompts
from mmrl.data.layouts.source import Source
from mmrl.data.readers import open_hf


def load_prompts(source: Source, reader: RowReader) -> Sequence[Prompt]:
    """The source's prompts in order; of a data set of Hugging Face on disk, pictures are opened when a prompt is used.

    Raises ValueError listing the first bad rows.
    """
    source.say_layout()
    if source.is_stored:
        data = open_hf(str(source.path), source.split)
        return StoredPrompts(data, source.path.name, TranslatingReader(source.translate, reader))
    prompts, report = read_prompts(str(source.path), source.rows, reader, source.rows_split)
    report.raise_if_bad()
    source.tell(*(f"{count} {what}" for what, count in sorted(report.notes.items())))
    systems = {str(prompt.columns["system"]) for prompt in prompts if prompt.columns.get("system") is not None}
    if systems:
        source.tell(
            f"{len(systems)} system messages are not shown to the model: set policy.system_prompt = {min(systems)[:200]!r}"
        )
    return prompts
