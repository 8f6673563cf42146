"""A writer whose pictures a generator draws, with what else a run can do: an easel ahead and resumed, 4 bits, odd rewards."""

from dataclasses import replace

import pytest

from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.run.folder import RunDir, read_lines
from mmrl.core.types import Prompt, Sample
from mmrl.serving.scorers.painting import Painting, Studio
from tests.processes.cases import STOPS
from tests.support.each import for_each

PAINTER = "{model='tiny:sd3', num_steps=2, width=64, height=64}"
SMALL = ["tiny/writer", "prompts_per_step=1", "algorithm.group_size=2", "policy.sampling.max_new_tokens=4", "samples_every=1"]
ONE = [*SMALL, "evaluation.num_prompts=0", "steps=1"]
WORLD = [f"environment={{use='easel', form='plain', painter={PAINTER}}}", "environment.limits.turns=2"]
FOUR = "{weights='nf4', lora={rank=2}}"


def inside(name: str, use: str) -> list[str]:
    """A reward of pictures, or none, inside one of what was drawn."""
    own = f", painter={PAINTER}" if name == "drawn" else ""
    return [*(WORLD if name == "shown" else []), f"reward=[{{use='{name}', picture={{use='{use}'}}{own}}}]"]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_resumed_easel_is_the_undisturbed_one(tmp_path, ahead):
    words = [*SMALL, *inside("shown", "jpeg_size"), STOPS, "evaluation.num_prompts=0", "save_every=1"]
    words += [f"ahead={ahead}", f"cluster.samplers={ahead}"]
    train(TrainArguments(words, output=tmp_path / "whole"))
    train(TrainArguments([*words, "steps=1"], output=tmp_path / "cut"))
    train(TrainArguments(["steps=2"], resume=tmp_path / "cut"))
    found = [
        [
            (line["digest"], line["scores"], line["parts"])
            for step in (1, 2)
            for line in read_lines(RunDir(tmp_path / run).samples_file("train", step)).lines
        ]
        for run in ("whole", "cut")
    ]
    assert found[0] == found[1] and any(parts["shown/pictures"] for _, _, parts in found[0])


@pytest.mark.parametrize("words", [["policy.weights=nf4", "policy.lora.rank=2"], [f"reward.0.painter.policy={FOUR}"]])
def test_a_writer_and_a_painter_in_4_bits_take_a_step(tmp_path, words):
    train(TrainArguments([*ONE, *words], output=tmp_path / "run"))
    assert all(line["image"] for line in read_lines(RunDir(tmp_path / "run").samples_file("train", 1)).lines)


@for_each(
    "words, said",
    [
        (["reward.0.painter.policy={weights='nf4'}"], r"policy\.weights is \"nf4\", and weights in 4 bits do not train: add"),
        (inside("drawn", "format"), "'format in drawn' scores text"),
        (inside("shown", "format"), "'format in shown' scores text"),
        (inside("drawn", "tempo"), "'tempo in drawn' scores sound"),
        (inside("shown", "tempo"), "'tempo in shown' scores sound"),
        (inside("drawn", "shape_edits"), "'drawn' cannot score 16 of 16 prompts"),
    ],
)
def test_what_does_not_go_together_is_refused_before_weights_load(tmp_path, monkeypatch, words, said):
    monkeypatch.setattr("mmrl.app.run.build.policy_of_run", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(ValueError, match=said):
        train(TrainArguments([*ONE, *words], output=tmp_path / "run"))


@pytest.mark.evidence
def test_a_painters_run_that_trains_on_changes_no_picture(tmp_path):
    painting = Painting(run=str(tmp_path / "painter"))
    words = ["tiny/flow", "steps=1", "save_every=1", "optimizer.lr=1e-1", "evaluation.num_prompts=0"]
    train(TrainArguments(words, output=tmp_path / "painter"))

    def drawn(studio: Studio, seed: int) -> bytes:
        (made,) = studio.pictures([(Prompt("a", "a cat"), seed)])
        assert isinstance(made, Sample)
        return made.image.tobytes()

    studio = Studio(painting)
    drawn(studio, 1)
    train(TrainArguments(["steps=2"], resume=tmp_path / "painter"))
    first, second = (drawn(Studio(replace(painting, step=step)), 2) for step in (1, 2))
    assert drawn(studio, 2) == first != second
