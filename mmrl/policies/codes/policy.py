"""A model that draws by tokens as a policy: samples the codes of pictures with guidance, and evaluates them again exactly."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmrl.core.protocols import View
from mmrl.core.types import Group, Prompt, Request, Rollouts, Sample
from mmrl.policies.codes.janus import DrawingProcessor, Janus, family_of
from mmrl.policies.codes.net import CodeNet
from mmrl.policies.codes.plans import (
    MARK,
    Framing,
    NoDiagnostics,
    PlannedGenerator,
    RowRounding,
    evaluation_with_plans,
    never_in_plans,
    plan_writer,
)
from mmrl.policies.codes.settings import PLAN, PROMPT, CodePolicyConfig, PlanSettings
from mmrl.policies.shared.pictures import open_picture
from mmrl.policies.shared.weights import USUAL_DECAY, Decay
from mmrl.policies.text.check.diagnose import TextRounding
from mmrl.policies.text.loading import Loaded, load, load_config
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.prompt.templates import QUESTION
from mmrl.policies.text.read.evaluate import QUANTITIES, RowEvaluation
from mmrl.policies.text.settings import Sampling, TextPolicyConfig
from mmrl.policies.text.trace import TextTrace
from mmrl.policies.text.write.rollout import check_sampling
from mmrl.runtime.pictures import picture_at

__all__ = ["CodePolicy", "CodePolicyConfig"]


def text_settings(config: CodePolicyConfig) -> TextPolicyConfig:
    """The settings of the text policy that writes the model's codes; raises what `load_config` and `family_of` raise."""
    family = family_of(load_config(TextPolicyConfig(config.model)))
    return config.as_text(family.num_codes, family.room(config.plan_tokens))


def as_drawing(loaded: Loaded, plans: bool = False) -> Loaded:
    """A model that writes, made one that draws, after a plan or at once."""
    tokenizer, processor = loaded.processor.tokenizer, DrawingProcessor(loaded.processor, draws=not plans)
    begin = tokenizer.convert_tokens_to_ids(loaded.processor.image_start_token)
    if tokenizer.pad_token_id is None or tokenizer.bos_token_id is None:
        raise ValueError("the model's tokenizer names no pad_token or bos_token, which guidance needs: take the model's own")
    family = replace(loaded.family, kept=(tokenizer.bos_token_id, begin))
    return replace(loaded, processor=processor, family=family, eos_token_ids=(), codes=True)


