"""The rounding of a text policy's network: one batch read in every way that should give the same log-probabilities."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.core.types import Rollouts
from mmrl.policies.text.check.diagnose import Again, CachedReplay
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.trace import TextTrace

BOUND = 2e-5
"""Largest |log ratio| of two readings in float32, of the deepest models that were tried."""
FLOAT32_UNIT = 2.0**-24
TF32_UNIT = 2.0**-11
"""Half the spacing of the numbers that a GPU multiplies float32 matrices with, where TF32 is on."""
MOST_TOKENS = 64
"""Tokens at the start of a completion that are decoded again; each costs a forward."""


@dataclass(frozen=True)
class TextRounding:
    """How the network of a TextPolicy rounds."""

    policy: TextHost
    bound: float = BOUND

    @property
    def unit(self) -> float:
        """Relative error of one rounding."""
        half = self.policy.config.dtype == "bfloat16"
        return unit_of(torch.bfloat16 if half else torch.float32, self.policy.net.device)

    @property
    def depth(self) -> int:
        """Layers of the language model."""
        return int(self.policy.family.config.get_text_config().num_hidden_layers)

    @property
    def is_coarse(self) -> bool:
        return self.unit > FLOAT32_UNIT

    def readings(self, rollouts: Rollouts) -> Iterator[Float[Tensor, "n t"]]:
        """Decoded token after token from the cache; one row at a time. NaN after the first MOST_TOKENS tokens."""
        trace = rollouts.trace
        assert isinstance(trace, TextTrace)
        cut = replace(trace, tokens=trace.tokens[:, :MOST_TOKENS], lengths=trace.lengths.clamp(max=MOST_TOKENS))
        # A picture within a completion cannot be cut.
        begun = trace if trace.insets else cut
        again = Again(self.policy, rollouts, begun, trace.prompts)
        late = torch.arange(rollouts.action_mask.shape[1]) >= MOST_TOKENS
        for read in (partial(again, replay=CachedReplay), again.one_by_one):
            with torch.no_grad():
                values = read()
            yield values.masked_fill(late, torch.nan)


def unit_of(dtype: torch.dtype, device: torch.device) -> float:
    """Relative error of one rounding of a network that computes in this type on this device."""
    if dtype == torch.float32 and device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        return TF32_UNIT
    return torch.finfo(dtype).eps / 2
