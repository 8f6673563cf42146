"""Our formulas against the official code of the methods."""

import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.numerics.check_losses import nft_text_loss
from tests.numerics.check_samplers import attention_rhythm, critique_grpo_loss, sec_bandit, vade_posterior
from tests.numerics.check_turns import gigpo_advantages, hgpo_advantages
from tests.numerics.conftest import FOLDER
from tests.numerics.registry import CHECKS, Vector, read

for module in sorted(Path(__file__).parent.glob("check_*.py")):
    import_module(f"tests.numerics.{module.stem}")


KEYS = (Path(__file__).parent / "keys.txt").read_text(encoding="utf-8").splitlines()
"""Every key of the files of reference vectors, a line each."""
WITHOUT_A_CHECK: set[str] = set()
"""What nothing checks yet; the list only ever gets shorter."""


def test_every_key_of_the_reference_vectors_is_checked() -> None:
    wanted = {key for key in KEYS if not key.startswith("#")}
    there = {key for file in sorted((Path(__file__).parent / "vectors").glob("*.json")) for key in read(file)}
    missing = {key for key in wanted if key not in there or key not in CHECKS}
    assert missing - WITHOUT_A_CHECK == set(), "register a function for each in a module check_*.py, and copy its vector"
    assert WITHOUT_A_CHECK - missing == set(), "these are checked by now: take them off the list"


def test_vector(vector_file: Path, vector_key: str) -> None:
    assert vector_key in CHECKS, f"nothing checks the vector {vector_key}: register a function for it in a module check_*.py"
    CHECKS[vector_key](read(vector_file)[vector_key])


def vector(key: str) -> Vector:
    return read(FOLDER / "methods.json")[key]


def per_row(of: Vector, change: Any) -> dict[str, Any]:
    """The inputs with `change` made to every list that holds something of each row."""
    rows = len(of.inputs["mask"])
    return {name: change(x) if isinstance(x, list) and len(x) == rows else x for name, x in of.inputs.items()}


def test_a_bandit_of_five():
    names, rate, tau = ("maths", "charts", "a", "zoo", "b"), 0.3, 0.7
    updates = [{"a": [0.5, -0.1], "zoo": [0.9]}, {"charts": [0.2], "a": [-0.1]}, {"b": [1.0]}]
    values, trace = dict.fromkeys(names, 0.0), list[Any]()
    for update in updates:
        for name, advantages in update.items():
            values[name] += rate * (sum(map(abs, advantages)) / len(advantages) - values[name])
        weights = [math.exp(values[name] / tau) for name in names]
        trace.append({"Q": dict(values), "p": [weight / sum(weights) for weight in weights]})
    sec_bandit(Vector({"alpha": rate, "tau": tau}, {"updates": updates}, {"trace": trace}))


def test_a_posterior_of_six():
    right, wrong = [1.0, 2.0, 3.0, 1.5, 1.0, 2.5], [2.0, 1.0, 1.0, 3.0, 1.0, 1.5]
    visits: dict[str, list[int]] = {"1": [1, 0, 1], "4": [0, 0], "5": [1]}
    after: dict[str, list[float]] = {}
    for name, counts, hit in (("alpha", right, 1), ("beta", wrong, 0)):
        after[name] = [
            count * (0.7 if str(i) in visits else 0.9) + sum(x == hit for x in visits.get(str(i), ()))
            for i, count in enumerate(counts)
        ]
    vade_posterior(Vector({"lam_visited": 0.7, "lam_all": 0.9}, {"alpha": right, "beta": wrong, "visits": visits}, after))


def test_twice_the_rows_of_nft_text():
    """A sum over rows doubles and every row keeps its gradient; the denominator is no multiple of sixteen."""
    once = vector("nft_text_loss")
    cases = {name: {"loss": 2 * case["loss"], "grad": 2 * case["grad"]} for name, case in once.outputs["cases"].items()}
    nft_text_loss(replace(once, inputs=per_row(once, lambda rows: 2 * rows), outputs={"cases": cases}))


def test_a_row_without_actions_leaves_critique_grpo_as_it_is():
    once = vector("critique_grpo_loss")

    def one_more(rows: list[Any]) -> list[Any]:
        return [*rows, [0.0] * len(rows[0]) if isinstance(rows[0], list) else rows[-1]]

    cases = {name: case | {"grad": one_more(case["grad"])} for name, case in once.outputs["cases"].items()}
    critique_grpo_loss(replace(once, inputs=per_row(once, one_more), outputs={"cases": cases}))


@pytest.mark.parametrize("copies", [2, 3])
def test_groups_of_gigpo_stay_apart(copies: int):
    once = vector("gigpo_advantages")
    more: dict[str, Any] = {name: copies * x for name, x in once.inputs.items()}
    for name in ("trajectory", "group"):
        more[name] = [f"{x}{i}" for i in range(copies) for x in once.inputs[name]]
    cases = {name: copies * expected for name, expected in once.outputs["cases"].items()}
    gigpo_advantages(replace(once, inputs=more, outputs={"cases": cases}))


def test_states_of_gigpo_and_hgpo_have_any_names_and_rewards_any_values():
    once = vector("gigpo_advantages")
    renamed = {**once.inputs, "observation": [f"state {name}" for name in once.inputs["observation"]]}
    gigpo_advantages(replace(once, inputs=renamed))
    twice = vector("hgpo_advantages")
    values = {name: [3 * x for x in twice.inputs[name]] for name in ("returns", "episode_totals")}
    cases = [
        case | {"advantages": [3 * x for x in case["advantages"]]}
        for case in twice.outputs["cases"]
        if case["mode"] == "mean_norm"
    ]
    assert cases, "a mean alone scales with its rewards"
    hgpo_advantages(replace(twice, inputs={**twice.inputs, **values}, outputs={"cases": cases}))


def test_a_clip_of_critique_grpo_is_the_vector_s():
    """Beyond every ratio the clip does nothing, so each token's gradient is that of its own ratio."""
    once = vector("critique_grpo_loss")
    with pytest.raises(AssertionError, match="clipped_mean"):
        critique_grpo_loss(replace(once, params={**once.params, "clip": 0.9}))


def test_rhythm_is_as_exact_as_its_vector():
    once = vector("attention_rhythm")
    old, new = once.params["gamma_amp"], 1.3
    scaled = {
        name: [1 + (x - 1) * (new - 1) / (old - 1) for x in values]
        for name, values in once.outputs.items()
        if name.startswith("gamma_")
    }
    attention_rhythm(replace(once, params={**once.params, "gamma_amp": new}, outputs={**once.outputs, **scaled}))
