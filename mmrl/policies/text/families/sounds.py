"""Features of sounds for models whose forward takes ready features of pictures and clips, and none of sounds."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmrl.policies.text.families.base import Core

Arguments = tuple[tuple[object, ...], dict[str, Any]]


def write_sounds(core: Core, token_id: int) -> None:
    """From now on a model takes features of sounds as `mm_encoder_outputs["audio"]`: they replace the embeddings of its
    placeholders `token_id`. A forward notes them, and its embeddings take them off again."""
    noted: list[tuple[Tensor, Tensor]] = []

    def note(core: Core, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> Arguments:
        own = dict(kwargs)
        outputs = dict(own.pop("mm_encoder_outputs", None) or {})
        heard = outputs.pop("audio", None)
        noted.clear()
        if heard is not None:
            noted.append((own["input_ids"] == token_id, torch.cat(list(heard.pooler_output))))
        return args, {**own, **({"mm_encoder_outputs": outputs} if outputs else {})}

    def write(embeddings: object, args: tuple[object, ...], words: Tensor) -> Tensor:
        for places, features in noted:
            words = words.masked_scatter(places[..., None], features.to(words))
        noted.clear()
        return words

    core.register_forward_pre_hook(note, with_kwargs=True)
    core.get_input_embeddings().register_forward_hook(write)
