"""TOML and the command line -> a run: origins, presets with other parts, slots that parts fit, and the stages of a chain."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from mmrl.algorithms.advantages.experts import Demonstrated
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import SteadyDecay
from mmrl.algorithms.miners import BestAndWorst
from mmrl.algorithms.objectives.forward import DenoisingPreference
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.flow import TaughtPairs, TaughtPictures
from mmrl.algorithms.planners.taught import Taught
from mmrl.algorithms.planners.video import DifficultyAware
from mmrl.algorithms.presets import PRESETS as EVERY
from mmrl.algorithms.views import MaskPatches
from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.app.config import run as configs
from mmrl.app.config.algorithm import presets
from mmrl.app.config.run import Resolved, as_table, resolve
from mmrl.app.config.slots import SLOTS, kinds, place
from mmrl.app.config.stages import Stage, chain_label, num_samples, stage_at, stages_of
from mmrl.app.inspect.show import description, parts
from mmrl.app.plugins.catalog import catalog
from mmrl.app.run.beforehand import check_named_rewards
from mmrl.app.run.build import build
from mmrl.app.run.resume import changed_settings
from mmrl.app.toml.tables import Table
from mmrl.policies.shared.weights import USUAL_DECAY
from mmrl.policies.text.settings import Sampling, TextPolicyConfig
from tests.support.each import for_each
from tests.support.presets import TEXT as PRESETS
from tests.support.presets import VIDEO

TEXT = """steps = 3
data = { use = "squares", size = 4 }
optimizer = { lr = 1e-3 }
[algorithm]
preset = "dapo"
[policy]
model = "m"
sampling = { top_p = 0.9, max_new_tokens = 7 }
[[reward]]
use = "iou"
[[reward]]
use = "./mine.py:short"
weight = 0.5
slope = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.toml"
    path.write_text(TEXT)
    return path


def load(file: Path, *words: str) -> Resolved:
    return configs.load(str(file), words)


def sampling(resolved: Resolved) -> Sampling:
    assert isinstance(resolved.config.policy, TextPolicyConfig)
    return resolved.config.policy.sampling


@for_each(
    "name, words, rate, train",
    [
        ("tiny/image", [], 1e-6, "all weights"),
        ("tiny/image", ["policy.lora.rank=4"], 1e-5, "adapters"),
        ("tiny/flow", [], 1e-5, "all weights"),
        ("tiny/flow", ["policy.lora.rank=4"], 3e-4, "adapters"),
    ],
)
def test_the_usual_learning_rate_follows_what_trains(name: str, words: list[str], rate: float, train: str):
    table = configs.load(name, words).table
    del table.values["optimizer"]
    table.origins = {path: by for path, by in table.origins.items() if path[0] != "optimizer"}
    found = configs.resolve(table)
    assert found.config.optimizer.lr == rate and found.origin(("optimizer", "lr")) == f"default where {train} train"
    assert configs.resolve(Table.of(configs.as_table(found.config), "run")).origin(("optimizer", "lr")) == "run"


def test_values_and_their_origins_and_evaluations_that_sample_greedily_unless_told(file: Path):
    resolved = load(file, "reward.1.weight=0.25", "output=here", "algorithm.group_size=4")
    rows = {key: (value, origin) for key, value, origin in resolved.rows()}
    assert rows["steps"] == (3, str(file))
    assert rows["reward.1.weight"] == (0.25, "command line")
    assert rows["reward.1.slope"] == (2, str(file))
    assert rows["output"] == ("here", "command line")
    assert rows["algorithm.group_size"] == (4, "command line")
    assert rows["algorithm.objective.0.high"] == (0.28, "preset dapo")
    assert rows["prompts_per_step"] == (8, "default")
    assert resolved.config.data.args == {"size": 4}
    assert sampling(resolved).max_new_tokens == 7
    assert load(file).config.evaluation.sampling == replace(sampling(load(file)), temperature=0.0)
    changed = load(file, "evaluation.sampling.temperature=0.6", "evaluation.sampling.max_new_tokens=9").config.evaluation.sampling
    assert changed == replace(sampling(load(file)), temperature=0.6, max_new_tokens=9)


