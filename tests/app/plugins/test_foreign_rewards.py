"""Rewards written for TRL and flow_grpo, unchanged; and those that forgot to say so."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.app.commands import serve
from mmrl.app.config.plug_ins import reward_of
from mmrl.app.config.run import RewardConfig
from mmrl.app.run.beforehand import look_at_reward
from mmrl.app.toml.tables import Table
from mmrl.core.types import Group, Prompt, Sample, Scored, Status
from mmrl.training.checkpoints.state import load_rewards, remembers, rewards_state
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import NamedReward, RewardError, RewardRunner
from tests.support.refused import refused

TRL = """
def solved(prompts, completions, solution, **kwargs):
    assert len(prompts) == len(completions) == len(solution)
    return [float(s in c[0]["content"]) for c, s in zip(completions, solution)]

def plain(completions, **kwargs):
    return [float(len(completion.split())) for completion in completions]

def last_image(prompts, completions, **kwargs):
    parts = [prompt[-1]["content"] for prompt in prompts]
    return [float(p[0]["image"].size[0]) if p[0]["type"] == "image" else None for p in parts]

def logs(completions, completion_ids, log_metric, log_extra, kind):
    log_metric("calls", 1.0)
    log_extra("tokens", [len(ids) for ids in completion_ids])
    return [1.0 if k == "a" else None for k in kind]

async def later(completions, **kwargs):
    return [float(len(c[0]["content"])) for c in completions]

def short(completions, **kwargs):
    return [1.0]

class Longer:
    def __init__(self, than, by=0):
        if than < 0:
            raise ValueError("no text is shorter")
        self.length = than + by

    def load_state_dict(self, state): self.length = state
    def __call__(self, completions, **kwargs):
        return [float(len(c[0]["content"]) > self.length) for c in completions]

class Counts:
    seen = 0.0
    def __call__(self, completions, **kwargs):
        self.seen += len(completions)
        return [self.seen for _ in completions]
    def state_dict(self): return {"seen": self.seen}
    def load_state_dict(self, state): self.seen = state["seen"]

class Mute: ...

class Whole:
    def score_all(self, groups):
        return [[3.0 for _ in group.samples] for group in groups]
"""
FLOW = """
import numpy as np

def redness():
    def _fn(images, prompts, metadata):
        assert images.shape[1] == 3 and 0 <= images.min() and images.max() <= 1
        return images[:, 0].mean((1, 2)) - images[:, 2].mean((1, 2)), {}
    return _fn

def scaled(device="cpu", factor=1.0):
    def _fn(images, prompts, metadata):
        return {"avg": [factor for _ in images], "width": np.array([images.shape[-1]] * len(images))}, {}
    return _fn

def counted(images, prompts, metadata, only_strict=True):
    scores = [float(len(prompt)) + m["bonus"] for prompt, m in zip(prompts, metadata)]
    return scores, scores, scores, {}, {}
