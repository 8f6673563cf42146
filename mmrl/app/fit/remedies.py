"""The changes that help most where a run does not fit its card, each with the bytes that it saves."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mmrl.app.config.run import Resolved, RunConfig, with_values
from mmrl.app.fit.plan import Estimates, Plan
from mmrl.app.modality.registry import PolicyConfig
from mmrl.app.planning.choices import CHOSEN, ModelFacts
from mmrl.app.planning.device import Device
from mmrl.app.planning.memory import SMALL_CACHE_MB, Memory, add_server, engine_beside, size_text, without_server
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text.settings import TextPolicyConfig

SHOWN = 3
SMALL_RANK, SMALL_SIDE, SMALL_PIXELS, FEW_TOKENS = 8, 256, 200_704, 64
MOST_CARDS = 8
WORTH = 0.1
"""Share of a run's memory from which on its largest phase is worth a look."""
SHARDS = "accelerate launch --config_file configs/accelerate/fsdp2.yaml --num_processes {cards} -m mmrl train ..."


@dataclass(frozen=True)
class Remedy:
    """A change to a run, and the bytes of a card that it saves."""

    saves: int
    words: str

    def __str__(self) -> str:
        return f"-{size_text(self.saves)}: {self.words}"


def refusal(estimates: Estimates, resolved: Resolved, made: Plan, device: Device, facts: ModelFacts) -> str:
    """The error of a run that does not fit with its smallest sizes: what it needs, and what would help most, largest first."""
    memory = made.memory
    largest = sorted(parts_of(memory).items(), key=lambda part: -part[1])[:SHOWN]
    named = ", ".join(f"{name} {size_text(size)}" for name, size in largest)
    known = list(remedies(estimates, resolved, made, device, facts))
    if len(known) < SHOWN or memory.phases[memory.largest_phase] > WORTH * memory.peak:
        for words, values in cheaper(resolved):
            less = device.use_of(estimates.of(with_values(resolved, values, CHOSEN)).memory)
            known += [Remedy(device.use_of(memory) - less, words)] if less < device.use_of(memory) else []
    found = sorted(known, key=lambda remedy: -remedy.saves)[:SHOWN]
    missing = device.use_of(memory) - device.usable
    lines = "\n".join(f"  {remedy}" for remedy in found)
    return (
        f"{resolved.config.policy.model} ({facts.weights / 1e9:.2f} billion weights) does not fit: with the smallest sizes it "
        f"needs {size_text(device.need_of(memory))} of {device.name}, {size_text(missing)} too much; most: {named}. "
        f"What helps most:\n{lines}"
    )


def parts_of(memory: Memory) -> Mapping[str, int]:
    """The parts of a sum of bytes: what stays, and the phase that counts."""
    return {**memory.stays, f"while {memory.largest_phase}": memory.phases[memory.largest_phase]}


def remedies(estimates: Estimates, resolved: Resolved, made: Plan, device: Device, facts: ModelFacts) -> Iterator[Remedy]:
    """The changes whose bytes follow from the plan, and weights in 4 bits where a config said otherwise; in no order."""
    memory, policy = made.memory, resolved.config.policy
    weights = sum(size for name, size in memory.stays.items() if name.startswith("weights in"))
    trained = sum(size for name, size in memory.stays.items() if name.startswith(("gradients", "optimizer")))
    missing = device.use_of(memory) - device.usable
    if facts.weights and weights > missing:
        fitting = (weights - missing) * facts.weights / weights
        yield Remedy(missing, f"a smaller model: at most {fitting / 1e9:.1f} billion weights fit beside the rest")
    if device.is_card and rests_whole(policy):
        cards = next((n for n in (2, 4, MOST_CARDS) if (weights + trained) * (n - 1) // n >= missing), MOST_CARDS)
        saved = (weights + trained) * (cards - 1) // cards
        yield Remedy(saved, f"{cards} such cards that share the weights: {SHARDS.format(cards=cards)}")
    if device.is_card:
        if held := sum(made.rewards.stays.values()):
            yield Remedy(held, 'rewards in a process of their own (mmrl reward serve), or device = "cpu" in [[reward]]')
        yield from less_server(made.config, memory)
    if policy.lora is not None and policy.lora.rank > SMALL_RANK:
        adapter = trained + sum(size for name, size in memory.stays.items() if name.startswith("weights kept beside"))
        share = 1 - SMALL_RANK / policy.lora.rank
        yield Remedy(int(share * (adapter + 4 * memory.trained)), f"smaller adapters: policy.lora.rank={SMALL_RANK}")
    if device.is_card and facts.parts and rests_whole(policy) and policy.lora is not None:
        small = with_values(resolved, {"policy.weights": "nf4"}, CHOSEN)
        yield Remedy(memory.peak - estimates.of(small).memory.peak, "weights in 4 bits: policy.weights=nf4")


def rests_whole(policy: PolicyConfig) -> bool:
    """May its weights rest in 4 bits, or be shared by cards, and do they rest as they are?"""
    return isinstance(policy, TextPolicyConfig | FlowPolicyConfig) and policy.weights == "float"


def less_server(config: RunConfig, memory: Memory) -> Iterator[Remedy]:
    """An engine's server that takes less of the trainer's card, or nothing."""
    engine, policy = engine_beside(config), config.policy
    if engine is None or not isinstance(policy, TextPolicyConfig):
        return
    alone = without_server(memory).peak
    yield Remedy(memory.peak - alone, 'the server on another card (policy.engine.devices = "1"), or no engine')
    small = replace(engine, cache_mb=SMALL_CACHE_MB)
    less = add_server(without_server(memory), replace(config, policy=replace(policy, engine=small)), 0).peak
    words = f"a server with {SMALL_CACHE_MB / 1024:.0f} GiB for keys and values: policy.engine.cache_mb={SMALL_CACHE_MB}"
    if less < memory.peak:
        yield Remedy(memory.peak - less, words)


def cheaper(resolved: Resolved) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Words for a setting that the largest phase, or all of the model, depends on, and the setting by its key."""
    policy = resolved.config.policy
    if policy.dtype != "bfloat16" or policy.lora is None:
        adapters = {"policy.dtype": "bfloat16", "policy.lora": {"rank": SMALL_RANK}}
        yield f"adapters in bfloat16: policy.dtype=bfloat16 policy.lora.rank={SMALL_RANK}", adapters
    if isinstance(policy, TextPolicyConfig) and policy.max_pixels is not None and policy.max_pixels > SMALL_PIXELS:
        yield f"smaller pictures: policy.max_pixels={SMALL_PIXELS}", {"policy.max_pixels": SMALL_PIXELS}
    if isinstance(policy, TextPolicyConfig) and policy.sampling.max_new_tokens > FEW_TOKENS:
        few = {"policy.sampling.max_new_tokens": FEW_TOKENS}
        yield f"shorter answers: policy.sampling.max_new_tokens={FEW_TOKENS}", few
    if isinstance(policy, FlowPolicyConfig) and min(policy.height, policy.width) > SMALL_SIDE:
        sides = {"policy.height": SMALL_SIDE, "policy.width": SMALL_SIDE}
        yield f"smaller pictures: policy.height={SMALL_SIDE} policy.width={SMALL_SIDE}", sides
