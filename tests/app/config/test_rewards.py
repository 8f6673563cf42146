"""Rewards in configs: how they are called, held-out ones, rewards inside rewards, what each needs of a prompt and a method."""

import math
import tomllib
from functools import partial
from pathlib import Path

import pytest
import torch

from mmrl.answers.boxes.box import Box
from mmrl.answers.needs import Need
from mmrl.answers.spans.interval import Interval
from mmrl.app.config import run as configs
from mmrl.app.config.algorithm import presets
from mmrl.app.config.reward_needs import names_in, need_of, needs_of
from mmrl.app.plugins.catalog import details
from mmrl.app.plugins.resolve import listing, load
from mmrl.app.run.build import build
from mmrl.app.toml.tables import Table
from mmrl.core.types import Group, Prompt, Sample
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import Transform

pytestmark = pytest.mark.usefixtures("empty_desk")


def loaded(name: str, more: str, *words: str) -> configs.Resolved:
    """A shipped config with further TOML at its end, and overrides."""
    table, extra = configs.load(name, words).table, tomllib.loads(more)
    table.set(("reward",), [*table.values["reward"], *extra["reward"]], "more")
    table.set(("evaluation",), {**table.values["evaluation"], **extra.get("evaluation", {})}, "more")
    return configs.resolve(table)


CALLED = """
[[reward]]
use = "length"
name = "watched"
weight = 0.0
timeout_s = 5.0
call = { where = "thread", workers = 2, retries = 3, cache = 100 }
transform = { scale = 2.0, high = 1.0 }
"""


def test_how_a_reward_is_called_survives_the_run_folder(tmp_path: Path):
    resolved = loaded("tiny/image", CALLED)
    reward = resolved.config.reward[-1]
    assert reward.call == Calling("thread", workers=2, retries=3, cache=100)
    assert reward.transform == Transform(scale=2.0, high=1.0)
    configs.save(resolved.config, tmp_path / "config.toml")
    again = configs.resolve(Table.read(tmp_path / "config.toml"))
    assert again.config.reward == resolved.config.reward and again.config.evaluation == resolved.config.evaluation


MINE = """
import collections
made = collections.Counter()

class Mine:
    def __init__(self, k: float = 1.0):
        made[k] += 1
        self.k = k

    def __call__(self, group):
        return [self.k * len(s.text or "") for s in group.samples]
"""


