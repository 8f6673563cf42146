"""The parts that a text policy is built of; a dry run, or a policy whose completions an engine writes, is built of others."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from torch import nn

from mmrl.core.episodes import Worlds
from mmrl.core.protocols import Diagnostics
from mmrl.core.types import Rollouts
from mmrl.policies.shared.weights import Decay, Rest, Weights
from mmrl.policies.text.check.audit import audit_rollouts
from mmrl.policies.text.check.diagnose import TextDiagnostics
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.loading import Loaded, load
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.read.evaluate import Evaluator, LocalEvaluator
from mmrl.policies.text.settings import TextPolicyConfig, TextTeacher
from mmrl.policies.text.write.generate import Generator, LocalGenerator

text_weights = partial(Weights, prefix="model.")
"""The weights of a TextNet; states name them as its model does."""


def own_generator(host: TextHost) -> Generator:
    """The policy's own network; raises ValueError where the settings name an engine, which has to be handed in."""
    if host.config.engine is not None:
        raise ValueError(
            "policy.engine is set, but this TextPolicy was built with its own network as the generator: "
            "pass parts=mmrl.engine.generator.text_parts(config)"
        )
    return LocalGenerator(host)


class ServedTeacher(Protocol):
    """A teacher behind servers."""

    @property
    def host(self) -> TextHost:
        """Its processor and template, round a model without weights."""
        ...

    def tell(self, rows: Sequence[Encoded], likely: int) -> list[Sequence[Mapping[int, float]]]:
        """For every row, token -> log-probability at each token of the beginning that it ends with, and of likely ones there."""
        ...


def no_servers(config: TextPolicyConfig, teacher: TextTeacher, number: int) -> ServedTeacher:
    """Raises ValueError: who asks servers has to be handed in."""
    raise ValueError(
        f"policy.teachers.{number}.url is set, but this TextPolicy was built without who asks servers: pass "
        "parts=mmrl.engine.generator.text_parts(config)"
    )


@dataclass(frozen=True)
class TextParts:
    """The replaceable parts of a TextPolicy, and the usual ones."""

    load: Callable[..., Loaded] = load
    """The model of a TextPolicyConfig; with frozen = True one that is only read."""
    net: Callable[..., TextNet] = TextNet
    """Every forward goes through it; its arguments are those of TextNet."""
    generator: Callable[[TextHost], Generator] = own_generator
    """Writes completions."""
    evaluator: Callable[[TextHost], Evaluator] = LocalEvaluator
    """Reads them again."""
    weights: Callable[[nn.Module, Iterable[str], Decay, bool, Rest], Weights] = text_weights
    """Keeps the trainable weights of (module, shadows, ema_decay, sharded, rest)."""
    audit: Callable[[TextHost, Rollouts], None] = audit_rollouts
    diagnostics: Callable[[TextHost], Diagnostics] = TextDiagnostics
    asked: Callable[[TextPolicyConfig, TextTeacher, int], ServedTeacher] = no_servers
    """The servers of a teacher: of (the settings of a policy that is only read, the teacher's, its place among them)."""
    worlds: Worlds | None = None
    """Answer the turns of its episodes; None: a completion is one turn."""

    def of_reader(self) -> "TextParts":
        """The parts of a policy that is only read."""
        return replace(self, load=partial(self.load, frozen=True), net=TextNet, generator=own_generator, worlds=None)
