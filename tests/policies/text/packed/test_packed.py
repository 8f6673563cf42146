"""Completions behind their prompt in one packed row, which several processes may read together, are as if each had its own."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from mmrl.algorithms.presets import PRESETS
from mmrl.app.commands.check import check
from mmrl.app.config import run as configs
from mmrl.app.planning.plan import draw_up
from mmrl.app.run.beforehand import check_context
from mmrl.core.ranks import Ranks
from mmrl.core.readings import ENTROPY, LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request, Rollouts
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.check.diagnose import PIECES
from mmrl.policies.text.dry_run import TextDryRun
from mmrl.policies.text.packed import attention
from mmrl.policies.text.packed.attention import Packed
from mmrl.policies.text.packed.row import worth_packing
from mmrl.policies.text.packed.team import Team, repeated
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.read import packable
from mmrl.policies.text.read.packable import prepare_packing
from mmrl.policies.text.settings import refuse_rest
from tests.policies.text.packed import run_team
from tests.policies.text.packed.run_team import requests
from tests.support.faults import Fault, message_of
from tests.support.launcher import KINDS, Kind, both, results
from tests.support.refused import refused
from tests.support.text_policies import PACKING, gradients, logprobs, make, mixed, plain_model, prompts, text_trace

CLOSE = 1e-12
"""In float64, where a mistake is all that can be larger: sums in another order were off by 5e-15. In float32, every
operation rounds log-probabilities of 8 to 16, as InternVL's are, by 1e-6: there both ways were 4e-6 apart."""


def in_float64(policy: TextPolicy) -> Rollouts:
    """The rollouts of `requests`, whose readings are computed in float64 from now on."""
    trace = text_trace((rollouts := policy.rollout(requests())).trace)
    policy.net.double()
    media = [{name: x.double() if x.is_floating_point() else x for name, x in one.media.items()} for one in trace.prompts]
    prompts = tuple(replace(one, media=double) for one, double in zip(trace.prompts, media, strict=True))
    return replace(rollouts, trace=replace(trace, prompts=prompts, temperature=trace.temperature.double()))


def without_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and logits are computed in float32 on purpose: in float64 here, or their rounding would hide everything below it."""
    to = torch.Tensor.to

    def double(value: object) -> object:
        return torch.float64 if value is torch.float32 else value

    def to_double(x: Tensor, *given: Any, **named: Any) -> Tensor:
        return to(x, *map(double, given), **{name: double(value) for name, value in named.items()})  # type: ignore[arg-type]

    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch.Tensor, "to", to_double)


def read(policy: TextPolicy, rollouts: Rollouts, packed: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Log-probabilities and entropies, and the gradients of a sum with another weight for every one of them."""
    trace, mask = replace(text_trace(rollouts.trace), packed=packed), rollouts.action_mask
    found = policy.read(trace, [LOGPROBS, ENTROPY], mask)
    weights = torch.linspace(0.25, 0.75, mask.numel()).reshape(mask.shape)
    loss = (weights * (found[LOGPROBS] + found[ENTROPY])).sum()
    named = {name: weight for name, weight in policy.net.model.named_parameters() if weight.requires_grad}
    parts = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    values = {reading.quantity: value.detach() for reading, value in found.items()}
    return values, {name: part for name, part in zip(named, parts, strict=True) if part is not None}


