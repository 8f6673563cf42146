"""Encoders of texts into unit vectors, from transformers: the last layer at the first token (bge-m3 and its kin)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.serving.scorers.models import companion, hold, load_pretrained


def unit_vectors(model: str, texts: Sequence[str], device: str = "auto", batch_size: int = 32) -> Float[Tensor, "n d"]:
    """A vector of length 1 per text, on the CPU; texts beyond the model's limit are cut."""
    from transformers import AutoModel

    held = hold(("texts", model), lambda: load_pretrained(AutoModel.from_pretrained, model, "model"), device)
    tokenizer, found = companion("AutoTokenizer", model, "model"), list[Tensor]()
    limit = min(tokenizer.model_max_length, held.model.config.max_position_embeddings - 2)
    with held.ready() as encoder:
        for start in range(0, len(texts), batch_size):
            some = list(texts[start : start + batch_size])
            tokens = tokenizer(some, padding=True, truncation=True, max_length=limit, return_tensors="pt").to(held.device)
            found.append(torch.nn.functional.normalize(encoder(**tokens).last_hidden_state[:, 0].float(), dim=-1).cpu())
    return torch.cat(found)
