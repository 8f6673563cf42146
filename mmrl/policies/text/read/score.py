"""Scores of completions: a head on the state from which a completion's last token is predicted, as reward models have it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from mmrl.core.readings import SCORE, VALUE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILE = "score_head.safetensors"
"""The head, beside the files of the model or adapter that it belongs to."""


class ScoreHead(nn.Module):
    """s = W h + b: a number per axis of the last state h, in float32 whatever the model computes in.

    It begins at 0, so a fresh one scores all completions alike.
    """

    def __init__(self, axes: Sequence[str], width: int) -> None:
        super().__init__()
        self.axes = tuple(axes)
        self.weight = nn.Parameter(torch.zeros(len(self.axes), width))
        self.bias = nn.Parameter(torch.zeros(len(self.axes)))

    def forward(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "n a"]:
        with torch.autocast(states.device.type, enabled=False):
            return linear(states.float(), self.weight, self.bias)


def scores_of(
    head: ScoreHead,
    states: Float[Tensor, "s d"],
    place: Int[Tensor, "n t"],
    lengths: Int[Tensor, " n"],
    quantities: Sequence[str],
) -> dict[str, Float[Tensor, "n t"]]:
    """The scores of n completions for quantities such as `score/overall`, the same at all their tokens.

    `place` says which state predicts a token.
    """
    last = place.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
    scores = head(states[last])
    columns = {name: head.axes.index(name.removeprefix(SCORE)) for name in quantities}
    return {name: scores[:, column, None].expand(place.shape) for name, column in columns.items()}


def values_of(head: ScoreHead, states: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
    """The head's axis `value` of every state by itself."""
    return head(states)[:, head.axes.index(VALUE.quantity)]


def add_head(model: "PreTrainedModel", axes: Sequence[str], folder: Path) -> None:
    """Put a head for these axes into the model, with the weights of `folder` where they are those of such a head.

    Raises:
        ValueError: the folder's head has other axes.
    """
    if not axes:
        return
    head = ScoreHead(axes, model.config.get_text_config().hidden_size)
    if (folder / FILE).is_file():
        from safetensors import safe_open

        with safe_open(folder / FILE, framework="pt") as file:
            known = ((file.metadata() or {}).get("axes") or "").split(",")
            if known != list(head.axes):
                raise ValueError(f"{folder / FILE} scores {', '.join(known)}: set policy.scores = {known}")
            head.load_state_dict({name: file.get_tensor(name) for name in ("weight", "bias")})
    model.score_head = head.to(model.device)


def save_with_head(write: Callable[[Path], None], axes: Sequence[str], weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write the model, or its adapter, to `folder`, and the weights of its head."""
    from safetensors.torch import save_file

    write(folder)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / FILE, {"axes": ",".join(axes)})
