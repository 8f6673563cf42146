"""Attacks by disks: no room for a file. The kernel's limit on the length of files stands for a disk that is full."""

import json
import resource
from functools import partial
from pathlib import Path

from tests.attacks.attack import Attack, expect_done, expect_sentence, limit_memory, run_mmrl

FULL = "bytes are free there): make room there, then "
LIMIT = 3000
REWARD = """
import resource
CALLS = []
def fills(group):
    CALLS.append(1)
    if len(CALLS) > {calls}:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return [float(len(sample.text or "")) for sample in group.samples]
"""
RUN = ("train", "tiny/image", "output=run", "evaluation={}", "evaluate_every=0", "save_every=1", "samples_every=1", "steps=3")
ALONE = 'reward=[{use = "./mine.py:fills"}]'


def limit_files() -> None:
    limit_memory()
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


def no_halves(folder: Path) -> None:
    """Expect no file that is half written under another name."""
    left = [file.name for file in folder.rglob("*") if file.suffix in (".new", ".tmp", ".partial", ".gone")]
    assert not left, f"it left {left}"


def while_training(calls: int, words: tuple[str, ...], folder: Path) -> str:
    """The disk is full after some rewards: a sentence that names the file, and the run goes on once there is room."""
    (folder / "mine.py").write_text(REWARD.format(calls=calls, limit=LIMIT))
    outcome = expect_sentence(
        run_mmrl([*RUN, ALONE], folder, limit_s=240), "could not be written", "bytes are free there", *words
    )
    no_halves(folder)
    (folder / "mine.py").write_text(REWARD.format(calls=10**9, limit=LIMIT))
    expect_done(run_mmrl(["train", "--resume", "run"], folder, limit_s=240))
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "reward/total" in line] == [1, 2, 3], (
        f"afterwards the run holds the steps {[line['step'] for line in lines]}"
    )
    return f"{outcome}, and resumed"


def command(arguments: tuple[str, ...], words: tuple[str, ...], folder: Path) -> str:
    """A command that writes a file for which there is no room; the old file stays."""
    rows = [{"prompt": f"a fox, {i}", "completion": "x" * 500} for i in range(20)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "out.jsonl").write_text("old")
    outcome = expect_sentence(run_mmrl(list(arguments), folder, limit_s=120, before=limit_files), "out", FULL, *words)
    no_halves(folder)
    assert (folder / "out.jsonl").read_text() == "old", "the file that was there is gone"
    return outcome


ATTACKS = [
    Attack("disks", "no room for samples in the first step", partial(while_training, 0, ("mmrl train --resume", "samples"))),
    Attack("disks", "no room after a checkpoint", partial(while_training, 5, ("mmrl train --resume", "run"))),
    Attack(
        "disks", "no room for scores", partial(command, ("reward", "score", "length", "rows.jsonl", "--out", "out.jsonl"), ())
    ),
    Attack(
        "disks", "no room for a page", partial(command, ("reward", "score", "length", "rows.jsonl", "--html", "out.html"), ())
    ),
]
