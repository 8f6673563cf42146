"""Drawing by tokens through the commands: runs with pictures, resumed exactly, planned, exported, taught; what is refused."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.export.export import export
from mmrl.app.planning.plan import draw_up
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir
from mmrl.policies.text.dry_run import LOGITS
from mmrl.training.checkpoints.save import Checkpoints

NAME = "tiny/token_image"
TWO = ["steps=2", "save_every=1", "evaluate_every=1", "policy.lora.rank=2"]
pytestmark = pytest.mark.usefixtures("empty_desk")


def small(*words: str) -> Resolved:
    return configs.load(NAME, words)


def test_a_run_shows_pictures_goes_on_exactly_and_is_exported(tmp_path: Path):
    whole = run_training(small(*TWO, f"output={tmp_path / 'whole'}"))
    half = run_training(small(*TWO, "steps=1", f"output={tmp_path / 'half'}"))
    train(TrainArguments(["steps=2"], resume=half.path))
    found = [Checkpoints(run.checkpoints).load(2)["policy"]["weights"] for run in (whole, RunDir.open(half.path))]
    assert found[0] and all(torch.equal(found[0][name], found[1][name]) for name in found[0])
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
    whole = run_training(small(*TWO, PLAN, f"output={tmp_path / 'whole'}"))
    half = run_training(small(*TWO, PLAN, "steps=1", f"output={tmp_path / 'half'}"))
    train(TrainArguments(["steps=2"], resume=half.path))
    found = [Checkpoints(run.checkpoints).load(2)["policy"]["weights"] for run in (whole, RunDir.open(half.path))]
    assert found[0] and all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    [line, *_] = map(json.loads, (whole.path / "samples" / "train-000002.jsonl").read_text().splitlines())
    assert line["completion"] and line["image"]["file"] and '<pre class="said">' in (whole.path / "report.html").read_text()
    export(whole.path, tmp_path / "out", merge=True)
    facts = json.loads((tmp_path / "out" / "prompt_template.json").read_text())
    assert (facts["template"], facts["suffix"], facts["plan"]["draw"]) == ("plan", "?", "{prompt}: {plan}")
    assert "A plan is written before a picture" in (tmp_path / "out" / "README.md").read_text()


def codes(policy: object) -> torch.Tensor:
    """Greedy codes of a prompt."""
    from mmrl.core.types import Prompt, Request
    from mmrl.policies.codes.policy import CodePolicy
    from mmrl.policies.text.settings import Sampling

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


def test_an_outline_longer_than_the_model_is_refused():
    with pytest.raises(ValueError, match=r"policy.plan.max_new_tokens is 500, and the model has 496 positions"):
        build(small("policy.plan.max_new_tokens=500"))
