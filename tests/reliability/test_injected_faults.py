"""Faults that were thought of after the diagnosis was written: each is refused, and named rightly or not at all."""

from functools import cache
from typing import Any

import pytest

from mmrl.core.types import Prompt, Video
from mmrl.lab.tiny.flow import pipelines
from mmrl.lab.tiny.text import vlms
from tests.support import injected_flow as flow
from tests.support import injected_text as text
from tests.support.flow_policies import make as flow_policy
from tests.support.flow_policies import prompts as flow_prompts
from tests.support.injected import cause_in, message_of
from tests.support.text_policies import picture
from tests.support.videos import even, write_video

TABLE = {"pictures": text.PICTURES, "clips": text.CLIPS, "generator": flow.FLOW}
"""Kind of policy -> fault -> the cause that must be named."""
QUICK = (
    *("sampled at another temperature", "adapter half as strong in training", "completions exchanged between groups"),
    *("a layer that looks at gradients", "time runs faster in sampling", "sampled with less noise", "read along another shift"),
    *("sampled with older weights",),
)
"""One or two of each kind; the others add breadth."""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Kind -> (policy, algorithm, prompts), made once."""
    folder = tmp_path_factory.mktemp("injected")

    @cache
    def kind(name: str) -> tuple[Any, Any, list[Prompt]]:
        if name == "generator":
            return flow_policy(str(pipelines.build("sd3", folder / "sd3")), ["ema"]), flow.ALGORITHM, flow_prompts()
        if name == "clips":
            files = [write_video(folder / f"{i}.mp4", even(50 + 25 * i), size=(112, 56)) for i in range(3)]
            clips = [Video(file, frames=4, start=0.2 * i, end=1.8) for i, file in enumerate(files)]
            policy = text.clips_policy(str(vlms.build("qwen2_5_vl", folder / "qwen2_5_vl")))
            return policy, text.ALGORITHM, text.clip_prompts(clips)
        prompts = [Prompt(name, "what is it?", (picture(i),)) for i, name in enumerate("abc")]
        return text.pictures_policy(str(vlms.build("qwen3_vl", folder / "qwen3_vl"))), text.ALGORITHM, prompts

    return kind


CASES = [
    pytest.param(kind, name, marks=() if name in QUICK else pytest.mark.evidence)
    for kind, faults in TABLE.items()
    for name in faults
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_fault_is_refused_and_named_rightly_or_not_at_all(kinds, kind, name):
    policy, algorithm, prompts = kinds(kind)
    message = message_of(policy, algorithm, prompts, TABLE[kind][name])
    assert cause_in(message) == TABLE[kind][name].cause, message
