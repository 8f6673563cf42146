"""Models that vLLM serves on a CPU, one server that all tests share, and policies that it writes for."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig

from mmrl.core.episodes import Worlds
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Rollouts
from mmrl.engine.facts import FIRST
from mmrl.engine.generator import VllmGenerator, text_parts
from mmrl.engine.venv import engine_folder
from mmrl.lab.tiny.text.vlms import build, draw_weights
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import EngineConfig
from mmrl.policies.video.sampling import VideoSettings
from tests.support.fake_engines import FakeEngine
from tests.support.text_policies import logprobs, picture
from tests.support.videos import write_video

ENVIRONMENT, FAMILY = "MMRL_TEST_ENGINE", "MMRL_TEST_ENGINE_FAMILY"
"""Environment variables: the folder of vLLM's environment, and the family of models that is served."""
HEAD = 32
"""vLLM knows attention of a CPU for some sizes of a head, and this is the smallest."""
CLOSE = 1e-4
"""Bound on |log-probability of vLLM - that of a reading|, both in float32: some 25 times the largest that was seen, and a
hundredth of the smallest that a wrong weight, token or picture makes."""
FPS = 1.0
QUESTIONS = '''
from mmrl import Prompt
from tests.support.text_policies import picture

def load():
    """Four questions, each with a picture of its own."""
    return [Prompt(str(i), f"what is {i}?", (picture(i),)) for i in range(4)]
'''
"""A data set of one's own."""


def environment() -> Path:
    return Path(os.environ[ENVIRONMENT]) if ENVIRONMENT in os.environ else engine_folder()


def family() -> str:
    return os.environ.get(FAMILY, "qwen3_vl")


def build_wide(name: str, folder: Path, seed: int = 0) -> str:
    """The tiny model of a family with 4 heads of 32 instead of 8; real class, real processor, random weights."""
    build(name, folder)
    config = AutoConfig.from_pretrained(folder)
    text = config.text_config
    text.hidden_size, text.intermediate_size = text.num_attention_heads * HEAD, 2 * text.num_attention_heads * HEAD
    if getattr(text, "head_dim", None):
        text.head_dim = HEAD
    rope = text.rope_parameters
    if "mrope_section" in rope:
        rope["mrope_section"] = [6, 5, 5] if rope.get("mrope_interleaved") else [4, 6, 6]
    if hasattr(config.vision_config, "out_hidden_size"):
        config.vision_config.out_hidden_size = text.hidden_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config)
        draw_weights(model)
    model.generation_config = GenerationConfig.from_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


def own_server(**settings: Any) -> EngineConfig:
    """A server that the policy starts; it takes all weights over the network or from a file, and adapters too."""
    both = ("--enable-lora", "--max-lora-rank", "8")
    return EngineConfig(environment=str(environment()), sync="broadcast", cache_mb=256, max_length=2048, options=both, **settings)


def policy_of(
    folder: str, engine: EngineConfig, lora: LoraSettings | None = None, worlds: Worlds | None = None, **settings: Any
) -> TextPolicy:
    settings.setdefault("sampling", Sampling(max_new_tokens=12))
    config = TextPolicyConfig(folder, engine=engine, lora=lora, video=VideoSettings(fps=FPS), **settings)
    return TextPolicy(config, parts=text_parts(config, worlds))


def server_of(policy: TextPolicy) -> VllmGenerator:
    assert isinstance(policy.generator, VllmGenerator)
    return policy.generator


@contextmanager
def policies_on(servers: Sequence[FakeEngine]) -> Iterator[list[TextPolicy]]:
    """A list of policies that these servers write for; afterwards servers that live behave again, and policies let go."""
    made: list[TextPolicy] = []
    yield made
    for engine in servers:
        if engine.process.runs:
            engine.order()
    for policy in made:
        server_of(policy).close()


def renew(owner: TextPolicy) -> None:
    """Give the server the weights of its beginning, under the name that they had then."""
    fleet = server_of(owner).fleet
    assert fleet is not None
    client = fleet.members[0].client
    client.update({"path": f"{owner.config.model}/model.safetensors"}, FIRST)
    client.reset_caches()


def gap(policy: TextPolicy, rollouts: Rollouts) -> float:
    """The largest |log-probability of the sampler - that of a reading with the policy's own network|."""
    found = (rollouts.recorded[ROLLOUT_LOGPROBS] - logprobs(policy, rollouts).detach()).abs()[rollouts.action_mask]
    assert found.numel() > 0 and bool(found.isfinite().all())
    return float(found.max())


def move(policy: TextPolicy, by: float = 0.05, seed: int = 3) -> None:
    """Move the weights as an update would, and count it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += by * weight.std().nan_to_num().clamp(min=0.02) * torch.randn(weight.shape, generator=generator)
    policy.advance()


def prompts(folder: Path) -> Sequence[Prompt]:
    """Text alone, one picture, two inside the text, and a clip."""
    clip = write_video(folder / "clip.mp4", [i / FPS for i in range(8)])
    return [
        Prompt("text", "Say a number."),
        Prompt("picture", "Where is it?", (picture(0, 96, 64),)),
        Prompt("two", "is <image> like <image>, or not?", (picture(1), picture(2, 90, 40))),
        Prompt("clip", "When does it end?", (clip,)),
    ]
