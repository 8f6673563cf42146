"""Pictures that generators are taught: nothing is drawn, a prompt's pictures come from the data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from mmrl.algorithms.planners.base import Once, one_request_each
from mmrl.algorithms.planners.taught import refuse_both_ways
from mmrl.core.samples import IMAGE, kind_of
from mmrl.core.types import Prompt, Request


def refuse_no_picture(prompt: Prompt, column: str) -> None:
    """Raise ValueError for a prompt without a picture in this column."""
    found: object = prompt.columns.get(column)
    if isinstance(found, str | Path | Image.Image) and kind_of(found) is IMAGE:
        return
    known = ", ".join(sorted(prompt.columns)) or "none"
    what = "has nothing" if found is None else f"has {str(found)[:80]!r}"
    raise ValueError(
        f"prompt {prompt.id!r} {what} in the column {column!r}, where a stage that teaches pictures finds one (its columns: "
        f'{known}): take data.use = "pictures", or name another column'
    )


@dataclass(frozen=True)
class TaughtPictures(Once):
    """One row per prompt: the picture that the data has for it.

    Take the advantage Demonstrated, the term Matching and the schedule Forward with it.
    """

    column: str = "picture"
    """The column with the picture; `target` of the data set edits."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without a picture."""
        for prompt in prompts:
            refuse_no_picture(prompt, self.column)

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        requests = one_request_each(prompts, 1, first_id, seed)
        return [replace(request, role="injected", written=self.column) for request in requests]


@dataclass(frozen=True)
class TaughtPairs(Once):
    """Two rows per prompt: the picture that the data prefers, and the one that it does not.

    Take the advantage Preferred, the term DenoisingPreference and the schedule Forward with times.shared with it.
    """

    chosen: str = "chosen"
    """The column with the preferred picture."""
    rejected: str = "rejected"
    """The column with the other one."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without a pair, with one file twice, or that another prompt contradicts."""
        for prompt in prompts:
            for column in (self.chosen, self.rejected):
                refuse_no_picture(prompt, column)
            if prompt.columns[self.chosen] == prompt.columns[self.rejected]:
                raise ValueError(
                    f"prompt {prompt.id!r} has the same picture in the columns {self.chosen!r} and {self.rejected!r}, and such a "
                    "pair teaches nothing: remove it from the data"
                )
        refuse_both_ways((prompt, (str(prompt.columns[self.chosen]), str(prompt.columns[self.rejected]))) for prompt in prompts)

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        return [
            replace(request, role="injected", written=column)
            for request in one_request_each(prompts, 1, first_id, seed)
            for column in (self.chosen, self.rejected)
        ]
