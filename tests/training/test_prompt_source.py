"""Prompts that cannot be read in the middle of a run: counted, named and replaced, as far as the limit goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.ranks import Ranks
from mmrl.core.types import Prompt, Video
from mmrl.lab.tiny.text.vlms import build
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig
from mmrl.policies.video.sampling import VideoSettings
from mmrl.training.prompt_source import Drawing
from mmrl.training.stopping import TrainingStoppedError
from tests.support.fakes import FakeTextPolicy, prompts
from tests.support.trainers import make_trainer
from tests.support.videos import even, write_video


@dataclass
class Choosy(FakeTextPolicy):
    """Cannot read some prompts."""

    bad: frozenset[str] = frozenset()

    def unreadable(self, prompts: Sequence[Prompt]) -> dict[int, str]:
        return {place: f"prompt {prompt.id!r}: no such clip" for place, prompt in enumerate(prompts) if prompt.id in self.bad}


def some(number: int) -> list[str]:
    return [prompt.id for prompt in prompts()[:number]]


def test_unreadable_prompts_are_skipped_counted_and_replaced(caplog: pytest.LogCaptureFixture):
    bad = frozenset(some(2))
    run = make_trainer(policy=Choosy(bad=bad), max_skipped=2, prompts_per_step=4, sampler=Shuffled(prompts()[:6], seed=0))
    metrics = [run.step() for _ in range(4)]
    seen = [prompt.id for prompt in run.collector.draw(4)]
    assert metrics[-1]["data/skipped"] == 2
    assert not bad & set(seen)
    assert metrics[0]["rollout/actions"] > 0
    said = [record.message for record in caplog.records if "skipped" in record.message]
    assert len(said) == 2
    assert "no such clip" in said[0]


def test_beyond_the_limit_the_run_stops_and_names_the_prompt():
    run = make_trainer(policy=Choosy(bad=frozenset(some(3))), max_skipped=2, sampler=Shuffled(prompts()[:6], seed=0))
    with pytest.raises(
        TrainingStoppedError, match=r"3 prompts could not be read, and max_skipped is 2; the last: prompt '.*no such clip"
    ):
        for _ in range(4):
            run.step()


def test_data_of_which_nothing_can_be_read_ends():
    drawing = Drawing(Shuffled(prompts()[:2], seed=0), Choosy(bad=frozenset(some(2))), Ranks(), limit=5)
    with pytest.raises(TrainingStoppedError, match="no readable prompt"):
        drawing(1)


def test_a_resumed_run_remembers_what_it_skipped():
    options = {"max_skipped": 2, "sampler": Shuffled(prompts()[:6], seed=0)}
    run = make_trainer(policy=Choosy(bad=frozenset(some(2))), **options)
    for _ in range(3):
        run.step()
    fresh = make_trainer(policy=Choosy(bad=frozenset(some(2))), **options)
    fresh.load_state_dict(run.state_dict())
    assert fresh.collector.skipped == run.collector.skipped != {}


class Half(Ranks):
    """One of two ranks; what the other one says is given."""

    def __init__(self, rank: int, other: dict[int, str]) -> None:
        super().__init__()
        self.world, self.rank, self.other = 2, rank, other

    def gather(self, x: object) -> list[object]:
        return [x, self.other] if self.rank == 0 else [self.other, x]


def test_ranks_look_at_their_own_prompts_and_skip_the_same():
    """The bad prompt is the first of the second half, which rank 1 looks at and rank 0 does not."""
    data = prompts()[:4]
    policy = Choosy(bad=frozenset({data[2].id}))
    error = f"prompt {data[2].id!r}: no such clip"
    for rank, others in ((0, {2: error}), (1, {})):
        assert Drawing(Shuffled(data, 0), policy, Half(rank, others), limit=1).wrong(data) == {2: error}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_truncated_clip_is_skipped_by_the_real_policy(tmp_path: Path, workers: int):
    good = [write_video(tmp_path / f"{i}.mp4", even(10)) for i in range(2)]
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(Path(good[0]).read_bytes()[:400])
    data = [
        Prompt(name, "What happens?", (Video(source),), columns={"file_row": f"clips.jsonl, row {row}"})
        for row, (name, source) in enumerate([("good", good[0]), ("cut", str(cut)), ("fine", good[1])], start=1)
    ]
    config = TextPolicyConfig(model=str(build("qwen3_vl", tmp_path / "model")), video=VideoSettings(workers=workers, cache_mb=8))
    policy = TextPolicy(config)
    drawing = Drawing(Shuffled(data, 0), policy, Ranks(), limit=1)
    drawn = drawing(6)
    assert {prompt.id for prompt in drawn} == {"good", "fine"}
    assert "cut.mp4" in drawing.skipped["cut"]
    assert "clips.jsonl, row 2" in drawing.skipped["cut"]
    assert policy.encode(drawn[-1], seed=5).seed == 5
