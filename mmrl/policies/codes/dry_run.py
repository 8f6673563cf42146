"""A policy that draws by tokens, going through the motions of a run without its weights."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from PIL import Image

from mmrl.core.protocols import View
from mmrl.policies.codes.janus import family_of
from mmrl.policies.codes.plans import PlannedGenerator, plan_writer
from mmrl.policies.codes.policy import CodePolicy, as_drawing, text_settings
from mmrl.policies.codes.settings import CodePolicyConfig
from mmrl.policies.text.dry_run import LOGITS, TextDryRun, load_meta
from mmrl.policies.text.loading import Loaded
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.settings import TextPolicyConfig


class Sketching(CodePolicy):
    """One whose pictures are grey."""

    def pictures(self, codes: Sequence[Sequence[int]]) -> list[Any]:
        return [Image.new("RGB", (self.family.side, self.family.side), (99, 99, 99))] * len(codes)


class CodeDryRun(TextDryRun):
    """A CodePolicy that writes unlikely codes and reads zeros; raises what `load_meta` and CodePolicy raise."""

    def __init__(self, config: CodePolicyConfig, shadows: Iterable[str] = (), views: Mapping[str, View] | None = None) -> None:
        self.drawing = config
        super().__init__(text_settings(config), shadows, views)

    def load(self, config: TextPolicyConfig, frozen: bool = False) -> Loaded:
        plans = self.drawing.plan is not None
        return as_drawing(load_meta(config, partial(family_of, plans=plans), frozen), plans)

    def build(
        self, config: TextPolicyConfig, shadows: Iterable[str], views: Mapping[str, View] | None, parts: TextParts
    ) -> CodePolicy:
        policy = Sketching(self.drawing, shadows, views=views, parts=parts)
        if isinstance(made := policy.generator, PlannedGenerator):
            # a picture takes more memory than the plan before it
            policy.generator = replace(made, plans=replace(self.writer, inner=plan_writer(policy), compared=False))
        return policy

    def largest_work(self) -> Iterator[tuple[str, Callable[[], object]]]:
        yield from super().largest_work()
        policy = self.policy
        assert isinstance(policy, CodePolicy)
        rows, codes = self.drawing.decode_rows, policy.family.num_codes
        yield "decode", lambda: policy.pixels(torch.zeros(rows, codes, dtype=torch.long))

    def parts_of_activations(self) -> dict[str, int]:
        """With the logits of both passes."""
        found = super().parts_of_activations()
        both = self.drawing.guidance != 1 and LOGITS in found
        return {**found, LOGITS: 2 * found[LOGITS]} if both else found
