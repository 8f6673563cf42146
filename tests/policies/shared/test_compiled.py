"""policy.compile: the same numbers by compiled blocks, at every length, and a run that stops where they are other numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from mmrl.algorithms.presets import PRESETS
from mmrl.app.config.run import load
from mmrl.app.run.beforehand import look_at_settings
from mmrl.core.ranks import Ranks
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Request, Rollouts
from mmrl.lab.tiny.flow import pipelines
from mmrl.policies.shared.compiled import blocks_of, compile_blocks, compiled, uncompiled
from mmrl.policies.shared.hypotheses import COMPILED
from mmrl.policies.shared.lora import LoraSettings
from tests.support import flow_policies as flow
from tests.support import text_policies as text
from tests.support.fakes import FakeAccelerator
from tests.support.faults import Fault, message_of
from tests.support.refused import refused

LORA = LoraSettings(rank=4, alpha=8)


def graphs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def asked(*groups: tuple[int, int]) -> list[Request]:
    """Groups of a prompt and a size."""
    return [Request(text.prompts()[prompt], count, group_id=i, seed=i) for i, (prompt, count) in enumerate(groups)]


@pytest.mark.slow
def test_readings_are_the_same_at_every_length(shallow: str):
    """With an adapter, whose switch makes further programs; the last batch makes none."""
    policy = text.make(shallow, ("ref",), compile=True, decode="plain", lora=LORA)
    policy.prepare(Accelerator(cpu=True))
    before, made = graphs(), list[int]()
    for groups in (((0, 4),), ((1, 3), (2, 2)), ((3, 4), (2, 4), (0, 2)), ((3, 2), (1, 3))):
        rollouts = policy.rollout(asked(*groups))
        with uncompiled(cast(Any, policy.net.compiled)):
            plain, expected = text.logprobs(policy, rollouts), text.gradients(policy, rollouts)
        assert graphs() == (made or [before])[-1], "rollouts and plain readings compile nothing"
        found = text.logprobs(policy, rollouts)
        torch.testing.assert_close(found, plain, atol=1e-5, rtol=0)
        torch.testing.assert_close(found.detach(), rollouts.recorded[ROLLOUT_LOGPROBS], atol=text.FP32_BOUND, rtol=0)
        assert text.relative_difference(text.gradients(policy, rollouts), expected) < 1e-5
        made.append(graphs())
    assert before < made[0] <= made[1] <= made[2] == made[3], made


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.evidence)])
def test_pictures_are_drawn_and_read_by_the_same_programs(tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch):
    """By a model of one layer, whose forward and backward graphs are made; the compiler's own are evidence."""
    usual = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, **how: usual(call, **how, backend=backend))
    from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel

    model = pipelines.build("sd3", tmp_path / "model")
    config: Any = SD3Transformer2DModel.load_config(model / "transformer")
    transformer: Any = SD3Transformer2DModel.from_config({**config, "num_layers": 1})
    transformer.save_pretrained(model / "transformer")
    before, policy = graphs(), flow.make(str(model), ("ref",), compile=True)
    policy.prepare(Accelerator(cpu=True))
    rollouts = policy.rollout(flow.requests(), flow.PLANS["flow_grpo"])
    parts = [flow.batch_of(rollouts)]
    found = flow.gradients(policy, parts)
    gap, _ = flow.read_again(policy, rollouts)
    assert gap < policy.rounding.bound and graphs() > before
    with uncompiled(cast(Any, policy.net.compiled)):
        plain, expected = flow.logprobs(policy, rollouts), flow.gradients(policy, parts)
    assert flow.relative_difference(found, expected) < 1e-4
    assert float((plain - flow.logprobs(policy, rollouts)).abs().max()) < 1e-4


def test_numbers_that_leave_the_gate_name_the_compiler(tiny: Callable[[str], str]):
    policy = text.make(tiny("qwen3_vl"), ("ref",))

    def miscompiled(own: Any, rollouts: Rollouts) -> Rollouts:
        own.net.compiled = tuple(blocks_of([own.net.core.language_model]))
        for block in own.net.compiled:
            block._compiled_call_impl = lambda *args, block=block, **kwargs: 1.05 * block._call_impl(*args, **kwargs)
        return rollouts

    message = message_of(policy, PRESETS["grpo"], text.prompts()[:1], Fault(COMPILED, record=miscompiled))
    assert f"Likely cause: {COMPILED} (" in message and "leave policy.compile out" in message, message


def no_backend(graph: object, inputs: object) -> Callable[..., Any]:
    raise OSError("no such compiler")


def test_what_does_not_compile_is_said(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match=r"policy.compile is true, and the model repeats no blocks"):
        compile_blocks([nn.ModuleList([nn.Linear(2, 2)]), nn.Linear(2, 2)], "the model")
    block = nn.Sequential(nn.Linear(2, 2))
    usual = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, **how: usual(call, **how, backend=no_backend))
    refused(r"policy.compile is true, and Sequential does not compile", compiled(block._call_impl, "Sequential"), torch.ones(2))


def test_what_cannot_be_compiled_is_refused_before_weights_load(monkeypatch: pytest.MonkeyPatch):
    def refused(config: str, words: str, accelerator: Any = None, *more: str) -> None:
        with pytest.raises(ValueError, match=f"policy.compile.*{words}"):
            look_at_settings(load(config, ["policy.compile=true", *more]).config, Ranks(accelerator))

    look_at_settings(load("tiny/image", ["policy.compile=true"]).config, Ranks())
    refused("tiny/token_image", "unknown")
    for config in ("tiny/image", "tiny/flow"):
        refused(config, "gradient_checkpointing computes blocks where", None, "policy.gradient_checkpointing=true")
    refused("tiny/image", "it is for one process", FakeAccelerator(2, "MULTI_CPU"))
    refused("tiny/image", "without FSDP", FakeAccelerator(1, "FSDP", is_fsdp2=True))
    refused("tiny/image", "weights in 4 bits", None, "policy.weights=nf4", "policy.lora.rank=2")
    refused("tiny/image", "this run is on 'mps'", FakeAccelerator(device=torch.device("mps")))
    refused("tiny/flow", "leave policy.compile out", None, "cluster.samplers=1")
    for decode in ("auto", "shared"):
        refused("tiny/image", "or set policy.decode = 'plain'", None, f"policy.decode={decode}", "cluster.samplers=1")
    look_at_settings(load("tiny/image", ["policy.compile=true", "policy.decode=plain", "cluster.samplers=1"]).config, Ranks())
    monkeypatch.setenv("PATH", "")
    refused("tiny/flow", r"there is no compiler here \(g\+\+ or clang\+\+\): install one")
