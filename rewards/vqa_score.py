"""P("Yes") that a vision-language model gives to: does this figure show "prompt"?

    r = P(yes), all spellings added up; with among_both = true P(yes) / (P(yes) + P(no))

A local model needs one forward pass, which gives it at the last position; a server gives the log-probabilities of the first
token. If neither word is among those, the reward fails and does not score 0. The original's CLIP-FlanT5 is not in transformers,
so it cannot be loaded.

Modality: image
Range: [0, 1]
Source: arXiv:2404.01291, linzhiqiu/t2v_metrics, its form for decoders
Licence: own code Apache-2.0; the model's weights see their card
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrl import Group, Need, Scored
from mmrl.runtime.ranges import Count
from mmrl.serving.judges.judge import AsksServer, Question, Reply, ask_for_scores
from mmrl.serving.judges.verdicts import fill_template, yes_share
from mmrl.serving.media import pictures_of
from mmrl.serving.scorers.models import HeldModel, OnDevice, chunks, companion, hold, load_pretrained
from mmrl.serving.scorers.sizes import ModelSize, hub_size

SPELLINGS = {"yes": ("yes", "Yes", "YES", " yes", " Yes", " YES"), "no": ("no", "No", "NO", " no", " No", " NO")}


@dataclass(frozen=True)
class VqaScore(AsksServer, OnDevice):
    """How sure a model is that the picture shows its prompt."""

    model: str = ""
    """Hub id or folder; empty: the server is asked."""
    question: str = 'Does this figure show "{prompt}"? Please answer Yes or No.'
    """The question about every picture; {prompt} is its prompt."""
    among_both: bool = False
    """True: P(yes) / (P(yes) + P(no))."""
    batch_size: Count = 8
    """Pictures in one forward of the model."""
    needs = Need(setup="model (hub id or folder of a vision-language model), or server.url with log-probabilities")

    def models(self) -> Sequence[ModelSize]:
        return [hub_size(self.model, self.device, "AutoModelForImageTextToText")] if self.model else []

    def ready(self) -> None:
        """Raises RewardUnavailableError without the server that it is to ask."""
        if not self.model:
            super().ready()

    def __call__(self, group: Group) -> list[float | Scored | None]:
        text, pictures = fill_template(self.question, prompt=group.prompt.text), pictures_of(group)
        if not self.model:
            questions = [Question(text, [picture], probabilities=True) for picture in pictures]
            return list(ask_for_scores(self.server, questions, self._read))
        return [score for some in chunks(pictures, self.batch_size) for score in self._local(some, text)]

    def _read(self, reply: Reply) -> Scored:
        return Scored(yes_share(reply, among_both=self.among_both))

    def _local(self, pictures: Sequence[Any], text: str) -> list[Scored]:
        processor = companion("AutoProcessor", self.model, "model", padding_side="left")
        held = self._hold_model()
        turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
        asked = processor.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        inputs = processor(
            text=[asked] * len(pictures), images=[[picture] for picture in pictures], padding=True, return_tensors="pt"
        )
        with held.ready() as model:
            shares = model(**held.moved(inputs), logits_to_keep=1).logits[:, -1].float().softmax(-1).cpu()
        yes, no = (shares[:, _first_tokens(processor.tokenizer, word)].sum(-1) for word in ("yes", "no"))
        values = yes / (yes + no) if self.among_both else yes
        return [
            Scored(value, {"p_yes": a, "p_no": b}) for value, a, b in zip(values.tolist(), yes.tolist(), no.tolist(), strict=True)
        ]

    def held(self) -> HeldModel | None:
        return self._hold_model() if self.model else None

    def _hold_model(self) -> HeldModel:
        from transformers import AutoModelForImageTextToText

        load = AutoModelForImageTextToText.from_pretrained
        return hold(("image_text_to_text", self.model), lambda: load_pretrained(load, self.model, "model"), self.device)


def _first_tokens(tokenizer: Any, word: str) -> list[int]:
    """The tokens that spell the word on their own."""
    found = [tokenizer.encode(spelling, add_special_tokens=False) for spelling in SPELLINGS[word]]
    alone = sorted({tokens[0] for tokens in found if len(tokens) == 1})
    if not alone:
        raise ValueError(f"the model's tokenizer has no single token for {word!r}: choose another model")
    return alone
