"""Attacks by configs: absurd numbers, wrong types, nonsense of every kind. All are refused before anything is loaded."""

from functools import partial
from pathlib import Path

from tests.attacks.attack import Attack, BrokenError, expect_done, expect_sentence, run_mmrl

NUMBERS = [
    ("a learning rate that is not a number", "optimizer.lr=nan", "above 0"),
    ("an infinite learning rate", "optimizer.lr=inf", "above 0"),
    ("a learning rate of 1e30", "optimizer.lr=1e30", "at most 1000"),
    ("a negative learning rate", "optimizer.lr=-1e-6", "above 0"),
    ("gradient clipping below 0", "optimizer.clip_norm=-1", "0 or more"),
    ("a beta of 1", "optimizer.betas=[0.9,1.0]", "below 1"),
    ("momentum of 2", "optimizer.momentum=2", "below 1"),
    ("no samples per prompt", "algorithm.group_size=0", "it must be 1 to"),
    ("minus five prompts a step", "prompts_per_step=-5", "it must be 1 to"),
    ("a seed below 0", "seed=-1", "4294967295"),
    ("a number of steps with 30 digits", f"steps={10**30}", "finite"),
    ("a number of steps with 400 digits", f"steps={10**400}", "finite"),
    ("a temperature below 0", "policy.sampling.temperature=-1", "0 or more"),
    ("top_p above 1", "policy.sampling.top_p=1.5", "at most 1"),
    ("a reward's weight that is not a number", "reward.0.weight=nan", "finite"),
    ("an infinite coefficient", "algorithm.objective.0.coef=inf", "finite"),
    ("a clip range below 0", "algorithm.objective.0.low=-0.5", "0 to 1"),
    ("a LoRA rank of 0", "policy.lora.rank=0", "it must be 1 to"),
    ("half a step", "steps=0.5", "steps"),
    ("a million decoding processes", "policy.video.workers=1000000", "256"),
    ("a data set of minus one rows", "data.size=-1", "it must be 1 to"),
    ("a health bound that is not a number", "health.max_kl=nan", "above 0"),
    ("an alarm at a chance of 7", "health.alarm.fall_chance=7", "0 to 1"),
]
WORDS = [
    ("an unknown key", "optimizer.lrr=1", ("optimizer.lrr", "lr")),
    ("a text for a number", "optimizer.lr=fast", ("optimizer.lr", "number")),
    ("true for a number", "steps=true", ("steps", "number")),
    ("a table where a number belongs", "steps.many=3", ("steps",)),
    ("a reward of another count", "reward.7.weight=1", ("reward.7", "entries")),
    ("an unknown preset", "algorithm.preset=gropo", ("grpo",)),
    ("a preset as a list", 'algorithm.preset=["grpo"]', ("algorithm.preset",)),
    ("a part of another slot", "algorithm.advantage.kind=Clip", ("objective",)),
    ("a key of control characters", "\x1b[31mred=1", ("unknown",)),
    ("a value of control characters", "policy.kind=\x1b[2J\x07", ("policy.kind",)),
    ("a value of 100,000 letters", "policy.kind=" + "x" * 100_000, ("policy.kind",)),
    ("a pair of nothing", "optimizer.betas=[]", ("optimizer.betas.0 is missing",)),
    ("a key of 100,000 letters", "x" * 100_000 + "=1", ("unknown",)),
]
FILES = {
    "an empty file": (b"", "missing"),
    "a file that is not TOML": (b"steps = = 3", "not TOML"),
    "a binary file": (bytes(range(256)) * 20, "not TOML"),
    "tables 400 deep": (b"a = " + b"[" * 400 + b"]" * 400, "nested"),
    "dotted keys 2,000 deep": (b".".join([b"a"] * 2000) + b" = 1", "nested"),
    "the same table twice": (b"[policy]\n[policy]\n", "not TOML"),
    "algorithm as a word": (b'algorithm = "grpo"', "[algorithm]"),
    "reward as a number": (b'reward = 3\n[policy]\nmodel = "tiny:qwen3_vl"\n[data]\nuse = "digits_grounding"', "reward"),
}


def override(setting: str, words: tuple[str, ...], folder: Path) -> str:
    return expect_sentence(run_mmrl(["show", "tiny/image", setting], folder), *words)


def number(setting: str, words: str, folder: Path) -> str:
    """`mmrl plan` finds what belongs to plug-ins, too."""
    command = "plan" if setting.startswith("data.") else "show"
    return expect_sentence(run_mmrl([command, "tiny/image", setting], folder), setting.partition("=")[0], words)


def file(content: bytes, words: str, folder: Path) -> str:
    (folder / "bad.toml").write_bytes(content)
    return expect_sentence(run_mmrl(["show", "bad.toml"], folder), words)


def folder_as_config(folder: Path) -> str:
    (folder / "x.toml").mkdir()
    return expect_sentence(run_mmrl(["show", "x.toml"], folder), "x.toml")


def loop_of_links(folder: Path) -> str:
    (folder / "a.toml").symlink_to("b.toml")
    (folder / "b.toml").symlink_to("a.toml")
    return expect_sentence(run_mmrl(["show", "a.toml"], folder), "a.toml")


def nothing_is_left(folder: Path) -> str:
    """A refused run makes no folder."""
    told = expect_sentence(run_mmrl(["train", "tiny/image", "optimizer.lr=nan"], folder), "optimizer.lr")
    if list(folder.iterdir()):
        raise BrokenError(f"a refused run left {[path.name for path in folder.iterdir()]}")
    return told


def ranges_are_told(folder: Path) -> str:
    return expect_done(run_mmrl(["show", "tiny/image"], folder), "above 0 and at most 1000")


ATTACKS = [
    *(Attack("config", name, partial(number, setting, words)) for name, setting, words in NUMBERS),
    *(Attack("config", name, partial(override, setting, words)) for name, setting, words in WORDS),
    *(Attack("config", name, partial(file, *content)) for name, content in FILES.items()),
    Attack("config", "a folder in place of a file", folder_as_config),
    Attack("config", "links that lead to each other", loop_of_links),
    Attack("config", "a refused run leaves nothing", nothing_is_left),
    Attack("config", "asking for the ranges", ranges_are_told),
]
