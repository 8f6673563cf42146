"""Losses of completions that are given: to imitate, preferred in pairs, scored by a head; and of tokens that a teacher judges."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.algorithms.beside import OfPairs
from mmrl.algorithms.objectives.surrogates import Values
from mmrl.algorithms.objectives.terms import OfTheGroup, Penalty, Surrogate, actions_only, log_ratio
from mmrl.algorithms.statistics import number_at
from mmrl.algorithms.views import SEEN, Privileged
from mmrl.core.protocols import View
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, REF_LOGPROBS, SCORE, TAUGHT
from mmrl.core.types import Batch, Prompt, Reading, Rollouts, Scores, Target
from mmrl.runtime.ranges import CountOrNone, NonNegative, Number, Positive, Range, Share, With, check_ranges
from mmrl.runtime.tensors import masked_mean

Kind = Literal["sigmoid", "sigmoid_norm", "ipo", "hinge", "robust", "apo_zero", "nca_pair"]
SUMS = ("sigmoid", "hinge", "robust", "apo_zero", "nca_pair")
"""Losses of summed log-probabilities; the others take means."""
TURNED = ("sigmoid", "sigmoid_norm", "robust")
"""Losses that know what a pair costs that is the wrong way round."""


@dataclass(frozen=True)
class Imitation(Surrogate, reads=(LOGPROBS,)):
    """-A log p, p the policy's probability of a token; with `dft` -A p log p, the factor p held fixed.

    With the aggregation TokenMean and A = 1 this is supervised fine-tuning: the mean over all taught tokens of the minibatch,
    however it is cut. DFT (arXiv:2508.05629) takes the weight 1 / p out of its gradient, so that unlikely tokens pull less.
    """

    dft: bool = False
    """True: weigh every token by its own probability."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        logprobs = actions_only(readings[LOGPROBS], batch.rollouts.action_mask)
        weight = logprobs.detach().exp() if self.dft else 1.0
        return -batch.advantages * weight * logprobs, {"policy/imitation": -logprobs.detach()}