@pytest.mark.parametrize(
    ("words", "change", "label"),
    [
        ([], {}, "dapo"),
        (["algorithm.advantage.scale=none"], {"advantage": GroupNorm(scale="none")}, "dapo + advantage.scale"),
        (["algorithm.advantage.ddof=1"], {}, "dapo"),
        (["algorithm.objective.0.high=0.3"], {"objective": ((1.0, Clip(high=0.3)),)}, "dapo + objective.0.high"),
        (["algorithm.objective.0.coef=2"], {"objective": ((2.0, Clip(high=0.28)),)}, "dapo + objective.0.coef"),
        (["algorithm.aggregation.kind=SequenceMean"], {"aggregation": PRESETS["grpo"].aggregation}, "dapo + aggregation"),
        (["algorithm.group_size=5", "algorithm.epochs=2"], {"group_size": 5, "epochs": 2}, "dapo"),
    ],
)
def test_a_preset_with_other_parts(file: Path, words: list[str], change: dict[str, object], label: str):
    assembly = load(file, *words).config.algorithm
    assert assembly.algorithm == replace(PRESETS["dapo"], **change)
    assert assembly.label == label


def test_a_list_of_parts_replaces_the_presets(file: Path):
    file.write_text(
        TEXT.replace(
            "[policy]\n",
            '[[algorithm.objective]]\nkind = "Clip"\nhigh = 0.5\n[[algorithm.objective]]\nkind = "ReferenceKL"\n'
            'estimator = "k2"\ncoef = 0.1\n[algorithm.aggregation]\nkind = "TokenMean"\n[policy]\n',
        )
    )
    algorithm = load(file).config.algorithm.algorithm
    assert algorithm.objective == ((1.0, Clip(high=0.5)), (0.1, ReferenceKL("k2")))
    assert algorithm.aggregation == TokenMean()


def test_a_part_of_ones_own(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Mine:\n    x: int = 1\n"
        "    def __call__(self, scores, rollouts): ...\n"
    )
    resolved = load(file, "algorithm.advantage.use=my.py:Mine", "algorithm.advantage.x=5")
    assert resolved.config.algorithm.algorithm.advantage.x == 5  # type: ignore[attr-defined]
    assert resolved.config.algorithm.label == "dapo + advantage"
    configs.save(resolved.config, tmp_path / "b.toml")
    assert load(tmp_path / "b.toml").config == resolved.config


@for_each("preset", sorted(PRESETS | VIDEO))
def test_a_saved_config_is_the_same_run(file: Path, preset: str, tmp_path: Path):
    config = load(file, f"algorithm.preset={preset}", "algorithm.needs_rewards=[]", "policy.lora.rank=4").config
    configs.save(config, tmp_path / "saved.toml")
    assert load(tmp_path / "saved.toml").config == config
    assert config.algorithm.label == preset and config.algorithm.algorithm.objective == EVERY[preset].objective


def test_overrides_are_toml_or_bare_strings_and_none_can_be_written(file: Path):
    assert load(file, "policy.lora.rank=2", "policy.lora=none").config.policy.lora is None
    clip = load(file, "algorithm.preset=cispo", "algorithm.objective.0.high=none").config.algorithm.algorithm.objective[0][1]
    assert clip.high is None  # type: ignore[attr-defined]
    table = Table()
    for word in ("a.b=1e-3", "a.c=[1, 2]", "a.d=true", "a.e=Qwen/Qwen2.5-VL", 'a.f="3"', "a.g=x=y"):
        table.override(word)
    assert table.values == {"a": {"b": 1e-3, "c": [1, 2], "d": True, "e": "Qwen/Qwen2.5-VL", "f": "3", "g": "x=y"}}


def test_presets_are_listed_and_shown():
    listed = {one.name: one.summary for one in catalog("algorithms")}
    assert set(VIDEO) <= set(listed)
    assert set(VIDEO) <= set(presets())
    assert listed["tw_grpo"].endswith("(arXiv:2505.24718)")
    text = description("deepvideo_r1", ["algorithm.planner.window=50"])
    assert "algorithm.planner.window" in text and "AdvantageRegression" in text
    assert "planner.memory" not in text


def test_views_are_settings_of_their_parts():
    algorithm = configs.load("tiny/image", ["algorithm.preset=papo", "algorithm.objective.2.view.patch=28"]).config.algorithm
    assert algorithm.algorithm.views == {"masked": MaskPatches(patch=28)}
    assert algorithm.label == "papo + objective.2.view"
    own = configs.load("tiny/image", ["algorithm.planner.kind=DifficultyAware", "algorithm.planner.window=7"]).config.algorithm
    assert own.algorithm.planner == DifficultyAware(window=7)
    assert own.label == "grpo + planner"


