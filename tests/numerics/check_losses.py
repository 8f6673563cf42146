"""Losses and their gradients through Algorithm.weigh and Algorithm.loss, against TRL, verl, EasyR1 and code of single papers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.off_policy import KeepLikely, NegativeAwareText, OldKL, Rec, VarianceBound, dual_step
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.regression import Discriminative, TrustHinge
from mmrl.algorithms.objectives.surrogates import Cispo, Clip, Dppo, Dro, Gmpo, KlCov, Reinforce, Sapo, Vespo
from mmrl.algorithms.weights.aggregate import FixedLength, GroupSum, SequenceMean, SequenceSum, TokenMean, TokenSum
from mmrl.algorithms.weights.importance import HighEntropy, OffPolicyMask, RolloutCorrection
from mmrl.core.protocols import Term, Weight
from mmrl.core.readings import LOGPROBS, OLD_ENTROPY, OLD_LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Counts, Reading, Scope
from tests.numerics.registry import Vector, check, close, tensor
from tests.numerics.rows import close_loss
from tests.support.rows import counts_of, loss_and_gradient, make_batch, weighed, weighed_loss

LEVELS = {"token": "action", "sequence": "rollout"}
VERL_K3 = {"log_ratio_clamp": 20.0, "value_clamp": 10.0}
"""Constants of verl's code, where we have options."""
FLOAT32 = 1e-6
"""TRL keeps SAPO's temperatures in float32."""


@dataclass(frozen=True)
class ShortBy:
    """n / (n + eps): verl and EasyR1 add 1e-8 to the length they divide by; we do not."""

    eps: float = 1e-8
    whole: bool = False
    """The sum of all lengths instead of the row's own."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return ()

    @property
    def scope(self) -> Scope:
        return "rollout"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        n = batch.rollouts.action_mask.to(batch.advantages.dtype).sum(1, keepdim=True)
        n = n.sum() if self.whole else n
        return (n / (n + self.eps)).expand(batch.advantages.shape)


@dataclass(frozen=True)
class Given:
    """A term with given values, to see an aggregation alone."""

    values: Tensor

    @property
    def reads(self) -> tuple[Reading, ...]:
        return ()

    @property
    def scope(self) -> Scope:
        return "action"

    @property
    def credited(self) -> bool:
        return True

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        return self.values, {}


def number(x: float | None) -> float | None:
    """JSON writes 3.0 as 3."""
    return None if x is None else float(x)


# TRL


def trl_term(loss_type: str, level: Any, eps: Sequence[float], params: Mapping[str, Any], args: Mapping[str, Any]) -> Term:
    low, high = map(float, eps)
    if loss_type == "cispo":
        return Cispo(low=None, high=high, level=level)
    if loss_type == "sapo":
        given = {
            f"tau_{ours}": params.get(f"sapo_temperature_{theirs}") for ours, theirs in (("positive", "pos"), ("negative", "neg"))
        }
        return Sapo(level=level, **{name: float(tau) for name, tau in given.items() if tau is not None})
    if loss_type == "vespo":
        given = {
            name.replace("pos", "positive").replace("neg", "negative"): float(x) for name, x in params.get("vespo", {}).items()
        }
        return Vespo(sampler=args.get("vllm", False), **given)
    return Clip(low, high, level, delta=number(args.get("delta")))


def trl_share(loss_type: str, max_length: int) -> Weight:
    if loss_type in ("grpo", "sapo"):
        return SequenceMean()
    if loss_type == "dr_grpo":
        return FixedLength(max_length)
    return SequenceSum() if loss_type == "luspo" else TokenMean()


def trl_importance(loss_type: str, args: Mapping[str, Any]) -> tuple[Weight, ...]:
    weights: list[Weight] = []
    if "opm" in args:
        weights.append(OffPolicyMask(delta=float(args["opm"])))
    if "quant" in args:
        weights.append(HighEntropy(quantile=float(args["quant"])))
    if args.get("vllm") and loss_type != "vespo":
        weights.append(RolloutCorrection(mode="token_truncate", high=None))
    return tuple(weights)


def trl_counts(batch: Batch, loss_type: str, ga: int, num_items: int | None) -> Counts:
    """TRL divides by every row, fully masked or not, and by the window's tokens; we pass its numbers as the global counts."""
    num_actions = int(batch.rollouts.action_mask.sum())
    if loss_type != "bnpo" and num_items is not None:
        num_actions = num_items
    return Counts(rollouts=len(batch) * ga, actions=num_actions * ga, groups=1)