@dataclass(frozen=True)
class Preference(OfTheGroup, OfPairs, reads=(LOGPROBS, REF_LOGPROBS)):
    """-log sigmoid(beta m), m = (log p - log ref) of the chosen minus that of the rejected (DPO, arXiv:2305.18290).

    Log-probabilities are summed over a completion. `loss`: "sigmoid_norm" takes their means in place of sums; "ipo" is
    (m - 1 / (2 beta))^2 of the means (arXiv:2310.12036). Rows of advantage above 0 are chosen, those below 0 rejected. Every
    action of a pair has the pair's loss: take the aggregation SequenceMean, the advantage Preferred and the planner Pairs.
    """

    beta: Positive = 0.1
    """How much moving away from the reference costs; of sigmoid_norm, about the usual length times larger."""
    loss: Kind = "sigmoid"
    """sigmoid: DPO; sigmoid_norm: of mean log-probabilities; ipo: a square around 1 / (2 beta); hinge: max(0, 1 - beta m)
    (arXiv:2305.10425); robust: unbiased under `smoothing` (arXiv:2403.00409); apo_zero: each completion by itself, up and down
    (arXiv:2408.06266); nca_pair: by itself against 0 (arXiv:2402.05369)."""
    smoothing: Annotated[float, Range(0, 0.5), With("loss", *TURNED)] = 0.0
    """The chance that a pair is the wrong way round: that share of the loss is of the pair turned over (cDPO), or is taken off
    (robust). Of these and the sigmoids only."""
    sft: NonNegative = 0.0
    """How much -log p of the chosen, the mean over its tokens, is added (RPO, arXiv:2404.19733)."""
    beyond: Annotated[Share, With("loss", *SUMS)] = 1.0
    """The weight of tokens beyond the length of the pair's shorter completion; below 1 length teaches less (LD-DPO,
    arXiv:2409.06411). Not of mean log-probabilities."""
    margin: str = ""
    """The column with a pair's difference d of rewards: beta becomes beta (1 + dynamic (1 - exp(-rate d))), so that clear pairs
    weigh more (MM-RLHF, arXiv:2502.10391). Rows of a stage `pairs` have `margin`. Empty: beta is the same for all."""
    dynamic: Annotated[NonNegative, With("margin")] = 0.1
    """How much a clear pair's beta is raised, with `margin`; .1 as in the authors' script (Kwai-YuanQi/MM-RLHF@7c8af1d)."""
    rate: Annotated[Positive, With("margin")] = 0.5
    """How soon, per unit of reward, with `margin`; the authors' code does not show theirs."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.smoothing == 0.5 and self.loss == "robust":
            raise ValueError("Preference.smoothing is 0.5, and robust divides by what is left of a pair's side: set it lower")

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a pair without a difference of rewards, or with one below 0, where they are asked for."""
        for prompt in prompts if self.margin else ():
            if (found := number_at(prompt, self.margin)) < 0:
                raise ValueError(
                    f"prompt {prompt.id!r} has {found:g} in the column {self.margin!r}, as if the rejected one were better: "
                    "swap the two, or remove the pair"
                )

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, ids = batch.rollouts.action_mask, batch.rollouts.group_ids
        logprobs = actions_only(readings[LOGPROBS], mask)
        moved = logprobs - actions_only(readings[REF_LOGPROBS], mask)
        same = ids[:, None] == ids
        of_rows = (moved * self.weights(mask, same)).sum(1) if self.loss in SUMS else masked_mean(moved, mask, dim=1)
        sign, same = batch.advantages[:, 0].sign().to(of_rows), same.to(of_rows)
        chosen, rejected = same @ (of_rows * (sign > 0)), same @ (of_rows * (sign < 0))
        beta, margin = self.betas(batch, of_rows), chosen - rejected
        loss = self.of_pairs(chosen, rejected, beta)
        if self.sft:
            loss = loss - self.sft * (same @ (masked_mean(logprobs, mask, dim=1) * (sign > 0)))
        metrics = {"policy/margin": beta * margin, "policy/preferred": (margin > 0).to(margin)}
        return loss[:, None].expand(mask.shape), {name: x.detach()[:, None].expand(mask.shape) for name, x in metrics.items()}

    def weights(self, mask: Tensor, same: Tensor) -> Tensor:
        """1 for the first tokens of a completion (n, t), as many as the pair's shorter one has, then `beyond`."""
        lengths = mask.sum(1)
        shared = torch.where(same, lengths, lengths.max()).amin(1)
        return torch.where(mask.cumsum(1) <= shared[:, None], 1.0, self.beyond)

    def betas(self, batch: Batch, like: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Every row's beta, raised with the difference of its pair's rewards."""
        if not self.margin:
            return torch.full_like(like, self.beta)
        margins = by_row(batch, lambda prompt: number_at(prompt, self.margin)).to(like)
        return self.beta * (1 + self.dynamic * (1 - (-self.rate * margins).exp()))

    def of_pairs(
        self, chosen: Float[Tensor, " n"], rejected: Float[Tensor, " n"], beta: Float[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """The loss of pairs, from how far each completion has moved from the reference."""
        up, down, m = beta * chosen, beta * rejected, beta * (chosen - rejected)
        if self.loss == "ipo":
            return (chosen - rejected - 1 / (2 * beta)) ** 2
        if self.loss == "hinge":
            return (1 - m).relu()
        if self.loss == "apo_zero":
            return 1 - up.sigmoid() + down.sigmoid()
        if self.loss == "nca_pair":
            return -logsigmoid(up) - 0.5 * logsigmoid(-up) - 0.5 * logsigmoid(-down)
        right, wrong, chance = -logsigmoid(m), -logsigmoid(-m), self.smoothing
        if self.loss == "robust":
            return ((1 - chance) * right - chance * wrong) / (1 - 2 * chance)
        return (1 - chance) * right + chance * wrong


@dataclass(frozen=True)
class OfScores(Surrogate):
    """A loss of the scores that a reward model gives to whole completions (`policy.scores`), on one axis per prompt.

    A prompt's column `axis` says which; without one it is the first. Every action of a row has the row's loss: take the
    aggregation SequenceMean.
    """

    axes: tuple[str, ...] = ("overall",)
    """The axes that are trained, which policy.scores must have."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return tuple(Reading(SCORE + axis) for axis in self.axes)

    def axis_of(self, prompt: Prompt) -> str:
        """The axis that a prompt's rows are about; raises ValueError for one that is not trained."""
        axis = str(prompt.columns.get("axis", self.axes[0]))
        if axis not in self.axes:
            raise ValueError(
                f"prompt {prompt.id!r} is about the axis {axis!r}, and trained are {', '.join(self.axes)}: name it in "
                "policy.scores and in the term's axes"
            )
        return axis

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for an axis that is not trained."""
        for prompt in prompts:
            self.axis_of(prompt)

    def scores(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Float[Tensor, " n"]:
        """The score of every row on its own axis."""
        places = by_row(batch, lambda prompt: self.axes.index(self.axis_of(prompt))).long()
        values = torch.stack([readings[reading][:, 0] for reading in self.reads], dim=1)
        return values.gather(1, places[:, None].to(values.device))[:, 0]


@dataclass(frozen=True)
class PairScores(OfScores, OfPairs, scope="group"):
    """-log sigmoid(s - s' - m) + c (s + s')^2, s the score of the preferred completion (Bradley and Terry).

    m is the pair's column `margin`, 0 without one (arXiv:2307.09288), and c keeps scores around 0 (arXiv:2312.09244). Rows of
    advantage above 0 are preferred: take the advantage Preferred and the planner Pairs or PicturePairs.
    """

    center: NonNegative = 0.0
    """c: how much a pair's scores are kept around 0; .01 in arXiv:2312.09244."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for an axis that is not trained, or a margin that is no number."""
        super().check_prompts(prompts)
        for prompt in prompts:
            number_at(prompt, "margin", 0.0)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, ids = batch.rollouts.action_mask, batch.rollouts.group_ids
        scores = self.scores(readings, batch)
        sign, same = batch.advantages[:, 0].sign().to(scores), (ids[:, None] == ids).to(scores)
        gap = same @ (sign * scores)
        margin = by_row(batch, lambda prompt: number_at(prompt, "margin", 0.0)).to(gap)
        loss = -logsigmoid(gap - margin) + self.center * (same @ scores) ** 2
        metrics = {"policy/margin": gap, "policy/preferred": (gap > 0).to(gap)}
        return loss[:, None].expand(mask.shape), {name: x.detach()[:, None].expand(mask.shape) for name, x in metrics.items()}


@dataclass(frozen=True)
class Ratings(OfScores):
    """(s - y)^2, y the number that people gave a completion: the prompt's column `rating`. Take the planner Taught."""

    column: str = "rating"
    """The column with the number."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for an axis that is not trained, a rating that is no number, and several that are all the same."""
        super().check_prompts(prompts)
        found = [number_at(prompt, self.column) for prompt in prompts]
        if len(found) > 1 and len(set(found)) == 1:
            raise ValueError(
                f"all {len(found)} ratings that were looked at are {found[0]:g}, so a head learns that number and nothing else: "
                "add rows with other ratings"
            )

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        scores = self.scores(readings, batch)
        off = scores - by_row(batch, lambda prompt: number_at(prompt, self.column)).to(scores)
        return (off**2)[:, None].expand(mask.shape), {"policy/error": off.detach().abs()[:, None].expand(mask.shape)}


def by_row(batch: Batch, number: Callable[[Prompt], float]) -> Float[Tensor, " n"]:
    """The number of a prompt, for every row of its group."""
    prompts = {group.id: group.prompt for group in batch.rollouts.groups}
    return torch.tensor([number(prompts[int(i)]) for i in batch.rollouts.group_ids], dtype=torch.float)


@dataclass(frozen=True)
class FollowTeacher(Penalty):
    """beta KL(T || M) + (1 - beta) KL(S || M) per token, M = (1 - beta) S + beta T: S the policy, T its teacher, held fixed.

    arXiv:2306.13649. beta = 1 is KL(S || T), 0 is KL(T || S). `exact` has the whole vocabulary. `sampled` has the token that was
    written alone, with beta = 1 and the gradient of (log s - log t) log s, the factor held fixed: a score function.
    """

    form: Literal["exact", "sampled"] = "exact"
    """What of the teacher's distribution is compared: all of it, or the token that was written."""
    model: Literal["teacher", "policy", "ref", "ema"] = "teacher"
    """Whose weights the teacher has: one of policy.teachers, the policy's of now, its reference, or averaged ones."""
    beta: Share = 0.5
    """T's share of M. Below 1 a policy that is sure of the wrong token still hears its teacher."""
    top: CountOrNone = 0
    """Likeliest tokens of the policy that are compared one by one, and the rest as one; 0: all."""
    view: Privileged = field(default_factory=Privileged)
    """What the teacher is shown besides."""
    rows: Literal["all", "wrong"] = "all"
    """wrong: those whose total reward is below success_at."""
    success_at: Number = 0.5
    """Total reward from which a sample is right."""
    ratio_bound: Positive | None = None
    """Values are multiplied by min(policy / old, this), held fixed (2 in SDPO); None: they are not."""
    gap_bound: Annotated[NonNegative | None, With("form", "sampled")] = None
    """Of sampled: log s - log t is clamped to [-c, c]; None: it is not."""
    weighed: bool = False
    """Do the weights under importance multiply it, as they do surrogates?"""
    names: tuple[str, ...] = ()
    """Teachers that are measured apart, chosen by the column `teacher`; a run with several fills it in."""
    label: str = ""
    """Ends the names of its metrics; a run with several such terms fills it in."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.form == "sampled" and (self.beta != 1 or self.top):
            raise ValueError(
                f"FollowTeacher.form is 'sampled', which knows one token's probability, with beta = {self.beta:g} and top = "
                f"{self.top}: set beta = 1.0 and top = 0, or form = 'exact'"
            )
        if self.success_at != 0.5 and not self.routes:
            raise ValueError(
                "FollowTeacher.success_at says which samples are right, and nothing asks: set rows = 'wrong' or view.column = "
                "'told', or leave it out"
            )
        if self.model == "policy" and (self.view.is_plain or self.form == "sampled"):
            raise ValueError(
                "FollowTeacher.model is 'policy', and a policy is its own teacher in vain unless that sees more and all tokens "
                "are compared: set view.column, view.media or view.frames, and form = 'exact', or another model"
            )

    @property
    def credited(self) -> bool:
        return self.weighed

    @property
    def views(self) -> Mapping[str, View]:
        return {} if self.view.is_plain else {SEEN: self.view}

    @property
    def teacher(self) -> Reading:
        """The teacher's probability of the token that was written."""
        return Reading("logprobs", self.model, "plain" if self.view.is_plain else SEEN)

    def compared(self, quantity: str) -> Reading:
        """A comparison of whole distributions, with a gradient."""
        return Reading(quantity, target=Target(self.model, self.teacher.view, self.beta, self.top))

    @property
    def reads(self) -> tuple[Reading, ...]:
        exact = (self.compared("divergence"), self.compared("overlap"))
        ratio = () if self.ratio_bound is None else (LOGPROBS, OLD_LOGPROBS)
        routed = (TAUGHT,) if self.routes else ()
        return tuple(dict.fromkeys((*(exact if self.form == "exact" else (LOGPROBS, self.teacher)), *ratio, *routed)))

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError where what the teacher is shown is in no prompt."""
        self.view.check_prompts(prompts)

    @property
    def routes(self) -> bool:
        """Does the teacher have some rows to itself, known once rewards are?"""
        return self.rows == "wrong" or self.view.tells

    def route(self, rollouts: Rollouts, scores: Scores) -> tuple[Bool[Tensor, " n"], list[str]]:
        """The rows that the teacher has, and what it is told of each: another right sample of the group, as it was written."""
        totals = scores.total()
        taught = totals < self.success_at if self.rows == "wrong" else totals.isfinite()
        if not self.view.tells:
            return taught, []
        groups, is_right = [int(i) for i in rollouts.group_ids], [bool(one) for one in totals >= self.success_at]
        right: dict[int, list[tuple[int, str]]] = {}
        for i, (group, (_, sample)) in enumerate(zip(groups, rollouts.samples(), strict=True)):
            if is_right[i] and sample.transcript:
                right.setdefault(group, []).append((i, sample.transcript))
        texts = [next((text for j, text in right.get(group, []) if j != i), "") for i, group in enumerate(groups)]
        taught = taught & torch.tensor([bool(text) for text in texts], dtype=torch.bool)
        return taught, [text if bool(taught[i]) else "" for i, text in enumerate(texts)]

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        taught = mask & (readings[TAUGHT] > 0) if self.routes else mask
        if self.form == "exact":
            kl, agreement = readings[self.compared("divergence")], readings[self.compared("overlap")]
            values = actions_only(kl, taught)
        else:
            kl = actions_only(readings[LOGPROBS] - readings[self.teacher], mask).detach()
            bounded = kl if self.gap_bound is None else kl.clamp(-self.gap_bound, self.gap_bound)
            values = actions_only(bounded * actions_only(readings[LOGPROBS], mask), taught)
            agreement = (-kl).exp().clamp(max=1)
        if self.ratio_bound is not None:
            values = values * log_ratio(readings, mask).detach().exp().clamp(max=self.ratio_bound)
        infos = {"taught": torch.ones_like(kl), "kl": kl.detach(), "agreement": agreement.detach()}
        of_term = f"/{self.label}" if self.label else ""
        metrics = {f"teacher/{name}{of_term}": actions_only(x, taught) for name, x in infos.items()}
        for one in self.names:
            theirs = [str(group.prompt.columns.get("teacher")) == one for group, _ in batch.rollouts.samples()]
            own = taught & torch.tensor(theirs, dtype=torch.bool, device=taught.device)[:, None]
            metrics |= {f"teacher/{name}{of_term}/{one}": actions_only(x, own) for name, x in infos.items()}
        return values, metrics
