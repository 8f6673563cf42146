"""Decoding clips starts in processes of its own, so it must not wait for torch."""

import pkgutil
import subprocess
import sys

from mmrl.policies import video

MODULES = sorted(f"{video.__name__}.{module.name}" for module in pkgutil.iter_modules(video.__path__))


def test_no_torch_is_imported():
    code = "import importlib, sys; [importlib.import_module(one) for one in sys.argv[1:]]; print('torch' in sys.modules)"
    words = [sys.executable, "-c", code, video.__name__, *MODULES]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert MODULES and done.stdout.strip() == "False"
