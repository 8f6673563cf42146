"""The process that samples beside the one that trains: a policy of the same config, and the weights that it is given."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from mmrl.policies.shared.workers.settings import Place
from mmrl.policies.shared.workers.slots import Slots


class SamplingProcess:
    """The call that a sampling process answers.

    Args:
        make: builds the policy, once the process has started.
        sample: (policy, what a chunk asks for) -> the chunk's answer.
    """

    def __init__(self, make: Callable[[], Any], sample: Callable[..., object], slots: Slots, place: Place) -> None:
        self.make, self.sample, self.slots, self.place = make, sample, slots, place

    def prepare(self) -> None:
        """Load the model."""
        self.place.enter()
        from accelerate import Accelerator
        from tqdm import tqdm
        from transformers.utils import logging

        # tqdm's own lock is a semaphore of the machine, which stays behind where a process is killed
        tqdm.set_lock(threading.RLock())
        logging.disable_progress_bar()
        self.policy = self.make()
        self.policy.prepare(Accelerator(cpu=not self.place.card))

    @torch.no_grad()
    def __call__(self, place: int, version: int, *chunk: object) -> object:
        """A chunk, sampled with the weights of a version.

        Raises:
            TornWeightsError: the slot does not hold them.
        """
        weights = self.policy.weights
        self.slots.read(place, version, list(weights.named.values()))
        weights.num_updates = version
        return self.sample(self.policy, *chunk)
