"""Rewards of R1-Router (steps of a search, answers) and of JarvisArt (edits of photos)."""

from pathlib import Path
from sys import modules
from typing import Any

from mmrl.answers.photos import THRESHOLDS, agreement, likeness, masks_agreement
from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, Prompt, Sample
from tests.numerics.registry import Vector, check, close, tensor

REWARDS = Path(__file__).resolve().parents[2] / "rewards"


@check("r1_router.retrieval")
def retrieval(vector: Vector) -> None:
    """The vectors of texts stand in the file; the model that makes them is tested in tests/plugins."""
    known = {text: tensor(values) for text, values in vector.inputs["embeddings"].items()}
    reward: Any = load(str(REWARDS / "sub_question.py"), "rewards")
    assert reward().retrievers == tuple(vector.params["retrievers"])
    rewards = modules[reward.__module__].step_rewards
    for case, expected in zip(vector.inputs["cases"], vector.outputs["rewards"], strict=True):
        found = rewards(
            [case["text"]],
            case["query"],
            case["retriever"],
            vector.params["retrievers"],
            lambda query, others: [float(known[query] @ known[other]) for other in others],
        )
        close(found, [expected], vector.tolerance, case["text"])


@check("r1_router.answer")
def recall(vector: Vector) -> None:
    reward = load(str(REWARDS / "answer_recall.py"), "rewards")(template="think")
    for case, expected in zip(vector.inputs["cases"], vector.outputs["rewards"], strict=True):
        [found] = reward(Group(0, Prompt("p", answer=case["answers"]), (Sample(case["text"], (1,)),)))
        close(found.value, expected, vector.tolerance, case["text"])


@check("jarvisart.parameters")
def parameters(vector: Vector) -> None:
    told = vector.params["thresholds"]
    assert all(told[name] == value for name, value in THRESHOLDS.items())
    for i, case in enumerate(vector.inputs["cases"]):
        found = agreement(case["predicted"], case["truth"], told)
        close(found["names"], vector.outputs["names"][i], vector.tolerance, f"names {i}")
        close(found["values"], vector.outputs["values"][i], vector.tolerance, f"values {i}")


@check("jarvisart.masks")
def masks(vector: Vector) -> None:
    found = [masks_agreement(case["predicted"], case["truth"]) for case in vector.inputs["cases"]]
    close(found, vector.outputs["rewards"], vector.tolerance, "rewards")


@check("jarvisart.perception")
def perception(vector: Vector) -> None:
    one, other = vector.inputs["lab"]
    close(likeness(one, other, vector.params["k"]), vector.outputs["reward"], vector.tolerance, "reward")
