"""Editors through the commands: runs on pictures of one's own, counts of a plan, and what is refused before weights."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.app.commands import plan
from mmrl.app.commands.plan import draw_up
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.config.tasks import one_line
from mmrl.app.modality.prompt_view import prompt_view
from mmrl.app.planning.choices import ModelFacts
from mmrl.app.run import build as building
from mmrl.app.run.build import build
from mmrl.core.types import Prompt, Request
from tests.support.flow_runs import Make, train_steps, with_preset

TOKENS = {"kontext": 24, "qwen_edit": 40, "flux2_klein": 40, "qwen_image21": 40}
WAYS = [("kontext", name) for name in ("flow_grpo", "mix_grpo", "branch_grpo", "diffusion_nft")]
WAYS += [("qwen_edit", "mix_grpo"), ("qwen_edit", "diffusion_nft"), ("flux2_klein", "flow_grpo"), ("flux2_klein", "branch_grpo")]
WAYS += [("qwen_image21", "flow_grpo")]


def picture(seed: int, size: tuple[int, int] = (16, 16)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of five edits."""
    lines: list[str] = []
    for i in range(5):
        picture(i).save(tmp_path / f"{i}.png")
        lines.append(json.dumps({"image": f"{i}.png", "instruction": "make it red", "id": str(i)}))
    (tmp_path / "edits.jsonl").write_text("\n".join(lines))
    return tmp_path / "edits.jsonl"


def of_editor(family: str, rows: Path) -> list[str]:
    data = f'{{use = "edits", path = "{rows}"}}'
    policy = [f"policy.model=tiny:{family}", f"policy.max_prompt_tokens={TOKENS[family]}", "policy.guidance=2.0"]
    policy += ["policy.width=32", "policy.height=32"] if family == "qwen_image21" else []
    reward = "reward=[{use = 'keeps_rest'}, {use = 'jpeg_size', scale = 0.1}]"
    return [*policy, "policy.lora.rank=2", f"data={data}", f"evaluation.data={data}", reward, "prompts_per_step=2"]


def editing(make: Make, name: str, family: str, rows: Path, *words: str) -> Resolved:
    resolved = make()
    for table in ("data", "evaluation.data"):
        resolved.table.set(tuple(table.split(".")), {"use": "edits", "path": str(rows)}, "test")
    return with_preset(lambda: resolved, name, *[word for word in of_editor(family, rows) if "data=" not in word], *words)


@pytest.mark.parametrize(("family", "name"), WAYS)
def test_presets_take_two_steps_on_pictures_of_ones_own(make: Make, rows: Path, family: str, name: str):
    """The ratio gate (1e-6) passes."""
    job = build(editing(make, name, family, rows, *(["algorithm.minibatches=2"] if name == "branch_grpo" else [])))
    for metrics in train_steps(job, 2):
        assert math.isfinite(metrics["reward/keeps_rest/idle"])


def test_a_run_leaves_source_before_and_after_and_can_be_looked_at(make: Make, rows: Path, tmp_path: Path):
    words = (f"output={str(tmp_path / 'run')!r}", "steps=1", "evaluation.num_prompts=2", "evaluation.num_steps=2")
    run = run_training(editing(make, "flow_grpo", "kontext", rows, *words))
    page = run.report_file.read_text()
    gallery = page.partition('<section id="gallery">')[2].partition("</section>")[0]
    assert gallery.count('<p class="label">source</p>') == 2
    line = json.loads(run.samples_file("eval", 0).read_text().splitlines()[0])
    stored = Image.open(run.samples / line["media"][0]["file"])
    assert np.array_equal(np.asarray(stored), np.asarray(picture(int(line["prompt"]))))
    assert line["image"]["file"] != line["media"][0]["file"]


