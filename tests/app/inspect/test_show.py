"""`mmrl show`: every value of a run and who said it."""

from pathlib import Path

import pytest

from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.config.tasks import one_line
from mmrl.app.inspect.show import description
from mmrl.app.toml.tables import dotted_key, leaves

FLOW = """steps = 3
[algorithm]
preset = "flow_grpo"
group_size = 4
[algorithm.schedule]
kind = "Window"
num_steps = 6
spacing = { kind = "LinearShift" }
[algorithm.objective.0]
low = 1e-2
[policy]
kind = "flow"
model = "m"
[data]
use = "shapes"
[[reward]]
use = "jpeg_size"
scale = 0.1
"""


def origins(resolved: Resolved) -> dict[str, str]:
    return {key: origin for key, _, origin in resolved.rows()}


@pytest.fixture
def flow(tmp_path: Path) -> Resolved:
    file = tmp_path / "a.toml"
    file.write_text(FLOW)
    return configs.load(str(file), ["optimizer.lr=1e-3", "algorithm.schedule.size=2", "evaluation.num_steps=9"])


def test_each_value_says_who_said_it(flow: Resolved, tmp_path: Path):
    found, file = origins(flow), str(tmp_path / "a.toml")
    assert found["steps"] == found["reward.0.scale"] == found["algorithm.group_size"] == file
    assert found["algorithm.schedule.kind"] == found["algorithm.objective.0.low"] == file
    assert found["optimizer.lr"] == found["algorithm.schedule.size"] == found["evaluation.num_steps"] == "command line"
    assert found["algorithm.objective.0.high"] == found["algorithm.objective.1.coef"] == "preset flow_grpo"
    assert found["algorithm.advantage.scale"] == found["algorithm.epochs"] == "preset flow_grpo"
    assert found["prompts_per_step"] == found["policy.dtype"] == found["reward.0.weight"] == "default"


def test_a_part_in_the_presets_place_has_its_own_defaults(flow: Resolved):
    found = origins(flow)
    assert found["algorithm.schedule.level"] == "default of Window"
    assert found["algorithm.schedule.spacing.shift"] == "default of LinearShift"


def test_defaults_of_the_kind_of_policy(flow: Resolved):
    assert origins(flow)["ratio_bound"] == origins(flow)["mean_ratio_bound"] == "default"
    assert flow.origin(("evaluation", "guidance")) == "default for flow"
    text = configs.load("tiny/image", ["evaluation.sampling.top_p=0.5"])
    found = origins(text)
    assert found["evaluation.sampling.temperature"] == "default for text"
    assert found["ratio_bound"] == "default"
    assert found["evaluation.sampling.max_new_tokens"] == f"as policy.sampling ({text.table.origin(('steps',))})"
    assert found["evaluation.sampling.top_k"] == "as policy.sampling (default)"
    assert found["evaluation.sampling.top_p"] == "command line"
    assert origins(configs.load("tiny/image", ["ratio_bound=1.0"]))["ratio_bound"] == "command line"


def test_a_task_is_an_origin(tmp_path: Path):
    (tmp_path / "boxes.jsonl").write_text("")
    found = origins(one_line("grounding", "m", str(tmp_path / "boxes.jsonl"), ["iou"], ["steps=2"]))
    assert found["algorithm.preset"] == found["data.use"] == "task grounding"
    assert found["policy.model"] == found["reward.0.use"] == found["steps"] == "command line"


@pytest.mark.parametrize("name", ["tiny/image", "tiny/t2i_text", "video/qwen25vl_7b_clevrer_twgrpo"])
def test_every_value_of_the_file_is_shown_with_the_file(name: str):
    resolved = configs.load(name)
    rows = {line.split()[0]: line for line in description(name).splitlines() if line.strip()}
    file = resolved.table.origin(("steps",))
    assert file is not None
    for path, value in leaves(resolved.table.values):
        assert rows[dotted_key(path)].rstrip().endswith(file), dotted_key(path)
        assert isinstance(value, list | dict | float) or str(value) in rows[dotted_key(path)]


def test_an_algorithm_shows_the_preset_and_the_command_line():
    text = description("flow_grpo", ["algorithm.schedule.kind=Window", "algorithm.group_size=6"])
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("algorithm.")}
    assert rows["algorithm.group_size"].endswith("command line")
    assert rows["algorithm.schedule.level"].endswith("default of Window")
    assert rows["algorithm.objective.0.low"].endswith("preset flow_grpo")
    assert "mmrl/flow/schedules/" in text


@pytest.mark.parametrize(("name", "words"), [("reward/iou/std", "Deviation of this reward"), ("metrics", "policy/grad_norm")])
def test_a_metric_is_shown_with_its_meaning(name: str, words: str):
    assert words in description(name)
