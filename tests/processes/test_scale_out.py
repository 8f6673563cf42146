"""A cluster on one machine: two trainers over gloo, two engines, one reward server, and what happens when one of them is killed.

The engines are fakes that speak vLLM's endpoints over a real tiny model; all else is what users start.
"""

import signal
import time
from pathlib import Path

import pytest

from mmrl.app.run.folder import RunDir
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.loopback import launched, lay_out

NEW_RUN = ("config.toml", "output=run")


@pytest.mark.slow
def test_an_engine_and_the_reward_server_are_killed_and_the_run_ends_well(tmp_path: Path):
    """Both are started again: requests that were under way are asked again, and the engine is given the weights of the step."""
    ports = lay_out(tmp_path, engines=1)
    with launched(tmp_path, ports["engine_port"], *NEW_RUN) as running:
        running.wait_until_held()
        running.kill(running.engine(0))
        running.kill(running.reward_server())
        running.go()
        assert running.end() == 0, running.output[-5000:]
    for name in ("engine 0", "reward server 0"):
        assert f"{name} died (exit code 137): it is started again, 2 more time(s) after this" in running.output
    assert len(running.rewards()) == 4 and RunDir(running.run).report_file.is_file()
    assert running.output.count("report: ") == 1, "the main process alone writes it"
    logs = {file.name: file.read_text() for file in (tmp_path / "run.logs").iterdir()}
    assert set(logs) == {"engine-0.log", "reward-server-0.log"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The rewards of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    ports = lay_out(folder)
    with launched(folder, ports["engine_port"], *NEW_RUN) as running:
        running.go()
        assert running.end() == 0, running.output[-5000:]
    return running.rewards()


@pytest.mark.evidence
def test_rows_of_an_engine_that_stays_down_go_to_the_other_one(tmp_path: Path, whole: list[float]):
    ports = lay_out(tmp_path, restarts=0)
    with launched(tmp_path, ports["engine_port"], *NEW_RUN) as running:
        running.wait_until_held()
        running.kill(running.engine(1))
        running.go()
        assert running.end() == 0, running.output[-5000:]
    assert "engine 1 died (exit code 137) and stays down: cluster.restarts are used up" in running.output
    assert running.rewards() == pytest.approx(whole, abs=1e-6)


@pytest.mark.evidence
def test_a_reward_server_that_stays_down_ends_the_run_which_resumes(tmp_path: Path, whole: list[float]):
    ports = lay_out(tmp_path, restarts=0, deadline_s=20.0)
    with launched(tmp_path, ports["engine_port"], *NEW_RUN) as running:
        running.wait_until_held()
        running.kill(running.reward_server())
        code = running.end()
    assert code not in (0, 137) and "reward server 0 died (exit code 137) and stays down" in running.output
    assert "does not answer" in running.output and "mmrl launch config.toml output=run --resume run" in running.output
    go_on(tmp_path, ports["engine_port"], whole)


@pytest.mark.evidence
@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_that_is_killed_ends_everything_and_the_run_resumes(tmp_path: Path, whole: list[float], rank: int):
    ports = lay_out(tmp_path)
    with launched(tmp_path, ports["engine_port"], *NEW_RUN) as running:
        running.wait_until_held()
        pids = [running.engine(0), running.engine(1), running.reward_server(), running.trainer(1 - rank)]
        running.kill(running.trainer(rank))
        running.go()
        assert running.end() == 1, running.output[-5000:]
    assert "the trainers ended with exit code 1; go on with" in running.output
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    go_on(tmp_path, ports["engine_port"], whole)


@pytest.mark.evidence
def test_a_signal_to_the_launch_saves_and_the_run_resumes(tmp_path: Path, whole: list[float]):
    ports = lay_out(tmp_path)
    with launched(tmp_path, ports["engine_port"], *NEW_RUN) as running:
        running.wait_until_held()
        running.process.send_signal(signal.SIGTERM)
        while running.output.count("SIGTERM: stopping") < 2:
            time.sleep(0.05)
        running.go()
        assert running.end() == 0, running.output[-5000:]
    assert "stopped by SIGTERM and saved after step 3" in running.output
    go_on(tmp_path, ports["engine_port"], whole)


def go_on(folder: Path, port: int, whole: list[float]) -> None:
    """Resume the run by the command that was printed, and compare it with one that nobody disturbed."""
    assert Checkpoints(RunDir(folder / "run").checkpoints).newest_whole() in (2, 3)
    (folder / "go").touch()
    with launched(folder, port, *NEW_RUN, "--resume", "run") as running:
        assert running.end() == 0, running.output[-5000:]
    assert running.rewards() == pytest.approx(whole, abs=1e-6)
