"""An image generator as seen by the parts it is built of."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from mmrl.core.ranks import Ranks
from mmrl.policies.flow.families.base import Condition, FlowFamily, Pipeline
from mmrl.policies.flow.net import FlowNet
from mmrl.policies.flow.prompt.encode import Encoder
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.sizes import Size
from mmrl.policies.flow.trace import FlowTrace, NoisyLatents
from mmrl.policies.shared.weights import Weights


@runtime_checkable
class FlowHost(Protocol):
    """The questions that generators, forwards, audits and diagnostics may ask of a flow policy."""

    @property
    def config(self) -> FlowPolicyConfig: ...
    @property
    def family(self) -> FlowFamily: ...

    @property
    def pipeline(self) -> Pipeline:
        """The model's own pipeline of diffusers."""
        ...

    @property
    def net(self) -> FlowNet: ...

    @property
    def module(self) -> nn.Module:
        """The network as it is wrapped for many processes."""
        ...

    @property
    def encoder(self) -> Encoder: ...
    @property
    def weights(self) -> Weights: ...

    @property
    def ranks(self) -> Ranks:
        """The other processes."""
        ...

    def velocities(
        self, asked: NoisyLatents, conditions: Sequence[Condition], guidance: float | None = None
    ) -> Float[Tensor, "m ..."]:
        """The guided velocities at latents whose prompts are among the conditions."""
        ...

    def logprobs(self, trace: FlowTrace, mask: Tensor, model: str = "policy") -> Float[Tensor, "n t"]:
        """Log-probabilities of the recorded transitions under some weights, without gradient."""
        ...

    def decode(self, latents: Float[Tensor, "n ..."], size: Size | None = None) -> list[object]:
        """Finished latents of one size as PIL images."""
        ...
