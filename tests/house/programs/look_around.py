"""Run a command of mmrl, and fail if it loaded one of these packages: PACKAGES WORDS..."""

import json
import sys


def main(packages: str, *words: str) -> None:
    sys.argv = ["mmrl", *words]
    from mmrl.app.cli import main as mmrl

    try:
        mmrl()
    except SystemExit as left:
        assert not left.code, left.code
    loaded = [name for name in json.loads(packages) if name in sys.modules]
    assert not loaded, loaded


if __name__ == "__main__":
    main(*sys.argv[1:])
