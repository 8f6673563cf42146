"""`mmrl launch`: who runs where, against what was found by hand; what is printed, the script, and refusals before a start."""

import re
import socket
import subprocess
from pathlib import Path

import pytest

from mmrl.app.cluster.hosts import expanded, found_hosts
from mmrl.app.cluster.placement import Placement, place
from mmrl.app.commands import launch as launching
from mmrl.app.commands.launch import LaunchArguments, batch_script, launch, lines_of
from mmrl.app.config import run as configs
from mmrl.app.plugins.resolve import shipped_folder
from mmrl.lab.tiny.text.vlms import build
from tests.support.fake_engines import make_environment
from tests.support.refused import refused
from tests.support.stored_codes import store_codes

SCRIPTS = sorted((shipped_folder("configs") / "cluster").glob("*.sh"))
NODES = {"cluster/one_node_8_gpus": 1, "cluster/four_nodes_32_gpus": 4}


@pytest.fixture(autouse=True)
def empty_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "MMRL_REWARD_TOKEN", "MMRL_ENGINE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def engine(tmp_path: Path) -> str:
    """The word for engines with an environment of theirs."""
    return f"policy.engine={{kind='vllm', environment='{make_environment(tmp_path / 'engine')}'}}"


@pytest.mark.parametrize("name", sorted(NODES))
def test_a_shipped_cluster_is_printed_with_everything_in_its_place(name: str, capsys: pytest.CaptureFixture[str]):
    assert launch(LaunchArguments([name], dry_run=True)) == 0
    said = capsys.readouterr().out
    assert said.count("trainers: GPU 0-5, port 29500, waits for engine 0, engine 1") == NODES[name]
    assert said.count(": GPU 6, port 8100, starts first") == said.count(": GPU 7, port 8101, starts first") == NODES[name]
    assert said.count("-m torch.distributed.run --nnodes") == NODES[name]
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5" in said and "policy.engine.url=" in said


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


def test_several_nodes_are_written_as_a_script_that_starts_a_launch_on_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["tiny/image", "cluster={nodes=2, trainers=2}", "output='it''s here'"]
    assert launch(LaunchArguments(words)) == 0
    said = capsys.readouterr().out
    assert "#SBATCH --nodes=2\n" in said and "#SBATCH --gpus-per-node" not in said
    file = tmp_path / "job.sh"
    file.write_text(said)
    alone = subprocess.run(
        ["bash", str(file)], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"}, check=False
    )
    assert alone.returncode == 2 and alone.stderr == "mmrl: this is a script for Slurm: start it with sbatch\n"
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


