"""`mmrl launch`: what it prints, the script it writes, and what it refuses before it starts anything."""

import re
import socket
import subprocess
from pathlib import Path

import pytest

from mmrl.app.cluster.placement import Placement
from mmrl.app.commands import launch as launching
from mmrl.app.commands.launch import LaunchArguments, batch_script, launch
from mmrl.app.config import run as configs
from mmrl.app.plugins.resolve import shipped_folder
from mmrl.lab.tiny.text.vlms import build
from tests.support.fake_engines import make_environment
from tests.support.stored_codes import store_codes

SCRIPTS = sorted((shipped_folder("configs") / "cluster").glob("*.sh"))
NODES = {"cluster/one_node_8_gpus": 1, "cluster/four_nodes_32_gpus": 4}


@pytest.fixture(autouse=True)
def empty_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "MMRL_REWARD_TOKEN", "MMRL_ENGINE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", sorted(NODES))
def test_a_shipped_cluster_is_printed_with_everything_in_its_place(name: str, capsys: pytest.CaptureFixture[str]):
    assert launch(LaunchArguments([name], dry_run=True)) == 0
    said = capsys.readouterr().out
    assert said.count("trainers: GPU 0-5, port 29500, waits for engine 0, engine 1") == NODES[name]
    assert said.count(": GPU 6, port 8100, starts first") == said.count(": GPU 7, port 8101, starts first") == NODES[name]
    assert said.count("-m torch.distributed.run --nnodes") == NODES[name]
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5" in said and "policy.engine.url=" in said


def test_several_nodes_are_written_as_a_script_that_is_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert launch(LaunchArguments(["tiny/image", "cluster={nodes=2, trainers=2}", "output='it''s here'"])) == 0
    said = capsys.readouterr().out
    assert "#SBATCH --nodes=2\n" in said and "#SBATCH --gpus-per-node" not in said
    file = tmp_path / "job.sh"
    file.write_text(said)
    subprocess.run(["bash", "-n", str(file)], check=True, timeout=60)
    done = subprocess.run(
        ["bash", str(file)], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"}, check=False
    )
    assert done.returncode == 2 and done.stderr == "mmrl: this is a script for Slurm: start it with sbatch\n"


def slurm(folder: Path, file: Path, nodes: int) -> subprocess.CompletedProcess[str]:
    """Run a script as one job of two nodes, with stand-ins for Slurm's programs that print what they are asked."""
    programs = {
        "scontrol": 'printf "a\\nb\\n"',
        "srun": 'shift; for node in 0 1; do SLURM_NODEID=$node "$@"; done',
        "mmrl": 'echo "$@" "key=${#MMRL_REWARD_TOKEN}"',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / name).chmod(0o755)
    variables = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "[a-b]", "SLURM_JOB_NUM_NODES": str(nodes)}
    return subprocess.run(["bash", str(file)], capture_output=True, text=True, timeout=60, env=variables, check=False)


def test_the_script_starts_a_launch_on_every_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["tiny/image", "cluster={nodes=2, trainers=2}", "output='with a blank'"]
    launch(LaunchArguments(words))
    file = tmp_path / "job.sh"
    file.write_text(capsys.readouterr().out)
    done = slurm(tmp_path, file, 2)
    assert done.stdout.splitlines() == [f"launch {' '.join(words)} --hosts a,b --node {node} key=48" for node in (0, 1)]
    wrong = slurm(tmp_path, file, 3)
    assert wrong.returncode == 2 and wrong.stderr == "mmrl: the job has 3 node(s), and the config wants 2\n"


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_shipped_scripts_are_those_that_launch_writes(file: Path):
    name = f"cluster/{file.stem}"
    assert len(SCRIPTS) == len(NODES) and name in NODES
    assert file.read_text() == batch_script(configs.load(name).config.cluster, [name])
    subprocess.run(["bash", "-n", str(file)], check=True, timeout=60)
    assert file.stat().st_mode & 0o111


def test_a_port_that_is_taken_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            ValueError, match=f"port {port} of trainers is taken by another program: end that, or change cluster.port"
        ):
            launch(LaunchArguments(["tiny/image", f"cluster={{trainers=2, port={port}}}"]))


def test_too_few_cards_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pytest.raises(ValueError, match=r"this node need 4 GPUs, and it shows 2 \(CUDA_VISIBLE_DEVICES=3,5\)"):
        launch(LaunchArguments(["tiny/image", "cluster={gpus_per_node=4, trainers=4, port=29517}"]))


