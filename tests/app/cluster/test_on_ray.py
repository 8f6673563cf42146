"""`mmrl launch --on ray`: what is asked of Ray, what follows when a machine is lost, and what is refused; Ray is a stand-in."""

import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmrl.app.cluster import on_ray
from mmrl.app.cluster.on_ray import RayLaunch, run_on_ray
from mmrl.app.commands import launch as launching
from mmrl.app.commands.launch import launch
from mmrl.app.commands.options import LaunchArguments
from mmrl.app.config.cluster import ClusterConfig
from tests.support.refused import refused

WORDS = ["tiny/image", "cluster={nodes=2, gpus_per_node=4, trainers=8}", "prompts_per_step=8"]


class GoneError(Exception):
    """An actor's machine is gone."""


class LateError(Exception):
    """Nothing in time."""


class TaskError(Exception):
    """What an actor raised."""

    cause = OSError("no such folder")


@dataclass
class FakeRay:
    """The calls of Ray that a launch makes. `ends` says of every attempt what each machine's launch does: a code, None: gone."""

    ends: list[tuple[int | None, ...]]
    is_free: bool = True
    head: str = "127.0.0.1:1"
    is_stuck: bool = False
    """No program of Ray begins on the machines that are lent."""
    slow: Exception | None = None
    """Raised as a machine's launch begins."""
    saved: list[int | None] = field(default_factory=list[int | None])
    """The newest checkpoint of every attempt."""
    log: list[Any] = field(default_factory=list[Any])
    started: list[list[str]] = field(default_factory=list[list[str]])
    given: dict[str, str] = field(default_factory=dict[str, str])
    """The variables of the last launch."""
    exceptions: Any = field(
        default_factory=lambda: SimpleNamespace(RayActorError=GoneError, GetTimeoutError=LateError, RayTaskError=TaskError)
    )

    @property
    def util(self) -> Any:
        place = SimpleNamespace(PlacementGroupSchedulingStrategy=lambda group, i: i)
        calls = {"placement_group": self.placement_group, "remove_placement_group": self.removed}
        return SimpleNamespace(**calls, scheduling_strategies=place)

    def removed(self, group: object) -> None:
        """Go on to what the next attempt's machines do, if there is one."""
        self.log.append("group removed")
        if len(self.ends) > 1:
            del self.ends[0], self.saved[0]

    def placement_group(self, bundles: list[Any], strategy: str) -> Any:
        self.log.append((bundles, strategy))
        return SimpleNamespace(ready=lambda: lambda: None if self.is_free else late())

    def remote(self, **options: Any) -> Callable[[type], Any]:
        self.log.append({name: options[name] for name in ("num_cpus", "num_gpus")})
        make: Any = lambda scheduling_strategy: SimpleNamespace(remote=lambda: self.agent(scheduling_strategy))  # noqa: E731 - a keyword that Ray names
        return lambda kind: SimpleNamespace(options=make)

    def agent(self, node: int) -> Any:
        code = self.ends[0][node]
        answers: dict[str, Callable[..., Any]] = {
            "host": lambda: late() if self.is_stuck else f"host-{node}",
            "start": self.begin,
            "ask_to_save": lambda: self.log.append("asked to save"),
            "wait": lambda: gone() if code is None else code,
            "end": lambda: gone() if code is None else f"\n  last line of {node}",
        }
        methods = {name: SimpleNamespace(remote=lambda *a, f=f: lambda: f(*a)) for name, f in answers.items()}
        methods["ask_to_save"] = SimpleNamespace(remote=answers["ask_to_save"])
        return SimpleNamespace(**methods)

    def begin(self, words: Sequence[str], variables: dict[str, str], folder: str, log: str) -> None:
        if self.slow is not None:
            raise self.slow
        self.started.append(list(words))
        self.given = dict(variables)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=self.head)

    def get(self, asked: Any, timeout: float | None = None) -> Any:
        return [one() for one in asked] if isinstance(asked, list) else asked()

    def wait(self, asked: Sequence[Any], timeout: float, num_returns: int = 1) -> tuple[list[Any], list[Any]]:
        failed = [one for one, code in zip(asked, self.ends[0], strict=False) if code != 0]
        return (failed or list(asked))[:1], []

    def kill(self, agent: Any) -> None:
        self.log.append("killed")

    def nodes(self) -> list[Any]:
        return [{"Alive": True, "NodeManagerAddress": "host-0", "Resources": {"CPU": 8.0, "GPU": 2.0}}]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 7.0, "GPU": 2.0}


