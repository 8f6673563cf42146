"""Readers of a judge's answer (what cannot be read is an error, never 0), and a group's samples compared two at a time."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

from PIL import Image

from mmrl.core.samples import Scored
from mmrl.runtime.net.fetch import words
from mmrl.runtime.net.secrets import Json
from mmrl.runtime.ranges import Number, check_ranges
from mmrl.serving.judges.judge import AsksServer, Endpoint, JudgeError, Question, Reply, ask, reply_of

NUMBER = r"(?<![\d.,])(-?(?:\d+(?:\.\d+)?|\.\d+))(?![.,]?\d)"


@dataclass(frozen=True)
class Graded(AsksServer):
    """The common base of rewards whose judge gives a number of a scale, or says yes or no."""

    template: str = ""
    """A text with {prompt}, or a file with one; empty: mmrl's wording."""
    low: Number = 0.0
    """The worst number that the judge may give."""
    high: Number = 10.0
    """The best number that the judge may give."""
    label: str = ""
    """For `number`: the words in front of the number, such as "Final score"."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.low < self.high:
            raise ValueError(f"{type(self).__name__}: low is {self.low} and high {self.high}: low must be below high")

    def read(self, reply: Reply, scoring: str, key: str = "") -> Scored:
        """The judge's opinion in [0, 1]; `scoring` is number, json (the number under `key`) or yes."""
        if scoring == "yes":
            return Scored(yes_share(reply))
        raw = (
            json_number(reply, key, self.low, self.high) if scoring == "json" else number(reply, self.low, self.high, self.label)
        )
        return Scored((raw - self.low) / (self.high - self.low), {"raw": raw})


def fill_template(template: str, /, **values: object) -> str:
    """Replace {prompt}, {answer}, ... and leave other braces alone, for templates show JSON; ValueError without a {prompt}."""
    if "{prompt}" not in template:
        raise ValueError("the template has no {prompt}: say where the prompt goes")
    return re.sub(r"\{(\w+)\}", lambda found: str(values.get(found[1], found[0])), template)


def template_text(template: str, default: str) -> str:
    """The text of a template: the default, that of a file (`./mine.txt`), or the template itself if it says {prompt}.

    FileNotFoundError if it is none of them.
    """
    if not template:
        return default
    if "{prompt}" in template:
        return template
    file = Path(template).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"template {template!r} is no file, and no text with {{prompt}} in it")
    return file.read_text(encoding="utf-8")


def final_text(reply: Reply) -> str:
    """The answer without thoughts: behind `</think>`, inside `<answer>` if there is one; JudgeError if thoughts do not end."""
    text = reply.text
    if "</think>" in text:
        text = text.rpartition("</think>")[2]
    elif "<think>" in text:
        raise unreadable(reply, "its thoughts do not end")
    inside = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return (inside[-1] if inside else text).strip()


def number(reply: Reply, low: float, high: float, label: str = "") -> float:
    """The last number behind `label` (without label: the last one at all), which must lie in [low, high].

    The scale itself is no number of it: "3/10", "3 of 10" and "3 (0 to 10)" are 3 where high is 10, and "3/5" is an error.
    So are "7-8", and an answer that was cut, unless more was written behind the number of its label.
    """
    least, most = (rf"{edge:g}(?:\.0+)?(?![.,]?\d)" for edge in (low, high))
    of = r"\s*(?:/|(?:\bout\s+)?\bof\b)\s*"
    edges = rf"(?<![\d.,]){least}\s*(?:to|and|-|\u2013)\s*{most}"
    text = re.sub(rf"{edges}|\s*(?:/|\bout\s+of\b)\s*{most}|(?<=\d){of}{most}", " ", final_text(reply).lower())
    pattern = rf"{re.escape(label)}\W{{0,12}}?{NUMBER}" if label else NUMBER
    found = list(re.finditer(pattern, text, re.IGNORECASE))
    if not found:
        raise unreadable(reply, f"no number{f' behind {label!r}' if label else ''}")
    value, rest = float(found[-1][1]), text[found[-1].end() :]
    if re.match(rf"{of}\d", rest) or re.search(rf"\d{of}\Z", text[: found[-1].start(1)]):
        raise unreadable(reply, f"{value:g} is not on the scale of {low:g} to {high:g} that was asked for")
    if re.search(r"\d(?:[-\u2013]|\s+(?:to|and)\s+)\Z", text[: found[-1].start(1)]):
        raise unreadable(reply, f"{value:g} is one end of a range")
    if reply.cut and not (label and rest.strip()):
        raise unreadable(reply, f"{value:g} may not be its last word")
    if not low <= value <= high:
        raise unreadable(reply, f"{value} is not within {low} to {high}")
    return value


def json_object(reply: Reply) -> Mapping[str, Json]:
    """The JSON object of an answer: all of it, its last fenced block, or what its outermost braces hold."""
    text = final_text(reply)
    fenced = re.findall(r"```(?:json)?\s*(.*?)```", text, re.DOTALL)
    braces = text[text.find("{") : text.rfind("}") + 1]
    for candidate in (text, *reversed(fenced), braces):
        try:
            found = json.loads(candidate)
        except (RecursionError, ValueError):
            continue
        if isinstance(found, dict):
            return found
    raise unreadable(reply, "no JSON object")


