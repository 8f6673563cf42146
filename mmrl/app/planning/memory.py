"""How much memory a run takes, from models without weights: its own, its rewards', an engine's; and the device it is for."""

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from mmap import PAGESIZE
from pathlib import Path

import torch

from mmrl.app.config.plug_ins import episodes_at_once, read_environment, reward_of
from mmrl.app.config.reward_needs import rewards_in, with_those_inside
from mmrl.app.config.run import Resolved, RunConfig
from mmrl.app.modality.on_cards import without_bfloat16
from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins import resolve as plugins
from mmrl.app.plugins.resolve import PREFIX
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.core.hooks import TermHooks, with_hooks
from mmrl.policies.shared.dry_run import OF_TEACHERS, DryRun, size_of
from mmrl.policies.shared.quantized.layer import SCALES_OF, count_weights, host_weights, nf4_layers
from mmrl.policies.text.settings import EngineConfig, TextPolicyConfig
from mmrl.runtime.sandbox.sandbox import OWN_BYTES, RunsCode
from mmrl.runtime.tensors import is_matrix
from mmrl.serving.reward_client import is_url
from mmrl.serving.scorers.sizes import HoldsModels, ModelSize
from mmrl.training.optim import OptimizerSettings

log = logging.getLogger("mmrl")

GIB = 2**30
CONTEXT = GIB // 2
"""About as much as CUDA and its libraries take before anything is computed."""
SPARE = 0.05
"""Share of a card that fragments of its memory may take."""
LIBRARIES, WRITTEN = "Python, its libraries and the data", "a checkpoint on its way to the disk"
OF_UPDATES = ("update", "optimizer step")
"""The phases beside which no checkpoint is written where there is no card."""
UNITS = {"": GIB, "G": GIB, "GB": GIB, "GIB": GIB, "M": 2**20, "MB": 2**20, "MIB": 2**20}
CARD_SIZES = {
    **{"RTX 3060": (12,), "RTX 3070": (8,), "RTX 3080": (10, 12), "RTX 3080 Ti": (12,), "RTX 3090": (24,), "RTX 3090 Ti": (24,)},
    **{"RTX 4060": (8,), "RTX 4060 Ti": (8, 16), "RTX 4070": (12,), "RTX 4070 Super": (12,), "RTX 4070 Ti": (12,)},
    **{"RTX 4070 Ti Super": (16,), "RTX 4080": (16,), "RTX 4080 Super": (16,), "RTX 4090": (24,)},
    **{"RTX 5060 Ti": (8, 16), "RTX 5070": (12,), "RTX 5070 Ti": (16,), "RTX 5080": (16,), "RTX 5090": (32,)},
    **{"RTX A4000": (16,), "RTX A5000": (24,), "RTX A6000": (48,), "RTX 6000 Ada": (48,), "RTX PRO 6000": (96,)},
    **{"T4": (16,), "P100": (16,), "V100": (16, 32), "A10": (24,), "A10G": (24,), "A30": (24,), "A40": (48,), "L4": (24,)},
    **{"L40": (48,), "L40S": (48,), "A100": (40, 80), "H100": (80, 94), "H200": (141,), "B200": (180,)},
}
"""The GB in a card's name or data sheet; several where it was sold with several."""
SHOWN_GIB = {"T4": 15, "L4": 22, "A10": 22, "A10G": 22, "A40": 45, "L40": 45, "L40S": 45}
"""GiB that drivers show of cards whose memory corrects its errors."""
OLD_CARDS = ("T4", "P100", "V100")
"""Cards without bfloat16 units."""
SHOWN_SHARE = 0.98
"""Share of a data sheet's GB that drivers show of all other cards."""
HALF, WHOLE = 2, 4
"""Bytes of a number of a reward's model on a card and elsewhere, as `mmrl.serving.scorers.models.hold` keeps them."""
SERVER, SERVER_WRITES = "the engine's server", "the engine's server writes"
"""Names of a server's bytes: those that stay, and those of the phase in which a server that else sleeps writes."""
SMALL_CACHE_MB = 1024


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


@dataclass(frozen=True)
class RewardMemory:
    """Bytes of models inside rewards, equal models counted once."""

    stays: Mapping[str, int] = field(default_factory=dict[str, int])
    """`reward pick_score: yuvalkirstain/PickScore_v1` -> bytes where the policy's weights lie."""
    host: Mapping[str, int] = field(default_factory=dict[str, int])
    """The same of those that a run with a card keeps in the memory of the host."""
    unknown: tuple[str, ...] = ()
    """Phrases about what is not counted, such as `./mine.py:short, which does not say what it holds`."""


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
    dtypes = dict.fromkeys(weight.dtype for weight in weights)
    stays = {f"weights in {str(one).removeprefix('torch.')}": size_of(w for w in weights if w.dtype == one) for one in dtypes}
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
    held = {"scales of weights in 4 bits", *(name for name in dry_run.beside() if OF_TEACHERS not in name)}
    stays = {name: size for name, size in memory.stays.items() if name in held or name.startswith("weights in ")}
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