def test_a_plan_counts_the_tokens_of_pictures(make: Make, rows: Path):
    def tokens(*words: str) -> tuple[int, int]:
        usual = draw_up(editing(make, "flow_grpo", "kontext", rows, *words)).usual.counts
        return usual["rollout"].rows, usual["rollout"].positions

    latents, same_size = tokens()
    again, four_times = tokens(f"policy.source_pixels={32 * 32}")
    # 16 x 16 pixels are 16 tokens of noise; the picture has as many, and at four times the area 64.
    assert latents == again and same_size == latents * (16 + 16) and four_times == latents * (16 + 64)


def test_a_plan_counts_pictures_among_the_words(make: Make, rows: Path):
    """Of Qwen-Image-2.1, whose network asks where in the text they are: 4 tokens of noise and 4 of the picture."""
    usual = draw_up(editing(make, "flow_grpo", "qwen_image21", rows)).usual.counts
    assert usual["rollout"].positions == usual["rollout"].rows * (4 + 4)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("family", "data", "words"),
    [
        ("flux", "edits", r"5 of 5 prompts hold 1 picture each .* draws from text alone: remove the pictures"),
        ("kontext", "prompts", r"6 of 6 prompts hold 0 pictures each \(the first is '1'\), but .* takes prompts with 1"),
        ("qwen_edit", "prompts", r"hold 0 pictures .* takes prompts with 1 to 3: name them in the data's column image or images"),
    ],
)
def test_prompts_that_the_model_cannot_take_are_refused_before_weights_load(
    make: Make, rows: Path, family: str, data: str, words: str
):
    resolved = make(f"policy.model=tiny:{family}", "policy.max_prompt_tokens=24", "evaluation.num_prompts=0")
    if data == "edits":
        resolved.table.set(("data",), {"use": "edits", "path": str(rows)}, "test")
    with pytest.raises(ValueError, match=words):
        build(configs.resolve(resolved.table))


def test_pictures_that_are_stretched_are_warned_of(make: Make, rows: Path, caplog: pytest.LogCaptureFixture):
    picture(0, (32, 16)).save(rows.with_name("0.png"))
    build(editing(make, "flow_grpo", "kontext", rows, "evaluation.num_prompts=0"))
    assert "1 of 5 pictures of prompts have another shape than the 16 x 16 pixels that the model sees" in caplog.text
    assert "the first is prompt '0''s of 32 x 16" in caplog.text
    caplog.clear()
    build(editing(make, "flow_grpo", "kontext", rows, "evaluation.num_prompts=0", "policy.source_fit=pad", "reward.0.fit=pad"))
    assert "another shape" not in caplog.text


def test_a_prompt_is_shown_as_the_editor_sees_it(make: Make, rows: Path):
    job = build(editing(make, "flow_grpo", "kontext", rows, f"policy.source_pixels={32 * 32}"))
    seen = prompt_view(job.policy, Request(Prompt("p", "<image> make it red", (picture(1),)), 1, 0))
    assert seen.text == "make it red" and [(name, image.size) for name, image in seen.pictures] == [("picture-0", (32, 32))]


def test_one_line_trains_an_editor(rows: Path):
    words = ["policy.model=tiny:kontext", "steps=1"]
    config: Any = one_line("edit", "tiny:kontext", str(rows), ["keeps_rest=0.5"], words).config
    assert (config.data.use, config.algorithm.label.split()[0]) == ("edits", "flow_grpo")
    assert (config.policy.height, config.saves_by_time, config.evaluate_every) == (512, True, 0)
    with pytest.raises(ValueError, match=r"--task edit needs --reward, for example mmrl train --task edit .*Kontext"):
        one_line("edit", "tiny:kontext", str(rows), [], [])


FRAME_TOKENS = {"wan_i2v": 512, "wan_i2v_a14b": 12, "wan_5b": 12, "hunyuan15_i2v": 12, "sana_i2v": 12, "ltx2_i2v": 12}
SIZES = ["policy.height=32", "policy.width=32", "policy.frames=5", "policy.lora.rank=2", "policy.guidance=2.0"]
REWARD = 'reward=[{use="first_frame", limit=1.0}, {use="over_frames", frames=2, picture={use="jpeg_size", scale=0.1}}]'