def gone() -> None:
    raise GoneError("the actor died")


def late() -> None:
    raise LateError


@pytest.fixture
def told() -> list[str]:
    return []


def job(folder: Path, **more: Any) -> RayLaunch:
    cluster = ClusterConfig(nodes=2, gpus_per_node=4, trainers=8, **more)
    return RayLaunch(cluster, ("tiny/image", "output='run'"), folder / "run")


def run(folder: Path, told: list[str], monkeypatch, ends: Any, saved: Any, **more: Any) -> tuple[int, FakeRay]:
    ray = FakeRay(ends, saved=saved)
    monkeypatch.setattr(RayLaunch, "newest", lambda self: ray.saved[0])
    return run_on_ray(job(folder, **more), told.append, ray), ray


def test_a_machine_of_its_own_for_every_bundle(tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch):
    code, ray = run(tmp_path, told, monkeypatch, [(0, 0)], [None])
    assert code == 0 and told == [f"2 machine(s): host-0, host-1; their logs are {tmp_path}/run.logs/launch-N.log"]
    assert ray.log == [
        ([{"CPU": 1, "GPU": 4}] * 2, "STRICT_SPREAD"),
        {"num_cpus": 1, "num_gpus": 4},
        *("killed", "killed", "group removed"),
    ]
    words = ["-m", "mmrl", "launch", "tiny/image", "output='run'", "--hosts", "host-0,host-1", "--node"]
    assert ray.started == [[*words, "0"], [*words, "1"]]


def test_a_lost_machine_means_a_new_group_that_resumes(tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch):
    code, ray = run(tmp_path, told, monkeypatch, [(1, None), (0, 0)], [None, 3])
    assert code == 0 and ray.log.count("group removed") == 2
    assert "machine 0 ended with exit code 1; machine(s) 1 gone; " in told[1] and "last line of 0" in told[1]
    assert told[2] == "a new group of machines is asked for, 2 more time(s) after this"
    resumed = [words[words.index("--resume") + 1] for words in ray.started[2:]]
    assert resumed == [str(tmp_path / "run")] * 2 and not any("--resume" in words for words in ray.started[:2])


def test_starts_are_counted_and_what_would_end_alike_is_not_started_again(tmp_path: Path, told: list[str], monkeypatch):
    code, ray = run(tmp_path, told, monkeypatch, [(None, 0), (None, 0)], [1, 2], restarts=1)
    assert code == 1 and len(ray.started) == 4 and told[-1] == "no start is left"
    assert told[1].startswith("machine 0 is gone; ")
    told.clear()
    code, ray = run(tmp_path, told, monkeypatch, [(0, 2), (0, 0)], [None, None])
    assert code == 2 and len(ray.started) == 2
    assert "machine 1 ended with exit code 2; the others ended in 0 s\n  last line of 1" in told[1]
    assert "no step was saved since the start" in told[2]


def test_machines_that_are_too_few_or_whose_programs_do_not_begin_are_told(tmp_path: Path, told: list[str]):
    ray = FakeRay([(0, 0)], is_free=False)
    expected = (
        r"2 machine\(s\) with 1 CPU, 4 GPU each were not free in 5 s \(alive: host-0 has 8 CPU, 2 GPU; "
        r"free on all together: 7 CPU, 2 GPU\): lower cluster.nodes .*, end what `ray status` shows to hold the rest"
    )
    refused(expected, run_on_ray, job(tmp_path, patience_s=5.0), told.append, ray)
    assert ray.log[-3:] == ["killed", "killed", "group removed"], "nothing keeps cards"
    with pytest.raises(ValueError, match=r"Ray lent 2 machine\(s\), and its programs on them did not begin in 5 s: look whether"):
        run_on_ray(job(tmp_path, patience_s=5.0), told.append, FakeRay([(0, 0)], is_stuck=True))


