"""A run that follows a teacher, as its commands have it: in a chain, planned, reported, exported and asked again."""

from pathlib import Path

import pytest
import torch

from mmrl.app.commands.plan import draw_up
from mmrl.app.commands.train import run_job
from mmrl.app.config import run as configs
from mmrl.app.config.stages import stages_of
from mmrl.app.export.export import export
from mmrl.app.report.page import write_report
from mmrl.app.run import build as building
from mmrl.app.run.folder import RunDir, read_lines
from mmrl.app.run.revive import revive
from mmrl.lab.tiny.text import vlms
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig
from tests.support.fake_engines import engines

STAGES = (
    'stage=[{kind = "sft", steps = 1}, {kind = "rl", steps = 1}, {kind = "rl", steps = 1, data = {use = "./mine.py"}, '
    'algorithm = {preset = "opd", group_size = 2}}]'
)
MINE = """
from PIL import Image
from mmrl import Prompt

def load(size: int = 8):
    shown = [Image.new("RGB", (64, 64), (20 * i, 0, 0)) for i in range(size)]
    return [Prompt(str(i), "Where?", (picture,), columns={"teacher": 'ab'[i % 2]}) for i, picture in enumerate(shown)]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A chain whose last stage follows two teachers, each for its prompts."""
    folder = tmp_path_factory.mktemp("taught")
    other = vlms.build("qwen3_vl", folder / "other", seed=1)
    teachers = [f"{{name = 'a', model = '{other}', dtype = 'float32'}}", "{name = 'b', model = 'tiny:qwen3_vl', weights = 'nf4'}"]
    (folder / "mine.py").write_text(MINE)
    words = [f"policy.teachers=[{', '.join(teachers)}]", STAGES, "evaluate_every=0", "evaluation.num_prompts=0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made, _ = run_job(configs.load("tiny/cold_start", [*words, f"output={str(folder / 'run')!r}"]))
    return made


@pytest.mark.parametrize("fault", ["crop", "teacher"])
def test_all_prompts_are_looked_at_before_weights_load(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    column = {"crop": "('/gone.png' if i else picture)", "teacher": "'ab'[i % 2]"}[fault]
    (tmp_path / "mine.py").write_text(MINE.replace("'ab'[i % 2]", column).replace('"teacher"', repr(fault)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(building, "LOOK", 1)
    monkeypatch.setattr(building, "policy_of_run", lambda *_: pytest.fail("a model was loaded"))
    teachers = "policy.teachers=[{name = 'a', model = 'tiny:qwen3_vl'}, {name = 'c', model = 'tiny:qwen3_vl'}]"
    words = {"crop": ["algorithm.preset=vision_opd"], "teacher": ["algorithm.preset=opd", teachers]}[fault]
    with pytest.raises(ValueError, match=r"prompt '1' (has '/gone\.png' in the column 'crop'|names the teacher 'b')"):
        building.build(configs.load("tiny/image", [*words, "data={use = './mine.py'}", "evaluation.num_prompts=0"]))


def test_each_teacher_has_a_curve(run: RunDir):
    last = read_lines(run.metrics_file).lines[-1]
    assert 0 < last["teacher/agreement/a"] < 1 and 0 < last["teacher/agreement/b"] < 1 and last["run/stage"] == 3
    page = write_report(run.path).read_text()
    assert all(f"Agreement with {who}" in page for who in ("the teacher", "a", "b"))


def test_teachers_are_in_no_checkpoint_and_no_export_and_answer_nothing(run: RunDir, tmp_path: Path):
    export(run.path, tmp_path / "out")
    assert not any("teacher" in file.name for file in (tmp_path / "out").rglob("*"))
    policy = revive(configs.load(str(run.path / "config.toml")).config, None, None, frozenset())
    assert isinstance(policy, TextPolicy) and not policy.teachers.others and not policy.config.teachers


def test_their_weights_and_reads_are_planned(run: RunDir, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(run.path.parent)
    plan = draw_up(stages_of(configs.load(str(run.path / "config.toml")))[2].resolved)
    stays = plan.memory.stays
    assert stays["weights in float32"] < stays["models of teachers"] < 2 * stays["weights in float32"]
    assert plan.readings == ["states of teacher, at every update"] and plan.usual.counts["read"].passes == 2


def test_every_kind_of_teacher_stands_in_a_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A reference is what the stage before ended with, and so is an average at first."""
    model = vlms.build("qwen3_vl", tmp_path / "model", seed=0)
    other = vlms.build("qwen3_vl", tmp_path / "other", seed=1)
    taught = TextPolicy(TextPolicyConfig(str(model), lora=LoraSettings(rank=2)))
    with torch.no_grad():
        for weight in taught.parameters():
            weight.fill_(0.05)
    taught.save(tmp_path / "taught")
    (tmp_path / "mine.py").write_text(MINE.replace("'ab'[i % 2]", "'abc'[i % 3]").replace("size: int = 8", "size: int = 3"))
    monkeypatch.chdir(tmp_path)
    sampled = "{kind = 'FollowTeacher', form = 'sampled', beta = 1.0, model = '%s'}"
    terms = ", ".join(sampled % one for one in ("teacher", "ref", "ema"))
    terms += ", {kind = 'FollowTeacher', model = 'policy', view = {column = 'teacher'}}"
    opd = f"{{preset = 'opd', group_size = 2, ema_decay = {{kind = 'SteadyDecay', decay = 0.7}}, objective = [{terms}]}}"
    own = f"steps = 2, prompts_per_step = 3, data = {{use = './mine.py'}}, algorithm = {opd}"
    stages = f"stage=[{{kind = 'rl', steps = 2}}, {{kind = 'rl', {own}}}]"
    with engines(str(other)) as (far,):
        teachers = ", ".join(
            [
                f"{{name = 'a', model = '{other}', dtype = 'float32'}}",
                f"{{name = 'b', adapter = '{tmp_path / 'taught'}'}}",
                f"{{name = 'c', model = '{other}', url = ['{far.url}'], timeout_s = 60.0}}",
            ]
        )
        words = [f"policy.model={model}", f"policy.teachers=[{teachers}]", stages, "policy.lora.rank=2"]
        words += ["evaluation.num_prompts=0", "evaluate_every=0", "optimizer.lr=0.05", "output='run'"]
        made, _ = run_job(configs.load("tiny/cold_start", words))
    first, last = read_lines(made.metrics_file).lines[2:]
    assert first["run/stage"] == 2 and first["teacher/kl/ref"] == first["teacher/kl/ema"] == 0
    kinds = ("teacher/a", "teacher/b", "teacher/c", "ref", "ema", "policy")
    assert all(last[f"teacher/kl/{kind}"] > 1e-3 for kind in kinds)
