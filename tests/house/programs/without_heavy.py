"""Import the public names of mmrl and every module of the rooms that are named, where heavy packages cannot be imported."""

import importlib
import json
import pkgutil
import sys
from collections.abc import Sequence


class Block:
    """Finds no module of these packages."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self.packages:
            raise ImportError(f"{name} is blocked")


def main(heavy: str, *rooms: str) -> None:
    sys.meta_path.insert(0, Block(json.loads(heavy)))  # type: ignore[arg-type] - the import system asks for find_spec alone
    public = importlib.import_module("mmrl")
    for name in public.__all__:
        getattr(public, name)
    for name in rooms:
        room = importlib.import_module(f"mmrl.{name}")
        for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
            importlib.import_module(module.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
