"""What a run tells of its steps: traces of chosen ones, the shares of its time, and how different its samples are."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from mmrl.core.ranks import Ranks
from mmrl.core.types import Batch, Group, Prompt, Sample
from mmrl.runtime import spans
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import EvaluationSettings, Evaluator
from mmrl.training.measure import (
    PHASES,
    distinct,
    diversity,
    fingerprints,
    first_pictures,
    prompt_distance,
    sameness,
    with_shares,
)
from mmrl.training.resources.profile import Profile, StepRange
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.trainer import Records
from tests.support.fakes import FakeTextPolicy, PlayedRanks, prompts, right_letter
from tests.support.trainers import make_trainer


def bars(file: Path) -> Counter[str]:
    """How often each span is in a trace."""
    with gzip.open(file, "rt") as lines:
        events = json.load(lines)["traceEvents"]
    return Counter(event["name"] for event in events if event.get("cat") == "user_annotation")


def profiled(tmp_path: Path, steps: StepRange | None) -> Profile:
    profile = Profile(steps, tmp_path / "profile")
    policy = FakeTextPolicy()
    evaluator = Evaluator(policy, prompts(), RewardRunner([NamedReward("letter", right_letter)]), EvaluationSettings())
    records = Records(checkpoints=Checkpoints(tmp_path / "checkpoints"))
    trainer = make_trainer(policy=policy, evaluator=evaluator, records=records, steps=4, save_every=2, evaluate_every=2)
    trainer.fit(profile)
    return profile


def test_a_trace_holds_the_chosen_steps_and_what_follows_them(tmp_path: Path):
    profile = profiled(tmp_path, StepRange(2, 3))
    assert profile.is_written and profile.file == tmp_path / "profile" / "steps-2-3.json.gz"
    found = bars(profile.file)
    assert (found["step"], found["read"], found["update"], found["backward"], found["optimizer"]) == (2, 2, 2, 2, 2)
    assert found["rollout"] >= 2 and found["reward"] >= 2
    assert (found["evaluate"], found["checkpoint"]) == (1, 1), "after step 2 alone"


def test_the_last_step_is_written_when_the_run_ends(tmp_path: Path):
    assert bars(profiled(tmp_path, StepRange(4, 4)).file)["step"] == 1


def test_a_run_that_ends_badly_leaves_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    profile = Profile(StepRange(1, 4), tmp_path)
    trainer = make_trainer(steps=4)
    update = trainer.update

    def fail_at_last(batch: Batch) -> dict[str, float]:
        if trainer.index == 2:
            raise RuntimeError("gone")
        return update(batch)

    monkeypatch.setattr(trainer, "update", fail_at_last)
    with pytest.raises(RuntimeError, match="gone"):
        trainer.fit(profile)
    assert bars(profile.file)["backward"] == 2


def test_without_steps_nothing_is_recorded(tmp_path: Path):
    assert not profiled(tmp_path, None).is_written
    assert not (tmp_path / "profile").exists()
    assert spans.span("rollout") is spans.span("read"), "spans make nothing where no trace is recorded"


def test_a_disk_that_takes_no_trace_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "profile").write_text("a file where the folder should be")
    profile = profiled(tmp_path, StepRange(1, 1))
    assert not profile.is_written and "no trace of step 1" in caplog.text


@pytest.mark.parametrize(
    ("text", "total", "done", "message"),
    [
        ("three", 9, 0, "write a step such as 3, or several such as 3-5"),
        ("-3", 9, 0, "write a step such as 3"),
        ("0", 9, 0, "steps count from 1"),
        ("5-3", 9, 0, "the first one is not after the last"),
        ("8-10", 9, 0, "the run ends after step 9: choose earlier ones"),
        ("3", 9, 3, "the run goes on after step 3: choose steps from 4 on"),
        ("1-11", 99, 0, "more than 10 steps is too large to open"),
    ],
)
def test_steps_that_cannot_be_recorded(text: str, total: int, done: int, message: str):
    assert StepRange.read(" 3 ", 9) == StepRange(3, 3) and StepRange.read("3-9", 9, 2) == StepRange(3, 9)
    with pytest.raises(ValueError, match=message):
        StepRange.read(text, total, done)


def test_shares_of_a_step_sum_to_one():
    # by hand: 2 of 8 s, 1 of 8 s, 4 of 8 s; the rest is idle
    times = {"time/step_s": 8.0, "time/rollout_s": 2.0, "time/read_s": 1.0, "time/update_s": 4.0, "time/reward/x/p50_s": 9.0}
    shares = with_shares(times, Ranks())
    wanted = {"rollout": 0.25, "reward": 0.0, "read": 0.125, "update": 0.5, "idle": 0.125}
    assert shares == times | {f"time/{name}_share": share for name, share in wanted.items()}
    both = with_shares(times, PlayedRanks(lambda x: [x, [0.75, 0.0, 0.125, 0.125]]))
    assert (both["time/rollout_share"], both["time/update_share"]) == (0.5, 0.3125)
    assert sum(value for name, value in both.items() if name.endswith("_share")) == 1.0
    assert set(with_shares({}, Ranks()).values()) == {0.0, 1.0}


def test_every_step_tells_its_shares():
    metrics = make_trainer().step()
    shares = {name: value for name, value in metrics.items() if name.endswith("_share")}
    assert set(shares) == {f"time/{name}_share" for name in (*PHASES, "idle")}
    assert sum(shares.values()) == pytest.approx(1.0) and shares["time/update_share"] > 0


def group(*greys: int, size: int = 8, prompt: str = "p") -> Group:
    return Group(0, Prompt(prompt), tuple(Sample(image=Image.new("L", (size, size), grey)) for grey in greys))


def test_it_is_the_mean_distance_of_pairs():
    # pairs 51, 102, 51 of 255
    assert diversity([group(0, 51, 102)]) == pytest.approx([(0.2 + 0.4 + 0.2) / 3])
    assert diversity([group(7, 7)]) == [0.0]


def test_large_pictures_are_compared_small_and_groups_without_two_have_no_difference():
    assert diversity([group(3), Group(1, Prompt("q"), (Sample(text="a"), Sample(text="b")))]) == []
    assert len(diversity([group(1, 2), group(1), group(2, 3)])) == 2
    noisy = [Image.effect_noise((256, 256), 60) for _ in range(2)]
    assert diversity([Group(0, Prompt("p"), tuple(Sample(image=x) for x in noisy))])[0] < 0.1
    assert diversity([group(0, 255, size=256)]) == pytest.approx([1.0])


def texts(prompt: str, *answers: str) -> Group:
    return Group(0, Prompt(prompt), tuple(Sample(text=answer) for answer in answers))


def test_distinct_texts_of_a_prompt():
    assert distinct([texts("p", "a", "a", "b", "a"), texts("q", "a"), group(1, 2)]) == [0.5]


def test_sameness_is_the_chance_that_texts_of_two_prompts_coincide():
    assert sameness(fingerprints([texts("p", "a", "a"), texts("p", "a")])) is sameness(fingerprints([group(1), group(2)])) is None
    groups = [texts("p", "a", "a", "b"), texts("q", "a", "c")]
    # of 3 x 2 pairs, the two a of p meet the a of q
    assert sameness(fingerprints(groups)) == pytest.approx(2 / 6)
    assert sameness(fingerprints([texts("p", "a"), texts("q", "a"), texts("r", "a")])) == 1
    assert sameness(fingerprints([texts("p", "a"), texts("q", "b")])) == 0


def test_pictures_of_different_prompts_are_compared_by_their_first():
    black, grey = group(0, 9), group(51, 9, prompt="q")
    found = prompt_distance(first_pictures([black, grey, group(102, 9, prompt="r")]))
    assert found == pytest.approx((0.2 + 0.4 + 0.2) / 3)
    for alike in ([black, group(255, 9)], [black, group(51, 9, size=4, prompt="q")], [texts("p", "a"), texts("q", "b")]):
        assert prompt_distance(first_pictures(alike)) is None
