"""The process that draws beside the one that trains: a policy of the same config, and the weights that it is given."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from mmrl.core.types import Request
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.trace import SigmaTable
from mmrl.policies.flow.write.generate import Generator, Sampled
from mmrl.policies.flow.write.remote import RemoteGenerator
from mmrl.policies.shared.workers.settings import Place, SamplerSettings
from mmrl.policies.shared.workers.slots import Slots


class FlowSampler:
    """The call that a sampling process answers: a policy of the same config, with the weights that a slot holds."""

    def __init__(self, config: FlowPolicyConfig, slots: Slots, place: Place) -> None:
        self.config, self.slots, self.place = config, slots, place

    def prepare(self) -> None:
        """Load the model, once the process has started."""
        self.place.enter()
        from accelerate import Accelerator
        from diffusers.utils import logging as drawing
        from tqdm import tqdm
        from transformers.utils import logging as words

        # tqdm's own lock is a semaphore of the machine, which stays behind where a process is killed
        tqdm.set_lock(threading.RLock())
        for library in (words, drawing):
            library.disable_progress_bar()
        self.policy = FlowPolicy(self.config)
        self.policy.prepare(Accelerator(cpu=not self.place.card))

    @torch.no_grad()
    def __call__(self, place: int, version: int, requests: Sequence[Request], sigma_table: SigmaTable) -> Sampled:
        """A chunk, drawn with the weights of a version; what only the drawing itself needs stays behind."""
        policy = self.policy
        self.slots.read(place, version, list(policy.weights.named.values()))
        policy.weights.num_updates = version
        policy.net.uploads.clear()
        drawn = policy.generator.write(requests, sigma_table)
        return replace(drawn, requests=(), trajectory=replace(drawn.trajectory, states=(), means=()))


def remote_generator(settings: SamplerSettings) -> Callable[[FlowHost], Generator]:
    """The part of a policy whose images these processes draw."""
    return lambda host: RemoteGenerator(host, settings, partial(FlowSampler, host.config))