@pytest.fixture
def frame_rows(tmp_path: Path) -> Path:
    """A file of four first frames."""
    lines: list[str] = []
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        lines.append(json.dumps({"image": f"{i}.png", "prompt": "it moves left", "id": str(i)}))
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    return tmp_path / "train.jsonl"


def going_on(make: Make, name: str, family: str, frame_rows: Path, *words: str) -> Resolved:
    resolved = make()
    for table in (("data",), ("evaluation", "data")):
        resolved.table.set(table, {"use": "edits", "path": str(frame_rows)}, "test")
    own = [
        f"policy.model=tiny:{family}",
        f"policy.max_prompt_tokens={FRAME_TOKENS[family]}",
        *SIZES,
        REWARD,
        "prompts_per_step=2",
    ]
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
def test_presets_take_two_steps_from_first_frames(make: Make, frame_rows: Path, family: str, name: str):
    """The ratio gate (1e-6) passes."""
    words = ["algorithm.minibatches=2"] if name == "branch_grpo" else []
    job = build(going_on(make, name, family, frame_rows, *words))
    for metrics in train_steps(job, 2):
        assert math.isfinite(metrics["reward/first_frame/difference"])


def test_a_run_shows_the_frame_beside_its_clips(make: Make, frame_rows: Path, tmp_path: Path):
    words = (f"output={str(tmp_path / 'run')!r}", "steps=1", "evaluation.num_prompts=2", "evaluation.num_steps=2")
    run = run_training(going_on(make, "flow_grpo", "wan_i2v_a14b", frame_rows, *words))
    gallery = run.report_file.read_text().partition('<section id="gallery">')[2].partition("</section>")[0]
    assert gallery.count('<p class="label">source</p>') == 2
    line = json.loads(run.samples_file("eval", 0).read_text().splitlines()[0])
    assert line["video"]["kind"] == "video" and (run.samples / line["media"][0]["file"]).is_file()


@pytest.mark.parametrize("family", sorted(FRAME_TOKENS))
def test_a_plan_counts_the_network_that_it_goes_through(make: Make, frame_rows: Path, family: str):
    """A first frame adds no token; its channels and CLIP's view pass the network in full size."""
    made = plan.draw_up(going_on(make, "flow_grpo", family, frame_rows))
    tokens = {"wan_i2v": 8, "wan_i2v_a14b": 8, "wan_5b": 2, "hunyuan15_i2v": 48, "sana_i2v": 8, "ltx2_i2v": 48}[family]
    counted = made.usual.counts["rollout"]
    assert counted.positions == counted.rows * tokens
    assert made.memory.phases["update"] > 0


def test_one_line_goes_on_from_first_frames(frame_rows: Path):
    config: Any = one_line(
        "i2v", "tiny:wan_i2v_a14b", str(frame_rows), ["first_frame=0.5"], ["policy.max_prompt_tokens=12"]
    ).config
    assert (config.data.use, config.algorithm.label.split()[0]) == ("edits", "flow_grpo_fast")
    assert (config.policy.frames, config.policy.height, config.policy.width) == (33, 256, 448)
    fives = building.with_local_model(one_line("i2v", "tiny:wan_5b", str(frame_rows), ["first_frame"], []).config).policy
    assert ModelFacts.of(fives, ()).token_side == 32, "of an autoencoder that takes patches"
    config = one_line("i2v", "tiny:ltx2", str(frame_rows), ["first_frame"], ["policy.max_prompt_tokens=12"]).config
    assert config.policy.frames == 33
    with pytest.raises(ValueError, match=r"--task i2v needs --reward, for example mmrl train --task i2v .*Wan2\.2-TI2V-5B"):
        one_line("i2v", "tiny:wan_i2v_a14b", str(frame_rows), [], [])
