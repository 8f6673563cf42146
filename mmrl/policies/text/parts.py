"""The parts that a text policy is built of; a dry run, or an engine with weights of its own, is built of others."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn

from mmrl.core.protocols import Diagnostics
from mmrl.policies.shared.weights import Decay, Rest, Weights
from mmrl.policies.text.diagnose import TextDiagnostics
from mmrl.policies.text.engine.generator import VllmGenerator
from mmrl.policies.text.evaluate import Evaluator, LocalEvaluator
from mmrl.policies.text.generate import Generator, LocalGenerator
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.loading import Loaded, load
from mmrl.policies.text.settings import TextPolicyConfig


def text_weights(net: nn.Module, shadows: Iterable[str], ema_decay: Decay, sharded: bool, rest: Rest) -> Weights:
    """The weights of a TextNet; states name them as its model does."""
    return Weights(net, shadows, ema_decay, sharded, rest, prefix="model.")


def usual_generator(host: TextHost) -> Generator:
    """The policy's own network, or the engine that its settings name."""
    return LocalGenerator(host) if host.config.engine is None else VllmGenerator(host, host.config.engine)


@dataclass(frozen=True)
class TextParts:
    """The replaceable parts of a TextPolicy, and the usual ones."""

    load: Callable[[TextPolicyConfig], Loaded] = load
    generator: Callable[[TextHost], Generator] = usual_generator
    """Who writes completions."""
    evaluator: Callable[[TextHost], Evaluator] = LocalEvaluator
    """Who reads them again."""
    weights: Callable[[nn.Module, Iterable[str], Decay, bool, Rest], Weights] = text_weights
    """Who keeps the trainable weights of (module, shadows, ema_decay, sharded, rest)."""
    diagnostics: Callable[[TextHost], Diagnostics] = TextDiagnostics
