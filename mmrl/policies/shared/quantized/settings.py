"""Settings of weights in 4 bits that are refused before a model is looked at, alike for models that write and draw."""

from typing import Protocol

from mmrl.policies.shared.lora import LoraSettings


class Quantized(Protocol):
    """[policy.quantized]."""

    @property
    def parts(self) -> tuple[str, ...]: ...


def refuse_idle(weights: str, quantized: Quantized, usual: Quantized, lora: LoraSettings | None) -> None:
    """Raise ValueError for [policy.quantized] beside weights as they are, without a part, and for 4 bits without adapters."""
    if weights == "float":
        if quantized != usual:
            raise ValueError('policy.quantized acts with policy.weights = "nf4" alone: set that, or remove the table')
        return
    if not quantized.parts:
        raise ValueError(f"policy.quantized.parts is empty: name {' or '.join(usual.parts)}, or leave policy.weights out")
    if lora is None:
        raise ValueError(
            'policy.weights is "nf4", and weights in 4 bits do not train: add [policy.lora], whose adapters train beside them'
        )
