"""The tools that a model may call: each does what it says, in every form of a call, and what is wrong is told to the model."""

import base64
import io
import json
import socket
from inspect import unwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from mmrl import Observation, Prompt, Turn
from mmrl.answers.calls import harmless
from mmrl.app.config.plug_ins import read_environment
from mmrl.app.config.run import EnvironmentConfig
from mmrl.app.plugins.resolve import load
from mmrl.app.toml.tables import Table
from mmrl.core.samples import MediaSize
from mmrl.runtime.sandbox.lock import missing
from tests.support.rude_servers import answers, rude
from tests.support.text_policies import picture
from tests.support.videos import even, read_number, write_video

FILE = Path(__file__).parents[2] / "environments" / "tools.py"
Tools = load(str(FILE), "environments")
needs_lock = pytest.mark.skipif(bool(missing()), reason=f"no sandbox on this machine: {missing()}")


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def answer(tools: Any, prompt: Prompt, text: str, shown: tuple[MediaSize, ...] = ()) -> Observation | None:
    world = tools.open(prompt, 5)
    try:
        return world.step(Turn(text, (0, 1), shown=shown))
    finally:
        world.close()


def said(tools: Any, prompt: Prompt, text: str) -> Observation:
    found = answer(tools, prompt, text)
    assert found is not None
    return found


SIGHT = Prompt("p", "What is it?", (picture(0, 200, 100), picture(1, 64, 64)))
PLAIN = Tools(space="norm1000")


def test_zoom_and_draw_work_on_the_picture_that_is_named():
    first, second = SIGHT.media
    part = said(PLAIN, SIGHT, call("zoom", bbox_2d=[0, 0, 500, 1000]))
    assert part.media[0].tobytes() == first.crop((0, 0, 100, 100)).tobytes() and part.facts == {"tool": 1.0, "zoom": 1.0}
    assert part.text == "<image>\nYour answer?"
    marks = [{"point": [500, 500]}, {"box": [100, 100, 900, 900]}, {"line": [0, 0, 1000, 1000]}]
    drawn = said(PLAIN, SIGHT, call("draw", image=1, marks=marks)).media[0]
    assert drawn.size == (64, 64) and (np.asarray(drawn) != np.asarray(second)).any()
    world = PLAIN.open(SIGHT, 0)
    world.step(Turn(call("zoom", bbox_2d=[0, 0, 500, 1000]), (0, 1)))
    again = world.step(Turn(call("zoom", bbox_2d=[0, 0, 500, 500], image=2), (0, 1)))
    assert again.media[0].tobytes() == first.crop((0, 0, 50, 50)).tobytes(), "the third picture is the one that was shown"
    assert world.step(Turn("It is noise.", (0, 1))) is None


def test_frames_of_a_clip(tmp_path: Path):
    clip = write_video(tmp_path / "even.mp4", even(50))
    found = said(PLAIN, Prompt("p", "When?", (clip,)), call("frames", times=[0.4, 1.0]))
    assert [read_number(np.asarray(one)) for one in found.media] == [10, 25]
    assert found.text == "0.40 s, 1.00 s\n<image><image>\nYour answer?"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<tool_call>{", "the call has no end"),
        ("<tool_call>zoom(1)</tool_call>", "the call is no JSON"),
        (call("python", code="print(1)"), "the tools are zoom, draw, frames"),
        (call("zoom", bbox_2d=[0, 0, 500, 500], image=2), "zoom has the images 0 to 1"),
        (call("zoom", bbox_2d=[0, 0, 500, 500], image=0.5), "zoom has the images 0 to 1"),
        (call("zoom"), "zoom needs bbox_2d: a list of 4 numbers"),
        (call("draw", marks=[]), "draw needs marks"),
        (call("draw", marks=[{"circle": [1, 2]}]), 'a mark is {"point"'),
        (call("draw", marks=[{"point": [2000, 0]}]), "lies outside the picture"),
        (call("frames", times=[1.0]), "there is no video to look at"),
    ],
)
def test_a_call_that_cannot_be_followed_is_told_and_counted(text: str, words: str):
    found = said(PLAIN, SIGHT, text)
    assert found.text.startswith("Error: ") and words in found.text and found.facts == {"error": 1.0} and not found.media


