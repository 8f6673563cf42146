"""How much does the environment itself give for the turns of an episode?

    r = the sum of the rewards that its observations state

Does not apply to a group of which no observation states one. An episode that was cut, or got none, has 0 beside others that did.

Modality: text
Range: as the environment has it
Source: none; the return of an episode, not discounted
Licence: own code Apache-2.0
"""

from mmrl import Group, Need, Sample

needs = Need(setup="an [environment] whose observations have a reward", turns=True)


def environment(group: Group) -> list[float | None]:
    stated = [_rewards(sample) for sample in group.samples]
    return [sum(rewards) if any(stated) else None for rewards in stated]


def _rewards(sample: Sample) -> list[float]:
    seen = [turn.observation for turn in sample.turns if turn.observation is not None]
    return [float(one.reward) for one in seen if one.reward is not None]
