"""Run the fast tests of what changed: python tests/changed.py [PYTEST WORDS]; with --list it only prints their folders and files.

Changed is what differs from origin/main, or from the commit before where that is nothing, and what git does not know yet.
A changed module of mmrl/ has the tests of its own room, those of the rooms that import it, and the test files that import it.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {
    "rewards": ["tests/plugins", "tests/rewards"],
    "datasets": ["tests/plugins", "tests/datasets"],
    "configs": ["tests/configs", "tests/refusals"],
    "examples": ["tests/docs"],
    "benchmarks": ["tests/benchmarks", "tests/fuzz"],
    "docs": ["tests/docs"],
    "README.md": ["tests/docs"],
    "CONTRIBUTING.md": ["tests/docs"],
}
"""Folders and files outside mmrl/ and tests/ -> who tests them; everything is watched by ALWAYS."""
ALWAYS = "tests/house"
REFUSALS = "tests/refusals"
"""What configs are refused for, of all rooms of tests/app."""
CHECKED = {"MMRL_CHECK_TYPES": "1"}
"""Types are checked at every call (tests/support/type_checks.py), which make test does without."""
MARKS = "not slow and not gpu and not evidence and not engine and not site and not wheel"


def git(*words: str, root: Path = ROOT) -> list[str]:
    """The lines of git's answer; none where it refuses."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed_files(root: Path = ROOT) -> list[str]:
    """Files that differ from origin/main (else from the commit before), both names of a renamed one, and untracked ones."""
    untracked = git("ls-files", "--others", "--exclude-standard", root=root)
    before = git("rev-parse", "--verify", "--quiet", "HEAD~1", root=root) or git("rev-parse", "HEAD", root=root)
    for base in [*git("merge-base", "HEAD", "origin/main", root=root), *before]:
        if found := {*git("diff", "--name-only", "--no-renames", base, root=root), *untracked}:
            return sorted(found)
    return []


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Dotted name -> file, for mmrl/ and tests/."""
    found: dict[str, Path] = {}
    for file in sorted([*(root / "mmrl").rglob("*.py"), *(root / "tests").rglob("*.py")]):
        words = file.relative_to(root).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = file
    return found


def imports(file: Path, known: Iterable[str]) -> set[str]:
    """The modules among `known` that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names & set(known)


def mirror(file: Path, root: Path = ROOT) -> str | None:
    """The folder of tests that mirrors the folder of a module best: tests/app/toml, else tests/app, else none."""
    folder = Path(*file.relative_to(root / "mmrl").parent.parts)
    for place in [folder, *folder.parents]:
        if place.parts and (root / "tests" / place).is_dir():
            return (Path("tests") / place).as_posix()
    return None


def users(names: set[str], graph: dict[str, set[str]]) -> set[str]:
    """The modules that import one of `names`."""
    return {name for name, used in graph.items() if used & names}


def places_to_run(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Folders and files of tests to run after these files changed; nothing within a folder that is named already."""
    files = modules(root)
    names = {file.relative_to(root).as_posix(): name for name, file in files.items()}
    graph = {name: imports(file, files) for name, file in files.items()}
    wanted: set[str] = set()
    for path in changed:
        wanted |= {place for place in ELSEWHERE.get(path.partition("/")[0], []) if (root / place).exists()}
        file, own = root / path, names.get(path)
        if path.startswith("mmrl/"):
            package = {own, *users({own}, graph)} if own else set()
            mirrors = [mirror(one, root) for one in [file, *(files[name] for name in package if name.startswith("mmrl."))]]
            rooms = [room for room in mirrors if room]
            wanted |= {*rooms, *(place for place in beside_app(rooms) if (root / place).is_dir())}
            wanted |= {files[name].relative_to(root).as_posix() for name in package if is_test(files[name])}
        elif path.startswith("tests/"):
            helped = {files[name] for name in users({own}, graph)} if own else set()
            wanted |= {test.relative_to(root).as_posix() for test in helped | {file} if is_test(test) and test.is_file()}
            if not is_test(file) and file.parent != root / "tests" and file.parent.is_dir():
                wanted.add(file.parent.relative_to(root).as_posix())
    if (root / ALWAYS).is_dir():
        wanted.add(ALWAYS)
    found = sorted(wanted)
    return [place for place in found if not any(parent.as_posix() in found for parent in Path(place).parents)]


def beside_app(rooms: Iterable[str]) -> list[str]:
    """The refusals, where one of these folders of tests looks at mmrl/app or mmrl/policies."""
    return [REFUSALS] if any(Path(room).parts[:2] in (("tests", "app"), ("tests", "policies")) for room in rooms) else []


def is_test(file: Path) -> bool:
    return file.name.startswith("test_") and file.suffix == ".py"


def main(words: list[str]) -> int:
    changed = changed_files()
    places = places_to_run(changed)
    sys.stdout.write(f"{len(changed)} files changed; their tests: {' '.join(places)}\n")
    sys.stdout.flush()
    if words == ["--list"]:
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", MARKS, *words, *places]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **CHECKED}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
