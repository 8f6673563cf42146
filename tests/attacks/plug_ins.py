"""Attacks by rewards, data sets and parts of the user's own: each ends as failed or as a sentence that names it."""

from functools import partial
from pathlib import Path

from tests.attacks.attack import Attack, Ended, expect_clean, expect_done, expect_sentence, refused, run_mmrl

ANSWER = "[0.0] * len(group.samples)"
FAST = ("evaluation.num_prompts=0", "data.size=8", "steps=1", "prompts_per_step=1", "algorithm.group_size=2")


def train(folder: Path, reward: str, *words: str) -> Ended:
    """One short run with the reward."""
    (folder / "mine.py").write_text(reward)
    rewards = ["reward=[{use='./mine.py:mine'}]", "policy.sampling.max_new_tokens=2"]
    return run_mmrl(["train", "tiny/image", *FAST, *rewards, "output=run", *words], folder)


def expect_no_empty_run(folder: Path) -> None:
    run = folder / "run"
    assert not run.exists() or (run / "config.toml").exists(), "an empty run folder was left behind"


def refused_at_build(reward: str, words: tuple[str, ...], folder: Path) -> str:
    """Refused before a model is loaded, with the user's file."""
    outcome = expect_sentence(train(folder, reward), "mine.py", *words)
    expect_no_empty_run(folder)
    assert not (folder / "run").exists(), "a run was begun"
    return f"{outcome} at build"


def failed_in_call(body: str, words: tuple[str, ...], folder: Path) -> str:
    """The reward counts as failed, and the run stops with a sentence that names it."""
    return "failed: " + failed(CALLED.format(body), words, folder)


def failed(reward: str, words: tuple[str, ...], folder: Path, *settings: str) -> str:
    return expect_sentence(train(folder, reward, *settings), "reward 'mine'", *words)


def foreign(text: str, use: str, words: tuple[str, ...], folder: Path) -> str:
    run = ["train", "tiny/t2i", "policy.model=tiny:sd3", f"reward=[{{use='{use}'}}]", "output=run"]
    return refused(run, words, folder, {"mine.py": text})


def in_a_process(body: str, words: tuple[str, ...], folder: Path) -> str:
    settings = "reward=[{use='./mine.py:mine', timeout_s=20.0, call={where='process'}}]"
    return "failed: " + failed(CALLED.format(body), words, folder, settings)


def only_logged(body: str, folder: Path) -> str:
    """A reward of weight 0 fails alone: the run trains on."""
    rewards = "reward=[{use='length', high=4, slope=32}, {use='./mine.py:mine', weight=0.0}]"
    return expect_done(train(folder, CALLED.format(body), rewards), "reward 'mine' failed on", "report:")


def data_set(text: str, words: tuple[str, ...], folder: Path) -> str:
    run = ["train", "tiny/image", "data={use='./mine.py:mine'}", "output=run"]
    told = refused(run, ("mine.py", *words), folder, {"mine.py": text})
    expect_no_empty_run(folder)
    return told


def traceback_is_chained(folder: Path) -> str:
    ended = train(folder, "def mine(group):\n    return [].pop()\n", "--traceback")
    expect_clean(ended.err)
    assert ended.code != 0 and "IndexError: pop from empty list" in ended.err and "direct cause" in ended.err, (
        f"exit code {ended.code}, no chain: {ended.err[-200:]!r}"
    )
    return "the cause is shown"


