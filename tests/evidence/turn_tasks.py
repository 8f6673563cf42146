"""Methods of several turns, each against the same with one turn, or with the credit or bonus of plain GRPO.

The policy of letters writes a turn, a world answers with a letter, and so on.

The policy sees the prompt's numbers, where it is, and the letter before: what a world showed is known to the next letter alone.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.segments import GiGPO
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.hints import AskedHalves
from mmrl.algorithms.planners.segments import BranchWhereUnsure
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.statistics import with_column
from mmrl.algorithms.turns import uses
from mmrl.algorithms.weights.aggregate import SequenceMean
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import Ended, Observation, Turn, segments_of
from mmrl.core.types import Branch, Given, Group, Prompt, Reading, Request, Rollouts, Sample, Scores
from tests.evidence.task import Counted, Row, Score, TextTask, against, mean, mean_of
from tests.evidence.text_tasks import largest, prompts_of
from tests.support.fakes import LETTERS, Steps, uniform
from tests.support.worlds import Answer

STOP = len(LETTERS) - 1


@dataclass(frozen=True)
class Alone(Once):
    """Every sample has one turn: its world is not asked."""

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        return [replace(one, turns=1) for one in super().first(prompts, group_size, first_id, seed)]


def silent(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    return None


@dataclass
class Game:
    """One row: turns of `width` letters, and a letter of the world between them."""

    world: Answer
    request: Request
    index: int
    most: int
    width: int
    said: str = ""
    heard: str = ""
    turns: tuple[Turn, ...] = ()
    ended: Ended | None = None
    tokens: list[int] = field(default_factory=list[int])

    @property
    def branch(self) -> Given:
        """What is given of it."""
        return self.request.given or Branch((), (), (), (self.request.seed, self.index))

    def take(self, drawn: int) -> int:
        """The letter at the next place: the one drawn, a given one, or the world's; the stop behind the end."""
        drawn = next(iter(self.branch.tokens[len(self.tokens) :]), drawn)
        if self.ended is not None:
            return STOP
        if self.heard:
            letter, self.heard = LETTERS.index(self.heard), ""
            self.tokens.append(letter)
            return letter
        self.said += LETTERS[drawn]
        self.tokens.append(drawn)
        if len(self.said) == self.width:
            self.ask()
        return drawn

    def ask(self) -> None:
        turn = Turn(self.said, (len(self.tokens) - self.width, len(self.tokens)))
        heard = self.answer(turn)
        self.turns, self.said = (*self.turns, replace(turn, observation=heard)), ""
        if heard is None or heard.done or len(self.turns) >= (self.request.turns or self.most):
            self.ended = "stop" if heard is None else "done" if heard.done else "turns"
        else:
            self.heard = heard.text

    def answer(self, turn: Turn) -> Observation | None:
        """What the world says, or said in an earlier step."""
        if self.branch.is_row:
            return self.branch.turns[len(self.turns)].observation
        seed = random.Random("{}/{}".format(*self.branch.world or ())).getrandbits(60)
        return self.world(self.request.prompt, (*self.turns, turn), seed)

    @property
    def sample(self) -> Sample:
        own = [("policy", self.width)] + [("environment", 1), ("policy", self.width)] * (len(self.turns) - 1)
        segments = segments_of(own)  # type: ignore[arg-type]
        told = {"segments": segments, "turns": self.turns, "ended": self.ended, "role": self.request.role}
        return Sample(self.turns[-1].text, tuple(self.tokens), **told)  # type: ignore[arg-type]


