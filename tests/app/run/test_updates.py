"""A run says before its first step where its objective cannot act, and refuses minibatches that would be empty."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmrl.app.commands.options import PlanArguments
from mmrl.app.commands.plan import plan
from mmrl.app.commands.train import fit
from mmrl.app.config import run as configs
from mmrl.app.run.build import Job
from mmrl.app.run.context import idle_terms, refuse_idle_methods
from mmrl.app.run.folder import RunDir
from mmrl.core.ranks import Ranks
from mmrl.training.resources.profile import Profile
from tests.support.trainers import make_trainer

LATER = "acts only from the second update on"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["algorithm.preset=grpo"], None),
        (["algorithm.preset=grpo", "algorithm.objective.0.high=0.28"], None),
        (["algorithm.preset=gspo"], None),
        (["algorithm.preset=rloo"], None),
        (["algorithm.preset=gspo", "algorithm.minibatches=1", "algorithm.epochs=2"], None),
        (
            ["algorithm.preset=gspo", "algorithm.minibatches=1"],
            "where Clip is plain REINFORCE: take 4 minibatches, 1 pass (preset gspo)",
        ),
        (
            ["algorithm.preset=reg_grpo", "algorithm.epochs=1"],
            "AdvantageRegression is plain REINFORCE of whole rollouts, times 20",
        ),
        (['algorithm.objective=[{kind = "Gmpo"}]'], "where Gmpo is plain REINFORCE: take 2 minibatches or more with"),
        (['algorithm.objective=[{kind = "ClipCov"}]'], None),
    ],
)
def test_an_objective_that_cannot_act_is_known(words: Sequence[str], told: str | None):
    warning = idle_terms(configs.load("tiny/image", words).config.algorithm)
    assert (warning is None) == (told is None)
    if warning is not None and told is not None:
        assert LATER in warning and told in warning and "algorithm.minibatches" in warning


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm.preset=dapo", "algorithm.minibatches=1"],
        ["algorithm.preset=remix", "algorithm.epochs=1"],
        ["algorithm.preset=tw_grpo"],
        ["algorithm.preset=gspo"],
    ],
)
def test_a_method_of_which_something_acts_is_not(words: Sequence[str]):
    refuse_idle_methods(configs.load("tiny/image", words).config.algorithm)


def test_plan_says_so(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ValueError, match=LATER):
        plan(PlanArguments(["tiny/image", "algorithm.preset=sapo", "algorithm.minibatches=1"]))
    plan(PlanArguments(["tiny/image", "algorithm.preset=dapo", "algorithm.minibatches=1"]))
    assert LATER in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("words", "said"), [(["algorithm.minibatches=1"], True), ([], False)])
def test_the_first_step_of_a_run_says_so(tmp_path: Path, words: Sequence[str], said: bool):
    config = configs.load("tiny/image", ["algorithm.preset=sapo", *words]).config
    trainer, run = make_trainer(config.algorithm.algorithm, steps=1), RunDir.create(tmp_path / "run")
    fit(Job(config, trainer.policy, trainer, None), run, Ranks(), Profile())
    lines = run.warnings_file.read_text().splitlines() if run.warnings_file.exists() else []
    told = [json.loads(line) for line in lines]
    assert [(one["step"], "Sapo is plain REINFORCE" in one["text"]) for one in told if LATER in one["text"]] == [(0, True)] * said
