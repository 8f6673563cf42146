"""No block of the documentation without a check: commands are parsed or run, configs resolve, Python runs, JSON parses."""

import io
import json
import re
import tomllib
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from mmrl.app.cli import app
from mmrl.app.commands.alternate import Duet
from mmrl.app.commands.serve import read_spec
from mmrl.app.commands.train import TrainArguments
from mmrl.app.config import run as configs
from mmrl.app.config.plug_ins import read_plug_ins
from mmrl.app.plugins.catalog import find_config
from mmrl.app.run.build import build
from mmrl.app.toml.reader import make
from mmrl.app.toml.tables import Table
from tests.support.blocks import DOCS, ROOT, Block, blocks, commands, inline_commands, lay_desk, of_language
from tests.support.each import for_each

SHELL, CHECKED = ("sh", "bash", "console"), ("sh", "bash", "console", "toml", "json", "python")
NOT_RUN = {
    "text": "output of a program, or a drawing",
    "": "output of a program, or a drawing",
    "mermaid": "a drawing",
    "yaml": "a file of another program; parsed by its own tests where mmrl ships it",
    "slurm": "a batch script; its commands stand in sh blocks too",
}
"""Language -> why such a block is not run."""
NOT_MMRL = {
    "cd": "moves about",
    "export": "sets a variable",
    "source": "enters an environment",
    "vllm": "serves a model in an environment of its own",
    "git": "fetches a repository",
    "kill": "needs a running process",
    "curl": "needs a running server",
    "nvidia-smi": "needs a GPU",
    "sbatch": "needs a cluster",
    "srun": "needs a cluster",
    "scancel": "needs a cluster",
    "watch": "looks on for ever",
    "tail": "looks on for ever",
}
"""First word -> why the command is not checked."""
LAUNCHERS = ("torchrun", "accelerate", "python", "python3", "srun")
RUN_HERE = ("ls", "show", "cp", "data check", "data convert", "data split", "reward score", "reward test")
"""Commands that run here; the others parse, and their configs and options resolve. tests/app/test_cli.py runs `doctor`."""
RUN_WHOLE = ("docs/how_to/first_day.md", "docs/how_to/drive.md")
"""Pages whose every command is run by a test of their own."""
PLACEHOLDER = re.compile(r"^(\.\.\.|key=value|KEY=VALUE|[A-Z][A-Z_]*)$")


def block_with(language: str, mark: str) -> Block:
    return next(block for block in of_language(language) if mark in block.text)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    lay_desk(folder, block_with("python", "def short").text, json.loads(block_with("json", '"boxes"').text))
    return folder


@pytest.fixture
def at_desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(desk)
    return desk


def test_every_block_is_of_a_language_with_a_check():
    strange = [block.name for block in blocks() if block.language not in CHECKED and block.language not in NOT_RUN]
    assert not strange, "say in this file how blocks of this language are checked"
    assert len(of_language(*CHECKED)) >= 11


@pytest.mark.parametrize("block", [b for b in of_language(*SHELL) if b.doc not in RUN_WHOLE], ids=lambda block: block.name)
def test_shell(block: Block, at_desk: Path):
    for words in commands(block.text):
        check_command(words, at_desk)


def check_command(words: list[str], desk: Path) -> None:
    """A command of any program, by its first word."""
    name = words[0]
    if name == "mmrl":
        check_mmrl(words[1:], desk)
    elif name == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word and not word.startswith("-")} <= set(targets), words
    elif name == "pip" or words[1:3] == ["-m", "pip"]:
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert {extra for word in words for found in re.findall(r"\[([\w,]+)\]", word) for extra in found.split(",")} <= set(
            known
        )
    elif name in LAUNCHERS:
        check_launched(words, desk)
    elif name == "pytest":
        assert all((ROOT / word).exists() for word in words[1:] if "/" in word), words
    else:
        assert name in NOT_MMRL, f"{' '.join(words)}: say in {Path(__file__).name} how this is checked, or why not"


