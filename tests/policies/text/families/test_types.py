"""Types of transformers that see or hear: which train, by which family, why others do not, and what the rule for them takes."""

from pathlib import Path

import pytest

from mmrl.app.inspect.ls import listing
from mmrl.app.inspect.things import type_lines
from mmrl.core.types import Prompt
from mmrl.lab.tiny.text.ears import EARS
from mmrl.lab.tiny.text.vlms import BY_RULE
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.families import types
from mmrl.policies.text.families.base import parameters_of
from mmrl.policies.text.families.generic import COUNTS, Generic
from mmrl.policies.text.families.types import all_types, type_of
from mmrl.policies.text.loading import load_config
from mmrl.policies.text.settings import TextPolicyConfig
from tests.support.text_policies import make, picture


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


REFUSED = {
    "florence2": "reads with an encoder and writes with a decoder",
    "mllama": "looks at pictures beside its text, not in it",
    "diffusion_gemma": "diffuses its text, and has no probability of a token after those before it",
    "pi0": "writes no text",
    "mistral4": "takes no pictures",
    "git": "does not take features of pictures in place of tokens of its text",
    "molmo2": "wants image_num_crops beside its pictures: a family would have to batch them",
    "video_llava": "has a processor that makes pixel_values_images, which its own forward does not take",
    "llama4": "keeps its layers elsewhere than other models",
    "voxtral_realtime": "adds sounds to its text while it writes, step by step",
    "vibevoice_asr": "adds noise to what it hears, so that no reading equals another",
    "kyutai_speech_to_text": "takes no features of sounds in place of tokens of its text",
    "granite_speech_plus": "writes logits without the divisor that its text config names",
    "chameleon": "writes pictures as tokens of its own vocabulary, and has no features of them",
}


def test_types_say_yes_by_their_family_or_no_with_a_sentence():
    assert {name: type_of(name).refusal for name in REFUSED} == REFUSED
    assert type_of("qwen3_5_moe").summary == "yes: by QwenVL; repeats prompts (linear_attention)"
    assert type_of("muse_glimmer").summary == "yes: by the rule; head: output_multiplier, final_logit_softcapping"
    assert {type_of(name).family for name in BY_RULE} == {"Generic", "Gemma4"}
    assert type_of("qwen2_audio").summary == "yes: by the rule; sounds"
    assert [type_of(name).family for name in EARS] == ["Hearing", "GraniteSpeech", "Phi4", "Voxtral"]


def test_a_model_of_a_refused_type_is_refused_before_its_weights_are_read(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "mllama"}')
    with pytest.raises(ValueError, match=r"is of type mllama, which looks at pictures beside its text.*`mmrl ls families --all`"):
        load_config(TextPolicyConfig(str(tmp_path)))


def test_the_list_is_as_wide_as_a_terminal_and_marks_what_was_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(types, "all_types", lambda: [type_of(name) for name in ("lfm2_vl", "llava", "molmo2")])
    lines = list(type_lines())
    assert lines[0].endswith(": 2 of 3") and max(map(len, lines)) <= 80
    assert [line[:2] for line in lines if line[2:].startswith(("lfm2_vl", "llava", "molmo2"))] == ["* ", "  ", "  "]
    with pytest.raises(ValueError, match="write mmrl ls families --all"):
        next(listing("rewards", everything=True))


@pytest.mark.evidence
def test_every_type_is_yes_or_no():
    found = {one.name: one for one in all_types()}
    assert len(found) > 90 and sum(one.refusal is None for one in found.values()) > 60
    assert all(one.refusal is None for name, one in found.items() if name in BY_RULE)
