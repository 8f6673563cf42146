"""The command as a person types it: what it prints, where, and its exit codes; its help, completions and what `doctor` says."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image
from rich.text import Text

from mmrl.app.cli import app
from mmrl.app.cli.program import refuse_one_dash
from mmrl.app.commands import doctor
from mmrl.app.commands.help import EXAMPLES, PANELS, complete_config, complete_name, complete_reward
from mmrl.app.config import run as configs
from tests.support.command import run_here
from tests.support.each import for_each

ROOT = Path(__file__).parents[2]


def mmrl(*words: str, cwd: Path = ROOT, environment: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    return run_here(*words, cwd=cwd, **environment)


def program(*words: str, cwd: Path, environment: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    """The same as a process of its own, which may begin otherwise."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", **environment}
    return subprocess.run(
        [sys.executable, "-m", "mmrl", *words], capture_output=True, text=True, timeout=600, cwd=cwd, env=env, check=False
    )


def test_a_mistake_is_one_sentence_on_stderr_and_exit_code_2(tmp_path: Path):
    done = program("report", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mmrl: nowhere is not a folder")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "environment"), [(["--traceback"], {}), ([], {"MMRL_TRACEBACK": "1"})], ids=["option", "variable"]
)
def test_the_traceback_is_there_when_asked_for(words: list[str], environment: dict[str, str]):
    done = mmrl("report", "nowhere", *words, environment=environment)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "FileNotFoundError: nowhere" in done.stderr


