"""Which machines a job has and which one this is, by the variables of five schedulers; and what is refused."""

from pathlib import Path

import pytest

from mmrl.app.cluster.hosts import expanded, found_hosts
from mmrl.app.commands import launch as launching
from mmrl.app.commands.launch import launch
from mmrl.app.commands.options import LaunchArguments

NODES = ["cluster={nodes=2, trainers=2}", "prompts_per_step=4"]


@pytest.mark.parametrize(
    ("environ", "host", "expected"),
    [
        ({"SLURM_JOB_NODELIST": "gpu[08-09]", "SLURM_NODEID": "1"}, "", (["gpu08", "gpu09"], 1)),
        ({"SLURM_JOB_NODELIST": "a,b,c", "SLURM_STEP_NODELIST": "a,c", "SLURM_NODEID": "1"}, "", (["a", "c"], 1)),
        ({"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n", "SKYPILOT_NODE_RANK": "0"}, "", (["10.0.0.1", "10.0.0.2"], 0)),
        (
            {"JOBSET_NAME": "run", "JOB_COMPLETION_INDEX": "1"},
            "run-workers-0-1",
            (["run-workers-0-0.run", "run-workers-0-1.run"], 1),
        ),
        (
            {"VC_TRAIN_1_HOSTS": "j-train-1-0.j", "VC_TRAIN_0_HOSTS": "j-train-0-0.j"},
            "j-train-1-0",
            (["j-train-0-0.j", "j-train-1-0.j"], 1),
        ),
    ],
)
def test_schedulers(environ: dict[str, str], host: str, expected: tuple[list[str], int]):
    assert found_hosts(environ, 2, host) == expected


def test_mpi_says_the_number_and_a_file_the_names(tmp_path: Path):
    (tmp_path / "nodes").write_text("a\na\nb\nb\n")
    environ = {"PBS_NODEFILE": str(tmp_path / "nodes"), "OMPI_COMM_WORLD_RANK": "1"}
    assert found_hosts(environ, 2) == (["a", "b"], 1)
    assert found_hosts(environ, 2, "a.cluster") == (["a", "b"], 0), "ranks need not be in the order of names"
    with pytest.raises(ValueError, match=r"MPI says that this is machine 3 of 2 \(a, b\), and cluster.nodes is 2"):
        found_hosts(environ | {"OMPI_COMM_WORLD_RANK": "3"}, 2)


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("a", "a"),
        ("a[1-2,5],b", "a1 a2 a5 b"),
        ("a[08-10]", "a08 a09 a10"),
        ("r[1-2]n[0-1]x", "r1n0x r1n1x r2n0x r2n1x"),
        ("", ""),
    ],
)
def test_the_short_form_of_slurms_names(short: str, names: str):
    assert expanded(short) == names.split()


def test_eleven_tasks_of_volcano_are_in_the_order_of_their_numbers():
    environ = {f"VC_R_{i}_HOSTS": f"r-{i}.j" for i in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)}
    assert found_hosts(environ, 11, "r-2") == ([f"r-{i}.j" for i in range(11)], 2)


def test_pods_that_each_count_from_0_are_not_all_the_first_machine():
    several = {"JOBSET_NAME": "run", "JOB_COMPLETION_INDEX": "0"}
    with pytest.raises(ValueError, match=r"pod run-workers-1-0 is of a further replica.*parallelism = completions = 2"):
        found_hosts(several, 2, "run-workers-1-0")
    assert found_hosts(several, 1, "run-workers-1-0") == (["run-workers-1-0.run"], 0), "replicas of one machine each are runs"


def test_a_machine_has_one_launch():
    with pytest.raises(ValueError, match=r"several tasks on this machine.*srun --ntasks-per-node=1"):
        found_hosts({"SLURM_JOB_NODELIST": "a,b", "SLURM_NODEID": "1", "SLURM_LOCALID": "1"}, 2)


def test_where_no_scheduler_is_the_variables_are_named():
    with pytest.raises(ValueError, match=r"SLURM_NODEID; SkyPilot: SKYPILOT_NODE_IPS.*JOBSET_NAME.*VC_\*_HOSTS.*PBS_NODEFILE"):
        found_hosts({"SLURM_JOB_NODELIST": "a,b"}, 2)


def test_the_same_command_is_one_node_of_the_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2")
    monkeypatch.setenv("SKYPILOT_NODE_RANK", "1")
    started: list[list[str]] = []

    def start(config: object, placement: launching.Placement, given: LaunchArguments) -> int:
        started.append([*placement.hosts, str(given.node)])
        return 0

    monkeypatch.setattr(launching, "start", start)
    assert launch(LaunchArguments(["tiny/image", *NODES], hosts="auto")) == 0
    assert started == [["10.0.0.1", "10.0.0.2", "1"]]
    with pytest.raises(ValueError, match="leave --node 0 out"):
        launch(LaunchArguments(["tiny/image", *NODES], hosts="auto", node=0))
    with pytest.raises(ValueError, match=r"of 2 \(10.0.0.1, 10.0.0.2\), and cluster.nodes is 4"):
        launch(LaunchArguments(["tiny/image", "cluster={nodes=4, trainers=4}"], hosts="auto"))
