"""Chains of generators: the best pictures or clips become files that a later stage teaches, stopped amid and continued."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.app.chain.rows import load_rows
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.config.stages import stages_of
from mmrl.app.run.folder import RunDir, read_lines
from mmrl.data.files.mp4 import read_mp4
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.chains import lines, same

BEST = "{kind='filter', name='best', num_prompts=3, num_samples=3, success_at=-1.0, low=0.0, high=1.0, column='picture'}"
PAIRS = "{kind='pairs', num_prompts=3, num_samples=3}"
SFT = "{kind='sft', steps=2, data={use='stage:best'}}"
CHAIN = f"[{BEST}, {SFT}, {PAIRS}, {{kind='dpo', steps=1, data={{use='stage:pairs'}}}}]"
CLIPS = ["policy.model=tiny:wan", "policy.frames=5", "policy.fps=4.0", "policy.max_prompt_tokens=8"]
SHORT = ["evaluate_every=0", "evaluation.num_prompts=0", "samples_every=0", "prompts_per_step=2", "save_every=1"]
BRIGHT = """
from pathlib import Path

import numpy as np


def bright(group):
    if Path("ask").exists() and group.prompt.id.startswith("yellow"):
        Path("ask").unlink()
        Path("stopped/stop.request").touch()
    return [float(np.asarray(sample.output).mean() / 255) for sample in group.samples]
"""


def resolved(folder: Path, *words: str) -> Resolved:
    (folder.parent / "bright.py").write_text(BRIGHT)
    reward = f"reward=[{{use={str(folder.parent / 'bright.py')!r}}}]"
    return configs.load("tiny/taught_drawing", [*SHORT, reward, f"stage={CHAIN}", f"output={str(folder)!r}", *words])


def rows_of(run: RunDir, name: str) -> list[dict[str, Any]]:
    return [row for line in read_lines(run.path / "stages" / name).lines for row in line["rows"]]


def brightness(run: RunDir, file: str) -> float:
    path = run.path / "stages" / file
    return float((np.asarray(Image.open(path)) if path.suffix == ".png" else read_mp4(path)[0]).mean() / 255)


def test_the_best_pictures_and_pairs_of_them_are_taught_and_a_stopped_chain_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    whole = run_training(resolved(tmp_path / "whole"))
    best, pairs = rows_of(whole, "01-filter.jsonl"), rows_of(whole, "03-pairs.jsonl")
    assert len(best) == len(pairs) == 3 and all(row["picture"].startswith("media/") for row in best)
    for row in pairs:
        light, dark = (brightness(whole, row[name]) for name in ("chosen", "rejected"))
        assert light - dark == pytest.approx(row["margin"], abs=1e-6) and row["margin"] > 0

    Path("ask").touch()
    with pytest.raises(SystemExit):
        run_training(resolved(tmp_path / "stopped"))
    assert 0 < len(read_lines(tmp_path / "stopped/stages/01-filter.part").lines) < 3
    again = run_training(resolved(tmp_path / "stopped"), tmp_path / "stopped")
    assert (
        rows_of(again, "01-filter.jsonl") == best and rows_of(again, "03-pairs.jsonl") == pairs and lines(again) == lines(whole)
    )
    one, other = (Checkpoints(run.checkpoints).load(3) for run in (whole, again))
    assert same(one["policy"], other["policy"])

    stages = stages_of(resolved(tmp_path / "gone"))
    moved = RunDir((tmp_path / "whole").rename(tmp_path / "moved"))
    taught = [prompt.columns["picture"] for prompt in load_rows(stages, 0, moved)]
    assert taught == [str(moved.path / "stages" / row["picture"]) for row in best]
    rows_are_of_what_was_sampled(moved, tmp_path)
    Path(taught[1]).unlink()
    with pytest.raises(ValueError, match=r"stage 1 of 4, best: its rows name .*\.png, which is gone: put"):
        load_rows(stages, 0, moved)
    (moved.path / "stages" / "01-filter.jsonl").unlink()
    with pytest.raises(ValueError, match=r"stage 1 of 4, best: its rows, .*01-filter\.jsonl, are gone"):
        load_rows(stages, 0, moved)


def rows_are_of_what_was_sampled(run: RunDir, folder: Path) -> None:
    """Neither data nor rows nor the pictures they name may be others than they were."""

    def refused(message: str, *words: str) -> None:
        with pytest.raises(ValueError, match=f"stage 1 of 4, best: {message}"):
            load_rows(stages_of(resolved(folder / "gone", *words)), 0, run)

    refused(r"its rows were sampled from other data \(prompt '.*' and 2 more\): put the data back, or", "data.seed=7")
    refused(r".*\(one of 3 prompts, where there are 2 now\)", "stage.0.num_prompts=2")
    file = run.path / "stages" / "01-filter.jsonl"
    written = file.read_text()
    file.write_text(written.replace('"right": 3', '"right": 2', 1))
    refused(r"line 1 of .*01-filter\.jsonl, or a file that it names, is not as it was written: put it back, or begin")
    file.write_text(written.partition("\n")[2])
    refused("its rows were sampled from other data")
    file.write_text(written)
    picture = run.path / "stages" / rows_of(run, file.name)[0]["picture"]
    drawn = picture.read_bytes()
    Image.new("RGB", (16, 16)).save(picture)
    refused("line 1 of ")
    picture.write_bytes(drawn)


def test_the_best_clips_are_taught(tmp_path: Path):
    chain = f"stage=[{BEST}, {SFT}]".replace("'picture'", "'clip'").replace("steps=2", "steps=1")
    run = run_training(resolved(tmp_path / "run", chain, "data.pictures=false", *CLIPS))
    best = [row["clip"] for row in rows_of(run, "01-filter.jsonl")]
    assert len(best) == 3 and read_mp4(run.path / "stages" / best[0])[0].shape == (5, 16, 16, 3)
    assert [line["run/stage"] for line in lines(run) if "loss" in line] == [2]
    assert json.loads(run.metrics_file.read_text().splitlines()[-1])["loss"] > 0
