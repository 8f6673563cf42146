"""`mmrl reward serve` as a program: its spec, its end, a run whose server dies, and a reward in an environment of its own."""

import os
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
from PIL import Image, ImageOps

import mmrl
from mmrl import Group, Prompt, Sample, Scored
from mmrl.app.commands import serve
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.run.folder import RunDir
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.net import fetch
from mmrl.serving import reward_client, wire
from mmrl.serving.reward_client import RemoteReward
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.trainer import TrainingStoppedError
from tests.attacks._reward_server import REWARDS
from tests.attacks.server import SPECS, TOKEN
from tests.serving.test_reward_server import group_of
from tests.support.chains import lines, same
from tests.support.ports import free_ports
from tests.support.refused import refused

ROOT = Path(mmrl.__file__).parents[1]
ENTRY = 'use = "./mine.py"\nbonus = 2.0'
MINE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    bonus: float = 0.0

    def __call__(self, group):
        return [len(sample.text) + self.bonus for sample in group.samples]
"""


OUTER = """
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

@dataclass(frozen=True)
class Twice:
    inner: Callable[..., Any]

    def __call__(self, group):
        return [2 * x for x in self.inner(group)]
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "spec.toml").write_text(f"[[reward]]\n{ENTRY}\n")
    return tmp_path / "spec.toml"


class Server:
    """`mmrl reward serve` of one reward in a process of its own."""

    def __init__(self, folder: Path, entry: str, name: str, python: str = sys.executable) -> None:
        port, self.spec, self.python = free_ports(1), folder / "spec.toml", python
        self.spec.write_text(f"port = {port}\n[[reward]]\n{entry}\n")
        self.url = f"http://127.0.0.1:{port}/{name}"
        self.start()

    def start(self) -> None:
        command = [self.python, "-m", "mmrl", "reward", "serve", str(self.spec)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, cwd=self.spec.parent, env=environment)
        RemoteReward(self.url).connect(wait_s=120.0)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    close = kill


def test_a_killed_and_restarted_server_is_waited_for(spec: Path):
    with ThreadPoolExecutor(1) as pool, closing(Server(spec.parent, ENTRY, "mine")) as server:
        remote = RemoteReward(server.url).connect()
        assert remote.score(group_of("abc")) == [5.0]
        server.kill()
        waiting = pool.submit(remote.score, group_of("abc"))
        server.start()
        assert waiting.result() == [5.0]
    with pytest.raises(RewardUnavailableError, match="does not answer"):
        replace(remote, deadline_s=0.3).score(group_of("abc"))


def test_rewards_inside_rewards_are_served(spec: Path):
    (spec.parent / "outer.py").write_text(OUTER)
    spec.write_text("[[reward]]\nuse = './outer.py'\n[reward.inner]\nuse = './mine.py'\nbonus = 2.0")
    [served] = serve.read_spec(spec)[1].values()
    assert list(cast(Any, served.function)(group_of("abc"))) == [10.0]
    spec.write_text(spec.read_text().replace("2.0", "3.0"))
    [other] = serve.read_spec(spec)[1].values()
    assert other.fingerprint != served.fingerprint
    (spec.parent / "mine.py").write_text(MINE + "\n")
    [changed] = serve.read_spec(spec)[1].values()
    assert changed.fingerprint != other.fingerprint, "the source of what is inside counts"
    for wrong, message in (
        ("bonsu = 1", r"reward.0.inner.bonsu is unknown: .*bonus"),
        ("bonus = 'x'", r"reward.0.inner.bonus is 'x'"),
    ):
        spec.write_text(f"[[reward]]\nuse = './outer.py'\n[reward.inner]\nuse = './mine.py'\n{wrong}")
        with pytest.raises(ValueError, match=message):
            serve.read_spec(spec)
    spec.write_text("[[reward]]\nuse = './outer.py'\n[reward.inner]\nuse = 'iou'")
    with pytest.raises(ValueError, match=r"reward\.0\.inner: iou reads boxes"):
        serve.read_spec(spec)


def test_the_server_runs_without_torch(spec: Path):
    blocked = "import sys; sys.modules['torch'] = None; from mmrl.app.commands import serve; from pathlib import Path; "
    code = blocked + f"print(list(serve.read_spec(Path({str(spec)!r}))[1]), 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=spec.parent, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["['mine']", "False"], done.stderr


