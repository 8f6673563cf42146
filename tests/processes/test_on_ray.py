"""`mmrl launch --on ray` on machines that the real Ray simulates: one that is lost is replaced, to the bit; the head is not."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

cluster_utils: Any = pytest.importorskip("ray.cluster_utils", reason='Ray is not installed: pip install "mmrl[ray]"')
ray: Any = import_module("ray")
pytestmark = pytest.mark.slow
STEPS = 40
RUN = ["tiny/image", f"steps={STEPS}", "save_every=2", "evaluate_every=0", "evaluation.num_prompts=0", "output=run"]


@pytest.fixture
def machines() -> Iterator[Any]:
    """A head and three machines of one CPU each, of which two are wanted; they notice a death within seconds."""
    notices = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    head = {"num_cpus": 0, "object_store_memory": 100 * 2**20, "include_dashboard": False, "_system_config": notices}
    cluster: Any = cluster_utils.Cluster(initialize_head=True, connect=True, head_node_args=head)
    for _ in range(3):
        cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    yield cluster
    ray.shutdown()  # a cluster does not end below a program that is connected to it
    cluster.shutdown()


def started(folder: Path, *words: str, **variables: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    argv = [sys.executable, "-m", "mmrl", "launch", *RUN, *words]
    return subprocess.Popen(argv, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def lines(folder: Path) -> list[dict[str, float]]:
    """The metrics of every step, without what a clock said."""
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [{name: x for name, x in row.items() if not name.startswith("time/")} for row in rows if "policy/grad_norm" in row]


def lose(cluster: Any) -> None:
    """Kill the machine of one of the trainers, but for the one through which this test speaks with Ray."""
    tables: dict[str, Any] = ray.util.placement_group_table()
    [lent] = [table for table in tables.values() if table["state"] == "CREATED"]
    own = {*lent["bundles_to_node_id"].values()} - {ray.get_runtime_context().get_node_id()}
    node = next(one for one in cluster.worker_nodes if one.node_id in own)
    cluster.remove_node(node, allow_graceful=False)


def disturbed(folder: Path, machines: Any, disturb: Callable[[], None], port: int) -> "tuple[subprocess.Popen[str], str]":
    """A run on two machines that is disturbed after its first checkpoint, and what it said."""
    cluster = f"cluster={{nodes=2, trainers=2, port={port}, patience_s=600}}"
    running = started(folder, cluster, "--on", "ray", RAY_ADDRESS=machines.address)
    try:
        until = time.monotonic() + 700
        while not list(folder.glob("run/checkpoints/step-*/manifest.json")):
            assert running.poll() is None and time.monotonic() < until, running.communicate(timeout=60)[0][-3000:]
            time.sleep(0.1)
        disturb()
        return running, running.communicate(timeout=900)[0]
    finally:
        running.kill()


def test_a_lost_head_node_ends_the_run_which_is_saved(machines: Any, tmp_path: Path):
    address = machines.address

    def lose_head() -> None:
        ray.shutdown()  # Ray would end this program too
        machines.head_node.kill_gcs_server()

    running, said = disturbed(tmp_path, machines, lose_head, 29673)
    assert running.returncode == 1 and f"Ray's head node ({address}) has not answered for 20 s" in said, said[-3000:]
    assert "2 of 2 did" in said and f"--on ray --resume {tmp_path}/run" in said.replace("\n", ""), said[-3000:]
    assert len(lines(tmp_path)) < STEPS


def test_a_machine_that_is_lost_is_replaced(machines: Any, tmp_path: Path):
    ours, plain = tmp_path / "ray", tmp_path / "plain"
    ours.mkdir()
    plain.mkdir()
    running, said = disturbed(ours, machines, lambda: lose(machines), 29671)
    assert running.returncode == 0, said[-3000:]
    assert "gone; " in said and "a new group of machines is asked for, 2 more time(s) after this" in said, said[-3000:]
    assert len(lines(ours)) == STEPS
    alone = started(plain, "cluster={trainers=2, port=29672}")
    assert alone.communicate(timeout=900) and alone.returncode == 0
    assert lines(ours) == lines(plain)
