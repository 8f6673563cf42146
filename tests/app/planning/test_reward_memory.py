"""Models inside rewards count in plans: by their configs, by published sizes, once each; what nobody knows is named."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.app.commands.plan import not_counted
from mmrl.app.config import run as configs
from mmrl.app.config.plug_ins import read_plug_ins, worlds_of
from mmrl.app.fit.plan import draw_up
from mmrl.app.planning.memory import reward_memory, sandbox_memory
from mmrl.runtime.sandbox import lock
from mmrl.runtime.sandbox.sandbox import MOST, OWN_BYTES
from mmrl.serving.scorers.models import hold, load_pretrained, release
from mmrl.serving.scorers.sizes import PUBLISHED, checkpoint_size, encoder_size, hub_size
from tests.support.flow_runs import Make

PICK, CLIP = PUBLISHED["yuvalkirstain/PickScore_v1"], PUBLISHED["openai/clip-vit-large-patch14"]
TOWERS = {
    "openai/clip-vit-large-patch14": ((1024, 4096, 24, 16, 14), (768, 3072, 12, 12), 768),
    "yuvalkirstain/PickScore_v1": ((1280, 5120, 32, 16, 14), (1024, 4096, 24, 16), 1024),
}
"""Width, inner width, layers, heads and patch of the vision tower; those of the text tower; width of the space they share."""


def clip_config(vision: tuple[int, ...], text: tuple[int, ...], width: int) -> Any:
    from transformers import CLIPConfig

    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "patch_size")
    towers = [dict(zip(names, sizes, strict=False)) | {"projection_dim": width} for sizes in (vision, text)]
    return CLIPConfig(vision_config=towers[0], text_config=towers[1], projection_dim=width)


@pytest.mark.parametrize("name", TOWERS)
def test_published_sizes_are_those_of_the_published_architecture(name: str, tmp_path: Path):
    clip_config(*TOWERS[name]).save_pretrained(tmp_path)
    assert hub_size(str(tmp_path)).weights == PUBLISHED[name] == encoder_size(name).weights


def test_a_model_is_counted_as_it_is_then_held(tmp_path: Path):
    from transformers import AutoModel, CLIPModel

    CLIPModel(clip_config((16, 32, 2, 2, 8), (16, 32, 2, 2), 8)).save_pretrained(tmp_path)
    told = encoder_size(str(tmp_path), "cpu")
    held = hold(("test", str(tmp_path)), lambda: load_pretrained(AutoModel.from_pretrained, str(tmp_path), "model"), "cpu")
    assert told.weights == sum(weight.numel() for weight in held.model.parameters())
    assert checkpoint_size(str(tmp_path), "model.safetensors").weights == sum(x.numel() for x in held.model.state_dict().values())
    release()


def test_a_torch_file_is_counted_without_its_numbers(tmp_path: Path):
    torch.save({"state_dict": {"a": torch.zeros(3, 4), "b": torch.zeros(5), "step": 3}}, tmp_path / "x.pt")
    assert checkpoint_size(str(tmp_path), "x.pt").weights == checkpoint_size(str(tmp_path / "x.pt"), "y.pt").weights == 17
    told = checkpoint_size("someone/unpublished", "x.pt")
    assert told.weights is None and told.why == "its file x.pt is not here yet"


REWARDS = (
    "[{use='pick_score'}, {use='clip_score', weight=0.0, device='cpu'}, {use='pick_score', name='again', scale=26.0}, "
    "{use='./own.py'}, {use='http://127.0.0.1:9/x'}, {use='jpeg_size'}]"
)


def test_equal_models_count_once_and_each_where_it_is_held(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def own(group):\n    return [0.0 for _ in group.samples]\n")
    resolved = make(f"reward={REWARDS}")
    card, machine = reward_memory(resolved, on_card=True), reward_memory(resolved, on_card=False)
    pick, clip = "reward pick_score: yuvalkirstain/PickScore_v1", "reward clip_score: openai/clip-vit-large-patch14"
    assert card.stays == {pick: 2 * PICK} and card.host == {clip: 4 * CLIP}
    assert machine.stays == {pick: 4 * PICK, clip: 4 * CLIP} and not machine.host
    assert card.unknown == ("what ./own.py may load, which does not say so (a method `models`)",)


def test_rewards_inside_rewards_and_of_the_evaluation_count(make: Make):
    inside = "reward=[{use='pairwise_win_rate', scorer={use='pick_score'}}]"
    found = reward_memory(make(inside, "evaluation.reward=[{use='clip_score', device='cuda:1'}]"), on_card=True)
    assert found.stays == {"reward pairwise_win_rate: yuvalkirstain/PickScore_v1": 2 * PICK}
    assert found.unknown == ("openai/clip-vit-large-patch14 of reward clip_score, on cuda:1",)


def test_a_plan_adds_them_and_says_what_is_missing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def own(group):\n    return [0.0 for _ in group.samples]\n")
    without, with_them = (
        draw_up(make(words), on_card=True) for words in ("seed=0", "reward=[{use='pick_score'}, {use='./own.py'}]")
    )
    assert with_them.memory.peak - without.memory.peak == 2 * PICK
    assert not_counted(without) == ["activations of text encoders"]
    assert not_counted(with_them)[0].startswith("what ./own.py may load")


def test_shipped_rewards_that_hold_models_say_so():
    from mmrl.app.plugins.resolve import listing, load

    holding = {one.name for one in listing("rewards") if "hold(" in (text := one.file.read_text()) or "encoder_of(" in text}
    holding |= {one.name for one in listing("rewards") if "    device: str = " in one.file.read_text()}
    assert len(holding) >= 9
    assert [name for name in sorted(holding) if not hasattr(load(name, "rewards"), "models")] == []


def test_sandboxes_of_episodes_are_counted_and_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock, "missing", lambda: "")
    tools = ["environment.use=tools", 'environment.tools=["python"]', "environment.memory=100", "algorithm.group_size=4"]
    resolved = configs.load("tiny/image", [*tools, "prompts_per_step=8", "evaluation.num_samples=1"])
    (name,), (size,) = zip(*sandbox_memory(resolved, 2).items(), strict=True)
    assert name == "sandboxes of 32 episodes, at most" and size == 32 * ((100 << 20) + OWN_BYTES)
    assert sandbox_memory(configs.load("tiny/image", ["environment.use=zoom"]), 1) == {}
    assert sandbox_memory(configs.load("tiny/image"), 1) == {}
    many = configs.load("tiny/image", [*tools, f"prompts_per_step={MOST}"])
    with pytest.raises(ValueError, match=r"a sandbox for each of 1024 episodes at a time, and a process may run 256: lower"):
        worlds_of(many.config, read_plug_ins(many), (), "norm1000")
