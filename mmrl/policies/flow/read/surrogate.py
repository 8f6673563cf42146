"""Pictures that carry a gradient: the end of a surrogate path, decoded by the model's own autoencoder."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmrl.flow.path import data_of
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.read.evaluate import of_the_schedule, refuse_several
from mmrl.policies.flow.sizes import Size
from mmrl.policies.flow.trace import FlowTrace, NoisyLatents
from mmrl.runtime.tensors import to_device


def read_pixels(
    host: FlowHost, trace: FlowTrace, mask: Bool[Tensor, "n t"], guidance: float | None = None
) -> Float[Tensor, "n 3 y x"]:
    """The pictures of rows with an action in the mask, on the network's device; 0 of the others.

    Raises:
        ValueError: the rows are of several sizes.
    """
    chosen = mask.any(1).nonzero()[:, 0]
    nothing = len(chosen) == 0
    if nothing:
        # A backward pass needs a graph, and wrappers for many processes a forward, even where nothing trains.
        chosen, mask = torch.zeros(1, dtype=torch.long), mask.clone()
        mask[0, -1] = True
    sizes = [size for size, _ in trace.by_size(chosen)]
    if len(sizes) > 1:
        refuse_several({"pixels"}, sizes)
    pixels = decode(host, path_ends(host, trace.take(chosen), mask[chosen], guidance), sizes[0])
    out = pixels.new_zeros(len(mask), *pixels.shape[1:])
    return out + 0 * pixels.sum() if nothing else out.index_copy(0, chosen.to(pixels.device), pixels)


def path_ends(
    host: FlowHost, trace: FlowTrace, active: Bool[Tensor, "n t"], guidance: float | None = None
) -> Float[Tensor, "n ..."]:
    """The finished latents, packed, at the end of every row's path."""
    path, size, device = trace.surrogate, trace.size_of(torch.arange(len(trace))), host.net.device
    assert path is not None
    family, sigmas = host.family.at(size), trace.sigma_tables[int(trace.course_index[0])].sigmas

    def velocities(rows: Tensor, columns: Tensor, added: Tensor | None) -> Tensor:
        x = to_device(trace.inputs(rows, columns), device)
        x = x if added is None else x + added
        asked = NoisyLatents(x, trace.timesteps[rows, columns], trace.prompt_index[rows], size)
        return host.velocities(asked, trace.conditions, guidance)

    if path.kind == "refl":
        rows, columns = active.nonzero(as_tuple=True)
        x, v = to_device(trace.inputs(rows, columns), device), velocities(rows, columns, None)
        return family.finish(data_of(x, v, trace.sigma[rows, columns].to(device)), 0.0)
    samples = to_device(trace.latents[trace.after[:, 0]], device)
    ends = path.end(active, trace.through, of_the_schedule(trace, "dt"), samples, velocities)
    return family.finish(ends, float(sigmas[-1]))


def decode(host: FlowHost, latents: Float[Tensor, "n ..."], size: Size) -> Float[Tensor, "n 3 y x"]:
    """Pixels in [0, 1], decoded as many at a time as samples are, and once more going backward, so that memory stays small."""
    own, vae = host.family, host.pipeline.vae
    family = own.at(size)

    def pixels(z: Tensor) -> Tensor:
        shown = family.decode(family.unpack(z).to(vae.device, vae.dtype)).float()
        return (shown / 2 + 0.5).clamp(0, 1)

    parts = latents.split(own.rows_at(host.config.rows_per_decode, size))
    found = [checkpoint(pixels, z, use_reentrant=False) if z.requires_grad else pixels(z) for z in parts]
    return torch.cat([one for one in found if isinstance(one, Tensor)])
