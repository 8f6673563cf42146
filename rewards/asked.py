"""A picture reward that reads what the user asked for, where the model drew what a writer made of it.

    r = f(picture | asked)

f gets the prompt with its column `asked` as text; the data set `written` has such a column.

Modality: image
Range: that of the picture reward
Source: none
Licence: own code Apache-2.0; the picture reward's see there
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmrl import Group, Need, Scored
from mmrl.serving.inside import AroundPictures, wished


@dataclass(frozen=True)
class Asked(AroundPictures):
    """A picture reward under the user's words. ValueError without a picture reward, or for prompts without the column."""

    column: str = "asked"
    """The column with the user's words."""
    needs = Need(
        "the column asked",
        lambda prompt, reward, _: wished(prompt, reward.column, "asked"),
        setup='picture (a reward of pictures, picture.use = "pick_score")',
    )

    def __call__(self, group: Group) -> Sequence[Scored | None]:
        self.ready()
        own = replace(wished(group.prompt, self.column, "asked"), media=group.prompt.media)
        return self.ask(replace(group, prompt=own))
