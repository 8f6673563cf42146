"""Rows of earlier steps: what the buffer keeps, what planners ask for, and what a run makes of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.penalties import BetweenReferences
from mmrl.algorithms.planners.extra_samples import ByDoubt
from mmrl.algorithms.planners.replay import Kept, ReplayGroups, ReplayInformative, RowBuffer
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled, Streamed
from mmrl.core.hooks import PolicyHooks
from mmrl.core.protocols import PromptSampler
from mmrl.core.ranks import Ranks
from mmrl.core.readings import OLD_ENTROPY, OLD_LOGPROBS, ROLLOUT_LOGPROBS, START_LOGPROBS
from mmrl.core.samples import Seen, segments_of
from mmrl.core.types import Credit, Observation, Prompt, Revision, StoredRow, Turn
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.trainer import Trainer
from tests.support.fakes import FakeTextPolicy, prompts, right_letter
from tests.support.refused import refused
from tests.support.rows import rollouts, scores
from tests.support.trainers import at_most_one, make_trainer, weights

STATE = ("aepo", "ares", "dcpo", "hapo", "hart", "remix", "riskpo", "spo", "ssr")


def kept(prompt: str, group: int, step: int = 1, advantage: float = 1.0) -> Kept:
    row = StoredRow((0, 4), (-0.5, -0.25), seen=Seen(4, 0.5, 0.57))
    return Kept(prompt, group, row, step, 1.0, advantage)


def test_a_buffer_keeps_the_newest_rows():
    buffer = RowBuffer(capacity=3, per_prompt=2)
    buffer.add([kept("a", i) for i in range(3)], 1)
    assert [one.group for one in buffer.rows] == [1, 2]
    buffer.add([kept("b", 7, step=2), kept("b", 8, step=2)], 2)
    assert [one.group for one in buffer.rows] == [2, 7, 8]
    buffer.add([], 3, max_age=2)
    assert [one.group for one in buffer.rows] == [7, 8]
    assert [row.step for row in buffer.of("b")] == [2, 2]


def test_a_buffer_comes_back_as_it_was():
    buffer, again = RowBuffer(8), RowBuffer(8)
    other = StoredRow((3,), (-0.125,), truncated=True, segments=segments_of([("forced", 1)]))
    rows = [kept("a", 1), Kept("b", 2, other, 2, 0.5, -1.0)]
    buffer.begin(prompts(), "letters")
    buffer.add(rows, 2)
    again.begin(prompts(), "letters")
    again.load_state_dict(buffer.state_dict())
    assert again.rows == rows and again.step == 2


def test_rows_of_another_vocabulary_or_without_their_prompt_are_refused():
    buffer, other = RowBuffer(8), RowBuffer(8)
    buffer.begin(prompts(), "letters")
    buffer.add([kept("a", 1)], 1)
    other.begin(prompts(), "syllables")
    with pytest.raises(ValueError, match="holds 1 rows of another vocabulary than this policy's: resume with the model"):
        other.load_state_dict(buffer.state_dict())
    refused("an answer to prompt 'gone', which the data do not have", buffer.request, kept("gone", 1), -1)


def fill(planner: ReplayInformative | ReplayGroups, rows: Sequence[Kept]) -> None:
    planner.begin(prompts(), "letters")
    planner.buffer.add(rows, 1)


def revised(planner: ReplayInformative | ReplayGroups, totals: Sequence[Sequence[float]]) -> Revision:
    planner.first([], 2, 0, 5)
    flat = torch.tensor([x for own in totals for x in own])
    found = rollouts(flat[:, None], [i for i, own in enumerate(totals) for _ in own])
    return planner.revise(found.groups, scores(flat[:, None]), found.group_ids, wanted=len(totals), round_index=0)


def test_as_many_rows_come_back_as_groups_without_spread_have():
    planner = ReplayInformative()
    fill(planner, [kept("0", 1, advantage=0.0), kept("1", 1, advantage=3.0), kept("2", 1, advantage=-3.0)])
    asked = revised(planner, [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]).requests
    assert len(asked) == 3 and len({request.group_id for request in asked}) == 3
    assert all(request.role == "replayed" and request.count == 1 and request.group_id < 0 for request in asked)
    assert {request.prompt.id for request in asked} <= {"1", "2"}, "weights are |A| + 1e-4"
    assert not revised(planner, [[0.0, 1.0]]).requests


def test_old_groups_come_back_whole_and_make_up_their_share():
    planner = ReplayGroups(share=0.5)
    fill(planner, [kept("0", 3), kept("0", 3), kept("1", 4), kept("1", 4)])
    asked = revised(planner, [[0.0, 1.0]]).requests
    assert len(asked) == 2 and len({request.group_id for request in asked}) == 1


def test_log_probabilities_may_be_evaluated_anew():
    planner = ReplayInformative(keep_old=False)
    fill(planner, [kept("0", 1)])
    (request,) = revised(planner, [[1.0]]).requests
    assert request.given is not None and request.given.tokens == (0, 4) and request.given.logprobs == ()


@pytest.mark.parametrize("name", STATE)
def test_resumed_is_uninterrupted(name: str, tmp_path: Path):
    assert goes_on_exactly(lambda: make_trainer(PRESETS[name], at_most_one, steps=5, prompts_per_step=8), tmp_path, at=3, steps=5)


def goes_on_exactly(
    fresh: Callable[[], Trainer], folder: Path, at: int, steps: int, forget: Callable[[Any], object] = lambda state: None
) -> bool:
    """Does a run that was saved at a step end as one that was not? `forget` takes something out of what was saved."""
    whole, first, second = fresh(), fresh(), fresh()
    for _ in range(steps):
        whole.step()
    for _ in range(at):
        first.step()
    Checkpoints(folder).save(at, first.state_dict(), Ranks())
    state = Checkpoints(folder).load()
    forget(state)
    second.load_state_dict(state)
    for _ in range(steps - at):
        second.step()
    return torch.equal(weights(whole), weights(second))


def test_a_checkpoint_without_what_a_part_remembered_is_refused():
    state = make_trainer(PRESETS["grpo"]).state_dict()
    state["planner"] = {}
    with pytest.raises(ValueError, match=r"lacks what algorithm\.advantage \(NearEntropy\) remembered"):
        make_trainer(replace(PRESETS["dcpo"], objective=PRESETS["grpo"].objective)).load_state_dict(state)


def test_two_runs_of_one_preset_share_no_memory():
    first, second = (make_trainer(PRESETS["spo"], at_most_one, prompts_per_step=8) for _ in range(2))
    first.step()
    assert first.state_dict()["parts"]["advantage"]["prompts"]
    assert not second.state_dict()["parts"]["advantage"]["prompts"]
    assert first.collector.planner is first.algorithm.planner


def test_a_replayed_row_keeps_its_record_and_fresh_ones_alone_are_measured():
    trainer = make_trainer(PRESETS["remix"], steps=4, prompts_per_step=8, lr=5e-2)
    trainer.step()
    collected = trainer.collect()
    rollouts, old = collected.rollouts, collected.rollouts.is_replayed()
    assert int(old.sum()) == 5 * 8, "two fifths of thirteen groups"
    frozen = trainer.reader.read(rollouts, check=True)
    noted, mask = rollouts.recorded[ROLLOUT_LOGPROBS], rollouts.action_mask
    assert torch.equal(frozen[OLD_LOGPROBS][mask], noted[mask])
    moved = torch.where(mask, frozen[START_LOGPROBS] - noted, 0.0).abs().amax(1)
    assert float(moved[~old].max()) < 1e-5 < float(moved[old].mean())


def test_no_row_of_an_earlier_step_reaches_metrics_or_the_sampler():
    shown: list[int] = []

    class Listening(Shuffled):
        def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
            shown.append(sum(map(len, totals)))

    trainer = make_trainer(PRESETS["remix"], prompts_per_step=8, sampler=Listening(prompts()))
    lengths = [trainer.step()["rollout/actions"] for _ in range(3)]
    assert shown == [64, 64, 64] and max(lengths) <= 64 * 4


def test_a_stream_of_prompts_cannot_be_replayed_from():
    with pytest.raises(ValueError, match="ReplayGroups finds the prompts of earlier rows again, but Hidden does not hold all"):
        make_trainer(PRESETS["remix"], sampler=Hidden())


class Hidden:
    """A sampler that holds no prompts."""

    def __init__(self) -> None:
        self.inner: PromptSampler = Streamed(prompts())

    def draw(self, num_prompts: int) -> list[Prompt]:
        return self.inner.draw(num_prompts)

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_dropped_rows_stay_in_what_a_group_was_like():
    class DropsOne(ReplayInformative):
        def revise(self, groups: Any, scores: Any, group_ids: Any, wanted: int, round_index: int) -> Revision:
            return Revision(drop_samples=frozenset({(groups[0].id, 0)}) if round_index == 0 else frozenset())

    trainer = make_trainer(replace(PRESETS["grpo"], planner=DropsOne()), right_letter, prompts_per_step=4)
    collected = trainer.collect()
    first, other = collected.rollouts.groups[:2]
    assert first.seen is not None and first.seen.size == 8 and other.seen is None
    assert first.seen.mean == pytest.approx(sum(right_letter(first)) / 8)


def test_previous_is_where_the_step_before_began():
    policy = FakeTextPolicy()
    trainer = make_trainer(PRESETS["remix"], policy=policy, prompts_per_step=8)
    began: list[torch.Tensor] = []
    for _ in range(3):
        began.append(torch.cat([p.detach().flatten() for p in policy.nets["policy"].parameters()]))
        trainer.step()
    assert torch.equal(torch.cat([p.flatten() for p in policy.nets["previous"].parameters()]), began[2])
    assert not torch.equal(began[1], began[2])


def switching(after: int = 2) -> Algorithm:
    """remix that turns to new rows and a new base after so many steps."""
    (clip, (coef, kl)) = PRESETS["remix"].objective
    assert isinstance(kl, BetweenReferences)
    return replace(
        PRESETS["remix"], planner=ReplayGroups(until=after), objective=(clip, (coef, replace(kl, switch=after, hold=1)))
    )


def test_after_the_switch_only_new_rows_train_and_the_policy_of_then_is_the_base():
    policy = FakeTextPolicy()
    trainer = make_trainer(switching(), policy=policy, steps=4, prompts_per_step=8, lr=5e-2)
    kl, at_start = trainer.algorithm.objective[1][1], reference(policy)
    assert isinstance(kl, BetweenReferences) and [kl.weight(step) for step in (1, 2, 3)] == [1.0, 0.9, 1.0]
    trainer.step()
    assert torch.equal(reference(policy), at_start)
    assert bool(trainer.collect().rollouts.is_replayed().any())
    trainer.step()
    assert torch.equal(reference(policy), weights(trainer)) and not torch.equal(reference(policy), at_start)
    assert not bool(trainer.collect().rollouts.is_replayed().any())
    then = reference(policy)
    trainer.step()
    assert torch.equal(reference(policy), then) and not torch.equal(then, weights(trainer))
    planner = trainer.collector.planner
    assert isinstance(planner, ReplayGroups) and not planner.buffer.rows, "nothing is kept that never comes back"


def reference(policy: FakeTextPolicy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.nets["ref"].parameters()])


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_resumed_around_the_switch_is_uninterrupted(stop: int, tmp_path: Path):
    assert goes_on_exactly(lambda: make_trainer(switching(), steps=4, prompts_per_step=8), tmp_path, at=stop, steps=4)


def test_a_policy_that_keeps_its_reference_is_refused():
    class Keeping(FakeTextPolicy):
        end_step = PolicyHooks.end_step  # pyright: ignore[reportAssignmentType]

    refused(r"BetweenReferences changes its reference after step 2, which Keeping cannot", switching().check, Keeping())
    refused("ReplayGroups trains rows .* FakeTextPolicy writes no tokens", switching().check, FakeTextPolicy(vocabulary=""))


def test_tokens_are_drawn_hotter_where_the_step_before_was_unsure():
    trainer = make_trainer(PRESETS["hapo"], at_most_one, steps=3, prompts_per_step=8)
    planner = trainer.collector.planner
    assert isinstance(planner, ByDoubt) and planner.heat is None, "nothing was measured yet"
    trainer.step()
    heat = planner.heat
    assert heat is not None and heat.above > 0 and heat.below > 0
    asked = planner.first(prompts()[:2], 4, 0, 1)
    assert {request.tempering.rule for request in asked} == {heat}
    # entropies of four letters and a stop are at most ln 5
    factors = heat.factor(torch.linspace(0.01, 1.6, 50))
    assert 0.95 - 1e-6 <= float(factors.min()) < 1 < float(factors.max()) <= 1.05 + 1e-6
    code = replace(planner, sign="code")
    rows = trainer.collect().rollouts
    entropy = torch.rand(rows.action_mask.shape, generator=torch.Generator().manual_seed(0)) + 0.1
    credit = Credit(torch.zeros(rows.action_mask.shape), torch.ones(len(rows), dtype=torch.bool))
    code.watch(1, replace(rows, recorded={OLD_ENTROPY: entropy}), scores(torch.zeros(len(rows), 1)), credit)
    assert code.heat is not None and float(code.heat.factor(entropy[rows.action_mask]).min()) >= 1


def seen(prompt: str, *media: Any, said: Any = None) -> Kept:
    """A row of an episode whose world showed these pictures, and answered with others at its end."""
    answers = [Observation("here", media), None if said is None else Observation("bye", (said,), done=True)]
    return kept(prompt, 1)._replace(row=replace(kept(prompt, 1).row, turns=tuple(Turn("a", (0, 1), one) for one in answers)))


def test_pictures_have_a_limit_of_their_own():
    square = Image.new("RGB", (590, 590))
    buffer = RowBuffer(8, picture_mib=2)
    buffer.add([seen(name, square) for name in "abc"], 1)
    assert [one.prompt for one in buffer.rows] == ["b", "c"], "just below 1 MiB each"
    buffer.add([kept("d", 1)], 2)
    assert [one.prompt for one in buffer.rows] == ["b", "c", "d"]
    with pytest.raises(ValueError, match=r"prompt 'e': the pictures of one episode take 3\.0 MiB, and .*picture_mib is 2: raise"):
        buffer.add([seen("e", square, square, square)], 3)


def test_what_a_world_showed_at_the_end_is_kept_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file, buffer = tmp_path / "screen.png", RowBuffer(8)
    Image.new("RGB", (4, 4), "red").save(file)
    buffer.add([seen("a", said=str(file)), seen("b", said=str(tmp_path / "gone.png"))], 1)
    Image.new("RGB", (4, 4), "blue").save(file)
    [row] = buffer.rows
    last = row.row.turns[-1].observation
    assert last is not None and last.media[0].getpixel((0, 0)) == (255, 0, 0)
    assert "prompt 'b': an episode cannot be kept to be trained again: at its end there is no picture" in caplog.text


def test_a_buffer_of_before_episodes_is_read():
    buffer, again = RowBuffer(8), RowBuffer(8)
    buffer.add([kept("a", 1)], 1)
    again.load_state_dict({name: value for name, value in buffer.state_dict().items() if name not in ("turns", "ended")})
    assert again.rows == buffer.rows