def size_text(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / 2**20:.2f} MiB"


def reward_memory(resolved: Resolved, on_card: bool) -> RewardMemory:
    """The memory of a run's rewards, to train on and to watch; none of their models is loaded.

    With `on_card`, rewards whose device is auto are on a card.
    """
    config, table = resolved.config, resolved.table
    listed = [(("reward", str(i)), one) for i, one in enumerate(config.reward)]
    listed += [(("evaluation", "reward", str(i)), one) for i, one in enumerate(config.evaluation.reward)]
    held, unknown = dict[tuple[str, str], tuple[str, ModelSize]](), list[str]()
    for path, reward in listed:
        sizes, hidden = models_of(reward.use, reward.args, path, table)
        unknown += hidden
        for size in sizes:
            held.setdefault((size.name, size.device), (f"reward {reward.label}", size))
    if isinstance(world := environment_of(resolved), HoldsModels):
        for size in world.models():
            held.setdefault((size.name, size.device), ("environment", size))
    stays, host = dict[str, int](), dict[str, int]()
    for label, size in held.values():
        name = f"{label}: {size.name}"
        if size.weights is None:
            unknown.append(f"{size.name} of {label} ({size.why})")
        elif on_card and size.device.partition(":")[2] not in ("", "0"):
            unknown.append(f"{size.name} of {label}, on {size.device}")
        elif on_card and size.device != "cpu":
            stays[name] = HALF * size.weights
        else:
            host[name] = WHOLE * size.weights
    return RewardMemory(stays if on_card else {**stays, **host}, host if on_card else {}, tuple(dict.fromkeys(unknown)))


def models_of(use: str, args: Mapping[str, object], path: KeyPath, table: Table) -> tuple[Sequence[ModelSize], list[str]]:
    """The models that a reward and the rewards inside it hold, and phrases about those that are unknown."""
    sizes, unknown, shipped = list[ModelSize](), list[str](), plugins.shipped_folder("rewards").resolve()
    for place, name, own in with_those_inside(use, args, path):
        if is_url(name):
            continue
        style, plug_in = adapters.split(name)
        function = plugins.load(plug_in, "rewards")
        if not style and isinstance(function, type) and hasattr(function, "models"):
            made = reward_of(name, {key: value for key, value in own.items() if not rewards_in(value)}, place, table)()
            sizes += made.models() if isinstance(made, HoldsModels) else []
        elif plug_in.startswith(PREFIX) or plugins.locate(plug_in, "rewards")[0].parent != shipped:
            unknown.append(f"what {name} may load, which does not say so (a method `models`)")
    return sizes, unknown


def sandbox_memory(resolved: Resolved, processes: int) -> dict[str, int]:
    """Bytes of the sandboxes that a process's episodes may have on the host, by a name; none where no code runs."""
    config, environment = resolved.config, environment_of(resolved)
    if not isinstance(environment, RunsCode) or environment.sandbox is None:
        return {}
    count = episodes_at_once(config, processes)
    return {f"sandboxes of {count} episodes, at most": count * (environment.sandbox.memory + OWN_BYTES)}


def environment_of(resolved: Resolved) -> object:
    """The environment of a run; None without one."""
    make = None if resolved.config.environment is None else read_environment(resolved.config.environment, resolved.table)
    return None if make is None else make()


def engine_beside(config: RunConfig) -> EngineConfig | None:
    """The engine whose server lies on the trainer's card, if there is one; `mmrl launch` gives servers cards of their own."""
    engine = config.policy.engine if isinstance(config.policy, TextPolicyConfig) else None
    return engine if engine is not None and engine.shares_card and not config.cluster.engines else None


def server_bytes(parameters: int, config: RunConfig, engine: EngineConfig, card: int) -> int:
    """Bytes of such a server, which holds the model whole, whatever the policy's weights rest in.

    Raises ValueError where its part of a card does not hold the model.
    """
    dtype = config.policy.dtype if engine.dtype == "auto" else engine.dtype
    model = parameters * getattr(torch, dtype).itemsize
    if engine.cache_mb:
        return model + CONTEXT + (engine.cache_mb << 20)
    held = int(engine.memory_share * card)
    if held < model + CONTEXT:
        raise ValueError(
            f"policy.engine.memory_share is {engine.memory_share:g}, which gives the server {size_text(held)} of the card, and "
            f"{config.policy.model} takes {size_text(model)} there in {dtype}, with {size_text(CONTEXT)} for CUDA: raise it, or "
            'give the server another card (policy.engine.devices = "1")'
        )
    return held