class CodePolicy(TextPolicy):
    """A model of transformers that draws by tokens. An action is a code of the picture; guidance is part of the policy.

    Rollouts hold pictures in place of texts, all with the model's number of codes, or pictures and the plans before them.
    Arguments are those of TextPolicy.

    Raises what TextPolicy raises, and ValueError for a model that does not draw by tokens.
    """

    family: Janus
    processor: DrawingProcessor

    def __init__(
        self,
        config: CodePolicyConfig,
        shadows: Iterable[str] = (),
        ema_decay: Decay = USUAL_DECAY,
        views: Mapping[str, View] | None = None,
        parts: TextParts | None = None,
    ) -> None:
        self.drawing, self.first_code = config, 0
        plans = config.plan is not None
        parts = parts or TextParts(load=lambda own: as_drawing(load(own, partial(family_of, plans=plans)), plans))
        parts = replace(parts, net=partial(CodeNet, guidance=config.guidance))
        if plans:
            parts = replace(parts, diagnostics=NoDiagnostics)
        super().__init__(text_settings(config), shadows, ema_decay, views, parts)
        self.offers = QUANTITIES
        if config.plan is not None:
            self.write_plans(config.plan)

    def write_plans(self, plan: PlanSettings) -> None:
        """Write a plan before every picture from here on."""
        net, self.first_code = self.net, self.net.model.get_output_embeddings().weight.shape[0]
        self.banned = never_in_plans(self.tokenizer, self.first_code)
        net.writer = TextNet(net.model, self.family, self.banned, net.pad_token_id, net.half_precision)
        asked = replace(self.config, answer_format=plan.draw.replace(PROMPT, QUESTION).replace(PLAN, MARK))
        write = replace(self.encode, processor=replace(self.processor, draws=True), config=asked, tried=set())
        self.framing = Framing(write, self.first_code, self.family.room(plan.max_new_tokens))
        self.generator = PlannedGenerator(self.framing, plan_writer(self), self.generator, plan.max_new_tokens)

    @torch.no_grad()
    def rollout(self, requests: Sequence[Request], sampling: Sampling | None = None) -> Rollouts:
        """Pictures of all requests; `sampling` replaces the training one.

        Raises ValueError for a request that cannot be served: one that goes on from earlier codes, or wants a note.
        """
        for request in requests:
            self.refuse(request)
        usual = self.config.sampling
        rollouts = super().rollout(requests, replace(check_sampling(sampling, usual), max_new_tokens=usual.max_new_tokens))
        samples = [sample for group in rollouts.groups for sample in samples_of(group)]
        rows = [[token - self.first_code for token in sample.token_ids or () if token >= self.first_code] for sample in samples]
        drawn, plans = iter(self.pictures(rows)), self.drawing.plan is not None
        return replace(rollouts, groups=tuple(with_pictures(group, drawn, plans) for group in rollouts.groups))

    def refuse(self, request: Request) -> None:
        """Raise ValueError for a request that no picture answers."""
        name = f"a request for prompt {request.prompt.id!r}"
        if request.role == "note":
            raise ValueError(f"{name} asks for a note, and the policy draws: take a planner without notes")
        if request.given is not None and (request.given.turns or not request.given.whole):
            raise ValueError(
                f"{name} goes on from an earlier sample, or gives turns, and pictures are drawn whole: take a planner without "
                "prefixes and turns"
            )

    def pictures(self, codes: Sequence[Sequence[int]]) -> list[Any]:
        """PIL images of rows of codes, decoded by the model and rounded by its processor."""
        rows = torch.tensor([list(row) for row in codes], device=self.net.device).view(len(codes), self.family.num_codes)
        return [
            picture
            for some in rows.split(self.drawing.decode_rows)
            for picture in self.processor.pictures(list(self.pixels(some).float().cpu()))
        ]

    @torch.no_grad()
    def pixels(self, codes: Tensor) -> Tensor:
        """(n, y, x, 3) of codes (n, t)."""
        return self.net.model.decode_image_tokens(codes)

    @torch.no_grad()
    def tokens_given(self, text: str, prompt: Prompt) -> list[int]:
        """The codes of the picture in this column of the data, whose middle is taken where it is not square."""
        if text not in prompt.columns:
            raise ValueError(
                f"a request for prompt {prompt.id!r} gives {text[:40]!r}, which is none of its columns: models that "
                "draw are taught pictures, so take the planner TaughtPictures or TaughtPairs"
            )
        picture = open_picture(prompt.columns[text], prompt.id)
        square = picture_at(picture, (self.family.side, self.family.side), "crop")
        decoder = self.net.core.vqmodel
        weight = next(decoder.parameters())
        pixels = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(self.family.side, self.family.side, 3)
        shown = (pixels.to(weight) / 127.5 - 1).permute(2, 0, 1)[None]
        return (decoder.encode(shown).image_tokens.flatten() + self.first_code).tolist()

    def decode(self, tokens: list[list[int]]) -> list[str]:
        """The plans: codes spell nothing."""
        return super().decode([[token for token in row if token < self.first_code] for row in tokens])

    def evaluation(self, trace: TextTrace, shown: Sequence[Encoded], mask: Tensor, quantities: tuple[str, ...]) -> RowEvaluation:
        if self.drawing.plan is None:
            return super().evaluation(trace, shown, mask, quantities)
        net, cut = self.net, mask[:, : trace.tokens.shape[1]]
        assert isinstance(net, CodeNet)
        return evaluation_with_plans(net, self.framing, trace, shown, cut, quantities, self.config.logit_chunk)

    @property
    def vocabulary(self) -> str:
        return super().vocabulary + (" and codes" if self.drawing.plan is not None else "")

    @property
    def rounding(self) -> TextRounding:
        return TextRounding(self) if self.drawing.plan is None else RowRounding(self, work=self.evaluation)

    def prepare(self, accelerator: Any) -> None:
        super().prepare(accelerator)
        if self.ranks.is_sharded:
            raise ValueError(
                "policy.kind is 'token_image', whose weights are not cut into parts: start with configs/accelerate/ddp.yaml"
            )


def samples_of(group: Group) -> Iterator[Sample]:
    """All that were drawn, probes behind the others."""
    yield from group.samples
    for drawn in group.probes.values():
        yield from drawn


def with_pictures(group: Group, pictures: Iterator[Image.Image], plans: bool) -> Group:
    """A group whose samples, in the order of `samples_of`, show pictures; their texts, if any, are plans."""

    def with_images(samples: Sequence[Sample]) -> tuple[Sample, ...]:
        return tuple(
            replace(one, text=one.text if plans else None, image=next(pictures), truncated=plans and one.truncated)
            for one in samples
        )

    return replace(
        group, samples=with_images(group.samples), probes={view: with_images(own) for view, own in group.probes.items()}
    )
