"""Text that a model writes before it draws, as in T2I-R1 (arXiv:2505.00703): a plan, then the codes of a picture, one sample.

A plan answers a chat that asks for it, without guidance; codes follow a chat that holds caption and plan, with guidance. They are
counted from the end of the tokenizer's numbers, so a row says itself where it begins to draw.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.core.protocols import Hypothesis
from mmrl.core.types import Rollouts
from mmrl.policies.codes.net import CodeNet
from mmrl.policies.text.check.diagnose import CachedReplay, TextRounding
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.prompt.encode import Encoded, Encoder
from mmrl.policies.text.read.evaluate import RowEvaluation, evaluation_of
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.trace import TextTrace, append
from mmrl.policies.text.write.generate import Completions, Generation, Generator, LocalGenerator, Stops
from mmrl.policies.text.write.rollout import number_of
from mmrl.runtime.tensors import pad_actions, stack_ragged

MARK = "\ue000"
"""Stands for the plan in the text of a chat: a letter of no script."""


@dataclass(frozen=True)
class NoDiagnostics:
    """Rows of two kinds of tokens are not read again under one change at a time, so no cause of a difference is found."""

    host: TextHost

    def hypotheses(self, rollouts: Rollouts) -> Sequence[Hypothesis]:
        return ()


def never_in_plans(tokenizer: Any, size: int) -> frozenset[int]:
    """Tokens that no plan may hold: special ones but its end, and ids that the tokenizer cannot write."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset((added | set(tokenizer.all_special_ids) | set(range(len(tokenizer), size))) - {tokenizer.eos_token_id})


@dataclass(frozen=True)
class Framing:
    """From prompts, as they were shown, and plans to what the codes follow."""

    write: Encoder
    """Writes a chat that asks for a picture, with MARK where the plan belongs."""
    first_code: int
    """The number of the first code; smaller ones are the tokenizer's."""
    most: int
    """Tokens of such a chat at most, beside the plan."""

    def frame(self, shown: Encoded) -> tuple[Encoded, list[int]]:
        """The chat in front of a plan and behind it; ValueError where it is too long, or holds the mark of the plan."""
        assert shown.prompt is not None
        text, tokenizer = self.write.write(self.write.chat(shown.prompt)), self.write.processor.tokenizer
        if text.count(MARK) != 1:
            raise ValueError(f"prompt {shown.prompt_id!r} holds the letter U+E000, which stands for a plan: remove it")
        before, after = text.split(MARK)
        fed = self.write.feed(before, {}, [], special=not before.startswith(tokenizer.bos_token))
        behind: list[int] = tokenizer(after, add_special_tokens=False)["input_ids"]
        if len(fed) + len(behind) > self.most:
            raise ValueError(
                f"prompt {shown.prompt_id!r}: what its picture follows has {len(fed) + len(behind)} tokens beside the plan, and "
                f"the model has positions for {self.most}: shorten policy.plan.draw, lower policy.plan.max_new_tokens, or drop "
                "the prompt"
            )
        return replace(fed, prompt_id=shown.prompt_id), behind

    def __call__(self, shown: Sequence[Encoded], index: Sequence[int], plans: Sequence[Sequence[int]]) -> tuple[Encoded, ...]:
        """A chat with its plan for each row, which its codes follow: row i's plan belongs to shown[index[i]]."""
        frames, end = {place: self.frame(shown[place]) for place in {*index}}, self.write.processor.tokenizer.eos_token_id
        said = ([token for token in plan if token != end] for plan in plans)
        return tuple(append(frames[i][0], [*plan, *frames[i][1]]) for i, plan in zip(index, said, strict=True))


class PlanGeneration(Generation):
    """Completions that are plans."""

    def __call__(self, net: TextNet) -> Completions:
        assert isinstance(net, CodeNet)
        return super().__call__(net.writer)


def plan_writer(host: TextHost) -> LocalGenerator:
    """Writes plans with the network that trains."""
    stops = Stops((host.tokenizer.eos_token_id,), host.decode)
    return LocalGenerator(host, kind=lambda **given: replace(PlanGeneration(**given), stops=stops))


@dataclass(frozen=True)
class PlannedGenerator(Generator):
    """Writes plans of at most `length` tokens, and codes behind each."""

    framing: Framing
    plans: Generator
    codes: Generator
    length: int

    def write(
        self, prompts: Sequence[Encoded], prompt_index: Sequence[int], seeds: Sequence[tuple[int, int]], sampling: Sampling
    ) -> Completions:
        planned = self.plans.write(prompts, prompt_index, seeds, replace(sampling, max_new_tokens=self.length))
        rows = range(len(prompt_index))
        plans = [planned.tokens[i, : planned.lengths[i]] for i in rows]
        frames = self.framing(prompts, prompt_index, [plan.tolist() for plan in plans])
        own = [(number_of(f"{seed}/drawing"), sample) for seed, sample in seeds]
        drawn = self.codes.write(frames, rows, own, replace(sampling, max_new_tokens=sampling.max_new_tokens - self.length))
        if not rows:
            return drawn
        first = self.framing.first_code
        return replace(
            drawn,
            tokens=stack_ragged([torch.cat([plans[i], drawn.tokens[i] + first]) for i in rows]),
            logprobs=stack_ragged([torch.cat([planned.logprobs[i, : len(plans[i])], drawn.logprobs[i]]) for i in rows]),
            lengths=planned.lengths + drawn.lengths,
            stopped=planned.stopped,
        )


