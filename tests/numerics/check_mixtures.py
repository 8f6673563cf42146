"""MoDoMoDo: the surface of scores over mixtures, and its best point."""

from mmrl.lab.arena.mixtures import fit
from tests.numerics.registry import Vector, check, close


@check("modomodo.fit")
def modomodo_fit(vector: Vector) -> None:
    inputs, outputs = vector.inputs, vector.outputs
    names = [f"set {i}" for i in range(len(inputs["weights"][0]))]
    surface = fit([dict(zip(names, row, strict=True)) for row in inputs["weights"]], inputs["scores"])
    close(surface(inputs["asked"]), outputs["predicted"], vector.tolerance, "predicted")
    weights, score = surface.best(round(1 / vector.params["grid_step"]))
    close(list(weights.values()), outputs["best_of_the_grid"], vector.tolerance, "best")
    close(score, outputs["best_score"], vector.tolerance, "score")
