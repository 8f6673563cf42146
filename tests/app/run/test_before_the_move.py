"""Runs made before keys and kinds were renamed go on: resumed, evaluated, exported and reported.

The folder `before_the_move` was written by commit f78e867 with its configs/tiny/image.toml and the overrides steps=2 save_every=1
samples_every=0 policy.lora.rank=1 algorithm.importance=[{kind="SamplerCorrection"}] algorithm.old=reread prompts_per_step=2
algorithm.group_size=4 evaluation.num_prompts=2 evaluate_every=2 reward=[{use="./chars.py"}] policy.sampling.temperature=2.0
deterministic=true algorithm.share.kind=TokenMean; then checkpoints/step-2 and report.html were removed.
"""

import shutil
from pathlib import Path

import pytest

from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.app.commands.evaluation.command import evaluate
from mmrl.app.commands.export import export
from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.config import run as configs
from mmrl.app.config.old_names import KEYS, KINDS
from mmrl.app.report.page import write_report
from mmrl.app.run.folder import RunDir
from mmrl.policies.text.settings import TextPolicyConfig

BEFORE = Path(__file__).parent / "before_the_move"
REWARD = "def chars(group):\n    return [len(sample.text) / 100 for sample in group.samples]\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chars.py").write_text(REWARD)
    shutil.copytree(BEFORE, tmp_path / "before")
    return tmp_path / "before"


def test_every_old_word_is_in_its_config():
    text = (BEFORE / "config.toml").read_text()
    assert all(old[-1] in text for old in KEYS) and all(old in text for old in KINDS)


def test_its_config_is_read_in_words_of_now(run: Path):
    resolved = configs.load(str(run / "config.toml"))
    assert resolved.config.micro_batch == 16384
    assert resolved.config.algorithm.algorithm.aggregation == TokenMean()
    assert resolved.config.algorithm.algorithm.importance == (RolloutCorrection(mode="sequence_mask"),)
    assert resolved.origin(("algorithm", "aggregation", "kind")) == str(run / "config.toml")
    assert configs.load(str(run / "config.toml"), ["micro_batch=7"]).config.micro_batch == 7
    (run / "config.toml").write_text((run / "config.toml").read_text().replace('prefix = "auto"', 'prefix = "shared"'))
    policy = configs.load(str(run / "config.toml")).config.policy
    assert isinstance(policy, TextPolicyConfig) and policy.prefix == "packed"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("budget=3", r"command line: budget is called micro_batch now: write micro_batch in its place"),
        ("algorithm.share.kind=TokenMean", r"command line: algorithm\.share is called algorithm\.aggregation now"),
        (
            'algorithm.importance=[{kind="SamplerCorrection"}]',
            r"algorithm\.importance\.0\.kind is 'SamplerCorrection', which is called RolloutCorrection now",
        ),
        ("policy.prefix=shared", r"command line: policy\.prefix is 'shared', which is called 'packed' now: write 'packed'"),
    ],
)
@pytest.mark.parametrize("name", ["tiny/image", "saved"])
def test_a_hand_that_writes_old_words_is_told_the_new_ones(name: str, word: str, message: str, run: Path):
    with pytest.raises(ValueError, match=message):
        configs.load(name if name == "tiny/image" else str(run / "config.toml"), [word])


def test_an_old_key_in_a_file_is_refused_with_its_place(tmp_path: Path):
    shutil.copy(BEFORE / "config.toml", tmp_path / "mine.toml")
    with pytest.raises(ValueError, match=r"mine\.toml: budget is called micro_batch now"):
        configs.load(str(tmp_path / "mine.toml"))


def test_it_resumes_and_trains_the_step_that_it_trained(run: Path):
    before = RunDir.open(run).read_metrics().lines[-2:]
    assert [line["step"] for line in before] == [2, 2]
    train(TrainArguments([], resume=run))
    after = {name: value for line in RunDir.open(run).read_metrics().lines if line["step"] == 2 for name, value in line.items()}
    told = {name: value for line in before for name, value in line.items()}
    for name in ("loss", "reward/total", "policy/grad_norm", "policy/kl", "eval/total"):
        assert after[name] == pytest.approx(told[name], rel=1e-3, abs=1e-6), name
    text = (run / "config.toml").read_text()
    assert "micro_batch" in text and not any(old in text for old in ("budget", "[algorithm.share]", *KINDS))


def test_it_is_evaluated_exported_and_reported(run: Path, tmp_path: Path):
    assert "eval/total" in evaluate(str(run))
    assert (export(run, tmp_path / "out") / "adapter_config.json").is_file()
    assert "grpo" in write_report(run).read_text()
