"""What a family tells its own pipeline of diffusers draws what an evaluation draws; Stable Diffusion 3 and FLUX.1 bit for bit."""

from typing import Any

import numpy as np
import pytest
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from PIL import Image

from mmrl.app.modality.templates import call_of, pipeline_call
from mmrl.core.types import Prompt, Request
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.policies.flow.policy import FlowPolicy
from tests.support.flow_policies import FAMILIES, make
from tests.support.late_families import CASES, policy_of

LATE = ("z_image", "flux2", "flux2_klein", "krea2", "chroma", "lumina2", "qwen_image21")
OTHERWISE = ("sana", "sd15", "sdxl")
"""Their pipelines take other steps."""


def drawn_both_ways(policy: FlowPolicy, guidance: float) -> tuple[np.ndarray, np.ndarray]:
    """A picture by mmrl and by the pipeline, as whole numbers."""
    plan = evaluation_plan(5, guidance=guidance)
    call: Any = pipeline_call(policy, plan)
    ours: Any = policy.rollout([Request(Prompt("cat", "a red cat"), 1, 0, seed=7)], plan).groups[0].samples[0].image
    pipeline = policy.pipeline
    pipeline.set_progress_bar_config(disable=True)
    kept, pipeline.scheduler = pipeline.scheduler, FlowMatchEulerDiscreteScheduler()
    theirs = pipeline(prompt="a red cat", generator=generator_of(7, 0, 0), **call).images[0]
    pipeline.scheduler = kept
    if theirs.mode == "RGBA":
        theirs = Image.alpha_composite(Image.new("RGBA", theirs.size, "white"), theirs).convert("RGB")
    return np.asarray(ours, dtype=int), np.asarray(theirs, dtype=int)


@pytest.mark.parametrize("name", [*FAMILIES, *LATE])
def test_the_pipeline_draws_by_the_call_what_an_evaluation_draws(tiny: Any, name: str) -> None:
    policy = make(tiny(name)) if name in FAMILIES else policy_of(tiny, CASES[name])
    pictures: list[np.ndarray] = []
    for guidance in (1.0, 3.0):
        ours, theirs = drawn_both_ways(policy, guidance)
        alike = name in ("sd3", "flux")
        call = call_of(policy, evaluation_plan(5, guidance=guidance))
        assert call is not None and call.sums_alike == alike
        assert np.abs(ours - theirs).max() <= (0 if alike else 1)
        pictures.append(ours)
    assert (pictures[0] != pictures[1]).any(), "guidance reaches the picture"


@pytest.mark.parametrize("name", OTHERWISE)
def test_no_call_is_given_where_the_pipeline_takes_other_steps(tiny: Any, name: str) -> None:
    assert pipeline_call(policy_of(tiny, CASES[name]), evaluation_plan(5)) is None


def test_no_call_is_given_for_what_arguments_cannot_say(tiny: Any) -> None:
    assert pipeline_call(make(tiny("sd3"), guidance_rule="zero_star"), evaluation_plan(5)) is None
    assert pipeline_call(make(tiny("sd3")), evaluation_plan(5, guidance=0.5)) is None
