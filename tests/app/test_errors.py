"""What is a bug and what a sentence; and what of data, models and servers may reach a terminal or a file of JSON."""

import errno
import io
import json
import logging
import math
import os
import subprocess
import sys
import threading
import zlib
from dataclasses import dataclass
from http.client import InvalidURL
from pathlib import Path

import numpy as np
import pytest
from rich.progress import TextColumn
from rich.table import Table
from safetensors import SafetensorError
from torch import OutOfMemoryError

from mmrl.app import errors as module
from mmrl.app.errors import TRACEBACK, Screen, Terminal, Wait, brief, is_for_people, printable, sentence, waiting
from mmrl.app.files import json_text
from mmrl.app.plugins.resolve import load
from mmrl.app.run.context import OnTerminal
from mmrl.app.run.trackers import Progress
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.workers import WorkerError

ESCAPES = ("\x1b]52;c;aGk=\x07", "\x1b[2J", "\x9b2J", "\x07", "\x00", "\x7f", "\u202egpj.exe", "\u2028", "\udc80")


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - some of these are not Exceptions
        return caught


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        OSError("x"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        InvalidURL("x"),
        SafetensorError("x"),
        OverflowError("x"),
        MemoryError(),
        RecursionError("x"),
        OutOfMemoryError("x"),
        zlib.error("x"),
        Exception("as tokenizers raise it"),
        WorkerError("x"),
        RewardUnavailableError("x"),
        ModuleNotFoundError("this reward needs the package 'cv2'"),
        ModuleNotFoundError("No module named 'cv2'", name="cv2"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_no_bug_is_a_sentence(error: Exception):
    assert is_for_people(raised(error))
    assert sentence(raised(error)).count("\n") == 0 and len(sentence(raised(error))) > 10


@pytest.mark.parametrize(
    "error",
    [
        TypeError("x"),
        KeyError("x"),
        IndexError("x"),
        AttributeError("x"),
        RuntimeError("x"),
        AssertionError(),
        ZeroDivisionError(),
        ModuleNotFoundError("x", name="mmrl.gone"),
        SystemExit(0),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_bugs_and_requests_to_leave_are_none(error: BaseException):
    assert not is_for_people(raised(error))


def test_no_sentence_where_a_traceback_was_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TRACEBACK, "1")
    assert not is_for_people(raised(ValueError("x")))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("[].pop()", "mine.py, line 2 raised IndexError: pop from empty list (--traceback shows where)"),
        ("raise SystemExit(0)", "mine.py, line 2 raised SystemExit: 0"),
        ("raise ValueError('no boxes')", "no boxes ("),
    ],
)
def test_a_plug_ins_error_names_its_line(body: str, said: str, tmp_path: Path):
    (tmp_path / "mine.py").write_text(f"def mine(group):\n    {body}\n")
    with pytest.raises(BaseException) as caught:
        load(f"{tmp_path}/mine.py", "rewards")(None)
    error = caught.value
    assert is_for_people(error) and said in sentence(error) and f"{tmp_path}/mine.py, line 2" in sentence(error)


def test_a_shipped_plug_in_speaks_for_itself():
    with pytest.raises(ValueError) as caught:
        load("length", "rewards")(low=3, high=1, slope=0)
    assert "length.py" not in sentence(caught.value)


def test_messages_and_warnings_are_cut_and_written_out(capsys: pytest.CaptureFixture[str]):
    assert len(sentence(ValueError("x" * 1_000_000))) < 2000
    assert len(brief("\n".join(["a line"] * 10_000)).splitlines()) == 101
    cut = sentence(ValueError("a" + "x" * 5000 + "z"))
    assert cut.startswith("a") and "characters left out) ..." in cut and "z (" in cut
    OnTerminal().emit(logging.LogRecord("mmrl", logging.WARNING, "", 0, "x\x1b[2J" + "y" * 10_000, None, None))
    written = capsys.readouterr().err
    assert "\x1b" not in written and 1000 < len(written) < 2000


@pytest.mark.parametrize("escape", ESCAPES)
def test_control_characters_are_written_out_and_no_line_can_be_written_over(escape: str):
    text = printable(f"a{escape}\tb\nc")
    assert text.isascii() and "\tb\nc" in text and "\\" in text
    assert sentence(ValueError(f"a{escape}b")).isprintable()
    assert printable("an answer\rmmrl: all is well\r\n") == "an answer\\rmmrl: all is well\r\n"


def test_tables_lines_and_the_progress_bar_show_texts_as_they_are(capsys: pytest.CaptureFixture[str]):
    console = Terminal(stderr=True)
    grid = Table("[/b]\x1b[2J")
    grid.add_row("[/i]\x1b]0;title\x07")
    console.print(grid)
    console.print("[/b] \x1b[2J", "[red]x")
    written = capsys.readouterr().err
    assert "\x1b" not in written and "\x07" not in written
    for text in ("[/b]\\x1b[2J", "[/i]\\x1b]0;title\\x07", "[red]x"):
        assert text in written
    progress = Progress(3, 4)
    progress.after_step(1, {"reward/[b]\x1b[2J": 1.0, "reward/b": 2.0, "time/step_s": 1.0}, None)
    written = capsys.readouterr().err
    assert "[b]\\x1b[2J 1" in written and "\x1b" not in written
    column = next(c for c in progress.bar.columns if isinstance(c, TextColumn) and "description" in c.text_format)
    assert "[b]" in str(column.render(progress.bar.tasks[0]))


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool = False) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def test_a_screen_lets_through_what_is_drawn_with_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    drawn = "\x1b[1;31mred\x1b[0m\x1b[2K\x1b[1A\x1b[?25l\r"
    for is_terminal, expected in ((True, drawn), (False, drawn.replace("\x1b", "\\x1b"))):
        screen = Screen(stream := Stream(is_terminal))
        screen.write(drawn + "".join(ESCAPES))
        assert stream.getvalue().startswith(expected)
        assert stream.getvalue()[len(expected) :].isascii() and "\x1b" not in stream.getvalue()[len(expected) :]
    assert Screen(Stream()).encoding == Stream().encoding


