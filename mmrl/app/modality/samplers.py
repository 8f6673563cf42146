"""Policies whose samples processes beside the trainer draw, and what these processes do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mmrl.core.types import Request
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.trace import SigmaTable
from mmrl.policies.flow.write import generate as drawing
from mmrl.policies.flow.write.generate import Sampled
from mmrl.policies.shared.workers.remote import SamplerSettings, SamplingProcess
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.write import generate as writing
from mmrl.policies.text.write.generate import Completions, Seed


def drawing_generator(settings: SamplerSettings) -> Callable[[FlowHost], drawing.RemoteGenerator]:
    """The part of a policy whose images these processes draw."""
    return lambda host: drawing.RemoteGenerator(
        host, drawing.LocalGenerator(host), settings, partial(SamplingProcess, partial(drawer, host.config), draw)
    )


def writing_generator(settings: SamplerSettings) -> Callable[[TextHost], writing.RemoteGenerator]:
    """The part of a policy whose completions these processes write."""
    return lambda host: writing.RemoteGenerator(
        host,
        writing.LocalGenerator(host),
        settings,
        partial(SamplingProcess, partial(TextPolicy, replace(host.config, teachers=())), write),
    )


def write(
    policy: TextPolicy, prompts: Sequence[Encoded], prompt_index: Sequence[int], seeds: Sequence[Seed], sampling: Sampling
) -> tuple[list[Seed], Completions]:
    """Whose rows a chunk holds, and its completions."""
    return list(seeds), policy.generator.write(prompts, prompt_index, seeds, sampling)


def drawer(config: FlowPolicyConfig) -> FlowPolicy:
    """The policy of a process that draws."""
    from diffusers.utils import logging

    logging.disable_progress_bar()
    return FlowPolicy(config)


def draw(policy: FlowPolicy, requests: Sequence[Request], sigma_table: SigmaTable) -> Sampled:
    """A chunk's images; what only the drawing itself needs stays behind."""
    policy.net.uploads.clear()
    drawn = policy.generator.write([(requests, sigma_table)])[0]
    return replace(drawn, requests=(), trajectory=replace(drawn.trajectory, states=(), means=()))
