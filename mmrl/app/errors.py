"""Everything that people read: exceptions as sentences, text on a terminal, and the line that says what is being waited for.

A message may quote a file name, a label, a model's answer or a server's error. Escape sequences in it could clear the screen,
set the clipboard or make one line look like another, so each of its control characters is written as `\\x1b`.
"""

import atexit
import contextlib
import errno
import io
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from mmrl.runtime.blame import AskedToLeaveError, is_from_outside, place_of, text_of
from mmrl.runtime.net.secrets import hide

TRACEBACK = "MMRL_TRACEBACK"
PATIENCE_S = 0.7
"""What takes no longer is not worth a line."""
log = logging.getLogger("mmrl.loading")
"""The command line prints what it says, on the main process alone."""

EXTRAS = {
    "jinja2": "report",
    "matplotlib": "report",
    "sklearn": "demo",
    "pyarrow": "data",
    "fastapi": "server",
    "uvicorn": "server",
    "httpx": "server",
    "math_verify": "rewards",
    "pycocotools": "rewards",
    "rapidfuzz": "rewards",
    "rouge_score": "rewards",
}
"""Package -> the extra that installs it."""
BUGS = (
    *(TypeError, AttributeError, NameError, UnboundLocalError, KeyError, IndexError, AssertionError, NotImplementedError),
    *(RuntimeError, ZeroDivisionError, StopIteration, LookupError, ArithmeticError, BufferError, SyntaxError, IndentationError),
)
"""Exceptions of exactly these classes, outside of plug-ins, are bugs of mmrl and not mistakes of its user."""
PACKAGE = Path(__file__).resolve().parents[1]
SHIPPED = (PACKAGE / "_shipped", PACKAGE.parent / "rewards", PACKAGE.parent / "datasets", PACKAGE.parent / "environments")
"""The folders of plug-ins that came with mmrl."""
WHERE = "--traceback shows where"


def is_for_people(error: BaseException) -> bool:
    """Can a sentence say all about it, because it is no bug of mmrl? False for bugs, and for requests to exit."""
    if os.environ.get(TRACEBACK):
        return False
    if place_of(error):
        return not is_from_outside(error)
    if isinstance(error, ModuleNotFoundError):
        return not (error.name or "").startswith("mmrl")
    return isinstance(error, Exception) and type(error) not in BUGS


class StoppedExit(SystemExit):
    """A run was stopped and saved, and nothing is left to do."""


def leave_now(code: int) -> NoReturn:
    """End the process as soon as what was registered for its end is done.

    Python would free every module first, which takes a busy machine many seconds, and join threads that wait for answers.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def leave_loudly(error: BaseException) -> NoReturn:
    """Raise a bug, or a request to exit, as Python would; a plug-in that exits gets an error message."""
    if isinstance(error, AskedToLeaveError):
        sys.exit(error.args[0])
    if isinstance(error, SystemExit) and place_of(error):
        raise RuntimeError(words(error)) from error
    raise error


def sentence(error: BaseException) -> str:
    """Formats an error for the terminal; unexpected ones also say how to get a traceback."""
    return brief(printable(words(error)))


def words(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        return f'this needs the package {error.name}: pip install "mmrl[{EXTRAS[error.name]}]"'
    if isinstance(error, ModuleNotFoundError) and error.name and not place_of(error):
        return f"the package {error.name} is not installed: pip install it first ({WHERE} it is needed)"
    place, kind, text = place_of(error), type(error).__name__, text_of(error, 10_000_000)
    worded = isinstance(error, ValueError | OSError) or type(error).__module__.startswith("mmrl.")
    if place and not worded:
        return f"{place} raised {kind}: {text} ({WHERE})"
    if place and not any(Path(place.rpartition(", line ")[0]).is_relative_to(folder) for folder in SHIPPED):
        return f"{text} ({place})"
    if worded and module_of(error).partition(".")[0].startswith("mmrl"):
        return text or kind
    return f"{text or 'no reason given'} ({kind} in {module_of(error)}; {WHERE})"


def module_of(error: BaseException) -> str:
    """The module that raised an error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_globals.get("__name__", "") if frames else ""


