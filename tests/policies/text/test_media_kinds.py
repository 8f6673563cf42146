"""A kind of media is a few entries: with tones added, prompts with some go the whole way from a data set to a samples file."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from mmrl.app.modality.prompt_view import pictures
from mmrl.app.run import sample_files
from mmrl.core import samples
from mmrl.core.types import Group, Prompt, Request, Sample, Scores
from mmrl.data.questions import Questions
from mmrl.data.readers import Row
from mmrl.data.validate import check
from mmrl.engine import wire_prompts
from mmrl.policies.text import families
from mmrl.policies.text.check.audit import audit, audit_rollouts
from mmrl.policies.text.families.text_only import TextOnly, TextProcessor
from mmrl.policies.text.loading import Loaded, load
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.prompt import encode
from mmrl.policies.text.prompt.encode import collate_prompts
from mmrl.serving.wire import pack_group, unpack_group
from mmrl.training.callbacks import Examples
from mmrl.training.rewards.cache import parts_of
from tests.support.refused import refused
from tests.support.text_policies import assert_noted, gradients, logprobs, picture, relative_difference, text_trace

MOST_FILES = 6
MARK = "<|tone|>"


# core/samples.py
@dataclass(frozen=True)
class Tone:
    """A file with a few numbers, one a line."""

    file: str


# policies/text/families/tones.py
@dataclass(frozen=True)
class Hearing(TextOnly):
    """A language model with ears: a placeholder per number."""

    media_keys: frozenset[str] = frozenset({"tones"})
    own_keys: tuple[tuple[str, frozenset[str]], ...] = (("tone", frozenset({"tones"})),)
    sees: tuple[str, ...] = ("tone",)
    vision: tuple[str, ...] = ("ears",)

    def entries(self, media: families.Media, kind: str = "image") -> int:
        return len(media["tones"]) if kind == "tone" and media else 0

    def placeholders(self, media: families.Media) -> dict[str, int | None]:
        return {"tone": self.entries(media, "tone")}


def open_tone(tone: Any, prompt: Prompt, encode: object) -> list[float]:
    return [float(line) for line in Path(tone.file).read_text().split()]


def draw_tone(tone: Tone) -> list[Image.Image]:
    return [Image.new("RGB", (16 * len(open_tone(tone, Prompt(""), None)), 8))]


KIND = samples.MediaKind("tone", "tone", "tone", Tone, frozenset({".tone"}), "file")
ENTRIES: dict[str, tuple[dict[str, Any], str, object]] = {
    "mmrl/core/samples.py": (samples.KINDS, "tone", KIND),
    "mmrl/policies/text/prompt/encode.py": (
        encode.READERS,
        "tone",
        encode.Reader(open_tone, lambda tones, family: {"tones": list(tones)} if tones else {}),
    ),
    "mmrl/engine/wire_prompts.py": (wire_prompts.PARTS, "tone", lambda numbers: {"type": "tone_url", "url": f"data:,{numbers}"}),
    "mmrl/app/run/sample_files.py": (sample_files.DRAWN, "tone", draw_tone),
}
"""File -> (its table of kinds, name, what tones add to it)."""
FAMILY = "mmrl/policies/text/families"
"""The folder of the fifth file, with `Hearing`; `Tone` lies in core/samples.py."""


@pytest.fixture(autouse=True)
def tones(monkeypatch: pytest.MonkeyPatch) -> None:
    for table, name, entry in ENTRIES.values():
        monkeypatch.setitem(table, name, entry)


class HearingProcessor(TextProcessor):
    """What a hub's processor would do: marks become placeholders, one per number."""

    def apply_chat_template(self, chat: Sequence[Mapping[str, Any]], **options: object) -> object:
        spelt = [{**one, "content": [{"text": MARK} if p["type"] == "tone" else p for p in one["content"]]} for one in chat]
        return super().apply_chat_template(spelt, **options)

    def __call__(self, text: Sequence[str], images: None = None, tones: Sequence[list[float]] = (), **options: Any) -> object:
        pieces = text[0].split(MARK)
        spelt = pieces[0] + "".join(MARK * len(one) + rest for one, rest in zip(tones, pieces[1:], strict=True))
        more = {"tones": torch.tensor([number for one in tones for number in one])} if tones else {}
        return {**self.tokenizer([spelt], **options), **more}


def hear(core: Any, ears: nn.Linear, token: int) -> None:
    """Give a language model ears, as transformers' models have eyes."""
    core.ears, forward = ears, core.forward

    def get_tone_features(tones: Tensor, return_dict: bool) -> BaseModelOutputWithPooling:
        return BaseModelOutputWithPooling(pooler_output=ears(tones[:, None]))  # type: ignore[arg-type] - one entry per number

    def with_tones(input_ids: Tensor, mm_encoder_outputs: Mapping[str, Any] | None = None, **others: Any) -> object:
        embeddings = core.get_input_embeddings()(input_ids)
        if mm_encoder_outputs:
            heard = mm_encoder_outputs["tone"].pooler_output
            embeddings = embeddings.masked_scatter((input_ids == token)[..., None], heard)
        return forward(inputs_embeds=embeddings, **others)

    core.get_tone_features, core.forward = get_tone_features, with_tones


def load_hearing(config: TextPolicyConfig, trains: bool) -> Loaded:
    loaded = load(config)
    model, tokenizer = loaded.model, loaded.processor.tokenizer
    tokenizer.add_tokens([MARK], special_tokens=True)
    model.config.tone_token_id = token = tokenizer.convert_tokens_to_ids(MARK)
    torch.manual_seed(0)
    if token >= model.get_output_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))
    hear(model.model, nn.Linear(1, model.config.hidden_size).requires_grad_(trains), token)
    return replace(loaded, processor=HearingProcessor(tokenizer), family=Hearing(model.config))