def check_launched(words: list[str], desk: Path) -> None:
    """`torchrun --nproc_per_node 2 -m mmrl train ...`, `python benchmarks/x.py`: what is launched, and files that are named."""
    if "mmrl" in words:
        place = words.index("mmrl")
        check_mmrl(words[place + 1 :], desk)
        words = words[:place]
    elif words[1:3] == ["-m", "pytest"]:
        assert all((ROOT / word).exists() for word in words[3:] if "/" in word), words
        return
    files = [word for word in words if re.search(r"\.(py|yaml|toml)$", word)]
    assert files or "-m" in words or words[0] in ("torchrun", "accelerate", "srun"), words
    missing = [file for file in files if not PLACEHOLDER.match(file) and not (ROOT / file).exists()]
    assert not missing, missing


def check_mmrl(words: list[str], desk: Path) -> None:
    """The words after `mmrl` parse; what needs no training and no hub is run, or resolved."""
    words = [re.sub(r"\$\{?\w+\}?", "1", word).strip("[]") for word in words]
    name, context = parsed(words)
    if any(PLACEHOLDER.match(word) for word in words) and not name.startswith("train"):
        return
    if name in RUN_HERE or context.params.get("dry_run"):
        code, output = ran(context)
        assert code == 0 or (name == "reward test" and code == 2), f"{words}: {output}"
        assert output.strip(), words
    elif name == "train" and context.params["resume"] is None:
        options = context.params
        arguments = [word for word in options["arguments"] or [] if not PLACEHOLDER.match(word)]
        given = TrainArguments(arguments, options["task"], options["model"], options["data"], options["rewards"] or [])
        if arguments or options["task"]:
            read_plug_ins(given.resolve())
    elif name == "reward serve":
        read_spec(desk / words[-1])


def parsed(words: list[str]) -> tuple[str, Any]:
    """The command's name and its parameters; a usage error where it does not exist or does not take them."""
    command: Any = typer.main.get_command(app)
    name, rest, context = "", list(words), command.context_class(command, info_name="mmrl")
    while hasattr(command, "resolve_command"):
        found, command, rest = command.resolve_command(context, rest)
        name = f"{name} {found}".strip()
    placed = ["1" if word == "N" else word for word in rest if word != "..."]
    return name, command.make_context(name, placed, parent=context)


def ran(context: Any) -> tuple[int, str]:
    """Exit code and output of a command that was parsed."""
    with redirect_stdout(io.StringIO()) as output:
        try:
            context.command.invoke(context)
        except typer.Exit as left:
            return left.exit_code, output.getvalue()
    return 0, output.getvalue()


def is_usage_error(error: Exception, *kinds: str) -> bool:
    """By name: typer brings a click of its own."""
    return any(cls.__name__ in kinds for cls in type(error).__mro__)


@for_each("doc, command", inline_commands())
def test_commands_inside_sentences(doc: str, command: str):
    """Their names and options exist; a sentence may leave out what they need, and name a group of commands."""
    words = [word.strip("[]") for word in command.split()[1:] if word not in ("...", "…")]
    try:
        parsed(words)
    except Exception as error:  # noqa: BLE001 - typer's own kinds have no public names
        is_short = is_usage_error(error, "MissingParameter", "NoArgsIsHelpError", "IndexError")
        assert is_short, f"{doc}: {command}: {error!r}"


@pytest.mark.parametrize(
    "line",
    [
        "mmrl trian tiny/image",
        "mmrl train --modle M tiny/image",
        "mmrl train tiny/imgae",
        "mmrl train tiny/image steppes=3",
        "mmrl train --task grounding --model M --data gone.jsonl --reward iou",
        "mmrl train --task grounding --model M --data boxes.jsonl --reward ./gone.py",
        "mmrl data check boxes.jsonl box_forma=xywh",
        "mmrl sample RUN --step x --prompt ID",
        "torchrun --nproc_per_node 2 -m mmrl train tiny/imgae",
        "accelerate launch --config_file gone.yaml -m mmrl train tiny/image",
        "python benchmarks/gone.py",
        "make nothing",
        'pip install "mmrl[nothing]"',
        "frobnicate",
    ],
)
def test_a_wrong_line_would_be_found(line: str, at_desk: Path):
    [words] = commands(line)
    with pytest.raises(Exception) as caught:
        check_command(words, at_desk)
    assert is_usage_error(caught.value, "UsageError", "ValueError", "OSError", "AssertionError")


