"""Models that hear: sampled = read again = transformers' own, packed and alone; Voxtral's chats are those of mistral-common."""

import json
import math
import re
import shutil
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import get_peft_model
from safetensors.torch import load_file, save_file

from mmrl.answers.spans.sounds import Ear, read_wave
from mmrl.app.modality.base import EvaluationTable
from mmrl.app.modality.templates import writing_code
from mmrl.core.samples import Audio, Video
from mmrl.core.types import Prompt, Request
from mmrl.engine.wire_prompts import media_parts
from mmrl.lab.tiny.text.ears import EARS, MARKS, qwen3_omni_moe_thinker
from mmrl.policies.shared.lora import LoraSettings, lora_config
from mmrl.policies.text.families import QwenOmni
from mmrl.policies.text.families.voxtral import SOUND, TekkenProcessor
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.policies.text.vision.cache import ways_apart
from tests.support.refused import refused
from tests.support.sounds import tone, write_clip_with_sound, write_floats, write_wav
from tests.support.text_policies import (
    assert_noted,
    gradients,
    ids_of,
    logprobs,
    make,
    picture,
    plain_logprobs,
    plain_model,
    relative_difference,
    text_trace,
)

THINKER, MOE, GEMMA = "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "gemma4_that_hears"
HEARING = pytest.mark.parametrize("name", [THINKER, MOE, GEMMA, *EARS])


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> list[Audio]:
    """Two seconds and 1.3, of other pitch."""
    folder = tmp_path_factory.mktemp("sounds")
    return [
        write_wav(folder / "a.wav", [tone(2.0, 700, start=0.5)]),
        write_wav(folder / "b.wav", [tone(1.3, 300, 44_100)], 44_100),
    ]


def requests(sounds: list[Audio], sees: bool = True) -> list[Request]:
    """One sound, two within the text, none, a picture and a sound, and a picture alone."""
    a, b = sounds
    asked = [
        Prompt("one", "when?", (a,)),
        Prompt("two", "is <audio> like <audio>?", (b, a)),
        Prompt("none", "hi"),
        Prompt("both", "<image> and <audio>?", (picture(0), b)),
        Prompt("seen", "what?", (picture(1),)),
    ]
    asked = asked if sees else asked[:3]
    return [Request(prompt, 1 + i % 2, group_id=i, seed=7 + i) for i, prompt in enumerate(asked)]


