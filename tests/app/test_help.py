"""`--help`: commands in the order of a day, each with examples that can be typed; names for the shell's completion."""

import os
import shlex
import subprocess
import sys
from functools import cache
from typing import Any

import typer
from rich.text import Text

from mmrl.app.cli import app
from mmrl.app.commands.help import EXAMPLES, PANELS, complete_config, complete_name, complete_reward
from mmrl.app.config import run as configs
from tests.support.each import for_each

WITH_CONFIG = ("train", "plan", "check")


def mmrl(*words: str, **environment: str) -> str:
    """What the command prints."""
    program = "import sys; sys.argv[0] = 'mmrl'; from mmrl.app.cli import main; main()"
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env={**os.environ, **environment})
    return done.stdout


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
def test_every_command_has_an_example(name: str):
    assert EXAMPLES[name] and all(line.startswith(f"mmrl {name.split()[0]}") for line in EXAMPLES[name])
    assert [line for line in EXAMPLES[name] if line not in commands()[name].epilog] == []


@for_each("name", sorted(commands()))
def test_no_help_is_eaten_as_markup(name: str):
    helps = [str(parameter.help) for parameter in commands()[name].params if getattr(parameter, "help", None)]
    assert [text for text in helps if Text.from_markup(text).plain != text] == []


def test_examples_are_printed():
    shown = mmrl("show", "--help")
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
    assert "tiny/image" in complete_config("tiny/i") and complete_config("tiny/i") == ["tiny/image"]
    assert complete_reward("io") == ["iou"]
    assert {"dapo", "iou", "digits_grounding", "tiny/flow"} <= set(complete_name(""))


def test_the_shell_is_given_them():
    assert mmrl(_MMRL_COMPLETE="complete_bash", COMP_WORDS="mmrl plan tiny/i", COMP_CWORD="2").split() == ["tiny/image"]
