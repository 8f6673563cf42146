"""A line about what is waited for: once it has taken a moment, and never for what is quick."""

import logging
import subprocess
import sys
import threading

import pytest

from mmrl.app import errors as module
from mmrl.app.errors import Wait, waiting


def test_what_takes_a_moment_is_told_while_it_lasts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
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


def test_what_is_quick_is_not_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 3600.0)
    caplog.set_level("INFO", logger="mmrl.loading")
    monkeypatch.setattr(module.log, "propagate", True)
    with pytest.raises(ZeroDivisionError), waiting("reading data"):
        raise ZeroDivisionError
    assert caplog.messages == []


def test_an_end_comes_twice_or_without_a_beginning() -> None:
    wait = Wait("x")
    wait.end()
    wait.begin()
    wait.end()
    wait.end()


def test_it_needs_no_torch() -> None:
    code = "import sys, mmrl.app.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