def test_a_port_that_is_taken_and_too_few_cards_are_told(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = f"port {port} of trainers is taken by another program: end that, or change cluster.port"
        refused(said, launch, LaunchArguments(["tiny/image", f"cluster={{trainers=2, port={port}}}"]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pytest.raises(ValueError, match=r"this node need 4 GPUs, and it shows 2 \(CUDA_VISIBLE_DEVICES=3,5\)"):
        launch(LaunchArguments(["tiny/image", "cluster={gpus_per_node=4, trainers=4, port=29517}"]))


def test_an_engine_without_its_environment_and_one_of_other_machines_without_a_folder_are_refused(tmp_path: Path):
    words = ["tiny/image", f"policy.engine={{kind='vllm', environment='{tmp_path / 'none'}'}}"]
    with pytest.raises(ValueError, match=r"engine 0 cannot run here: there is no environment of vLLM in .*none"):
        launch(LaunchArguments([*words, "cluster.engines=1"]))
    with pytest.raises(ValueError, match=r"which is another machine, and policy.engine.folder is empty"):
        launch(LaunchArguments([*words, "cluster={nodes=2, trainers=2, engines=2}"], dry_run=True))


def test_servers_that_other_machines_reach_need_a_key(tmp_path: Path, engine: str):
    words = ["tiny/image", engine, f"policy.engine.folder={tmp_path}", "cluster={nodes=2, trainers=2, engines=2}"]
    refused(r"engines of 2 nodes .* MMRL_ENGINE_TOKEN is not set", launch, LaunchArguments(words, node=1, hosts="a,b"))
    refused("give the names of all with --hosts", launch, LaunchArguments(words, node=1))


@pytest.fixture
def in_4_bits(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run in 4 bits with one server, whose cache is empty."""
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    model = f"policy.model={build('qwen3_vl', tmp_path / 'model')}"
    return ["tiny/image", model, "policy.weights=nf4", "policy.lora.rank=2", "cluster.engines=1", engine]


def served(placement: Placement) -> str:
    [engine] = placement.servers_of(0)
    words = engine.words
    assert "--enable-lora" in words and "--quantization" not in words
    return words[words.index("serve") + 1]


def test_servers_beside_4_bits_read_a_folder_of_what_they_stand_for(in_4_bits: list[str], tmp_path: Path, monkeypatch, capsys):
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


def test_keys_are_not_printed(engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("MMRL_ENGINE_TOKEN", "s3cret")
    launch(LaunchArguments(["tiny/image", engine, "cluster.engines=1"], dry_run=True))
    said = capsys.readouterr().out
    assert "VLLM_API_KEY='[the key]'" in said and "s3cret" not in said


SPEC = 'port = 8533\n[[reward]]\nuse = "format"\nname = "tidy"\n'
ENGINE = ["policy.engine={kind='vllm'}"]
ASKED = "reward=[{use='http://127.0.0.1:8533/tidy'}, {use='iou'}]"


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "spec.toml"
    file.write_text(SPEC)
    return str(file)


def planned(words: list[str], hosts: list[str] | None = None, node: int = 0) -> Placement:
    resolved = configs.load("tiny/image", ["prompts_per_step=24", *words])
    return place(resolved, ["tiny/image", *words], hosts or ["127.0.0.1"], shipped_folder("configs"), node)


def test_one_node_of_eight_cards(tmp_path: Path, engine: str, spec: str):
    words = [
        engine,
        "policy.engine.options = ['--seed', '7']",
        ASKED,
        f"cluster={{gpus_per_node=8, trainers=4, engines=1, gpus_per_engine=2, rewards=['{spec}'], gpus_per_reward=1}}",
    ]
    server, reward, trainers = planned(words).processes
    assert (server.gpus, reward.gpus, trainers.gpus) == ((4, 5), (6,), (0, 1, 2, 3))
    assert (server.url, reward.url, trainers.url) == ("http://127.0.0.1:8100", "http://127.0.0.1:8533", "")
    assert dict(server.environment)["CUDA_VISIBLE_DEVICES"] == "4,5" and not server.missing
    assert " ".join(server.words).startswith(f"{tmp_path}/engine/bin/vllm serve tiny:qwen3_vl --host 127.0.0.1 --port 8100")
    assert server.words[-4:] == ("--seed", "7", "--tensor-parallel-size", "2")
    assert reward.words[1:] == ("-m", "mmrl", "reward", "serve", spec, "--host", "127.0.0.1", "--port", "8533")
    assert trainers.words[1:] == (
        *("-m", "torch.distributed.run", "--nnodes", "1", "--nproc_per_node", "4", "--node_rank", "0"),
        *("--master_addr", "127.0.0.1", "--master_port", "29500", "-m", "mmrl", "train", "tiny/image", words[0], *words[2:]),
        'policy.engine.url=["http://127.0.0.1:8100"]',
        *('policy.engine.environment=""', "policy.engine.port=0", 'policy.engine.devices=""', "policy.engine.options=[]"),
    )


def test_samplers_have_the_cards_after_their_trainers_which_start_them_on_every_machine():
    words = ["cluster={gpus_per_node=4, samplers=2}"]
    placement = place(configs.load("tiny/flow", words), ["tiny/flow", *words], ["127.0.0.1"], shipped_folder("configs"))
    assert [(p.name, p.gpus, bool(p.words)) for p in placement.processes] == [
        ("trainer", (0, 1, 2), True),
        ("sampler 0", (1,), False),
        ("sampler 1", (2,), False),
    ]
    assert lines_of(placement)[-3:-1] == [
        "  sampler 0: GPU 1, started by its trainer, and again when it dies",
        "  sampler 1: GPU 2, started by its trainer, and again when it dies",
    ]
    words = ["cluster={nodes=2, gpus_per_node=6, trainers=4, samplers=2}", "prompts_per_step=4"]
    own = configs.load("tiny/flow", words)
    placement = place(own, ["tiny/flow", *words], ["a", "b"], shipped_folder("configs"))
    assert [p.gpus for p in placement.processes if p.kind == "trainers"] == [(0, 1, 2, 3, 4, 5)] * 2
    assert [(p.node, p.gpus) for p in placement.processes if p.kind == "sampler"] == [
        (node, (card,)) for node in (0, 1) for card in (2, 3, 4, 5)
    ]
    shared = configs.load("tiny/flow", [*words, "cluster.samplers_share=true"])
    assert [(p.node, p.gpus) for p in place(shared, [], ["a", "b"], shipped_folder("configs")).processes[2:]] == [
        (node, (card,)) for node in (0, 1) for card in (0, 0, 1, 1)
    ]
    with pytest.raises(ValueError, match=r'cluster.samplers is 2, and cluster.weights is "shards"'):
        configs.load("tiny/flow", [*words, "cluster.weights=shards"])


def test_judges_have_the_last_cards_and_a_port_that_rewards_ask(tmp_path: Path, engine: str, spec: str):
    judge = "{use='vlm_judge', server={url='http://127.0.0.1:8300/v1'}}"
    cluster = (
        f"gpus_per_node=8, trainers=2, engines=1, rewards=['{spec}'], gpus_per_reward=1, judges=['org/judge'], gpus_per_judge=2"
    )
    words = [engine, f"reward=[{{use='http://127.0.0.1:8533/tidy'}}, {judge}]"]
    words += [f"cluster={{{cluster}, judge_port=8300, judge_options=['--max-model-len', '9000']}}"]
    placement = planned(words)
    one = next(process for process in placement.processes if process.kind == "judge")
    assert (one.gpus, one.url, one.missing) == ((4, 5), "http://127.0.0.1:8300", "")
    assert dict(one.environment)["CUDA_VISIBLE_DEVICES"] == "4,5" and "VLLM_SERVER_DEV_MODE" not in dict(one.environment)
    served = f"{tmp_path}/engine/bin/vllm serve org/judge --host 127.0.0.1 --port 8300 --tensor-parallel-size 2"
    assert " ".join(one.words).startswith(served)
    assert one.words[-2:] == ("--max-model-len", "9000")
    said = "\n".join(lines_of(placement))
    assert "  judge 0: GPU 4-5, port 8300, starts first\n" in said
    assert "trainers: GPU 0-1, port 29500, waits for engine 0, reward server 0, judge 0\n" in said


def test_two_nodes_share_engines_and_the_first_one_has_the_rewards(spec: str):
    cluster = f"nodes=2, gpus_per_node=8, trainers=12, engines=3, rewards=['{spec}'], rewards_on='first'"
    words = [*ENGINE, ASKED, f"cluster={{{cluster}}}"]
    placement = planned(words, ["a", "b"], node=1)
    assert [(p.name, p.node, p.gpus, p.url) for p in placement.processes[:4]] == [
        ("engine 0", 0, (6,), "http://a:8100"),
        ("engine 1", 1, (6,), "http://b:8100"),
        ("engine 2", 0, (7,), "http://a:8101"),
        ("reward server 0", 0, (), "http://a:8533"),
    ]
    assert placement.overrides[0] == 'policy.engine.url=["http://a:8100", "http://b:8100", "http://a:8101"]'
    assert placement.overrides[-1] == 'reward.0.use="http://a:8533/tidy"'
    first, second = placement.processes[4:]
    assert (first.node, second.node) == (0, 1) and "--node_rank 1 --master_addr a" in " ".join(second.words)
    assert first.words[-7:] == second.words[-7:], "all trainers have the same settings"
    assert "0.0.0.0" in placement.processes[0].words and "0.0.0.0" in placement.processes[3].words
    # a run that is resumed on other machines names those
    moved = ["reward=[{use='http://a:8533/tidy'}]", *words[:1], words[2]]
    assert planned(moved, ["c", "d"]).overrides[-1] == 'reward.0.use="http://c:8533/tidy"'
    watched = planned([*words, "evaluation.reward=[{use='http://127.0.0.1:8533/tidy'}]"], ["a", "b"])
    assert watched.overrides[-2:] == tuple(f'{key}.use="http://a:8533/tidy"' for key in ("reward.0", "evaluation.reward.0"))


def test_every_machine_has_reward_servers_and_judges_that_its_own_trainers_ask(spec: str):
    judge = "{use='vlm_judge', server={url='http://127.0.0.1:8300/v1'}}"
    cluster = f"nodes=2, gpus_per_node=4, trainers=2, engines=2, rewards=['{spec}'], judges=['org/judge'], judge_port=8300"
    words = [*ENGINE, f"reward=[{{use='http://a:8533/tidy'}}, {judge}]", f"cluster={{{cluster}}}"]
    placement = planned(words, ["a", "b"], node=1)
    here = [("reward server", (), "http://127.0.0.1:8533"), ("judge", (2,), "http://127.0.0.1:8300")]
    for node, engine in ((0, "http://a:8100"), (1, "http://b:8100")):
        own = [(p.kind, p.gpus, p.url) for p in placement.of_node(node) if p.url]
        assert own == [("engine", (1,), engine), *here]
        assert [(p.node, p.kind) for p in placement.servers_of(node)] == [
            (0, "engine"),
            (1, "engine"),
            (node, "reward server"),
            (node, "judge"),
        ], "nobody waits for what answers another machine alone"
    assert "0.0.0.0" not in [word for p in placement.processes if p.kind in ("reward server", "judge") for word in p.words]
    assert placement.overrides[-1] == 'reward.0.use="http://127.0.0.1:8533/tidy"', "a resumed run asks its own"
    assert len({p.words[-8:] for p in placement.processes if p.kind == "trainers"}) == 1, "all have the same settings"
    with pytest.raises(ValueError, match=r'cluster.rewards_on is "first": judges answer trainers of their own machine'):
        planned([*words, "cluster.rewards_on=first"], ["a", "b"])


def test_a_reward_that_remembers_has_one_server(tmp_path: Path):
    (tmp_path / "mean.py").write_text(
        "class Mean:\n    def __call__(self, group): return [0.0] * len(group.samples)\n"
        "    def state_dict(self): return {}\n    def load_state_dict(self, state): pass\n"
    )
    (tmp_path / "spec.toml").write_text(f"[[reward]]\nuse = '{tmp_path}/mean.py'\n")
    words = ["reward=[{use='http://127.0.0.1:8500/mean'}]", f"cluster={{nodes=2, trainers=2, rewards=['{tmp_path}/spec.toml']}}"]
    refused(r'mean\.py has a state_dict, so it remembers.*cluster.rewards_on = "first"', planned, words, ["a", "b"])
    servers = [p for p in planned([*words, "cluster.rewards_on=first"], ["a", "b"]).processes if p.url]
    assert [(p.node, p.url) for p in servers] == [(0, "http://a:8500")]
    assert planned([*words, "cluster.nodes=1"]).servers_of(0), "one machine has one"


def test_one_trainer_needs_no_launcher_and_shards_are_accelerates():
    assert planned([]).processes[0].words[1:] == ("-m", "mmrl", "train", "tiny/image")
    trainers = planned(["cluster={nodes=2, gpus_per_node=2, trainers=4, weights='shards'}"], ["a", "b"]).processes[1]
    words = " ".join(trainers.words)
    assert "accelerate/fsdp2.yaml --num_machines 2 --num_processes 4 --machine_rank 1 --main_process_ip a" in words


@pytest.mark.parametrize(("hosts", "node"), [(["a"], 0), (["a", "b", "c"], 0), (["a", "b"], 2), (["a", "b"], -1)])
def test_hosts_and_nodes_are_as_many_as_the_config_says(hosts: list[str], node: int):
    refused(r"cluster.nodes is 2", planned, ["cluster={nodes=2, trainers=2}"], hosts, node)


PODS = [{"JOBSET_NAME": "run", "JOB_COMPLETION_INDEX": index} for index in "01"]
TASKS = {"VC_TRAIN_1_HOSTS": "j-train-1-0.j", "VC_TRAIN_0_HOSTS": "j-train-0-0.j"}
SLURM = {"SLURM_JOB_NODELIST": "a,b"}


@pytest.mark.parametrize(
    ("environ", "host", "expected"),
    [
        ({"SLURM_JOB_NODELIST": "gpu[08-09]", "SLURM_NODEID": "1"}, "", (["gpu08", "gpu09"], 1)),
        ({"SLURM_JOB_NODELIST": "a,b,c", "SLURM_STEP_NODELIST": "a,c", "SLURM_NODEID": "1"}, "", (["a", "c"], 1)),
        ({"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n", "SKYPILOT_NODE_RANK": "0"}, "", (["10.0.0.1", "10.0.0.2"], 0)),
        (PODS[1], "run-workers-0-1", (["run-workers-0-0.run", "run-workers-0-1.run"], 1)),
        (PODS[0], "run-workers-1-0", (["run-workers-1-0.run"], 0)),
        (TASKS, "j-train-1-0", (["j-train-0-0.j", "j-train-1-0.j"], 1)),
        (
            {f"VC_R_{i}_HOSTS": f"r-{i}.j" for i in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)},
            "r-2",
            ([f"r-{i}.j" for i in range(11)], 2),
        ),
    ],
)
def test_schedulers(environ: dict[str, str], host: str, expected: tuple[list[str], int]):
    """Replicas of one machine each are runs, and eleven tasks of Volcano are in the order of their numbers."""
    assert found_hosts(environ, len(expected[0]), host) == expected


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


@pytest.mark.parametrize(
    ("environ", "host", "said"),
    [
        (PODS[0], "run-workers-1-0", r"pod run-workers-1-0 is of a further replica.*parallelism = completions = 2"),
        (SLURM | {"SLURM_NODEID": "1", "SLURM_LOCALID": "1"}, "", r"several tasks on this machine.*srun --ntasks-per-node=1"),
        (SLURM, "", r"SLURM_NODEID; SkyPilot: SKYPILOT_NODE_IPS.*JOBSET_NAME.*VC_\*_HOSTS.*PBS_NODEFILE"),
    ],
    ids=["pods that each count from 0", "several tasks on a machine", "no scheduler"],
)
def test_what_schedulers_say_of_one_machine_alone_is_refused(environ: dict[str, str], host: str, said: str):
    refused(said, found_hosts, environ, 2, host)


def test_the_same_command_is_one_node_of_the_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2")
    monkeypatch.setenv("SKYPILOT_NODE_RANK", "1")
    started: list[list[str]] = []

    def start(config: object, placement: launching.Placement, given: LaunchArguments) -> int:
        started.append([*placement.hosts, str(given.node)])
        return 0

    monkeypatch.setattr(launching, "start", start)
    assert launch(LaunchArguments(["tiny/image", "cluster={nodes=2, trainers=2}", "prompts_per_step=4"], hosts="auto")) == 0
    assert started == [["10.0.0.1", "10.0.0.2", "1"]]
    with pytest.raises(ValueError, match="leave --node 0 out"):
        launch(LaunchArguments(["tiny/image", "cluster={nodes=2, trainers=2}", "prompts_per_step=4"], hosts="auto", node=0))
    with pytest.raises(ValueError, match=r"of 2 \(10.0.0.1, 10.0.0.2\), and cluster.nodes is 4"):
        launch(LaunchArguments(["tiny/image", "cluster={nodes=4, trainers=4}"], hosts="auto"))
