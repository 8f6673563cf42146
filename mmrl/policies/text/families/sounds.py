"""Features of sounds for models whose forward takes ready features of pictures and clips, and none of sounds."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmrl.policies.text.families.base import Core

Arguments = tuple[tuple[object, ...], dict[str, Any]]


def write_sounds(core: Core) -> None:
    """From now on a model takes features of sounds as `mm_encoder_outputs["audio"]`: they replace the embeddings of its
    placeholders for sounds, where its text layers begin. A forward notes them, and its text layers take them off again."""
    noted: list[tuple[Tensor, Tensor]] = []

    def note(core: Core, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> Arguments:
        outputs = dict(kwargs.get("mm_encoder_outputs") or {})
        heard = outputs.pop("audio", None)
        noted.clear()
        if heard is not None:
            noted.append((kwargs["input_ids"] == core.config.audio_token_id, torch.cat(list(heard.pooler_output))))
        return args, {**kwargs, "mm_encoder_outputs": outputs or None} if heard is not None else dict(kwargs)

    def write(layers: Core, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> Arguments:
        words = kwargs["inputs_embeds"]
        for places, features in noted:
            words = words.masked_scatter(places[..., None], features.to(words))
        noted.clear()
        return args, {**kwargs, "inputs_embeds": words}

    core.register_forward_pre_hook(note, with_kwargs=True)
    core.language_model.register_forward_pre_hook(write, with_kwargs=True)