def test_a_signal_ends_the_program_and_its_files(tmp_path: Path):
    """A reward that would score for a minute does not hold the end up."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "mine.py").write_text(REWARDS)
    (tmp_path / "spec.toml").write_text('port = 0\n[[reward]]\nuse = "./mine.py:slow"\n')
    code = "from pathlib import Path; from mmrl.serving import guard; from mmrl.app.commands.serve import serve; "
    code += "guard.STOP_S = 0; serve(Path('spec.toml'))"
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=env) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split('"')[1].rpartition("/")[0] + "/v1/score/slow"
        found: list[int] = []
        body = wire.pack_group(Group(0, type(group_of().prompt)("p", media=(str(tmp_path / "mine.py"),)), group_of("a").samples))
        post = threading.Thread(target=lambda: found.append(httpx.post(url, content=body, timeout=60).status_code))
        post.start()
        while not list((tmp_path / "tmp").glob("mmrl-reward-*/*")):
            time.sleep(0.02)
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    post.join()
    assert found == [503] and not list((tmp_path / "tmp").glob("mmrl-reward-*"))


WRONG = {
    "nothing": ("", ("serves nothing",)),
    "one table": ("[reward]\nuse = 'length'", ("serves nothing: add a [[reward",)),
    "an unknown key": ("prot = 1\n[[reward]]\nuse = './mine.py:Mine'", ("prot is unknown", "port")),
    "an unknown setting": ("[[reward]]\nuse = './mine.py:Mine'\nbonsu = 1", ("reward.0.bonsu is unknown", "bonus")),
    "a setting that is text": ("[[reward]]\nuse = './mine.py:Mine'\nbonus = 'x'", ("bonus is 'x'",)),
    "no use": ("[[reward]]\nname = 'x'", ("reward.0.use is missing",)),
    "a name twice": (
        "[[reward]]\nuse = './mine.py:Mine'\n[[reward]]\nuse = './mine.py:Mine'",
        ("two rewards are called 'Mine'",),
    ),
    "a setting that is missing": ("[[reward]]\nuse = 'iou'", ("space",)),
    "no TOML": ("[[reward", ("is not TOML",)),
}


@pytest.mark.parametrize("kind", SPECS | WRONG)
def test_a_spec_that_cannot_be_meant_is_refused(kind: str, spec: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    text, words = (SPECS | WRONG)[kind]
    (spec.parent / "mine.py").write_text(MINE + REWARDS)
    spec.write_text(text)
    monkeypatch.setenv("MMRL_REWARD_TOKEN", TOKEN)
    with pytest.raises(ValueError) as refused:
        serve.serve(spec)
    assert all(word in str(refused.value) for word in words) and capsys.readouterr().out == ""


def test_it_listens_before_it_says_so(spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen on port {port}.*choose another port"):
            serve.serve(spec, port=port)
    assert capsys.readouterr().out == ""
    said: list[str] = []

    def look(application: object, listener: socket.socket, stop: Callable[[], None]) -> None:
        said.append(capsys.readouterr().out)
        socket.create_connection(listener.getsockname()).close()
        listener.close()

    monkeypatch.setattr(serve, "serve_until_stopped", look)
    monkeypatch.setenv("MMRL_REWARD_TOKEN", TOKEN)
    for host, shown in (("127.0.0.1", r"127\.0\.0\.1"), ("0.0.0.0", platform.node())):
        serve.serve(spec, host, port=0)
        assert re.fullmatch(rf'use = "http://{shown}:\d+/mine"\n', said.pop())


@pytest.mark.parametrize(
    ("token", "host", "said"),
    [
        ("", "0.0.0.0", "without a token"),
        *((token, "127.0.0.1", "MMRL_REWARD_TOKEN") for token in (" \n", "tok-1\ntok-2", "tok-\x1b[2J")),
    ],
)
def test_the_world_needs_a_token_and_one_that_is_none_is_not_shown(token, host, said, spec: Path, monkeypatch):
    monkeypatch.setenv("MMRL_REWARD_TOKEN", token)
    with pytest.raises(ValueError, match=said) as refused:
        serve.serve(spec, host=host, port=0)
    assert "tok-" not in str(refused.value)


SLOW_BRIGHTNESS = """
import time
import numpy as np

def brightness(group):
    time.sleep(0.05)
    return [float(np.asarray(sample.image).mean() / 255) for sample in group.samples]
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "brightness.py").write_text(SLOW_BRIGHTNESS)
    with closing(Server(tmp_path, 'use = "./brightness.py"', "brightness")) as running:
        yield running


