"""A planner that asks a prompt in several words, and compares the answers as one group (PS-GRPO)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmrl.algorithms.planners.base import Once, one_request_each, seed_of
from mmrl.algorithms.planners.hints import hints_of
from mmrl.core.types import Prompt, Request, Shown


def split_of(size: int, parts: int) -> list[int]:
    """How many of a group's samples answer each wording: as equal as can be, the first ones more."""
    return [size // parts + (i < size % parts) for i in range(parts)]


@dataclass(frozen=True)
class Wordings(Once):
    """A group's samples answer the prompt and its other wordings in turn, and train as they were asked (PS-GRPO).

    Paraphrased-set GRPO, arXiv:2510.04392, from its abstract and reviews. Take the shaping Agreement with it.
    """

    column: str = "paraphrases"
    """The column with the prompt's other wordings: a text or a list of texts."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without another wording."""
        for prompt in prompts:
            if not hints_of(prompt, self.column):
                raise ValueError(
                    f"prompt {prompt.id!r} has no other wording in the column {self.column!r}, and a set of one agrees with "
                    "nothing: add it to the data, or name another column with algorithm.planner.column"
                )

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        """Raises ValueError for a prompt with more wordings than a group has samples."""
        requests: list[Request] = []
        for request in one_request_each(prompts, group_size, first_id, seed):
            texts = (request.prompt.text, *hints_of(request.prompt, self.column))
            if len(texts) > group_size:
                raise ValueError(
                    f"prompt {request.prompt.id!r} has {len(texts)} wordings, and algorithm.group_size is {group_size}: set it "
                    f"to {len(texts)} or more"
                )
            for draw, (text, count) in enumerate(zip(texts, split_of(group_size, len(texts)), strict=True)):
                shown = Shown(replace(request.prompt, text=text), trained=True) if draw else Shown()
                requests.append(replace(request, count=count, seed=seed_of(request.seed, draw), shown=shown))
        return requests
