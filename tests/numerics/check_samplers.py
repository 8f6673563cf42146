"""What samplers and planners learn from rewards, against the code or formula of their papers."""

from mmrl.algorithms.samplers.learned import Bandit, Thompson, VarianceAware, min_max
from mmrl.core.types import Prompt
from tests.numerics.registry import Vector, check, close


def of_categories(names: list[str]) -> list[Prompt]:
    return [Prompt(name, columns={"category": name}) for name in names]


@check("dump_ucb")
def dump_ucb(vector: Vector) -> None:
    names, params = vector.inputs["sources"], vector.params
    part = Bandit(
        of_categories(names),
        rule="ucb",
        window=params["window"],
        temperature=params["temperature"],
        exploration=params["exploration"],
    )
    for i, moment in enumerate(vector.outputs["trace"]):
        if "update" in moment:
            part.learn(moment["update"])
            assert [part.seen[name] for name in names] == moment["n"]
        close([part.chances()[name] for name in names], moment["weights"], what=f"moment {i}")


@check("sec_bandit")
def sec_bandit(vector: Vector) -> None:
    part = Bandit(of_categories(["a", "b", "c"]), rate=vector.params["alpha"], temperature=vector.params["tau"])
    for update, moment in zip(vector.inputs["updates"], vector.outputs["trace"], strict=True):
        part.learn(update)
        assert set(part.values) == set(moment["Q"])
        close([part.values[name] for name in moment["Q"]], list(moment["Q"].values()), what="values")
        close([part.chances()[name] for name in "abc"], moment["p"], what="chances")


@check("vade_posterior")
def vade_posterior(vector: Vector) -> None:
    inputs, outputs, params = vector.inputs, vector.outputs, vector.params
    part = Thompson(of_categories(list("abcd")), fade_visited=params["lam_visited"], fade=params["lam_all"])
    part.right, part.wrong = list(inputs["alpha"]), list(inputs["beta"])
    part.learn({int(i): [reward > 0 for reward in rewards] for i, rewards in inputs["visits"].items()})
    close(part.right, outputs["alpha"], what="right")
    close(part.wrong, outputs["beta"], what="wrong")


@check("mmr1_vas")
def mmr1_vas(vector: Vector) -> None:
    inputs, outputs, params = vector.inputs, vector.outputs, vector.params
    columns = ([rate * (1 - rate) for rate in inputs["pass_rate"]], inputs["diversity"])
    scaled = [min_max(column) for column in columns]
    weights = [sum(w * x for w, x in zip(params["metric_weights"], row, strict=True)) for row in zip(*scaled, strict=True)]
    close(weights, outputs["vps"], what="weights")
    for momentum, name in ((0.0, "momentum_0"), (0.5, "momentum_half")):
        part = VarianceAware(of_categories(list("abcd")), momentum=momentum)
        mixed = [part.mix(old, new) for old, new in zip(inputs["old_weights"], weights, strict=True)]
        close(mixed, outputs[name], what=name)
    part = VarianceAware(of_categories(list("abcd")), share=params["mixture_ratio"])
    part.draw(params["batch"])
    assert part.taken == outputs["num_uniform"] == params["batch"] - outputs["num_weighted"]