@pytest.mark.parametrize(
    "line",
    [
        "X=1 torchrun --nproc_per_node 2 -m mmrl train tiny/image steps=2 && mmrl doctor  # two processes",
        "mmrl train CONFIG key=value ...",
        "mmrl sample RUN --step N --prompt ID",
        "python -m pytest tests/docs -m slow",
        "mmrl train \\\n  tiny/flow",
    ],
)
def test_a_right_line_passes(line: str, at_desk: Path):
    for words in commands(line):
        check_command(words, at_desk)


@pytest.mark.parametrize("block", of_language("toml"), ids=lambda block: block.name)
def test_toml(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A config, or a part of one: laid over a tiny one it resolves, and its plug-ins take their keys."""
    monkeypatch.chdir(ROOT)
    values = tomllib.loads(block.text)
    if {"host", "port"} & set(values):
        file = tmp_path / "spec.toml"
        file.write_text(block.text)
        read_spec(file)
        return
    if "player" in values:
        make(Duet, values, (), Table.of(values, block.name))
        return
    drawing = {"flow": "tiny/flow", "token_image": "tiny/token_image"}
    kind = values.get("policy", {}).get("kind", "text")
    base = Table.read(find_config(drawing.get(kind, "tiny/image"))).values
    read_plug_ins(configs.resolve(Table.of(laid_over(base, values), block.name)))


def laid_over(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Tables of the block win; one that names what it is (use, preset) stands for itself."""
    merged = dict(base)
    for key, value in values.items():
        below: Any = base.get(key)
        whole = not isinstance(value, dict) or not isinstance(below, dict) or bool({"use", "preset"} & set(value))
        merged[key] = value if whole else laid_over(below, value)
    return merged


@for_each("block", of_language("json"), ids=lambda block: block.name)
def test_json(block: Block):
    try:
        assert json.loads(block.text)
    except json.JSONDecodeError:
        assert all(json.loads(line) for line in block.text.splitlines() if line.strip())


@pytest.mark.parametrize("block", of_language("python"), ids=lambda block: block.name)
def test_python(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As it stands, or with the names of one training step around it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path))
    is_step = "policy.rollout(" in block.text and not re.search(r"^(import|from) ", block.text, re.MULTILINE)
    names: dict[str, Any] = step_names() if is_step else {"__name__": "block"}
    code = compile(block.text, block.name, "exec", dont_inherit=True)
    exec(code, names)
    if "optimizer" in names:
        assert float(names["loss"]) == float(names["loss"]) and names["policy"].parameters()[0].grad is not None


class Later(dict[int, Any]):
    """Scores of a group, made when they are asked for: the block leaves out where its tables come from."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__()
        self.names = names

    def __missing__(self, group_id: int) -> Any:
        groups = [group for group in self.names["rollouts"].groups if group.id == group_id]
        return self.names["runner"].score(groups)[0]


def step_names() -> dict[str, Any]:
    """What the README's step takes for granted, from a tiny run."""
    job = build(configs.load("tiny/image", ["prompts_per_step=2", "policy.sampling.max_new_tokens=4"]))
    trainer = job.trainer
    names: dict[str, Any] = {
        "policy": job.policy,
        "requests": trainer.collector.requests_for(2),
        "runner": trainer.collector.rewards,
        "reader": trainer.reader,
        "first_step": True,
        "algorithm": trainer.algorithm,
        "batches": trainer.batches,
        "optimizer": trainer.optimizer,
        "micro_batch": 4096,
        "replace": replace,
        "clip_grad_norm_": torch.nn.utils.clip_grad_norm_,
    }
    names["tables"] = Later(names)
    return names


def test_the_documents_are_found():
    assert {doc.name for doc in DOCS} >= {"README.md", "CONTRIBUTING.md", "architecture.md", "measurements.md"}