@dataclass(frozen=True, kw_only=True)
class PlannedEvaluation(RowEvaluation):
    """Rows of a plan and codes, read in two forwards: plans behind what asked for them, codes behind caption and plan."""

    plans: RowEvaluation
    codes: RowEvaluation

    def __call__(self, net: TextNet) -> dict[str, Float[Tensor, "n t"]]:
        assert isinstance(net, CodeNet)
        plans, codes = self.plans(net.writer), self.codes(net)
        return {name: self.join(plans[name], codes[name]) for name in self.quantities}

    def join(self, plans: Float[Tensor, "n p"], codes: Float[Tensor, "n c"]) -> Float[Tensor, "n t"]:
        """The values of whole rows; 0 where the mask is False."""
        is_plan = within(self.tokens, self.plans.lengths)
        is_code = within(self.tokens, self.lengths) & ~is_plan
        whole = plans.new_zeros(self.tokens.shape).masked_scatter(is_plan, plans[within(plans, self.plans.lengths)])
        return whole.masked_scatter(is_code, codes[within(codes, self.codes.lengths)]) * self.mask

    @property
    def positions_fed(self) -> int:
        return self.plans.positions_fed + self.codes.positions_fed


def within(x: Tensor, lengths: Int[Tensor, " n"]) -> Bool[Tensor, "n t"]:
    """Which entries of rows (n, t) lie before their end."""
    return torch.arange(x.shape[1], device=x.device) < lengths[:, None]


def evaluation_with_plans(
    net: CodeNet,
    framing: Framing,
    trace: TextTrace,
    shown: Sequence[Encoded],
    mask: Bool[Tensor, "n t"],
    quantities: tuple[str, ...],
    logits: int,
) -> PlannedEvaluation:
    """The work of `evaluation_of` for rows with plans."""
    is_plan = within(trace.tokens, trace.lengths) & (trace.tokens < framing.first_code)
    first = is_plan.sum(1)
    is_plan = is_plan[:, : max(1, int(first.max()))]
    plans, rest = trace.tokens[:, : is_plan.shape[1]].where(is_plan, 0), trace.lengths - first
    rows = [row[:count].tolist() for row, count in zip(plans, first.tolist(), strict=True)]
    frames = framing(shown, trace.prompt_index.tolist(), rows)
    places = torch.arange(max(1, int(rest.max())))
    at = (first[:, None] + places).clamp(max=trace.tokens.shape[1] - 1)
    codes = (trace.tokens.gather(1, at) - framing.first_code).clamp(min=0)
    asked = replace(trace, tokens=plans, lengths=first)
    drawn = replace(trace, prompts=frames, prompt_index=torch.arange(len(trace)), tokens=codes, lengths=rest)
    of_plans = evaluation_of(net.writer, asked, shown, mask[:, : is_plan.shape[1]] & is_plan, quantities, logits)
    of_codes = evaluation_of(net, drawn, frames, mask.gather(1, at) & (places < rest[:, None]), quantities, logits)
    tokens, lengths, mask = (x.to(net.device) for x in (trace.tokens, trace.lengths, mask))
    whole = replace(of_plans, tokens=tokens, lengths=lengths, mask=mask)
    return PlannedEvaluation(**vars(whole), plans=of_plans, codes=of_codes)


@dataclass(frozen=True, kw_only=True)
class RowRounding(TextRounding):
    """The rounding of rows with plans."""

    work: Callable[..., RowEvaluation]
    """Of a compact trace, its prompts as shown, a mask and quantities."""

    def readings(self, rollouts: Rollouts) -> Iterator[Float[Tensor, "n t"]]:
        """Token after token from the cache; side by side."""
        assert isinstance(rollouts.trace, TextTrace)
        trace, mask = rollouts.trace.compact(), rollouts.action_mask
        work = self.work(trace, trace.prompts, mask, ("logprobs",))
        assert isinstance(work, PlannedEvaluation)
        for one in (replace(work, plans=CachedReplay(**vars(work.plans)), codes=CachedReplay(**vars(work.codes))), work):
            with torch.no_grad():
                yield pad_actions(self.policy.run(one)["logprobs"].cpu(), mask.shape[1])
