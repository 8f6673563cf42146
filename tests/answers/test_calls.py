"""Calls of tools as published models write them, and what is said of those that cannot be understood."""

import json
from contextlib import suppress

import pytest

from mmrl.answers.calls import LONGEST, Call, CallError, Form, parse_call, without_thoughts
from tests.support.refused import refused

ZOOM = Call("image_zoom_in_tool", {"bbox_2d": [120, 40, 360.5, 288], "label": "the red sign"})
DEEPEYES = (
    "<think>The sign is small. I could call <tool_call>{}</tool_call>.</think>\n<tool_call>\n"
    '{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [120, 40, 360.5, 288], "label": "the red sign"}}\n</tool_call>'
)
HERMES = (
    "I'll look closer.\n<tool_call>\n"
    '{"arguments": {"bbox_2d": [120, 40, 360.5, 288], "label": "the red sign"}, "name": "image_zoom_in_tool"}\n</tool_call>'
)
OPENAI = '<tool_call>{"name": "zoom", "arguments": "{\\"bbox_2d\\": [1, 2, 3, 4]}"}</tool_call>'
OPEN_THINK_IMG = (
    '{"thought": "I need the year 1970 on the x-axis.", "actions": [{"name": "Point", "arguments": '
    '{"image": "img_1", "param": "x-axis value 1970"}}]}'
)
SEGMENT = '{"name": "SegmentRegionAroundPoint", "arguments": {"image": "img_1", "param": "x=\\"21.5\\" y=\\"28.5\\""}}'
TERMINATE = '{"thought": "done", "actions": [{"name": "Terminate", "arguments": {"ans": "1985"}}]}'
THYME = (
    "The text is turned, I will rotate the picture.\n<code>\n```python\nfrom PIL import Image\n"
    "image = image.rotate(90)\nif image.width > 5:\n    show(image)\n```\n</code>"
)
THYME_CODE = "from PIL import Image\nimage = image.rotate(90)\nif image.width > 5:\n    show(image)"


@pytest.mark.parametrize(
    ("text", "form", "call"),
    [
        (DEEPEYES, "tags", ZOOM),
        (HERMES, "tags", ZOOM),
        (OPENAI, "tags", Call("zoom", {"bbox_2d": [1, 2, 3, 4]})),
        ('<tool_call>{"name": "list_windows"}</tool_call>', "tags", Call("list_windows")),
        ('<tool_call>{"name": "a"}</tool_call> or <tool_call>{"name": "b"}</tool_call>', "tags", Call("b")),
        (OPEN_THINK_IMG, "json", Call("Point", {"image": "img_1", "param": "x-axis value 1970"})),
        (f"```json\n{OPEN_THINK_IMG}\n```", "json", Call("Point", {"image": "img_1", "param": "x-axis value 1970"})),
        (
            f'{{"thought": "", "actions": [{{"name": "OCR"}}, {SEGMENT}]}}',
            "json",
            Call("SegmentRegionAroundPoint", {"image": "img_1", "param": 'x="21.5" y="28.5"'}),
        ),
        (TERMINATE, "json", Call("Terminate", {"ans": "1985"})),
        (THYME, "code", Call("python", {"code": THYME_CODE})),
        ("<code>x = 1\nprint(x)</code>", "code", Call("python", {"code": "x = 1\nprint(x)"})),
        ("First:\n```python\na\n```\nthen\n```py\n  b\n```", "code", Call("python", {"code": "  b"})),
        ("```python\na\n``` <code>b</code> ```python\nc\n```", "code", Call("python", {"code": "b"})),
    ],
)
def test_published_forms_are_read(text: str, form: Form, call: Call):
    assert parse_call(text, form) == call


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("The sign says 50. <answer>50</answer>", "tags"),
        ("<think>Or <tool_call>{}</tool_call>?</think> <answer>50</answer>", "tags"),
        ("Or <tool_call>{}</tool_call>?</think> <answer>50</answer>", "tags"),
        ("<answer>A</answer> <think><tool_call>{}</tool_call>", "tags"),
        ("The year is 1985.", "json"),
        ('{"thought": "nothing to do", "actions": []}', "json"),
        ('{"thought": "nothing to do"}', "json"),
        ("```json\n{}\n```", "code"),
        ("print(1)", "code"),
    ],
)
def test_what_calls_nothing_is_none(text: str, form: Form):
    assert parse_call(text, form) is None


def test_a_bare_list_is_the_argument_of_the_tool_that_is_named():
    text = "<tool_call>[100, 200, 225, 325]</tool_call>"
    assert parse_call(text, "tags", ("zoom", "bbox_2d")) == Call("zoom", {"bbox_2d": [100, 200, 225, 325]})
    refused("a call is a JSON object", parse_call, text, "tags", error=CallError)


def tags(inside: str) -> str:
    return f"<tool_call>{inside}</tool_call>"


