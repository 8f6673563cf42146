"""Plug-in files: where names are looked up, what a file must hold, and that listing imports nothing."""

import os
import pickle
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mmrl.app.config.plug_ins import read_data, read_rewards, reward_of
from mmrl.app.config.run import DataConfig, UnweightedReward
from mmrl.app.errors import sentence
from mmrl.app.plugins.resolve import default_name, guarded, is_installed, listing, load, locate, shipped_folder
from mmrl.app.toml.tables import Table
from mmrl.runtime.blame import know_ctrl_c
from mmrl.runtime.near import nearest
from mmrl.runtime.process_state import process_state
from tests.support.refused import refused


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a folder for rewards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards").mkdir()
    return tmp_path


ONE_TWO = "def one(group):\n    return 1\n\ndef two(group):\n    return 2\n\ndef _three(group): ...\n"


@pytest.mark.parametrize(
    ("file", "text", "use", "base", "answer"),
    [
        ("rewards/iou.py", "def mine(group):\n    return 7\n", "iou", ".", 7),
        ("deep/mine.py", ONE_TWO, "mine.py:two", "deep", 2),
        ("mine.py", '__all__ = ["two"]\n' + ONE_TWO, "./mine.py", ".", 2),
        ("own.py", "from math import floor\nfrom pathlib import Path\n\ndef one(group):\n    return 1\n", "./own.py", ".", 1),
    ],
    ids=["before the shipped one", "relative to a base", "chosen by __all__", "imports are not its own"],
)
def test_what_a_name_means_in_the_working_directory(desk: Path, file: str, text: str, use: str, base: str, answer: int):
    assert locate("iou", "rewards") == ((shipped_folder("rewards") / "iou.py").resolve(), "")
    (desk / file).parent.mkdir(exist_ok=True)
    (desk / file).write_text(text)
    assert load(use, "rewards", desk / base)(None) == answer


@pytest.mark.parametrize(
    ("text", "said"), [(ONE_TWO, r"2 public callables \(one, two\).*\./mine\.py:one"), ("x = 1\n", "no public function or class")]
)
def test_a_file_of_which_nothing_says_what_is_meant(desk: Path, text: str, said: str):
    (desk / "mine.py").write_text(text)
    with pytest.raises(ValueError, match=said):
        load("./mine.py", "rewards")


def test_postponed_annotations_and_pickling_work(desk: Path):
    imports = "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
    (desk / "rewards" / "mine.py").write_text(imports + "@dataclass(frozen=True)\nclass Mine:\n    x: int = 3\n")
    cls = load("mine", "rewards")
    assert cls.__module__ == "mmrl_plugin__rewards__mine"
    assert pickle.loads(pickle.dumps(cls(4))) == cls(4)  # noqa: S301 - our own bytes


def test_a_file_runs_once_and_files_of_one_name_in_two_folders_are_two_modules(desk: Path):
    (desk / "mine.py").write_text("def short(group): ...\n")
    assert load("./mine.py", "rewards") is load("mine.py:short", "rewards")
    for folder, value in (("a", 1), ("b", 2)):
        (desk / folder).mkdir()
        (desk / folder / "mine.py").write_text(f"def short(group):\n    return {value}\n")
    assert [load(f"{folder}/mine.py", "rewards")(None) for folder in "ab"] == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def short(:\n", r"line 1 is not Python"),
        ("import no_such_package\n", "imports 'no_such_package', which is not installed"),
        ("import mmrl.elsewhere\n", "imports 'mmrl.elsewhere', which this mmrl does not have: it was moved or renamed"),
    ],
    ids=["syntax", "import", "module of mmrl"],
)
def test_a_file_that_fails_leaves_no_module(desk: Path, text: str, message: str):
    (desk / "rewards" / "bad.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        load("bad", "rewards")
    assert "mmrl_plugin__rewards__bad" not in sys.modules


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"no reward is called 'iuo': did you mean 'iou'\?.*format"):
        load("iuo", "rewards")
    with pytest.raises(ValueError, match=r"has no callable 'Iuo': did you mean 'Iou'"):
        load("iou:Iuo", "rewards")
    assert nearest("learning_rate", ["lr", "lr_schedule", "kind"]) == "lr" and nearest("rate", ["lr"]) is None
    with pytest.raises(FileNotFoundError, match=r"nope\.py for the data set"):
        load("./nope.py", "datasets")
    with pytest.raises(FileNotFoundError, match="no folder of a trained reward model is at runs/rm"):
        locate("runs/rm", "rewards")


