"""TOML and the command line -> a run: origins, presets with other parts, and the slots that parts fit, shipped ones and own."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import SteadyDecay
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.video import DifficultyAware
from mmrl.algorithms.presets import PRESETS as EVERY
from mmrl.algorithms.views import MaskPatches
from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.app.config import run as configs
from mmrl.app.config.algorithm import presets
from mmrl.app.config.run import Resolved
from mmrl.app.config.slots import SLOTS, kinds, place
from mmrl.app.inspect.show import description, parts
from mmrl.app.plugins.catalog import catalog
from mmrl.app.run.build import build
from mmrl.app.toml.tables import Table
from mmrl.policies.shared.weights import USUAL_DECAY
from mmrl.policies.text.settings import Sampling, TextPolicyConfig
from tests.support.each import for_each
from tests.support.presets import TEXT as PRESETS
from tests.support.presets import VIDEO

TEXT = """steps = 3
[algorithm]
preset = "dapo"
[policy]
model = "m"
[policy.sampling]
top_p = 0.9
max_new_tokens = 7
[data]
use = "squares"
size = 4
[[reward]]
use = "iou"
[[reward]]
use = "./mine.py:short"
weight = 0.5
slope = 2
[optimizer]
lr = 1e-3
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


def test_values_and_their_origins(file: Path):
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


def test_evaluation_samples_greedily_unless_told(file: Path):
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


def test_none_can_be_written(file: Path):
    assert load(file, "policy.lora.rank=2", "policy.lora=none").config.policy.lora is None
    clip = load(file, "algorithm.preset=cispo", "algorithm.objective.0.high=none").config.algorithm.algorithm.objective[0][1]
    assert clip.high is None  # type: ignore[attr-defined]


def test_every_part_of_a_preset_has_a_kind():
    for name, algorithm in EVERY.items():
        for slot, part in parts(algorithm):
            assert kinds(slot)[type(part).__name__] is type(part), f"{name}.{slot}"


def test_overrides_are_toml_or_bare_strings():
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


def test_every_shipped_part_has_one_slot():
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


def test_every_slot_is_a_field_or_a_table():
    assert [slot for slot in SLOTS if not hasattr(Algorithm(), slot)] == ["sampler"]
    assert [place(slot) for slot in ("advantage", "shaping", "sampler")] == [
        "[algorithm.advantage]",
        "[[algorithm.shaping]]",
        "[sampler]",
    ]


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
    assert "mine.py" in str(configs.load("tiny/image", words).config.algorithm.uses)
