"""Decoding clips starts in processes of its own, so it must not wait for torch."""

import pkgutil
import subprocess
import sys

import pytest

from mmrl.policies import video

MODULES = sorted(f"{video.__name__}.{module.name}" for module in pkgutil.iter_modules(video.__path__))


@pytest.mark.parametrize("module", [video.__name__, *MODULES])
def test_no_torch_is_imported(module):
    code = "import importlib, sys; importlib.import_module(sys.argv[1]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
