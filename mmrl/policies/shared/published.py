"""Facts about the public weights of a family of models, as `mmrl ls families` lists them."""

from dataclasses import dataclass
from typing import Literal

Read = Literal["makers", "others", "nowhere"]
"""Where a licence was read in November 2026: on a page of the makers (their model card or repository), on others' pages (a copy's
card, a review), or nowhere, so that it is from memory."""
NOTES: dict[Read, str] = {
    "makers": "",
    "others": "read on others' pages only",
    "nowhere": "not checked",
}


@dataclass(frozen=True)
class Published:
    """`Published(("text to image",), "Apache-2.0", "makers", "latents as its pipeline's")`."""

    tasks: tuple[str, ...]
    licence: str
    """Licences of the weights; a model's own card counts."""
    read: Read
    tested: str
    """What the tests compare on tiny models of the real classes."""

    @property
    def licence_and_note(self) -> str:
        """The licence, and a note where it was not read on a page of the makers."""
        note = NOTES[self.read]
        return f"{self.licence} ({note})" if note else self.licence
