"""The loss of whole algorithms: signs, cuts, shares; and slow references for terms without vectors."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.penalties import Entropy, ReferenceKL
from mmrl.algorithms.objectives.surrogates import Cispo, Clip, ClipCov, Dppo, Dro, Gmpo, KlCov, Reinforce, Sapo, Vespo
from mmrl.algorithms.objectives.terms import OfTheGroup, Surrogate
from mmrl.algorithms.weights.aggregate import FixedLength, SequenceMean, SequenceSum, TokenMean, TokenSum
from mmrl.algorithms.weights.importance import HighEntropy, OffPolicyMask
from mmrl.core.protocols import Term, Weight
from mmrl.core.readings import ENTROPY, LOGPROBS, OLD_ENTROPY, OLD_LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Counts, Reading, Scope
from tests.support.rows import FEW, TEXT_PRESETS, counts_of, loss_and_gradient, make_batch, weighed, weighed_loss

SURROGATES: dict[str, Term] = {
    "reinforce": Reinforce(),
    "clip": Clip(),
    "clip_rollout": Clip(level="rollout"),
    "clip_rollout_token": Clip(level="rollout", token_gradient=True),
    "clip_bounded": Clip(delta=2.0, dual=3.0),
    "cispo": Cispo(),
    "sapo": Sapo(),
    "gmpo": Gmpo(),
    "vespo": Vespo(),
    "kl_cov": KlCov(),
    "clip_cov": ClipCov(),
    "dppo": Dppo(),
    "dro": Dro(),
}
SHARES: dict[str, Weight] = {
    "sequence_mean": SequenceMean(),
    "token_mean": TokenMean(),
    "fixed_length": FixedLength(7),
    "sequence_sum": SequenceSum(),
    "token_sum": TokenSum(),
}
TERMS = {**SURROGATES, "kl": ReferenceKL(), "kl_corrected": ReferenceKL(ratio_correction="rollout"), "entropy": Entropy()}


def random_batch(seed: int, num_rows: int = 6, num_actions: int = 5) -> tuple[Batch, dict[Reading, Tensor]]:
    """Rows of length 0 to num_actions, masked also in the middle; what stands off the mask is infinite or NaN."""
    rng = torch.Generator().manual_seed(seed)

    def normal(scale: float = 1.0) -> Tensor:
        return scale * torch.randn(num_rows, num_actions, generator=rng, dtype=torch.float64)

    mask = torch.rand(num_rows, num_actions, generator=rng) < 0.7
    mask[0] = False
    mask[1] = True
    live = -normal().abs()
    off = torch.where(mask, 0.0, torch.nan)
    frozen = {
        OLD_LOGPROBS: live + normal(0.3) + off,
        REF_LOGPROBS: live + normal(0.3),
        ROLLOUT_LOGPROBS: live + normal(0.3),
        OLD_ENTROPY: normal().abs(),
    }
    batch = make_batch(mask, normal()[:, 0], frozen, [i // 2 for i in range(num_rows)])
    return batch, {LOGPROBS: live, ENTROPY: normal().abs()}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", SURROGATES)
def test_credit_moves_probability_its_way(name, sign):
    live = torch.tensor([[-0.5, -1.0, -2.0], [-0.3, -1.5, -0.7]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    batch = make_batch(mask, torch.tensor([sign, 2 * sign], dtype=torch.float64), {OLD_LOGPROBS: live})
    _, gradient = weighed_loss(SURROGATES[name], batch, {LOGPROBS: live})
    assert (gradient[mask] * sign < 0).all(), "descending the gradient must raise log-probs of credited actions"
    assert not gradient[~mask].any()


@pytest.mark.parametrize("kind", ["k2", "k3", "abs", "k1+", "k3+"])
def test_reference_kl_pulls_to_the_reference(kind):
    ref = torch.tensor([[-1.0, -1.0]], dtype=torch.float64)
    batch = make_batch(torch.ones(1, 2), torch.zeros(1, dtype=torch.float64), {REF_LOGPROBS: ref})
    _, gradient = weighed_loss(ReferenceKL(kind), batch, {LOGPROBS: ref + torch.tensor([[0.5, -0.5]])})
    assert gradient[0, 0] > 0 > gradient[0, 1]


def test_entropy_bonus_raises_entropy():
    batch = make_batch(torch.ones(1, 2), torch.zeros(1, dtype=torch.float64), {})
    algorithm = Algorithm(objective=((0.01, Entropy()),))
    entropy = {ENTROPY: torch.ones(1, 2, dtype=torch.float64)}
    loss, gradient = weighed_loss(algorithm, batch, entropy, with_respect_to=ENTROPY)
    assert loss == -0.01
    assert gradient.tolist() == [[-0.005, -0.005]]


@FEW
@given(st.integers(0, 10**6))
@pytest.mark.parametrize("name", TERMS)
def test_values_are_finite_whatever_stands_off_the_mask(name, seed):
    batch, live = random_batch(seed)
    live = {reading: x.masked_fill(~batch.rollouts.action_mask, -torch.inf) for reading, x in live.items()}
    values, metrics = TERMS[name]({**batch.frozen, **live}, batch)
    for tensor in (values, *metrics.values()):
        assert tensor.isfinite().all()
        assert tensor.shape == batch.advantages.shape


@pytest.mark.parametrize("name", SURROGATES)
def test_distant_policies_stay_finite(name):
    live = torch.tensor([[-300.0, -0.1], [-0.1, -300.0]])
    batch = make_batch(torch.ones(2, 2), torch.tensor([1.0, -1.0]), {OLD_LOGPROBS: live.flip(1)})
    loss, gradient = weighed_loss(SURROGATES[name], batch, {LOGPROBS: live})
    assert loss.isfinite()
    assert gradient.isfinite().all()


@FEW
@given(st.integers(0, 10**6), st.integers(1, 5))
@pytest.mark.parametrize("name", [name for name, a in TEXT_PRESETS.items() if a.scope in ("action", "rollout")])
def test_loss_does_not_depend_on_how_the_batch_is_cut(name, seed, cut):
    algorithm = TEXT_PRESETS[name].with_length(7)
    batch, live = random_batch(seed)
    batch = weighed(algorithm, batch)
    loss, gradient = loss_and_gradient(algorithm, batch, live)
    rows = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
    steps = [slice(0, 2), slice(2, None)] if algorithm.scope == "action" else [slice(None)]
    total, pieces = torch.zeros(()), torch.zeros_like(gradient)
    for part in (rows[:cut], rows[cut:]):
        for some in steps:
            small, small_live = batch.take(part, some), {reading: x[part][:, some] for reading, x in live.items()}
            part_loss, part_gradient = loss_and_gradient(algorithm, small, small_live)
            total = total + part_loss
            pieces[part.unsqueeze(1), torch.arange(live[LOGPROBS].shape[1])[some]] = part_gradient
    torch.testing.assert_close(total, loss, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(pieces, gradient, atol=1e-12, rtol=1e-12)


def test_terms_that_look_at_all_actions_forbid_cuts():
    assert {name for name, a in TEXT_PRESETS.items() if a.scope == "batch"} == {"kl_cov", "clip_cov", "disco", "drpo", "hapo"}


def test_a_declaration_that_nothing_looks_at_is_refused():
    with pytest.raises(TypeError, match="class Mine declares level, which no base has: level needs OfLevel"):
        type("Mine", (Surrogate,), {}, level="rollout")
    assert type("Mine", (Surrogate,), {}, scope="group")().scope == OfTheGroup().scope == "group"


@FEW
@given(st.integers(0, 10**6))
@pytest.mark.parametrize("name", [name for name in TEXT_PRESETS if name != "clip_cov"])  # which draws by position
def test_permuted_rows_give_the_same_loss(name, seed):
    algorithm = TEXT_PRESETS[name].with_length(7)
    batch, live = random_batch(seed)
    rows = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed + 1))
    loss, gradient = weighed_loss(algorithm, batch, live)
    moved = {reading: x[rows] for reading, x in live.items()}
    moved_loss, moved_gradient = weighed_loss(algorithm, batch.take(rows), moved)
    torch.testing.assert_close(moved_loss, loss, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(moved_gradient, gradient[rows], atol=1e-12, rtol=1e-12)


@FEW
@given(st.integers(0, 10**6))
@pytest.mark.parametrize("name", SHARES)
def test_shares_vanish_off_the_mask(name, seed):
    batch, _ = random_batch(seed)
    share = SHARES[name](batch, counts_of(batch))
    assert not share[~batch.rollouts.action_mask].any()
    assert (share[batch.rollouts.action_mask] > 0).all()


@FEW
@given(st.integers(0, 10**6))
def test_means_add_up_to_one(seed):
    batch, _ = random_batch(seed)
    for share in (SequenceMean(), TokenMean()):
        torch.testing.assert_close(share(batch, counts_of(batch)).sum().item(), 1.0)


@pytest.mark.parametrize("name", SHARES)
def test_shares_are_of_the_counts_of_all_ranks(name):
    batch, _ = random_batch(0)
    own = counts_of(batch)
    everyones = Counts(2 * own.rollouts, 2 * own.actions, 2 * own.groups)
    half = 1 if name == "token_sum" else 1 / 2
    torch.testing.assert_close(SHARES[name](batch, everyones), half * SHARES[name](batch, own))


def test_fixed_length_wants_a_length():
    batch, _ = random_batch(0)
    with pytest.raises(ValueError, match=r"FixedLength.length is not set.*max_new_tokens.*FixedLength\(length=1024\)"):
        FixedLength()(batch, counts_of(batch))


@dataclass(frozen=True)
class Ramp:
    """first + slope t for action t."""

    slope: float
    first: float = 1.0
    reads: tuple[Reading, ...] = ()
    scope: Scope = "action"

    def __call__(self, batch: Batch, counts: Counts) -> Tensor:
        return torch.full_like(batch.advantages, self.first) + self.slope * torch.arange(batch.advantages.shape[1])


def test_importance_touches_credited_terms_only():
    batch, live = random_batch(1)
    objective = ((1.0, Clip()), (0.5, ReferenceKL()))
    nothing = Algorithm(objective=objective, importance=(HighEntropy(1e-9), OffPolicyMask(-1e9), Ramp(0.0, first=0.0)))
    alone = Algorithm(objective=objective[1:])
    expected = weighed_loss(alone, batch, live)
    found = loss_and_gradient(replace(nothing, objective=((0.5, ReferenceKL()),)), weighed(nothing, batch), live)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    assert not weighed(nothing, batch).importance.any()


def test_importance_weights_are_multiplied():
    batch, _ = random_batch(1)
    alone = [weighed(Algorithm(importance=(weight,)), batch).importance for weight in (Ramp(2.0), Ramp(-0.5))]
    both = weighed(Algorithm(importance=(Ramp(2.0), Ramp(-0.5))), batch).importance
    torch.testing.assert_close(both, alone[0] * alone[1])
    assert both[0, :3].tolist() == [1, 3 * 0.5, 0]


def test_high_entropy_keeps_the_top_quantile_of_actions():
    batch, _ = random_batch(2)
    mask, entropy = batch.rollouts.action_mask, batch.frozen[OLD_ENTROPY]
    for quantile in (0.2, 0.5, 1.0):
        kept = HighEntropy(quantile)(batch, counts_of(batch)) > 0
        assert torch.equal(kept, mask & (entropy >= torch.quantile(entropy[mask], 1 - quantile)))


def test_clip_bounds_the_far_side_of_negative_advantages():
    old = torch.zeros(1, 1, dtype=torch.float64)
    batch = make_batch(torch.ones(1, 1), torch.tensor([-1.0], dtype=torch.float64), {OLD_LOGPROBS: old})
    far = {LOGPROBS: old + 3, OLD_LOGPROBS: old}
    assert Clip()(far, batch)[0].item() == pytest.approx(torch.tensor(3.0).exp().item())
    assert Clip(delta=2.0)(far, batch)[0].item() == 2
    assert Clip(dual=3.0)(far, batch)[0].item() == 3
    assert Clip(dual=3.0)(far, batch)[1]["policy/clip_frac"].item() == 1


@FEW
@given(st.integers(0, 10**6))
def test_clip_cov_by_loops(seed):
    batch, live = random_batch(seed)
    mask, lp, old = batch.rollouts.action_mask, live[LOGPROBS], batch.frozen[OLD_LOGPROBS]
    term = ClipCov(fraction=0.2, low_cov=0.1, high_cov=1.0)
    plain, (found, metrics) = Clip()({**batch.frozen, **live}, batch)[0], term({**batch.frozen, **live}, batch)
    actions = mask.nonzero().tolist()
    mean_a = sum(batch.advantages[n, t].item() for n, t in actions) / len(actions)
    mean_lp = sum(lp[n, t].item() for n, t in actions) / len(actions)
    candidates, stopped = [], []
    for n, t in actions:
        advantage, ratio = batch.advantages[n, t].item(), (lp[n, t] - old[n, t]).exp().item()
        clipped = ratio > 1.2 if advantage > 0 else ratio < 0.8
        stopped += [[n, t]] if clipped else []
        if not clipped and 0.1 < (advantage - mean_a) * (lp[n, t].item() - mean_lp) < 1.0:
            candidates.append((n, t))
    held = [(n, t) for n, t in actions if found[n, t] == 0 != plain[n, t]]
    assert set(held) <= set(candidates)
    assert len(held) == min(max(1, int(0.2 * len(actions))), len(candidates))
    assert all(found[n, t] == plain[n, t] for n, t in actions if (n, t) not in held)
    assert torch.equal(found, term({**batch.frozen, **live}, batch)[0])
    assert metrics["policy/clip_frac"].nonzero().tolist() == sorted(stopped + [[n, t] for n, t in held])


def test_kl_cov_holds_back_what_covaries_most():
    live = torch.tensor([[-0.1, -3.0], [-0.2, -1.0]], dtype=torch.float64)
    old = live - 0.5
    batch = make_batch(torch.ones(2, 2), torch.tensor([2.0, -2.0], dtype=torch.float64), {OLD_LOGPROBS: old})
    # mean A is 0 and the mean log-prob -1.075: covariances 1.95, -3.85, -1.75, -0.15
    values, metrics = KlCov(fraction=0.25, coef=3.0)({LOGPROBS: live, OLD_LOGPROBS: old}, batch)
    assert metrics["policy/clip_frac"].tolist() == [[1, 0], [0, 0]]
    ratio = torch.tensor(0.5, dtype=torch.float64).exp()
    torch.testing.assert_close(values, torch.stack([torch.stack([-2 * ratio + 3 * 0.5, -2 * ratio]), 2 * ratio.expand(2)]))


def test_metrics_are_averaged_with_the_shares():
    live = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    batch = make_batch(torch.tensor([[1, 1], [1, 0]]), torch.ones(2, dtype=torch.float64), {OLD_LOGPROBS: torch.zeros_like(live)})
    algorithm = Algorithm(objective=((1.0, Clip()),))
    _, metrics = algorithm.loss(weighed(algorithm, batch), {LOGPROBS: live})
    assert metrics["policy/clip_frac"] == 1 / 4  # the second of two actions, in one of two rollouts
    assert metrics["policy/share"] == 1