def trl_loss(vector: Vector, case: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    """One case: `args` has loss_type, level, beta, eps, and optionally what TRL's other options are set to."""
    inputs, params, loss_type = vector.inputs, vector.params, args["loss_type"]
    level: Any = LEVELS[args["level"]]
    live = tensor(inputs["per_token_logps"])
    old = tensor(inputs["old_per_token_logps"]) if args.get("use_old", True) else live
    ratio = tensor(inputs["importance_sampling_ratio_token"]) if args.get("vllm") else None
    frozen = {
        OLD_LOGPROBS: old,
        REF_LOGPROBS: tensor(inputs["ref_per_token_logps"]),
        ROLLOUT_LOGPROBS: tensor(inputs["sampling_per_token_logps"]) if ratio is None else old - ratio.log(),
        OLD_ENTROPY: tensor(inputs["entropies"]),
    }
    batch = make_batch(tensor(inputs["completion_mask"]), tensor(args.get("advantages", inputs["advantages"])), frozen)
    objective: list[tuple[float, Term]] = [(1.0, trl_term(loss_type, level, args["eps"], params, args))]
    if args["beta"]:
        objective.append((float(args["beta"]), ReferenceKL(ratio_correction=level if args.get("bias_kl") else "none")))
    algorithm = Algorithm(
        objective=tuple(objective),
        aggregation=trl_share(loss_type, params["max_completion_length"]),
        importance=trl_importance(loss_type, args),
    )
    ga, spg = args.get("ga", params.get("gradient_accumulation_steps", 1)), args.get("spg", params.get("steps_per_generation", 1))
    counts = trl_counts(batch, loss_type, ga, args.get("nib", params.get("num_items_in_batch")))
    # OPSM: TRL takes the gap at the current weights, we before the first update, when the old weights are the current ones
    at = replace(batch, frozen={**frozen, OLD_LOGPROBS: live}) if "opm" in args else None
    loss, gradient = loss_and_gradient(algorithm, weighed(algorithm, batch, counts, at), {LOGPROBS: live})
    # the window's token count is for steps_per_generation micro-batches, of which this is one
    scale = spg if loss_type in ("dapo", "cispo", "vespo") else 1
    tolerance, what = FLOAT32 if loss_type == "sapo" else 1e-9, case.get("tag", str(args))
    close(scale * loss, case["loss"], tolerance, f"loss of {what}")
    close(scale * gradient, case["grad_per_token_logps"], tolerance, f"gradient of {what}")


@check("trl_grpo_losses")
def trl_grpo_losses(outputs: Any, vector: Vector) -> None:
    for case in outputs["cases"]:
        args = {
            "loss_type": case["loss_type"],
            "level": case["importance_sampling_level"],
            "beta": case["beta"],
            "bias_kl": case["use_bias_correction_kl"],
            "eps": (case["epsilon_low"], case["epsilon_high"]),
        }
        trl_loss(vector, case, args)


@check("trl_grpo_loss_variants")
def trl_grpo_loss_variants(params: Any, outputs: Any, vector: Vector) -> None:
    default = (params["epsilon_low"], params["epsilon_high"])
    for case in outputs["cases"]:
        trl_loss(vector, case, {"eps": default, **case["args"]})


@check("trl_gmpo_loss")
def trl_gmpo_loss(inputs: Any, params: Any, outputs: Any) -> None:
    frozen = {OLD_LOGPROBS: tensor(inputs["old_per_token_logps"]), REF_LOGPROBS: tensor(inputs["ref_per_token_logps"])}
    batch = make_batch(tensor(inputs["completion_mask"]), tensor(inputs["advantages"]), frozen)
    for case in outputs["cases"]:
        term = Gmpo(low=float(params["epsilon_low"]), high=float(params["epsilon_high"]))
        algorithm = Algorithm(objective=((1.0, term), (float(case["beta"]), ReferenceKL())))
        counts, live = trl_counts(batch, "gmpo", 1, None), {LOGPROBS: tensor(inputs["per_token_logps"])}
        close_loss(algorithm, batch, live, case, what=f"beta {case['beta']}", counts=counts)


@check("trl_vllm_importance_sampling")
def trl_vllm_importance_sampling(inputs: Any, outputs: Any) -> None:
    frozen = {OLD_LOGPROBS: tensor(inputs["old_per_token_logps"]), ROLLOUT_LOGPROBS: tensor(inputs["sampling_per_token_logps"])}
    mask = tensor(inputs["completion_mask"])
    batch = make_batch(mask, torch.ones(len(mask), dtype=torch.float64), frozen)
    for case in outputs["cases"]:
        weight = RolloutCorrection(case["mode"], low=number(case["clip_min"]), high=number(case["clip_max"]))
        expected = tensor(case["ratio"]).expand(mask.shape)
        close(weight(batch, counts_of(batch)), expected, what=str({**case, "ratio": "..."}))


# verl


@check("verl_agg_loss")
def verl_agg_loss(inputs: Any, outputs: Any) -> None:
    values, mask = tensor(inputs["loss_mat"]), tensor(inputs["loss_mask"])
    batch = make_batch(mask, torch.ones(len(mask), dtype=torch.float64), {})
    ours = counts_of(batch)
    for case in outputs["cases"]:
        shares: dict[str, Weight] = {
            "token-mean": TokenMean(),
            "token-sum": TokenSum(),
            "seq-mean-token-sum": SequenceSum(),
            "seq-mean-token-sum-norm": FixedLength(case.get("loss_scale_factor", mask.shape[1])),
            "seq-mean-token-mean": SequenceMean(),
        }
        # like ours, verl's row count leaves out fully masked rows, unless it is given
        counts = Counts(case.get("global_batch_size", ours.rollouts), case.get("batch_num_tokens", ours.actions), ours.groups)
        algorithm = Algorithm(
            objective=((1.0, Given(values)),),
            aggregation=shares[case["mode"]],
            importance=(ShortBy(),) if case["mode"] == "seq-mean-token-mean" else (),
        )
        loss, _ = algorithm.loss(weighed(algorithm, batch, counts), {})
        close(loss * case.get("dp_size", 1), case["loss"], what=str(case))


@check("verl_kl_penalty")
def verl_kl_penalty(inputs: Any, outputs: Any) -> None:
    live, ref = tensor([inputs["logprob"]]), tensor([inputs["ref_logprob"]])
    batch = make_batch(torch.ones_like(live), torch.zeros(1, dtype=torch.float64), {REF_LOGPROBS: ref})
    for case in outputs["cases"]:
        term = ReferenceKL(case["kl_penalty"])
        if term.estimator.startswith("k3"):
            term = replace(term, **VERL_K3)
        algorithm = Algorithm(objective=((1.0, term),), aggregation=TokenSum())
        values = term({LOGPROBS: live, REF_LOGPROBS: ref}, batch)[0]
        close(values[0], case["value"], what=f"value of {case['kl_penalty']}")
        _, gradient = loss_and_gradient(algorithm, weighed(algorithm, batch), {LOGPROBS: live})
        close(gradient[0], case["grad"], what=f"gradient of {case['kl_penalty']}")


def verl_term(name: str, params: Mapping[str, float]) -> Term:
    params = {option: float(x) for option, x in params.items()}
    low, high = params["clip_ratio_low"], params["clip_ratio_high"]
    in_name = [float(x) for x in re.findall(r"\d+\.?\d*", name)][:1]
    terms: dict[str, Term] = {
        "vanilla": Clip(low, high, dual=params["clip_ratio_c"]),
        "gspo": Clip(low, high, level="rollout", token_gradient=True),
        "sapo": Sapo(params["tau_pos"], params["tau_neg"]),
        "gpg": Reinforce(),
        "kl_cov": KlCov(*in_name),
        "geo_mean": Gmpo(low, high),
        "cispo": Cispo(1 - low, 1 + high),
        "dro": Dro(in_name[0] if in_name else 0.5),
        "dppo_tv": Dppo(low, high, truncate=params["dppo_clip_ratio_c"]),
    }
    return terms[name.split()[0]]


@check("verl_policy_losses")
def verl_policy_losses(inputs: Any, params: Any, outputs: Any) -> None:
    mask, live = tensor(inputs["response_mask"]), tensor(inputs["log_prob"])
    batch = make_batch(mask, tensor(inputs["advantages"]), {OLD_LOGPROBS: tensor(inputs["old_log_prob"])})
    for case in outputs["cases"]:
        name, by_row = case["name"], case["agg"] == "seq-mean-token-mean" or case["name"].startswith("geo_mean")
        algorithm = Algorithm(
            objective=((1.0, verl_term(name, params)),),
            aggregation=SequenceMean() if by_row else TokenMean(),
            importance=(ShortBy(),) if by_row else (),
        )
        counts, tolerance = counts_of(batch), 1e-9
        if name.startswith("geo_mean"):
            # verl averages this one over all rows, fully masked ones included, and its 1e-8 sits inside the exponent too
            counts, tolerance = replace(counts, rollouts=len(batch)), 2e-8
        close_loss(algorithm, batch, {LOGPROBS: live}, case, tolerance, name, counts=counts)


# EasyR1


@check("easyr1_policy_loss")
def easyr1_policy_loss(inputs: Any, params: Any, outputs: Any) -> None:
    params = {option: float(x) for option, x in params.items()}
    low, high, dual = params["clip_low"], params["clip_high"], params["dual"]
    mask, live = tensor(inputs["mask"]), tensor(inputs["log_probs"])
    batch = make_batch(mask, tensor(inputs["advantages"]), {OLD_LOGPROBS: tensor(inputs["old_log_probs"])})
    terms: dict[str, Term] = {
        "default": Clip(low, high, dual=dual),
        "gspo": Clip(low, high, level="rollout", dual=dual),
        "gspo_token": Clip(low, high, level="rollout", token_gradient=True, dual=dual),
        "cispo": Cispo(1 - low, 1 + high),
        "sapo": Sapo(params["tau_positive"], params["tau_negative"]),
    }
    for case in outputs["cases"]:
        by_row = case["avg"] == "seq"
        algorithm = Algorithm(
            objective=((1.0, terms[case["loss_type"]]),),
            aggregation=SequenceMean() if by_row else TokenMean(),
            importance=(ShortBy(whole=not by_row),),
        )
        # EasyR1 counts fully masked rows
        counts = replace(counts_of(batch), rollouts=len(batch))
        close_loss(algorithm, batch, {LOGPROBS: live}, case, what=f"{case['loss_type']} {case['avg']}", counts=counts)


# Single papers
OF_PAPERS = 2e-6
"""Codes that run in float32."""


def of_the_whole(
    objective: Sequence[tuple[float, Term]],
    aggregation: Weight,
    inputs: Any,
    advantages: Tensor,
    ids: Sequence[int] | None = None,
    names: tuple[str, str] = ("new", "old"),
) -> tuple[Algorithm, Batch, dict[Reading, Tensor]]:
    """An algorithm, the batch of the whole vector, and the new log-probabilities."""
    batch = make_batch(tensor(inputs["mask"]) > 0, advantages, {OLD_LOGPROBS: tensor(inputs[names[1]])}, ids)
    return Algorithm(objective=tuple(objective), aggregation=aggregation), batch, {LOGPROBS: tensor(inputs[names[0]])}


def centred(rewards: Any, ids: Sequence[int]) -> Tensor:
    values, groups = tensor(rewards), torch.tensor(ids)
    return torch.stack([value - values[groups == one].mean() for value, one in zip(values, groups, strict=True)])


@check("disco_losses")
def disco_losses(inputs: Any, params: Any, outputs: Any) -> None:
    advantages = centred(inputs["rewards"], inputs["index"])
    hinge = TrustHinge(beta=params["beta"], delta=params["delta"])
    for name, expected in outputs.items():
        score = "ratio" if name.endswith("Lratio") else "logprob"
        tau = None if name.startswith("discob") else params["tau"][name]
        term = Discriminative(score=score, tau=tau)
        for objective, loss, grad in (([(1.0, term), (1.0, hinge)], "loss", "grad"), ([(1.0, term)], "loss_beta0", "grad_beta0")):
            found, gradient = weighed_loss(*of_the_whole(objective, GroupSum(), inputs, advantages, inputs["index"]))
            close(gradient, expected[grad], OF_PAPERS, f"{name} {grad}")
            if tau is None:
                close(found, expected[loss], OF_PAPERS, f"{name} {loss}")


@check("drpo_loss")
def drpo_loss(inputs: Any, params: Any, outputs: Any) -> None:
    advantages = centred(inputs["rewards"], inputs["uid"])
    term = Discriminative(tau=params["tau"], short=params["Lambda"], length=len(inputs["mask"][0]))
    for case in outputs["cases"]:
        hinge = TrustHinge(beta=params["beta"], delta=case["delta"], estimator="k1")
        objective, names = [(1.0, term), (1.0, hinge)], ("log_prob", "old_log_prob")
        _, gradient = weighed_loss(*of_the_whole(objective, GroupSum(), inputs, advantages, inputs["uid"], names))
        close(gradient, case["grad"], 1e-5, f"delta {case['delta']}")


@check("rec_losses")
def rec_losses(inputs: Any, params: Any, outputs: Any) -> None:
    kept: dict[str, Any] = {
        "none": "all",
        "two-side": "two_sides",
        "one-side": "one_side",
        "ring": "ring",
        "gspo-one-side": "rollout",
    }
    weight: dict[str, Any] = {"none": "one", "importance_sampling": "ratio", "advantage": "advantage"}
    for case in outputs["cases"]:
        term = Rec(
            kept=kept[case["clip_mode"]],
            weight=weight[case["weight"]],
            low=params["eps_low"],
            high=params["eps_high"],
            outer_low=params["eps_low_prime"],
            outer_high=params["eps_high_prime"],
            temperature=params["temp"],
        )
        objective: list[tuple[float, Term]] = [(1.0, term)]
        if case["regularizer"] != "none":
            objective.append((case["coef"], OldKL("k2" if case["regularizer"] == "k2" else "forward")))
        what = " ".join(str(case[name]) for name in ("clip_mode", "weight", "regularizer"))
        close_loss(*of_the_whole(objective, TokenMean(), inputs, tensor(inputs["advantages"])), case, what=what)


@check("r2vpo_loss")
def r2vpo_loss(inputs: Any, params: Any, outputs: Any) -> None:
    term = VarianceBound(params["lam"])
    close_loss(*of_the_whole([(1.0, term)], TokenMean(), inputs, tensor(inputs["advantages"])), outputs)
    multiplier, trace = params["lam"], []
    for variance in inputs["variances"]:
        multiplier = dual_step(multiplier, variance, params["delta"], params["dual_lr"])
        trace.append(multiplier)
    close(trace, outputs["dual_trace"], what="multiplier")


@check("llds_penalty")
def llds_penalty(inputs: Any, outputs: Any) -> None:
    mask = tensor(inputs["mask"]) > 0
    advantages = tensor(inputs["preserved_rows"]) * 2 - 1
    # the paper's denominator, the actions of rows with A >= 0, in place of all
    coef = float(mask.sum() / mask[advantages >= 0].sum())
    gap = torch.where(mask, tensor(inputs["old"]) - tensor(inputs["new"]), 0.0)
    assert KeepLikely().gate(gap).double().tolist() == outputs["response_gate"]
    expected = {"loss": outputs["penalty"], "grad": outputs["grad"]}
    close_loss(*of_the_whole([(coef, KeepLikely())], TokenMean(), inputs, advantages), expected)


@check("nft_text_loss")
def nft_text_loss(inputs: Any, params: Any, outputs: Any) -> None:
    right, rate = tensor(inputs["rewards"]), tensor(inputs["correct_rate"])
    advantages = torch.where(right > 0, 1 - rate, -rate)
    for name, case in outputs["cases"].items():
        level, form = name.split("_norm")
        term = NegativeAwareText(
            normalize=("none", "linear", "deviation")[int(form)],
            floor=params["clamp_negative"],
            level="action" if level == "token" else "rollout",
            rates=tuple(params["rate_clip"]),
        )
        # the code adds up actions / denominator, or whole rollouts
        sums = (len(right) / params["denominator"], FixedLength(1)) if level == "token" else (float(len(right)), SequenceMean())
        close_loss(*of_the_whole([(sums[0], term)], sums[1], inputs, advantages), case, what=name)
