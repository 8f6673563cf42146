"""Stages against other people's code: what counts as a difference, and which lines of a script are run."""

from pathlib import Path

import pytest
import torch


def test_a_gradient_that_one_side_lacks_is_a_difference(script):
    stages = script("stages_vs_trl")
    weights = {"a": torch.tensor([2.0, -4.0]), "b": torch.tensor([1.0])}
    one = stages.Found({(1, 2)}, [0.5, 0.25], [weights, weights])
    assert stages.differences(one, one) == (0.0, 0.0)
    other = stages.Found({(1, 2)}, [0.5, 0.75], [weights, {"a": weights["a"]}])
    assert stages.differences(other, one) == stages.differences(one, other) == (0.5, 0.25)
    with pytest.raises(SystemExit, match="other tokens train"):
        stages.differences(one, stages.Found({(1, 3)}, [0.5, 0.25], [weights, weights]))


def test_the_lines_of_a_script_are_cut_out_and_another_version_is_refused(script, tmp_path: Path):
    pictures = script("pictures_vs_scripts")
    (tmp_path / "train.py").write_text("if x:\n    noise = 1\n    if y:\n        loss = 2\n    accelerator.backward(loss)\n")
    one = pictures.Script("clone", "train.py", "sd3", "sft", "noise = 1")
    assert pictures.lines_of(one, tmp_path) == "noise = 1\nif y:\n    loss = 2"
    with pytest.raises(SystemExit, match=r"has no line 'noise = 2' before .*: it is another version"):
        pictures.lines_of(pictures.Script("clone", "train.py", "sd3", "sft", "noise = 2"), tmp_path)