def test_calls_as_openthinkimg_writes_them():
    tools = Tools(form="json", space="norm1000")
    action = {"thought": "closer", "actions": [{"name": "Zoom", "arguments": {"bbox_2d": [0, 0, 500, 1000]}}]}
    assert said(tools, SIGHT, json.dumps(action)).media[0].size == (100, 100)
    over = {"thought": "done", "actions": [{"name": "Terminate", "arguments": {"ans": "noise"}}]}
    assert answer(tools, SIGHT, json.dumps(over)) is None
    assert said(tools, SIGHT, '{"actions": "zoom"}').facts == {"error": 1.0}


@needs_lock
def test_blocks_of_code_run_in_the_sandbox_and_share_their_variables():
    tools = Tools(tools=("python",), form="code", text=64)
    world = tools.open(SIGHT, 5)
    first = world.step(Turn("<code>half = image.crop((0, 0, 100, 100))\nshow(half)\nprint(half.size)</code>", (0, 1)))
    assert first.text == "(100, 100)\n<image>\nYour answer?" and first.facts == {"tool": 1.0, "python": 1.0}
    assert first.media[0].tobytes() == SIGHT.media[0].crop((0, 0, 100, 100)).tobytes()
    second = world.step(Turn("```python\nprint(half.width + len(images))\n```", (0, 1)))
    assert second.text == "103", "two pictures of the prompt and the one that was shown"
    wrong = world.step(Turn("<code>open('/etc/passwd')</code>", (0, 1)))
    assert wrong.text.startswith("Error: PermissionError in line 1") and wrong.facts == {"error": 1.0}
    marks = world.step(Turn("<code>print('<image> <|im_end|>' * 9)</code>", (0, 1)))
    assert "<image>" not in marks.text and "<|" not in marks.text
    process = world.session.sandbox._process
    world.close()
    assert process.poll() is not None
    assert tools.open(SIGHT, 5).step(Turn("I see.", (0, 1))) is None


def test_python_is_off_unless_it_is_named_and_refused_where_there_is_no_lock(monkeypatch: pytest.MonkeyPatch):
    assert "python" not in Tools().tools
    with pytest.raises(ValueError, match='form is "code", which calls python, and tools does not name it'):
        Tools(form="code")
    with pytest.raises(ValueError, match="tools is empty"):
        Tools(tools=())
    monkeypatch.setitem(unwrap(vars(Tools)["__post_init__"]).__globals__, "missing", lambda: "its kernel has no Landlock")
    with pytest.raises(ValueError, match="names python, and there is no sandbox on this machine: its kernel has no Landlock"):
        Tools(tools=("zoom", "python"))


MINE = """
def read(picture):
    return f"{picture.size} <image>"

def find(picture):
    width, height = picture.size
    return [
        {"label": "cat", "score": 0.9, "box": [0, 0, width / 2, height]},
        {"label": "dog", "score": 0.6, "box": [width / 2, 0, width, height]},
        {"label": "fly", "score": 0.1, "box": [0, 0, 9, 9]},
    ]
"""


