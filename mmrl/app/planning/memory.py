"""How much memory of a card a run takes, from models without weights."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from mmap import PAGESIZE
from pathlib import Path

import torch

from mmrl.app.config.run import RunConfig
from mmrl.app.planning.cards import gigabytes_of
from mmrl.core.hooks import TermHooks, with_hooks
from mmrl.policies.shared.call_log import DryRun
from mmrl.policies.shared.meta_models import size_of
from mmrl.policies.shared.quantized.host import host_weights
from mmrl.policies.shared.quantized.layer import SCALES_OF, count_weights, nf4_layers
from mmrl.runtime.tensors import is_matrix
from mmrl.training.optim import OptimizerSettings

GIB = 2**30
CONTEXT = GIB // 2
"""About as much as CUDA and its libraries take before anything is computed."""
SPARE = 0.05
"""Share of a card that fragments of its memory may take."""
LIBRARIES, WRITTEN = "Python, its libraries and the data", "a checkpoint on its way to the disk"
OF_UPDATES = ("update", "optimizer step")
"""The phases beside which no checkpoint is written where there is no card."""
UNITS = {"": GIB, "G": GIB, "GB": GIB, "GIB": GIB, "M": 2**20, "MB": 2**20, "MIB": 2**20}


@dataclass(frozen=True)
class Memory:
    """Bytes of one process. What stays adds up; of the phases only the largest counts."""

    stays: Mapping[str, int]
    phases: Mapping[str, int]
    """Most bytes at a time beyond what stays."""
    parts: Mapping[str, int] = field(default_factory=dict[str, int])
    """The largest parts of some of the phases."""
    parameters: int = 0
    """Parameters of the network that trains."""
    trained: int = 0
    """Parameters of it that do."""
    host: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    """The same process's bytes on the host; where there is no card they come on top."""
    overlap: int = 0
    """Bytes of these that lie where gradients and the largest phase have been, where there is no card."""

    @property
    def peak(self) -> int:
        """Most bytes on a card."""
        return sum(self.stays.values()) + max(self.phases.values(), default=0)

    @property
    def resident(self) -> int:
        """Most bytes of a process that has no card."""
        return self.peak + sum(self.host.values()) - self.overlap

    @property
    def largest_phase(self) -> str:
        return max(self.phases, key=lambda name: self.phases[name])

    def checkpoint(self, shadows: int) -> int:
        """Bytes of one checkpoint: trained weights, the optimizer's state, and other copies of the weights."""
        remembered = sum(size for name, size in self.stays.items() if name.startswith("optimizer"))
        return remembered + self.stays.get("gradients", 0) * (1 + shadows)


def estimate(dry_run: DryRun, config: RunConfig, processes: int = 1) -> Memory:
    """The memory of a run of which a step was gone through: its log says how large the largest pieces of work are.

    This process has loaded the libraries, processor and data that the run will load, and no weights: so much they take there.
    """
    libraries = resident_now()
    far = list(host_weights(dry_run.network))
    at_host = {id(weight) for weight in far}
    weights = [weight for weight in dry_run.network.parameters() if id(weight) not in at_host]
    trained = [weight for weight in weights if weight.requires_grad]
    size, shadows = size_of(trained), copies_of(config, dry_run.policy.shadows)
    stays = {f"weights in {name_of(dtype)}": size_of(w for w in weights if w.dtype == dtype) for dtype in dtypes(weights)}
    if scales := size_of(getattr(layer, name) for _, layer in nf4_layers(dry_run.network) for name in SCALES_OF):
        stays |= {"weights in 4 bits": stays.pop("weights in int8"), "scales of weights in 4 bits": scales}
    stays |= dry_run.beside()
    stays |= {"gradients": size, f"optimizer ({config.optimizer.kind})": state_bytes(config.optimizer, trained)}
    if config.ahead:
        # of every step in flight, of the live weights, and those put aside while others are looked through
        stays["weights of steps in flight"] = (config.ahead + 2) * size
    beside, is_far = {f"weights kept beside: {name}": size for name in shadows}, config.policy.copies_on == "cpu"
    stays |= {} if is_far else beside
    if processes > 1:
        stays["gradients on their way between processes"] = size
    phases = dict(dry_run.activations())
    if shadows and "read" in phases and not is_far:
        # The live weights are put aside while others are looked through.
        phases["read"] += size
    if config.optimizer.kind != "sgd":
        # Its updates of all weights are computed together on a card.
        phases["optimizer step"] = size
    parameters, taught = count_weights(dry_run.network), sum(weight.numel() for weight in trained)
    memory = Memory(stays, phases, dry_run.parts_of_activations(), parameters, taught)
    host = {LIBRARIES: libraries, **dry_run.host_bytes(), **(beside if is_far else {})}
    host |= {"input embeddings": size_of(far)} if far else {}
    shared = 0
    if config.checkpoint.asynchronous:
        host[WRITTEN] = memory.checkpoint(len(shadows) + versions_in_flight(config))
        shared = overlap(host[WRITTEN], size, phases, config)
    return replace(memory, host=host, overlap=shared)


def versions_in_flight(config: RunConfig) -> int:
    """Copies of the weights in a checkpoint by which steps in flight are written."""
    return 0 if config.ahead_drain else config.ahead


