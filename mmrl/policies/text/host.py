"""A text policy as seen by the parts it is built of."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from mmrl.core.ranks import Ranks
from mmrl.core.types import Prompt, Trace
from mmrl.policies.shared.weights import Weights
from mmrl.policies.text.families import Family
from mmrl.policies.text.kept import Keeper
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.prompt.encode import Encoded, Encoder
from mmrl.policies.text.settings import TextPolicyConfig

T = TypeVar("T")


@runtime_checkable
class TextHost(Protocol):
    """The questions that generators, evaluators, audits and diagnostics may ask of a text policy."""

    @property
    def config(self) -> TextPolicyConfig: ...
    @property
    def family(self) -> Family: ...

    @property
    def processor(self) -> Any: ...
    @property
    def tokenizer(self) -> Any: ...

    @property
    def adapter(self) -> Any:
        """peft's wrapper round the model; None where all weights train."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def banned(self) -> frozenset[int]:
        """Tokens that no completion may hold."""
        ...

    @property
    def media_token_ids(self) -> frozenset[int]: ...
    @property
    def encode(self) -> Encoder: ...
    @property
    def net(self) -> TextNet: ...
    @property
    def weights(self) -> Weights: ...

    @property
    def keeper(self) -> Keeper | None:
        """Who keeps what rows of episodes have read; None: they are read again."""
        ...

    @property
    def packs(self) -> bool:
        """May rows be read behind their prompt in one packed row?"""
        ...

    @property
    def ranks(self) -> Ranks: ...

    def stand_in(self) -> Encoded:
        """The prompt that a process looks at while the others still have work and it has none."""
        ...

    def run(self, work: Callable[[TextNet], T]) -> T:
        """One forward of the network, through its wrapper for many processes where there is a gradient."""
        ...

    def decode(self, tokens: list[list[int]]) -> list[str]:
        """The texts of rows of tokens, without special ones."""
        ...

    def tokens_given(self, text: str, prompt: Prompt) -> list[int]:
        """The tokens of a completion that is given, with the one that ends it; ValueError for one it may not hold."""
        ...

    def reads_packed(self, trace: Trace) -> bool:
        """Are rows of a trace read behind their prompt in one packed row?"""
        ...
