"""Quantities of recorded transitions, from the trace alone or from velocities evaluated again."""

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.flow.integrate import gaussian_of
from mmrl.flow.path import like_batch
from mmrl.policies.flow.sizes import Size, size_text
from mmrl.policies.flow.trace import FlowTrace
from mmrl.runtime.tensors import to_device

FROM_VELOCITY = frozenset({"velocity", "logprobs", "mean", "pixels"})
"""Need the network."""
QUANTITIES = FROM_VELOCITY | {"sampled_mean", "std", "pull", "dt", "sigma", "origin", "sound_from", "target_velocity"}
OF_LATENTS = frozenset({"velocity", "mean", "sampled_mean", "target_velocity", "pixels"})
"""Have the shape of latents, or of pictures."""
OF_DENSITIES = frozenset({"logprobs", "mean", "sampled_mean", "std", "pull", "dt"})
"""Exist at noisy steps only."""

Actions = tuple[Int[Tensor, " m"], Int[Tensor, " m"]]
"""Rows and columns of actions whose latents have one size."""


def check_quantity(trace: FlowTrace, quantity: str) -> None:
    """Raise ValueError for a quantity that means nothing on this schedule."""
    if quantity in OF_DENSITIES - ({"mean"} if trace.imitates else set()) and not trace.has_densities:
        raise ValueError(
            f"the objective reads {quantity!r}, but the schedule has no noisy step that trains, so there is no density: "
            "use a schedule with noise (Full, Window, Tree, Branching), or an objective on velocities with schedule Forward"
        )
    if quantity == "pixels" and trace.surrogate is None:
        raise ValueError("the objective reads 'pixels' with a gradient, which needs a surrogate path: use the schedule Surrogate")
    if quantity == "target_velocity" and not trace.is_forward:
        raise ValueError(
            "the objective reads 'target_velocity', which only noised copies of samples have: use the schedule Forward"
        )


def of_the_schedule(trace: FlowTrace, quantity: str) -> Float[Tensor, "n t"]:
    """std, pull, dt, sigma, origin or sound_from of every action; 0 where a row has none."""
    if quantity in ("sigma", "origin"):
        return trace.sigma if quantity == "sigma" else trace.before.float()
    out = torch.zeros(trace.steps.shape)
    for i, sigma_table in enumerate(trace.sigma_tables):
        if quantity == "sound_from":
            out[trace.course_index == i] = float((*sigma_table.part_sizes, 0)[0])
            continue
        values = sigma_table.sigmas[:-1] - sigma_table.sigmas[1:]
        if quantity != "dt":
            values = sigma_table.deviations if quantity == "std" else sigma_table.pulls
        own = (trace.course_index == i)[:, None] & (trace.steps >= 0)
        out[own] = values[trace.steps[own]]
    return out


def read_trace(
    trace: FlowTrace,
    quantities: Iterable[str],
    mask: Bool[Tensor, "n t"],
    velocities: Callable[[Sequence[Actions]], Sequence[Tensor]],
) -> dict[str, Tensor]:
    """(n, t) or (n, t, ...); 0 where mask is False, except for quantities of the schedule. `velocities` takes all sizes at once.

    Raises ValueError for a quantity in the shape of latents, of rows whose pictures differ in size.
    """
    asked = set(quantities)
    rows, columns = mask.nonzero(as_tuple=True)
    needs_network = bool(asked & FROM_VELOCITY)
    if needs_network and len(rows) == 0 and len(mask) and torch.is_grad_enabled():
        # A backward pass needs a graph, and wrappers for many processes a forward, even where nothing trains.
        rows = columns = torch.zeros(1, dtype=torch.long)
    sizes = trace.by_size(rows)
    if len(sizes) > 1:
        refuse_several(asked & OF_LATENTS, [size for size, _ in sizes])
    chosen = [(rows[places], columns[places]) for _, places in sizes]
    answers = velocities(chosen) if needs_network else [None] * len(chosen)
    flat = [of_actions(trace, own, v, asked) for own, v in zip(chosen, answers, strict=True)]
    rows, columns = (torch.cat(parts) for parts in zip(*chosen, strict=True))
    found = {name: torch.cat([one[name] for one in flat]) if len(flat) > 1 else flat[0][name] for name in flat[0]}
    return {
        name: scatter(found[name].cpu(), rows, columns, mask) if name in found else of_the_schedule(trace, name) for name in asked
    }