@dataclass
class Playing(Counted):
    """The policy of letters, whose samples are episodes."""

    world: Answer = silent
    most: int = 2
    width: int = 1
    shared: int = 0
    """Turns that were given; so many as an episode has count as one sample less."""

    @torch.no_grad()
    def rollout(self, requests: Sequence[Request], sampling: Any = None) -> Rollouts:
        rows = [(request, i) for request in requests for i in range(request.count)]
        games = [Game(self.world, request, i, self.most, self.width) for request, i in rows]
        fresh = [game for game in games if not game.branch.is_row]
        self.shared += sum(len(game.branch.turns) for game in fresh)
        self.sampled += len(fresh) - self.shared // self.most
        self.shared %= self.most
        tokens, draws = torch.full((len(rows), self.length), STOP), uniform(rows, self.length)
        trace = Steps({"tokens": tokens, **self._seen(requests)})
        for t in range(self.length):
            probs = self._logprobs("policy", trace, "shown")[:, t].exp()
            drawn = (probs.cumsum(-1) < draws[:, t, None]).sum(-1).clamp(max=STOP)
            tokens[:, t] = torch.tensor([game.take(int(letter)) for game, letter in zip(games, drawn, strict=True)])
        logprobs = self._logprobs("policy", trace, "shown").gather(-1, tokens[..., None])[..., 0]
        for row, game in zip(logprobs, games, strict=True):
            if game.branch.is_row and game.branch.logprobs:
                row[: len(game.branch.logprobs)] = torch.tensor(game.branch.logprobs)
        mask = torch.zeros(tokens.shape, dtype=torch.bool)
        samples: dict[int, list[Sample]] = {}
        prompts, places = dict[int, Prompt](), list[int]()
        for row, (request, _), game in zip(mask, rows, games, strict=True):
            for turn in game.turns:
                row[slice(*turn.span)] = True
            prompts[request.group_id] = request.prompt
            own = samples.setdefault(request.group_id, [])
            places.append(len(own))
            own.append(game.sample)
        groups = tuple(Group(i, prompts[i], tuple(own)) for i, own in samples.items())
        ids = torch.tensor([request.group_id for request, _ in rows])
        return Rollouts(groups, ids, torch.tensor(places), mask, trace, {ROLLOUT_LOGPROBS: logprobs})


@dataclass(frozen=True)
class PlayTask(TextTask):
    """A world, and how long an episode in it may be."""

    world: Answer = silent
    most: int = 2
    width: int = 1
    taught: int = 0
    """Steps of imitation before the run, of calls and answers that are right more often than not."""

    def policy(self, algorithm: Algorithm, seed: int) -> Playing:
        """The policy as a run begins; where samples have one turn, they are measured with one, too."""
        length, most = self.most * (self.width + 1) - 1, 1 if isinstance(algorithm.planner, Alone) else self.most
        made = Playing(length=length, start=self.start, seed=seed, world=self.world, most=most, width=self.width)
        teach(made, self.prompts(seed), seed, self.taught)
        return made


def teach(policy: Playing, prompts: Sequence[Prompt], seed: int, steps: int) -> None:
    """Imitate examples of the world `crop`: where to look is right in 6 of 10, what is answered in 6 of 10 of those."""
    optimizer, draw = torch.optim.Adam(policy.parameters(), lr=1e-2), random.Random(seed)
    mask = torch.tensor([place in (0, 1, 3, 4) for place in range(policy.length)])
    for _ in range(steps):
        rows = [[LETTERS.index(letter) for letter in example(prompt, draw).ljust(policy.length, ".")] for prompt in prompts]
        vectors = policy._vectors([Request(prompt, 1, 0) for prompt in prompts])
        trace = Steps({"tokens": torch.tensor(rows), **vectors})
        trace.tensors["position"] = torch.eye(policy.length).expand(len(rows), -1, -1)
        logprobs = policy._logprobs("policy", trace, "plain").gather(-1, trace.tensors["tokens"][..., None])[..., 0]
        optimizer.zero_grad()
        (-logprobs[:, mask].mean()).backward()
        optimizer.step()
    for name in ("ref", "ema", "previous", "start"):
        policy.nets[name].load_state_dict(policy.nets["policy"].state_dict())


def example(prompt: Prompt, draw: random.Random) -> str:
    """A call, what it shows, and an answer."""
    place = prompt.answer if draw.random() < 0.6 else draw.choice("abc")
    shown = draw.choice("abc") if place == prompt.answer else "."
    said = shown if shown != "." and draw.random() < 0.6 else draw.choice("abc")
    return f"d{place}{shown}{said}{draw.choice('abc')}"


def stated(group: Group) -> list[float]:
    """What the world gave, added up."""
    return [sum(turn.observation.reward or 0.0 for turn in one.turns if turn.observation) for one in group.samples]


mean_stated = mean_of(stated)


def looked(sample: Sample) -> bool:
    return any(turn.observation is not None and turn.observation.facts.get("tool", 0.0) > 0 for turn in sample.turns)


def bonus(group: Group) -> list[float]:
    """1 for right answers of samples that looked."""
    return [float(right > 0.5 and looked(one)) for right, one in zip(stated(group), group.samples, strict=True)]


def hidden_in(seed: int) -> str:
    return random.Random(seed).choice("abc")