def test_held_out_rewards_are_watched_and_equal_ones_are_made_once(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    more = """
[[reward]]
use = "./mine.py:Mine"
name = "first"
k = 2.0
weight = 0.001
[[reward]]
use = "./mine.py:Mine"
name = "second"
k = 2.0
weight = 0.0
[[evaluation.reward]]
use = "./mine.py:Mine"
name = "unseen"
k = 3.0
[[evaluation.reward]]
use = "./mine.py:Mine"
name = "seen"
k = 2.0
"""
    job = build(loaded("tiny/image", more, "steps=1", "evaluation.num_prompts=2"))
    assert job.evaluator is not None
    function = job.trainer.collector.rewards.rewards[-1].function
    module = __import__("sys").modules[type(function).__module__]
    assert dict(module.made) == {2.0: 1, 3.0: 1}
    metrics = job.trainer.step()
    assert "reward/unseen" not in metrics and metrics["reward/first"] == metrics["reward/second"]
    found, examples = job.evaluator.run(0)
    assert found["eval/unseen"] == pytest.approx(1.5 * found["eval/seen"]) and found["eval/seen"] == found["eval/first"]
    assert examples.scores.weights.tolist()[-2:] == [0, 0]
    trained = sum(weight * found[f"eval/{name}"] for weight, name in ((1.0, "iou"), (0.1, "length"), (0.001, "first")))
    assert found["eval/total"] == pytest.approx(trained)


def trained(resolved: configs.Resolved) -> tuple[dict[str, float], bool]:
    """The last step's metrics, and whether the weights moved."""
    job = build(resolved)
    before = [p.detach().clone() for p in job.policy.parameters()]
    metrics: dict[str, float] = {}
    for _ in range(resolved.config.steps):
        metrics = job.trainer.step()
    moved = any(not torch.equal(a, b) for a, b in zip(before, job.policy.parameters(), strict=True))
    return metrics, moved


def test_pref_grpo_trains_on_win_rates():
    """A scorer of the shelf inside pairwise_win_rate, pictures from a tiny Stable Diffusion 3."""
    words = ["steps=2", "algorithm.preset=pref_grpo", "algorithm.schedule.trained_per_row=3", "evaluation.num_prompts=0"]
    resolved = configs.load("tiny/flow")
    resolved.table.set(("reward",), [{"use": "pairwise_win_rate", "scorer": {"use": "jpeg_size"}}], "test")
    metrics, moved = trained(configs.resolve(resolved.table, words))
    assert moved and math.isfinite(metrics["loss"])
    assert metrics["reward/pairwise_win_rate"] == pytest.approx(0.5), "in every group half of all comparisons are won"
    assert metrics["reward/pairwise_win_rate/std"] > 0 and metrics["reward/pairwise_win_rate/comparisons"] == 3


def test_rewards_of_different_size_can_be_trained_on_by_gdpo_and_gated_in_a_config():
    words = ["steps=2", "algorithm.preset=gdpo", "evaluation.num_prompts=0", "reward.1.weight=1.0"]
    metrics, moved = trained(configs.load("tiny/image", words))
    assert moved and math.isfinite(metrics["loss"])
    words = ["steps=1", "evaluation.num_prompts=0", 'algorithm.shaping=[{kind = "Gate", by = "length", at_least = 0.5}]']
    metrics, _ = trained(configs.load("tiny/image", words))
    assert metrics["reward/iou_gated"] <= metrics["reward/iou"] + 1e-9
    assert "reward/length" in metrics


BOX, SPAN = (Box(1, 2, 3, 4),), Interval(1, 2)
WRONG = {
    **dict.fromkeys(("iou", "giou", "point_in_box", "multi_box", "choice", "number", "ocr_wer", "rouge"), SPAN),
    **dict.fromkeys(("temporal_iou", "key_frame"), BOX),
    "mask_iou": "no mask",
}
"""Reward -> an answer that it cannot read."""
SETTINGS = {name: {"space": "norm1000"} for name in ("iou", "giou", "point_in_box", "multi_box")} | {
    "json_schema": {"column": "schema"},
    "suite_judge": {"suite": "imgedit"},
}


@pytest.mark.parametrize("listed", listing("rewards"), ids=lambda listed: listed.name)
def test_every_shipped_reward_says_what_it_needs_and_lists_read_it_without_running_the_file(listed):
    need = need_of(load(listed.name, "rewards"))
    assert need is not None and details(listed.file)["Needs"] == str(need)


def test_needs_in_words():
    assert str(Need()) == "nothing"
    assert str(Need("a box", samples=2, setup="a server")) == "a box; 2 samples of a prompt; a server"
    assert str(Need("a box", package="cv2")) == "a box; the package cv2"


@pytest.mark.parametrize("name", sorted(WRONG))
def test_an_answer_of_another_kind_is_refused_as_the_reward_refuses_it(name):
    reward = load(name, "rewards")(**SETTINGS.get(name, {}))
    asked = Prompt("p", "Where?", answer=WRONG[name])
    [(found, need, made)] = needs_of(reward)
    assert (found, made) == (name, reward)
    with pytest.raises(ValueError):
        need.reads(asked, reward, "text")
    with pytest.raises(ValueError):
        reward(Group(0, asked, (Sample("1"),)))
    bare = Prompt("p", "Where?")
    assert need.reads(bare, reward, "text") is None
    assert reward(Group(0, bare, (Sample("1"),))) == [None]


@pytest.mark.parametrize(
    "name", ["ocr", "shapes", "gliding_shapes", "shape_edits", "keeps_rest", "toward_target", "by_type", "suite_judge"]
)
def test_a_prompt_without_columns_is_refused_as_the_reward_refuses_it(name):
    bare, reward = Prompt("p", "a cat"), load(name, "rewards")(**SETTINGS.get(name, {}))
    with pytest.raises(ValueError):
        reward.needs.reads(bare, reward, "image")
    with pytest.raises(ValueError):
        reward(Group(0, bare, (Sample("1"),)))


def test_prompts_that_say_what_is_needed_are_taken():
    for name, prompt in {
        "iou": Prompt("p", "Where?", answer=BOX),
        "temporal_iou": Prompt("p", "When?", answer=SPAN),
        "ocr": Prompt("p", 'a sign "stop"'),
        "object_counts": Prompt("p", "a cat", columns={"include": [{"class": "cat", "count": 1}]}),
        "by_type": Prompt("p", "How many?", answer="3", columns={"problem_type": "numerical"}),
        "vlm_judge": Prompt("p", "a cat"),
    }.items():
        reward = load(name, "rewards")()
        assert reward.needs.reads(prompt, reward, "image") is not None, name
    counts = load("object_counts", "rewards")()
    assert counts.needs.reads(Prompt("p", "a cat"), counts, "image") is None


HINTED = """
from mmrl import Need

needs = Need("a hint")

def hinted(group, scorer=None):
    return [1.0 for _ in group.samples]
"""


def test_a_reward_or_a_function_inside_others_declares_it_with_settings_too(tmp_path):
    inner = load("ocr", "rewards")()
    reward = load("pairwise_win_rate", "rewards")(scorer=inner)
    assert [(name, made) for name, _, made in needs_of(reward)] == [("pairwise_win_rate", reward), ("ocr", inner)]
    (tmp_path / "hints.py").write_text(HINTED)
    hinted = load(f"{tmp_path}/hints.py", "rewards")
    assert details(tmp_path / "hints.py") == {"Needs": "a hint"}
    outer = load("pairwise_win_rate", "rewards")(scorer=partial(hinted, scorer=load("iou", "rewards")()))
    assert [(name, need.prompts) for name, need, _ in needs_of(outer)] == [
        ("pairwise_win_rate", ""),
        ("hints", "a hint"),
        ("iou", "a true box as answer"),
    ]


def test_a_reward_that_says_nothing_and_one_that_says_it_otherwise(tmp_path):
    (tmp_path / "ocr.py").write_text("def ocr(group):\n    return [1.0 for _ in group.samples]\n")
    assert list(needs_of(load(f"{tmp_path}/ocr.py", "rewards"))) == []
    (tmp_path / "words.py").write_text('needs = "a hint"\n' + "def words(group):\n    return [1.0 for _ in group.samples]\n")
    with pytest.raises(ValueError, match=r"reward 'words' has needs = 'a hint': write needs = mmrl\.Need"):
        need_of(load(f"{tmp_path}/words.py", "rewards"))


@pytest.mark.parametrize("said", ['needs = ask(5, hint="a")', 'needs = Need("a hint", hint=5)'])
def test_a_list_reads_files_whatever_they_call_needs(tmp_path, said):
    (tmp_path / "own.py").write_text(f"{said}\n")
    assert details(tmp_path / "own.py") == ({"Needs": "a hint"} if "Need(" in said else {})


NEEDED = {
    "urpa": "pseudo_span",
    "pref_grpo": "pairwise_win_rate",
    "mm_upt": "majority_vote",
    "deepeyes": "tool_bonus",
    "openthinkimg": "turn_format",
    "pixelthink": "box_and_points",
}
SEVERAL = {"thyme": ("turn_format", "consistency")}
"""Methods that are made of more than one reward."""


def run(preset: str, reward: str, more: str = "") -> configs.Resolved:
    """A run's config with this preset and the [[reward]] tables of a text."""
    table = configs.load("tiny/flow" if preset == "pref_grpo" else "tiny/image").table
    table.set(("algorithm",), {"preset": preset, **tomllib.loads(more)}, "test")
    table.set(("reward",), tomllib.loads(reward)["reward"], "test")
    return configs.resolve(table)


def test_every_need_is_a_shipped_reward():
    assert {name: one.needs_rewards for name, one in presets().items() if one.needs_rewards} == {
        name: (reward,) for name, reward in NEEDED.items()
    } | SEVERAL
    for reward in (*NEEDED.values(), *SEVERAL["thyme"]):
        load(reward, "rewards")


@pytest.mark.parametrize(("preset", "needed"), NEEDED.items())
@pytest.mark.parametrize("other", ['use = "length"', 'use = "{needed}"\nweight = 0.0', 'use = "{needed}"\nweight = -1.0'])
def test_a_method_without_its_reward_is_refused(preset: str, needed: str, other: str):
    written = '[[reward]]\nuse = "format"\n[[reward]]\n' + other.replace("{needed}", needed)
    message = rf"algorithm.preset is '{preset}', a method that trains on the reward '{needed}'.* with use = '{needed}', or"
    with pytest.raises(ValueError, match=message):
        run(preset, written)
    assert run(preset, written, "needs_rewards = []").config.algorithm.algorithm.needs_rewards == ()


@pytest.mark.parametrize("preset", NEEDED)
@pytest.mark.parametrize("use", ["{}", "rewards/{}.py", "rewards/{}.py:Part", "http://127.0.0.1:8700/{}"])
def test_a_method_with_its_reward_passes(preset: str, use: str):
    resolved = run(preset, f'[[reward]]\nuse = "{use.format(NEEDED[preset])}"\nweight = 0.5')
    assert resolved.config.algorithm.algorithm.needs_rewards == (NEEDED[preset],)


def test_a_needed_reward_may_stand_inside_another_and_the_need_survives_the_run_folder(tmp_path: Path):
    resolved = run("urpa", '[[reward]]\nuse = "by_type"\nspan = { use = "pseudo_span", gamma = 0.5 }')
    assert resolved.config.reward[0].use == "by_type"
    configs.save(resolved.config, tmp_path / "config.toml")
    assert configs.resolve(Table.read(tmp_path / "config.toml")).config == resolved.config
    assert set(names_in("a.py:f", {"x": {"use": "b", "y": {"use": "c"}}, "n": 3})) == {"f", "a", "b", "c"}
