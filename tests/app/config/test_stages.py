"""A chain of stages: what each of them is made of, and what is refused before anything is loaded."""

from typing import Any

import pytest

from mmrl.algorithms.advantages.experts import Demonstrated
from mmrl.algorithms.miners import BestAndWorst
from mmrl.algorithms.objectives.forward import DenoisingPreference
from mmrl.algorithms.planners.flow import TaughtPairs, TaughtPictures
from mmrl.algorithms.planners.taught import Taught
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved, as_table, resolve
from mmrl.app.config.stages import Stage, chain_label, num_samples, stage_at, stages_of
from mmrl.app.run.resume import changed_settings
from mmrl.app.toml.tables import Table


def chain(*stages: dict[str, Any], **more: Any) -> Resolved:
    values = {key: value for key, value in configs.load("tiny/cold_start").table.values.items() if key != "stage"}
    return resolve(Table.of({**values, **more, "stage": list(stages)}, "a.toml"))


SFT = {"kind": "sft", "steps": 3}
RL = {"kind": "rl", "steps": 5}
PAIRS = {"kind": "pairs"}
DPO = {"kind": "dpo", "steps": 1, "data": {"use": "stage:pairs"}}
LOOP = {"kind": "loop", "rounds": 3, "stages": ["pairs", "dpo"]}
UNTIL = {"metric": "iou", "at_least": 0.5, "most": 7, "every": 7}


def test_a_stage_is_the_run_with_what_it_says_over_it():
    first, second, third = stages_of(
        chain(
            {**SFT, "name": "cold", "column": "digit", "thought_dropout": 0.5, "optimizer": {"lr": 0.25}, "prompts_per_step": 2},
            {**RL, "preset": "dapo", "data": {"use": "digits_grounding", "size": 4}},
            {**RL, "algorithm": {"group_size": 2}},
        )
    )
    assert [(one.begin, one.end, one.place) for one in (first, second, third)] == [
        (0, 3, "stage 1 of 3, cold"),
        (3, 8, "stage 2 of 3, rl"),
        (8, 13, "stage 3 of 3, rl"),
    ]
    taught = first.resolved.config
    assert taught.algorithm.algorithm.planner == Taught("digit", 0.5) and taught.algorithm.algorithm.advantage == Demonstrated()
    assert (taught.optimizer.lr, taught.prompts_per_step, taught.steps) == (0.25, 2, 3)
    assert second.resolved.config.algorithm.preset == "dapo" and second.resolved.config.optimizer.lr == 1e-3
    assert dict(second.resolved.config.data.args) == {"size": 4}
    assert third.resolved.config.algorithm.preset == "grpo" and third.resolved.config.algorithm.algorithm.group_size == 2
    assert len({one.resolved.config.seed for one in (first, second, third)}) == 3
    assert first.resolved.config.seed == chain(SFT).config.seed


def test_what_the_run_wrote_stays_under_another_preset():
    values = {key: value for key, value in configs.load("tiny/taught_drawing").table.values.items() if key != "stage"}
    own = {"preset": "flow_grpo", "schedule": {"num_steps": 3}, "group_size": 4}
    drawing = {"kind": "rl", "steps": 1}
    dance = {"preset": "dance_grpo", "algorithm": {"schedule": {"trained_per_row": 2}}}
    stages = [{**drawing, **dance}, {**drawing, "preset": "cps"}]
    resolved = resolve(Table.of({**values, "algorithm": own, "stage": stages}, "a.toml"))
    for found in (stages_of(resolved), stages_of(resolve(Table.of(as_table(resolved.config), "run")))):
        each = [one.resolved.config.algorithm for one in found]
        assert [one.preset for one in each] == ["dance_grpo", "cps"]
        assert [(one.algorithm.group_size, getattr(one.algorithm.schedule, "num_steps", 0)) for one in each] == [(4, 3), (4, 3)]
    assert as_table(resolved.config)["algorithm"] == own

    other = {**own, "objective": {"0": {"low": 0.5}}}
    two = [{**drawing, "algorithm": {"objective": one}} for one in ({"0": {"low": 0.1}}, [{"kind": "Clip"}])]
    with pytest.raises(ValueError, match=r"^a.toml: algorithm.objective.0.low: no stage uses this: write it in the \[\[stage"):
        stages_of(resolve(Table.of({**values, "algorithm": other, "stage": two}, "a.toml")))
    every = as_table(configs.load("tiny/flow").config)["algorithm"]
    with pytest.raises(ValueError, match=r"a.toml: stage.1 has the preset 'cps', of which nothing is left: the run's own"):
        stages_of(resolve(Table.of({**values, "algorithm": every, "stage": [drawing, stages[1]]}, "a.toml")))