@pytest.mark.parametrize(
    ("broken", "words", "code", "said"),
    [
        ("from mmrl.app.plugins import catalog\ncatalog.catalog = None\n", ["ls"], 1, ["Traceback", "TypeError"]),
        ("import sys\nsys.modules['jinja2'] = None\n", ["report", "nowhere"], 2, ['pip install "mmrl[report]"']),
    ],
    ids=["a programming error keeps its traceback", "a missing extra says how to get it"],
)
def test_what_is_broken_before_the_command_begins(broken: str, words: list[str], code: int, said: list[str], tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(broken)
    done = program(*words, cwd=tmp_path, environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == code and [word for word in said if word not in done.stderr] == []


def test_an_error_of_a_plug_in_is_a_sentence_with_its_file_and_line(tmp_path: Path):
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "broken.py").write_text("def short(group):\n    return 1\n\n1 + 'a'\n")
    done = mmrl("train", "tiny/image", "reward.0.use=broken", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"TypeError: unsupported operand type(s) for +: 'int' and 'str' ({tmp_path}/rewards/broken.py, line 4)" in done.stderr


@for_each(
    "words",
    [
        ("train", "--resume", "loop"),
        ("train", "tiny/image", "output=loop"),
        ("train", "tiny/image", "output=loop/x"),
        ("train", "tiny/image", "reward=[{use='./loop.py'}]"),
        ("plan", "loop"),
        ("train", "loop"),
        ("plan", "tiny/image", "policy.model=./loop"),
        ("data", "check", "loop"),
        ("data", "check", "rows.jsonl"),
        ("ask", "loop", "hi"),
        ("draw", "loop", "hi"),
        ("report", "loop"),
        ("environment", "test", "./loop.py"),
        ("reward", "serve", "loop"),
    ],
    " ".join,
)
def test_a_link_that_leads_back_to_itself_is_named_whoever_follows_it(words: tuple[str, ...], tmp_path: Path):
    for name in ("loop", "loop.py", "loop.png"):
        if not (tmp_path / name).is_symlink():
            (tmp_path / name).symlink_to(name)
    (tmp_path / "rows.jsonl").write_text('{"question": "Who?", "answer": "I", "image": "loop.png"}\n')
    done = mmrl(*words, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert re.search(r"loop.*leads back to itself", done.stderr + done.stdout), done.stderr + done.stdout


@for_each(
    "words",
    [
        ("data", "check", "~nobody-here/x.jsonl"),
        ("report", "~nobody-here/x"),
        ("train", "tiny/image", "output=~nobody-here/x"),
        ("plan", "tiny/image", "policy.model=~nobody-here/x"),
        ("train", "--data", "one.jsonl", "--reward", "iou", "--reward", "format", "--data=other.jsonl"),
        ("plan", "tiny/image", "steps=3", "optimizer.lr=1", "steps =4"),
        ("data", "split", "one.jsonl", "parts", "a=0.5", "b=0.1", "a=0.4"),
    ],
    " ".join,
)
def test_the_home_of_nobody_and_a_word_twice_are_no_bugs(words: tuple[str, ...], tmp_path: Path):
    done = mmrl(*words, cwd=tmp_path)
    twice = next((f"{one} is given twice, and takes" for one in ("--data", "steps", "a") if f" {one}=" in " ".join(words)), "")
    said = twice or "begins with ~ and a name that no user has"
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and said in done.stderr


def test_an_option_with_one_dash_is_told_so(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        refuse_one_dash(["train", "-task", "grounding"])
    assert left.value.code == 2 and "mmrl: -task begins with one dash: write --task" in capsys.readouterr().err
    refuse_one_dash(["engine", "-y", "--task", "qa", "lr=-1", "-1", "--", "-task"])


COMMANDS = ("train", "eval", "demo", "compare", "report", "export", "data", "ls", "show", "cp", "doctor", "Look at a run")


@for_each(
    "word, wanted",
    [
        ("--help", COMMANDS),
        ("doctor", ("python", "torch", "transformers", "[rewards]", "disk here", "sandbox for code")),
        ("--version", ("mmrl ",)),
    ],
)
def test_help_doctor_and_version_name_all_there_is(word: str, wanted: tuple[str, ...]):
    text = mmrl(word).stdout
    assert [one for one in wanted if one not in text] == []


def test_ls_lists_shipped_things_and_yours_and_says_what_rewards_need_and_give(tmp_path: Path):
    (tmp_path / "rewards").mkdir()
    text = '"""Short answers.\n\nModality: text\nRange: [0, 1], or\n  more\n\nSource: me\n"""\n'
    (tmp_path / "rewards" / "short.py").write_text(text)
    lines = mmrl("ls", cwd=tmp_path).stdout.splitlines()
    assert [line.split(maxsplit=1) for line in lines if line.startswith("  short ")] == [["short", "Short answers."]]
    for name in ("iou", "digits_grounding", "dr_grpo", "tiny/image", "image/qwen3vl_4b_refcoco_24gb"):
        assert [line for line in lines if line.split()[0] == name], name
    lines = [line.split() for line in mmrl("ls", "rewards", cwd=tmp_path).stdout.splitlines()]
    at = lines.index(["short", "Short", "answers."])
    assert lines[at + 1 : at + 4] == [["modality", "text"], ["range", "[0,", "1],", "or", "more"], ["source", "me"]]
    at = next(i for i, words in enumerate(lines) if words[0] == "pick_score")
    fields = [words[0] for words in lines[at + 1 :] if words[0] in ("modality", "needs", "range", "source", "licence")]
    assert fields[:5] == ["modality", "needs", "range", "source", "licence"]
    done = mmrl("ls", "reward")
    assert done.returncode == 2
    assert "did you mean 'rewards'" in done.stderr


def test_show_gives_parts_files_and_origins_of_a_preset_and_of_a_config():
    text = mmrl("show", "dr_grpo", "algorithm.advantage.eps=1e-6").stdout
    assert text.startswith("dr_grpo + advantage.eps\n")
    assert "arXiv:2503.20783" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["algorithm.advantage.eps", "1e-06", "0", "or", "more", "command", "line"] in rows
    assert ["algorithm.aggregation.kind", "FixedLength", "preset", "dr_grpo"] in rows
    assert [
        row for row in rows if row[:2] == ["advantage", "GroupNorm"] and row[2].startswith("mmrl/algorithms/advantages/group.py:")
    ]
    rows = [line.split() for line in mmrl("show", "tiny/image", "steps=9").stdout.splitlines()]
    assert ["steps", "9", "0", "to", "100000000000", "command", "line"] in rows
    assert [row for row in rows if row[:2] == ["data.size", "32"] and row[-1].endswith("configs/tiny/image.toml")]


def test_cp_copies_and_never_overwrites(tmp_path: Path):
    assert mmrl("cp", "rewards/iou", "mine.py", cwd=tmp_path).returncode == 0
    assert (tmp_path / "mine.py").read_bytes() == (ROOT / "rewards" / "iou.py").read_bytes()
    done = mmrl("cp", "tiny/image", "mine.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert "did you mean 'rewards/iou'" in mmrl("cp", "rewards/iuo", "x.py", cwd=tmp_path).stderr


def test_data_is_checked_split_and_named(tmp_path: Path):
    rows = []
    for i in range(10):
        Image.new("RGB", (20, 20), (i * 20, 0, 0)).save(tmp_path / f"{i}.png")
        rows.append(f'{{"image": "{i}.png", "question": "Where?", "bbox": [1, 2, 5, 6]}}')
    (tmp_path / "boxes.jsonl").write_text("\n".join(rows) + "\n")
    assert "10 rows, 0 problems" in mmrl("data", "check", "boxes.jsonl", cwd=tmp_path).stdout
    done = mmrl("data", "split", "boxes.jsonl", "parts", "train=0.8", "test=0.2", cwd=tmp_path)
    outside = "files lie outside parts and are named by absolute paths: --copy brings them along"
    wanted = [f"parts/train.jsonl: 8 rows, 8 pictures\n  8 {outside}\n", f"parts/test.jsonl: 2 rows, 2 pictures\n  2 {outside}\n"]
    assert done.stdout == "".join(wanted)
    bad = mmrl("data", "check", "boxes.jsonl", "box_format=xywh", "columns.box=nobox", cwd=tmp_path)
    assert bad.returncode == 2
    assert "boxes.jsonl:1: column nobox is missing" in bad.stderr
    assert "did you mean 'box_format'" in mmrl("data", "check", "boxes.jsonl", "box_forma=xywh", cwd=tmp_path).stderr


WITH_CONFIG = ("train", "plan", "check")


@cache
def commands() -> dict[str, Any]:
    """Name -> command, those of groups too."""
    top: Any = typer.main.get_command(app)
    context = top.context_class(top, info_name="mmrl")
    found: dict[str, Any] = {}
    for name in top.list_commands(context):
        command = found[name] = top.get_command(context, name)
        if hasattr(command, "list_commands"):
            below = command.context_class(command, info_name=name, parent=context)
            found |= {f"{name} {one}": command.get_command(below, one) for one in command.list_commands(below)}
    return found


def test_every_command_has_a_place_in_the_day():
    day = [name for names in PANELS.values() for name in names]
    top = [name for name in commands() if " " not in name]
    assert top == [name for name in day if name in top] and set(top) <= set(day)
    assert all(command.rich_help_panel for name, command in commands().items() if " " not in name)


@for_each("name", sorted(commands()))
def test_every_command_has_an_example_and_no_help_is_eaten_as_markup(name: str):
    assert EXAMPLES[name] and all(line.startswith(f"mmrl {name.split()[0]}") for line in EXAMPLES[name])
    assert [line for line in EXAMPLES[name] if line not in commands()[name].epilog] == []
    helps = [str(parameter.help) for parameter in commands()[name].params if getattr(parameter, "help", None)]
    assert [text for text in helps if Text.from_markup(text).plain != text] == []


def test_examples_are_printed():
    shown = mmrl("show", "--help").stdout
    assert "Examples:" in shown and all(line in " ".join(shown.split()) for line in EXAMPLES["show"])


@for_each("line", [line for name, lines in EXAMPLES.items() if name in commands() for line in lines])
def test_examples_parse(line: str):
    command: Any = typer.main.get_command(app)
    words, context = shlex.split(line)[1:], command.context_class(command, info_name="mmrl")
    name = ""
    while hasattr(command, "resolve_command"):
        found, command, words = command.resolve_command(context, words)
        name = f"{name} {found}".strip()
    command.make_context(name, list(words), parent=context)
    if name in WITH_CONFIG and words[0] != "--task" and "/" in words[0] and words[0].partition("/")[0] == "tiny":
        configs.load(words[0], [word for word in words[1:] if "=" in word])


def test_names_are_completed():
    assert complete_config("tiny/i") == ["tiny/image"] and complete_reward("io") == ["iou"]
    assert {"dapo", "iou", "digits_grounding", "tiny/flow"} <= set(complete_name(""))
    lines = ("mmrl plan tiny/i", "2", ["tiny/image"]), ("mmrl plan --card ", "3", []), ("mmrl plna tiny/i", "2", [])
    for words, at, given in lines:
        done = mmrl(environment={"_MMRL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": at})
        assert (done.stdout.split(), done.stderr) == (given, ""), "nothing is whole yet"


MODULES = {
    "fine": "print('fails is printed by a module')",
    "raises": "raise RuntimeError('operator torchvision::nms\\n does not exist')",
    "leaves": "raise SystemExit(3)",
    "dies": "import os; os._exit(7)",
    "last": "import fine",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return [*MODULES, "absent"]


def test_whatever_an_import_does_is_told_of_that_module_alone(modules: list[str], monkeypatch: pytest.MonkeyPatch):
    assert doctor.broken_imports(modules) == {
        "raises": "RuntimeError: operator torchvision::nms does not exist",
        "leaves": "SystemExit: 3",
        "dies": "its import ends the process with exit code 7",
        "absent": "ModuleNotFoundError: No module named 'absent'",
    }

    def stopped(words: list[str], timeout: float, run: Any = subprocess.run, **options: Any) -> None:
        raise subprocess.TimeoutExpired(words, timeout, run(words, **options).stdout.encode())

    monkeypatch.setattr(subprocess, "run", stopped)
    assert doctor.broken_imports(["fine", "dies"]) == {"dies": "its import takes more than 600 s"}


def test_nothing_in_the_working_directory_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('mine')")
    monkeypatch.chdir(tmp_path)
    assert doctor.broken_imports(["numpy"]) == {}


def test_what_is_broken_is_named_with_the_remedy(modules: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "modules_of", lambda names: {"torchvision": "raises", "torch": "dies", "pyarrow": "leaves"})
    said = doctor.diagnosis()
    assert "CANNOT BE IMPORTED (RuntimeError: operator torchvision::nms does not exist)" in said
    assert "accelerator" in said and "unknown: torch cannot be imported" in said
    (data,) = [line for line in said.splitlines() if line.startswith("[data]")]
    assert data.endswith("installed; pyarrow CANNOT BE IMPORTED (SystemExit: 3)")
    assert "pip install -c constraints.txt" in said


def test_the_module_of_every_package_that_is_needed_is_known():
    needed = [name for name in doctor.packages() if name != "mmrl"]
    found = doctor.modules_of(needed)
    assert found.keys() == set(needed)
    assert found["pillow"] == "PIL" and found["pyyaml"] == "yaml" and found["open-clip-torch"] == "open_clip"