def test_listing_imports_nothing(desk: Path):
    (desk / "rewards" / "bomb.py").write_text('"""Says boom.\n\nMore."""\nraise SystemExit\n')
    (desk / "rewards" / "_private.py").write_text("")
    (desk / "rewards" / "odd.py").write_text("def (\n")
    found = {listed.name: listed.summary for listed in listing("rewards")}
    assert found["bomb"] == "Says boom."
    assert found["odd"].startswith("(not Python")
    assert "iou" in found
    assert "_private" not in found


def test_default_names_leave_folder_and_prefix_out():
    specs = ("iou", "./mine.py", "./mine.py:short", "a/b.py:C", "trl:./mine.py:solved", "flow_grpo:./mine.py")
    assert list(map(default_name, specs)) == ["iou", "mine", "short", "C", "solved", "mine"]


def test_a_file_may_import_its_neighbours(desk: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (desk / "deep").mkdir()
    (desk / "deep" / "beside_it.py").write_text("def seven():\n    return 7\n")
    (desk / "deep" / "asks.py").write_text("from beside_it import seven\n\ndef asks(group):\n    return [seven()]\n")
    assert load("./deep/asks.py", "rewards")(None) == [7]
    del sys.modules["beside_it"]


@pytest.mark.parametrize("name", ["json", "colorsys"])
def test_a_neighbour_with_the_name_of_something_else_is_refused(name: str, desk: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (desk / f"{name}.py").write_text("")
    (desk / "asks.py").write_text(f"import {name}\n\ndef asks(group):\n    return [1.0]\n")
    with pytest.raises(ValueError, match=rf"asks\.py imports '{name}', which would be .*rename yours"):
        load("./asks.py", "rewards")


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    before = process_state()
    yield
    assert process_state() == before
    before.restore()


def write(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text + "\ndef mine(group):\n    return [0.0] * len(group.samples)\n")
    return str(folder / "mine.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit()", r"SystemExit: .*line 2"),
        ("import sys\nsys.exit(0)", r"SystemExit: 0 .*line 2"),
        ("raise BaseException('x')", r"BaseException: x .*line 1"),
        ("import asyncio\nraise asyncio.CancelledError", r"CancelledError: .*line 2"),
        ("1 + 'a'", r"TypeError: unsupported .*line 1"),
        ("[][0]", r"IndexError: .*line 1"),
        ("import os\nos.chdir('/')", r"it changed the working directory from .* to /"),
        ("import torch\ntorch.set_default_dtype(torch.float64)", r"default dtype from float32 to float64"),
        ("import torch\ntorch.set_grad_enabled(False)", r"gradient mode from True to False"),
        ("import torch\ntorch.set_default_device('meta')", r"default device from cpu to meta"),
        ("import torch\ntorch.use_deterministic_algorithms(True)", "deterministic algorithms"),
        ("import os\nos.chdir('/')\nraise OSError('too bad')", "too bad"),
    ],
)
def test_a_file_that_does_anything_else_than_define(text: str, message: str, tmp_path: Path):
    file = write(tmp_path, text)
    with pytest.raises((ValueError, OSError), match=message) as refused:
        load(file, "rewards")
    assert "too bad" in message or str(tmp_path) in str(refused.value)
    assert not [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == file]