def add_server(memory: Memory, config: RunConfig, card: int | None) -> Memory:
    """The memory of a process on a card of this size in bytes, with the server that shares it. Raises as `server_bytes`."""
    engine = engine_beside(config)
    if engine is None or card is None:
        return memory
    held = server_bytes(memory.parameters, config, engine, card)
    if engine.sleep:
        return replace(memory, phases={**memory.phases, SERVER_WRITES: held})
    return replace(memory, stays={**memory.stays, SERVER: held})


def without_server(memory: Memory) -> Memory:
    """The same without it."""
    stays = {name: size for name, size in memory.stays.items() if name != SERVER}
    return replace(memory, stays=stays, phases={name: size for name, size in memory.phases.items() if name != SERVER_WRITES})


def room(card: str | None) -> int | None:
    """Bytes of a given card, of the smallest one of this machine, or None where there is none.

    A card is a size, such as 24GB, or a name, such as RTX 4090. Raises ValueError for others, and for one of no memory.
    """
    if card is not None:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", card)
        if found is None or found[2].upper() not in UNITS:
            return int(gigabytes_of(card) * GIB)
        size = int(float(found[1]) * UNITS[found[2].upper()])
        if size == 0:
            raise ValueError(f"--card is {card!r}, which has no memory: write its memory as in --card 24GB")
        return size
    if not torch.cuda.is_available():
        return None
    return min(torch.cuda.mem_get_info(i)[1] for i in range(torch.cuda.device_count()))


def gigabytes_of(card: str) -> float:
    """GiB that the card called `card` shows; its size may follow its name, as in A100-40. Warns of one without bfloat16 units.

    Raises ValueError for a name that is not known, and for one that was sold in several sizes without its size.
    """
    wanted = plain_name(card)
    sized = {
        f"{plain_name(name)}{size}{unit}": (name, size)
        for name, sizes in CARD_SIZES.items()
        for size in sizes
        for unit in ("", "gb")
    }
    named = {plain_name(name): name for name in CARD_SIZES}
    name, size = sized.get(wanted) or (named.get(wanted), None)
    if name is None:
        near = get_close_matches(wanted, named, 1, cutoff=0.6)
        also = f" (do you mean {' or '.join(spellings(named[near[0]]))}?)" if near else ""
        raise ValueError(f"--card is {card!r}, a card that is not known here{also}: write its memory as in --card 24GB")
    if name in OLD_CARDS:
        log.warning("%s", without_bfloat16(name))
    sizes = CARD_SIZES[name]
    if size is None and len(sizes) > 1:
        raise ValueError(f"--card is {card!r}, which was sold in {len(sizes)} sizes: write {' or '.join(spellings(name))}")
    return float(SHOWN_GIB[name]) if name in SHOWN_GIB else (size or sizes[0]) * SHOWN_SHARE


def plain_name(card: str) -> str:
    """Letters and digits alone, without the maker."""
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", card.lower())


def spellings(name: str) -> list[str]:
    return [name] if len(CARD_SIZES[name]) == 1 else [f'"{name}-{size}"' for size in CARD_SIZES[name]]


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


LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with a container's memory limit."""
SHARE = 0.85
"""Share of a machine's memory that a run may take, since other programs need some too."""


@dataclass(frozen=True)
class Device:
    """One card, or one process's share of a machine without cards: `Device(24 * GIB, True, "a card of 24.0 GiB")`."""

    size: int
    """Bytes."""
    is_card: bool
    name: str

    @property
    def usable(self) -> int:
        """Bytes that a run's own tensors may take."""
        return usable(self.size) if self.is_card else int(self.size * SHARE)

    def use_of(self, memory: Memory) -> int:
        """Bytes that a run takes here, at most."""
        return memory.peak if self.is_card else memory.resident

    def need_of(self, memory: Memory) -> int:
        """The same, with what CUDA itself takes."""
        return self.use_of(memory) + (CONTEXT if self.is_card else 0)

    def fits(self, memory: Memory) -> bool:
        return self.use_of(memory) <= self.usable


def target_device(card: str | None, processes: int = 1) -> Device:
    """The device of a run: a card such as 24GB or RTX 4090 (else ValueError), or this machine's, shared by n processes."""
    size = room(card)
    if size is not None:
        said = "from --card" if card is not None else "this machine's smallest"
        return Device(size, True, f"a card of {size / GIB:.1f} GiB ({said})")
    share = machine_memory() // processes
    each = "" if processes == 1 else f", {share / GIB:.1f} GiB for each of {processes} processes"
    return Device(share, False, f"this machine's memory of {machine_memory() / GIB:.1f} GiB (no card){each}")


def machine_memory() -> int:
    """Bytes of this machine's memory, or of the container's share of it."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in LIMITS:
        text = file.read_text().strip() if file.is_file() else ""
        found += [int(text)] if text.isdigit() else []
    return min(found)
