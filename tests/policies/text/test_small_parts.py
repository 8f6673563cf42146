"""Parts of the text policy that need no run: types of models, their families, ends, refusals, budgets, bytes of a reading."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from mmrl.app.inspect.ls import listing
from mmrl.app.inspect.things import type_lines
from mmrl.core.types import Prompt
from mmrl.lab.tiny.text.ears import EARS
from mmrl.lab.tiny.text.vlms import BY_RULE
from mmrl.policies.shared.dry_run import LiveBytes, fake_weights
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.dry_run import join_windows
from mmrl.policies.text.families import Family, family_of, types
from mmrl.policies.text.families.base import parameters_of
from mmrl.policies.text.families.generic import COUNTS, Generic
from mmrl.policies.text.families.qwen_vl import QwenVL
from mmrl.policies.text.families.text_only import TextOnly
from mmrl.policies.text.families.types import all_types, type_of
from mmrl.policies.text.loading import check_head, load_config, refusing_code
from mmrl.policies.text.net import NEVER, TextNet
from mmrl.policies.text.packed.attention import install
from mmrl.policies.text.prompt.encode import Encoded, stand_in_prompt
from mmrl.policies.text.read.evaluate import RowEvaluation, TokenValues, evaluation_of, token_values
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.policies.text.trace import TextTrace
from mmrl.policies.text.write.generate import Stops
from mmrl.policies.video.sampling import VideoSettings
from tests.support.refused import refused
from tests.support.text_policies import make, picture


def test_a_family_without_its_head_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(Generic, "head", lambda self, logits: logits)
    for family in ("gemma4", "muse_glimmer"):
        refused(rf"{family} changes its logits after the head", make, tiny(family))


def test_a_text_that_spells_a_placeholder_is_found_by_one_look(tiny):
    policy = make(tiny("ovis2"), lora=LoraSettings(rank=2))
    shown = Prompt("p", "?", (picture(0),))
    encoded = policy.encode(shown)
    features = int((encoded.token_ids == policy.family.image_token_id).sum())
    assert int(encoded.media[COUNTS["image"]].sum()) == features == policy.family.num_features(encoded.media)
    assert policy.net.features is not None and policy.net.features.missing([encoded.media]) == 0, "the look is kept"
    match = rf"prompt .p.: its text holds {features + 1} image placeholders, its pictures give {features} vision features"
    refused(match, policy.encode.encode, Prompt("p", "? <IMG_ATOM>", (picture(0),)))


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
    refused("write mmrl ls families --all", next, listing("rewards", everything=True))


@pytest.mark.evidence
def test_every_type_is_yes_or_no():
    found = {one.name: one for one in all_types()}
    assert len(found) > 90 and sum(one.refusal is None for one in found.values()) > 60
    assert all(one.refusal is None for name, one in found.items() if name in BY_RULE)


def test_a_text_ends_a_completion_wherever_its_letters_were_cut_into_tokens():
    """One token, one letter."""
    stops = Stops((0,), lambda rows: ["".join(map(chr, row)) for row in rows], ("</answer>", "STOP"))
    tokens = [[ord(letter) for letter in text] for text in ("xyz</answer>", "xyz</answerS", "12345678STOP", "STOPSTOPxxxx")]
    assert stops.first_ends(tokens[:3], [[True]] * 3) == [0, None, 0], "the last token completes it, or none does"
    assert stops.first_ends(tokens, [[False]] * 4) == [None] * 4, "only where asked"
    assert stops.first_ends(tokens, [[True] * 12] * 4) == [11, None, 11, 3], "the first of several"
    assert stops.first_ends(tokens, [[False] * 4 + [True] * 8] * 4) == [11, None, 11, 4], "its text is still in the window"


def test_only_errors_about_foreign_code_are_told_in_other_words():
    with pytest.raises(ValueError, match="read them, and set"), refusing_code("m"):
        raise ValueError("pass trust_remote_code=True")
    with pytest.raises(ValueError, match=r"^no such shape$"), refusing_code("m"):
        raise ValueError("no such shape")


def test_a_stand_in_shows_one_picture():
    assert [picture.size for picture in stand_in_prompt(Family(None)).media] == [(64, 64)]
    assert stand_in_prompt(TextOnly(None)).media == ()


@pytest.mark.parametrize(
    ("kind", "total"),
    # 0.9 of 128,000 tokens of 28 x 28 pixels and two frames each; Qwen3-VL says itself how much all frames may have
    [("qwen2_5_vl", 0.9 * 128_000 * 28**2 * 2), ("qwen3_vl", 5_000_000.0)],
)
def test_all_frames_of_a_clip_share_a_budget(kind: str, total: float):
    video = SimpleNamespace(patch_size=14, merge_size=2, size={"shortest_edge": 100, "longest_edge": 5_000_000})
    family: Any = QwenVL(SimpleNamespace(model_type=kind))
    budget = family.video_budget(SimpleNamespace(video_processor=video), VideoSettings())
    assert budget.side == 28 and budget.max_total == pytest.approx(total)


class Scaled(nn.Module):
    """A model of two layers whose logits are `factor` times what its head says."""

    def __init__(self, factor: float, **words: Any) -> None:
        super().__init__()
        self.config, self.factor = LlamaConfig(**words), factor
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8)

    def model(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.embed(input_ids))

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.factor * self.head(self.embed(input_ids)))


def test_logits_must_be_those_of_the_head():
    for model in (Scaled(1.0), Scaled(1.5, output_multiplier=1.5), Scaled(0.25, logits_scaling=4.0)):
        check_head(model, Generic(model.config))
    for model in (Scaled(1.5), Scaled(1.0, output_multiplier=1.5), Scaled(1.0, final_logit_softcapping=1.0)):
        refused("llama changes its logits after the head", check_head, model, Generic(model.config))


VOCABULARY, HIDDEN, MLP, LOGITS = 151_936, 256, 1024, 2**23
PER_FRAME = 128
"""Vision features of a frame, of four patches each."""


@pytest.fixture(scope="module")
def net() -> TextNet:
    """A Qwen2.5-VL without weights: narrow, with the vocabulary of the real ones, vision frozen, checkpointed."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    heads = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12]},
    }
    text = {"hidden_size": HIDDEN, "intermediate_size": MLP, "num_hidden_layers": 2, "vocab_size": VOCABULARY, **heads}
    vision = {"hidden_size": 64, "intermediate_size": 64, "depth": 2, "num_heads": 2, "out_hidden_size": HIDDEN}
    config = Qwen2_5_VLConfig(text_config=text, vision_config={**vision, "fullatt_block_indexes": [1]})
    with torch.device("meta"):
        model: Any = Qwen2_5_VLForConditionalGeneration(config)
    join_windows(model)
    install(model)
    model.model.visual.requires_grad_(False)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    fake_weights(model)
    return TextNet(model.eval(), family_of(config), [0], 0)


