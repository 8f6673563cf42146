"""Puzzles: who reads the pictures, and nothing else, solves them at every level; who does not is left to chance."""

from collections import deque
from collections.abc import Callable, Generator
from itertools import count
from typing import Any, get_args

import numpy as np
import pytest
from typer.testing import CliRunner

from mmrl import Prompt, Turn
from mmrl.answers.calls import CallError
from mmrl.app.cli.groups import environment as commands
from mmrl.app.plugins.resolve import load
from mmrl.data.drawn.puzzles import kinds
from mmrl.data.drawn.puzzles.kinds import Kind
from mmrl.data.drawn.puzzles.puzzle import COLOURS, HARDEST, command
from tests.support.refused import refused

KINDS = get_args(Kind)
Seen = Any
"""A picture as whole numbers (height, width, 3)."""
Play = Generator[str, Seen, None]
"""Says commands, and is sent the picture that each of them shows, or the one before."""


def where(seen: Seen, name: str) -> Any:
    """The rows and columns of a colour's pixels."""
    return np.argwhere((seen == COLOURS[name]).all(2))


def turn_the_needles(text: str, seen: Seen) -> Play:
    def angle(seen: Seen, name: str, number: int) -> float:
        y, x = where(seen[:, number * kinds.DIAL : (number + 1) * kinds.DIAL], name).mean(0) - kinds.HUB
        return float(np.degrees(np.arctan2(x, -y)))

    for number, first in enumerate([15] * (seen.shape[1] // kinds.DIAL)):
        before = angle(seen, "red", number)
        seen = yield f"turn {number + 1} {first}"
        needle = angle(seen, "red", number)
        gear = max(1, round(((needle - before) % 360) / first))
        seen = yield f"turn {number + 1} {((angle(seen, 'green', number) - needle) % 360) / gear:.2f}"
    yield "stop"


def slide_the_tiles(text: str, seen: Seen) -> Play:
    size, side = kinds.SIZE, kinds.TILE
    ends = np.asarray(kinds.Slide("", {}, 1, kinds.ORDER, 1).look())
    cut = [(slice(y, y + side), slice(x, x + side)) for y in range(0, size * side, side) for x in range(0, size * side, side)]
    tiles = tuple(next(t for place, t in zip(cut, kinds.ORDER, strict=True) if (ends[place] == seen[part]).all()) for part in cut)
    ways: dict[tuple[int, ...], list[int]] = {tiles: []}
    queue = deque(ways)
    while kinds.ORDER not in ways:
        here = queue.popleft()
        for place in kinds.neighbours(here.index(0)):
            there = kinds.after(here, here[place])
            if there not in ways:
                ways[there] = [*ways[here], here[place]]
                queue.append(there)
    for tile in ways[kinds.ORDER]:
        yield f"I slide {tile}."


def follow_the_disc(text: str, seen: Seen) -> Play:
    at, seconds = int(where(seen, "red")[:, 1].mean()) // kinds.STEP, int(text.partition(" seconds")[0].split()[-1])
    for second in range(seconds):
        seen = yield f"frame {second}.5"
        row = seen[kinds.ROW, kinds.STEP // 2 :: kinds.STEP].sum(1)
        moving = [place for place, light in enumerate(row) if light > 400]
        at = sum(moving) - at if at in moving else at
    yield f"answer {at + 1}"


def measure_the_bars(text: str, seen: Seen) -> Play:
    asked = text.partition(": ")[2].partition("?")[0].split(", ")
    floor, laid = where(seen, asked[0])[:, 0].max(), (yield "ruler 100")
    full = floor - np.argwhere((laid != seen).any(2))[:, 0].min()
    for name in asked:
        yield f"answer {(floor - where(seen, name)[:, 0].min()) / full * 100:.1f}"


def patterns(seen: Seen, size: int) -> list[Seen]:
    step = kinds.DOTS * kinds.DOT + kinds.GAP
    corners = [(kinds.GAP + step * y, kinds.GAP + step * x) for y in range(size) for x in range(size)]
    return [seen[y : y + step - kinds.GAP, x : x + step - kinds.GAP] for y, x in corners]


def find_the_odd_one(text: str, seen: Seen) -> Play:
    size = len(seen) // (kinds.DOTS * kinds.DOT + kinds.GAP)
    found = patterns(seen, size)
    (odd,) = (i for i, one in enumerate(found) if sum((one == other).all() for other in found) == 1)
    yield f"odd {odd // size + 1} {odd % size + 1}"


def find_the_differences(text: str, seen: Seen) -> Play:
    left, right = patterns(seen, 4), patterns(seen[:, seen.shape[0] + 20 :], 4)
    for i in range(16):
        if (left[i] != right[i]).any():
            yield f"differ {i // 4 + 1} {i % 4 + 1}"


def remember_the_cards(text: str, seen: Seen) -> Play:
    known, out = dict[int, bytes](), set[int]()
    total = next(n for n in count(1) if n == kinds.COLUMNS * (len(seen) // kinds.CARD) or not is_card(seen, n))
    while len(out) < total:
        twins = [(i, j) for i in known for j in known if i < j and known[i] == known[j] and not {i, j} & out]
        one, other = twins[0] if twins else [i for i in range(total) if i not in known][:2]
        seen = yield f"open {one + 1} {other + 1}"
        for i in (one, other):
            known[i] = card(seen, i).tobytes()
        out |= {one, other} if known[one] == known[other] else set()


def card(seen: Seen, i: int) -> Seen:
    y, x = (kinds.CARD * k for k in divmod(i, kinds.COLUMNS))
    return seen[y : y + kinds.CARD, x : x + kinds.CARD]


def is_card(seen: Seen, i: int) -> bool:
    return bool(card(seen, i).std() > 0)


def turn_the_pieces(text: str, seen: Seen) -> Play:
    step, side = kinds.PIECE + 2, kinds.PIECE
    for i in range(kinds.SIZE**2):
        y, x = (step * k for k in divmod(i, kinds.SIZE))
        piece = seen[y : y + side, x : x + side].sum(2).astype(float)
        falls = [turned[:12].mean() - turned[-12:].mean() for turned in (np.rot90(piece, -k) for k in range(4))]
        if quarters := int(np.argmax(falls)):
            yield f"turn {i + 1} {90 * quarters}"


PLAYERS: dict[Kind, Callable[[str, Seen], Play]] = {
    "dial": turn_the_needles,
    "difference": find_the_differences,
    "follow": follow_the_disc,
    "odd": find_the_odd_one,
    "pairs": remember_the_cards,
    "ruler": measure_the_bars,
    "slide": slide_the_tiles,
    "upright": turn_the_pieces,
}
GUESSES: dict[Kind, Callable[[np.random.Generator, int], str]] = {
    "dial": lambda rng, level: rng.choice([f"turn {1 + rng.integers(level)} {rng.integers(-180, 180)}", "stop"]),
    "difference": lambda rng, level: "differ {} {}".format(*rng.integers(1, 5, 2)),
    "follow": lambda rng, level: f"answer {rng.integers(1, level + 3)}",
    "odd": lambda rng, level: "odd {} {}".format(*rng.integers(1, level + 2, 2)),
    "pairs": lambda rng, level: "open {} {}".format(*(1 + rng.choice(2 * level + 4, 2, replace=False))),
    "ruler": lambda rng, level: f"answer {rng.integers(8, 99)}",
    "slide": lambda rng, level: f"slide {rng.integers(1, 9)}",
    "upright": lambda rng, level: f"turn {rng.integers(1, 10)} {90 * rng.integers(1, 4)}",
}


def world_of(prompt: Prompt) -> Any:
    return load("puzzle", "environments")().open(prompt, 0)


def puzzles(kind: Kind, level: int, size: int) -> Any:
    return load("puzzles", "datasets")(kinds=(kind,), size=size, easiest=level, hardest=level)


def solved_by_sight(prompt: Prompt) -> int:
    """The turns that the player took who sees; the reward must be 1."""
    world, seen, total = world_of(prompt), np.asarray(prompt.media[0]).astype(int), 0.0
    play = PLAYERS[prompt.columns["kind"]](prompt.text, seen)  # type: ignore[index]
    said = next(play)
    for turns in count(1):
        answer = world.step(Turn(said, (0, 1)))
        total += answer.reward
        assert answer.facts.get("acted"), (prompt.columns, said, answer.text)
        if answer.done:
            assert total == pytest.approx(1) and answer.facts["solved"] == 1, (prompt.columns, said, total)
            return turns
        said = play.send(np.asarray(answer.media[0]).astype(int) if answer.media else seen)
    raise AssertionError


def guessed(prompt: Prompt, number: int) -> float:
    world, rng, total = world_of(prompt), np.random.default_rng(number), 0.0
    while True:
        answer = world.step(Turn(GUESSES[prompt.columns["kind"]](rng, prompt.columns["difficulty"]), (0, 1)))  # type: ignore
        total += answer.reward
        if answer.done:
            return total


@pytest.mark.parametrize("kind", KINDS)
def test_who_sees_solves_a_puzzle_who_guesses_does_not_and_higher_levels_are_harder(kind: Kind):
    turns, luck = list[float](), list[float]()
    for level in range(1, HARDEST + 1):
        turns.append(float(np.mean([solved_by_sight(prompt) for prompt in puzzles(kind, level, 12)])))
        luck.append(float(np.mean([guessed(prompt, i) for i, prompt in enumerate(puzzles(kind, level, 60))])))
    assert max(luck) < 0.45
    assert turns[-1] > turns[0] + 3 or luck[-1] < luck[0] - 0.1, "the level changes nothing"


def test_all_kinds_in_turn_repeat_for_a_seed_as_environment_test_finds():
    drawn = load("puzzles", "datasets")
    prompts = drawn(size=4 * len(KINDS), hardest=2)
    assert [one.columns["kind"] for one in prompts][: len(KINDS)] == [*KINDS]
    assert [one.columns["difficulty"] for one in prompts][:: len(KINDS)] == [1, 2, 1, 2]
    shown = [[one.media[0].tobytes() for one in drawn(size=8, **of)] for of in ({}, {}, {"seed": 1}, {"split": "held_out"})]
    assert shown[0] == shown[1] and len({tuple(one) for one in shown}) == 3
    refused("split 'test' is unknown", drawn, split="test")
    words = ["test", "puzzle", "--data", "puzzles", "--prompts", str(len(KINDS)), "call.where=inline", "limits.pictures=40"]
    found = CliRunner().invoke(commands, [*words, *(f"--say={one}" for one in ("look 1 1", "ruler 40", "turn 1 90", "open 1 2"))])
    assert found.exit_code == 0 and "repeats for a seed: yes" in found.output, found.output
    assert "error 25; acted 6" in " ".join(found.output.split()), found.output
    levels: list[dict[str, Any]] = [{"easiest": 3, "hardest": 2}, {"kinds": ()}]
    for wrong in levels:
        refused("give a kind, and easiest <= hardest", load("puzzles", "datasets"), **wrong)


@pytest.mark.parametrize(
    ("said", "words", "found"),
    [
        ("<think>turn 1 90</think> so I TURN: 2, -90.5 now", {"turn": 2}, ("turn", (2, -90.5))),
        ("turn 1 2, then stop", {"turn": 2, "stop": 0}, ("stop", ())),
        ('<tool_call>{"name": "turn", "arguments": {"by": [1, 90]}}</tool_call>', {"turn": 2}, ("turn", (1, 90))),
        ("turn 1 2 3", {"turn": 2}, "say turn and 2 numbers"),
        ("turns 1 2", {"turn": 2, "stop": 0}, "say turn and 2 numbers or stop"),
        ('<tool_call>{"name": "zoom"}</tool_call>', {"turn": 2}, "say turn and 2 numbers"),
        ("<tool_call>", {"turn": 2}, "the call has no end"),
    ],
)
def test_commands(said: str, words: dict[str, int], found: object):
    if isinstance(found, str):
        refused(found, command, said, words, error=CallError)
    else:
        assert command(said, words) == found


@pytest.mark.parametrize(
    ("kind", "said", "words"),
    [
        ("slide", "slide 9", "there are tiles 1 to 8"),
        ("slide", "slide 1.5", "there are tiles"),
        ("slide", "slide 1", "that tile is not next to the gap"),
        ("upright", "turn 1 45", "by 90, 180 or 270 degrees"),
        ("pairs", "open 2 2", "two different cards"),
        ("follow", "frame 9", "the clip lasts 2 seconds"),
        ("dial", "turn 2 9", "there are dials 1 to 1"),
    ],
)
def test_what_cannot_be_followed_counts_as_a_turn_and_the_last_turn_ends_the_puzzle(kind: Kind, said: str, words: str):
    world = world_of(puzzles(kind, 1, 1)[0])
    answers = [world.step(Turn(said, (0, 1))) for _ in range(world.puzzle.turns)]
    assert words in answers[0].text and answers[0].text.startswith("Error: ") and answers[0].facts == {"error": 1.0}
    assert [one.done for one in answers] == [False] * (len(answers) - 1) + [True] and not any(one.reward for one in answers)


def test_breaking_what_is_right_costs_what_it_gave():
    world = world_of(puzzles("upright", 2, 1)[0])
    turned = next(i for i, quarters in enumerate(world.puzzle.quarters) if quarters)
    rewards = [world.step(Turn(f"turn {turned + 1} {90 * (4 - world.puzzle.quarters[turned])}", (0, 1))).reward]
    rewards += [world.step(Turn(f"turn {turned + 1} 90", (0, 1))).reward for _ in range(4)]
    assert rewards == [0.5, -0.5, 0, 0, 0.5]