@pytest.mark.parametrize("preset", ["t_grpo", "papo", "grpo_care"])
def test_the_policy_gets_views_and_shadows(preset: str):
    job = build(configs.load("tiny/image", [f"algorithm.preset={preset}", "policy.model=tiny:qwen3_vl"]))
    assert set(job.policy.views) == set(VIDEO[preset].views)  # type: ignore[attr-defined]
    assert job.policy.shadows == VIDEO[preset].shadows
    assert job.policy.ema_decay == (SteadyDecay(0.9995) if preset == "grpo_care" else USUAL_DECAY)  # type: ignore[attr-defined]


OWN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Bonus:
    size: float = 1.0
    by: str = "length"
    reads = ()

    def __call__(self, scores, rollouts, frozen): ...

@dataclass(frozen=True)
class Even:
    reads = ()
    scope = "action"

    def __call__(self, batch, counts): ...

@dataclass(frozen=True)
class Bare:
    def __call__(self, batch, counts): ...

@dataclass(frozen=True)
class OtherNames:
    def __call__(self, points, rows): ...

@dataclass(frozen=True)
class Reward:
    def __call__(self, group): ...

class Plain:
    def __init__(self, size=1.0):
        self.size = size

    def __call__(self, scores, rollouts): ...

class Careful:
    def __init__(self, prompts, seed, ease=1.0): ...
    def draw(self, num_prompts): ...

def advantage(scores, rollouts, size): ...

def mask(rollouts): ...
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)


def test_every_shipped_part_has_one_slot_and_every_slot_is_a_field_or_a_table():
    for one, other in combinations(SLOTS, 2):
        assert not set(kinds(one)) & set(kinds(other)), (one, other)
    assert all(kinds(slot) for slot in SLOTS)
    assert {"TokenMean", "SequenceMean"} <= set(kinds("aggregation"))
    assert {"RolloutCorrection", "HighEntropy"} <= set(kinds("importance"))
    assert "GroupNorm" in kinds("advantage") and {"Clip", "ReferenceKL"} <= set(kinds("objective"))
    assert "DropTruncated" in kinds("masks") and set(kinds("ema_decay")) == {"RampDecay", "SteadyDecay", "WarmDecay"}
    assert set(kinds("sampler")) == {
        *("Balanced", "Bandit", "Curriculum", "Mixture", "NearestValue"),
        *("Prioritized", "Shuffled", "Streamed", "Thompson", "VarianceAware"),
    }
    assert [slot for slot in SLOTS if not hasattr(Algorithm(), slot)] == ["sampler"]
    assert [place(slot) for slot in ("advantage", "shaping", "sampler")] == [
        "[algorithm.advantage]",
        "[[algorithm.shaping]]",
        "[sampler]",
    ]
    for name, algorithm in EVERY.items():
        for slot, part in parts(algorithm):
            assert kinds(slot)[type(part).__name__] is type(part), f"{name}.{slot}"


@pytest.mark.parametrize(
    "words",
    [
        ['algorithm.shaping=[{use="mine.py:Bonus", size=2.0}]'],
        ["algorithm.aggregation.use=mine.py:Even"],
        ['algorithm.importance=[{use="mine.py:Even"}]'],
        ["algorithm.advantage.use=mine.py:OtherNames"],
        ["algorithm.advantage.use=mine.py:Plain", "algorithm.advantage.size=2"],
        ["algorithm.advantage.use=mine.py:advantage", "algorithm.advantage.size=2"],
        ['algorithm.masks=[{use="mine.py:mask"}]'],
    ],
    ids=lambda words: words[0],
)
def test_ones_own_part_in_its_slot(own: None, words: list[str]):
    config = configs.load("tiny/image", words).config
    assert "mine.py" in str(config.algorithm.uses)
    check_named_rewards(config)  # its settings are its own affair


def chain(*stages: dict[str, Any], config: str = "tiny/cold_start", **more: Any) -> Resolved:
    values = {key: value for key, value in configs.load(config).table.values.items() if key != "steps"}
    return resolve(Table.of({**values, **more, "stage": list(stages)}, "a.toml"))