def test_a_signal_ends_the_wait_for_machines(tmp_path: Path, told: list[str]):
    ray, asked = FakeRay([(0, 0)], is_free=False), job(tmp_path, patience_s=5.0)
    asked.asked_by.append(signal.SIGINT)
    assert run_on_ray(asked, told.append, ray) == 130 and not ray.started
    assert ray.log[-3:] == ["killed", "killed", "group removed"]


def test_a_machine_that_is_slow_to_begin_counts_as_lost_and_one_that_cannot_is_told(tmp_path: Path, told: list[str]):
    ray = FakeRay([(0, 0)], slow=LateError())
    assert run_on_ray(job(tmp_path, restarts=1), told.append, ray) == 1 and ray.log.count("group removed") == 2
    assert told.count("machine 0 (host-0) did not begin its launch in 60 s, and counts as lost") == 2
    ray.slow = TaskError()
    refused(r"machine 0 \(host-0\) cannot begin its launch \(no such folder\)", run_on_ray, job(tmp_path), told.append, ray)


def test_a_lost_head_node_ends_all_and_says_how_to_go_on(tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch):
    """Ray itself would end the program after a minute, without a word of where the run stands."""
    waits: list[int] = []
    monkeypatch.setattr(on_ray, "time", SimpleNamespace(monotonic=lambda: 8.0 * len(waits)))
    with socket.create_server(("127.0.0.1", 0)) as head:
        ray = FakeRay([(0, 0)], head=f"127.0.0.1:{head.getsockname()[1]}")

        def wait(asked: Sequence[Any], timeout: float, num_returns: int = 1) -> tuple[list[Any], list[Any]]:
            waits.append(num_returns)
            if len(waits) == 3:
                head.close()
            return ([*asked], []) if num_returns > 1 else ([], [*asked])

        monkeypatch.setattr(ray, "wait", wait)
        assert run_on_ray(job(tmp_path), told.append, ray) == 1
    assert len(waits) == 6 and ray.log[-2:] == ["asked to save"] * 2, "nothing is asked of a head that is gone"
    assert "has not answered for 20 s: all machines were asked to save and end, and 2 of 2 did" in told[1]
    assert told[1].endswith(f"go on with\nmmrl launch tiny/image 'output='\"'\"'run'\"'\"'' --on ray --resume {tmp_path}/run")


def test_keys_that_a_config_names_reach_the_machines(tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JUDGE_KEY", "sesame")
    monkeypatch.setenv("OTHER_KEY", "hush")
    own = [*WORDS, f"output='{tmp_path}/run'", "policy.engine={kind='vllm', folder='/shared', token_env='FARM_KEY'}"]
    judge = "{use='vlm_judge', server={url='http://127.0.0.1:9/v1', model='m', api_key_env='JUDGE_KEY'}}"
    own += [f"reward=[{judge}]"]
    ray = FakeRay([(0, 0)])
    monkeypatch.setattr(launching, "run_on_ray", lambda job, tell: run_on_ray(job, told.append, ray))
    assert launch(LaunchArguments(own, on="ray")) == 0
    assert ray.given["JUDGE_KEY"] == "sesame" and len(ray.given["FARM_KEY"]) == 48 and "OTHER_KEY" not in ray.given


def test_a_dry_run_shows_the_bundles_and_what_ray_cannot_do_is_refused(capsys, tmp_path: Path, monkeypatch):
    assert launch(LaunchArguments([*WORDS, f"output='{tmp_path}/run'"], on="ray", dry_run=True)) == 0
    said = capsys.readouterr().out
    bundles = "ray: 2 bundle(s) of {CPU: 1, GPU: 4}, each on a machine of its own (STRICT_SPREAD)"
    assert said.startswith(f"{bundles}\nnode 0 (node-0)\n")
    own = [*WORDS, f"output='{tmp_path}/run'"]
    monkeypatch.setattr(on_ray, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    for words, hosts, address, message in (
        (own, "a,b", "", "leave --hosts and --node out"),
        (WORDS, "", "", "set output to one that all machines see"),
        (own, "", "", r'pip install "mmrl\[ray\]"'),
        (own, "", "ray://head:10001", r"ray://, Ray's client.*ray job submit"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        refused(message, launch, LaunchArguments(words, on="ray", hosts=hosts))
