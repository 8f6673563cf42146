"""The folder of an evaluation that was killed before its first sample was written."""

from pathlib import Path

from mmrl.app.config.run import load
from mmrl.app.run.evaluation_folder import EvaluationDir, Subject


def test_one_that_has_no_samples_file_yet_begins_again(tmp_path: Path):
    place, config = EvaluationDir(tmp_path / "eval"), load("tiny/image", []).config
    subject = Subject("tiny:qwen3_vl as it is", "digest", 2)
    place.begin(subject, config)
    place.predictions.unlink()
    place.begin(subject, config)
    assert place.is_begun and place.predictions.read_bytes() == b""
    assert not place.differences(subject, config)