def worst(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest relative difference of one weight's gradient, without those that are 0: of vision towers' key biases."""
    assert mine.keys() == theirs.keys()
    largest = max(float(gradient.norm()) for gradient in theirs.values())
    real = [name for name, gradient in theirs.items() if float(gradient.norm()) > 1e-6 * largest]
    assert len(real) > 0.8 * len(theirs)
    return max(float((mine[name] - theirs[name]).norm() / theirs[name].norm()) for name in real)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)], ids=["full", "lora"])
@pytest.mark.parametrize("family", PACKING)
def test_log_probabilities_entropies_and_every_gradient_are_those_of_repeated_prompts(tiny, family, lora, monkeypatch):
    policy = make(tiny(family), lora=lora, gradient_checkpointing=True)
    for name, weight in policy.net.model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1)
    rollouts = in_float64(policy)
    without_float32(monkeypatch)
    values, grads = read(policy, rollouts, packed=False)
    for checkpointing in (True, False):
        policy.config = replace(policy.config, gradient_checkpointing=checkpointing)
        mine, own = read(policy, rollouts, packed=True)
        for quantity, expected in values.items():
            torch.testing.assert_close(mine[quantity], expected, atol=CLOSE, rtol=0)
        assert worst(own, grads) < CLOSE


def test_all_modules_are_put_into_training_mode_for_checkpointing_alone(tiny, monkeypatch):
    """A walk over hundreds of modules, twice a reading."""
    policy = make(tiny("qwen2_5_vl"))
    rollouts, modes = policy.rollout(requests()), list[bool]()
    monkeypatch.setattr(policy.net, "train", lambda mode=True: modes.append(mode) or policy.net)
    read(policy, rollouts, packed=True)
    assert modes == []
    policy.config = replace(policy.config, gradient_checkpointing=True)
    read(policy, rollouts, packed=True)
    assert modes == [True, False]


def test_windows_and_pictures_seen_in_both_directions_are_kept(tiny, monkeypatch):
    """Gemma 3: with a layer's own rule ignored, the values are others; with masks of few queries each, they are not."""
    policy = make(tiny("gemma3"))
    rollouts = in_float64(policy)
    with torch.no_grad():
        expected = logprobs(policy, replace(rollouts, trace=replace(text_trace(rollouts.trace), packed=False)))
        monkeypatch.setattr(attention, "QUERIES", 7)
        monkeypatch.setattr(attention, "COPIES", 300)
        torch.testing.assert_close(logprobs(policy, rollouts), expected, atol=1e-5, rtol=0)
        monkeypatch.setattr(attention.PackedMask, "of", lambda *_: None)
        assert (logprobs(policy, rollouts) - expected).abs().max() > 0.1


def test_sampling_and_saving_do_not_know_of_packed_rows(tiny, tmp_path: Path):
    packed, repeated = make(tiny("qwen2_5_vl"), prefix="packed"), make(tiny("qwen2_5_vl"), prefix="repeated")
    one, two = packed.rollout(mixed()), repeated.rollout(mixed())
    assert [group.samples for group in one.groups] == [group.samples for group in two.groups]
    assert torch.equal(one.recorded[ROLLOUT_LOGPROBS], two.recorded[ROLLOUT_LOGPROBS])
    config = packed.net.model.config
    assert config.text_config._attn_implementation == attention.NAME
    assert config.vision_config._attn_implementation == "sdpa"
    packed.save(tmp_path)
    assert attention.NAME not in (tmp_path / "config.json").read_text()


def test_old_new_and_reference_take_the_way_that_was_settled_for_the_rollout(tiny):
    policy = make(tiny("smolvlm"), {"ref"}, dtype="bfloat16")
    lonely = policy.rollout([Request(Prompt("hi", "hi"), 1, 0, role="injected", written="a" * 200)])
    trace = text_trace(lonely.trace)
    assert not trace.packed and not worth_packing(trace)
    shared = text_trace(policy.rollout(requests()).trace)
    assert shared.packed and text_trace(policy.join([trace, shared])).packed
    seen: list[bool] = []
    run = policy.run
    policy.run = lambda work: (seen.append(work.row is not None), run(work))[1]  # type: ignore[method-assign]
    for some, packed in ((shared.take(torch.tensor([0])), True), (trace, False)):
        mask = torch.ones(some.tokens.shape, dtype=torch.bool)
        with torch.no_grad():
            policy.read(some, [LOGPROBS, REF_LOGPROBS], mask)
        policy.read(some, [LOGPROBS], mask)
        assert seen == [packed] * 3
        seen.clear()


def test_no_position_is_padding_and_no_prompt_is_fed_twice(tiny):
    policy = make(tiny("internvl"))
    rollouts = policy.rollout(requests())
    fed: list[int] = []
    policy.net.core.register_forward_pre_hook(lambda _, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True)
    logprobs(policy, rollouts)
    trace = text_trace(rollouts.trace)
    assert fed == [sum(map(len, trace.prompts)) + int((trace.lengths - 1).sum())]


class Remembering(nn.Module):
    """A layer that hands on the mean of all tokens so far, beside its attention."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        out = self.inner(hidden)
        return out + hidden.cumsum(1) / 4


def with_cap(model: Any) -> Any:
    model.config.get_text_config().attn_logit_softcapping = 30.0
    return model


def with_memory(model: Any) -> Any:
    layer = model.model.language_model.layers[1]
    layer.mlp = Remembering(layer.mlp)
    return model


def with_own_attention(model: Any) -> Any:
    """A layer that passes its input on, and asks nobody's attention."""
    layer = model.model.language_model.layers[1].self_attn
    layer.forward = lambda hidden_states, **_: (hidden_states, None)
    return model


REFUSED = {
    "has layers of the kind linear_attention": ("qwen3_5", lambda model: model),
    "caps the logits of attention": ("qwen2_5_vl", with_cap),
    "reads a packed row otherwise than two rows": ("qwen2_5_vl", with_memory),
    r"cannot read a packed row \(1 of the model's 2 layers": ("qwen2_5_vl", with_own_attention),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_models_that_cannot_are_found_before_training(tiny, reason, caplog, monkeypatch):
    monkeypatch.setattr(packable, "SEEN", frozenset())
    family, change = REFUSED[reason]
    model, config = change(plain_model(tiny(family))[0]), TextPolicyConfig("m")
    kind = model.config.model_type
    with pytest.raises(ValueError, match=rf"policy\.prefix is 'packed', but {kind} {reason}.*set policy\.prefix = 'auto'"):
        prepare_packing(model, replace(config, prefix="packed"))
    with caplog.at_level(logging.WARNING, "mmrl"):
        assert not prepare_packing(model, config)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "mmrl"]
    assert message.startswith(kind) and "completions are read with their prompt repeated" in message
    assert model.config.get_text_config()._attn_implementation == "sdpa"
    assert not prepare_packing(model, replace(config, prefix="repeated"))


def test_models_that_nobody_has_seen_are_tried_and_others_can(tiny, monkeypatch):
    monkeypatch.setattr(packable, "SEEN", frozenset())
    assert prepare_packing(plain_model(tiny("qwen2_5_vl"))[0], TextPolicyConfig("m", prefix="packed"))


def test_another_attention_is_no_error_unless_packed_rows_are_asked_for(tiny, caplog):
    with caplog.at_level(logging.WARNING, "mmrl"):
        policy = make(tiny("qwen3_vl"), attn_implementation="eager")
    assert not policy.packs and "computes attention with 'eager'" in caplog.text
    rollouts = policy.rollout(mixed())
    assert not text_trace(rollouts.trace).packed and gradients(policy, rollouts)


def test_layers_that_go_around_the_attention_stop_the_reading(tiny):
    policy = make(tiny("qwen3_vl"), prefix="packed", sampling=Sampling(max_new_tokens=3))
    rollouts = policy.rollout(mixed())
    with_own_attention(policy.net.model)
    refused(r"1 of the model's 2 layers .* set policy\.prefix = 'repeated'", logprobs, policy, rollouts, error=RuntimeError)


BOUND = 2e-6
"""In float32, of log-probabilities and entropies, and relative of gradients."""
CASES = ("qwen3_vl=checkpointing", "qwen2_5_vl=lora,alone")
MORE = ("qwen3_vl=lora,checkpointing", "qwen3_vl=alone", "qwen2_5_vl=checkpointing")
"""Model and how it is trained, and whose the rows are; more in `make evidence`."""
OTHERS = [pytest.param(MORE, case, marks=pytest.mark.evidence) for case in MORE]


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Of all gradients, relative to the second ones; those of one process alone must be 0."""
    assert b.keys() <= a.keys() and not any(bool(a[name].any()) for name in a.keys() - b.keys())
    apart = sum(float((a[name] - x).double().square().sum()) for name, x in b.items())
    return math.sqrt(apart / sum(float(x.double().square().sum()) for x in b.values()))


def compare(many: list[dict[str, Any]], one: dict[str, Any], context: int) -> None:
    rows = {name: row for part in many for name, row in part["rows"].items()}
    assert rows.keys() == one["rows"].keys()
    for name, row in rows.items():
        for quantity, values in row.items():
            # all of a process's rows are compared as one group
            if quantity != "frozen group_divergence" or len(many[0]["rows"]) == len(rows):
                torch.testing.assert_close(values, one["rows"][name][quantity], atol=BOUND * 5, rtol=BOUND)
    assert distance(many[0]["grads"], one["grads"]) < BOUND
    assert all(part["tokens"] <= math.ceil(one["tokens"] / context) for part in many), "no process has more than its piece"


Read = Callable[[tuple[str, ...], Kind], dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]]


@pytest.fixture(scope="module")
def together(tiny: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Cases and kind -> of each case what one process reads, and every one of the team."""
    module, folder = "tests.policies.text.packed.run_team", tmp_path_factory.mktemp("team")

    def asked(case: str) -> str:
        family, _, words = case.partition("=")
        return f"{tiny(family)}={words}"

    @cache
    def alone(case: str) -> dict[str, Any]:
        model, _, words = asked(case).partition("=")
        return run_team.read(model, words.split(","), Accelerator(cpu=True), folder, 1)

    @cache
    def two(cases: tuple[str, ...]) -> dict[Kind, list[dict[str, Any]]]:
        ones = [alone(case) for case in cases]
        assert len(ones) == len(cases)
        return both(module, folder, *map(asked, cases))

    return lambda cases, kind: {case: (alone(case), [part[asked(case)] for part in two(cases)[kind]]) for case in cases}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cases", "case"), [*((CASES, case) for case in CASES), *OTHERS])
def test_a_team_reads_what_one_process_reads(together: Read, cases: tuple[str, ...], case: str, kind: Kind):
    one, many = together(cases, kind)[case]
    compare(many, one, 2)


@pytest.mark.evidence
@pytest.mark.parametrize("kind", KINDS)
def test_four_processes_read_what_one_process_reads(tiny: Callable[[str], str], tmp_path: Path, kind: Kind):
    models = [f"{tiny('qwen3_vl')}=checkpointing", f"{tiny('qwen2_5_vl')}=lora", f"{tiny('qwen3_vl')}=pairs"]
    many = results("tests.policies.text.packed.run_team", kind, tmp_path, *models, processes=4)
    for case, context in zip(models, (4, 4, 2), strict=True):
        model, _, words = case.partition("=")
        one = run_team.read(model, words.split(","), Accelerator(cpu=True), tmp_path, 1)
        compare([part[case] for part in many], one, context)


def test_heads_of_keys_are_there_for_every_process():
    keys = torch.arange(2.0).view(1, 2, 1, 1)
    assert repeated(keys, 2, 4) is keys
    assert repeated(keys, 4, 8).flatten().tolist() == [0, 0, 1, 1]
    # six heads of queries over three processes: no two of them share one
    assert repeated(keys, 3, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]


def test_the_plan_counts_a_piece():
    words = ["micro_batch=512", "policy.prefix=packed"]
    made = [draw_up(configs.load("tiny/image", [*words, f"policy.context={size}"]), 4) for size in (1, 2, 4)]
    one, two, four = (plan.memory.phases["update"] for plan in made)
    assert four < 0.8 * two < 0.8 * 0.8 * one
    assert made[0].usual.counts == made[2].usual.counts, "a process still reads as many rows as it samples"
    with pytest.raises(ValueError, match=r"policy.context is 4, and the processes of the run are 2"):
        draw_up(configs.load("tiny/image", [*words, "policy.context=4"]), 2)


def test_plans_and_checks_know_of_processes_that_read_rows_together(capsys: pytest.CaptureFixture[str]):
    resolved = configs.load("tiny/image", ["policy.context=2"])
    assert draw_up(resolved).processes == 2
    assert draw_up(configs.load("tiny/image", ["policy.context=2", "cluster.trainers=4"])).processes == 4
    with pytest.raises(ValueError, match=r"policy.context is 2, and ahead = 1 was not tried with it"):
        draw_up(configs.load("tiny/image", ["policy.context=2", "ahead=1"]))
    check_context(configs.load("tiny/image", ["policy.context=2", "algorithm.preset=t_grpo"]).config, Ranks())
    assert check("tiny/image", ["policy.context=2"]), "one process tries what one can"
    assert "read whole here: policy.context = 2 takes as many processes" in " ".join(capsys.readouterr().out.split())


def test_pieces_of_a_row_make_the_row():
    teams, row = [Team(3, index) for index in range(3)], torch.arange(1.0, 8).view(1, 7)
    pieces = [team.piece(row, 3) for team in teams]
    assert torch.equal(torch.cat(pieces, 1), torch.nn.functional.pad(row, (0, 2)))


@pytest.mark.parametrize("live", [False, True], ids=["before the first update", "in the first forward with a gradient"])
def test_the_gate_names_an_exchange_that_goes_wrong(tiny: Callable[[str], str], live: bool, monkeypatch: pytest.MonkeyPatch):
    policy, right = make(tiny("qwen3_vl"), prefix="packed", gradient_checkpointing=True), Team.share_tokens
    policy.net.read_with(Team(1))

    def wrong(team: Team, seen: torch.Tensor, packed: Packed) -> torch.Tensor:
        return (1.1 if live == torch.is_grad_enabled() else 1.0) * right(team, seen, packed)

    monkeypatch.setattr(Team, "share_tokens", wrong)
    message = message_of(policy, PRESETS["dr_grpo"].with_length(6), prompts()[:1], Fault(PIECES))
    assert f"Likely cause: {PIECES} (" in message and "Leave policy.context out" in message, message


def test_processes_heads_and_models_that_do_not_fit_are_refused(tiny: Callable[[str], str]):
    refused(r"the processes of the run are 3: start a multiple of 2 .*cluster.trainers = 2", refuse_rest, 2, 3)
    with pytest.raises(ValueError, match=r"policy.context is 3, which does not divide the 4 heads of attention"):
        TextDryRun(TextPolicyConfig(tiny("qwen3_vl"), context=3))