def json_number(reply: Reply, key: str, low: float, high: float) -> float:
    """The number under a key of the answer's JSON object, which must lie in [low, high]."""
    value = json_object(reply).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise unreadable(reply, f"no number under {key!r}")
    if not low <= value <= high:
        raise unreadable(reply, f"{words(str(value))} is not within {low} to {high}")
    return float(value)


def yes_share(reply: Reply, yes: Sequence[str] = ("yes",), no: Sequence[str] = ("no",), among_both: bool = True) -> float:
    """P(yes) / (P(yes) + P(no)) at the first token, all spellings added up; with among_both False P(yes) alone."""
    shares = {word.lower(): 0.0 for word in (*yes, *no)}
    for token, probability in reply.first.items():
        word = token.strip().strip("\u2581\u0120").lower()
        if word in shares:
            shares[word] += probability
    for_yes, for_no = sum(shares[word.lower()] for word in yes), sum(shares[word.lower()] for word in no)
    if not reply.first:
        raise unreadable(reply, "the server gave no log-probabilities")
    if for_yes + for_no <= 0:
        raise unreadable(reply, f"neither yes nor no among its first tokens {words(str(sorted(reply.first)[:5]))}")
    return for_yes / (for_yes + for_no) if among_both else min(for_yes, 1.0)


def preference(reply: Reply) -> float:
    """1 if the first of two is better, 0 if the second, a half if neither."""
    text = final_text(reply).lower()
    says = [f"{kind} {i} is better" in text for i in (1, 2) for kind in ("image", "video", "picture")]
    first, second = any(says[:3]), any(says[3:])
    if first == second:
        if not first and re.search(r"equal|tie\b|same quality", text):
            return 0.5
        raise unreadable(reply, "it names no better one")
    return float(first)


def unreadable(reply: Reply, why: str) -> JudgeError:
    """The error that says what is wrong with an answer."""
    cut = "; it was cut at server.max_tokens" if reply.cut else ""
    return JudgeError(f"the judge's answer cannot be read: {why}{cut}: {reply.text[-200:]!r}")


Pair = tuple[int, int]
"""Numbers of the samples in the order they are shown."""


def schedule(count: int, opponents: int = 0) -> list[Pair]:
    """Ordered pairs: everyone against everyone (opponents = 0), or against the next n in a ring; always both orders.

    Raises ValueError for fewer than two samples, or opponents below 0.
    """
    if count < 2 or opponents < 0:
        raise ValueError(f"{count} samples with {opponents} opponents each cannot be compared: needs two samples, opponents >= 0")
    steps = range(1, count) if opponents == 0 else range(1, min(opponents, count - 1) + 1)
    pairs = {tuple(sorted((i, (i + step) % count))) for i in range(count) for step in steps}
    return [pair for a, b in sorted(pairs) for pair in ((a, b), (b, a))]


def ask_pairs(
    server: Endpoint, text: str, pictures: Sequence[Image.Image], opponents: int = 0, read: Callable[[Reply], float] = preference
) -> list[Scored]:
    """Win rates of pictures by a judge, of whose answers `read` reads the share of the first; JudgeError if it judged no pair."""
    pairs, shares, errors = schedule(len(pictures), opponents), dict[Pair, float](), list[JudgeError]()
    replies = ask(server, [Question(text, [pictures[a], pictures[b]]) for a, b in pairs])
    for pair, reply in zip(pairs, replies, strict=True):
        try:
            shares[pair] = read(reply_of(reply))
        except JudgeError as error:
            errors.append(error)
    if not shares:
        raise JudgeError(f"the judge said of no pair which one is better: {errors[0]}")
    return win_rates(len(pictures), pairs, shares)


def win_rates(count: int, pairs: Sequence[Pair], outcomes: Mapping[Pair, float | None]) -> list[Scored]:
    """Mean share each sample won, over the pairs judged in both orders, so that a liking for the first one cancels.

    `outcomes` are the share of the first of a pair, None where the judgement failed.
    """
    won: list[list[float]] = [[] for _ in range(count)]
    left_out = [0] * count
    biases: list[float] = []
    for a, b in (pair for pair in pairs if pair[0] < pair[1]):
        there, back = outcomes.get((a, b)), outcomes.get((b, a))
        if there is None or back is None:
            left_out[a] += 1
            left_out[b] += 1
            continue
        share = (there + 1 - back) / 2
        won[a].append(share)
        won[b].append(1 - share)
        biases.append((there + back) / 2)
    first = sum(biases) / len(biases) if biases else nan
    return [
        Scored(
            sum(shares) / len(shares) if shares else nan,
            {"comparisons": float(len(shares)), "left_out": float(out), "first_wins": first},
        )
        for shares, out in zip(won, left_out, strict=True)
    ]
