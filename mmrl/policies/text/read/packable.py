"""Can a model read packed rows? Looked up in its config, and tried once for an unknown kind."""

import logging
from typing import Any

import torch
from torch import Tensor

from mmrl.policies.text.families.base import type_name_of
from mmrl.policies.text.families.types import ATTENTION
from mmrl.policies.text.net import axes
from mmrl.policies.text.packed.attention import PackedGroup, Pretrained, install, language_configs, packing, set_attention
from mmrl.policies.text.settings import TextPolicyConfig, unshared

log = logging.getLogger("mmrl")
SEEN = frozenset({"gemma3_text", "llama", "qwen2", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3", "qwen3_vl_text"})
"""Language models whose packed readings are compared with repeated ones in the tests, or that differ from those in sizes only."""
SHARED = SEEN - {"gemma3_text"}
"""Those whose layers look at everything before them, so that completions may share a prompt while they are written."""
TOGETHER = frozenset({"qwen2_5_vl", "qwen3_vl"})
"""Models whose packed rows were read by several processes together."""
PROMPT, FED = 4, 3
"""Tokens of the row that is tried: a prompt and two completions."""


def prepare_packing(model: Pretrained, config: TextPolicyConfig, weights: bool = True) -> bool:
    """Give a model that can read packed rows the attention for it; False where it cannot or should not.

    Without `weights` it cannot be tried. Raises ValueError where the config wants packed rows that the model cannot read.
    """
    if config.prefix == "repeated":
        return False
    reason = obstacle(model)
    if reason is None:
        install(model)
        if not weights or model.config.get_text_config().model_type in SEEN or (reason := misreading(model)) is None:
            return True
        set_attention(model, "sdpa")
    name = model.config.model_type
    if config.prefix == "packed":
        raise ValueError(f"policy.prefix is 'packed', but {name} {reason}: set policy.prefix = 'auto' or 'repeated'")
    log.warning("%s %s: completions are read with their prompt repeated, as policy.prefix = 'repeated' says", name, reason)
    return False


def refuse_unable(model: Any, config: TextPolicyConfig) -> None:
    """Raise ValueError where completions are to share prompts while they are written, or processes to read rows together, and by
    its config a model cannot, or was not tried."""
    if config.decode == "shared" and not looks_at_all(model):
        raise ValueError(
            f"policy.decode is 'shared', and {model.model_type} has layers that were not compared with it, or look back "
            f"a window only: set policy.decode = 'plain', or take one of {', '.join(sorted(SHARED))}"
        )
    if config.context > 1 and model.model_type not in TOGETHER:
        raise ValueError(
            f"policy.context is {config.context}, and pieces of rows were not tried with {model.model_type}, whose layers may "
            f"carry more from token to token than attention does: leave it out, or take one of {', '.join(sorted(TOGETHER))}"
        )
    if config.context > 1 and (heads := model.get_text_config().num_attention_heads) % config.context:
        raise ValueError(
            f"policy.context is {config.context}, which does not divide the {heads} heads of attention of "
            f"{config.model!r}: set it to a number that does"
        )


def shares_prompts(model: Pretrained, config: TextPolicyConfig) -> bool:
    """Do completions share their prompts while they are written?"""
    if config.decode == "auto":
        return config.compile and unshared(config) is None and looks_at_all(model.config)
    return config.decode == "shared"


def looks_at_all(model: Any) -> bool:
    """Do all layers look at everything before them, by a model's config?"""
    text = model.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    return text.model_type in SHARED and kinds == {"full_attention"}


def obstacle(model: Pretrained) -> str | None:
    """A reason in a model's config why its language model cannot read packed rows, None where there is none."""
    text = model.config.get_text_config()
    if text is not model.config and not language_configs(model):
        return "keeps its language model without a config of its own"
    if text._attn_implementation != "sdpa":
        return f"computes attention with {text._attn_implementation!r}, and packed rows are read with 'sdpa'"
    odd = sorted(set(getattr(text, "layer_types", None) or ()) - ATTENTION)
    if odd:
        return f"has layers of the kind {', '.join(odd)}, which would mix the completions of a packed row"
    if getattr(text, "attn_logit_softcapping", None) is not None:
        return "caps the logits of attention, which packed rows cannot"
    if any(name.endswith(".sinks") for name, _ in model.named_parameters()):
        return "has attention sinks, which packed rows have not"
    return None


@torch.no_grad()
def misreading(model: Pretrained) -> str | None:
    """How a packed row of ten tokens is misread; None where it reads the same as two rows."""
    core, axis_count = model.model.eval(), 3 if hasattr(model.model, "get_rope_index") else 1
    type_name = type_name_of(core)
    device = next(weight for _, weight in model.named_parameters()).device

    def read(ids: list[int], positions: list[int]) -> Tensor:
        token_ids = torch.tensor([ids], device=device)
        types = {type_name: torch.zeros_like(token_ids)} if type_name == "token_type_ids" else {}
        where = torch.tensor(positions, device=device).expand(axis_count, 1, -1)
        fed = {"input_ids": token_ids, "attention_mask": torch.ones_like(token_ids), "position_ids": axes(where)}
        return core(**fed, use_cache=False, **types).last_hidden_state[0].float()

    prompt, one, two = range(PROMPT), range(PROMPT, PROMPT + FED), range(PROMPT + FED, PROMPT + 2 * FED)
    together = torch.cat([read([*prompt, *some], [*prompt, *one])[-FED:] for some in (one, two)])
    try:
        with packing([PackedGroup(0, PROMPT, (FED, FED))], model.config.get_text_config().num_hidden_layers):
            packed = read([*prompt, *one, *two], [*prompt, *one, *one])[PROMPT:]
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
        return f"cannot read a packed row ({str(error).splitlines()[0]})"
    bound = 1e-3 if model.dtype == torch.float32 else 0.05
    apart = float((packed - together).norm() / together.norm())
    return None if apart <= bound else f"reads a packed row otherwise than two rows (by {apart:.2g} of the hidden states)"
