"""Planners of video methods: probes with shuffled frames, an injected ground truth, inputs made easier or harder."""

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from mmrl.algorithms.planners.base import Once, Remembering, one_request_each, seed_of
from mmrl.algorithms.views import Degrade, Hint, ShuffleFrames, is_sequence
from mmrl.core.protocols import State, View
from mmrl.core.types import Group, Prompt, Request, Revision
from mmrl.runtime.ranges import Count, CountOrNone, Number, PositiveShare, Share, check_ranges


@dataclass(frozen=True)
class Probed(Once):
    """Every prompt once, and share * group_size probes of those with frames, drawn with the frames shuffled (T-GRPO).

    arXiv:2503.21776. Probes are scored and never trained on. Prompts without a clip and with fewer than two pictures have none.
    """

    share: PositiveShare = 0.5
    """Probes in shares of group_size; at least one per prompt."""
    view: ShuffleFrames = field(default_factory=ShuffleFrames)
    """How frames are shuffled."""

    @property
    def views(self) -> Mapping[str, View]:
        return {"shuffled": self.view}

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        plain = one_request_each(prompts, group_size, first_id, seed)
        count = max(1, round(self.share * group_size))
        probes = [
            replace(request, count=count, view="shuffled", role="probe", seed=seed_of(seed + 1, request.group_id))
            for request in plain
            if is_sequence(request.prompt)
        ]
        return [*plain, *probes]


@dataclass(frozen=True)
class WithTruth(Once):
    """group_size - 1 samples of every prompt and one made from its answer (TempSamp-R1, arXiv:2509.18056).

    The given row was never sampled, so its old log-probabilities are evaluated before the first update: its update is imitation
    weighted by its advantage. A share of the prompts asks for the answer alone.
    """

    template: str = "<answer>{answer}</answer>"
    """The given completion; {answer} is the prompt's answer, a span as `1.50 to 4.00`."""
    direct: Share = 0.0
    """Share of the prompts that end with `direct_text`; all others end with `think_text`."""
    direct_text: str = "Answer at once, without thinking."
    """The sentence under prompts that ask for the answer alone; empty = none."""
    think_text: str = ""
    """The sentence under all others; empty = none."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if "{answer}" not in self.template:
            raise ValueError(f"WithTruth.template is {self.template!r}: write {{answer}} where the prompt's answer goes")

    def asked(self, request: Request) -> Sequence[Request]:
        """Raises ValueError for a group of one, or a prompt whose answer cannot be written."""
        if request.count < 2:
            raise ValueError("WithTruth gives one of the group's samples: set algorithm.group_size to 2 or more")
        text = self.template.replace("{answer}", answer_text(request.prompt))
        own = replace(request, count=request.count - 1, prompt=self._with_sentence(request))
        return own, replace(own, count=1, role="injected", written=text)

    def _with_sentence(self, request: Request) -> Prompt:
        """The prompt with the sentence of its kind under it."""
        is_direct = random.Random(f"{request.seed}/direct").random() < self.direct
        sentence = self.direct_text if is_direct else self.think_text
        return Hint(sentence)(request.prompt, request.seed) if sentence else request.prompt


def answer_text(prompt: Prompt) -> str:
    """An answer as a model would write it: a text or number as it is, the ends of a span in seconds with two decimals.

    Raises ValueError for an answer that is none of these.
    """
    answer: Any = prompt.answer
    if isinstance(answer, str | int):
        return str(answer)
    if isinstance(answer, float):
        return f"{answer:.12g}"
    if isinstance(answer, list | tuple) and answer:
        parts = cast(Sequence[Any], answer)
        is_span = len(parts) == 2 and all(isinstance(one, int | float) for one in parts)
        written_out = [f"{one:.2f}" if is_span else answer_text(replace(prompt, answer=one)) for one in parts]
        return (" to " if is_span else ", ").join(written_out)
    if not isinstance(answer, list | tuple | dict) and getattr(answer, "unit", None) == "seconds":
        return f"{answer.start:.2f} to {answer.end:.2f}"
    raise ValueError(
        f"prompt {prompt.id!r} has the answer {answer}, which the planner cannot write down: give a text, a number, a span in "
        "seconds or a list of these"
    )


@dataclass
class DifficultyMemory:
    """Memory of DifficultyAware: the latest rewards, and how hard this step's prompts are."""

    rewards: deque[float]
    guided: dict[int, float] = field(default_factory=dict[int, float])
    """Groups that are sampled with the answer shown -> how much worse than usual they were."""


