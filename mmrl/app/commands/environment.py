"""`mmrl environment test`: worlds are opened and answered without a model, as runs do it; by texts, or by hand."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median

from mmrl.answers.boxes.box import SPACES
from mmrl.app.commands.options import EnvironmentOptions
from mmrl.app.commands.reward import check_choice, data_of, print_plain
from mmrl.app.config.plug_ins import read_environment
from mmrl.app.config.run import EnvironmentConfig
from mmrl.app.toml.reader import make
from mmrl.app.toml.tables import Table
from mmrl.core.episodes import Environment, Limits, Worlds
from mmrl.core.hooks import EnvironmentHooks, with_hooks
from mmrl.core.types import Observation, Prompt, Turn
from mmrl.data.drawn.small_digits import QUESTION, draw_small_digit
from mmrl.policies.shared.pictures import digest_of_picture
from mmrl.policies.text.prompt.templates import QUESTION as TEMPLATE
from mmrl.policies.text.prompt.templates import messages
from mmrl.policies.text.write.episodes import check_observation, largest_area, pictures_of
from mmrl.runtime.blame import describe, is_from_outside
from mmrl.training.worlds.runner import WorldRunner

SCRIPTS: dict[str, Sequence[str]] = {
    "an answer": ("7",),
    "no answer": ("",),
    "a call": ('<tool_call>{"name": "zoom", "arguments": {"bbox_2d": [250, 250, 750, 750]}}</tool_call>', "7"),
    "a call each time": ("<tool_call>[0, 0, 500, 500]</tool_call>",),
    "a malformed call": ('<tool_call>{"name": "zoom", "arguments"', "7"),
    "a marker": ("<image> and <video>",),
    "a long text": ("word " * 5_000,),
}
"""What is said, turn by turn; the last text again until the episode ends."""
DIFFERS = (
    "opened again with the same seed, while other worlds were open, its world answers the same turns differently: draw from the "
    "seed alone and let worlds share nothing, or give the environment the attribute repeats = False"
)
SLOW_S = 1.0
"""Worlds that take longer for a turn than this hold up a run."""
Say = Callable[[list[Turn]], str | None]
"""The next turn after those so far; None: the player leaves."""


@dataclass
class Played:
    """An episode without a model."""

    turns: list[Turn] = field(default_factory=list[Turn])
    ended: str = "turns"
    seconds: list[float] = field(default_factory=list[float])
    fault: str = ""
    """What was wrong with an answer."""

    @property
    def heard(self) -> list[Observation]:
        return [turn.observation for turn in self.turns if turn.observation is not None]

    @property
    def content(self) -> list[tuple[object, ...]]:
        """All that the world said, to be compared."""
        shown = [tuple(map(digest_of_picture, one.media)) for one in self.heard]
        rest = [(one.text, one.role, one.reward, one.done, one.key, *sorted(one.facts.items())) for one in self.heard]
        return [*zip(rest, shown, strict=True), (self.ended, self.fault)]


def test(target: str, settings: Sequence[str] = (), options: EnvironmentOptions = EnvironmentOptions()) -> bool:
    """Answer worlds with texts, those that models write where none are given, and print what they do; True if no fault was found.

    Raises ValueError: no such environment, setting or data.
    """
    environment, config = environment_of(target, settings, options.space)
    prompts = prompts_of(options, options.prompts)
    hooks = with_hooks(environment, EnvironmentHooks)
    hooks.check_prompts(prompts)
    worlds = WorldRunner(environment, config.limits, config.call)
    scripts = {"as given": options.say} if options.say else SCRIPTS
    faults = dict[str, list[str]]()
    try:
        for name, texts in scripts.items():
            played = [one for each in enumerate(prompts) for one in play(worlds, [each], saying(texts))]
            print_plain(f"{name}: {summary(played)}")
            again = play(worlds, enumerate(prompts), saying(texts))
            for prompt, one, two in zip(prompts, played, again, strict=True):
                fault = one.fault or (DIFFERS if hooks.repeats and one.content != two.content else "")
                if fault:
                    faults.setdefault(fault, []).append(f"{name}, prompt {prompt.id!r}")
    finally:
        worlds.end()
    if not hooks.repeats:
        print_plain("it says that it does not repeat: mmrl sample and the audit cannot compare, and a resumed run may differ")
    elif DIFFERS not in faults:
        print_plain("repeats for a seed: yes, as far as these texts go")
    for fault, places in faults.items():
        more = f", and {len(places) - 1} more" if len(places) > 1 else ""
        print_plain(f"fault ({places[0]}{more}): {fault}")
    return not faults


def play_by_hand(target: str, settings: Sequence[str], folder: Path, options: EnvironmentOptions) -> None:
    """Ask for every turn on the terminal, and write the pictures that are shown to a folder; an end of input leaves."""
    environment, config = environment_of(target, settings, options.space)
    [prompt] = prompts_of(options, 1)
    worlds = WorldRunner(environment, config.limits, config.call)
    folder.mkdir(parents=True, exist_ok=True)
    print_plain(prompt.text)
    write_pictures(Observation(media=prompt.media), folder / "prompt")

    def say(turns: list[Turn]) -> str | None:
        if turns and turns[-1].observation is not None:
            print_observation(turns[-1].observation, folder / f"turn{len(turns)}")
        try:
            return input(f"turn {len(turns) + 1}> ")
        except EOFError:
            return None

    try:
        [played] = play(worlds, [(0, prompt)], say)
    finally:
        worlds.end()
    last = played.turns[-1].observation if played.turns else None
    if last is not None and played.ended != "left":
        print_observation(last, folder / f"turn{len(played.turns)}")
    print_plain(f"ended: {played.ended}{f', {played.fault}' if played.fault else ''}")


def environment_of(target: str, settings: Sequence[str], space: str) -> tuple[Environment, EnvironmentConfig]:
    """An environment by name or file with its settings; boxes are in this space where it takes the policy's."""
    check_choice("--space", space, SPACES)
    table = Table.of({"environment": {"use": target}}, "command line", [f"environment.{one}" for one in settings])
    config = make(EnvironmentConfig, table.values["environment"], ("environment",), table)
    environment = read_environment(config, table)()
    if is_dataclass(environment) and getattr(environment, "space", None) == "auto":
        environment = replace(environment, space=space)
    return environment, config


