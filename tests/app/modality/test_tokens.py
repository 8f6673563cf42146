"""Models of tokens through the commands: taught by lines or by teachers, in runs without pictures, and in runs that draw them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import mmrl
from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.planners.taught import Taught
from mmrl.app.commands.check import CheckLines, look_at_demonstrations
from mmrl.app.commands.train import TrainArguments, run_job, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.config.stages import stages_of
from mmrl.app.config.tasks import one_line
from mmrl.app.export.export import export
from mmrl.app.modality.registry import modality_of
from mmrl.app.modality.taught import bind_taught, processor_of, sizes_seen
from mmrl.app.planning.plan import draw_up
from mmrl.app.plugins.lab import small_models
from mmrl.app.plugins.resolve import load
from mmrl.app.report.page import write_report
from mmrl.app.run import build as building
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir, read_lines
from mmrl.app.run.revive import revive
from mmrl.core.types import Group, Prompt, Request, Sample
from mmrl.lab.tiny.text import vlms
from mmrl.policies.codes.policy import CodePolicy
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.dry_run import LOGITS
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import Sampling, TextPolicyConfig
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.each import for_each
from tests.support.fake_engines import engines

BOX, WIDE = [100, 60, 500, 420], [8, 8, 632, 472]
LLAMA_FACTORY = [
    {
        "messages": [
            {"role": "user", "content": "<image>Where is the cat?"},
            {"role": "assistant", "content": f'```json\n[{{"bbox_2d": {box}, "label": "cat"}}]\n```'},
        ],
        "images": ["a.png"],
    }
    for box in (BOX, WIDE)
]
SWIFT = [
    {
        "messages": [{"role": "user", "content": "<image>Find <ref-object>"}, {"role": "assistant", "content": "<bbox>"}],
        "images": ["a.png"],
        "objects": {"ref": ["the cat"], "bbox": [box]},
    }
    for box in (BOX, WIDE)
]


@pytest.fixture
def here(empty_desk: None, tmp_path: Path) -> Path:
    Image.new("RGB", (640, 480), "white").save("a.png")
    for name, rows in (("lf.jsonl", LLAMA_FACTORY), ("swift.jsonl", SWIFT)):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def policy_of(model: str, **settings: Any) -> TextPolicyConfig:
    return TextPolicyConfig(str(small_models().tiny_model(f"tiny:{model}", "text")), **settings)


def taught(policy: TextPolicyConfig, prompts: Sequence[Prompt], rewards: Sequence[object] = (), **settings: Any) -> list[str]:
    """The completions that a stage teaches such a model; no weights are loaded."""
    algorithm = replace(KINDS["sft"], planner=Taught(**settings))
    bound = bind_taught(algorithm, policy, modality_of(policy).box_space(policy), prompts, rewards)
    return [str(request.written) for request in bound.planner.first(prompts, 1, 0, 0)]


def grounding(file: str, **settings: Any) -> list[Prompt]:
    return list(load("grounding_jsonl", "datasets")(path=file, **settings))


FAMILIES = [
    *((name, "auto") for name in ("qwen2_5_vl", "qwen3_vl", "qwen3_5", "internvl", "glm4v")),
    *(("gemma3", space) for space in ("pixel", "resized", "norm1000", "norm1", "norm1000_yx")),
]


@for_each("file", ("lf.jsonl", "swift.jsonl"))
def test_files_of_other_trainers_are_taught_as_every_family_writes_and_its_reward_reads(here: Path, file: str):
    prompts = grounding(file)
    for model, space in FAMILIES:
        policy = policy_of(model, box_space=space, answer_format="think_box")
        iou = load("iou", "rewards")(space=modality_of(policy).box_space(policy), template="think")
        for prompt, text in zip(prompts, taught(policy, prompts, written="truth"), strict=True):
            size = sizes_seen(lambda policy=policy: processor_of(policy))(prompt)
            assert size is not None
            [score] = iou(Group(0, prompt, (Sample(text, media_sizes=(size,)),)))
            assert score.value > 0.95, f"{model} {space}: {text} {score}"


def test_the_form_is_the_one_that_a_reward_demands_or_else_the_prompts_ask_for(here: Path):
    prompt = Prompt("p", "?", answer="B", columns={"completion": "<think>Left.</think>it is B"})
    plain, thinks = policy_of("qwen3_vl"), policy_of("qwen3_vl", answer_format="think")
    choice = load("choice", "rewards")
    direct, think = choice(template="direct"), choice(template="think")
    assert taught(plain, [prompt], written="truth") == ["B"]
    assert taught(thinks, [prompt], written="truth") == ["<think>Left.</think><answer>B</answer>"]
    assert taught(thinks, [prompt], [direct], written="truth") == ["<answer>B</answer>"]
    bare = replace(prompt, columns={})
    assert taught(plain, [bare], [think, choice()], written="truth") == ["<think>\n\n</think><answer>B</answer>"]
    with pytest.raises(ValueError, match="rewards demand the templates direct and think, which no text keeps both"):
        taught(plain, [prompt], [direct, think], written="truth")
    with pytest.raises(ValueError, match="prompt 'p' has no answer, and written is 'truth': take a data set that reads answers"):
        taught(plain, [replace(prompt, answer=None)], written="truth")
    point = load("point_in_box", "rewards")(points=True, iou_coef=0, size_coef=0)
    assert taught(plain, grounding("lf.jsonl"), [point], written="truth") == ["[469, 500]", "[500, 500]"]


def test_completions_in_another_space_are_converted_where_that_is_said_and_refused_where_it_is_not(here: Path):
    prompts, policy = grounding("lf.jsonl"), policy_of("qwen3_vl")
    assert taught(policy, prompts, written="pixel")[0] == '```json\n[{"bbox_2d": [156, 125, 781, 875], "label": "cat"}]\n```'
    for model, space in (("qwen3_vl", "norm1000"), ("qwen2_5_vl", "resized")):
        with pytest.raises(
            ValueError, match=f"boxes in the space 'pixel': so read they overlap .* {space!r}, .*set written = 'pix"
        ):
            taught(policy_of(model), prompts)
    chats = list(load("dialogues", "datasets")(path="lf.jsonl"))
    far = [replace(one, columns={"completion": one.columns["completion"].replace("500", "1500")}) for one in chats]
    with pytest.raises(ValueError, match="completions of 1 of 2 prompts hold boxes outside of this model's space, such as box"):
        taught(policy, far)
    with pytest.raises(ValueError, match=r"lf.jsonl:1: the row's answer is boxes: take the data set grounding_jsonl, or"):
        load("qa_jsonl", "datasets")(path="lf.jsonl")
    with pytest.raises(ValueError, match="prompt 'lf-1': space 'pixel' needs the picture's size"):
        taught(policy, [replace(prompts[0], media=(), columns={"completion": "[1, 2, 3, 4]"})], written="pixel")
    with pytest.raises(ValueError, match=r"written is 'pixel', and how this model writes boxes is unknown: set policy.box_space"):
        taught(policy_of("gemma3"), prompts, written="pixel")
    # what is in the model's own space, or sloppy in it, stays as it is
    thousandths = grounding("lf.jsonl", space="norm1000")
    assert taught(policy, thousandths) == [one.columns["completion"] for one in thousandths]
    sloppy = [replace(one, columns={"completion": "[100, 100, 300, 300]"}) for one in prompts]
    assert taught(policy, sloppy) == ["[100, 100, 300, 300]"] * 2


def test_check_compares_what_is_taught_with_the_truth_by_the_runs_own_reward(here: Path):
    """By a real rollout, of a model that counts the pixels of a picture as it sees it."""
    found: dict[str, tuple[str, str]] = {}
    for name, words in {
        "truth": ["algorithm.planner.written=truth"],
        "sloppy": ["algorithm.planner.column=near"],
        "elsewhere": ["algorithm.planner.column=far"],
    }.items():
        rows = [{**row, "near": "[20, 20, 60, 60]", "far": "no box"} for row in LLAMA_FACTORY]
        Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = [*words, "data.use=grounding_jsonl", "prompts_per_step=2"]
        resolved, lines = one_line("sft", "tiny:qwen2_5_vl", "rows.jsonl", ["iou"], words), CheckLines()
        look_at_demonstrations(build(resolved), resolved.config, lines)
        [(_, verdict, said)] = lines.rows
        found[name] = verdict, said
    assert {name: verdict for name, (verdict, _) in found.items()} == {"truth": "ok", "sloppy": "note", "elsewhere": "FAIL"}
    assert "iou gives them 0.000, and 0.9" in found["elsewhere"][1] and 'written = "truth" in the stage' in found["sloppy"][1]


NAME = "tiny/token_image"
TWO = ["steps=2", "save_every=1", "evaluate_every=1", "policy.lora.rank=2"]
pytestmark = pytest.mark.usefixtures("empty_desk")


def small(*words: str) -> Resolved:
    return configs.load(NAME, words)


def resumed_exactly(folder: Path, *words: str) -> RunDir:
    """A run of two steps, which one that was resumed after the first equals in every weight."""
    whole = run_training(small(*TWO, *words, f"output={folder / 'whole'}"))
    half = run_training(small(*TWO, *words, "steps=1", f"output={folder / 'half'}"))
    train(TrainArguments(["steps=2"], resume=half.path))
    found = [Checkpoints(run.checkpoints).load(2)["policy"]["weights"] for run in (whole, RunDir.open(half.path))]
    assert found[0] and all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    return whole


def test_a_run_shows_pictures_goes_on_exactly_and_is_exported(tmp_path: Path):
    whole = resumed_exactly(tmp_path)
    assert {Image.open(file).size for file in whole.path.rglob("*.png")} == {(8, 8)}
    assert "data:image/png" in (whole.path / "report.html").read_text()
    for merge in (False, True):
        export(whole.path, tmp_path / f"out-{merge}", merge=merge)
        card = (tmp_path / f"out-{merge}" / "README.md").read_text()
        assert "pipeline_tag: any-to-any" in card and 'generation_mode="image"' in card
        facts = json.loads((tmp_path / f"out-{merge}" / "prompt_template.json").read_text())
        assert (facts["guidance"], facts["side"], facts["generate"]["guidance_scale"]) == (3.0, 8, 3.0)
    again = build(small(f"policy.model={tmp_path / 'out-True'}")).policy
    assert torch.equal(codes(again), codes(build(small(f"policy.lora.adapter={tmp_path / 'out-False'}")).policy))


PLAN = 'policy.plan={max_new_tokens=5,ask="{prompt}?",draw="{prompt}: {plan}"}'


def test_a_run_that_plans_goes_on_exactly_and_shows_its_plans(tmp_path: Path):
    whole = resumed_exactly(tmp_path, PLAN)
    [line, *_] = map(json.loads, (whole.path / "samples" / "train-000002.jsonl").read_text().splitlines())
    assert line["completion"] and line["image"]["file"] and '<pre class="said">' in (whole.path / "report.html").read_text()
    export(whole.path, tmp_path / "out", merge=True)
    facts = json.loads((tmp_path / "out" / "prompt_template.json").read_text())
    assert (facts["template"], facts["suffix"], facts["plan"]["draw"]) == ("plan", "?", "{prompt}: {plan}")
    assert "A plan is written before a picture" in (tmp_path / "out" / "README.md").read_text()


def codes(policy: object) -> torch.Tensor:
    """Greedy codes of a prompt."""
    assert isinstance(policy, CodePolicy)
    [group] = policy.rollout([Request(Prompt("a", "a red fox"), 1, 0)], Sampling(temperature=0.0)).groups
    return torch.tensor(group.samples[0].token_ids)


def test_a_plan_counts_both_passes_and_the_decoder():
    one, two = (draw_up(small(f"policy.guidance={guidance}")).memory for guidance in (1.0, 3.0))
    assert two.phases["update"] > 1.5 * one.phases["update"]
    assert one.phases["decode"] == two.phases["decode"] > 0
    assert two.parts[LOGITS] == 2 * one.parts[LOGITS] > 0
    planned = draw_up(small("policy.guidance=3.0", PLAN)).memory
    assert planned.phases["update"] > two.phases["update"] and planned.phases["decode"] == two.phases["decode"]


@pytest.mark.parametrize("preset", ["dapo", "gspo", "cispo", "dr_grpo", "reinforce_pp", "rloo"])
def test_methods_for_text_take_a_step(preset: str):
    resolved = small()
    resolved.table.set(("algorithm",), {"preset": preset, "group_size": 4}, "test")
    for plan, least, most in ([], 16, 16), ([PLAN], 17, 21):
        metrics = build(configs.resolve(resolved.table, ["evaluation.num_prompts=0", *plan])).trainer.step()
        assert metrics["policy/grad_norm"] >= 0 and least <= metrics["rollout/length"] <= most


def test_pairs_of_pictures_teach_what_people_prefer(tmp_path: Path):
    lines: list[str] = []
    for i in range(4):
        for name, grey in (("chosen", 240), ("rejected", 10)):
            Image.effect_noise((8, 8), 9 + i).point([min(255, x // 8 + grey) for x in range(256)]).save(
                tmp_path / f"{name}{i}.png"
            )
        lines.append(json.dumps({"prompt": f"number {i}", "chosen": f"chosen{i}.png", "rejected": f"rejected{i}.png"}))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    resolved = small()
    for key in ("reward", "evaluation"):
        resolved.table.values.pop(key)
    resolved.table.set(("algorithm",), {"preset": "dpo"}, "test")
    resolved.table.set(("data",), {"use": "pictures", "path": str(tmp_path / "rows.jsonl")}, "test")
    trainer = build(configs.resolve(resolved.table, ["evaluate_every=0", "optimizer.lr=3e-3"])).trainer
    losses = [trainer.step()["loss"] for _ in range(4)]
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)
    assert losses[-1] < losses[0] - 0.05


QUESTIONS = '{{"prompt": "What is {0} + 2?", "answer": {1}}}\n'


def test_questions_train_a_language_model_which_transformers_loads(tmp_path: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = tmp_path / "sums.jsonl"
    file.write_text("".join(QUESTIONS.format(i, i + 2) for i in range(6)))
    seen: list[object] = []

    def early(group: mmrl.Group) -> list[float]:
        seen.append(group.prompt.answer)
        return [float(sum(letter < "a" for letter in sample.text or "")) for sample in group.samples]

    policy = {"model": "tiny:qwen3", "sampling": {"max_new_tokens": 8}, "lora": {"rank": 4}}
    algorithm = replace(mmrl.presets["dr_grpo"], group_size=8, minibatches=1)
    settings: dict[str, Any] = {"steps": 2, "prompts_per_step": 3, "optimizer": {"lr": 1e-2}}
    data = {"use": "prompts", "path": str(file)}
    run = mmrl.fit(policy, algorithm, rewards=[early], prompts=data, output=tmp_path / "run", **settings)
    assert run.is_finished and set(seen) <= {2, 3, 4, 5, 6, 7}
    moved = [weight for name, weight in run.policy.net.named_parameters() if "lora_B" in name]  # type: ignore[attr-defined] - a text policy's
    assert moved and all(bool(weight.any()) for weight in moved)
    for merge in (False, True):
        export(run.folder, tmp_path / f"out-{merge}", merge=merge)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out-True")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out-True")
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False)
    ids = tokenizer(chat, add_special_tokens=False, return_tensors="pt")
    with torch.no_grad():
        theirs = merged(**ids).logits
        ours = run.policy.net.model(**ids).logits  # type: ignore[attr-defined] - a text policy's
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-4)
    for merge in (False, True):
        card = (tmp_path / f"out-{merge}" / "README.md").read_text()
        assert "AutoModelForCausalLM" in card and "pipeline_tag: text-generation" in card


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


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("fault", ["crop", "teacher"])
def test_all_prompts_are_looked_at_before_weights_load(fault: str, monkeypatch: pytest.MonkeyPatch):
    column = {"crop": "('/gone.png' if i else picture)", "teacher": "'ab'[i % 2]"}[fault]
    Path("mine.py").write_text(MINE.replace("'ab'[i % 2]", column).replace('"teacher"', repr(fault)))
    monkeypatch.setattr(building, "LOOK", 1)
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


def test_every_kind_of_teacher_stands_in_a_chain(tmp_path: Path):
    """A reference is what the stage before ended with, and so is an average at first."""
    model = vlms.build("qwen3_vl", tmp_path / "model", seed=0)
    other = vlms.build("qwen3_vl", tmp_path / "other", seed=1)
    taught = TextPolicy(TextPolicyConfig(str(model), lora=LoraSettings(rank=2)))
    with torch.no_grad():
        for weight in taught.parameters():
            weight.fill_(0.05)
    taught.save(tmp_path / "taught")
    (tmp_path / "mine.py").write_text(MINE.replace("'ab'[i % 2]", "'abc'[i % 3]").replace("size: int = 8", "size: int = 3"))
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
