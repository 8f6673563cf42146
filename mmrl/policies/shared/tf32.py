"""TF32: float32 matrix products with 10 bits of mantissa, on NVIDIA GPUs. Loads no torch before it has to."""


def check_tf32(tf32: bool, dtype: str) -> None:
    """Raise ValueError where TF32 would have no effect."""
    if tf32 and dtype != "float32":
        raise ValueError(f"policy.tf32 acts on float32 alone, but policy.dtype is {dtype!r}: leave policy.tf32 out")


def switch_tf32(on: bool) -> None:
    """Let matrix products of float32 use TF32, or not; raises ValueError in a run that must be repeatable bit for bit."""
    import torch

    if on and torch.are_deterministic_algorithms_enabled():
        raise ValueError("policy.tf32 = true and deterministic = true exclude each other: leave one of them out")
    torch.backends.cuda.matmul.allow_tf32 = on
