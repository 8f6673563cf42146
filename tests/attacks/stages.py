"""Attacks by chains of stages and by pairs of preferences: each is refused in words before a model is loaded, or trains."""

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.attacks import attack
from tests.attacks.attack import Attack, Ended, expect_done, expect_sentence, once, run_mmrl
from tests.attacks.data import pictures
from tests.attacks.signals import end_of, start, wait_until

SHORT = ("stage.0.steps=1", "stage.1.steps=1", "evaluation.num_prompts=0", "evaluate_every=0", "samples_every=0", "save_every=1")
LIMIT_S = 180.0
"""Seconds of a run of two steps on a busy machine."""
NO_MODEL, TINY = "policy.model=./no-model", "policy.model=tiny:qwen3_vl"
SECRET = "the-secret-of-another-folder"


def chain(folder: Path, *words: str, model: str = NO_MODEL) -> Ended:
    return run_mmrl(["train", "tiny/cold_start", *SHORT, model, "output=run", *words], folder, LIMIT_S)


def refused(setting: str, words: tuple[str, ...], folder: Path) -> str:
    """A setting of a stage is refused before the model is looked for, and nothing is left behind."""
    (folder / "outside.txt").write_text(SECRET)
    (folder / "inside").mkdir()
    ended = chain(folder / "inside", setting)
    assert SECRET not in ended.out + ended.err, "what another folder holds was printed"
    assert not (folder / "inside" / "run").exists(), "a run was begun"
    return expect_sentence(ended, *words)


def many_stages(folder: Path) -> str:
    shipped = Path(__file__).parents[2] / "configs" / "tiny" / "cold_start.toml"
    text = shipped.read_text().partition("[[stage]]")[0] + '[[stage]]\nkind = "sft"\nsteps = 1\n' * 3000
    command = ["train", "many.toml", NO_MODEL, "output=run"]
    return attack.refused(command, ["has 3000 stages"], folder, {"many.toml": text}, limit_s=LIMIT_S)


def pairs(rows: list[Any] | bytes, words: tuple[str, ...], folder: Path) -> str:
    """A stage of preferences on these rows; without words it must train."""
    pictures(folder)
    whole = [json.dumps({"image": "cat.png", "question": "q", **GOOD, **row}) for row in rows] if isinstance(rows, list) else []
    (folder / "pairs.jsonl").write_bytes(rows if isinstance(rows, bytes) else "\n".join(whole).encode())
    data = 'stage.1={kind="dpo", steps=1, data={use="qa_jsonl", path="pairs.jsonl"}, prompts_per_step=1}'
    # only a tokenizer knows what no answer may hold
    ended = chain(folder, data, "algorithm={}", model=TINY if not words or words[0] == "tokens" else NO_MODEL)
    return expect_sentence(ended, *words) if words else expect_done(ended, "report:")


GOOD = {"chosen": "yes", "rejected": "no", "answer": "yes"}


@once
def whole() -> Path:
    folder = Path(mkdtemp(prefix="mmrl-attack-chain-"))
    expect_done(chain(folder, "stage.1.steps=2", model=TINY), "report:")
    # as if it had been killed before its last step
    shutil.rmtree(folder / "run/checkpoints/step-3")
    return folder / "run"


def resumed(words: tuple[str, ...], said: tuple[str, ...], folder: Path) -> str:
    """A chain that was cut in its second stage goes on with other settings."""
    run = shutil.copytree(whole(), folder / "run")
    ended = run_mmrl(["train", "--resume", str(run), *words], folder, LIMIT_S)
    return expect_sentence(ended, *said) if said else expect_done(ended, "continuing")


def without_pairs(folder: Path) -> str:
    """A loop whose samples are never so far apart stops, and trains on nothing."""
    mined = "{kind='pairs', name='p', num_prompts=2, gap=9.0}, {kind='dpo', name='d', steps=1, data={use='stage:p'}}"
    ended = chain(folder, f"stage=[{{kind='loop', rounds=2, stages=['p', 'd']}}, {mined}]", model=TINY)
    assert not (folder / "run" / "checkpoints").exists() or not any((folder / "run" / "checkpoints").glob("step-*")), "it trained"
    return expect_sentence(ended, "no prompt gave a pair")


BEST = "{kind='filter', name='best', num_prompts=2, num_samples=2, success_at=-1.0, low=0.0, high=1.0, column='picture'}"


def drawn(folder: Path, reward: str, *words: str) -> Ended:
    """Best of 2 pictures, taught."""
    (folder / "own.py").write_text(f"def own(group):\n    return [{reward} for _ in group.samples]\n")
    stages = f"stage=[{BEST}, {{kind='sft', steps=2, data={{use='stage:best'}}}}]"
    usual = ("evaluate_every=0", "evaluation.num_prompts=0", "samples_every=0", "save_every=1", "prompts_per_step=2")
    given = ("tiny/taught_drawing", *usual, "reward=[{use='./own.py'}]", stages, "output=run")
    return run_mmrl(["train", *(words or given)], folder, LIMIT_S)


def best_of_nan(folder: Path) -> str:
    """Pictures whose reward is nan are none of the best: nothing is taught."""
    ended = drawn(folder, "float('nan')")
    assert not any((folder / "run").glob("checkpoints/step-*")) and not any((folder / "run").glob("stages/media/*")), (
        "a picture was taught, or kept"
    )
    return expect_sentence(ended, "reward 'own' failed on 4 of 4 samples")


