"""Who runs where: cards, ports, addresses and command lines, against those found by hand; and what is refused before a start."""

from pathlib import Path

import pytest

from mmrl.app.cluster.hosts import expanded, found_hosts
from mmrl.app.cluster.placement import Placement, place
from mmrl.app.commands import launch as launching
from mmrl.app.commands.launch import launch, lines_of
from mmrl.app.commands.options import LaunchArguments
from mmrl.app.config import run as configs
from mmrl.app.plugins.resolve import shipped_folder
from tests.support.fake_engines import make_environment

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


def test_one_node_of_eight_cards(tmp_path: Path, spec: str):
    environment = make_environment(tmp_path / "engine")
    words = [
        f"policy.engine={{kind='vllm', environment='{environment}', options=['--seed', '7']}}",
        ASKED,
        f"cluster={{gpus_per_node=8, trainers=4, engines=1, gpus_per_engine=2, rewards=['{spec}'], gpus_per_reward=1}}",
    ]
    engine, reward, trainers = planned(words).processes
    assert (engine.gpus, reward.gpus, trainers.gpus) == ((4, 5), (6,), (0, 1, 2, 3))
    assert (engine.url, reward.url, trainers.url) == ("http://127.0.0.1:8100", "http://127.0.0.1:8533", "")
    assert dict(engine.environment)["CUDA_VISIBLE_DEVICES"] == "4,5" and not engine.missing
    assert " ".join(engine.words).startswith(f"{environment}/bin/vllm serve tiny:qwen3_vl --host 127.0.0.1 --port 8100")
    assert engine.words[-4:] == ("--seed", "7", "--tensor-parallel-size", "2")
    assert reward.words[1:] == ("-m", "mmrl", "reward", "serve", spec, "--host", "127.0.0.1", "--port", "8533")
    assert trainers.words[1:] == (
        *("-m", "torch.distributed.run", "--nnodes", "1", "--nproc_per_node", "4", "--node_rank", "0"),
        *("--master_addr", "127.0.0.1", "--master_port", "29500", "-m", "mmrl", "train", "tiny/image", *words),
        'policy.engine.url=["http://127.0.0.1:8100"]',
        *('policy.engine.environment=""', "policy.engine.port=0", 'policy.engine.devices=""', "policy.engine.options=[]"),
    )


def test_samplers_have_the_cards_after_their_trainers_which_starts_them():
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


def test_every_trainer_of_every_machine_has_samplers():
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


def test_judges_have_the_last_cards_and_a_port_that_rewards_ask(tmp_path: Path, spec: str):
    environment = make_environment(tmp_path / "engine", "0.32.0")
    engine = f"policy.engine={{kind='vllm', environment='{environment}'}}"
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
    assert " ".join(one.words).startswith(
        f"{environment}/bin/vllm serve org/judge --host 127.0.0.1 --port 8300 --tensor-parallel-size 2"
    )
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
    with pytest.raises(ValueError, match=r'mean\.py has a state_dict, so it remembers.*cluster.rewards_on = "first"'):
        planned(words, ["a", "b"])
    servers = [p for p in planned([*words, "cluster.rewards_on=first"], ["a", "b"]).processes if p.url]
    assert [(p.node, p.url) for p in servers] == [(0, "http://a:8500")]
    assert planned([*words, "cluster.nodes=1"]).servers_of(0), "one machine has one"


def test_shards_are_accelerates():
    trainers = planned(["cluster={nodes=2, gpus_per_node=2, trainers=4, weights='shards'}"], ["a", "b"]).processes[1]
    words = " ".join(trainers.words)
    assert "accelerate/fsdp2.yaml --num_machines 2 --num_processes 4 --machine_rank 1 --main_process_ip a" in words


def test_one_trainer_needs_no_launcher():
    assert planned([]).processes[0].words[1:] == ("-m", "mmrl", "train", "tiny/image")


@pytest.mark.parametrize(("hosts", "node"), [(["a"], 0), (["a", "b", "c"], 0), (["a", "b"], 2), (["a", "b"], -1)])
def test_hosts_and_nodes_are_as_many_as_the_config_says(hosts: list[str], node: int):
    with pytest.raises(ValueError, match=r"cluster.nodes is 2"):
        planned(["cluster={nodes=2, trainers=2}"], hosts, node)


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


def test_a_machine_has_one_launch_and_where_no_scheduler_is_variables_are_named():
    with pytest.raises(ValueError, match=r"several tasks on this machine.*srun --ntasks-per-node=1"):
        found_hosts({"SLURM_JOB_NODELIST": "a,b", "SLURM_NODEID": "1", "SLURM_LOCALID": "1"}, 2)
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