def prompts_of(options: EnvironmentOptions, count: int) -> list[Prompt]:
    """The first prompts of the data; without any, pictures of a small digit."""
    if options.data is None:
        drawn = [draw_small_digit(0, index) for index in range(count)]
        return [Prompt(f"drawn-{i}", QUESTION, (one.image,), one.digit) for i, one in enumerate(drawn)]
    prompts, tasks = data_of(options.data, options)
    found = list(islice([*prompts, *(task.prompt for task in tasks)], count))
    if not found:
        raise ValueError(f"{options.data} has no prompts: give a file that mmrl data check reads, or leave --data out")
    return found


def play(worlds: Worlds, asked: Iterable[tuple[int, Prompt]], say: Say) -> list[Played]:
    """An episode of each, until its world, the player or the number of turns ends it; a turn of one after a turn of the other."""
    found = [(Played(), prompt, seed) for seed, prompt in asked]
    live = [turn_by_turn(*one, worlds, say) for one in found]
    while live:
        live = [one for one in live if next(one, True) is None]
    return [one for one, _, _ in found]


def turn_by_turn(found: Played, prompt: Prompt, seed: int, worlds: Worlds, say: Say) -> Iterator[None]:
    """Plays an episode, and pauses after each turn that another one may follow."""
    number = worlds.open(prompt, seed)
    try:
        while len(found.turns) < worlds.limits.turns:
            text = say(found.turns)
            if text is None:
                found.ended = "left"
                return
            place, start = len(found.turns), time.perf_counter()
            found.turns.append(Turn(text, (place, place + 1)))
            observation = worlds.step(number, found.turns[-1]).result()
            found.seconds.append(time.perf_counter() - start)
            if observation is None:
                found.ended = "stop"
                return
            found.turns[-1] = replace(found.turns[-1], observation=check_observation(observation))
            if observation.done:
                found.ended = "done"
                return
            if reasons := "; ".join(beyond(found.heard, worlds.limits)):
                found.ended = f"room ({reasons})"
                return
            yield
    except BaseException as error:
        if is_from_outside(error) or isinstance(error, GeneratorExit):
            raise
        found.ended, found.fault = "error", f"its world broke after turn {len(found.turns)}: {describe(error)}"
    finally:
        worlds.close(number)


def beyond(heard: Sequence[Observation], limits: Limits) -> Iterator[str]:
    """The limits that the latest observation exceeds; ValueError for one that cannot be shown."""
    latest, largest = heard[-1], largest_area(heard[-1])
    messages(Prompt("observation", latest.text, latest.media), TEMPLATE)
    if largest <= limits.pixels:
        pictures_of(latest)
    seen = sum(len(one.media) for one in heard)
    for name, value in (("text", len(latest.text)), ("pictures", seen), ("pixels", largest)):
        if value > getattr(limits, name):
            yield f"{value} is more than limits.{name} = {getattr(limits, name)}"


def saying(texts: Sequence[str]) -> Say:
    """Says these texts, and then the last one again and again."""
    return lambda turns: texts[min(len(turns), len(texts) - 1)]


def summary(played: Sequence[Played]) -> str:
    """`4 episodes of 1 to 2 turns; ended stop (4); 4 pictures; tool 4; 0.002 s a turn`."""
    turns, ends = [len(one.turns) for one in played], [one.ended for one in played]
    heard = [one for each in played for one in each.heard]
    names = dict.fromkeys(name for one in heard for name in one.facts)
    facts = [f"{name} {sum(one.facts.get(name, 0.0) for one in heard):g}" for name in names]
    seconds = [x for one in played for x in one.seconds]
    spent = f"{median(seconds):.3g} s a turn, the slowest {max(seconds):.3g}" if seconds else "no turn was answered"
    slow = ", which holds up a run" if seconds and median(seconds) > SLOW_S else ""
    rewards = [one.reward for one in heard if one.reward is not None]
    return "; ".join(
        [
            f"{len(played)} episodes of {' to '.join(map(str, sorted({min(turns), max(turns)})))} turns",
            "ended " + ", ".join(f"{end} ({ends.count(end)})" for end in dict.fromkeys(ends)),
            f"{sum(len(one.media) for one in heard)} pictures",
            *([f"rewards {min(rewards):g} to {max(rewards):g}"] if rewards else []),
            *facts,
            spent + slow,
        ]
    )


def print_observation(observation: Observation, name: Path) -> None:
    """Print an observation as a player reads it."""
    numbers = {"reward": observation.reward, **observation.facts}
    print_plain(f"{observation.role}: {observation.text}")
    write_pictures(observation, name)
    if words := ", ".join(f"{name} {value:g}" for name, value in numbers.items() if value is not None):
        print_plain(f"  {words}")


def write_pictures(observation: Observation, name: Path) -> None:
    for i, picture in enumerate(pictures_of(observation)):
        file = name.with_name(f"{name.name}-{i}.png")
        picture.save(file)
        print_plain(f"  picture of {picture.width} x {picture.height} pixels: {file}")