def after_a_clip(net: TextNet, frames: int, group_size: int, length: int) -> RowEvaluation:
    """Completions behind a clip; two frames make one moment of it."""
    count = frames // 2 * 2 * PER_FRAME
    ids = torch.cat([torch.full((count,), net.family.config.video_token_id), torch.arange(64)])
    types = torch.cat([torch.full((count,), 2), torch.zeros(64, dtype=torch.long)])
    grid = torch.tensor([[frames // 2, 32, 32]])
    media = {"pixel_values_videos": torch.zeros(int(grid.prod()), 1176), "video_grid_thw": grid}
    prompt = Encoded("clip", ids, torch.arange(len(ids)).expand(3, -1), types, media)
    return behind(net, prompt, torch.zeros(group_size, length, dtype=torch.long), LOGITS, packed=True)


def behind(net: TextNet, prompt: Encoded, tokens: Tensor, logits: int, packed: bool = False) -> RowEvaluation:
    """Completions (n, t) behind one prompt, all of whose tokens are evaluated."""
    index, lengths = torch.zeros(len(tokens), dtype=torch.long), torch.full((len(tokens),), tokens.shape[1])
    trace = TextTrace((prompt,), index, tokens, lengths, torch.ones(len(tokens)), 0 * lengths, net.family, packed=packed)
    return evaluation_of(net, trace, [prompt], torch.ones(tokens.shape, dtype=torch.bool), ("logprobs", "entropy"), logits)


def peak(net: TextNet, work: RowEvaluation, grad: bool = False) -> int:
    """Most bytes that live at a time."""
    net.train(grad)
    with torch.set_grad_enabled(grad), LiveBytes() as live:
        values = net(work)
        if grad:
            torch.stack([value.sum() for value in values.values()]).sum().backward()
    for weight in net.parameters():
        weight.grad = None
    net.eval()
    return live.peak


def test_256_frames_take_bytes_in_proportion_to_their_tokens(net: TextNet):
    """32,832 tokens: neither their square nor logits of all of them, nor a copy of their keys for every completion."""
    short, long = after_a_clip(net, 32, 4, 32), after_a_clip(net, 256, 4, 32)
    assert long.positions_fed == 32 * 1024 + 64 + 4 * 31
    # Eight times the tokens; less is what does not grow with them: gradients of weights and logits.
    for grad in (False, True):
        few, many = peak(net, short, grad), peak(net, long, grad)
        assert many < 8 * few
        per_token = (many - few) / (long.positions_fed - short.positions_fed)
        # The widest things of a token in one layer are the MLP's; in the backward pass each has a gradient.
        assert per_token < (6 if grad else 3) * 4 * (MLP + 4 * HIDDEN)
    assert peak(net, after_a_clip(net, 256, 8, 32)) < 1.02 * peak(net, long)


@pytest.mark.parametrize("length", [3, 200])
def test_logits_are_bounded_in_one_chunk_and_in_many(length: int):
    """At most four tensors of a chunk's logits live at a time, with gradients, also where all fit into one chunk."""
    model = nn.Module()
    model.model, head = nn.Module(), nn.Linear(8, 1000, bias=False)
    model.get_output_embeddings = lambda: head  # type: ignore[assignment]
    model._no_split_modules = None  # type: ignore[assignment]
    net = TextNet(model, family_of(LlamaConfig(vocab_size=1000)), [0], 0)
    hidden, tokens = torch.randn(4 * length, 8, requires_grad=True), torch.ones(4 * length, dtype=torch.long)
    chunk = 16
    prompt = Encoded("p", torch.zeros(1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long))
    work = behind(net, prompt, tokens[None], 1000 * chunk)
    with LiveBytes() as live:
        work.evaluate(net, hidden, tokens, torch.ones(len(tokens))).sum().backward()
    at_once = min(chunk, len(tokens))
    weights = 2 * head.weight.numel() * 4
    assert 2 * at_once * 1000 * 4 < live.peak < 4 * at_once * 1000 * 4 + weights + 64 * len(tokens) * 4


def test_values_of_tokens_and_their_gradients_are_those_of_autograd():
    logits = torch.randn(5, 7, dtype=torch.float64)
    logits[:, 3] = NEVER
    logits.requires_grad_()
    tokens = torch.tensor([0, 1, 2, 4, 6])

    def plain() -> Tensor:
        logprobs = logits.log_softmax(-1)
        return torch.stack([logprobs.gather(-1, tokens[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)])

    upstream = torch.randn(2, 5, dtype=torch.float64) * torch.tensor([1e-6, 1.0, 1e3, 1e6, 1e15])
    for quantities, rows in ((("logprobs", "entropy"), [0, 1]), (("entropy",), [1]), (("logprobs",), [0])):
        found, expected = token_values(logits, tokens, quantities), plain()[rows]
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
        mine = torch.autograd.grad((upstream[rows] * found).sum(), logits)[0]
        theirs = torch.autograd.grad((upstream[rows] * expected).sum(), logits)[0]
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    assert TokenValues.apply(logits, tokens, False)[1].eq(0).all()  # type: ignore[no-untyped-call]
