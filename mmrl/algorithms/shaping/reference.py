"""Rewards without a verifier: how likely a thought makes the true answer, how alike answers to other wordings are."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from mmrl.algorithms.beside import Beside
from mmrl.algorithms.statistics import PlainShaping, with_column
from mmrl.core.hooks import PartHooks
from mmrl.core.readings import BASE_PROBABILITY, REFERENCE_PROBABILITY
from mmrl.core.samples import answer_text
from mmrl.core.types import Group, Prompt, Reading, Rollouts, Scores
from mmrl.runtime.ranges import NonNegative, Share


@dataclass(frozen=True)
class ReferenceProbability(PartHooks):
    """r = weight max(p(y* | prompt, thought) - p(y* | prompt), floor), p the mean probability of the tokens of y* (RLPR).

    arXiv:2506.18254. y* is the prompt's true answer, put in the place of the sample's own between its answer tags; p(y* | prompt)
    is the same without the thought. Samples without tags get 0. The mean of probabilities favours long answers; its code rounds
    it to bfloat16. The paper's filter of prompts by spread is the advantage WhereSpread.
    """

    weight: NonNegative = 0.9
    """Weight of the reward `reference_probability` in the total; the paper gives format 0.1."""
    debias: bool = True
    """Subtract the probability without the thought; costs a second forward."""
    floor: Share = 0.0
    """The least reward."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (REFERENCE_PROBABILITY, BASE_PROBABILITY) if self.debias else (REFERENCE_PROBABILITY,)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt whose true answer is no text and no number."""
        for prompt in prompts:
            answer_text(prompt)

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        """Raises ValueError when a reward of this name is there already."""
        probability = frozen[REFERENCE_PROBABILITY][:, 0]
        found = probability >= 0
        base = frozen[BASE_PROBABILITY][:, 0].clamp(min=0) if self.debias else torch.zeros_like(probability)
        value = torch.where(found, gain(probability, base, self.floor), 0.0)
        return with_column(scores, self, "reference_probability", value, self.weight)


def gain(probability: Tensor, base: Tensor, floor: float = 0.0) -> Tensor:
    """max(p - base, floor)."""
    return (probability - base).clamp(min=floor)


def token_f1(one: str, other: str) -> float:
    """2 shared / (words of one + words of the other), each word as often as both have it."""
    first, second = one.split(), other.split()
    shared = sum((Counter(first) & Counter(second)).values())
    return 2 * shared / (len(first) + len(second)) if shared else 0.0


def agreement(answers: Sequence[Sequence[str]]) -> list[list[float]]:
    """r_ij = mean similarity of answer j to paraphrase i with all answers to the other paraphrases (arXiv:2510.04392).

    PS-GRPO, from its abstract; the similarity, F1 of words, is ours. It rewards nonsense that is consistent.
    """
    others = [[text for k, texts in enumerate(answers) if k != i for text in texts] for i in range(len(answers))]
    if any(not texts for texts in others):
        raise ValueError("agreement compares the answers to at least two paraphrases: give every set two that were answered")
    return [
        [sum(token_f1(text, other) for other in others[i]) / len(others[i]) for text in texts] for i, texts in enumerate(answers)
    ]


@dataclass(frozen=True)
class Agreement(PlainShaping, Beside):
    """Adds a reward `agreement`: the mean F1 of words of a sample with all samples of the prompt's other wordings (PS-GRPO).

    arXiv:2510.04392, from its abstract and reviews; theirs is BLEU. For groups of the planner Wordings. Nonsense that is
    consistent earns all of it: reward right answers besides, or take the shaping Gate.
    """

    weight: NonNegative = 1.0
    """Weight of the reward in the total; ours."""
    column: str = "paraphrases"
    """The planner's column with the other wordings."""

    planners = ("Wordings",)

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        """Raises ValueError when a reward has its name already, or for a prompt without another wording."""
        found = {group.id: self.of_group(group) for group in rollouts.groups}
        rows = zip(map(int, rollouts.group_ids), map(int, rollouts.sample_ids), strict=True)
        values = torch.tensor([found[group_id][i] for group_id, i in rows], dtype=torch.float64)
        return with_column(scores, self, "agreement", values, self.weight)

    def of_group(self, group: Group) -> list[float]:
        """The reward of every sample of a group, in the order in which the planner asks."""
        others = group.prompt.columns.get(self.column) or ()
        wordings = 1 + (1 if isinstance(others, str) else len(others))
        texts, size = [sample.text or "" for sample in group.samples], len(group.samples)
        cuts = accumulate((size // wordings + (i < size % wordings) for i in range(wordings)), initial=0)
        return [value for row in agreement([texts[a:b] for a, b in pairwise(cuts)]) for value in row]
