"""The settings of the process, as they are read and put back."""

import pytest
import torch

from mmrl.runtime.process_state import process_state


def test_a_default_device_that_was_taken_back_is_the_cpu(monkeypatch: pytest.MonkeyPatch):
    def fails_as_older_ones_do() -> torch.device:
        raise AttributeError("'NoneType' object has no attribute 'device'")

    monkeypatch.setattr(torch, "get_default_device", fails_as_older_ones_do)
    assert process_state().device == "cpu"
