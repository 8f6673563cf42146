"""The command `mmrl` in this process: most of what a program of its own does is to import torch."""

import io
import logging
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from mmrl.app.cli import main
from mmrl.app.errors import TRACEBACK


def run_here(*words: str, cwd: Path, **environment: str) -> CompletedProcess[str]:
    """What `mmrl WORDS` prints, where, and its exit code; the process is afterwards as it was."""
    out, err, before = io.StringIO(), io.StringIO(), signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), kept_handlers("mmrl.loading"):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["mmrl", *words])
        # the program's name would be pytest's
        patch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
        for name, value in {TRACEBACK: "", "COLUMNS": "100", **environment}.items():
            patch.setenv(name, value)
        with redirect_stdout(out), redirect_stderr(err):
            code = exit_code()
    if signal.getsignal(signal.SIGINT) is not before:
        signal.signal(signal.SIGINT, before)
    return CompletedProcess(["mmrl", *words], code, out.getvalue(), err.getvalue())


def exit_code() -> int:
    """Run the command as its program would, which prints the traceback of what nothing catches."""
    try:
        main()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0
    except Exception:  # noqa: BLE001 - Python would do the same
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def kept_handlers(name: str) -> Iterator[None]:
    """A logger has afterwards the handlers, level and propagation of before."""
    logger = logging.getLogger(name)
    before = logger.handlers, logger.level, logger.propagate
    try:
        yield
    finally:
        logger.handlers, logger.level, logger.propagate = before
