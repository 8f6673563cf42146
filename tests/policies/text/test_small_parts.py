"""Parts of the text policy that need no model: ends of completions, refusals, padding, budgets."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from mmrl.core.readings import LOGPROBS
from mmrl.policies.shared.weights import check_reading
from mmrl.policies.text.families import Family
from mmrl.policies.text.families.generic import Generic
from mmrl.policies.text.families.qwen_vl import QwenVL
from mmrl.policies.text.families.text_only import TextOnly
from mmrl.policies.text.loading import check_head, refusing_code
from mmrl.policies.text.prompt.encode import Encoded, collate_prompts, stand_in_prompt
from mmrl.policies.text.write.generate import Stops
from mmrl.policies.video.sampling import VideoSettings


def spell(rows: list[list[int]]) -> list[str]:
    """One token, one letter."""
    return ["".join(chr(token) for token in row) for row in rows]


def codes(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_a_text_ends_a_completion_wherever_its_letters_were_cut_into_tokens():
    stops = Stops((0,), spell, ("</answer>", "STOP"))
    tokens = [codes("xyz</answer>"), codes("xyz</answerS"), codes("12345678STOP"), codes("STOPSTOPxxxx")]
    assert stops.first_ends(tokens[:3], [[True]] * 3) == [0, None, 0], "the last token completes it, or none does"
    assert stops.first_ends(tokens, [[False]] * 4) == [None] * 4, "only where asked"
    assert stops.first_ends(tokens, [[True] * 12] * 4) == [11, None, 11, 3], "the first of several"
    assert stops.first_ends(tokens, [[False] * 4 + [True] * 8] * 4) == [11, None, 11, 4], "its text is still in the window"


def test_what_nobody_can_read_is_refused_and_the_rest_is_not():
    known = frozenset({"logprobs"}), frozenset({"policy", "old"}), frozenset({"plain"})
    check_reading(LOGPROBS, "text", *known)
    for change in ({"quantity": "sigma"}, {"model": "ref"}, {"view": "masked"}):
        (what, name), *_ = change.items()
        with pytest.raises(ValueError, match=f"{what} '{name}' cannot be read"):
            check_reading(LOGPROBS._replace(**change), "text", *known)


def test_only_errors_about_foreign_code_are_told_in_other_words():
    with pytest.raises(ValueError, match="read them, and set"), refusing_code("m"):
        raise ValueError("pass trust_remote_code=True")
    with pytest.raises(ValueError, match=r"^no such shape$"), refusing_code("m"):
        raise ValueError("no such shape")


def test_a_stand_in_shows_one_picture():
    assert [picture.size for picture in stand_in_prompt(Family(None)).media] == [(64, 64)]
    assert stand_in_prompt(TextOnly(None)).media == ()


def test_shorter_prompts_are_padded_on_the_left():
    long = Encoded("a", torch.tensor([5, 6, 7]), torch.tensor([[0, 1, 2]]))
    short = Encoded("b", torch.tensor([8]), torch.tensor([[0]]), type_ids=torch.tensor([1]))
    batch = collate_prompts([long, short], 9, torch.device("cpu"))
    assert batch.token_ids.tolist() == [[5, 6, 7], [9, 9, 8]]
    assert batch.attention.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert batch.positions.tolist() == [[[0, 1, 2], [0, 0, 0]]]
    assert batch.type_ids is not None and batch.type_ids.tolist() == [[0, 0, 0], [0, 0, 1]]
    assert batch.next_positions.tolist() == [[[3], [1]]]


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
        with pytest.raises(ValueError, match="llama changes its logits after the head"):
            check_head(model, Generic(model.config))
