"""Imitation without mmrl's trainer, for tests of learning that begin with it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.runtime.tensors import mark_tables
from mmrl.training.optim import Muon


def learn(model: Any, batches: Iterable[dict[str, Tensor]], lr: Callable[[int], float]) -> Iterator[float]:
    """Train on a batch each time the loss is asked for, at the learning rate of that step (from 0)."""
    mark_tables(model)
    optimizer = Muon(model.parameters(), lr(0), weight_decay=0.0)
    for step, fed in enumerate(batches):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = lr(step)
        loss = model(**fed).loss
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


def with_answers(fed: dict[str, Tensor], tokenizer: Any, answers: Sequence[str]) -> dict[str, Tensor]:
    """A batch of prompts with the answers behind them, and labels on the answers' tokens only."""
    written = tokenizer([answer + tokenizer.eos_token for answer in answers], padding=True, padding_side="right")
    ids, mask = (torch.tensor(written[name]) for name in ("input_ids", "attention_mask"))
    unlabelled = torch.full_like(fed["input_ids"], -100)
    return fed | {
        "input_ids": torch.cat([fed["input_ids"], ids], dim=1),
        "attention_mask": torch.cat([fed["attention_mask"], mask], dim=1),
        "mm_token_type_ids": torch.cat([fed["mm_token_type_ids"], torch.zeros_like(ids)], dim=1),
        "labels": torch.cat([unlabelled, ids.masked_fill(mask == 0, -100)], dim=1),
    }