CLASS = """
import os, sys, torch
class Mine:
    def __init__(self):
        {body}
    def __call__(self, group): ...
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit(0)", r"reward\.0: .*mine\.py raised SystemExit: 0 \(.*mine\.py, line 5\): mend it"),
        ("raise ImportError('it needs foo: pip install foo')", r"mine\.py: it needs foo: pip install foo$"),
        ("[].pop()", r"raised IndexError: .*line 5"),
        ("os.chdir('/')", r"reward\.0: .*mine\.py: it changed the working directory"),
        ("torch.set_grad_enabled(False)", "gradient mode"),
    ],
)
def test_a_reward_that_does_so_when_it_is_made(body: str, message: str, tmp_path: Path):
    (tmp_path / "mine.py").write_text(CLASS.format(body=body))
    table = Table.of({"reward": [{"use": str(tmp_path / "mine.py")}]}, "a.toml")
    [(_, make)] = read_rewards([UnweightedReward(str(tmp_path / "mine.py"))], ("reward",), table, {})
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("made", ["def __post_init__(self):", "size: int = 3\n    def __post_init__(self):"])
def test_a_constructors_own_error_names_its_line(made: str, tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(
        f"from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Mine:\n    {made}\n"
        "        raise ValueError('size is odd')\n    def __call__(self, group): ...\n"
    )
    table = Table.of({"reward": [{"use": str(file)}]}, "a.toml")
    [(_, make)] = read_rewards([UnweightedReward(str(file))], ("reward",), table, {})
    with pytest.raises(ValueError) as refused:
        make()
    assert re.search(r"size is odd \(.*mine\.py, line \d\)$", sentence(refused.value))


def test_a_data_set_that_leaves(tmp_path: Path):
    (tmp_path / "mine.py").write_text("import sys\ndef mine():\n    sys.exit(0)\n")
    with pytest.raises(ValueError, match=r"data: .*mine\.py raised SystemExit: 0 \(.*line 3\)"):
        read_data(DataConfig(str(tmp_path / "mine.py")), ("data",), Table())()


def test_an_interrupt_of_the_terminal_passes_and_under_the_command_no_other():
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt), guarded("mine"):
            raise KeyboardInterrupt
        know_ctrl_c()
        with pytest.raises(KeyboardInterrupt), guarded("mine"):
            signal.raise_signal(signal.SIGINT)
        for other in (signal.getsignal(signal.SIGINT), signal.SIG_IGN):
            signal.signal(signal.SIGINT, other)
            with pytest.raises(ValueError, match="mine raised KeyboardInterrupt"), guarded("mine"):
                raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)


LACKS = """
import os
def _helper():
    import no_such_package.inside
def _tool():
    return import_package("no_such_tool.part", "pip install it")
class Judge:
    def __call__(self, group):
        return self.score()
    def score(self):
        from no_such_judge import x
def mine(group):
    return _helper()
def tooled(group):
    return _tool()
def fine(group):
    try:
        import no_such_package
    except ImportError:
        pass
    if group is None:
        import no_such_package
    import json, os.path
def standing_alone(group): ...
"""


@pytest.mark.parametrize(
    ("name", "package", "line"), [("mine", "no_such_package", 4), ("tooled", "no_such_tool", 6), ("Judge", "no_such_judge", 11)]
)
def test_a_package_that_is_imported_later_is_missed_at_build(name: str, package: str, line: int, tmp_path: Path):
    (tmp_path / "mine.py").write_text(LACKS)
    with pytest.raises(ValueError, match=rf"mine\.py, line {line} imports '{package}', which is not installed: pip install"):
        reward_of(f"{tmp_path}/mine.py:{name}", {}, ("reward", "0"), Table())


def test_what_may_never_be_imported_is_not_asked_for(tmp_path: Path):
    (tmp_path / "mine.py").write_text(LACKS)
    for name in ("fine", "standing_alone"):
        assert callable(load(f"{tmp_path}/mine.py:{name}", "rewards"))
    assert is_installed("torch") and is_installed("__main__") and not is_installed("no_such_package")


FACTORIES = """
import torch
made = []
def scored(device):
    made.append(device)
    def _fn(images, prompts, metadata):
        return [float(image.mean()) for image in images.to(device)], {}
    return _fn
def weighed(device, weights, *rest):
    def _fn(images, prompts, metadata, only_strict):
        return [float(only_strict)] * len(prompts), {}
    return _fn
"""


def test_factories_of_flow_grpo_get_a_device_and_lack_no_key(tmp_path: Path):
    (tmp_path / "flow.py").write_text(FACTORIES)
    use = f"flow_grpo:{tmp_path}/flow.py"

    def made(name: str, **keys: object) -> object:
        return reward_of(f"{use}:{name}", keys, ("reward", "0"), Table())()

    assert callable(made("scored"))
    assert load(f"{tmp_path}/flow.py:scored", "rewards").__globals__["made"] == [torch.device("cpu")]
    refused(r"reward\.0\.weights is missing", made, "weighed")
    refused(r"reward\.0\.only_strict is missing", made, "weighed", weights={})
    refused(r"reward\.0\.only_strikt is unknown: did you mean 'only_strict'", made, "weighed", weights={}, only_strikt=True)
    assert callable(made("weighed", weights={}, only_strict=True, device="cpu"))
    with pytest.raises(ValueError, match=r"takes a device and no group.*write use = \"flow_grpo:"):
        reward_of(f"{tmp_path}/flow.py:scored", {}, ("reward", "0"), Table())


def test_the_working_directory_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with guarded("mine"):
        pass
    os.chdir(tmp_path)
