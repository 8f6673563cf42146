"""Voxtral's chats and sounds are those of mistral-common, without it."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.app.modality.base import EvaluationTable
from mmrl.app.modality.templates import writing_code
from mmrl.core.samples import Audio
from mmrl.core.types import Prompt
from mmrl.policies.text.families.voxtral import SOUND, TekkenProcessor
from tests.support.sounds import tone, write_wav
from tests.support.text_policies import make

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
    with pytest.raises(ValueError, match=r"takes no system prompt beside sounds: leave policy\.system_prompt empty"):
        make(tiny("voxtral"), system_prompt="be brief").encode(Prompt("p", "?", (heard,)))
    with pytest.raises(ValueError, match=r"prompt 'p': its text holds 2 marks \[AUDIO\] for 1 sounds"):
        make(tiny("voxtral")).encode(Prompt("p", "[AUDIO]?", (heard,)))
    shutil.copytree(tiny("voxtral"), tmp_path / "bare")
    (tmp_path / "bare" / "tekken.json").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"policy\.model '.*bare' has no tekken\.json, .*: put theirs beside config\.json"
    ):
        make(str(tmp_path / "bare"))


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