def of_sampler(dry_run: DryRun, memory: Memory) -> Memory:
    """The same of a process of `cluster.samplers`: weights and sampling, without gradients, optimizer and other copies."""
    held = {"weights in 4 bits", "scales of weights in 4 bits", *dry_run.beside()}
    held |= {f"weights in {name_of(dtype)}" for dtype in dtypes(list(dry_run.network.parameters()))}
    stays = {name: size for name, size in memory.stays.items() if name in held}
    phases = {name: size for name, size in memory.phases.items() if name in ("rollout", "decode", "encode")}
    host = {LIBRARIES: memory.host[LIBRARIES]}
    return Memory(stays, phases, {}, memory.parameters, memory.trained, host)


def copies_of(config: RunConfig, shadows: Iterable[str]) -> list[str]:
    """The weights that a run keeps copies of: the reference of a fresh adapter is the model without it, unless a term rebases."""
    policy, terms = config.policy, config.algorithm.algorithm.objective
    fresh = policy.lora is not None and policy.lora.adapter is None and not getattr(policy, "scores", ())
    moves = any(with_hooks(term, TermHooks).rebase_after for _, term in terms)
    return sorted(name for name in shadows if name != "ref" or moves or not fresh)


def overlap(copy: int, gradients: int, phases: Mapping[str, int], config: RunConfig) -> int:
    """Bytes of a checkpoint's copy that lie where gradients and the largest phase have been: updates wait for its end."""
    is_followed = config.steps > 1 if config.saves_by_time else 0 < config.save_every < config.steps
    beside = [size for name, size in phases.items() if is_followed and name not in OF_UPDATES]
    return min(copy, gradients + max(phases.values(), default=0) - max(beside, default=0))


def resident_now() -> int:
    """Bytes that this process has in memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE
    except OSError:
        return 0


def state_bytes(optimizer: OptimizerSettings, weights: Sequence[torch.Tensor]) -> int:
    """Bytes of the numbers that the optimizer keeps for weights: two for each with AdamW, one for Muon's matrices."""
    if optimizer.kind == "sgd":
        return size_of(weights) * int(optimizer.momentum != 0)
    single = [weight for weight in weights if optimizer.kind == "muon" and is_matrix(weight)]
    return 2 * size_of(weights) - size_of(single)


def dtypes(weights: Sequence[torch.Tensor]) -> list[torch.dtype]:
    return list(dict.fromkeys(weight.dtype for weight in weights))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def size_text(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / 2**20:.2f} MiB"


def room(card: str | None) -> int | None:
    """Bytes of a given card, of the smallest one of this machine, or None where there is none.

    A card is a size, such as 24GB, or a name, such as RTX 4090. Raises ValueError for others.
    """
    if card is not None:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", card)
        if found is None or found[2].upper() not in UNITS:
            return int(gigabytes_of(card) * GIB)
        return int(float(found[1]) * UNITS[found[2].upper()])
    if not torch.cuda.is_available():
        return None
    return min(torch.cuda.mem_get_info(i)[1] for i in range(torch.cuda.device_count()))


def has_card() -> bool:
    return torch.cuda.is_available()


def usable(room: int) -> int:
    """Bytes of a card that a run may take: without what CUDA itself takes, and without a share for fragments."""
    return int(room * (1 - SPARE)) - CONTEXT


def less_to_hold(memory: Memory, is_text: bool) -> str:
    """The change that helps where weights and what belongs to them are too much."""
    if "weights in 4 bits" not in memory.stays:
        return 'set policy.dtype = "bfloat16", [policy.lora] and policy.weights = "nf4", freeze parts, or shard (FSDP)'
    if is_text:
        return 'name more parts in policy.quantized.parts, or set policy.quantized.embeddings = "host"'
    return "add text_encoders to policy.quantized.parts, or set policy.rest_text_encoders = true"


def advice(memory: Memory, room: int, is_text: bool) -> str | None:
    """Why a run does not fit into a card and what to change, or None where it fits."""
    if memory.peak <= usable(room):
        return None
    largest = sorted({**memory.stays, memory.largest_phase: memory.phases[memory.largest_phase]}.items(), key=lambda x: -x[1])
    named = ", ".join(f"{name} {size_text(size)}" for name, size in largest[:3])
    phase = memory.largest_phase
    if sum(memory.stays.values()) > usable(room):
        remedy = f"what stays is too much by itself: {less_to_hold(memory, is_text)}"
    elif phase == "update":
        remedy = "lower micro_batch, or set policy.gradient_checkpointing = true"
        remedy += " or lower policy.logit_chunk" if is_text else " and lower policy.forward_rows"
    elif phase == "rollout":
        remedy = "lower policy.rollout_rows or policy.sampling.max_new_tokens" if is_text else "lower policy.forward_rows"
    elif phase == "decode":
        remedy = "lower policy.decode_rows, or set policy.vae_slicing = true"
    else:
        remedy = "lower micro_batch" if is_text else "lower policy.forward_rows"
    return (
        f"it needs about {size_text(memory.peak + CONTEXT)} of the card's {size_text(room)}, {SPARE:.0%} of it left for "
        "fragments; "
        f"most: {named}. {remedy}"
    )