def refuse_several(asked: Collection[str], sizes: Sequence[Size]) -> None:
    """Raise ValueError for latents of several sizes in one tensor."""
    if asked:
        raise ValueError(
            f"the objective compares latents ({', '.join(sorted(asked))}) of {len(sizes)} sizes of pictures at once "
            f"({', '.join(map(size_text, sizes))}), as a term does that looks at all actions of a minibatch (scope 'batch'): "
            "draw all prompts at one size, or use another objective"
        )


def of_actions(trace: FlowTrace, actions: Actions, v: Tensor | None, asked: Collection[str]) -> dict[str, Tensor]:
    """The requested values at actions of one size, from the velocity `v` there or from the trace."""
    rows, columns = actions
    flat = {} if v is None else {"velocity": v}
    if v is not None and {"logprobs", "mean"} & set(asked):
        flat |= densities(trace, rows, columns, v)
    if "sampled_mean" in asked:
        flat["sampled_mean"] = trace.latents[trace.means[rows, columns]]
    if "target_velocity" in asked:
        flat["target_velocity"] = trace.targets(rows, columns)
    sizes = trace.sigma_tables[int(trace.course_index[rows[0]])].part_sizes if len(rows) else ()
    return {name: weigh_parts(values, sizes) if name in OF_LATENTS else values for name, values in flat.items() if name in asked}


def weigh_parts(x: Float[Tensor, "m ..."], sizes: Sequence[int]) -> Float[Tensor, "m ..."]:
    """Latents with their parts' elements scaled, so that a mean of squares over all is the mean of the parts' own means.

    Objectives compare latents by such means: they are then on the scale of the log-probabilities, whatever sizes parts have.
    """
    if not sizes:
        return x
    each = sum(sizes) / len(sizes)
    return torch.cat([part * (each / part.shape[1]) ** 0.5 for part in x.split(list(sizes), 1)], 1)


def densities(
    trace: FlowTrace, rows: Int[Tensor, " m"], columns: Int[Tensor, " m"], v: Float[Tensor, "m ..."]
) -> dict[str, Tensor]:
    """Mean and log-probability of transitions with these velocities, computed where the velocities are."""
    if len(rows) == 0:
        return {"mean": v, "logprobs": v.flatten(1).sum(1)}
    x = to_device(trace.inputs(rows, columns), v.device)
    x_next = to_device(trace.latents[trace.after[rows, columns]], v.device)
    sigma_tables, steps = trace.course_index[rows], trace.steps[rows, columns]
    means, logprobs = torch.zeros_like(x), torch.zeros(len(x), device=v.device)
    for i in sigma_tables.unique().tolist():
        sigma_table, here = trace.sigma_tables[i], (sigma_tables == i).nonzero()[:, 0]
        # Steps of one kind are evaluated together, wherever on the sigma_table they are.
        kinds = torch.tensor([sigma_table.plan.steps.index(step) for step in sigma_table.plan.steps])[steps[here]]
        for kind in kinds.unique().tolist():
            places, step = here[kinds == kind], sigma_table.plan.steps[kind]
            own = to_device(places, v.device)
            if not step.stochastic:
                means = means.index_copy(0, own, euler_means(x[own], v[own], sigma_table.sigmas, steps[places]))
                continue
            gaussian = gaussian_of(step, x[own], v[own], sigma_table.sigmas, steps[places], sigma_table.part_sizes)
            means = means.index_copy(0, own, gaussian.mean)
            if step.trained:
                logprobs = logprobs.index_copy(0, own, gaussian.log_density(x_next[own]))
    return {"mean": means, "logprobs": logprobs}


def euler_means(
    x: Float[Tensor, "m ..."], v: Float[Tensor, "m ..."], sigmas: Float[Tensor, " t1"], steps: Int[Tensor, " m"]
) -> Float[Tensor, "m ..."]:
    """Where steps without noise end."""
    return x - like_batch((sigmas[steps] - sigmas[steps + 1]).to(x.device), x) * v


def scatter(
    values: Float[Tensor, "m ..."], rows: Int[Tensor, " m"], columns: Int[Tensor, " m"], mask: Bool[Tensor, "n t"]
) -> Tensor:
    """Values where the mask is True, 0 elsewhere."""
    out = torch.zeros(*mask.shape, *values.shape[1:]).index_put((rows, columns), values)
    return torch.where(mask.view(*mask.shape, *[1] * (values.ndim - 1)), out, 0.0)
