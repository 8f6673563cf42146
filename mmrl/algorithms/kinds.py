"""Methods that are kinds of stages: they train on rows of the data and belong to no paper's RL."""

from collections.abc import Mapping

from mmrl.algorithms.advantages.experts import Demonstrated, Preferred
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.given import Imitation, PairScores, Preference, Ratings
from mmrl.algorithms.planners.taught import Pairs, PicturePairs, Taught
from mmrl.algorithms.weights.aggregate import SequenceMean, TokenMean

KINDS: Mapping[str, Algorithm] = {
    "sft": Algorithm(
        objective=((1.0, Imitation()),), advantage=Demonstrated(), aggregation=TokenMean(), planner=Taught(), group_size=1
    ),
    "dpo": Algorithm(
        objective=((1.0, Preference()),), advantage=Preferred(), aggregation=SequenceMean(), planner=Pairs(), group_size=2
    ),
    "scores": Algorithm(
        objective=((1.0, PairScores()),), advantage=Preferred(), aggregation=SequenceMean(), planner=Pairs(), group_size=2
    ),
    "picture_scores": Algorithm(
        objective=((1.0, PairScores()),), advantage=Preferred(), aggregation=SequenceMean(), planner=PicturePairs(), group_size=2
    ),
    "ratings": Algorithm(
        objective=((1.0, Ratings()),), advantage=Demonstrated(), aggregation=SequenceMean(), planner=Taught(), group_size=1
    ),
}
"""The kind of a stage -> the algorithm that it starts from."""
