"""The script that measures real sizes, on narrow models: real commands in processes of their own, and a table."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.real_size import LOAD, SHAPES, Bench, memory_of, rows_of, watch
from benchmarks.shapes import vlm_with_weights
from mmrl.app.planning.memory import GIB
from mmrl.lab.tiny.text.vlms import build


@pytest.mark.evidence
def test_a_narrow_model_is_planned_trained_and_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, place = vlm_with_weights(tmp_path / "model", small=True), tmp_path / "place"
    bench = Bench(SHAPES["vlm"], place, small=True, most=4.0)
    bench.all(model, rows_of("vlm", place), ("plan", "train", "merge"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in bench.lines]
    assert [line[0] for line in lines] == ["plan", "train", "export --merge"]
    planned, peak = float(lines[1][4]), float(lines[1][2])
    # what narrow models take is the libraries, which the plan found in its own process
    assert peak / 2 < planned < 2 * peak
    assert (place / "merged" / "model.safetensors").is_file() and (place / "run" / "checkpoints").is_dir()
    assert capsys.readouterr().out.count("|") > 20


def test_a_command_that_takes_too_much_is_stopped(tmp_path: Path):
    waste = "x = bytearray(400 * 2**20)\nimport time\ntime.sleep(600)"
    use = watch([sys.executable, "-c", waste], tmp_path / "log", 200 * 2**20)
    assert use.code == -9 and 200 * 2**20 < use.peak < GIB


def test_memory_of_a_process_is_read_and_of_none_is_0():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        own, highest = memory_of(process.pid)
        assert process.stdin is not None
        process.stdin.close()
    assert 0 < own <= highest
    assert memory_of(process.pid) == (0, 0)


def test_what_weights_in_4_bits_take_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Two layers of q and o (32 x 32), k and v (32 x 16), and three matrices of 32 x 64; small blocks have large scales."""
    words = [f"policy.model={build('qwen2_5_vl', tmp_path / 'model')}", "policy.weights=nf4", "policy.lora.rank=2"]
    monkeypatch.setattr(sys, "argv", ["-c", "tiny/image", *words])
    exec(LOAD, {})
    said = capsys.readouterr().out
    assert f" for {2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)} weights in 4 bits, 0.5" in said and " GiB beside" in said
