"""One config is one run: bit for bit with other hash seeds and threads, and as near as rounding allows in two processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from mmrl.app.run.folder import RunDir, read_lines
from mmrl.runtime.repeating import WORKSPACE, bit_for_bit, deterministic
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.forked import run
from tests.support.launcher import forked
from tests.support.trainers import untimed
from tests.training.run_ranks import AHEAD, DRAWN, PLANNERS, STATE, VIDEO
from tests.training.run_ranks import trained as by_ranks

REWARD = "def letters(group):\n    return [len(set(sample.text)) / 100 for sample in group.samples]\n"
SHORT = ["deterministic=true", "evaluation.num_prompts=2", "samples_every=1"]
TEXT = ['reward=[{use = "./mine.py"}]', "optimizer.lr=1e-2"]


def trained(folder: Path, name: str, *words: str) -> list[RunDir]:
    (folder / "mine.py").write_text(REWARD)
    return twice(folder, "-m", "mmrl", "train", name, *SHORT, *words, output="output=run-{}")


def twice(folder: Path, *command: str, output: str) -> list[RunDir]:
    """Two runs at the same time, which differ in all that must not matter; their folders are `run-1` and `run-2`."""
    environment = {**os.environ, "PYTHONHASHSEED": "2", "OMP_NUM_THREADS": "2", "MMRL_CACHE": str(folder / "cache-2")}
    words = [sys.executable, *command, output.format("2")]
    errors = folder / "errors.txt"
    with errors.open("w") as file, subprocess.Popen(words, cwd=folder, env=environment, stdout=file, stderr=file) as one:
        other = run(*command, output.format("1"), cwd=folder, variables=[{"MMRL_CACHE": str(folder / "cache-1")}])
    assert (one.returncode, other.returncode) == (0, 0), errors.read_text()[-2000:] + other.stderr[-2000:]
    return [RunDir.open(folder / f"run-{seed}") for seed in ("1", "2")]


def numbers(run: RunDir) -> list[dict[str, Any]]:
    return [untimed(line) for line in read_lines(run.metrics_file).lines]


def tensors(state: Any, path: str = "") -> dict[str, torch.Tensor]:
    """All tensors inside a state, by where they are."""
    if isinstance(state, torch.Tensor):
        return {path: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    return {name: x for key, item in items for name, x in tensors(item, f"{path}/{key}").items()}


def check_equal(one: RunDir, other: RunDir) -> None:
    assert numbers(one) == numbers(other)
    assert any(line.get("policy/grad_norm", 0.0) > 0 for line in numbers(one)), "nothing was learned"
    mine, yours = (tensors(Checkpoints(run.checkpoints).load()) for run in (one, other))
    assert len(mine) > 20 and mine.keys() == yours.keys()
    assert not [name for name in mine if not torch.equal(mine[name], yours[name])]
    for file in sorted(one.samples.glob("*.jsonl")):
        assert file.read_bytes() == (other.samples / file.name).read_bytes()


@pytest.mark.evidence
@pytest.mark.parametrize(("name", "words"), [("tiny/image", "policy.sampling.max_new_tokens=8"), ("tiny/clips", "steps=3")])
def test_texts(tmp_path: Path, name: str, words: str):
    """A demo trains on texts too; of clips each run draws its own files and decodes them in a process of its own."""
    check_equal(*trained(tmp_path, name, *TEXT, words))


@pytest.mark.slow
@pytest.mark.parametrize("words", [pytest.param((), marks=pytest.mark.evidence), ("policy.lora.rank=2", "policy.guidance=2.0")])
def test_pictures(tmp_path: Path, words: tuple[str, ...]):
    check_equal(*trained(tmp_path, "tiny/flow", "evaluation.num_samples=1", *words))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["beeps", *(pytest.param(name, marks=pytest.mark.evidence) for name in ("grounding", "video", "t2i"))]
)
def test_a_demo_from_imitation_on(tmp_path: Path, name: str):
    # what so little imitation draws earns nothing from the demo's own reward
    words = ['reward=[{use = "jpeg_size", scale = 0.1}]'] if name == "t2i" else []
    one, other = twice(tmp_path, "-m", "mmrl", "demo", name, "--short", *words, output="--output=run-{}")
    models = [sorted(folder.rglob("*.safetensors")) for folder in sorted(tmp_path.glob("cache-*"))]
    assert models[0] and [file.read_bytes() for file in models[0]] == [file.read_bytes() for file in models[1]]
    check_equal(one, other)


@pytest.mark.evidence
def test_a_compiled_run_goes_on(tmp_path: Path):
    """The step of its tokens and its blocks are compiled anew by the process that resumes it, with an empty cache."""
    words = ["policy.compile=true", "policy.sampling.max_new_tokens=8", "steps=4", "save_every=2", "optimizer.lr=1e-2"]
    (tmp_path / "mine.py").write_text(REWARD)

    def mmrl(*words: str, cache: str) -> None:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / cache)}
        subprocess.run([sys.executable, "-m", "mmrl", "train", *words], cwd=tmp_path, env=environment, check=True, timeout=900)

    mmrl("tiny/image", *SHORT, TEXT[0], *words, "output=run-1", cache="first")
    shutil.copytree(tmp_path / "run-1", tmp_path / "run-2")
    shutil.rmtree(tmp_path / "run-2" / "checkpoints" / "step-4")
    mmrl("--resume", "run-2", cache="second")
    check_equal(*(RunDir.open(tmp_path / f"run-{k}") for k in (1, 2)))


def test_inside_nothing_is_left_to_chance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(WORKSPACE, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with deterministic(False):
        assert not torch.are_deterministic_algorithms_enabled() and WORKSPACE not in os.environ
    try:
        with deterministic():
            assert torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() == 1
            assert os.environ[WORKSPACE] == ":4096:8"
            assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
            assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
            with pytest.raises(RuntimeError, match="deterministic"):
                torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
        with bit_for_bit():
            assert torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() == 1
        assert not torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_a_gpu_in_use_without_a_fixed_workspace_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setenv(WORKSPACE, ":0:0")
    with pytest.raises(ValueError, match="must come before the GPU is used"), deterministic():
        pass
    monkeypatch.setenv(WORKSPACE, ":16:8")
    with deterministic():
        assert os.environ[WORKSPACE] == ":16:8"


def test_an_operation_without_a_repeatable_kernel_is_named():
    with (
        pytest.raises(
            ValueError, match=r"deterministic = true, and put_, which .* has no repeatable kernel .* deterministic = false"
        ),
        deterministic(),
    ):
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))
    with pytest.raises(RuntimeError, match="another"), deterministic():
        raise RuntimeError("another")


Results = dict[str, Any]
CLOSE = {
    **dict.fromkeys(("grpo", "minibatches", "high_entropy", "recorded"), (2e-5, 1e-5)),
    **dict.fromkeys((*VIDEO, *PLANNERS, *STATE, *DRAWN), (5e-5, 2e-5)),
}
"""Case -> how far metrics and weights may be apart."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    """What one process and two left of every case."""
    out, alone = tmp_path_factory.mktemp("ranks") / "two.pt", Accelerator(cpu=True)
    done = forked("tests.training.run_ranks", out, 2)
    assert done.returncode == 0 and alone.num_processes == 1, done.stderr[-3000:]
    return by_ranks(alone), torch.load(out, weights_only=True)


@pytest.mark.parametrize("case", CLOSE)
def test_two_processes_equal_one(results: tuple[Results, Results], case: str):
    one, two = results[0][case], results[1][case]
    metrics_apart, weights_apart = CLOSE[case]
    for step, (a, b) in enumerate(zip(one["metrics"], two["metrics"], strict=True)):
        assert untimed(b) == pytest.approx(untimed(a), abs=metrics_apart, nan_ok=True), f"step {step}"
    torch.testing.assert_close(one["weights"], two["weights"], atol=weights_apart, rtol=0)


def test_threads_beside_two_trainers_give_the_same_bits_whatever_takes_how_long_and_after_a_stop(
    results: tuple[Results, Results],
):
    one, other = (results[1][name] for name in AHEAD)
    assert torch.equal(one["weights"], other["weights"]) and torch.equal(one["weights"], one["resumed"])
    assert [metrics["rollout/staleness"] for metrics in one["metrics"]] == [0, 1, 1, 1]
    assert [metrics["reward/total"] for metrics in one["metrics"]] == [metrics["reward/total"] for metrics in other["metrics"]]
    assert not torch.equal(one["weights"], results[1]["dynamic"]["weights"])


def test_dynamic_sampling_on_two_processes_fills_every_step(results: tuple[Results, Results]):
    for metrics in results[1]["dynamic"]["metrics"]:
        assert metrics["reward/no_spread"] == 0 and metrics["rollout/discarded"] % 8 == 0