LONG_ERROR = "raise ValueError('\\x1b]0;owned\\x07' + 'x' * 10**6)"
CALLED = "import asyncio, os, sys, torch\ndef mine(group):\n    {}\n    return " + ANSWER + "\n"
GUARD = "import asyncio, os, sys, torch\n{}\ndef mine(group):\n    return " + ANSWER + "\n"
IMPORTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("sys.exit() when it is loaded", "sys.exit()", ("SystemExit", "line 2")),
    ("CancelledError when it is loaded", "raise asyncio.CancelledError", ("CancelledError", "line 2")),
    ("a TypeError when it is loaded", "1 + 'a'", ("TypeError", "line 2")),
    ("os.chdir when it is loaded", "os.chdir('/')", ("working directory",)),
    ("set_default_dtype when it is loaded", "torch.set_default_dtype(torch.float64)", ("default dtype",)),
    ("set_grad_enabled(False) when it is loaded", "torch.set_grad_enabled(False)", ("gradient mode",)),
    ("set_default_device when it is loaded", "torch.set_default_device('meta')", ("default device",)),
)
CALLS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("asyncio.CancelledError", "raise asyncio.CancelledError", ("CancelledError", "mine.py, line 3")),
    ("BaseException", "raise BaseException('x')", ("BaseException: x",)),
    ("sys.exit(0)", "sys.exit(0)", ("SystemExit: 0",)),
    ("KeyboardInterrupt", "raise KeyboardInterrupt", ("KeyboardInterrupt",)),
    ("os.chdir", "os.chdir('/')", ("working directory",)),
    ("set_default_dtype", "torch.set_default_dtype(torch.float64)", ("default dtype",)),
    ("set_default_device", "torch.set_default_device('meta')", ("default device",)),
    ("an error in a helper", "[].pop()", ("IndexError", "mine.py, line 3")),
)
ANSWERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("10**400", "[10**400] * len(group.samples)", ("401 characters",)),
    ("10**5000", "[10**5000] * len(group.samples)", ("repr raises",)),
    ("a generator without end", "iter(float, 1.0)", ("more than 2 values",)),
    ("a text of digits", "'12'", ("answered str",)),
    ("a table", "{0.0: 1, 1.0: 2}", ("answered dict",)),
    ("infinity", "[float('inf')] * 2", ("must be finite",)),
    ("a million characters", "['x' * 10**6] * 2", ("characters",)),
)
CLASS = (
    "import os, sys, torch\nclass mine:\n    def __init__(self):\n        {}\n    def __call__(self, group):\n        return "
    + ANSWER
)
FACTORY = "def mine(device):\n    return lambda images, prompts, metadata: ([0.0] * len(prompts), {})\n"
SCORER = "def mine(device, score_dict):\n    ...\n"
PART = ["train", "tiny/image", *FAST, "algorithm.advantage={use='./mine.py:mine'}", "output=run"]
LEAVES = "import sys\ndef mine():\n    sys.exit(0)\n"
ASYNC = "async def mine(group):\n    raise SystemExit(0)\n"

ATTACKS = [
    *(Attack("plug-ins", name, partial(refused_at_build, GUARD.format(body), words)) for name, body, words in IMPORTS),
    *(Attack("plug-ins", f"in a call: {name}", partial(failed_in_call, body, words)) for name, body, words in CALLS),
    *(
        Attack("plug-ins", f"an answer: {name}", partial(failed, f"def mine(group):\n    return {answer}\n", words))
        for name, answer, words in ANSWERS
    ),
    Attack("plug-ins", "sys.exit() when it is made", partial(refused_at_build, CLASS.format("sys.exit()"), ("line 4",))),
    Attack(
        "plug-ins",
        "a package that is missing and imported in a call",
        partial(refused_at_build, "def mine(group):\n    import no_such_package\n", ("no_such_package", "line 2", "pip install")),
    ),
    Attack("plug-ins", "not Python", partial(refused_at_build, "def mine(:\n", ("line 1 is not Python",))),
    Attack("plug-ins", "a coroutine that leaves", lambda folder: "failed: " + failed(ASYNC, ("SystemExit",), folder)),
    Attack("plug-ins", "sys.exit(0) in a process of its own", partial(in_a_process, "sys.exit(0)", ("SystemExit",))),
    Attack("plug-ins", "os._exit(0) in a process of its own", partial(in_a_process, "os._exit(0)", ("died",))),
    Attack("plug-ins", "a logged one that leaves", partial(only_logged, "sys.exit(0)")),
    Attack("plug-ins", "a logged one that changes the folder", partial(only_logged, "os.chdir('/')")),
    Attack("plug-ins", "a factory of flow_grpo without its prefix", partial(foreign, FACTORY, "./mine.py", ("flow_grpo:",))),
    Attack("plug-ins", "a factory that lacks a key", partial(foreign, SCORER, "flow_grpo:./mine.py", ("score_dict",))),
    Attack(
        "plug-ins", "an error of a million control characters", partial(failed_in_call, LONG_ERROR, ("ValueError", "characters"))
    ),
    Attack("plug-ins", "the cause under --traceback", traceback_is_chained),
    Attack("plug-ins", "a data set that leaves", partial(data_set, LEAVES, ("SystemExit",))),
    Attack("plug-ins", "a data set that leaves while it is read", partial(data_set, LEAVES + "    yield\n", ("SystemExit",))),
    Attack("plug-ins", "a data set that raises KeyError", partial(data_set, "def mine():\n    return {}['a']\n", ("KeyError",))),
    Attack(
        "plug-ins",
        "an advantage that leaves",
        partial(refused, PART, ("mine.py", "SystemExit"), files={"mine.py": LEAVES.replace("()", "(scores, rollouts)", 1)}),
    ),
]