class Commands(TyperGroup):
    """The command `mmrl`, in which a file's early end is no end of the keyboard's input, and a plug-in's interrupt no Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise ValueError(f"a file ended too early, so it is cut off or empty: {error or 'no name is known'}") from error
        except RuntimeError as error:
            # pathlib's two, at a path of the user's
            if looped := re.match("Symlink loop from '(.*)'$", str(error)):
                raise ValueError(
                    f"{looped[1]} is a link, or lies behind one, that leads back to itself: name another place"
                ) from error
            if str(error) == "Could not determine home directory.":
                raise ValueError("a path begins with ~ and a name that no user has here: write the folder out") from error
            raise
        except KeyboardInterrupt as error:
            if is_from_outside(error):
                raise
            raise ValueError(words(error)) from error


STRANGE = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
"""Control characters, those that reverse the reading direction, and halves of characters that no file can hold."""
DRAWN = r"\x1b\[[0-9;]*m|\x1b\[\d*[A-DGK]|\x1b\[\?25[lh]"
"""What rich and typer draw with: colours, the cursor along lines, and whether it is seen."""
LINE_WITH = re.compile(f"{STRANGE}|\r(?!\n)")
STREAM_WITH = re.compile(STRANGE)
TERMINAL_WITH = re.compile(f"({DRAWN})|{STRANGE}")
COLOURS_FORCED = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS")
LONGEST_LINE = 1500
MOST_LINES = 100


def printable(text: str) -> str:
    """The text without keys, and with control characters written out: `a\\x1b[2Jb`; line ends and tabs stay."""
    return LINE_WITH.sub(written_out, hide(text))


def brief(text: str, longest: int = LONGEST_LINE, most: int = MOST_LINES) -> str:
    """The text with lines of at most about `longest` characters, the middle of longer ones left out, and at most `most` lines."""
    lines = [line if len(line) <= longest else middle_cut(line, longest) for line in text.splitlines()]
    rest = [f"... ({len(lines) - most:,} more lines)"] if len(lines) > most else []
    return "\n".join(lines[:most] + rest)


def middle_cut(line: str, longest: int) -> str:
    head, tail = 2 * longest // 3, longest // 3
    return f"{line[:head]} ... ({len(line) - head - tail:,} characters left out) ... {line[-tail:]}"


def written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class Terminal(Console):
    """A console of rich on which control characters of texts are written out.

    Square brackets in texts are no markup, unless `markup` says that those of data are escaped.
    """

    def __init__(self, stderr: bool = False, soft_wrap: bool = False, markup: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, markup=markup, highlight=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


class Screen:
    """stdout or stderr as it was, but without keys and control characters other than colours, and safe when the terminal is gone.

    A program that was hung up, or whose reader left, goes on without what it would have written to stderr.
    """

    def __init__(self, stream: io.TextIOBase, is_stderr: bool = False) -> None:
        self.stream, self.is_stderr = stream, is_stderr
        is_drawn_on = stream.isatty() or any(os.environ.get(name) for name in COLOURS_FORCED)
        self.pattern = TERMINAL_WITH if is_drawn_on else STREAM_WITH

    def write(self, text: str) -> int:
        safe = self.pattern.sub(lambda found: (found.lastindex and found[1]) or written_out(found), hide(text))
        try:
            self.stream.write(safe)
        except OSError as error:
            self._leave(error)
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self._leave(error)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _leave(self, error: OSError) -> None:
        """Write nowhere from now on; a closed stdout raises BrokenPipeError, because its output is cut off."""
        if not self.is_stderr and error.errno != errno.EIO:
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.stream.fileno())
        os.close(nowhere)


def protect_streams() -> None:
    """Put a `Screen` before stdout and stderr, which also write what their encoding lacks as `\\u2026`."""
    for name, is_stderr in (("stdout", False), ("stderr", True)):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, cast(TextIO, Screen(stream, is_stderr)))


class Lines:
    """Prints a line now and then where there is no terminal on which a bar could move."""

    def __init__(self, console: Console, every_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.every_s, self.clock = console, every_s, clock
        self.last = -float("inf")

    def say(self, text: str, is_last: bool = False) -> None:
        """Print the text, unless a line was printed shortly before; the last one always."""
        now = self.clock()
        if not self.console.is_terminal and (is_last or now - self.last >= self.every_s):
            self.last = now
            self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


class Wait:
    """Something that may take long, reported once it has: `Wait("loading model m").begin()`, later `.end()`."""

    def __init__(self, what: str) -> None:
        self.what, self.began, self.is_told = what, 0.0, False
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        self.began = time.monotonic()
        if PATIENCE_S <= 0:
            self._tell()
            return
        self._timer = threading.Timer(PATIENCE_S, self._tell)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Say how long it took, if its beginning was reported; safe to call twice, and before `begin`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seconds = time.monotonic() - self.began
        if self.is_told and seconds >= 10:
            log.info("%s took %.0f s", self.what, seconds)
        self.is_told = False

    def _tell(self) -> None:
        self.is_told = True
        log.info("%s ...", self.what)


@contextmanager
def waiting(what: str) -> Generator[None]:
    """Enclose what may take long: `with waiting("loading model Qwen/Qwen2.5-VL-3B-Instruct"): ...`."""
    wait = Wait(what)
    wait.begin()
    try:
        yield
    finally:
        wait.end()


start = Wait("loading libraries")
"""From the first word of the command to where its work begins."""