def test_a_terminal_that_is_gone_does_not_stop_a_run(tmp_path: Path):
    def gone(number: int, is_stderr: bool) -> tuple[Screen, io.TextIOWrapper]:
        file = (tmp_path / "out").open("w")
        screen = Screen(file, is_stderr)
        error = OSError(number, "gone")

        class Broken:
            def write(self, text: str) -> int:
                raise error

            fileno = file.fileno

        screen.stream = Broken()  # pyright: ignore[reportAttributeAccessIssue]
        return screen, file

    for number, is_stderr in ((errno.EIO, True), (errno.EPIPE, True), (errno.EIO, False)):
        screen, file = gone(number, is_stderr)
        assert screen.write("x") == 1
        assert os.path.samestat(os.fstat(file.fileno()), os.stat(os.devnull))
        file.close()
    screen, file = gone(errno.EPIPE, False)
    with pytest.raises(OSError, match="gone"):
        screen.write("x")
    file.close()


def test_what_takes_a_moment_is_told_while_it_lasts_and_what_is_quick_is_not(monkeypatch, caplog: pytest.LogCaptureFixture):
    told = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert record.getMessage() == "loading model m ..."
            told.set()

    listener = Listener()
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    caplog.set_level("INFO", logger="mmrl.loading")
    monkeypatch.setattr(module.log, "propagate", False)
    module.log.addHandler(listener)
    try:
        with waiting("loading model m"):
            assert told.wait(60), "it is told before it ends"
    finally:
        module.log.removeHandler(listener)
    monkeypatch.setattr(module, "PATIENCE_S", 3600.0)
    caplog.set_level("INFO", logger="mmrl.loading")
    monkeypatch.setattr(module.log, "propagate", True)
    with pytest.raises(ZeroDivisionError), waiting("reading data"):
        raise ZeroDivisionError
    assert caplog.messages == []


def test_an_end_comes_twice_or_without_a_beginning() -> None:
    wait = Wait("x")
    for act in (wait.end, wait.begin, wait.end, wait.end):
        act()


def test_it_needs_no_torch() -> None:
    code = "import sys, mmrl.app.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@dataclass
class Point:
    x: float
    name: object


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        ([math.inf, -math.inf, 1.5], [None, None, 1.5]),
        (np.float32(0.5), 0.5),
        (np.float32("nan"), None),
        (np.int64(3), 3),
        (True, True),
        (Path("a/b"), "a/b"),
        ({1: (2, 3)}, {"1": [2, 3]}),
        (Point(math.nan, Point(1.0, {"a"})), {"x": None, "name": {"x": 1.0, "name": ["a"]}}),
        (np.zeros(2), "[0. 0.]"),
    ],
    ids=str,
)
def test_everything_is_json(value: object, expected: object):
    assert json.loads(json_text(value), parse_constant=pytest.fail) == expected


def test_no_character_reaches_a_terminal_as_it_is():
    """The terminal writes control characters out as Python does, which JSON does not read."""
    text = json_text("\x1b]0;owned\x07\x9b\u202e\ud800ä")
    assert text.isascii() and text.isprintable() and json.loads(text) == "\x1b]0;owned\x07\x9b\u202e\ud800ä"
