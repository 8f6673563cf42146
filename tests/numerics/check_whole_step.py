"""D3S: the rows of a step with the most spread, their tokens, and how many of both."""

import torch

from mmrl.algorithms.advantages.entropy import MostSpread, evenly, largest, most_spread
from mmrl.algorithms.presets.thinking import d3s
from tests.numerics.registry import Vector, check, close, tensor


@check("d3s.selection")
def d3s_selection(vector: Vector) -> None:
    params, inputs, outputs = vector.params, vector.inputs, vector.outputs
    assert isinstance(d3s.advantage, MostSpread)
    advantages = tensor(inputs["advantages"])
    rows = most_spread(advantages, params["rows"])
    assert rows == outputs["rows"]
    entropy, lengths = tensor(inputs["entropy"]), torch.tensor(inputs["lengths"])
    mask = torch.arange(entropy.shape[1]) < lengths[:, None]
    found = largest(advantages[rows].abs()[:, None] * entropy, mask, params["share_of_tokens"])
    assert found.tolist() == outputs["tokens"]
    first_rows, last_rows, first_share, last_share, over = params["schedule"]
    sizes = [[evenly(k, first_rows, last_rows, over), evenly(k, first_share, last_share, over)] for k in range(over)]
    close(sizes, outputs["schedule"], vector.tolerance, "schedule")
