"""What a reward says that it needs of a prompt is what it does with one."""

import tomllib
from functools import partial
from pathlib import Path

import pytest

from mmrl.answers.boxes.box import Box
from mmrl.answers.needs import Need
from mmrl.answers.spans.interval import Interval
from mmrl.app.config import run as configs
from mmrl.app.config.algorithm import presets
from mmrl.app.config.reward_needs import names_in, need_of, needs_of
from mmrl.app.plugins.catalog import details
from mmrl.app.plugins.resolve import listing, load
from mmrl.app.toml.tables import Table
from mmrl.core.types import Group, Prompt, Sample

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


def test_rewards_inside_rewards_are_looked_at():
    inner = load("ocr", "rewards")()
    reward = load("pairwise_win_rate", "rewards")(scorer=inner)
    found = needs_of(reward)
    assert [(name, made) for name, _, made in found] == [("pairwise_win_rate", reward), ("ocr", inner)]


OWN = """
from mmrl import Need

needs = Need("a hint")

def hinted(group, scorer=None):
    return [1.0 for _ in group.samples]
"""


def test_a_function_declares_it_in_its_file_with_settings_and_inside_others_too(tmp_path):
    (tmp_path / "hints.py").write_text(OWN)
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


def test_needs_in_words():
    assert str(Need()) == "nothing"
    assert str(Need("a box", samples=2, setup="a server")) == "a box; 2 samples of a prompt; a server"
    assert str(Need("a box", package="cv2")) == "a box; the package cv2"


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


def test_a_needed_reward_may_stand_inside_another():
    resolved = run("urpa", '[[reward]]\nuse = "by_type"\nspan = { use = "pseudo_span", gamma = 0.5 }')
    assert resolved.config.reward[0].use == "by_type"
    assert set(names_in("a.py:f", {"x": {"use": "b", "y": {"use": "c"}}, "n": 3})) == {"f", "a", "b", "c"}


def test_the_need_survives_the_run_folder(tmp_path: Path):
    config = run("mm_upt", '[[reward]]\nuse = "majority_vote"').config
    configs.save(config, tmp_path / "config.toml")
    assert configs.resolve(Table.read(tmp_path / "config.toml")).config == config
