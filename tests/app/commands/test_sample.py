"""Samples of a finished run, drawn again one prompt at a time: the same tokens, the same pictures; what changed is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.app.commands import train as jobs
from mmrl.app.commands.options import SampleOptions
from mmrl.app.commands.sample import resample
from mmrl.app.config import run as configs
from mmrl.app.run.folder import Line, RunDir, read_lines
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.metric_names import metric_of

REWARD = """
def letters(group):
    is_even = int(group.prompt.id.rpartition("-")[2]) % 2 == 0
    return [len(set(sample.text)) / 100 * is_even for sample in group.samples]
"""
COMMON = ["steps=3", "evaluate_every=3", "save_every=1", "checkpoint.keep=0", "samples_every=1", "prompts_per_step=2"]
TEXT = ["policy.sampling.max_new_tokens=8", "evaluation.num_prompts=2", 'reward=[{use = "./mine.py"}]', "optimizer.lr=1e-2"]
CLIPS = ["data.size=8", "policy.video.workers=0"]
HINTS = ["algorithm.planner.window=4", "algorithm.planner.least=0.0"]
TREE = ["algorithm.preset=temp_flow_grpo", "algorithm.group_size=8", "algorithm.schedule.branches=2", "steps=2"]
RUNS = {
    "text": ("tiny/image", [*TEXT, "deterministic=true"]),
    "rounds": ("tiny/image", [*TEXT, "algorithm.preset=dapo", "algorithm.minibatches=2", "steps=2"]),
    "probes": ("tiny/clips", [*TEXT, *CLIPS, "algorithm.preset=t_grpo", "steps=2"]),
    "again": ("tiny/clips", [*TEXT, *CLIPS, "algorithm.preset=deepvideo_r1", *HINTS, 'data.questions=["when"]']),
    "flow": ("tiny/flow", ["optimizer.lr=1e-2"]),
    "tree": ("tiny/flow", [*TREE, "algorithm.schedule.at_steps=[0, 1]"]),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDir]:
    """Each run is trained when it is first asked for."""
    desk, cache = tmp_path_factory.mktemp("desk"), tmp_path_factory.mktemp("cache")
    (desk / "mine.py").write_text(REWARD)

    def run(kind: str) -> RunDir:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MMRL_CACHE", str(cache))
            patch.chdir(desk)
            if not (desk / kind).exists():
                name, words = RUNS[kind]
                jobs.run_training(configs.load(name, [*COMMON, *words, f"output={kind}"]))
        return RunDir(desk / kind)

    return run


@pytest.fixture
def finished(made: Callable[[str], RunDir], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    def run(kind: str) -> RunDir:
        found = made(kind)
        monkeypatch.setenv("MMRL_CACHE", str(next(tmp_path_factory.getbasetemp().glob("cache*"))))
        monkeypatch.chdir(found.path.parent)
        return found

    return run


Finished = Callable[[str], RunDir]


def noted(run: RunDir, step: int, split: str = "train") -> list[Line]:
    return read_lines(run.samples_file(split, step)).lines


@pytest.mark.parametrize("step", [1, 3])
def test_a_completion_is_drawn_again(finished: Finished, tmp_path: Path, step: int):
    run = finished("text")
    line = noted(run, step)[4]
    found = resample(run.path, SampleOptions(step, line["prompt"], out=tmp_path / "out"))
    assert [verdict.is_same for verdict in found.verdicts] == [True] * 4
    assert not found.differs
    assert "<|image_pad|>*4" in found.text and "Where is the 7?" in found.text and "recorded: mine" in found.text
    [picture] = (tmp_path / "out").iterdir()
    with Image.open(picture) as opened:
        assert list(opened.size) == line["media_sizes"][0][2:]


@pytest.mark.parametrize("step", [0, 3])
def test_a_held_out_answer_is_drawn_again(finished: Finished, step: int):
    run = finished("text")
    line = noted(run, step, "eval")[1]
    assert [verdict.is_same for verdict in resample(run.path, SampleOptions(step, line["prompt"], "eval")).verdicts] == [True]


@pytest.mark.parametrize(("kind", "step"), [("flow", 1), ("flow", 3), ("tree", 2)])
def test_a_picture_is_drawn_again(finished: Finished, tmp_path: Path, kind: str, step: int):
    run = finished(kind)
    found = resample(run.path, SampleOptions(step, noted(run, step)[-1]["prompt"], index=1, out=tmp_path))
    assert [verdict.is_same for verdict in found.verdicts] == [True]
    assert Image.open(next(tmp_path.glob("*sample-1.png"))).size == (16, 16)


def test_a_clip_is_shown_again_and_answered_alike(finished: Finished, tmp_path: Path):
    """Probes with shuffled frames, drawn beside the samples, change nothing."""
    run = finished("probes")
    found = resample(run.path, SampleOptions(2, noted(run, 2)[0]["prompt"], out=tmp_path))
    assert [verdict.is_same for verdict in found.verdicts] == [True] * 4
    assert len(list(tmp_path.glob("*frame*.png"))) == 16


def test_a_group_of_a_later_round_is_drawn_again(finished: Finished):
    """Dynamic sampling dropped the odd prompts and drew others."""
    run = finished("rounds")
    line = max(noted(run, 2), key=lambda line: line["group"])
    first = {line["group"] for line in noted(run, 1)}
    assert max(first) > 1, "no second round happened"
    assert all(verdict.is_same for verdict in resample(run.path, SampleOptions(2, line["prompt"])).verdicts)


def test_a_group_sampled_again_for_its_scores_needs_the_whole_step(finished: Finished):
    run = finished("again")
    prompts = {line["prompt"]: line for step in (2, 3) for line in noted(run, step) if "Begin like this" in line["text"]}
    line = next(iter(prompts.values()))
    found = resample(run.path, SampleOptions(line["step"], line["prompt"]))
    assert found.differs and "--whole" in found.text
    found = resample(run.path, SampleOptions(line["step"], line["prompt"], whole=True))
    assert [verdict.is_same for verdict in found.verdicts] == [True] * 4
    assert "scored again: mine" in found.text


def test_other_weights_draw_other_pictures(finished: Finished, monkeypatch: pytest.MonkeyPatch):
    run, load = finished("flow"), Checkpoints.load

    def stale(self: Checkpoints, step: int | None = None) -> dict[str, Any]:
        return load(self, step) | {"policy": load(self, 1)["policy"]}

    monkeypatch.setattr(Checkpoints, "load", stale)
    found = resample(run.path, SampleOptions(3, noted(run, 3)[0]["prompt"]))
    assert found.differs
    assert "pixels by up to" in found.text


def test_what_differs_is_found(finished: Finished, tmp_path: Path):
    run = finished("text")
    file = run.samples_file("train", 2)
    lines = noted(run, 2)
    completion = lines[0]["completion"]
    lines[0]["completion"] = completion[:3] + "#" + completion[4:]
    lines[1]["digest"] = "0"
    kept = file.read_text()
    try:
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = resample(run.path, SampleOptions(2, lines[0]["prompt"]))
    finally:
        file.write_text(kept)
    assert [verdict.is_same for verdict in found.verdicts] == [False, False, True, True]
    assert "from letter 4 on: recorded '#" in found.text
    assert "in tokens that read alike" in found.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"step": 5, "prompt": "train-0-1"}, r"kept no weights .* of step 5: .*again at step 1, 2, 3; save_every"),
        ({"step": 2, "prompt": "train-1"}, r"step 2 drew no prompt 'train-1': .*known: train-0-"),
        ({"step": 3, "prompt": "nope", "split": "eval"}, r"no held-out prompt is called 'nope'"),
    ],
)
def test_what_is_not_there_is_named(finished: Finished, words: dict[str, Any], message: str):
    run = finished("text")
    with pytest.raises(ValueError, match=message):
        resample(run.path, SampleOptions(**words))


def test_there_is_no_such_sample(finished: Finished):
    run = finished("text")
    with pytest.raises(ValueError, match="4 samples, numbered from 0: there is no 7"):
        resample(run.path, SampleOptions(2, noted(run, 2)[0]["prompt"], index=7))


@pytest.mark.parametrize("kind", RUNS)
def test_every_metric_of_a_run_has_a_unit_and_a_meaning(finished: Finished, kind: str):
    lines = finished(kind).read_metrics().lines
    nameless = sorted({name for line in lines for name in line if metric_of(name) is None})
    assert nameless == [], f"{nameless}: say unit and meaning in mmrl/training/metric_names.py"
    assert {"eval/total", "policy/grad_norm", "time/step_s"} <= {name for line in lines for name in line}