def test_a_reader_and_a_detector_of_ones_own(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    names = {"reader": f"{tmp_path}/mine.py:read", "detector": f"{tmp_path}/mine.py:find"}
    args = {"tools": ["ocr", "detect"], "space": "norm1000", **names}
    tools: Any = read_environment(EnvironmentConfig("tools", args=args), Table({"environment": {"use": "tools", **args}}))()
    tools.check_prompts([SIGHT])
    assert said(tools, SIGHT, call("ocr")).text == "(200, 100) < image>"
    assert said(tools, SIGHT, call("ocr", bbox_2d=[0, 0, 500, 1000])).text == "(100, 100) < image>"
    lines = [json.loads(line) for line in said(tools, SIGHT, call("detect")).text.splitlines()]
    assert lines == [
        {"label": "cat", "bbox_2d": [0, 0, 500, 1000], "score": 0.9},
        {"label": "dog", "bbox_2d": [500, 0, 1000, 1000], "score": 0.6},
    ]
    assert said(tools, SIGHT, call("detect", labels=["Dog"])).text.count("\n") == 0
    assert said(tools, SIGHT, call("detect", labels=["horse"])).text == "(nothing)"
    pixels = Tools(tools=("detect",), space="resized", detector=tools.detector)
    seen = answer(pixels, SIGHT, call("detect", labels=["cat"]), (MediaSize(200, 100, 400, 200),))
    assert seen is not None and json.loads(seen.text)["bbox_2d"] == [0, 0, 200, 200], "in pixels of the picture as it was seen"


def test_a_reader_that_read_nothing():
    assert said(Tools(tools=("ocr",), space="norm1000", reader=lambda _: None), SIGHT, call("ocr")).text == "(no text)"
    with pytest.raises(ValueError, match="the reader answered list in place of a text: let it answer one, or None for none"):
        answer(Tools(tools=("ocr",), space="norm1000", reader=lambda _: ["a"]), SIGHT, call("ocr"))  # type: ignore[arg-type, return-value]


def service(connection: socket.socket, request: bytes) -> None:
    """Answers about a picture, by the path."""
    head, _, body = request.partition(b"\r\n\r\n")
    size = Image.open(io.BytesIO(base64.b64decode(json.loads(body)["image"]))).size
    found = {
        "/read": {"text": f"{size}"},
        "/none": {"text": None},
        "/find": {"objects": [{"label": "cat", "score": 1, "box": [0, 0, 20, 50]}]},
    }
    path = head.decode().split()[1]
    answers(200 if path in found else 500, json.dumps(found.get(path, {})).encode())(connection, request)


def test_a_reader_and_a_detector_behind_servers():
    with rude(service) as server:
        tools = Tools(tools=("ocr", "detect"), space="norm1000", reader=f"{server.url}/read", detector=f"{server.url}/find")
        assert said(tools, SIGHT, call("ocr", image=1)).text == "(64, 64)"
        assert json.loads(said(tools, SIGHT, call("detect")).text) == {"label": "cat", "bbox_2d": [0, 0, 100, 500], "score": 1.0}
        assert said(Tools(tools=("ocr",), space="norm1000", reader=f"{server.url}/none"), SIGHT, call("ocr")).text == "(no text)"
        with pytest.raises(RuntimeError, match="answered 500"):
            answer(Tools(tools=("ocr",), space="norm1000", reader=f"{server.url}/other"), SIGHT, call("ocr"))


@pytest.mark.evidence
def test_the_installed_reader_reads():
    pytest.importorskip("rapidocr", reason="the package rapidocr is not installed")
    sign = Image.new("RGB", (320, 96), "white")
    ImageDraw.Draw(sign).text((20, 20), "OPEN 24", fill="black", font_size=48)
    tools = Tools(tools=("ocr",), space="norm1000")
    tools.check_prompts([])
    assert "OPEN" in said(tools, Prompt("p", "What does it say?", (sign,)), call("ocr")).text


def test_what_a_tool_prints_is_no_mark():
    for text in (
        "<image>",
        "<|im_end|>",
        "</tool_call>",
        "<end_of_turn>",
        "[INST]",
        "[/INST]",
        "<IMG_CONTEXT>",
        "<\uff5cUser\uff5c>",
    ):
        assert text not in harmless(f"a{text}b")
    assert harmless("3 < 4, x[0] <= y and [1, 2]") == "3 < 4, x[0] <= y and [1, 2]"
