"""Attacks on the reward server by its spec and its environment: refused before it says that it listens."""

import socket
from functools import partial
from pathlib import Path

from tests.attacks._reward_server import REWARDS, TOKEN
from tests.attacks.attack import Attack, expect_sentence, run_mmrl


def spec(text: str, words: tuple[str, ...], folder: Path, token: str = TOKEN) -> str:
    """A spec that cannot be meant: refused with the key, before anything says that it listens."""
    (folder / "mine.py").write_text(REWARDS)
    (folder / "spec.toml").write_text(text)
    ended = run_mmrl(["reward", "serve", "spec.toml"], folder, env={"MMRL_REWARD_TOKEN": token})
    assert "use =" not in ended.out and "tok-" not in ended.err, f"it said {ended.out + ended.err!r}"
    return expect_sentence(ended, *words)


def port_in_use(folder: Path) -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        return spec(f'port = {port}\n[[reward]]\nuse = "./mine.py:length"', (str(port), "another port"), folder)


ONE = '[[reward]]\nuse = "./mine.py:length"\n'
SPECS = {
    "port -1": (f"port = -1\n{ONE}", ("port", "-1")),
    "port 70000": (f"port = 70000\n{ONE}", ("port", "70000")),
    "a port that is true": (f"port = true\n{ONE}", ("port",)),
    "a port that is text": (f'port = "8500"\n{ONE}', ("port",)),
    "a port that is a fraction": (f"port = 85.5\n{ONE}", ("port",)),
    "a host that is a number": (f"host = 127\n{ONE}", ("host",)),
    "a host that is a list": (f"host = []\n{ONE}", ("host",)),
    "a host with a line end": (f'host = "127.0.0.1\\n"\n{ONE}', ("host",)),
    "a host of others": (f'host = "192.0.2.1"\nport = 0\n{ONE}', ("192.0.2.1",)),
    "max_body_mb = nan": (f"max_body_mb = nan\n{ONE}", ("max_body_mb",)),
    "max_body_mb = inf": (f"max_body_mb = inf\n{ONE}", ("max_body_mb",)),
    "max_body_mb = -1": (f"max_body_mb = -1\n{ONE}", ("max_body_mb",)),
    "max_body_mb that is text": (f'max_body_mb = "1"\n{ONE}', ("max_body_mb",)),
    "a million workers": (f"workers = 1000000\n{ONE}", ("workers is 1000000", "1 to 256")),
    "a trillion samples": (f"max_samples = 1000000000000\n{ONE}", ("max_samples is 1000000000000", "1 to 65536")),
    "workers = 0": (f"workers = 0\n{ONE}", ("workers",)),
    "max_samples = 1.5": (f"max_samples = 1.5\n{ONE}", ("max_samples",)),
    "a name with a slash": (f'{ONE}name = "a/b"', ("name", "a/b")),
    "a name with a quote": (f"{ONE}name = 'a\"b'", ("name",)),
    "a name that is a number": (f"{ONE}name = 5", ("name",)),
    "an empty name": (f'{ONE}name = ""', ("name",)),
    "a use that is a number": ("[[reward]]\nuse = 5", ("use",)),
    "rewards that are text": ('reward = "length"', ("reward is 'length'",)),
    "rewards that are numbers": ("reward = [1]", ("reward.0 is 1",)),
    "deep nesting": ("a = " + "[" * 5000 + "]" * 5000, ("not TOML",)),
    "a key that is unknown": (f"ports = 1\n{ONE}", ("ports", "port")),
}
ATTACKS = [
    *(Attack("server", f"a spec with {name}", partial(spec, *how)) for name, how in SPECS.items()),
    Attack("server", "a port in use", port_in_use),
    Attack("server", "listening to the world without a token", partial(spec, f'host = "0.0.0.0"\n{ONE}', ("token",), token="")),
    Attack("server", "a token of blanks", partial(spec, ONE, ("MMRL_REWARD_TOKEN",), token=" \n")),
    Attack("server", "a token with a line end inside", partial(spec, ONE, ("MMRL_REWARD_TOKEN",), token="tok-1\ntok-2")),
]