def resolve_run(server: Server, output: Path) -> configs.Resolved:
    table = configs.load("tiny/flow").table
    table.set(("reward",), [{"use": server.url, "deadline_s": 120.0}], "test")
    return configs.resolve(table, [f"output={str(output)!r}", "steps=4", "evaluate_every=0", "evaluation.num_prompts=0"])


def after_a_step(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act once a run has measured its first step."""
    write = RunDir.append
    patch.setattr(RunDir, "append", lambda run, step, metrics: (write(run, step, metrics), step == 1 and act()))


def expect_equal(one: Path, other: Path) -> None:
    """Four steps with the same rewards, and the same weights."""
    rewards = [[line["reward/total"] for line in lines(RunDir(run)) if "reward/total" in line] for run in (one, other)]
    assert rewards[0] == rewards[1] and len(rewards[0]) == 4
    assert same(*(Checkpoints(RunDir(run).checkpoints).load()["policy"] for run in (one, other)))


@pytest.mark.slow
def test_a_server_that_dies_and_returns_changes_nothing_and_one_that_does_not_stops_a_run_that_resumes_exactly(
    server: Server, tmp_path: Path
):
    run_training(resolve_run(server, tmp_path / "whole"))
    starting, clock = threading.Timer(0.5, server.start), SimpleNamespace(monotonic=count(0, 50).__next__, sleep=bool)
    with pytest.MonkeyPatch.context() as patch:
        after_a_step(patch, lambda: (server.kill(), starting.start()))
        run_training(resolve_run(server, tmp_path / "broken"))
    starting.join()
    expect_equal(tmp_path / "broken", tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        after_a_step(patch, lambda: (server.kill(), *(patch.setattr(of, "time", clock) for of in (fetch, reward_client))))
        words = r"step 2: reward server .* does not answer .*saved after step 1"
        refused(words, run_training, resolve_run(server, tmp_path / "gone"), error=TrainingStoppedError)
    server.start()
    run_training(resolve_run(server, tmp_path / "gone"), resume=tmp_path / "gone")
    expect_equal(tmp_path / "gone", tmp_path / "whole")


ENVIRONMENT = ROOT / ".cache" / "mediapipe-env"


ASTRONAUT = """228,14 262,22 290,45 302,80 295,115 275,130 265,160 285,175 300,215 304,245 330,265 350,285 360,320 362,350
    330,360 300,390 280,430 278,512 30,512 25,450 22,380 40,300 60,260 110,225 112,190 130,165 165,150 190,150 180,125 160,115
    153,80 165,45 195,20"""


HELMET = "362,350 400,343 450,360 480,400 497,450 510,470 510,512 278,512 280,430 300,390 330,360"
"""Outlines drawn by hand over scikit-image's astronaut; the model counts the helmet in her arm as hers."""


def polygon(points: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, point.split(","))) for point in points.split()]


@pytest.mark.real_weights
@pytest.mark.skipif(
    not (ENVIRONMENT / "complete").exists() and not os.environ.get("MMRL_REAL_WEIGHTS"), reason="make real-weights makes it"
)
def test_masks_are_scored_by_a_model_on_numpy_1(tmp_path: Path):
    """A reward whose dependencies clash with the trainer's runs in its own environment: mediapipe 0.10.21 on numpy 1."""
    astronaut = Image.open(ROOT / ".cache" / "real-weights" / "skimage" / "data" / "astronaut.png").convert("RGB")
    pictures = (astronaut, ImageOps.mirror(astronaut), Image.new("RGB", astronaut.size))
    group = Group(
        0, Prompt("astronaut", answer=[polygon(ASTRONAUT), polygon(HELMET)]), tuple(Sample(image=picture) for picture in pictures)
    )
    entry = f'use = "{Path(__file__).with_name("person_mask.py")}"\nname = "people"'
    with closing(Server(tmp_path, entry, "people", str(ENVIRONMENT / "bin" / "python"))) as server:
        answers = RemoteReward(server.url).connect(wait_s=60.0).score(group)
    assert all(isinstance(answer, Scored) for answer in answers)
    scores = [answer.value for answer in answers if isinstance(answer, Scored) and answer.value is not None]
    first = answers[0]
    assert isinstance(first, Scored)
    assert first.parts["numpy"] == 1.26 and np.__version__.startswith("2")
    assert 0.5 < first.parts["covered"] < 0.6
    assert scores[0] > 0.9 > scores[1] > 0.4 and scores[2] == 0.0
