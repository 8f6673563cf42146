"""The rule for models without a family of their own: names are read from signatures, features are counted by looking once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mmrl.core.samples import KINDS
from mmrl.policies.text.families.base import Core, Family, Media, parameters_of
from mmrl.policies.video.decode import Frames

COUNTS = {kind: f"{kind}_counts" for kind in KINDS}
"""Kind -> the name of mmrl's own tensor of a prompt: how many features each of its entries gives."""


@dataclass(frozen=True)
class Generic(Family):
    """A model whose `get_image_features` names the processor's tensors that it takes. Boxes: declare policy.box_space.

    Each prompt is looked at by itself, so nothing is batched or padded; features and placeholders are compared after one look.
    """

    looks_apart: bool = True
    looks_both_ways: bool = True
    projector: tuple[str, ...] = (
        *("multi_modal_projector", "connector", "mm_projector", "merger", "aligner", "embed_vision", "visual_embeddings_table"),
        *("vision_adapter", "vision_projection", "perception_emb_norm"),
    )

    @property
    def image_token_id(self) -> int:
        if "image" not in self.sees:
            return super().image_token_id
        names = ("image_token_id", "image_token_index")
        found = next((token for name in names if (token := getattr(self.config, name, None)) is not None), None)
        if found is None:
            kind = self.config.model_type
            raise ValueError(
                f"the config of {kind} names no image_token_id, the token that pictures replace: add a family for it"
            )
        return found

    def keeps(self, core: Core, names: Iterable[str]) -> frozenset[str]:
        taken = frozenset(name for kind in self.sees for name in parameters_of(getattr(core, f"get_{kind}_features")))
        lost = sorted((set(names) - taken) & set(parameters_of(core.forward)))
        if lost:
            raise ValueError(
                f"{self.config.model_type}: the processor made {', '.join(lost)}, which the model wants beside its pictures: "
                "add a family for this model in mmrl/policies/text/families"
            )
        return frozenset(names) & taken

    def tidy(self, media: Media) -> Media:
        return media

    def look(self, core: Core, kind: str, media: Sequence[Media]) -> Any:
        [own] = media
        look = getattr(core, f"get_{kind}_features")
        return look(**{name: own[name] for name in parameters_of(look) if name in own}, return_dict=True)

    def entries(self, media: Media, kind: str = "image") -> int:
        return len(media[COUNTS[kind]]) if COUNTS[kind] in media else 0

    def num_features(self, media: Media, kind: str = "image") -> int | None:
        """None: they were not counted, since weights that are cut or absent cannot look."""
        if not self.kinds(media).get(kind):
            return 0
        return int(media[COUNTS[kind]].sum()) if COUNTS[kind] in media else None

    def placeholders(self, media: Media) -> dict[str, int | None]:
        return {kind: self.num_features(media, kind) for kind in self.sees}

    def positions(
        self, core: Core, token_ids: Int[Tensor, " p"], type_ids: Tensor | None, media: Media, clips: Sequence[Frames] = ()
    ) -> Int[Tensor, "a p"]:
        """0 1 2 ..., or the model's own rule (M-RoPE) with the arguments that it names."""
        if not hasattr(core, "get_rope_index"):
            return super().positions(core, token_ids, type_ids, media)
        known: dict[str, Tensor] = {"input_ids": token_ids[None], **media}
        wanted = parameters_of(core.get_rope_index)
        if "mm_token_type_ids" in wanted:
            if type_ids is None:
                raise ValueError(
                    f"{self.config.model_type}: the processor gave no mm_token_type_ids, which M-RoPE positions need"
                )
            known["mm_token_type_ids"] = type_ids[None]
        positions, _ = core.get_rope_index(**{name: known[name] for name in wanted if name in known})
        return positions[:, 0]


def counts(pooled: Tensor | Sequence[Tensor]) -> Int[Tensor, " entries"]:
    """How many features each entry of a vision output gives."""
    return torch.tensor([entry.shape[:-1].numel() for entry in pooled])
