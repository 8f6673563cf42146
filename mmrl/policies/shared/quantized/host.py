"""Input embeddings that rest in the host's memory: rows are looked up there, so a card never holds the table."""

from collections.abc import Callable, Iterator
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn


class HostEmbedding(nn.Module):
    """A model's own layer of embeddings, which stays where it is when the model moves; a frozen one, as it takes no gradient."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    @property
    def weight(self) -> Tensor:
        """The table, (v, d)."""
        return self.inner.get_parameter("weight")

    def forward(self, ids: Int[Tensor, "*b"]) -> Float[Tensor, "*b d"]:
        """Rows of the table, where the ids are."""
        return self.inner(ids.to(self.weight.device)).to(ids.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "HostEmbedding":
        """Stay: neither device nor type change."""
        return self


def rest_on_host(model: Any, name: str) -> None:
    """Let the input embeddings of a model of transformers rest on the host; ValueError where its head is the same table."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if is_tied(model):
        raise ValueError(
            f"policy.quantized.embeddings is 'host', and the head of policy.model {name!r} is the same table, which a GPU needs: "
            "leave it out"
        )
    assert head is not None and table is not head
    model.set_input_embeddings(HostEmbedding(table))


def is_tied(model: Any) -> bool:
    """Do the input embeddings of a model of transformers serve as its head, too?"""
    configs = (model.config, model.config.get_text_config(decoder=True))
    return any(getattr(config, "tie_word_embeddings", False) for config in configs)


def host_weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights of a model that rest on the host."""
    return (weight for module in model.modules() if isinstance(module, HostEmbedding) for weight in module.parameters())
