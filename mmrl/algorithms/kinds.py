"""Methods that are kinds of stages: they train on rows of the data and belong to no paper's RL."""

from collections.abc import Mapping
from dataclasses import replace

from mmrl.algorithms.advantages.experts import Demonstrated, Preferred
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.forward import DenoisingPreference, Matching
from mmrl.algorithms.objectives.given import Imitation, PairScores, Preference, Ratings
from mmrl.algorithms.planners.flow import TaughtPairs, TaughtPictures
from mmrl.algorithms.planners.taught import Pairs, PicturePairs, Taught
from mmrl.algorithms.weights.aggregate import SequenceMean, TokenMean
from mmrl.flow.schedules import Forward
from mmrl.flow.times import TimeSampler

ANY_TIME = Forward(num_steps=1000, solver="ode", times=TimeSampler("rollout", count=1, shared=True))
"""One of the model's own thousand times, all equally likely, as in diffusers' scripts; nothing is drawn along it."""
SFT = Algorithm(
    objective=((1.0, Imitation()),), advantage=Demonstrated(), aggregation=TokenMean(), planner=Taught(), group_size=1
)
DPO = Algorithm(objective=((1.0, Preference()),), advantage=Preferred(), planner=Pairs(), group_size=2)
SCORES = replace(DPO, objective=((1.0, PairScores()),))
KINDS: Mapping[str, Algorithm] = {
    "sft": SFT,
    "dpo": DPO,
    "scores": SCORES,
    "picture_scores": replace(SCORES, planner=PicturePairs()),
    "ratings": replace(SFT, objective=((1.0, Ratings()),), aggregation=SequenceMean()),
    "sft_of_pictures": replace(SFT, objective=((1.0, Matching()),), planner=TaughtPictures(), schedule=ANY_TIME),
    "sft_of_codes": replace(SFT, planner=TaughtPictures()),
    "dpo_of_codes": replace(DPO, planner=TaughtPairs()),
    "dpo_of_pictures": replace(DPO, objective=((1.0, DenoisingPreference()),), planner=TaughtPairs(), schedule=ANY_TIME),
}
"""The kind of a stage -> the algorithm that it starts from; generators have their own."""

OWN_KINDS = {"flow": "pictures", "token_image": "codes"}
"""Kind of policy -> the end of the names of its entries in KINDS."""


def kind_for(name: object, policy: object) -> object:
    """The entry of KINDS for a kind of stage and the kind of a policy: `kind_for("sft", "flow")`; other names stay."""
    return own if (own := f"{name}_of_{OWN_KINDS.get(str(policy))}") in KINDS else name
