"""An algorithm is data: which part sits in which slot, and the one formula that joins them."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Never, TypeVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.beside import Beside
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.weights.aggregate import SequenceMean
from mmrl.core.hooks import AdvantageHooks, PartHooks, PlannerHooks, PolicyHooks, TermHooks, defines, with_hooks
from mmrl.core.protocols import Advantage, Mask, Planner, Policy, Shaping, Stateful, Term, View, Weight
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS
from mmrl.core.types import Batch, Counts, Prompt, Reading, Rollouts, Scope, Scores
from mmrl.flow.plan import Schedule
from mmrl.runtime.blame import refuse_where
from mmrl.runtime.ranges import Count, Range, check_ranges

Part = TypeVar("Part")
SCOPES: tuple[Scope, ...] = ("action", "rollout", "group", "batch")
OF_SCORES = "scores"
"""The model of readings that the trainer makes of rewards."""
NO_COPIES = ("policy", "old", "rollout", "start", "teacher", OF_SCORES)
"""These need no copy of the weights: `old` and `start` are read before the first update, `rollout` was recorded while sampling,
and teachers are adapters of the policy, or models of their own."""
MOST_ROLLOUTS = 2**20
"""Of one step."""


@dataclass(frozen=True)
class Algorithm:
    """loss = sum_{n,t} share[n,t] * sum_terms coef * (importance[n,t] if credited else 1) * term[n,t]."""

    objective: tuple[tuple[float, Term], ...] = field(default_factory=lambda: ((1.0, Clip()),))
    """(coefficient, term) pairs, added up."""
    advantage: Advantage = field(default_factory=GroupNorm)
    """How good every action was, and compared with what."""
    aggregation: Weight = field(default_factory=SequenceMean)
    """How much every action counts in the loss."""
    importance: tuple[Weight, ...] = ()
    """Weights besides the aggregation: they multiply credited terms only, never KL or entropy."""
    masks: tuple[Mask, ...] = ()
    """Which actions leave the counts and do not train."""
    shaping: tuple[Shaping, ...] = ()
    """Bonuses and penalties, added before the advantage, in this order."""
    planner: Planner = field(default_factory=Once)
    """What to sample for every prompt, and what to sample again once scores are known."""
    schedule: Schedule | None = None
    """How flow policies sample; None for text."""
    ema_decay: Callable[[int], float] | None = None
    """Number of updates so far -> share of the `ema` weights that is kept at an update; None: the policy's own decay."""
    group_size: Annotated[int, Range(1, 2**16, why="all samples of a step are in memory")] = 8
    """Samples per prompt."""
    epochs: Count = 1
    """Passes over one step's rollouts."""
    minibatches: Count = 1
    """Optimizer steps per pass."""
    old: Literal["recorded", "reread"] = "recorded"
    """Old log-probabilities: as noted by the sampler, or read again before the first update; with one update per step they are
    the update's own reading, whatever is set here, unless an engine samples and its record is wanted."""
    needs_rewards: tuple[str, ...] = ()
    """Rewards that the method is made of, by the names of their files: a run without one of them is refused."""
    needs_turns: bool = False
    """Is the method made of samples of several turns, so that a run without [environment] is refused?"""
    __post_init__ = check_ranges

    @property
    def all_reads(self) -> tuple[Reading, ...]:
        """Every reading any part needs."""
        parts = [term for _, term in self.objective] + [self.aggregation, *self.importance, *self.shaping]
        return tuple(dict.fromkeys([*(reading for part in parts for reading in part.reads), *self.advantage_reads]))

    @property
    def advantage_reads(self) -> tuple[Reading, ...]:
        """Readings of actions that the advantage uses, or a planner."""
        planner = with_hooks(self.planner, PlannerHooks)
        return tuple(dict.fromkeys((*with_hooks(self.advantage, AdvantageHooks).reads, *planner.reads, *planner.inspects)))

    @property
    def live_reads(self) -> tuple[Reading, ...]:
        """Evaluated with gradient at every update."""
        return tuple(dict.fromkeys(r for _, term in self.objective for r in term.reads if r.model == "policy"))

    @property
    def frozen_reads(self) -> tuple[Reading, ...]:
        """Evaluated once per step, before the first update."""
        return tuple(reading for reading in self.all_reads if reading.model not in ("policy", OF_SCORES))

    @property
    def score_reads(self) -> tuple[Reading, ...]:
        """Readings computed from the scores, after shaping."""
        return tuple(reading for reading in self.all_reads if reading.model == OF_SCORES)

    @property
    def remembering(self) -> dict[str, Stateful]:
        """The parts with a state of their own, by slot; the planner's is kept apart."""
        slots: dict[str, object] = {"advantage": self.advantage, "aggregation": self.aggregation}
        for name, parts in (
            ("objective", [term for _, term in self.objective]),
            ("importance", self.importance),
            ("masks", self.masks),
            ("shaping", self.shaping),
        ):
            slots |= {f"{name}.{i}": part for i, part in enumerate(parts)}
        return {name: part for name, part in slots.items() if isinstance(part, Stateful)}

    @property
    def shadows(self) -> frozenset[str]:
        """Weights that must be kept beside the live ones."""
        return frozenset((reading.target or reading).model for reading in self.all_reads) - {*NO_COPIES}

    @property
    def views(self) -> dict[str, View]:
        """All views of prompts that parts use besides the plain one; ValueError if two parts use one name for different views."""
        found: dict[str, View] = {}
        for part in (self.planner, *self.shaping, *(term for _, term in self.objective)):
            for name, view in with_hooks(part, PartHooks).views.items():
                if found.setdefault(name, view) != view:
                    raise ValueError(
                        f"two parts call different views {name!r}: {found[name]} and {view}; give both the same settings"
                    )
        return found

    @property
    def scope(self) -> Scope:
        """The coarsest scope any term needs; the finest where there is no term, as in an evaluation."""
        return SCOPES[max((SCOPES.index(term.scope) for _, term in self.objective), default=0)]

    @property
    def updates(self) -> int:
        """Optimizer steps on the rollouts of one step."""
        return self.epochs * self.minibatches

    @property
    def idle_terms(self) -> tuple[Term, ...]:
        """Terms that do not act as themselves because a step takes one update only, where policy and old are the same."""
        idle = tuple(term for _, term in self.objective if with_hooks(term, TermHooks).at_first_update is not None)
        return idle if self.updates == 1 else ()

    @property
    def replays(self) -> bool:
        """Does the planner have rows of earlier steps trained again?"""
        return defines(self.planner, PlannerHooks.begin)

    @property
    def old_can_be_live(self) -> bool:
        """Can the live reading of a step's only update, detached from the graph, serve as the old one as well?

        Not if weights, shaping or the advantage need old log-probabilities, which must be known before the update, nor if rows of
        earlier steps are replayed.
        """
        earlier = [reading for part in (self.aggregation, *self.importance, *self.shaping) for reading in part.reads]
        known = OLD_LOGPROBS in (*earlier, *self.advantage_reads) or self.replays
        return self.updates == 1 and LOGPROBS in self.live_reads and not known

    @property
    def leaves_rows_idle(self) -> bool:
        """Do rows whose advantage is 0 train nothing, so that a batch without them gives the same gradient?"""
        silent = all(term.credited and with_hooks(term, TermHooks).silent_without_advantage for _, term in self.objective)
        return silent and self.scope in ("action", "rollout")

    @property
    def unscored(self) -> bool:
        """Does the method train without rewards?"""
        return with_hooks(self.advantage, AdvantageHooks).unscored

    def rebases_after(self, step: int) -> bool:
        """Does a term want the policy at the end of this training step as its reference? Steps count from 1."""
        return any(with_hooks(term, TermHooks).rebase_after == step for _, term in self.objective)

    def adapt(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass what a step's updates measured to the parts that follow training."""
        for part in (self.advantage, *(term for _, term in self.objective)):
            with_hooks(part, PartHooks).adapt(step, metrics)

    def units(self, num_prompts: int) -> int:
        """Number of pieces that a step can be divided into for minibatches: rollouts, or whole groups if a term compares them."""
        return num_prompts if self.scope in ("group", "batch") else num_prompts * self.group_size

    def check_step(self, num_prompts: int) -> None:
        """Raise ValueError for parts that do not go together, and for more minibatches than the prompts of all ranks can fill."""
        refuse_unfit(self, num_prompts)
        if self.minibatches <= (units := self.units(num_prompts)):
            return
        whole = units == num_prompts and self.scope in ("group", "batch")
        what = "groups, which the objective needs whole" if whole else f"rollouts (prompts_per_step x {self.group_size})"
        prompts = self.minibatches if whole else -(-self.minibatches // self.group_size)
        raise ValueError(
            f"algorithm.minibatches is {self.minibatches}, but a step with prompts_per_step = {num_prompts} has {units} "
            f"{what}, and a minibatch without any would train on nothing: set algorithm.minibatches = {units} or less, or "
            f"prompts_per_step = {prompts} or more"
        )

    def with_length(self, max_new_tokens: int) -> "Algorithm":
        """The same algorithm with the run's completion length in every part that needs one and names none."""
        return replace(
            self,
            planner=part_with_length(self.planner, max_new_tokens),
            aggregation=part_with_length(self.aggregation, max_new_tokens),
            shaping=tuple(part_with_length(part, max_new_tokens) for part in self.shaping),
            objective=tuple((coef, part_with_length(term, max_new_tokens)) for coef, term in self.objective),
        )

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt that a part cannot work with; names the prompt and the remedy."""
        for part in (self.advantage, *self.importance, *self.shaping, self.planner, *(term for _, term in self.objective)):
            with_hooks(part, PartHooks).check_prompts(prompts)

    def check(self, policy: Policy[Never]) -> None:
        """Raises ValueError for parts that do not go together, or ask for more than the policy can do."""
        refuse_unfit(self, 1)
        self.check_kind(policy, policy.offers)

    def check_kind(self, policy: object, offers: Set[str]) -> None:
        """Raises ValueError where a part asks more than a policy, or this class of them, can do that offers these quantities."""
        name = (policy if isinstance(policy, type) else type(policy)).__name__
        asked = [reading for reading in self.all_reads if reading.model != OF_SCORES]
        missing = sorted({reading.quantity for reading in asked} - offers)
        heat = next((reading.temperature for reading in asked if reading.temperature is not None), None)
        switched = {type(term): after for _, term in self.objective if (after := with_hooks(term, TermHooks).rebase_after)}
        rebasing, after = next(iter(switched.items()), (Term, 0))
        reasons = {
            f"the algorithm reads {missing}; {name} offers {sorted(offers)}: take other parts": bool(missing),
            f"the algorithm reads at temperature {heat}, which {name} cannot: take another algorithm.preset": (
                heat is not None and not with_hooks(policy, PolicyHooks).reads_at_temperatures
            ),
            f"{rebasing.__name__} changes its reference after step {after}, which {name} cannot: set its `switch` to 0, "
            "or take another algorithm.preset": after > 0 and not defines(policy, PolicyHooks.end_step),
            f"{type(self.planner).__name__} trains rows of earlier steps again, token by token, and {name} writes no tokens: "
            "take another algorithm.planner": self.replays and getattr(policy, "vocabulary", "") in ("", PolicyHooks.vocabulary),
        }
        refuse_where("", reasons)

    def trainable(self, rollouts: Rollouts) -> Bool[Tensor, "n t"]:
        """The action mask after every mask part."""
        mask = rollouts.action_mask
        for part in self.masks:
            mask = mask & part(rollouts)
        return mask

    def shape_rewards(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        for part in self.shaping:
            scores = part(scores, rollouts, frozen)
        return scores

    def loss_weights(self, batch: Batch, counts: Counts) -> tuple[Float[Tensor, "n t"], Float[Tensor, "n t"]]:
        """Share and importance of every action of a minibatch."""
        importance = torch.ones_like(batch.advantages)
        for weight in self.importance:
            importance = importance * weight(batch, counts)
        return self.aggregation(batch, counts) * batch.rollouts.action_mask, importance

    def loss(self, batch: Batch, live: Mapping[Reading, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of this part of the minibatch (parts add up), and metrics weighted by the shares (they add up too).

        `policy/share` is what all shares add up to; divide by it where it is not 1 (FixedLength, SequenceSum, TokenSum).
        """
        readings = {**batch.frozen, **live}
        loss = batch.share.new_zeros(())
        metrics = {"policy/share": batch.share.sum()}
        for coef, term in self.objective:
            values, infos = term(readings, batch)
            weight = batch.share * batch.importance if term.credited else batch.share
            loss = loss + coef * (weight * values).sum()
            metrics |= {name: (batch.share * info).sum().detach() for name, info in infos.items()}
        return loss, metrics


def part_with_length(part: Part, length: int) -> Part:
    """The part with the run's completion length, if it needs one and names none."""
    asked = with_hooks(part, PartHooks)
    wants = asked.length is None and (isinstance(part, PartHooks) or defines(part, PartHooks.with_length))
    return cast(Part, asked.with_length(length)) if wants else part


def refuse_unfit(algorithm: Algorithm, num_prompts: int) -> None:
    """Raise ValueError for parts that train on nonsense or do not go together, and for more than MOST_ROLLOUTS rollouts."""
    fixed = (algorithm.aggregation, *algorithm.importance, *algorithm.shaping)
    looking = [*((part, part.reads) for part in fixed), (algorithm.advantage, algorithm.advantage_reads)]
    moving = {type(part).__name__: one.quantity for part, reads in looking for one in reads if one.model == "policy"}
    kind, read = next(iter(moving.items()), ("", ""))
    cut = [one.quantity for one in algorithm.live_reads if one.quantity.startswith("group_")]
    from_sampler = [one.quantity for one in algorithm.all_reads if one.model == "rollout"]
    least = with_hooks(algorithm.advantage, AdvantageHooks).min_group_size
    rollouts = num_prompts * algorithm.group_size
    reasons = {
        f"the objective reads {cut} under moving weights, where groups may be cut: read model='old' instead": bool(cut),
        f"{kind} reads {read} under the policy's moving weights; weights, shaping and advantages are fixed before the first "
        "update: read model='old' instead": bool(moving),
        f"a part compares the sampler's {from_sampler} with the old weights', but algorithm.old is 'recorded', which makes them "
        "the same: set algorithm.old = 'reread'": bool(from_sampler) and algorithm.old == "recorded",
        f"algorithm.group_size is {algorithm.group_size}, but {type(algorithm.advantage).__name__} compares the samples of a "
        f"group with each other and needs at least {least}: set algorithm.group_size = 8": algorithm.group_size < least,
        f"a step with prompts_per_step = {num_prompts} and algorithm.group_size = {algorithm.group_size} has {rollouts} "
        f"rollouts, and at most {MOST_ROLLOUTS} are held in memory: lower one of them": rollouts > MOST_ROLLOUTS,
    }
    refuse_where("", reasons)
    for part in (algorithm.advantage, *fixed, algorithm.planner, *(term for _, term in algorithm.objective)):
        with_hooks(part, Beside).check_beside(algorithm)