def test_an_engine_without_its_environment_and_one_of_other_machines_without_a_folder_are_refused(tmp_path: Path):
    words = ["tiny/image", f"policy.engine={{kind='vllm', environment='{tmp_path / 'none'}'}}"]
    with pytest.raises(ValueError, match=r"engine 0 cannot run here: there is no environment of vLLM in .*none"):
        launch(LaunchArguments([*words, "cluster.engines=1"]))
    with pytest.raises(ValueError, match=r"which is another machine, and policy.engine.folder is empty"):
        launch(LaunchArguments([*words, "cluster={nodes=2, trainers=2, engines=2}"], dry_run=True))


def test_servers_that_other_machines_reach_need_a_key(tmp_path: Path):
    environment = make_environment(tmp_path / "engine")
    engine = f"policy.engine={{kind='vllm', environment='{environment}', folder='{tmp_path}'}}"
    words = ["tiny/image", engine, "cluster={nodes=2, trainers=2, engines=2}"]
    with pytest.raises(ValueError, match=r"engines of 2 nodes .* MMRL_ENGINE_TOKEN is not set"):
        launch(LaunchArguments(words, node=1, hosts="a,b"))
    with pytest.raises(ValueError, match="give the names of all with --hosts"):
        launch(LaunchArguments(words, node=1))


@pytest.fixture
def in_4_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run in 4 bits with one server, whose cache is empty."""
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    model, environment = build("qwen3_vl", tmp_path / "model"), make_environment(tmp_path / "engine")
    words = ["tiny/image", f"policy.model={model}", "policy.weights=nf4", "policy.lora.rank=2", "cluster.engines=1"]
    return [*words, f"policy.engine={{kind='vllm', environment='{environment}'}}"]


def served(placement: Placement) -> str:
    [engine] = placement.servers_of(0)
    words = engine.words
    assert "--enable-lora" in words and "--quantization" not in words
    return words[words.index("serve") + 1]


def test_servers_beside_4_bits_read_a_folder_of_what_they_stand_for(
    in_4_bits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A dry run names the folder and writes nothing; trainers go on with the model itself."""
    launch(LaunchArguments(in_4_bits, dry_run=True))
    said = capsys.readouterr().out
    named = re.search(rf" serve ({tmp_path}/cache/whole-[0-9a-f]{{12}}) ", said)
    assert named is not None and f"engines read {named[1]}: what 4 bits stand for" in said
    assert not Path(named[1]).exists()
    started: list[Placement] = []
    monkeypatch.setattr(launching, "start", lambda config, placement, given: started.append(placement) or 0)
    assert launch(LaunchArguments(in_4_bits)) == 0
    assert served(started[0]) == named[1] and (Path(named[1]) / "model.safetensors").is_file()
    [trainers] = [process for process in started[0].of_node(0) if process.kind == "trainers"]
    assert f"policy.model={tmp_path / 'model'}" in trainers.words and named[1] not in " ".join(trainers.words)


@pytest.mark.parametrize("dry_run", [True, False])
def test_servers_that_cannot_follow_4_bits_are_refused_before_any_starts(
    in_4_bits: list[str], tmp_path: Path, dry_run: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(launching, "start", lambda *_: pytest.fail("it started"))
    with pytest.raises(ValueError, match=r'sync is "file", which sends all weights, .*: set policy.engine.sync = "lora"'):
        launch(LaunchArguments([*in_4_bits, "policy.engine.sync=file"], dry_run=dry_run))
    with pytest.raises(ValueError, match=r"files or code of its own that do not allow to write what 4 bits stand for"):
        launch(LaunchArguments([*in_4_bits, "policy.trust_remote_code=true"], dry_run=dry_run))
    stored = store_codes(tmp_path / "model", tmp_path / "stored", r"language_model\.layers\..*_proj\.weight")
    with pytest.raises(ValueError, match=r"is stored in 4 bits, which vLLM cannot read: remove \[policy.engine\], or take the"):
        launch(LaunchArguments([*in_4_bits, f"policy.model={stored}", "policy.weights=float"], dry_run=dry_run))


def test_keys_are_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("MMRL_ENGINE_TOKEN", "s3cret")
    environment = make_environment(tmp_path / "engine")
    words = ["tiny/image", f"policy.engine={{kind='vllm', environment='{environment}'}}", "cluster.engines=1"]
    launch(LaunchArguments(words, dry_run=True))
    said = capsys.readouterr().out
    assert "VLLM_API_KEY='[the key]'" in said and "s3cret" not in said
