"""The parts that a flow policy is built of; a dry run is built of others."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from mmrl.core.protocols import Diagnostics
from mmrl.core.types import Request, Rollouts
from mmrl.policies.flow.check.audit import audit_rollouts
from mmrl.policies.flow.check.diagnose import FlowDiagnostics
from mmrl.policies.flow.families.base import FlowFamily
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.loading import load
from mmrl.policies.flow.prompt.embedding_cache import EmbeddingCache, open_cache
from mmrl.policies.flow.read.forward import Forward, LocalForward
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.trace import SigmaTable
from mmrl.policies.flow.write.generate import Decoder, Generator, LocalDecoder, LocalGenerator, Sampled
from mmrl.policies.flow.write.given import picture_samples
from mmrl.policies.shared.weights import Decay, Rest, Weights


@dataclass(frozen=True)
class FlowParts:
    """The replaceable parts of a FlowPolicy, and the usual ones."""

    load: Callable[[FlowPolicyConfig], FlowFamily] = load
    generator: Callable[[FlowHost], Generator] = LocalGenerator
    """Draws images."""
    given: Callable[[FlowHost, Sequence[Request], SigmaTable], Sampled] = picture_samples
    """Makes samples of the data's pictures."""
    forward: Callable[[FlowHost], Forward] = LocalForward
    """Computes velocities, while sampling and while reading."""
    decoder: Callable[[FlowHost], Decoder] = LocalDecoder
    """Turns finished latents into images."""
    weights: Callable[[nn.Module, Iterable[str], Decay, bool, Rest], Weights] = Weights
    """Keeps the trainable weights of (module, shadows, ema_decay, sharded, rest)."""
    embeddings: Callable[[FlowPolicyConfig, FlowFamily], EmbeddingCache | None] = open_cache
    """The store that keeps embeddings of prompts for other runs; None: there is none."""
    audit: Callable[[FlowHost, Rollouts], None] = audit_rollouts
    diagnostics: Callable[[FlowHost], Diagnostics] = FlowDiagnostics