def hearing(folder: str, trains: bool = True, **settings: Any) -> TextPolicy:
    config = TextPolicyConfig(folder, sampling=Sampling(max_new_tokens=6), **settings)
    return TextPolicy(config, parts=TextParts(load=partial(load_hearing, trains=trains)))


def write_tone(folder: Path, *numbers: float) -> Tone:
    file = folder / f"{len(numbers)}.tone"
    file.write_text("\n".join(map(str, numbers)))
    return Tone(str(file))


def prompts(folder: Path) -> list[Prompt]:
    high, low = write_tone(folder, 0.9, 0.1, 0.5), write_tone(folder, -0.7, -2.0)
    return [
        Prompt("one", "how high?", (high,)),
        Prompt("two", "is <tone> above <tone>?", (high, low)),
        Prompt("none", "hi"),
        Prompt("path", "and this?", (low.file,)),
    ]


def test_a_kind_is_added_in_few_files():
    assert len([*ENTRIES, FAMILY]) <= MOST_FILES
    root = Path(__file__).parents[3]
    for file, (table, _, _) in ENTRIES.items():
        module = sys.modules[file.removesuffix(".py").replace("/", ".")]
        assert (root / file).is_file() and any(table is value for value in vars(module).values())


@pytest.mark.parametrize("trains", [False, True], ids=["kept features", "ears that train"])
def test_tones_are_sampled_read_and_audited_like_pictures(tiny, tmp_path: Path, trains: bool):
    packed, repeated = (hearing(tiny("qwen3"), trains, prefix=prefix) for prefix in ("packed", "repeated"))
    assert (packed.net.features is None) == trains
    requests = [Request(prompt, 2, group_id=i, seed=i) for i, prompt in enumerate(prompts(tmp_path))]
    encoded = [packed.encode(request.prompt) for request in requests]
    token = packed.family.token_of("tone")
    assert [int((one.token_ids == token).sum()) for one in encoded] == [3, 5, 0, 2]
    batch = collate_prompts(encoded, packed.net.pad_token_id, packed.net.device)
    assert [len(one.get("tones", ())) for one in batch.media] == [3, 5, 0, 2]
    assert token in packed.banned

    rollouts = packed.rollout(requests)
    audit_rollouts(packed, rollouts)
    assert text_trace(rollouts.trace).packed
    slopes = []
    for policy in (packed, repeated):
        assert_noted(rollouts, logprobs(policy, rollouts))
        slopes.append(gradients(policy, rollouts))
    assert relative_difference(*slopes) < 1e-4
    assert ("model.ears.weight" in slopes[0]) == trains


def test_what_is_wrong_with_tones_is_said(tiny, tmp_path: Path):
    policy, (one, *_) = hearing(tiny("qwen3")), prompts(tmp_path)
    with pytest.raises(ValueError, match="0 <video> markers and 2 <tone> markers, 0 pictures and 0 clips and 1"):
        policy.encode(replace(one, text="<tone><tone>"))
    refused("qwen3 takes no pictures here: leave them out of the data", policy.encode, replace(one, media=(picture(0),)))
    encoded = policy.encode(one)
    broken = replace(encoded, media={"tones": encoded.media["tones"][:2]})
    trace = text_trace(policy.rollout([Request(one, 1, group_id=0, seed=0)]).trace)
    refused("its text holds 3 tone placeholders, its tones give 2 vision features", audit, replace(trace, prompts=(broken,)))


def test_rows_of_a_data_set_hold_tones(tmp_path: Path):
    high = write_tone(tmp_path, 0.9, 0.1)
    row = Row({"question": "<tone> up or down?", "answer": "up", "tone": Path(high.file).name, "mood": "glad"}, "a.jsonl", 3)
    [prompt] = Questions(tmp_path).prompts(row)
    assert prompt.media == (high,) and "tone" not in prompt.columns and prompt.columns["mood"] == "glad"
    refused("2 <tone> markers for 1 tones", Questions(tmp_path, template="<tone> <tone> {question}").prompts, row)
    refused("both clips and tones", Questions(tmp_path).prompts, replace(row, values={**row.values, "video": "a.mp4"}))
    report = check([prompt, replace(prompt, id="2", media=(Tone("gone.tone"),))])
    assert [problem.text for problem in report.problems] == ["gone.tone does not exist"]


def test_tones_travel_to_rewards_and_engines_and_lie_beside_samples(tiny, tmp_path: Path):
    policy, (_, prompt, *_) = hearing(tiny("qwen3")), prompts(tmp_path)
    parts = [part for one in prompt.media for part in wire_prompts.media_parts(policy, one, prompt)]
    assert parts == [{"type": "tone_url", "url": f"data:,{numbers}"} for numbers in ([0.9, 0.1, 0.5], [-0.7, -2.0])]

    group = Group(0, prompt, (Sample("yes"),))
    (tmp_path / "served").mkdir()
    served = unpack_group(pack_group(group), tmp_path / "served").prompt.media
    assert [open_tone(one, prompt, None) for one in served] == [[0.9, 0.1, 0.5], [-0.7, -2.0]]
    assert all(isinstance(one, Tone) and Path(one.file).parent == tmp_path / "served" for one in served)
    name, _, [digest] = parts_of(prompt.media[0])
    assert name == "Tone" and prompt.media[0].file not in str(digest)

    scores = Scores(("r",), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.long), torch.ones(1))
    [line] = sample_files.sample_lines(tmp_path / "media", 1, Examples([group], scores), "train", None)
    assert [(one["kind"], one["width"], one["height"]) for one in line["media"]] == [("tone", 48, 8), ("tone", 32, 8)]
    assert pictures(policy, prompt, []) == []
