"""Public weights of families of models: facts that `mmrl ls families` lists, and variants of the files in a folder (fp16)."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Read = Literal["makers", "others", "nowhere"]
"""Where a licence was read in November 2026: on a page of the makers (their model card or repository), on others' pages (a copy's
card, a review), or nowhere, so that it is from memory."""
NOTES: dict[Read, str] = {
    "makers": "",
    "others": "read on others' pages only",
    "nowhere": "not checked",
}
STEMS = "model|pytorch_model|diffusion_pytorch_model"
FILE = re.compile(rf"(?:{STEMS})(?:\.([^.]+?))?(?:-\d+-of-\d+)?(?:\.([^.]+))?\.(?:safetensors|bin)")
"""`model.fp16.safetensors`, `model.fp16-00001-of-00002.safetensors`, and `model-00001-of-00002.fp16.safetensors`."""


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


def variants_in(folder: Path) -> set[str]:
    """The variants of the weights in a folder; the plain ones are called ""."""
    found = (FILE.fullmatch(file.name) for file in folder.glob("*"))
    return {match[1] or match[2] or "" for match in found if match is not None}


def refuse_variant(parts: Mapping[str, Collection[str]], variant: str | None, place: str) -> None:
    """Raise ValueError that names the variants which exist, if no part has the wanted one, or one has no plain weights.

    Args:
        parts: name of a part -> the variants of its weights; a part without weights is left out of account.
        variant: the wanted one, which parts without it have as plain weights; None: the plain weights.
        place: names the model in the error: `policy.model 'a/b'`.
    """
    known = sorted({one for own in parts.values() for one in own} - {""})
    named = " or ".join(f'"{one}"' for one in known)
    if variant is not None and any(parts.values()) and variant not in known:
        remedy = f"set it to {named}, or leave it out" if known else "leave it out, for the plain ones are all there is"
        raise ValueError(f"{place} has no weights of policy.variant {variant!r}: {remedy}")
    for name, own in parts.items():
        if own and "" not in own and variant not in own:
            there = f"its part {name!r} has weights" if name else "it has weights"
            raise ValueError(f"{place}: {there} of the variant {', '.join(sorted(own))} alone: set policy.variant = {named}")
