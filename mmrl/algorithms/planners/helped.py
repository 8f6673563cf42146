"""Planners that continue from finished samples or add an expert's: refinements, early exits, given traces."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mmrl.algorithms.planners.base import Once, Twice, right_ones
from mmrl.algorithms.planners.hints import check_column, check_template, hints_of
from mmrl.algorithms.planners.video import answer_text
from mmrl.algorithms.views import Hint
from mmrl.core.types import Group, Prefix, Prompt, Request, Revision, Shown
from mmrl.runtime.ranges import Number, check_ranges


@dataclass(frozen=True)
class Refinements(Twice):
    """Every sample is refined once after a critique; the best refinement replaces the first sample (Critique-GRPO).

    arXiv:2506.03106. Refinements are sampled after the prompt, the sample and the critique, and trained after the plain prompt;
    the one that is kept has the role `injected`. Of equally good ones the first is kept.
    """

    critique: Literal["right_or_wrong", "answer"] = "answer"
    """What a critique says: only whether the sample is right, or the right answer too."""
    refine_text: str = "A first answer was:\n{sample}\n\n{critique}\n\nAnswer again, and better."
    """Goes under the prompt."""
    right_text: str = "This answer is correct."
    """The critique of a right sample."""
    wrong_text: str = "This answer is incorrect."
    """The critique of a wrong sample."""
    answer_text: str = "The right answer is {answer}."
    """Follows the critique where it names the answer."""
    success_at: Number = 0.5

    def __post_init__(self) -> None:
        check_ranges(self)
        check_template(self, "refine_text", self.refine_text, "{sample}", "{critique}")
        check_template(self, "answer_text", self.answer_text, "{answer}")

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for an answer that cannot be written into a critique."""
        for prompt in prompts:
            self.refining_prompt(prompt, "", False)

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Refine all samples, then keep one refinement per group."""
        if round_index == 0:
            return Revision([request for group in groups for request in self._refine(group, rewards[group.id])])
        dropped: set[tuple[int, int]] = set()
        for group in groups:
            own = self.requests[group.id].count
            best = max(range(own, len(group.samples)), key=lambda i, r=rewards[group.id]: r[i] if r[i] == r[i] else -float("inf"))
            has_reward = rewards[group.id][best] == rewards[group.id][best]
            kept = {*range(1, own), best} if has_reward else set(range(own))
            dropped |= {(group.id, i) for i in range(len(group.samples)) if i not in kept}
        return Revision(drop_samples=frozenset(dropped))

    def _refine(self, group: Group, rewards: Sequence[float]) -> list[Request]:
        prompt = self.requests[group.id].prompt
        rows = zip(group.samples, right_ones(rewards, self.success_at), strict=True)
        shown = [self.refining_prompt(prompt, sample.text or "", is_right) for sample, is_right in rows]
        return [self.again(group.id, 1, k, role="injected", shown=Shown(one)) for k, one in enumerate(shown, 1)]

    def refining_prompt(self, prompt: Prompt, sample: str, is_right: bool) -> Prompt:
        """The prompt with a sample and its critique under it."""
        critique = self.right_text if is_right else self.wrong_text
        if self.critique == "answer":
            critique = f"{critique} {self.answer_text.replace('{answer}', answer_text(prompt))}"
        before, after = self.refine_text.split("{sample}", 1)
        text = f"{before.replace('{critique}', critique)}{sample}{after.replace('{critique}', critique)}"
        return Hint(text)(prompt, 0)


@dataclass(frozen=True)
class SerialExits(Twice):
    """One whole answer per prompt, and group_size - 1 that branch off at random places in its thought (S-GRPO, arXiv:2505.07686).

    The thought is cut, a text that ends it is forced, and the answer is sampled after it. The forced text never trains. Take the
    shaping ExitDecay with it.
    """

    mark: str = "</think>"
    """The text that ends a thought; cuts lie before it. An answer without it may be cut anywhere."""
    forced: str = "\nTime is limited: answer now.\n</think>\n"
    """The text that is forced after a cut."""
    train_thought: bool = True
    """True: the beginning of a thought also trains in every answer that branches off it, which makes thoughts after the first
    right exit rarer. False: a thought trains once, in the whole answer, which never earns most."""

    def asked(self, request: Request) -> Sequence[Request]:
        """Raises ValueError for a group of one."""
        if request.count < 2:
            raise ValueError("SerialExits compares a whole answer with exits from it: set algorithm.group_size to 2 or more")
        return (replace(request, count=1),)

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Cut every answer, and continue from all cuts."""
        if round_index:
            return Revision()
        return Revision([request for group in groups for request in self._exits(group)])

    def _exits(self, group: Group) -> list[Request]:
        first, tokens = self.requests[group.id], group.samples[0].token_ids
        if tokens is None:
            raise ValueError("SerialExits cuts completions of text, and this policy's samples have no tokens: take a text policy")
        draw = random.Random(f"{first.seed}/exits").random
        shares = sorted(draw() for _ in range(first.count - 1))
        prefixes = [Prefix(tokens, share, self.mark, self.forced, self.train_thought) for share in shares]
        return [self.again(group.id, 1, k, written=prefix) for k, prefix in enumerate(prefixes, 1)]


@dataclass(frozen=True)
class WithExpert(Once):
    """Samples every prompt once, and adds an expert's answer to the group where the data has one (AHPO, arXiv:2510.08540).

    Take the advantage ExpertWhereFew with it, which lets the expert's answer train only where
    few samples are right, and the term WithImitation. It comes in addition to the group_size samples.
    """

    column: str = "solution"
    """The column with the expert's answer, as the model should write it."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError where no prompt has an expert's answer."""
        check_column(self, prompts, self.column, "an expert's answer")

    def asked(self, request: Request) -> Sequence[Request]:
        given = hints_of(request.prompt, self.column)[:1]
        return [request, *(replace(request, count=1, role="injected", written=text) for text in given)]