def again(resolved: Resolved) -> Resolved:
    """The config as it is written down, read back."""
    return resolve(Table.of(as_table(resolved.config), "run"))


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
    own = {"preset": "flow_grpo", "schedule": {"num_steps": 3}, "group_size": 4}
    drawing = {"kind": "rl", "steps": 1}
    dance = {"preset": "dance_grpo", "algorithm": {"schedule": {"trained_per_row": 2}}}
    stages = [{**drawing, **dance}, {**drawing, "preset": "cps"}]
    resolved = chain(*stages, config="tiny/taught_drawing", algorithm=own)
    for found in (stages_of(resolved), stages_of(again(resolved))):
        each = [one.resolved.config.algorithm for one in found]
        assert [one.preset for one in each] == ["dance_grpo", "cps"]
        assert [(one.algorithm.group_size, getattr(one.algorithm.schedule, "num_steps", 0)) for one in each] == [(4, 3), (4, 3)]
    assert as_table(resolved.config)["algorithm"] == own

    other = {**own, "objective": {"0": {"low": 0.5}}}
    two = [{**drawing, "algorithm": {"objective": one}} for one in ({"0": {"low": 0.1}}, [{"kind": "Clip"}])]
    with pytest.raises(ValueError, match=r"^a.toml: algorithm.objective.0.low: no stage uses this: write it in the \[\[stage"):
        stages_of(chain(*two, config="tiny/taught_drawing", algorithm=other))
    every = as_table(configs.load("tiny/flow").config)["algorithm"]
    with pytest.raises(ValueError, match=r"a.toml: stage.1 has the preset 'cps', of which nothing is left: the run's own"):
        stages_of(chain(drawing, stages[1], config="tiny/taught_drawing", algorithm=every))


def test_what_comes_with_an_engine_is_each_presets_own():
    policy = {**configs.load("tiny/cold_start").table.values["policy"], "engine": {"url": ["http://localhost:1"]}}
    resolved = chain({**RL, "preset": "gspo"}, RL, policy=policy)
    for one in stages_of(resolved):
        own = one.resolved.config.algorithm
        alone = configs.load("tiny/image", [f"algorithm.preset={own.preset}", "policy.engine.url=['http://localhost:1']"]).config
        assert own.algorithm.importance == alone.algorithm.algorithm.importance and own.algorithm.old == "reread"
    assert set(as_table(resolved.config)["algorithm"]) == {"preset", "group_size"}


def test_a_loop_repeats_its_stages_and_a_checkpoint_at_a_border_is_of_the_stage_that_ended():
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
    assert again(resolved).config == resolved.config
    assert [one.end for one in stages_of(again(resolved))] == [one.end for one in stages]
    two = stages_of(chain(SFT, RL))
    assert [stage_at(two, step) for step in (None, 0, 1, 3, 4, 8)] == [0, 0, 0, 0, 1, 1]


def test_what_is_written_down_reads_back_as_the_same_stages_and_without_any_as_none():
    resolved = configs.load("tiny/cold_start")
    assert resolved.config.steps == 5
    read = again(resolved)
    assert read.config == resolved.config and changed_settings(resolved.config, read.config) == []
    for before, after in zip(stages_of(resolved), stages_of(read), strict=True):
        assert before.resolved.config == after.resolved.config
    resolved = configs.load("tiny/image")
    (stage,) = stages_of(resolved)
    assert stage == Stage(1, 1, "", 0, resolved) and stage.place == ""
    assert "stage" not in as_table(resolved.config)


def test_a_chain_that_only_teaches_needs_no_reward_sources_that_none_is_for_may_be_taught_and_sounds_not():
    assert stages_of(chain(SFT, reward=[], evaluation={}, algorithm={}))[0].resolved.config.reward == ()
    skills, shown = stages_of(configs.load("tiny/hurried_looks"))
    assert skills.until is not None and skills.until.most == skills.end < shown.end
    assert {reward.sources for reward in shown.resolved.config.reward} == {("read",), ("point",)}
    said = "stage 1 of 2, pairs: its rows would be sounds, which no stage is taught: take a filter"
    with pytest.raises(ValueError, match=said):
        stages_of(chain(PAIRS, {**DPO, "kind": "rl"}, config="tiny/tones"))


def test_generators_are_taught_pictures():
    first, second, third = stages_of(configs.load("tiny/taught_drawing"))
    sft, dpo = (one.resolved.config.algorithm for one in (first, second))
    assert (sft.preset, dpo.preset, third.resolved.config.algorithm.preset) == ("sft_of_pictures", "dpo_of_pictures", "flow_grpo")
    assert sft.algorithm.planner == TaughtPictures() and dpo.algorithm.planner == TaughtPairs()
    assert dpo.algorithm.objective == ((1.0, DenoisingPreference(100.0, sft=0.1)),)
    assert again(second.resolved).config.algorithm == dpo
