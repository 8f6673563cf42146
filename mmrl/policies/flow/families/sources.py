"""Pictures of prompts as latents, for the families that edit or go on from a first frame."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mmrl.core.types import Prompt, Video
from mmrl.policies.flow.families.base import SOURCE, Condition, FlowFamily


@torch.no_grad()
def latents_of(vae: Any, pixels: Tensor) -> Tensor:
    """The autoencoder's latents in float32, without drawing any: the mode of its distribution, where it has one."""
    found = vae.encode(pixels.to(vae.device, vae.dtype))
    return (found.latent_dist.mode() if hasattr(found, "latent_dist") else found.latents).float()


def tokens_of(family: FlowFamily, pixels: Iterable[Tensor]) -> Tensor:
    """The tokens of a prompt's pictures, one picture after the other."""
    latents = torch.cat([latents_of(family.pipeline.vae, one) for one in pixels])
    return family.pack(family.normalize(latents)).flatten(0, 1).cpu()


def kind_of(condition: Condition) -> int:
    """The number of tokens, or channels, of the prompt's pictures: only rows that agree in it fit one forward."""
    return len(condition[SOURCE]) if SOURCE in condition else 0


def alike(
    conditions: Sequence[Condition], index: Int[Tensor, " m"], most: int, one_length: bool = False
) -> list[Int[Tensor, " k"] | slice]:
    """Rows cut into forwards of at most `most`, in each of which all prompts have equally many tokens of pictures.

    With `one_length` they have equally many tokens of text, too.
    """
    kinds = [(kind_of(one), len(one.get("embeds", ())) if one_length else 0) for one in conditions]
    order = sorted(set(kinds))
    if len(order) <= 1:
        return [slice(start, start + most) for start in range(0, len(index), most)]
    of_rows = torch.tensor([order.index(kind) for kind in kinds])[index.cpu()]
    return [part for kind in range(len(order)) for part in (of_rows == kind).nonzero()[:, 0].split(most) if len(part)]


def refuse_sources(prompts: Sequence[Prompt], allowed: tuple[int, int], model: str = "this model") -> None:
    """Raise ValueError for prompts with fewer or more pictures than `allowed`, or with clips."""
    least, most = allowed
    clips = [prompt.id for prompt in prompts if any(isinstance(media, Video) for media in prompt.media)]
    if clips and most:
        raise ValueError(f"prompt {clips[0]!r} holds a clip, but {model} takes pictures: give it pictures alone")
    bad = [prompt for prompt in prompts if not least <= len(prompt.media) <= most]
    if not bad:
        return
    held = [len(prompt.media) for prompt in bad]
    pictures = f"{' or '.join(map(str, sorted(set(held))))} {'picture' if set(held) == {1} else 'pictures'}"
    who = f"prompt {bad[0].id!r} holds {pictures}"
    if len(bad) > 1:
        who = f"{len(bad)} of {len(prompts)} prompts hold {pictures} each (the first is {bad[0].id!r})"
    if not most:
        raise ValueError(
            f"{who}, but {model} draws from text alone: remove the pictures, take a model that edits (FLUX.1-Kontext), or "
            "one that looks at them with policy.kind = 'text'"
        )
    wanted = f"{least}" if least == most else f"{least} to {most}"
    remedy = "name them in the data's column image or images (for mmrl draw: --image)"
    raise ValueError(f"{who}, but {model} takes prompts with {wanted}: {remedy}")
