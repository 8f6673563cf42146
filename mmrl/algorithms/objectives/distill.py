"""A term that brings the policy's next token near to a teacher's, at every token that the policy wrote itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from mmrl.algorithms.objectives.surrogates import Values
from mmrl.algorithms.objectives.terms import Penalty, actions_only, log_ratio
from mmrl.algorithms.views import SEEN, Privileged
from mmrl.core.protocols import View
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, TAUGHT
from mmrl.core.types import Batch, Prompt, Reading, Rollouts, Scores, Target
from mmrl.runtime.ranges import CountOrNone, NonNegative, Number, Positive, Share, check_ranges


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
    gap_bound: NonNegative | None = None
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
        if self.form == "exact" and self.gap_bound is not None:
            raise ValueError("FollowTeacher.gap_bound is of the form 'sampled', and form is 'exact': leave it out")
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
