"""Models whose tensors, features and positions are read from signatures; and every family that shares another's file."""

import pytest
import torch
from transformers.masking_utils import causal_mask_function

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt
from mmrl.lab.tiny.text import vlms
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.families.base import parameters_of
from mmrl.policies.text.families.generic import COUNTS, Generic
from mmrl.policies.text.packed.attention import Packed, PackedMask
from tests.support.text_policies import (
    FP32_BOUND,
    LATE,
    gradients,
    logprobs,
    make,
    mixed,
    picture,
    plain_logprobs,
    plain_model,
    relative_difference,
    text_trace,
)

REPEATED = ("qwen3_5_moe", "lfm2_vl", "minicpmv4_6")


@pytest.mark.parametrize("family", LATE)
def test_sampled_read_again_and_transformers_alone_agree(tiny, family):
    """The vision part does not train, so each prompt is looked at once; caps and factors of the head are transformers' own."""
    policy = make(tiny(family), lora=LoraSettings(rank=2))
    rollouts = policy.rollout(mixed())
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    assert policy.packs == text_trace(rollouts.trace).packed == (family not in REPEATED) and policy.net.features is not None
    for expected in (logprobs(policy, rollouts), plain_logprobs(plain_model(tiny(family)), policy, rollouts)):
        torch.testing.assert_close(noted, expected.detach(), atol=FP32_BOUND, rtol=0)
    policy.audit(rollouts)


def test_layers_without_keys_of_their_own_read_packed_rows_alike(tmp_path):
    """The later layers of Gemma 4 E4B take the keys of earlier ones, and cut masks to the queries whose logits are asked for."""
    folder, kinds = str(tmp_path / "gemma4"), ["sliding_attention", "full_attention"] * 2
    for part in vlms.gemma4(num_hidden_layers=4, num_kv_shared_layers=2, layer_types=kinds, global_head_dim=16):
        part.save_pretrained(folder)
    packed, repeated = (make(folder, prefix=prefix) for prefix in ("packed", "repeated"))
    checked = make(folder, prefix="packed", gradient_checkpointing=True)
    rollouts = packed.rollout(mixed())
    for other in (repeated, checked):
        torch.testing.assert_close(logprobs(packed, rollouts), logprobs(other, rollouts), atol=FP32_BOUND, rtol=0)
        assert relative_difference(gradients(packed, rollouts), gradients(other, rollouts)) < 1e-4
    torch.testing.assert_close(rollouts.recorded[ROLLOUT_LOGPROBS], logprobs(packed, rollouts).detach(), atol=FP32_BOUND, rtol=0)
    with pytest.raises(TypeError, match="some queries of a packed row are asked for alone"):
        PackedMask(Packed(()), causal_mask_function, False)[:, :, -1:]


def test_a_family_without_its_head_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(Generic, "head", lambda self, logits: logits)
    for family in ("gemma4", "muse_glimmer"):
        with pytest.raises(ValueError, match=rf"{family} changes its logits after the head"):
            make(tiny(family))


def test_a_text_that_spells_a_placeholder_is_found_by_one_look(tiny):
    policy = make(tiny("ovis2"), lora=LoraSettings(rank=2))
    shown = Prompt("p", "?", (picture(0),))
    encoded = policy.encode(shown)
    features = int((encoded.token_ids == policy.family.image_token_id).sum())
    assert int(encoded.media[COUNTS["image"]].sum()) == features == policy.family.num_features(encoded.media)
    assert policy.net.features is not None and policy.net.features.missing([encoded.media]) == 0, "the look is kept"
    match = rf"prompt .p.: its text holds {features + 1} image placeholders, its pictures give {features} vision features"
    with pytest.raises(ValueError, match=match):
        policy.encode.encode(Prompt("p", "? <IMG_ATOM>", (picture(0),)))


def test_tensors_that_the_model_wants_beside_its_pictures_are_refused(tiny):
    """What features take is kept; what nothing takes is left out; what the text layers would want is an error."""
    policy = make(tiny("ovis2"))
    family, core = policy.family, policy.net.core
    assert family.keeps(core, ["pixel_values", "grids"]) == {"pixel_values"}
    assert "inputs_embeds" in parameters_of(core.forward)
    with pytest.raises(ValueError, match="ovis2: the processor made inputs_embeds, which the model wants beside its pictures"):
        family.keeps(core, ["pixel_values", "inputs_embeds"])
