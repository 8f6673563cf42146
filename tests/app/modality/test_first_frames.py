"""Clips from a first frame through the commands: every such model trains, plans count it, and what does not fit is refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.app.commands import plan
from mmrl.app.commands.train import run_training
from mmrl.app.config.run import Resolved
from mmrl.app.config.tasks import one_line
from mmrl.app.planning.choices import ModelFacts
from mmrl.app.run import build as building
from mmrl.app.run.build import build
from tests.support.flow_runs import Make, train_steps, with_preset

TOKENS = {"wan_i2v": 512, "wan_i2v_a14b": 12, "wan_5b": 12, "hunyuan15_i2v": 12, "sana_i2v": 12, "ltx2_i2v": 12}
SIZES = ["policy.height=32", "policy.width=32", "policy.frames=5", "policy.lora.rank=2", "policy.guidance=2.0"]
REWARD = 'reward=[{use="first_frame", limit=1.0}, {use="over_frames", frames=2, picture={use="jpeg_size", scale=0.1}}]'


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of four first frames."""
    lines: list[str] = []
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        lines.append(json.dumps({"image": f"{i}.png", "prompt": "it moves left", "id": str(i)}))
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    return tmp_path / "train.jsonl"


def going_on(make: Make, name: str, family: str, rows: Path, *words: str) -> Resolved:
    resolved = make()
    for table in (("data",), ("evaluation", "data")):
        resolved.table.set(table, {"use": "edits", "path": str(rows)}, "test")
    own = [f"policy.model=tiny:{family}", f"policy.max_prompt_tokens={TOKENS[family]}", *SIZES, REWARD, "prompts_per_step=2"]
    # Their tokens are of 4 x 4 pixels.
    own += ["policy.height=16", "policy.width=16"] if family in ("hunyuan15_i2v", "ltx2_i2v") else []
    return with_preset(lambda: resolved, name, *own, *words)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("wan_i2v", "flow_grpo"),
        ("wan_i2v_a14b", "mix_grpo"),
        ("wan_i2v_a14b", "diffusion_nft"),
        ("wan_5b", "branch_grpo"),
        ("wan_5b", "diffusion_nft"),
        ("hunyuan15_i2v", "flow_grpo"),
        ("sana_i2v", "flow_grpo"),
        pytest.param("ltx2_i2v", "flow_grpo", marks=pytest.mark.evidence),
    ],
)
def test_presets_take_two_steps_from_first_frames(make: Make, rows: Path, family: str, name: str):
    """The ratio gate (1e-6) passes."""
    words = ["algorithm.minibatches=2"] if name == "branch_grpo" else []
    job = build(going_on(make, name, family, rows, *words))
    for metrics in train_steps(job, 2):
        assert math.isfinite(metrics["reward/first_frame/difference"])


def test_a_run_shows_the_frame_beside_its_clips(make: Make, rows: Path, tmp_path: Path):
    words = (f"output={str(tmp_path / 'run')!r}", "steps=1", "evaluation.num_prompts=2", "evaluation.num_steps=2")
    run = run_training(going_on(make, "flow_grpo", "wan_i2v_a14b", rows, *words))
    gallery = run.report_file.read_text().partition('<section id="gallery">')[2].partition("</section>")[0]
    assert gallery.count('<p class="label">source</p>') == 2
    line = json.loads(run.samples_file("eval", 0).read_text().splitlines()[0])
    assert line["video"]["kind"] == "video" and (run.samples / line["media"][0]["file"]).is_file()


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.evidence] if name == "ltx2_i2v" else []) for name in sorted(TOKENS)]
)
def test_a_plan_counts_the_network_that_it_goes_through(make: Make, rows: Path, family: str):
    """A first frame adds no token; its channels and CLIP's view pass the network in full size."""
    made = plan.draw_up(going_on(make, "flow_grpo", family, rows))
    tokens = {"wan_i2v": 8, "wan_i2v_a14b": 8, "wan_5b": 2, "hunyuan15_i2v": 48, "sana_i2v": 8, "ltx2_i2v": 48}[family]
    counted = made.usual.counts["rollout"]
    assert counted.positions == counted.rows * tokens
    assert made.memory.phases["update"] > 0


def test_one_line_goes_on_from_first_frames(rows: Path):
    config: Any = one_line("i2v", "tiny:wan_i2v_a14b", str(rows), ["first_frame=0.5"], ["policy.max_prompt_tokens=12"]).config
    assert (config.data.use, config.algorithm.label.split()[0]) == ("edits", "flow_grpo_fast")
    assert (config.policy.frames, config.policy.height, config.policy.width) == (33, 256, 448)
    fives = building.with_local_model(one_line("i2v", "tiny:wan_5b", str(rows), ["first_frame"], []).config).policy
    assert ModelFacts.of(fives, ()).token_side == 32, "of an autoencoder that takes patches"
    config = one_line("i2v", "tiny:ltx2", str(rows), ["first_frame"], ["policy.max_prompt_tokens=12"]).config
    assert config.policy.frames == 33
    with pytest.raises(ValueError, match=r"--task i2v needs --reward, for example mmrl train --task i2v .*Wan2\.2-TI2V-5B"):
        one_line("i2v", "tiny:wan_i2v_a14b", str(rows), [], [])
