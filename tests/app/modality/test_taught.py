"""What a stage that teaches has a real model's family write, read by the run's own rewards; and boxes in another space."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.planners.taught import Taught
from mmrl.app.commands.check import CheckLines, look_at_demonstrations
from mmrl.app.config.tasks import one_line
from mmrl.app.modality.registry import modality_of
from mmrl.app.modality.taught import bind_taught, processor_of, sizes_seen
from mmrl.app.plugins.lab import small_models
from mmrl.app.plugins.resolve import load
from mmrl.app.run.build import build
from mmrl.core.types import Group, Prompt, Sample
from mmrl.policies.text.settings import TextPolicyConfig
from tests.support.each import for_each

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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
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
