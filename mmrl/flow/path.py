"""Rectified flow, and the one time convention of the project.

Time t runs from 1 = noise to 0 = data; it is diffusers' sigma. x_t = (1 - t) data + t noise; velocity = noise - data,
so a step from t to t' < t adds (t' - t) velocity. A model evaluated at (x_t, t) predicts the velocity.
"""

from jaxtyping import Float
from torch import Tensor

Sigmas = Float[Tensor, " t1"]
"""The times t of a plan, one more than its steps, from noise to data."""


def like_batch(t: Float[Tensor, " n"] | float, x: Float[Tensor, "n ..."]) -> Tensor | float:
    """One number per row, shaped so that it multiplies the rows of x; a plain number is returned as it is."""
    return t.to(x).reshape(-1, *[1] * (x.ndim - 1)) if isinstance(t, Tensor) else t


def add_noise(
    data: Float[Tensor, "n ..."], noise: Float[Tensor, "n ..."], t: Float[Tensor, " n"] | float
) -> Float[Tensor, "n ..."]:
    """x_t = (1 - t) data + t noise."""
    t = like_batch(t, data)
    return (1 - t) * data + t * noise


def velocity_of(data: Float[Tensor, "n ..."], noise: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
    """noise - data: what a model learns to predict."""
    return noise - data


def data_of(x: Float[Tensor, "n ..."], v: Float[Tensor, "n ..."], t: Float[Tensor, " n"] | float) -> Float[Tensor, "n ..."]:
    """The data that x_t and a velocity point at: x_t - t v."""
    return x - like_batch(t, x) * v


def noise_of(x: Float[Tensor, "n ..."], v: Float[Tensor, "n ..."], t: Float[Tensor, " n"] | float) -> Float[Tensor, "n ..."]:
    """The noise that x_t and a velocity come from: x_t + (1 - t) v."""
    return x + (1 - like_batch(t, x)) * v


def velocity_with_guidance(
    conditional: Float[Tensor, "n ..."],
    unconditional: Float[Tensor, "n ..."],
    scale: Float[Tensor, " n"] | float,
    keep_norm: bool = False,
) -> Float[Tensor, "n ..."]:
    """Classifier-free guidance: unconditional + scale (conditional - unconditional), with one scale or one per row.

    keep_norm rescales the result to the conditional velocity's norm over the last dimension (Qwen-Image).
    """
    v = unconditional + like_batch(scale, conditional) * (conditional - unconditional)
    if keep_norm:
        wanted, has = ((x**2).sum(-1, keepdim=True).sqrt() for x in (conditional, v))
        v = v * wanted / has.clamp(min=1e-12)
    return v


def nearest_multiple(conditional: Float[Tensor, "n ..."], unconditional: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
    """(c . u / |u|^2) u of every row: the multiple of the unconditional velocity nearest to the conditional one.

    CFG-Zero* guides away from it (arXiv:2503.18886). Left out: its first steps with zero velocity, which nothing could train.
    """
    c, u = conditional.flatten(1), unconditional.flatten(1)
    return unconditional * like_batch((c * u).sum(1) / (u**2).sum(1).clamp(min=1e-12), unconditional)


def no_longer_than(conditional: Float[Tensor, "n ..."], v: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
    """v min(1, |c| / |v|) of every row, norms over the whole latent (Z-Image's pipeline, cfg_normalization = 1)."""
    wanted, has = ((x.flatten(1) ** 2).sum(1).sqrt() for x in (conditional, v))
    return v * like_batch((wanted / has.clamp(min=1e-12)).clamp(max=1), v)
