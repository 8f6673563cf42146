"""The needs that a policy's weights and types have of cards, looked at before a model is loaded."""

import logging
from collections.abc import Sequence
from importlib.util import find_spec

import torch

from mmrl.app.modality.merge import is_stored_in_codes
from mmrl.app.modality.registry import PolicyConfig
from mmrl.core.ranks import Ranks
from mmrl.core.samples import IMAGE, kind_of
from mmrl.core.types import Prompt
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.compiled import refuse_uncompilable
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.policies.text.vision.cache import ways_apart, words_about

log = logging.getLogger("mmrl")


def check_cards(policy: PolicyConfig, ranks: Ranks) -> None:
    """Refuse weights in 4 bits where they are spread over processes, and warn of a card that has no bfloat16 units."""
    device = None if ranks.accelerator is None else ranks.accelerator.device
    if device is not None and device.type == "cuda" and policy.dtype == "bfloat16" and not has_bfloat16():
        log.warning("%s", without_bfloat16(torch.cuda.get_device_name(device)))
    if not isinstance(policy, TextPolicyConfig | FlowPolicyConfig):
        return
    if policy.compile:
        alone = ranks.accelerator is None or (ranks.world == 1 and ranks.accelerator.distributed_type.value == "NO")
        refuse_uncompilable(device, alone, policy.weights != "float" or is_coded(policy))
    if ranks.is_sharded:
        refuse_sharded_codes(policy)
    if isinstance(policy, TextPolicyConfig) and policy.quantized.embeddings == "host" and ranks.world > 1:
        raise ValueError(
            f"policy.quantized.embeddings is 'host', which is for one GPU, and there are {ranks.world} processes: start one, or "
            "leave it out"
        )
    if policy.quantized.kernels == "fast":
        refuse_fast_kernels(ranks)


def refuse_ways_apart(policy: PolicyConfig, prompts: Sequence[Prompt], ranks: Ranks) -> None:
    """Raise ValueError for the first prompt whose media pass other parts than pictures, where weights are spread."""
    held = {kind_of(media).name: prompt for prompt in reversed(prompts) for media in prompt.media}
    if not (ranks.is_sharded and isinstance(policy, TextPolicyConfig) and held.keys() - {IMAGE.name}):
        return
    from mmrl.policies.text.dry_run import meta_model

    model, family = meta_model(policy, frozen=True)
    for kind, parts in ways_apart(model.model, family).items():
        if kind in held:
            raise ValueError(words_about(f"prompt {held[kind].id!r}", kind, parts))


def refuse_sharded_codes(policy: TextPolicyConfig | FlowPolicyConfig) -> None:
    """Raise ValueError for weights in 4 bits, made or stored, of a run that cuts its weights."""
    if policy.weights != "float":
        place, remedy = f"policy.weights is {policy.weights!r}", "leave policy.weights out"
    elif is_coded(policy):
        place, remedy = f"policy.model {policy.model!r} is stored in 4 bits", "take the original"
    else:
        return
    raise ValueError(
        f"{place}, and FSDP and ZeRO-3 cut weights that are numbers: start with configs/accelerate/ddp.yaml, or {remedy}"
    )


def is_coded(policy: TextPolicyConfig | FlowPolicyConfig) -> bool:
    """Are the model's stored weights codes? False for what is no model: loading says why."""
    try:
        return is_stored_in_codes(policy)
    except OSError:
        return False


def refuse_fast_kernels(ranks: Ranks) -> None:
    """Raise ValueError where bitsandbytes' kernels for weights in 4 bits are not installed, or there is no GPU for them."""
    place, remedy = "policy.quantized.kernels is 'fast', which are those of bitsandbytes", "leave it out"
    if find_spec("bitsandbytes") is None:
        raise ValueError(f'{place}, and it is not installed: pip install "mmrl[quantized]", or {remedy}')
    if ranks.accelerator is None or ranks.accelerator.device.type != "cuda":
        raise ValueError(f"{place} and act on a GPU alone, of which this run has none: {remedy}")


def has_bfloat16() -> bool:
    """Has the GPU of this process units for bfloat16, which otherwise is computed in another type?"""
    return torch.cuda.is_bf16_supported(including_emulation=False)


def without_bfloat16(name: str) -> str:
    """The sentence about a card that has none."""
    return (
        f"{name} has no bfloat16 units, so bfloat16 is slow there, and float16 is not trained here: take a card of Ampere or "
        "later, such as an RTX 3060 or an L4"
    )