def detail(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """A letter that no prompt tells: d shows it, any other letter answers."""
    if turns[-1].text == "d":
        return Observation(hidden_in(seed), key=hidden_in(seed), facts={"tool": 1.0})
    return Observation(reward=float(turns[-1].text == hidden_in(seed)), done=True)


def crop(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """The same, where d must be followed by where to look, which the prompt tells; other calls are malformed or show nothing."""
    said, there = turns[-1].text, prompt.answer
    if said[0] != "d":
        return Observation(reward=float(said[0] == hidden_in(seed)), done=True)
    if said[1] == there:
        return Observation(hidden_in(seed), key=hidden_in(seed), facts={"tool": 1.0})
    return Observation("." if said[1] in "abc" else "d", key=said[1], facts={"error": float(said[1] not in "abc")})


def formed(group: Group) -> list[float]:
    """The share of turns without a malformed call."""
    heard = [[turn.observation for turn in one.turns if turn.observation] for one in group.samples]
    return [1 - mean([one.facts.get("error", 0.0) for one in row]) for row in heard]


def following(group: Group) -> list[float]:
    """1 for answers that say what was shown."""
    shown = [(one.turns[-2].observation, one.text or "") for one in group.samples if len(one.turns) > 1]
    values = iter([float(seen is not None and text[:1] == seen.text) for seen, text in shown])
    return [next(values) if len(one.turns) > 1 else 0.0 for one in group.samples]


def scaled(weight: float, score: Score) -> Score:
    return lambda group: [weight * value for value in score(group)]


RARE = (3, 3, 3, 0.5, 0.3)
LOOK = PlayTask(
    "small_detail",
    "a detail that the whole picture does not show; one sample in twenty looks closer",
    "share right",
    prompts_of(largest),
    (("environment", scaled(0.8, stated)), ("tool_bonus", scaled(1.2, bonus))),
    mean_stated,
    world=detail,
    start=RARE,
)
SELDOM = replace(
    LOOK,
    name="seldom_looks",
    claim="a detail that the whole picture does not show; one sample in a hundred looks closer",
    rewards=(("environment", stated),),
    start=(3, 3, 3, 0.1, 0.3),
    samples=12_000,
)
CROP = replace(
    LOOK,
    name="crop",
    claim="a detail that only a crop of the right place shows, for a policy that was taught with sloppy examples",
    rewards=(("environment", stated),),
    world=crop,
    width=2,
    most=3,
    start=(1, 1, 1, 1, 0.5),
    taught=60,
)
FORMS = replace(
    CROP,
    name="calls",
    claim="a detail that only a well-formed call at the right place shows, for a policy that was taught with sloppy examples",
    rewards=(("environment", stated), ("turn_format", formed)),
)
CODE = replace(
    FORMS,
    name="code",
    claim="a detail that only code for the right place shows, for a policy that was taught with sloppy examples",
    rewards=(("environment", stated), ("turn_format", formed), ("consistency", scaled(0.1, following))),
)


def rooms(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """Four rooms drawn from three; in each the right door is as far from it as the prompt says, and is worth a quarter."""
    order, step = [random.Random(f"{seed}/{k}").choice("abc") for k in range(1, 5)], "abc".index(prompt.answer)
    at = "a" if len(turns) == 1 else order[len(turns) - 2]
    right = "abc"["abc".index(at) + step - 3]
    there = order[len(turns) - 1]
    return Observation(there, key=there, reward=0.25 * (turns[-1].text == right), done=len(turns) == 4)


ROOMS = PlayTask(
    "rooms",
    "four rooms one after the other, a door to choose in each, and the same rooms come again",
    "share of the right doors",
    prompts_of(largest),
    (("environment", stated),),
    world=rooms,
    most=4,
    samples=6_000,
)


def repaired(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """The same rooms, where a wrong door is said to be wrong; whoever took it is led on all the same."""
    heard = rooms(prompt, turns, seed)
    return heard and replace(heard, facts={"wrong": float(not heard.reward)})


REPAIRED = replace(
    ROOMS,
    name="repaired",
    claim="rooms in which a wrong door is said to be wrong, and the way goes on as if it had been right",
    world=repaired,
)


def paths(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """A path is drawn that is worth 0 or 2; all lead to one room, where the prompt's own letter is worth 1."""
    path = random.Random(seed).choice("ab")
    if len(turns) == 1:
        return Observation(path, key=path, reward=0.0)
    if len(turns) == 2:
        return Observation("c", key="c", reward=0.0)
    right = turns[-1].text == prompt.answer
    return Observation(reward=right + 2.0 * (path == "b"), done=True, facts={"right": float(right)})


def share_right(groups: Sequence[Group]) -> float:
    last = [one.turns[-1].observation for group in groups for one in group.samples]
    return mean([0.0 if seen is None else seen.facts.get("right", 0.0) for seen in last])


PATHS = PlayTask(
    "paths",
    "paths of different worth, not chosen, lead to the same room, where a letter is to be found",
    "share right",
    prompts_of(largest),
    (("environment", stated),),
    share_right,
    world=paths,
    most=3,
    samples=3_000,
)


def helping(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """For half of the prompts d shows a letter that nothing else tells; the others tell theirs, and are asked another after d."""
    told = prompt.columns["vector"][0] < 0
    wanted = prompt.answer if told and len(turns) == 1 else hidden_in(seed)
    if turns[-1].text == "d":
        shown = "d" if told else hidden_in(seed)
        return Observation(shown, key=shown, facts={"tool": 1.0})
    return Observation(reward=float(turns[-1].text == wanted), done=True)


HELPS = PlayTask(
    "where_it_helps",
    "a tool finds the answer of half of the prompts, and spoils that of the others",
    "share right",
    prompts_of(largest),
    (("environment", stated),),
    world=helping,
    start=(1, 1, 1, 3, 0.3),
    samples=12_000,
)


def steps(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """A task on screens: two to five steps by the prompt, a wrong one ends it, and its end alone is told."""
    wanted, count = "abc", 2 + int(prompt.id) % 4
    shown = wanted[(len(turns) + int(prompt.id)) % 3]
    right = turns[-1].text == (prompt.answer if len(turns) == 1 else wanted[(len(turns) - 1 + int(prompt.id)) % 3])
    if not right:
        return Observation(reward=0.0, done=True)
    return Observation(shown, key=shown, reward=float(len(turns) == count), done=len(turns) == count)


def path(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """Four screens with one right way through them, which the prompt alone tells; a wrong step ends it."""
    right = "abc"[("abc".index(prompt.answer) + len(turns) - 1) % 3]
    if turns[-1].text != right:
        return Observation(reward=0.0, done=True)
    return Observation(right, key=right, reward=float(len(turns) == 4), done=len(turns) == 4)


SCREEN = PlayTask(
    "screen",
    "one way in three hundred through four screens is right, so that nearly all groups are wrong altogether",
    "share of tasks that succeed",
    prompts_of(largest),
    (("environment", stated),),
    world=path,
    most=4,
    start=(1, 1, 1, 1, 0.3),
    samples=12_000,
)
SCREENS = PlayTask(
    "screens",
    "tasks of two to five steps, of which the outcome alone is known",
    "share of tasks that succeed",
    prompts_of(largest),
    (("environment", stated),),
    world=steps,
    most=5,
    start=(1, 1, 1, 0.3, 0.1),
    samples=12_000,
)


@dataclass(frozen=True)
class Always:
    """Half a reward for every sample that used a tool, whether it helped or not."""

    reads: tuple[Reading, ...] = ()

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        return with_column(scores, self, "used", uses(rollouts), 0.5)


def against_one_turn(name: str, task: PlayTask) -> Row:
    """The method on its world, and the same without one."""
    return against(name, "one turn, without the world", task, planner=Alone())


LETTERS_ARPO = replace(PRESETS["arpo"], planner=BranchWhereUnsure(vocabulary=len(LETTERS)))
"""For a model of five tokens."""
UI_S1 = PRESETS["ui_s1"].advantage
assert isinstance(UI_S1, GiGPO)
ASKED = replace(PRESETS["geometry_zero"], planner=AskedHalves(with_text="The first letter is d", without_text="Answer."))
"""In words that the policy of letters follows."""
ROWS = [
    against("gigpo", "episodes compared with episodes alone", ROOMS, advantage=GroupNorm(scale="none")),
    against("hgpo", "advantages of gigpo", PATHS, advantage=GiGPO(deviation=True)),
    against_one_turn("deepeyes", LOOK),
    against_one_turn("thyme", CODE),
    against_one_turn("openthinkimg", FORMS),
    against_one_turn("hart", CROP),
    against("vr_thinker", "no bonus for looking", SELDOM, shaping=()),
    Row("arpo", LETTERS_ARPO, replace(LETTERS_ARPO, planner=Once()), "whole episodes alone", CROP),
    against("ui_s1", "returns that go on behind a wrong action", REPAIRED, advantage=replace(UI_S1, cut="")),
    against("mobile_agent_v3", "every trajectory counts the same, however long", SCREENS, aggregation=SequenceMean()),
    against("mobile_agent_v3", "nothing comes back", SCREEN, planner=Once()),
    against("arpo_gui", "nothing comes back", SCREEN, planner=Once()),
    Row("geometry_zero", ASKED, replace(PRESETS["geometry_zero"], planner=Once(), shaping=(Always(),)),
        "a bonus wherever the tool is used, and nobody is asked", HELPS),
]  # fmt: skip
"""Presets of turns."""