"""
VERL = "def compute_score(data_source, solution_str, ground_truth, extra_info=None): ..."


@pytest.fixture
def file(tmp_path: Path):
    def write(source: str) -> str:
        (tmp_path / "mine.py").write_text(source)
        return str(tmp_path / "mine.py")

    return write


def made(use: str, **args: Any) -> Any:
    return reward_of(use, args, ("reward", "0"), Table())()


def score(reward: Any, *groups: Group):
    return RewardRunner([NamedReward("mine", reward)]).score(groups)


def texts(id: int, *completions: str, **prompt: Any) -> Group:
    samples = tuple(Sample(text, tuple(range(len(text)))) for text in completions)
    return Group(id, Prompt(f"p{id}", "How many?", **prompt), samples)


def test_trl_sees_all_groups_at_once_with_their_columns(file):
    reward = made(f"trl:{file(TRL)}:solved")
    first = texts(0, "it is 7", "8", columns={"solution": "7"})
    second = texts(1, "9", "7", "9!", columns={"solution": "9"})
    assert [table.values[:, 0].tolist() for table in score(reward, first, second)] == [[1, 0], [1, 0, 1]]


def test_a_column_by_another_name(file):
    use = f"trl:{file(TRL)}:solved"
    group = texts(0, "it is 7", "8", answer="7", columns={"kind": "a"})
    assert score(made(use, columns={"solution": "answer"}), group)[0].values[:, 0].tolist() == [1, 0]
    with pytest.raises(
        RewardError, match=r"needs the column 'solution', and the prompts have answer, kind.*columns = \{ solution"
    ):
        score(made(use), group)
    with pytest.raises(RewardError, match=r"needs the column 'anser', .* answer, kind: .* columns = \{ solution"):
        score(made(use, columns={"solution": "anser"}), group)


def test_plain_completions(file):
    use = f"trl:{file(TRL)}:plain"
    assert score(made(use, conversational=False), texts(0, "a b", "c"))[0].values[:, 0].tolist() == [2, 1]
    with pytest.raises(RewardError, match="given as lists of messages; for the other kind set conversational = false"):
        score(made(use), texts(0, "a b", "c"))


def test_prompts_show_their_pictures(file, tmp_path):
    Image.new("RGB", (12, 5)).save(tmp_path / "a.png")
    group = texts(0, "x", "y", media=(str(tmp_path / "a.png"),))
    assert score(made(f"trl:{file(TRL)}:last_image"), group)[0].values[:, 0].tolist() == [12, 12]


def test_none_means_does_not_apply_and_logs_become_parts(file):
    groups = [texts(i, "abc", "d", columns={"kind": kind}) for i, kind in enumerate("ab")]
    first, second = score(made(f"trl:{file(TRL)}:logs"), *groups)
    assert first.status[:, 0].tolist() == [Status.OK] * 2 and second.status[:, 0].tolist() == [Status.NA] * 2
    assert first.parts == [{"mine/calls": 1, "mine/tokens": 3}, {"mine/calls": 1, "mine/tokens": 1}]


def test_async_classes_and_too_few_values(file):
    use = f"trl:{file(TRL)}"
    assert score(made(f"{use}:Longer", than=1, by=1), texts(0, "abc", "de"))[0].values[:, 0].tolist() == [1, 0]
    assert score(made(f"{use}:later"), texts(0, "abc", "d"))[0].values[:, 0].tolist() == [3, 1]
    assert asyncio.run(made(f"{use}:later")(texts(0, "abc"))) == [3.0]
    assert score(made(f"{file(TRL)}:Whole"), texts(0, "a"))[0].values.tolist() == [[3]]
    first, again = (RewardRunner([NamedReward("mine", made(f"{use}:Counts"))]) for _ in range(2))
    first.score([texts(0, "a", "b")])
    load_rewards(again, rewards_state(first))
    assert again.score([texts(1, "c")])[0].values.tolist() == [[3]] and not remembers(made(f"{use}:Longer", than=1))
    with pytest.raises(RewardError, match=r"answered 1 values for 4 samples"):
        score(made(f"{use}:short"), texts(0, "a", "b"), texts(1, "c", "d"))


def test_in_a_process_and_which_columns_the_data_must_have(file):
    use, group = f"trl:{file(TRL)}", texts(0, "abc", "de", columns={"completions": ["abcd"], "kind": "a"})
    runner = RewardRunner([NamedReward("mine", made(f"{use}:Longer", than=2), call=Calling("process"))])
    assert runner.score([group])[0].values[:, 0].tolist() == [1, 0]
    runner.close()
    refused("is async", RewardRunner, [NamedReward("mine", made(f"{use}:later"), call=Calling("process"))])
    plain = RewardConfig("plain")
    assert not look_at_reward(plain, made(f"{use}:logs"), [texts(1, "a").prompt, group.prompt], "[data]", 2, "text")
    [said] = look_at_reward(plain, made(f"{use}:solved"), [group.prompt], "[data]", 2, "text")
    assert "applies to none of the 1 prompts of [data], which need the columns solution" in said


def pictures(id: int, *colours: str, size=(8, 6)) -> Group:
    samples = tuple(Sample(image=Image.new("RGB", size, colour)) for colour in colours)
    return Group(id, Prompt(f"p{id}", "red", columns={"bonus": id}), samples)


def test_flow_grpo_factories_and_functions(file):
    use = f"flow_grpo:{file(FLOW)}"
    first, second = score(made(f"{use}:redness"), pictures(0, "red", "blue"), pictures(1, "black"))
    assert first.values[:, 0].tolist() == [1, -1] and second.values[:, 0].tolist() == [0]
    [table] = score(made(f"{use}:scaled", factor=3.0), pictures(0, "red"))
    assert table.values[0, 0] == 3 and table.parts == [{"mine/width": 8}]
    tables = score(made(f"{use}:counted", only_strict=False), pictures(0, "red", "red"), pictures(5, "red"))
    assert [table.values[:, 0].tolist() for table in tables] == [[3, 3], [8]]


def test_flow_grpo_mistakes(file):
    use = f"flow_grpo:{file(FLOW)}"
    with pytest.raises(RewardError, match="pictures of one size"):
        score(made(f"{use}:redness"), pictures(0, "red"), pictures(1, "red", size=(4, 4)))
    refused("'p0' has no picture", score, made(f"{use}:redness"), texts(0, "a"), error=RewardError)


@pytest.mark.parametrize(
    ("source", "use", "args", "said"),
    [
        (TRL, "{}:plain", {}, r"write use = \"trl:.*mine\.py:plain\""),
        (FLOW, "{}:counted", {}, r"write use = \"flow_grpo:"),
        (VERL, "{}", {}, r"verl or EasyR1.*def mine\(group\)"),
        (TRL, "{}:Longer", {"than": 1}, r"write use = \"trl:.*mine\.py:Longer\""),
        ("def mine(group, scale, by=0): ...", "{}", {"by": 1}, r"reward\.0\.scale is missing"),
        (TRL, "{}:Mute", {}, r"reward\.0: objects of the class Mute cannot be called: write a method __call__"),
        (TRL, "trl:{}:Mute", {}, r"reward\.0: objects of the class Mute cannot be called: write a method __call__"),
        (TRL, "trl:format", {}, "the reward takes group and no `completions`.*leave trl: out"),
        (TRL, "trl:{}:plain", {"colums": {}}, r"reward\.0\.colums is unknown: did you mean 'columns'"),
        (TRL, "trl:{}:plain", {"columns": 3}, r"reward\.0\.columns is 3: input should be a valid dictionary"),
        (TRL, "trl:{}:plain", {"columns": {"prompts": "answer"}}, r"reward\.0: columns\.prompts would take the place"),
        (TRL, "trl:{}:plain", {"conversational": "false"}, r"reward\.0\.conversational is 'false': .* true or false"),
        (TRL, "trl:{}:Longer", {"by": 1}, r"reward\.0\.than is missing"),
        (TRL, "trl:{}:Longer", {"than": 1, "bye": 1}, r"reward\.0\.bye is unknown: did you mean 'by'"),
        (TRL, "trl:{}:Longer", {"than": -1}, r"reward\.0: no text is shorter"),
        (FLOW, "flow_grpo:{}:scaled", {"facto": 3.0}, r"reward\.0\.facto is unknown: did you mean 'factor'"),
    ],
)
def test_forgotten_prefixes_and_slips_are_named(file, source: str, use: str, args: dict[str, Any], said: str):
    refused(said, made, use.format(file(source)), **args)


def test_rewards_hold_rewards():
    reward = made("pairwise_win_rate", scorer={"use": "length", "low": 0, "high": 2, "slope": 0}, margin=0.1)
    samples = tuple(Sample("x", tuple(range(n))) for n in (1, 5))
    assert [rate.value for rate in reward(Group(0, Prompt("p"), samples)) if isinstance(rate, Scored)] == [1, 0]
    refused(r"reward\.0\.scorer.*unknown: did you mean 'slope'", made, "pairwise_win_rate", scorer={"use": "length", "slop": 0})


def test_a_server_serves_them_too(file):
    reward, _ = serve.made({"use": f"trl:{file(TRL)}:plain", "conversational": False}, ("reward", "0"), Table())
    assert reward(texts(0, "a b", "c")) == [2.0, 1.0]
    refused('write use = "trl:', serve.made, {"use": f"{file(TRL)}:plain"}, ("reward", "0"), Table())