@dataclass(frozen=True)
class DifficultyAware(Remembering):
    """D = mean of the last `window` rewards - mean of the group's: D > 0 gets a hint, D < 0 a worse picture (DeepVideo-R1).

    arXiv:2506.07464. A hard prompt is sampled with its answer shown, and the best such completion, cut to D * hint_per_reward
    of its letters, becomes a hint; an easy one gets noise of |D| * noise_per_reward on its pictures and frames. The group is
    sampled anew under the changed prompt and trained on it. The paper gives neither factor. Nothing changes before `window`
    rewards are known.
    """

    window: Count = 100
    """Rewards of single samples."""
    hint_per_reward: Number = 0.5
    """Share of the guided completion's letters that becomes the hint, per unit of D; the whole of it at most."""
    noise_per_reward: Number = 0.5
    """Strength of the noise, in shares of a pixel's range, per unit of |D|; 1 at most."""
    least: Share = 0.1
    """|D| below which a prompt stays as it is."""
    guides: CountOrNone = 2
    """Completions sampled with the answer shown, of which the best gives the hint."""
    guide_text: str = "The right answer is {answer}. Show how one finds it."
    """Goes under a hard prompt; {answer} is the prompt's answer."""
    hint_text: str = "Begin like this: {hint}"
    """Goes under a hard prompt sampled anew; {hint} is the beginning of the best guided completion."""
    memory: DifficultyMemory = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_ranges(self)
        object.__setattr__(self, "memory", DifficultyMemory(deque(maxlen=self.window)))

    max_rounds = 3

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Round 0 sees plain groups, round 1 guided ones (and those that are settled), round 2 changes nothing."""
        if round_index == 0:
            return self._look(rewards)
        return self._hint(groups, rewards) if round_index == 1 else Revision()

    def _look(self, totals: Mapping[int, list[float]]) -> Revision:
        """Find hard and easy groups by comparison with the rewards of earlier steps, then remember this step's."""
        known, requests = self.memory, list[Request]()
        known.guided.clear()
        latest = list(known.rewards)
        for group_id in sorted(totals):
            rewards = finite(totals[group_id])
            known.rewards.extend(rewards)
            if len(latest) < self.window or not rewards:
                continue
            delta, first = mean(latest) - mean(rewards), self.requests[group_id]
            if delta > self.least:
                guide = Hint(self.guide_text.replace("{answer}", answer_text(first.prompt)))
                requests.append(self._again(group_id, guide, self.guides, "guide"))
                known.guided[group_id] = delta
            elif delta < -self.least and first.prompt.media:
                worse = Degrade(min(1.0, -delta * self.noise_per_reward))
                requests.append(self._again(group_id, worse, first.count, "worse"))
        return Revision(requests, drop_groups=frozenset(request.group_id for request in requests))

    def _hint(self, groups: Sequence[Group], totals: Mapping[int, list[float]]) -> Revision:
        """The beginning of the best guided completion goes under the plain prompt."""
        known, requests = self.memory, list[Request]()
        for group in groups:
            if group.id not in known.guided:
                continue
            rewards = [reward if reward == reward else float("-inf") for reward in totals[group.id]]
            best = group.samples[rewards.index(max(rewards))].text or ""
            shown = best[: int(min(1.0, known.guided[group.id] * self.hint_per_reward) * len(best))]
            hint = Hint(self.hint_text.replace("{hint}", shown))
            requests.append(self._again(group.id, hint, self.requests[group.id].count, "hint"))
        return Revision(requests, drop_groups=frozenset(request.group_id for request in requests))

    def _again(self, group_id: int, view: View, count: int, purpose: str) -> Request:
        """The group sampled anew under another prompt, with other random numbers."""
        again = self.again(group_id, count, len(purpose))
        return replace(again, prompt=view(again.prompt, again.seed))

    def state_dict(self) -> State:
        return {"rewards": list(self.memory.rewards), "window": self.window}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the state has another window."""
        if state["window"] != self.window:
            raise ValueError(
                f"the checkpoint remembers {state['window']} rewards, this run {self.window}: "
                "resume with the same algorithm.planner.window"
            )
        self.memory.rewards.clear()
        self.memory.rewards.extend(state["rewards"])


def finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if value == value]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
