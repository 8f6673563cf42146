"""Calls of tools as models write them: Hermes and Qwen tags, the JSON of OpenThinkIMG, blocks of code.

Standard library only. What a sentence here says never repeats the model's own words, for it may become an observation, where a
marker of a picture would stand for a picture.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, cast

Form = Literal["tags", "json", "code"]
"""tags: `<tool_call>{"name": .., "arguments": {..}}</tool_call>` (Hermes, Qwen, DeepEyes). json: `{"thought": "..", "actions":
[{"name": .., "arguments": {..}}]}` (OpenThinkIMG). code: `<code>..</code>`, inside or instead of it a fence of Python (Thyme)."""

LONGEST = 1 << 16
"""Characters of a turn that calls."""
DEEPEST = 8
LARGEST = 1e12
"""Beyond any coordinate or time."""
PYTHON = "python"
"""The tool that a block of code calls, with the argument `code`."""
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)
_BRACKET = re.compile(r"\"(?:[^\"\\]|\\.)*+(?:\"|\\?\Z)|[\[{]|[\]}]", re.DOTALL)
_MARK = re.compile(r"<(?=[|\uff5c/_A-Za-z])|\[(?=/?[A-Z_]+\])")
_FENCE = re.compile(r"```(?:python|py)\b[ \t]*+\n?")


class CallError(ValueError):
    """A call that cannot be understood, or a tool that cannot do what it asks: one sentence for the model."""


@dataclass(frozen=True)
class Call:
    """A tool and what it is given: `Call("zoom", {"bbox_2d": [10, 20, 300, 400]})`."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What JSON can say; numbers are finite."""

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """The numbers of a list of this length, or a single one of no list. Raises CallError."""
        value = self.arguments.get(key)
        found = cast(list[object], value) if isinstance(value, list) else [value]
        numbers = tuple(float(x) for x in found if isinstance(x, int | float) and not isinstance(x, bool))
        if len(numbers) != count or len(found) != count:
            raise CallError(f"{self.name} needs {key}: {'one number' if count == 1 else f'a list of {count} numbers'}")
        return numbers

    def text(self, key: str) -> str:
        """Raises CallError unless the argument is a text."""
        value = self.arguments.get(key)
        if not isinstance(value, str):
            raise CallError(f"{self.name} needs {key}: a text")
        return value


def parse_call(text: str, form: Form, plain: tuple[str, str] | None = None) -> Call | None:
    """The last call of a turn; None if it calls nothing. What a thought says is no call.

    Args:
        plain: the tool and the argument that a bare list of numbers in the tags stands for, `("zoom", "bbox_2d")`.

    Raises:
        CallError: the call is malformed, or too large. The time taken is linear in the text, whatever it holds.
    """
    said = without_thoughts(text)
    if form == "code":
        return _from_code(said)
    return _from_tags(said, plain) if form == "tags" else _from_actions(said)


def without_thoughts(text: str) -> str:
    """The text without `<think>` blocks; one without an end takes the rest, one without a beginning all in front of its end."""
    *closed, rest = text.split("</think>")
    kept = [before for before, opened, _ in (part.partition("<think>") for part in closed) if opened]
    return "".join([*kept, rest.partition("<think>")[0]])


def harmless(text: str) -> str:
    """The text with a blank in whatever a chat template could take for a mark, or for the place of a picture."""
    return _MARK.sub(lambda found: f"{found[0]} ", text)


def _from_tags(text: str, plain: tuple[str, str] | None) -> Call | None:
    _, opened, inside = text.rpartition("<tool_call>")
    if not opened:
        return None
    inside, closed, _ = inside.partition("</tool_call>")
    if not closed:
        raise CallError("the call has no end: write </tool_call> behind it")
    value = _read(inside.strip())
    if plain is not None and isinstance(value, list):
        return Call(plain[0], {plain[1]: value})
    return _call(value)


def _from_actions(text: str) -> Call | None:
    start, end = text.find("{"), text.rfind("}")
    if start < 0:
        return None
    value = _read(text[start : end + 1] if end > start else text[start:])
    if not isinstance(value, dict):
        raise CallError("the reply is no JSON object")
    actions = cast(dict[str, object], value).get("actions")
    if actions is None or actions == []:
        return None
    if not isinstance(actions, list):
        raise CallError("actions is no list of calls")
    return _call(cast(list[object], actions)[-1])


def _from_code(text: str) -> Call | None:
    start, closing = text.rfind("<code>") + len("<code>"), "</code>"
    if start < len("<code>"):
        fences = list(_FENCE.finditer(text))
        if not fences:
            return None
        start, closing = fences[-1].end(), "```"
    code, closed, _ = text[start:].partition(closing)
    if not closed:
        raise CallError(f"the code has no end: write {closing} behind it")
    fence = _FENCE.match(code.strip())
    if fence:
        code = code.strip()[fence.end() :].removesuffix("```")
    if not code.strip():
        raise CallError("the code is empty")
    _check(code, "the code")
    return Call(PYTHON, {"code": code.strip("\n")})


def _call(value: object) -> Call:
    """A call from its object; arguments may be a text that holds JSON, as in OpenAI's chats."""
    if not isinstance(value, dict):
        raise CallError('a call is a JSON object: {"name": .., "arguments": {..}}')
    call = cast(dict[str, object], value)
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CallError("a call needs the name of a tool: a word of letters, digits and _")
    if isinstance(arguments, str):
        arguments = _read(arguments)
    if not isinstance(arguments, dict):
        raise CallError(f"the arguments of {name} are no JSON object")
    return Call(name, cast(dict[str, Any], arguments))


def _read(text: str) -> object:
    """JSON of bounded size, depth and numbers."""
    _check(text, "the call")
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth += (bracket[0] in "[{") - (bracket[0] in "]}")
        if depth > DEEPEST:
            raise CallError(f"the call is nested deeper than {DEEPEST} levels")
    try:
        value: object = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise CallError(f"the call is no JSON: {error.msg.rstrip(': ')} at character {error.pos + 1}") from None
    # an escape may spell half a character, which nothing can write down
    _check_characters(json.dumps(value, ensure_ascii=False), "the call")
    return value


def _check(text: str, what: str) -> None:
    if len(text) > LONGEST:
        raise CallError(f"{what} is {len(text)} characters long, and may be {LONGEST}")
    _check_characters(text, what)


def _check_characters(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CallError(f"{what} holds half a character") from None


def _number(written: str) -> int | float:
    value = float(written)
    if not abs(value) <= LARGEST:
        raise CallError(f"the call holds a number beyond {LARGEST:g}")
    return value if set(written) & set(".eE") else int(written)


def _refuse_constant(_: str) -> NoReturn:
    raise CallError("the call holds a number that is not finite")
