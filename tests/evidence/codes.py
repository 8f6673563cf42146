"""Drawing by tokens with guidance inside the policy, or with a plan, against drawing without it: two tasks of a real Janus class.

One model has random weights, and prompts name the colour to draw. The other can say which kind things are of, and draw kinds that
are named: it was taught to answer "grass?" with "gggggg", in three of four answers, to draw behind "gggggg" codes of that kind,
every second one, and never to draw grass. Training shows it one thing of each kind, rewarded by the codes of the picture alone.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Group, Prompt, Request, Sample, StoredRow
from mmrl.lab.tiny.text import janus
from mmrl.policies.codes.policy import CodePolicy, CodePolicyConfig
from mmrl.policies.codes.settings import PlanSettings
from mmrl.runtime.cache import keep
from tests.evidence.task import BACKWARD, Ended, MakeSampler, Row, Task, fresh_of, mean_of, trainer_of, weights_of

COLOURS = ("red", "green", "blue")
TIMES = 16
"""Words of a prompt: its letters are tokens, which an untaught model hardly tells apart where they are few."""
FRESH = 16
"""Pictures per prompt that a policy is measured with."""
LOOKS = 3
"""Times that it is measured in a run, beside the start."""


@dataclass(frozen=True)
class Drawing:
    """An algorithm, and the guidance of the policy that it trains."""

    algorithm: Algorithm
    guidance: float


@dataclass(frozen=True)
class Cast:
    """How far a picture's mean colour leans to the asked one, in deviations of the colours that single codes have.

    The decoder is untaught: what a code looks like was never said to anyone.
    """

    middle: tuple[float, ...]
    spread: float

    def __call__(self, group: Group) -> list[float]:
        wanted = np.array([1.0 if colour == group.prompt.answer else -1.0 for colour in COLOURS])
        return [float(((tone(sample.image) - self.middle) * wanted).mean() / self.spread) for sample in group.samples]


def tone(picture: object) -> np.ndarray:
    """The mean colour, in [0, 1]."""
    return np.asarray(picture, np.float64).mean((0, 1)) / 255


def cast_of(policy: CodePolicy) -> Cast:
    """The reward, measured on pictures of one code each."""
    codes = [[code] * policy.family.num_codes for code in range(policy.family.vocabulary)]
    tones = np.stack([tone(picture) for picture in policy.pictures(codes)])
    return Cast(tuple(tones.mean(0).tolist()), float(tones.std(0, ddof=1).mean()))


@dataclass(frozen=True)
class CodeTask(Task[Drawing]):
    """Pictures of 16 codes out of 24, for three prompts."""

    steps: int = 180
    lr: float = 3e-4

    def run(self, algorithm: Drawing, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Train, and measure the reward on the way."""
        folder = keep(None, f"evidence-janus-{seed}", "config.json", lambda place: janus.build("janus", place, seed))
        policy = CodePolicy(CodePolicyConfig(str(folder), guidance=algorithm.guidance), algorithm.algorithm.shadows)
        reward, prompts = cast_of(policy), [Prompt(colour, " ".join([colour] * TIMES), answer=colour) for colour in COLOURS]
        own, sampler = algorithm.algorithm.with_length(policy.family.num_codes), (make_sampler or Shuffled)(prompts, seed)
        settings = {"lr": self.lr, "steps": self.steps, "prompts_per_step": len(prompts)}
        trainer = trainer_of(policy, own, sampler, [("cast", reward)], seed, **settings)
        curve = [self.figure(policy, reward, prompts, seed)]
        for _ in range(LOOKS):
            for _ in range(self.steps // LOOKS):
                trainer.step()
            curve.append(self.figure(policy, reward, prompts, seed))
        return Ended(curve[-1], weights_of(policy), tuple(curve))

    def figure(self, policy: CodePolicy, reward: Cast, prompts: Sequence[Prompt], seed: int) -> float:
        """The mean reward of fresh pictures."""
        return mean_of(reward)(policy.rollout(fresh_of(prompts, FRESH, seed)).groups)


THINGS = {"red": ("blood", "rose", "brick"), "green": ("grass", "frog", "leaf"), "blue": ("sky", "sea", "jeans")}
"""The first of each is trained; the others are held out."""
PLAN = PlanSettings(7, "{prompt}?", "{prompt}{plan}")
GUIDANCE, VOCABULARY = 3.0, 263
LESSONS, BATCH = 200, 24


@dataclass(frozen=True)
class Words:
    """An algorithm, and whether the policy that it trains writes before it draws."""

    algorithm: Algorithm
    plans: bool


def share_of_kind(group: Group) -> list[float]:
    """The share of each picture's codes that are of the named kind: every third code is, 1/3 of them by chance."""
    kind, drawn = COLOURS.index(group.prompt.answer), [(first_of(one), (one.token_ids or ())[-16:]) for one in group.samples]
    return [sum((token - first) % 3 == kind for token in codes) / 16 for first, codes in drawn]


def first_of(sample: Sample) -> int:
    """The number of the first code, in rows with a plan and without."""
    return 0 if sample.text is None else VOCABULARY


def policy_of(folder: str, plans: bool, shadows: frozenset[str] = frozenset()) -> CodePolicy:
    return CodePolicy(CodePolicyConfig(folder, guidance=GUIDANCE, plan=PLAN if plans else None), shadows)


def tokens_of(colour: str, tokenizer: Any) -> list[int]:
    """The plan that names a colour: its first letter six times, which an untaught model soon tells from others."""
    return [*tokenizer(6 * colour[0], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


def lessons(policy: CodePolicy, draw: random.Random) -> Iterator[Request]:
    """Answers without pictures, pictures behind a plan, and pictures of a colour's own name."""
    tokenizer: Any = policy.tokenizer
    for i in range(BATCH):
        colour, thing = draw.choice(COLOURS), draw.choice([one[0] for one in THINGS.values()])
        codes = [3 * draw.randrange(8) + COLOURS.index(colour) if draw.random() < 0.5 else draw.randrange(24) for _ in range(16)]
        drawn = [policy.first_code + code for code in codes]
        if i % 3 == 0:
            said = colour if draw.random() < 0.75 else draw.choice([one for one in COLOURS if one != colour])
            row = draw.choice(THINGS[colour]), [*tokens_of(said, tokenizer), *drawn]
        else:
            row = (thing, [*tokens_of(colour, tokenizer), *drawn]) if i % 3 == 1 else (6 * colour[0], drawn)
        stored = StoredRow(tuple(row[1]))
        yield Request(Prompt(f"{i % 3}", row[0]), 1, i, role="replayed", written=stored)


def teach(folder: Path, seed: int) -> None:
    """Save a model that can say and draw, by likelihood: of answers to things the text alone, else the codes alone."""
    policy = policy_of(str(janus.build("janus", folder, seed)), plans=True)
    draw, adam = random.Random(seed), torch.optim.Adam(policy.parameters(), 3e-3)
    for _ in range(LESSONS):
        rollouts = policy.rollout(list(lessons(policy, draw)))
        asked = torch.tensor([group.prompt.id == "0" for group, _ in rollouts.samples()])
        tokens = rollouts.trace.tokens  # type: ignore[attr-defined]
        mask = rollouts.action_mask & ((tokens < policy.first_code) == asked[:, None])
        adam.zero_grad()
        (-policy.read(rollouts.trace, [LOGPROBS], mask)[LOGPROBS].sum() / mask.sum()).backward()
        adam.step()
    policy.save(folder)


@dataclass
class Positions:
    """Tokens that passed the language model while training, those with a gradient counted `BACKWARD` times."""

    policy: CodePolicy
    count: int = 0
    counts: bool = field(default=True)

    def __post_init__(self) -> None:
        self.policy.net.core.language_model.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        fed: Tensor | None = kwargs.get("inputs_embeds")
        shape = (kwargs["input_ids"] if fed is None else fed).shape
        self.count += self.counts * shape[0] * shape[1] * (BACKWARD if torch.is_grad_enabled() else 1)


@dataclass(frozen=True)
class WordTask(Task[Words]):
    """Three things are trained at equal cost, and six measured that were never drawn."""

    cost: int = 600_000
    """Tokens that pass the language model."""
    lr: float = 3e-4

    def run(self, algorithm: Words, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Train, and measure both on the way."""
        folder = keep(None, f"evidence-said-{seed}", "config.json", lambda place: teach(place, seed))
        policy = policy_of(str(folder), algorithm.plans, algorithm.algorithm.shadows)
        spent = Positions(policy)
        known = [Prompt(f"{colour}-{own[0]}", own[0], answer=colour) for colour, own in THINGS.items()]
        unseen = [Prompt(f"{colour}-{one}", one, answer=colour) for colour, own in THINGS.items() for one in own[1:]]
        own = algorithm.algorithm.with_length(policy.drawing.plan_tokens + policy.family.num_codes)
        sampler, settings = (make_sampler or Shuffled)(known, seed), {"lr": self.lr, "prompts_per_step": len(known)}
        trainer = trainer_of(policy, own, sampler, [("kind", share_of_kind)], seed, **settings)
        curve = [figure(policy, known, seed, spent)]
        for part in range(1, LOOKS + 1):
            while spent.count < self.cost * part / LOOKS:
                trainer.step()
            curve.append(figure(policy, known, seed, spent))
        return Ended(figure(policy, unseen, seed, spent), drawing_weights(policy), tuple(curve))


def drawing_weights(policy: CodePolicy) -> Tensor:
    """What trains with a plan and without: all but the head of text."""
    own = [weight for name, weight in policy.weights.named.items() if not name.startswith("lm_head")]
    return torch.cat([weight.detach().flatten() for weight in own])


def figure(policy: CodePolicy, prompts: Sequence[Prompt], seed: int, spent: Positions) -> float:
    """The mean reward of fresh pictures, not counted."""
    spent.counts = False
    found = mean_of(share_of_kind)(policy.rollout(fresh_of(prompts, FRESH, seed)).groups)
    spent.counts = True
    return found


NAMED = CodeTask(
    "drawn_by_tokens",
    "pictures of 16 codes by an untaught model, whose prompt names the colour to draw",
    "how far pictures lean to the asked colour, in deviations of the colours of single codes",
    margin=0.1,
    watched="the same on the way",
)
PLAIN = replace(PRESETS["grpo"], objective=((1.0, Clip()),), group_size=16)
UNSEEN = WordTask(
    "things_unseen",
    "captions name things whose kind the model can say in three of four answers, and has never drawn; the picture is rewarded",
    "share of codes of the right kind in pictures of things that were not trained",
    margin=0.05,
    watched="the same of the trained things",
)
ROWS = [
    Row("token_image", Drawing(PLAIN, 3.0), Drawing(PLAIN, 1.0), "the same with guidance 1", NAMED),
    Row("token_image", Words(PLAIN, True), Words(PLAIN, False), "the same without a plan, at equal cost", UNSEEN),
]
