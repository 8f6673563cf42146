"""Methods that are kinds of stages: they train on rows of the data and belong to no paper's RL."""

from collections.abc import Mapping

from mmrl.algorithms.advantages.experts import Demonstrated, Preferred
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.given import Imitation, Preference
from mmrl.algorithms.planners.taught import Pairs, Taught
from mmrl.algorithms.weights.aggregate import SequenceMean, TokenMean

KINDS: Mapping[str, Algorithm] = {
    "sft": Algorithm(
        objective=((1.0, Imitation()),), advantage=Demonstrated(), aggregation=TokenMean(), planner=Taught(), group_size=1
    ),
    "dpo": Algorithm(
        objective=((1.0, Preference()),), advantage=Preferred(), aggregation=SequenceMean(), planner=Pairs(), group_size=2
    ),
}
"""The kind of a stage -> the algorithm that it starts from."""