def fed_by(processor: Any, prompt: Prompt) -> Any:
    if type(processor).__name__ == "VoxtralProcessor":
        return fed_by_voxtral(processor, prompt)
    pictures = [one for one in prompt.media if not isinstance(one, Audio)]
    waves = [read_wave(one, Ear()) for one in prompt.media if isinstance(one, Audio)]
    content = [{"type": "audio" if isinstance(one, Audio) else "image"} for one in prompt.media]
    pieces = prompt.text.replace("<image>", "<audio>").split("<audio>")
    if len(pieces) > 1:
        content = [x for pair in zip([{"type": "text", "text": p} for p in pieces], [*content, None], strict=True) for x in pair]
    else:
        content += [{"type": "text", "text": prompt.text}]
    chat = [{"role": "user", "content": [part for part in content if part and part.get("text") != ""]}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    shown = {"images": pictures} if pictures else {}
    return processor(text=[text], **shown, **({"audio": waves} if waves else {}), return_tensors="pt")


def fed_by_voxtral(processor: Any, prompt: Prompt) -> dict[str, torch.Tensor]:
    """What mistral-common makes of a chat, token by token, and the class's own features of its sounds."""
    waves = [read_wave(one, Ear()) for one in prompt.media if isinstance(one, Audio)]
    marks = [[25, *[24] * (30 * math.ceil(len(wave) / 48_000))] for wave in waves]
    pieces = [[35 + byte for byte in piece.encode()] for piece in prompt.text.split("<audio>")]
    if len(pieces) == 1 and marks:
        pieces = [*[[]] * len(marks), *pieces]
    inside = [token for pair in zip_longest(pieces, marks, fillvalue=[]) for part in pair for token in part]
    fed = {"input_ids": torch.tensor([[1, 3, *inside, 4]])}
    given = {"sampling_rate": 16_000, "padding": True, "truncation": False, "pad_to_multiple_of": 48_000, "return_tensors": "pt"}
    return {**fed, "input_features": processor._retrieve_input_features(waves, 300, **given)} if waves else fed


@HEARING
@pytest.mark.parametrize("trains", [True, False], ids=["ears that train", "kept features"])
def test_sampled_read_again_packed_repeated_and_transformers_alone_agree(tiny, sounds: list[Audio], trains: bool, name: str):
    lora = None if trains else LoraSettings(rank=2)
    packed, repeated = (make(tiny(name), lora=lora, prefix=prefix) for prefix in ("packed", "repeated"))
    rollouts = packed.rollout(requests(sounds, name not in EARS))
    assert text_trace(rollouts.trace).packed and (packed.net.features is None) == trains
    packed.audit(rollouts)
    alone = plain_logprobs(plain_model(tiny(name)), packed, rollouts, fed_by)
    assert_noted(rollouts, logprobs(packed, rollouts), logprobs(repeated, rollouts), alone)
    if trains:
        own = gradients(packed, rollouts)
        assert relative_difference(own, gradients(repeated, rollouts)) < 1e-4
        ears = ("audio_tower.conv1", "audio_tower.subsample", "audio_tower.conv2d1", "encoder.input_linear", "encoder.embed.conv")
        heard = [weight for key, weight in own.items() if any(first in key for first in ears)]
        assert heard and all(float(weight.abs().sum()) > 0 for weight in heard)


def test_what_is_heard_is_learnt_by_reinforcement(tiny, tmp_path: Path):
    """Even tokens are right for a low tone and odd ones for a high one, so deaf one half is right at most."""
    policy = make(tiny("qwen2_audio"), lora=LoraSettings(rank=4), sampling=Sampling(max_new_tokens=1))
    tones = [write_wav(tmp_path / f"{pitch}.wav", [tone(1.0, pitch)]) for pitch in (300, 2400)]
    optimizer, right = torch.optim.Adam(policy.parameters(), lr=1e-2), list[float]()
    for step in range(40):
        rollouts = policy.rollout([Request(Prompt(str(i), "?", (one,)), 64, i, seed=2 * step + i) for i, one in enumerate(tones)])
        scores = torch.tensor([float(ids_of(sample)[0] % 2 == int(group.prompt.id)) for group, sample in rollouts.samples()])
        right.append(float(scores.mean()))
        advantages = (scores.view(2, 64) - scores.view(2, 64).mean(1, keepdim=True)).view(-1, 1)
        loss = -(advantages * logprobs(policy, rollouts)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        policy.advance()
    assert sum(right[:3]) / 3 < 0.65 and sum(right[-5:]) / 5 > 0.65


def test_a_second_is_25_placeholders_and_its_padding_is_cut(tiny, sounds: list[Audio]):
    policy = make(tiny(THINKER))
    encoded = policy.encode(requests(sounds)[1].prompt)
    assert encoded.media["input_features"].shape == (2, 16, 200), "two sounds, 100 frames of the longer one's seconds"
    assert isinstance(policy.family, QwenOmni)
    assert policy.family.sound_tokens(encoded.media).tolist() == [32, 50]
    assert int((encoded.token_ids == policy.family.token_of("audio")).sum()) == 82
    assert torch.equal(encoded.positions, torch.arange(len(encoded)).expand(3, -1)), "sounds count on as text does"
    assert policy.family.ear(policy.processor) == Ear(16_000, 30.0)
    seconds = {MOE: [17, 26], GEMMA: [33, 50]}
    for name, tokens in seconds.items():
        other = make(tiny(name))
        encoded = other.encode(requests(sounds)[1].prompt)
        assert int((encoded.token_ids == other.family.token_of("audio")).sum()) == sum(tokens)
    assert make(tiny(GEMMA)).family.ear(make(tiny(GEMMA)).processor) == Ear(16_000, 30.0)
    marks = {policy.tokenizer.convert_tokens_to_ids(mark) for mark in MARKS.values()}
    assert marks <= policy.media_token_ids, "a completion never holds them"


@pytest.mark.parametrize("name", [THINKER, MOE])
def test_a_clip_beside_a_sound_stands_at_its_times(tiny, tmp_path: Path, sounds: list[Audio], name: str):
    """The clip's own sound is a sound like any other; the audit walks over all positions."""
    file = write_clip_with_sound(tmp_path / "a.mp4", tone(2.0))
    policy = make(tiny(name))
    rollouts = policy.rollout([Request(Prompt("clip", "<video> <audio>?", (Video(file.source, frames=4), file)), 2, 0)])
    policy.audit(rollouts)
    assert_noted(rollouts, logprobs(policy, rollouts))


def whole(thinker: str, folder: Path) -> Path:
    """A folder as Qwen2.5-Omni is published: the config and the weights of all of its parts."""
    from transformers import AutoConfig

    for file in Path(thinker).iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json":
            (folder / file.name).write_bytes(file.read_bytes())
    vocoder = "code2wav" if MOE in thinker else "token2wav"
    weights = {f"thinker.{name}": tensor for name, tensor in load_file(Path(thinker) / "model.safetensors").items()}
    others = {name: torch.zeros(2, 2) for name in ("talker.model.norm.weight", f"{vocoder}.x")}
    save_file({**weights, **others}, folder / "model.safetensors", metadata={"format": "pt"})
    part = AutoConfig.from_pretrained(thinker)
    config = {"model_type": part.model_type.removesuffix("_thinker"), "enable_audio_output": False}
    config["thinker_config"] = part.to_dict()
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return folder


def weights_of(policy: TextPolicy) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in policy.net.model.named_parameters()}


@pytest.mark.parametrize("name", [THINKER, MOE])
def test_the_published_folder_of_all_parts_gives_the_thinker(tiny, tmp_path: Path, sounds: list[Audio], name: str):
    (tmp_path / "whole").mkdir()
    part, policy = make(tiny(name)), make(str(whole(tiny(name), tmp_path / "whole")))
    assert isinstance(policy.family, QwenOmni)
    assert all(torch.equal(weight, weights_of(part)[name]) for name, weight in weights_of(policy).items())
    policy.save(tmp_path / "saved")
    again = make(str(tmp_path / "saved"))
    assert all(torch.equal(weight, weights_of(part)[name]) for name, weight in weights_of(again).items())
    policy.audit(policy.rollout(requests(sounds)[:1]))


def test_what_cannot_be_heard_is_said(tiny, tmp_path: Path, sounds: list[Audio]):
    long = write_wav(tmp_path / "long.wav", [tone(32.0, rate=8_000)], 8_000)
    too_long = r"the sound '.*long.wav' lasts 32.0 s, and the model hears 30 s"
    too_few = r"has 0 <image> markers and 0 <video> markers and 2 <audio> markers, .* and 1 sounds"
    gone = Prompt("p", "?", (Audio("gone.wav"),))
    refused(r"prompt 'p': there is no sound 'gone\.wav'", make(tiny(THINKER)).encode, gone, error=FileNotFoundError)
    for name, text, heard, said in (
        (THINKER, "?", long, rf"prompt 'p': {too_long}"),
        (GEMMA, "?", long, too_long),
        (THINKER, "<audio> <audio>", sounds[0], too_few),
        ("qwen2_5_vl", "?", sounds[0], "qwen2_5_vl takes no sounds here: use a model that `mmrl ls families` lists with sounds"),
        ("gemma4", "?", sounds[0], "gemma4 takes no sounds here"),
    ):
        refused(said, make(tiny(name)).encode, Prompt("p", text, (heard,)))
    with pytest.raises(ValueError, match=r"prompt 'p' holds sounds, which cannot be sent to a server: remove \[policy.engine\]"):
        media_parts(make(tiny(THINKER)), sounds[0], Prompt("p", "?", (sounds[0],)))
    for scale, said in ((float("nan"), "no finite numbers"), (1e30, r"of 5e\+29, and full scale is 1: save it in 16 bits")):
        odd = write_floats(tmp_path / "odd.wav", scale * tone(1.0))
        refused(rf"the sound '.*odd.wav' .*{said}", read_wave, odd, Ear())


def test_sounds_are_refused_where_weights_are_spread(tiny, sounds: list[Audio]):
    """A process without a sound would look at a picture in its place, and gather the weights of other modules."""
    policy = make(tiny(THINKER))
    policy.net.apart = ways_apart(policy.net.core, policy.family)
    assert policy.rollout(requests(sounds)[-1:]).action_mask.any()
    refused(r"a prompt has a sound.*start with configs/accelerate/ddp\.yaml", policy.rollout, requests(sounds)[:1])


@pytest.mark.parametrize("name", sorted(set(EARS) - {"voxtral"}))
def test_the_lines_on_a_model_card_give_the_processor_its_template(tiny, name: str):
    from transformers import AutoProcessor

    folder = tiny(name)
    lines = writing_code(make(folder), EvaluationTable(), "whole")
    own = [line for line in lines if line.startswith("processor.")]
    scope = {"processor": AutoProcessor.from_pretrained(folder)}
    exec("\n".join(own), scope)
    assert scope["processor"].chat_template


def test_the_template_of_phi_4s_makers_wants_one_text_per_message(tiny, tmp_path: Path, sounds: list[Audio]):
    """It adds `content` to text, which fails for parts; what a run saves takes parts, in transformers alone too."""
    from transformers import AutoProcessor

    shutil.copytree(tiny("phi4_multimodal"), tmp_path / "made")
    turn = "{{ '<|' + one['role'] + '|>' + one['content'] + '<|end|>' }}"
    theirs = (
        f"{{% for one in messages %}}{turn}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '<|assistant|>' }}}}{{% endif %}}"
    )
    (tmp_path / "made" / "chat_template.jinja").write_text(theirs)
    policy = make(str(tmp_path / "made"), system_prompt="brief")
    asked = requests(sounds)[1]
    written = "<|system|>brief<|end|><|user|>is <|endoftext11|> like <|endoftext11|>?<|end|><|assistant|>"
    assert policy.encode.write(policy.encode.chat(asked.prompt)) == written
    policy.audit(policy.rollout([asked]))
    policy.save(tmp_path / "saved")
    assert make(str(tmp_path / "saved")).processor.chat_template == policy.processor.chat_template
    alone: Any = AutoProcessor.from_pretrained(tmp_path / "saved").tokenizer
    chat = [{"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "?"}]}, {"role": "user", "content": "so?"}]
    expected = "<|user|><|endoftext11|>?<|end|><|user|>so?<|end|>"
    assert alone.apply_chat_template(chat, tokenize=False) == expected


Chat = list[dict[str, Any]]


def said(role: str, *parts: str | int) -> dict[str, Any]:
    """A message; a number among its parts is a sound of so many seconds."""
    content = [{"type": "audio", "seconds": one} if isinstance(one, int) else {"type": "text", "text": one} for one in parts]
    return {"role": role, "content": content}


def seconds(chat: Chat) -> list[int]:
    return [part["seconds"] for message in chat for part in message["content"] if part["type"] == "audio"]


WRITTEN: dict[str, Chat] = {
    "<s>[INST][BEGIN_AUDIO]{30}when?[/INST]": [said("user", 2, "when?")],
    "<s>[INST]is [BEGIN_AUDIO]{30} like [BEGIN_AUDIO]{60}?[/INST]": [said("user", "is ", 2, " like ", 4, "?")],
    "<s>[SYSTEM_PROMPT]be brief[/SYSTEM_PROMPT][INST] hi \n[/INST]": [said("system", "be brief"), said("user", " hi \n")],
    "<s>[INST][BEGIN_AUDIO]{30}[/INST]one</s>[INST]and?[/INST]": [
        said("user", 2),
        said("assistant", "one"),
        said("user", "and?"),
    ],
}
"""The text of what mistral-common 1.13.1 made of a chat by the tiny tekken.json, {n} for so many [AUDIO]."""


def waves(chat: Chat) -> list[np.ndarray[Any, Any]]:
    return [tone(float(length), 300 * length).astype(np.float32) for length in seconds(chat)]


@pytest.mark.parametrize("written", WRITTEN)
def test_chats_are_written_as_mistral_common_writes_them(tiny, written: str):
    processor = make(tiny("voxtral")).processor
    chat = WRITTEN[written]
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    tokens = processor([text], audio=waves(chat), add_special_tokens=False)["input_ids"][0]
    assert processor.tokenizer.decode(tokens) == re.sub(r"\{(\d+)\}", lambda one: SOUND * int(one[1]), written)
    whole = [part for part in re.split(r"(<s>|</s>|\[/?[A-Z_]+\]|\{\d+\})", written) if part]
    assert len(tokens) == sum(int(part[1:-1]) if part[0] == "{" else 1 if part[0] in "<[" else len(part) for part in whole)


def test_a_long_sound_is_heard_in_pieces(tiny, tmp_path: Path):
    """The last piece is filled with silence, and no piece is heard twice."""
    policy = make(tiny("voxtral"))
    long = write_wav(tmp_path / "long.wav", [tone(7.0, 500)])
    encoded = policy.encode(Prompt("p", "?", (long,)))
    assert encoded.media["input_features"].shape == (3, 16, 300) and int((encoded.token_ids == 24).sum()) == 90
    begun = policy.encode(Prompt("p", "?", (Audio(long.source, end=3.0),)))
    torch.testing.assert_close(begun.media["input_features"][0, :, :290], encoded.media["input_features"][0, :, :290])
    assert policy.family.ear(policy.processor).longest == 3.0 * (4096 // 30)


def test_a_trained_folder_has_the_published_files(tiny, tmp_path: Path):
    policy = make(tiny("voxtral"))
    policy.save(tmp_path / "saved")
    names = {"config.json", "generation_config.json", "model.safetensors", "preprocessor_config.json", "tekken.json"}
    assert {file.name for file in (tmp_path / "saved").iterdir()} == names
    again = make(str(tmp_path / "saved"))
    assert again.processor.tekken == policy.processor.tekken and again.eos_token_ids == (2,)
    assert {1, 11, 24, 25} <= again.banned, "beginning, padding and marks of sounds"
    lines = "\n".join(writing_code(again, EvaluationTable(), "whole"))
    assert '{"type": "audio", "path": "SOUND"}' in lines and 'pip install "transformers[audio,mistral-common]"' in lines
    assert "processor.chat_template =" not in lines


def test_what_cannot_be_written_is_said(tiny, tmp_path: Path):
    heard = write_wav(tmp_path / "a.wav", [tone(1.0, 500)])
    told, plain = make(tiny("voxtral"), system_prompt="be brief"), make(tiny("voxtral"))
    words = r"takes no system prompt beside sounds: leave policy\.system_prompt empty"
    refused(words, told.encode, Prompt("p", "?", (heard,)))
    refused(r"prompt 'p': its text holds 2 marks \[AUDIO\] for 1 sounds", plain.encode, Prompt("p", "[AUDIO]?", (heard,)))
    shutil.copytree(tiny("voxtral"), tmp_path / "bare")
    (tmp_path / "bare" / "tekken.json").unlink()
    words = r"policy\.model '.*bare' has no tekken\.json, .*: put theirs beside config\.json"
    refused(words, make, str(tmp_path / "bare"), error=FileNotFoundError)


@pytest.mark.evidence
def test_mistral_common_itself_agrees(tiny, tmp_path: Path):
    """Token ids and features, asked for as on model cards; needs `pip install "transformers[audio,mistral-common]"`."""
    pytest.importorskip("mistral_common")
    from transformers import AutoProcessor

    policy = make(tiny("voxtral"))
    theirs: Any = AutoProcessor.from_pretrained(tiny("voxtral"))
    assert type(policy.processor) is TekkenProcessor and type(theirs.tokenizer).__name__ == "MistralCommonBackend"
    for chat in WRITTEN.values():
        files = [write_wav(tmp_path / f"{length}.wav", [tone(float(length), 300 * length)]) for length in seconds(chat)]
        named = iter([{"path": file.source} for file in files])
        heard = [
            {**one, "content": [part | next(named) if part["type"] == "audio" else part for part in one["content"]]}
            for one in chat
        ]
        pieces = {"pad_to_multiple_of": 48_000, "max_source_positions": 300}
        asked = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
        found = theirs.apply_chat_template(heard, processor_kwargs=pieces, **asked)
        text = policy.processor.apply_chat_template(chat, tokenize=False)
        own: Any = policy.processor([text], audio=waves(chat), add_special_tokens=False)
        assert found["input_ids"][0].tolist() == own["input_ids"][0]
        assert ("input_features" in found) == ("input_features" in own)
        if "input_features" in found:
            torch.testing.assert_close(found["input_features"], own["input_features"], atol=1e-3, rtol=0)


def test_an_adapter_finds_experts_by_the_names_that_are_one_tensor_now():
    model, lora = qwen3_omni_moe_thinker()[0], LoraSettings(targets=("q_proj", "gate_proj", "up_proj"))
    adapted = get_peft_model(model, lora_config(lora, lora.targets, model))
    assert sum(".experts." in name for name, _ in adapted.named_parameters() if "lora_A" in name) == 2
