"""Linear layers whose weights rest in 4 bits, made again for every product in one way; embeddings that rest on the host."""

from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmrl.policies.shared.quantized.table import BLOCK, SCALES, Codes, dequantize, dynamic, nf4, there

SCALES_OF = ("scales", "units", "offset")
"""The buffers beside `weight`."""


class Nf4Linear(nn.Linear):
    """x W^T + b, W of 4-bit codes; it takes gradients for x alone.

    `weight` holds the codes, two a byte: of type int8, which models leave alone when they cast inputs to the type of a weight.
    Built on torch's meta device it knows every size.
    """

    scales: Tensor
    units: Tensor
    offset: Tensor
    fast: bool = False
    """On a card products are those of bitsandbytes, which takes other kernels for few rows than for many."""

    def __init__(self, like: nn.Linear, double: bool = True) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = like.in_features, like.out_features
        device, blocks = like.weight.device, -(-self.size // BLOCK)
        self.weight = nn.Parameter(torch.empty(-(-self.size // 2), dtype=torch.int8, device=device), requires_grad=False)
        self.bias = like.bias
        sizes = {"scales": (blocks,), "units": (-(-blocks // SCALES) * double,), "offset": ()}
        for name in SCALES_OF:
            dtype = torch.uint8 if name == "scales" and double else torch.float32
            self.register_buffer(name, torch.empty(sizes[name], dtype=dtype, device=device))

    @property
    def size(self) -> int:
        """Numbers of the matrix that the codes stand for."""
        return self.in_features * self.out_features

    @property
    def num_bytes(self) -> int:
        """Bytes of codes and scales."""
        return sum(one.numel() * one.element_size() for one in (self.weight, self.scales, self.units, self.offset))

    @property
    def codes(self) -> Codes:
        return Codes(self.weight.view(torch.uint8), self.scales, self.units, self.offset)

    def take(self, codes: Codes) -> None:
        """Hold these codes."""
        self.weight = nn.Parameter(codes.codes.view(torch.int8), requires_grad=False)
        self.scales, self.units, self.offset = codes.scales, codes.units, codes.offset

    def whole(self, dtype: torch.dtype) -> Float[Tensor, "o i"]:
        """The matrix that the codes stand for."""
        return dequantize(self.codes, self.size, dtype).view(self.out_features, self.in_features)

    def forward(self, input: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        if self.fast and kind == "cuda":
            return fast_product(input.to(dtype), bias, self)
        return Product.apply(input.to(dtype), bias, self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Nf4Linear":
        """Move to another device; codes and scales keep their types whatever the others are cast to."""

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype or tensor is self.bias else tensor.to(moved.device)

        return super()._apply(move, recurse)


class Product(torch.autograd.Function):
    """x W^T + b and its gradient for x; W is made in both and kept in neither."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, layer: Nf4Linear) -> Tensor:
        ctx.layer = layer
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.linear(x, layer.whole(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        with torch.autocast(gradient.device.type, enabled=False):
            return gradient @ ctx.layer.whole(gradient.dtype), None, None


def fast_product(x: Float[Tensor, "*b i"], bias: Tensor | None, layer: Nf4Linear) -> Float[Tensor, "*b o"]:
    """x W^T + b and its gradient for x, by bitsandbytes' own operator."""
    from bitsandbytes import matmul_4bit  # type: ignore[import-not-found] - an extra
    from bitsandbytes.functional import QuantState  # type: ignore[import-not-found] - an optional package

    double, device = not layer.scales.is_floating_point(), x.device
    inner = QuantState(layer.units, code=there(dynamic, device), blocksize=SCALES, dtype=torch.float32) if double else None
    shape = torch.Size((layer.out_features, layer.in_features))
    how: dict[str, Any] = {"quant_type": "nf4", "dtype": x.dtype, "offset": layer.offset if double else None, "state2": inner}
    state = QuantState(layer.scales, shape=shape, code=there(nf4, device), blocksize=BLOCK, **how)
    with torch.autocast(device.type, enabled=False):
        return matmul_4bit(x, layer.codes.codes[:, None].t(), quant_state=state, bias=bias)


def set_kernels(model: nn.Module, kernels: str) -> None:
    """Let the layers in 4 bits of a model compute as `policy.quantized.kernels` says."""
    for _, layer in nf4_layers(model):
        layer.fast = kernels == "fast"


def nf4_layers(model: nn.Module) -> Iterator[tuple[str, Nf4Linear]]:
    """The layers of a model that rest in 4 bits, by name."""
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, Nf4Linear))


def count_weights(model: nn.Module) -> int:
    """Numbers of a model; of layers in 4 bits those that their codes stand for."""
    spared = sum(layer.size - layer.weight.numel() for _, layer in nf4_layers(model))
    return sum(weight.numel() for weight in model.parameters()) + spared


def put_layers(model: nn.Module, names: Collection[str], double: bool = True) -> None:
    """Replace linear layers by ones without values, of the same sizes."""
    for name in names:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, Nf4Linear(model.get_submodule(name), double))  # type: ignore[arg-type] - they are linear


def digest(model: nn.Module) -> str:
    """A hash of all codes and scales of a model, by which a run knows its base again."""
    found = sha256()
    for name, layer in nf4_layers(model):
        codes = layer.codes
        for part in (codes.codes, codes.scales, codes.units, codes.offset):
            found.update(name.encode())
            found.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def base_of(*models: nn.Module) -> str | None:
    """The digest of models' layers in 4 bits, which do not change; None where they have none."""
    for model in models:
        if model not in _BASES:
            _BASES[model] = digest(model) if next(nf4_layers(model), None) is not None else None
    return " ".join(found for model in models if (found := _BASES[model]) is not None) or None


def refuse_other_base(state: Mapping[str, object], name: str, *models: nn.Module) -> None:
    """Raise ValueError for the state of an adapter that was trained beside other codes than those of the models."""
    if state.get("base") != base_of(*models):
        raise ValueError(
            f"the saved adapter belongs to other weights in 4 bits than those of policy.model {name!r}: name the model, "
            "policy.weights and policy.quantized of the saved run"
        )


_BASES: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()


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