MALFORMED: list[tuple[Form, str, str]] = [
    ("tags", '<tool_call>{"name": "zoom"}', "the call has no end: write </tool_call> behind it"),
    ("tags", tags("zoom [1, 2]"), "the call is no JSON: Expecting value at character 1"),
    ("tags", tags("{'name': 'zoom'}"), "the call is no JSON: Expecting property name"),
    ("tags", tags("<function=zoom><parameter=x>1</parameter></function>"), "the call is no JSON"),
    ("tags", tags(""), "the call is no JSON"),
    ("tags", tags('{"name": "zoom"} {"name": "zoom"}'), "the call is no JSON: Extra data at character 18"),
    ("tags", tags('"zoom"'), "a call is a JSON object"),
    ("tags", tags("{}"), "a call needs the name of a tool"),
    ("tags", tags('{"name": 3}'), "a call needs the name of a tool"),
    ("tags", tags('{"name": "<image>"}'), "a call needs the name of a tool"),
    ("tags", tags('{"name": "zoom\\n"}'), "a call needs the name of a tool"),
    ("tags", tags(json.dumps({"name": "z" * 65})), "a call needs the name of a tool"),
    ("tags", tags('{"name": "zoom", "arguments": [1]}'), "the arguments of zoom are no JSON object"),
    ("tags", tags('{"name": "zoom", "arguments": "left"}'), "the call is no JSON"),
    ("tags", tags('{"name": "zoom", "arguments": {"x": NaN}}'), "holds a number that is not finite"),
    ("tags", tags('{"name": "zoom", "arguments": {"x": -Infinity}}'), "holds a number that is not finite"),
    ("tags", tags('{"name": "zoom", "arguments": {"x": 1e999}}'), "holds a number beyond 1e+12"),
    ("tags", tags('{"name": "zoom", "arguments": {"x": ' + "9" * 5000 + "}}"), "holds a number beyond 1e+12"),
    ("tags", tags('{"name": "zoom", "arguments": {"x": "\\ud800"}}'), "holds half a character"),
    ("tags", tags("[" * 50_000), "nested deeper than 8 levels"),
    ("tags", tags('{"a":' * 9 + "1" + "}" * 9), "nested deeper than 8 levels"),
    ("tags", tags(json.dumps({"name": "zoom", "arguments": {"x": "y" * LONGEST}})), "characters long, and may be 65536"),
    ("json", '{"actions": {"name": "OCR"}}', "actions is no list of calls"),
    ("json", '{"actions": ["OCR"]}', "a call is a JSON object"),
    ("json", '{"thought": "cut in the mid', "the call is no JSON"),
    ("json", f"{TERMINATE} {TERMINATE}", "the call is no JSON: Extra data"),
    ("code", "<code>print(1)", "the code has no end: write </code> behind it"),
    ("code", "```python\nprint(1)", "the code has no end: write ``` behind it"),
    ("code", "<code>```python\n```</code>", "the code is empty"),
    ("code", "<code>print('\ud800')</code>", "the code holds half a character"),
    ("code", f"<code>{'x' * (LONGEST + 1)}</code>", "the code is 65537 characters long, and may be 65536"),
]


@pytest.mark.parametrize(("form", "text", "message"), MALFORMED, ids=[f"{i}" for i in range(len(MALFORMED))])
def test_every_failure_is_a_sentence_without_the_models_words(form: Form, text: str, message: str):
    with pytest.raises(CallError) as caught:
        parse_call(text, form)
    said = str(caught.value)
    assert message in said and len(said) < 200 and "\n" not in said and "<image>" not in said


PIECES = ("<tool_call>", "</tool_call>", "<tool_call>{", "<think>", "</think>", "<think></think>", '"', '{"', '\\"', "{", "[{")
PIECES += ("```python", "<code>", "<code>```")


@pytest.mark.parametrize("form", ["tags", "json", "code"])
@pytest.mark.parametrize("piece", PIECES)
def test_repetition_takes_linear_time(form: Form, piece: str):
    """Reading in quadratic time would take minutes."""
    for text in (piece * (1_000_000 // len(piece)), f"<tool_call>{piece * (LONGEST // len(piece) - 20)}\\</tool_call>"):
        with suppress(CallError):
            parse_call(text, form)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a", "a"),
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),
        ("a<think>b</think>c<think>d</think>e", "ace"),
        ("a<think>b", "a"),
        ("a</think>b</think>c", "c"),
    ],
)
def test_thoughts_are_left_out(text: str, kept: str):
    assert without_thoughts(text) == kept


def test_arguments_are_read_or_named():
    call = Call("zoom", {"bbox_2d": [1, 2.5, 3, 4], "t": 7, "label": "cat", "on": True, "mixed": [1, "2"]})
    assert call.numbers("bbox_2d", 4) == (1.0, 2.5, 3.0, 4.0) and call.numbers("t", 1) == (7.0,) and call.text("label") == "cat"
    wrong: list[tuple[str, int, str]] = [
        ("bbox_2d", 2, "zoom needs bbox_2d: a list of 2 numbers"),
        ("mixed", 2, "zoom needs mixed"),
        ("on", 1, "zoom needs on: one number"),
        ("absent", 4, "zoom needs absent: a list of 4 numbers"),
    ]
    for key, count, message in wrong:
        refused(message, call.numbers, key, count, error=CallError)
    refused("zoom needs t: a text", call.text, "t", error=CallError)