def test_what_comes_with_an_engine_is_each_presets_own():
    engine = {"policy": {**configs.load("tiny/cold_start").table.values["policy"], "engine": {"url": ["http://localhost:1"]}}}
    resolved = chain({**RL, "preset": "gspo"}, RL, **engine)
    for one in stages_of(resolved):
        own = one.resolved.config.algorithm
        alone = configs.load("tiny/image", [f"algorithm.preset={own.preset}", "policy.engine.url=['http://localhost:1']"]).config
        assert own.algorithm.importance == alone.algorithm.algorithm.importance and own.algorithm.old == "reread"
    assert set(as_table(resolved.config)["algorithm"]) == {"preset", "group_size"}


def test_a_loop_repeats_its_stages_and_steps_are_numbered_through():
    resolved = chain({"kind": "sft", "until": UNTIL}, LOOP, {**PAIRS, "gap": 0.5}, DPO, RL)
    assert resolved.config.steps == 7 + 3 + 5 and chain_label(resolved) == "sft, then 3 rounds of pairs, dpo, then rl"
    stages = stages_of(resolved)
    assert [(one.name, one.begin, one.end) for one in stages] == [
        *[("sft", 0, 7), ("pairs", 7, 7), ("dpo", 7, 8), ("pairs", 8, 8)],
        *[("dpo", 8, 9), ("pairs", 9, 9), ("dpo", 9, 10), ("rl", 10, 15)],
    ]
    assert stages[3].place == "stage 4 of 8, pairs (round 2 of 3)" and stages[3].sources == [] and stages[4].sources == ["pairs"]
    assert stages[1].miner == BestAndWorst(gap=0.5) and num_samples(stages[1]) == 4
    assert len({one.resolved.config.seed for one in stages}) == 8
    assert [one.in_round for one in stages] == [0, 1, 1, 2, 2, 3, 3, 0]
    assert [stage_at(stages, step) for step in (7, 8, 9, 10, 11)] == [0, 2, 4, 6, 7]
    again = resolve(Table.of(as_table(resolved.config), "run"))
    assert again.config == resolved.config and [one.end for one in stages_of(again)] == [one.end for one in stages]


def test_a_run_without_stages_is_one_and_writes_none():
    resolved = configs.load("tiny/image")
    (stage,) = stages_of(resolved)
    assert stage == Stage(1, 1, "", 0, resolved) and stage.place == ""
    assert "stage" not in as_table(resolved.config)


def test_what_is_written_down_reads_back_as_the_same_stages():
    resolved = configs.load("tiny/cold_start")
    assert resolved.config.steps == 5
    again = resolve(Table.of(as_table(resolved.config), "run"))
    assert again.config == resolved.config and changed_settings(resolved.config, again.config) == []
    for before, after in zip(stages_of(resolved), stages_of(again), strict=True):
        assert before.resolved.config == after.resolved.config


def test_a_checkpoint_at_a_border_is_of_the_stage_that_ended():
    stages = stages_of(chain(SFT, RL))
    assert [stage_at(stages, step) for step in (None, 0, 1, 3, 4, 8)] == [0, 0, 0, 0, 1, 1]


def test_rows_are_no_sounds():
    heard = {**configs.load("tiny/tones").table.values, "stage": [{"kind": "pairs"}, {**DPO, "kind": "rl"}]}
    heard = {key: value for key, value in heard.items() if key != "steps"}
    with pytest.raises(
        ValueError, match="stage 1 of 2, pairs: its rows would be sounds, which no stage is taught: take a filter"
    ):
        stages_of(resolve(Table.of(heard, "a.toml")))


def test_a_chain_that_only_teaches_needs_no_reward():
    assert stages_of(chain(SFT, reward=[], evaluation={}, algorithm={}))[0].resolved.config.reward == ()


def test_sources_that_no_reward_is_for_may_be_taught():
    skills, shown = stages_of(configs.load("tiny/hurried_looks"))
    assert skills.until is not None and skills.until.most == skills.end < shown.end
    assert {reward.sources for reward in shown.resolved.config.reward} == {("read",), ("point",)}


def test_generators_are_taught_pictures():
    first, second, third = stages_of(configs.load("tiny/taught_drawing"))
    sft, dpo = (one.resolved.config.algorithm for one in (first, second))
    assert (sft.preset, dpo.preset, third.resolved.config.algorithm.preset) == ("sft_of_pictures", "dpo_of_pictures", "flow_grpo")
    assert sft.algorithm.planner == TaughtPictures() and dpo.algorithm.planner == TaughtPairs()
    assert dpo.algorithm.objective == ((1.0, DenoisingPreference(100.0, sft=0.1)),)
    again = resolve(Table.of(as_table(second.resolved.config), "run"))
    assert again.config.algorithm == dpo