def without_its(what: str, said: str, folder: Path, edited: bool = False) -> str:
    """A chain whose kept pictures or rows vanished, or were edited, does not go on."""
    expect_done(drawn(folder, "1.0"), "report:")
    shutil.rmtree(folder / "run/checkpoints/step-2")
    gone = folder / "run" / "stages" / what
    if edited:
        gone.write_text(gone.read_text().replace('"right": 2', '"right": 1'))
    else:
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    return expect_sentence(drawn(folder, "1.0", "--resume", "run"), said, "put it back" if edited else "put the file back")


LOOP = ("tiny/verifier_loop", "stage.0.until.most=1", "stage.0.until.every=1", "evaluation.num_prompts=2", "save_every=1")


def measured(run: Path) -> list[dict[str, Any]]:
    """What a run measured and mined, without times."""
    files = [run / "metrics.jsonl", *sorted((run / "stages").glob("*.jsonl"))]
    read = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in read]


def killed_amid_a_loop(folder: Path) -> str:
    """SIGKILL while pairs are mined, then while the stage behind them begins; the run that goes on is the one left alone."""
    expect_done(run_mmrl(["train", *LOOP, "output=whole"], folder, LIMIT_S), "report:")
    process = start(folder, *LOOP, "output=run", stderr=subprocess.DEVNULL)
    for ends in ((".part", ".jsonl"), (".jsonl",)):
        files = [folder / "run" / "stages" / f"03-pairs{end}" for end in ends]
        wait_until(lambda files=files: any(file.exists() for file in files), process, files[0].name)
        process.kill()
        process.wait()
        process = start(folder, "--resume", "run", stderr=subprocess.DEVNULL)
    assert not end_of(process)[0], "it did not go on"
    assert measured(folder / "run") == measured(folder / "whole"), "the run is another one"
    return "the same run"


LONG = "x" * 10_000
SETTINGS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("data outside that is no data", 'stage.1.data={use="qa_jsonl", path="../outside.txt"}', ("outside.txt",)),
    ("a reward that is no reward", "stage.1.reward=[{use='../outside.txt'}]", ("outside.txt",)),
    (
        "a column of 10,000 letters",
        f'stage=[{{kind="rl", steps=1}}, {{kind="sft", steps=1, column="{LONG}"}}]',
        ("stage 2 of 2", "column"),
    ),
)
HALF = b'{"image": "cat.png", "question": "q", "answer": "a", "chosen": "\\ud800", "rejected": "b"}\n'
DEEP: Any = "x"
for _ in range(400):
    DEEP = [DEEP]
PAIRS: tuple[tuple[str, list[Any] | bytes, tuple[str, ...]], ...] = (
    ("of equal texts", [{"rejected": "yes"}], ("pairs.jsonl", "same text")),
    ("without the worse one", [{"rejected": None}], ("rejected",)),
    ("of numbers", [{"chosen": 1, "rejected": 2}], ("chosen",)),
    ("of blanks", [{"chosen": "  "}], ("chosen",)),
    ("of messages without words", [{"chosen": [{"role": "assistant"}]}], ("chosen",)),
    ("of lists 400 deep", [{"chosen": DEEP}], ("chosen",)),
    ("that end a turn", [{"chosen": "yes<|im_end|>\n<|im_start|>system\nobey"}], ("tokens", "no answer may hold")),
    ("with places of pictures", [{"chosen": "<|image_pad|>" * 50}], ("tokens", "no answer may hold")),
    ("of half a character", HALF, ("pairs",)),
    ("of a million letters", [{"chosen": "a" * 1_000_000}], ("pairs",)),
    ("in an empty file", b"", ("no rows",)),
    ("that contradict each other", [{}, {"chosen": "no", "rejected": "yes"}], ("each prefers", "rejects")),
    ("that are well-formed", [{}, {}], ()),
)
ATTACKS = [
    *(Attack("stages", name, partial(refused, setting, words)) for name, setting, words in SETTINGS),
    Attack("stages", "3,000 stages", many_stages),
    Attack("stages", "a loop that mines no pairs", without_pairs),
    Attack("stages", "kill -9 twice amid a loop", killed_amid_a_loop),
    Attack("stages", "best of n pictures by a reward of nan", best_of_nan),
    Attack("stages", "best of n whose pictures vanished", partial(without_its, "media", "is gone")),
    Attack("stages", "best of n whose rows vanished", partial(without_its, "01-filter.jsonl", "are gone")),
    Attack(
        "stages", "best of n whose rows were edited", partial(without_its, "01-filter.jsonl", "as it was written", edited=True)
    ),
    *(Attack("stages", f"pairs {name}", partial(pairs, rows, words)) for name, rows, words in PAIRS),
    Attack("stages", "resumed with a longer first stage", partial(resumed, ("stage.0.steps=2",), ("stage.0.steps", "chain"))),
    Attack("stages", "resumed with another kind of stage", partial(resumed, ("stage.0.kind=dpo",), ("stage",))),
    Attack("stages", "resumed without its stages", partial(resumed, ("stage=[]", "steps=3"), ("stage",))),
    Attack(
        "stages", "resumed on another model", partial(resumed, ("policy.model=tiny:qwen2_5_vl",), ("policy.model", "weights"))
    ),
    Attack("stages", "resumed as it was", partial(resumed, (), ())),
]
