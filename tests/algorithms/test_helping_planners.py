"""Planners that show hints, refine, leave early and bring experts: what is sampled, what is kept, what is refused."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.experts import ExpertWhereFew
from mmrl.algorithms.planners.base import Remembering
from mmrl.algorithms.planners.helped import Refinements, SerialExits, WithExpert
from mmrl.algorithms.planners.hints import (
    AskedHalves,
    BesideHint,
    HintLadder,
    KeptHints,
    Scaffold,
    SelfHints,
    hints_of,
    next_level,
    read_hints,
    tells_answer,
)
from mmrl.algorithms.planners.replay import ReplaySuccess
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.algorithms.shaping.thinking import ExitDecay
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import segments_of
from mmrl.core.types import Group, Prompt, Request, Revision, Sample, Scores, Shown
from mmrl.training.collect import Collected
from tests.support import fakes
from tests.support.refused import refused
from tests.support.rows import rollouts, scores, with_fields
from tests.support.trainers import make_trainer

PICTURE = object()
PROMPT = Prompt(
    "p", "which?", (PICTURE,), answer="b", columns={"hints": ["look", "it is b"], "solution": "abcdefgh", "hint": "b"}
)


NOTHING = (0, frozenset[tuple[int, int]]())


class Told:
    """A planner in a step: what it asks for, and groups as they come to it, without media."""

    def __init__(self, planner: Any, prompts: Sequence[Prompt] = (PROMPT,), group_size: int = 3) -> None:
        self.planner = planner
        self.asked = list(planner.first(prompts, group_size, first_id=4, seed=1))
        self.samples: dict[int, list[Sample]] = {request.group_id: [] for request in self.asked}
        self.notes: tuple[str, ...] = ()
        self.round = 0
        self.take(self.asked)

    def take(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.role != "note":
                own = [Sample(f"text {i}", (1, 2, 3), role=request.role) for i in range(request.count)]
                self.samples[request.group_id] += own

    def scored(self, *rewards: float) -> Revision:
        """The revision after the only group got these rewards, in the order of its samples."""
        ((group_id, samples),) = self.samples.items()
        light = Group(group_id, replace(PROMPT, media=()), tuple(samples), notes=self.notes)
        ids = torch.tensor([group_id] * len(rewards))
        found: Revision = self.planner.revise(
            [light], scores(torch.tensor(rewards)[:, None]), ids, wanted=1, round_index=self.round
        )
        self.round += 1
        self.take(found.requests)
        return found


def shown(revision: Revision) -> list[str | None]:
    return [None if request.shown.prompt is None else request.shown.prompt.text for request in revision.requests]


def changes(revision: Revision) -> tuple[int, frozenset[tuple[int, int]]]:
    return len(revision.requests), revision.drop_samples


def dropped(revision: Revision) -> set[int]:
    return {sample for _, sample in revision.drop_samples}


def test_a_ladder_stops_at_the_first_hint_that_helps():
    told = Told(HintLadder(hint_text="hint: {hint}"))
    first = told.scored(0.0, 0.0, 0.0)
    assert shown(first) == ["which?\nhint: look"] and first.requests[0].count == 3 and not first.drop_samples
    assert first.requests[0].shown_prompt.media == (PICTURE,)
    assert first.requests[0].shown.trained
    second = told.scored(*[0.0] * 6)
    assert shown(second) == ["which?\nhint: it is b"]
    assert first.requests[0].seed != second.requests[0].seed != told.asked[0].seed
    last = told.scored(*[0.0] * 7, 1.0, 0.0)
    assert not last.requests and dropped(last) == set(range(6))


def test_the_last_hint_stays_though_it_does_not_help():
    told = Told(HintLadder())
    told.scored(*[0.0] * 3)
    told.scored(*[0.0] * 6)
    assert dropped(told.scored(*[0.0] * 9)) == set(range(6))


@pytest.mark.parametrize("rewards", [(0.0, 1.0, 0.0), (float("nan"),) * 3])
@pytest.mark.parametrize("planner", [HintLadder(), Scaffold(after=0), SelfHints()])
def test_groups_with_a_right_sample_or_without_rewards_stay(planner: Remembering, rewards: tuple[float, ...]):
    assert changes(Told(planner).scored(*rewards)) == NOTHING


def test_solutions_are_shown_piece_by_piece_and_some_samples_see_no_hint():
    assert HintLadder(column="solution", cut=True).ladder(PROMPT) == ("ab", "abcd", "abcdef")
    revision = Told(HintLadder(column="hint", rungs=1, plain=1)).scored(0.0, 0.0, 0.0)
    assert [(request.count, request.shown.prompt is None) for request in revision.requests] == [(2, False), (1, True)]
    assert revision.requests[0].seed != revision.requests[1].seed


def test_scaffolds_keep_the_weakest_hint_that_helped_after_a_while():
    planner = Scaffold(after=1)
    assert changes(Told(planner).scored(0.0, 0.0, 0.0)) == NOTHING, "the first step has no hints"
    told = Told(planner)
    assert [request.count for request in told.scored(0.0, 0.0, 0.0).requests] == [1, 1]
    assert dropped(told.scored(0.0, 0.0, 0.0, 1.0, 1.0)) == {0, 4}
    told = Told(planner)
    told.scored(0.0, 0.0, 0.0)
    assert dropped(told.scored(*[0.0] * 5)) == {3, 4}
    fresh = Scaffold(after=1)
    fresh.load_state_dict(planner.state_dict())
    assert Told(fresh).scored(0.0, 0.0, 0.0).requests, "a resumed run has had its steps without hints"


def test_self_hints_are_written_read_and_climbed():
    told = Told(SelfHints(rungs=2, hint_text="{hint}"))
    (writing,) = told.scored(0.0, 0.0, 0.0).requests
    assert writing.role == "note" and "abcdefgh" in writing.shown_prompt.text and "{{" not in writing.shown_prompt.text
    told.notes = ("no JSON", 'so: {"level_1": "look left", "level_2": "B it is"}')
    assert shown(told.scored(0.0, 0.0, 0.0)) == ["which?\nlook left"]
    assert dropped(told.scored(*[0.0] * 6)) == {0, 1, 2}, "the second hint holds the answer"
    told = Told(SelfHints())
    told.scored(0.0, 0.0, 0.0)
    assert changes(told.scored(0.0, 0.0, 0.0)) == NOTHING, "nothing could be read"


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"level_1": "a"}', '{"level_1": "a", "level_2": 3}', "{" * 5000 + "}" * 5000])
def test_what_is_no_hint(text: str):
    assert read_hints(text, 2) == ()


def test_answers_in_hints():
    assert tells_answer("It is B.", PROMPT) and not tells_answer("about", PROMPT)
    assert not tells_answer("b", replace(PROMPT, answer=("b",)))


def test_levels_are_kept_from_visit_to_visit():
    planner = KeptHints(rungs=2, hint_text="{hint}")
    told = Told(planner)
    assert told.asked[0].shown == Shown()
    assert [request.role for request in told.scored(0.0, 0.0, 0.0).requests] == ["note"]
    told.notes = (json.dumps({"level_1": "look left", "level_2": "look closely"}),)
    assert changes(told.scored(0.0, 0.0, 0.0)) == NOTHING
    resumed = KeptHints(rungs=2, hint_text="{hint}")
    resumed.load_state_dict(json.loads(json.dumps(planner.state_dict())))
    for one in (planner, resumed):
        (request,) = Told(one).asked
        assert request.shown == Shown(replace(request.prompt, text="which?\nlook left"), trained=True)
    assert not Told(planner).scored(1.0, 1.0, 0.0).requests, "solved often: back to no hint"
    assert Told(planner).asked[0].shown == Shown()
    assert next_level(2, None) == 0


def test_the_best_refinement_takes_a_place():
    told = Told(Refinements())
    revision = told.scored(1.0, 0.0, 0.0)
    texts = [request.shown.prompt.text for request in revision.requests if request.shown.prompt is not None]
    assert len(texts) == 3 and all("The right answer is b." in text for text in texts)
    assert "text 0" in texts[0] and "is correct" in texts[0] and "text 1" in texts[1] and "is incorrect" in texts[1]
    assert {(request.role, request.count, request.shown.trained) for request in revision.requests} == {("injected", 1, False)}
    assert len({request.seed for request in revision.requests}) == 3
    assert dropped(told.scored(1.0, 0.0, 0.0, 0.0, 1.0, 1.0)) == {0, 3, 5}
    told = Told(Refinements())
    told.scored(0.0, 0.0, 0.0)
    assert dropped(told.scored(0.0, 0.0, 0.0, *[float("nan")] * 3)) == {3, 4, 5}, "no refinement has a reward"
    plain = Refinements(critique="right_or_wrong").refining_prompt(PROMPT, "{critique}", True)
    assert "right answer" not in plain.text and "{critique}" in plain.text, "a sample is never taken for a template"


def test_exits_are_cut_in_order_and_go_on():
    told = Told(SerialExits(forced="END"), group_size=4)
    assert told.asked[0].count == 1
    requests = told.scored(1.0).requests
    kept, forced = zip(*(request.given.pieces for request in requests if request.given is not None), strict=True)
    shares = [piece.share for piece in kept]
    assert len(shares) == 3 and shares == sorted(shares) and 0 <= shares[0] < shares[-1] < 1
    assert {(piece.tokens, piece.before) for piece in kept} == {((1, 2, 3), "</think>")}
    assert {(piece.text, piece.who) for piece in forced} == {("END", "forced")}
    assert changes(told.scored(*[1.0] * 4)) == NOTHING


def test_the_whole_answer_is_the_last_exit():
    forced = [(0, 0), (0, 9), (0, 4), (0, 0), (2, 5)]
    pieces = [segments_of([("policy", start), ("forced", stop - start), ("policy", 10 - stop)]) for start, stop in forced]
    rows = with_fields(rollouts(torch.ones(5, 1), [0, 0, 0, 1, 1]), token_ids=[(1,) * 10] * 5, segments=pieces)
    found = ExitDecay()(scores(torch.tensor([[1.0], [1.0], [1.0], [1.0], [0.0]])), rows, {})
    assert found.total().tolist() == [0.25, 0.5, 1.0, 1.0, 0.0]


def test_experts_count_only_where_few_are_right():
    rows = with_fields(rollouts(torch.ones(6, 1), [0, 0, 0, 1, 1, 1]), role=["policy", "policy", "injected"] * 2)
    table = scores(torch.tensor([[1.0], [0.0], [1.0], [1.0], [1.0], [1.0]]))
    credit = ExpertWhereFew(weight=0.5)(table, rows)
    assert credit.keep.tolist() == [True] * 5 + [False]
    assert credit.values[2, 0] == 1.0 and credit.values[0, 0] > 0 > credit.values[1, 0]


def test_half_of_a_group_reads_the_rules_and_experts_come_on_top():
    plain, ruled = BesideHint(column="hint").first([PROMPT], 5, 0, 0)
    assert (plain.count, ruled.count, ruled.shown.trained) == (3, 2, False) and ruled.shown.prompt is not None
    assert [request.count for request in BesideHint().first([PROMPT], 5, 0, 0)] == [5], "no rules: sampled plainly"
    own, expert = WithExpert().first([PROMPT], 5, 0, 0)
    assert own.count == 5 and (expert.count, expert.role, expert.written) == (1, "injected", "abcdefgh")


def test_the_first_half_is_asked_for_the_tool_and_trains_so():
    first, other = AskedHalves("Use it.", "Do without.").first([PROMPT], 5, 7, 0)
    assert (first.count, other.count) == (2, 3) and first.group_id == other.group_id == 7 and first.seed != other.seed
    assert first.shown.trained and other.shown.trained
    texts = [one.shown.prompt.text for one in (first, other) if one.shown.prompt]
    assert [text.removeprefix(PROMPT.text).strip() for text in texts] == ["Use it.", "Do without."]


@pytest.mark.parametrize(
    "planner", [HintLadder(column="h"), Scaffold(column="h"), BesideHint(column="h"), WithExpert(column="h")]
)
def test_data_without_the_column_is_refused(planner: Any):
    with pytest.raises(ValueError, match=r"reads the column 'h'.*none of the 1 prompts.*hint, hints, solution.*planner\.column"):
        planner.check_prompts([PROMPT])
    replace(planner, column="hint").check_prompts([PROMPT, Prompt("bare")])


def test_what_cannot_be_written_is_refused():
    refused("cannot write down", SelfHints().check_prompts, [Prompt("p", answer={"a": 1})])
    refused("cannot write down", Refinements().check_prompts, [Prompt("p")])
    Refinements(critique="right_or_wrong").check_prompts([Prompt("p")])
    refused("a text or a list of texts", hints_of, Prompt("p", columns={"hints": [1]}), "hints")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HintLadder(hint_text="hint"), r"HintLadder.hint_text is 'hint': write \{hint\}"),
        (lambda: Refinements(refine_text="{sample}"), r"write \{critique\}"),
        (lambda: SelfHints(writing_text="write"), r"write \{solution\}"),
        (lambda: KeptHints(low=0.5), "set low below high"),
        (lambda: SerialExits().first([PROMPT], 1, 0, 0), "group_size to 2 or more"),
        (lambda: BesideHint().first([PROMPT], 1, 0, 0), "group_size to 2 or more"),
    ],
)
def test_settings_that_do_nothing(make: Callable[[], Any], said: str):
    refused(said, make)


def collected(name: str, function: Callable[[Group], Any], **columns: Any) -> Collected:
    """A step of a preset on the fake policy, with more columns in the data."""
    data = [replace(prompt, columns={**prompt.columns, **columns}) for prompt in fakes.prompts()]
    return make_trainer(PRESETS[name], function, sampler=Shuffled(data, seed=0)).collect()


def all_wrong(group: Group) -> list[float]:
    return [0.0] * len(group.samples)


def test_rows_of_a_ladder_are_the_newest_ones_only():
    found = collected("ghpo", all_wrong, solution="abcd")
    assert found.rounds == 4 and len(found.rollouts) == 8 * len(found.rollouts.groups)
    assert found.rollouts.sample_ids.min() == 24 and not found.rollouts.recorded[ROLLOUT_LOGPROBS].isnan().any()


def test_refinements_are_read_again_behind_the_plain_prompt():
    found = collected("critique_grpo", lambda group: [float(s.role == "injected") for s in group.samples])
    unread = found.rollouts.recorded[ROLLOUT_LOGPROBS].isnan().all(1)
    roles = [sample.role for _, sample in found.rollouts.samples()]
    assert unread.tolist() == [role == "injected" for role in roles]
    assert roles.count("injected") == len(found.rollouts.groups) and len(roles) == 8 * len(found.rollouts.groups)


def test_notes_are_neither_scored_nor_counted():
    seen: list[int] = []

    def wrong(group: Group) -> list[float]:
        seen.append(len(group.samples))
        return all_wrong(group)

    found = collected("sage", wrong)
    assert found.rounds == 2 and found.num_discarded == 0
    assert all(len(group.notes) == 3 for group in found.rollouts.groups) and set(seen) == {8}
    assert len(seen) == len(found.rollouts.groups), "a group is not scored again for a note"
    assert isinstance(found.scores, Scores)


def test_an_old_success_takes_the_place_of_a_failure():
    told = ReplaySuccess(keep_old=False)
    data, failing = fakes.prompts(), [False]

    def at_first(group: Group) -> list[float]:
        return [float(s.role == "replayed" or (i == 1 and not failing[0])) for i, s in enumerate(group.samples)]

    algorithm = replace(PRESETS["arpo_gui"], planner=told, group_size=4)
    trainer = make_trainer(algorithm, at_first, sampler=Shuffled(data, seed=0), prompts_per_step=8)
    trainer.step()
    kept = trainer.collector.planner
    assert isinstance(kept, ReplaySuccess) and len(kept.buffer.rows) == 8
    failing[0] = True
    found = trainer.collect()
    roles = {group.id: [sample.role for sample in group.samples] for group in found.rollouts.groups}
    assert len(roles) == 8 and all(own == [*["policy"] * 4, "replayed"] for own in roles.values())
    assert 0 not in found.rollouts.sample_ids.tolist() and len(found.rollouts) == 32
    texts = {group.id: group.samples[4].token_ids for group in found.rollouts.groups}
    stored = {one.prompt: one.row.tokens for one in kept.buffer.rows}
    assert all(texts[group.id] == stored[group.prompt.id] for group in found.rollouts.groups), "as it was written"
    unread = found.rollouts.recorded[ROLLOUT_LOGPROBS].isnan().all(1)
    assert unread.tolist() == [sample.role == "replayed" for _, sample in found.rollouts.samples()]
    trainer.step()
    assert len(kept.buffer.rows) == 8, "what came back is not kept again"
