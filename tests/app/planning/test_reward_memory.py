"""Models inside rewards count in plans: by their configs, by published sizes, once each; what nobody knows is named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.app.commands import plan
from mmrl.app.commands.options import PlanArguments
from mmrl.app.config.plug_ins import read_plug_ins, worlds_of
from mmrl.app.config.run import Resolved, load
from mmrl.app.config.tasks import one_line
from mmrl.app.planning.choices import ModelFacts, in_4_bits
from mmrl.app.planning.fit import less_server
from mmrl.app.planning.memory import (
    CARD_SIZES,
    CONTEXT,
    GIB,
    LIBRARIES,
    SERVER,
    SERVER_WRITES,
    WRITTEN,
    Memory,
    add_server,
    gigabytes_of,
    overlap,
    plain_name,
    resident_now,
    reward_memory,
    room,
    sandbox_memory,
    size_text,
    target_device,
    without_server,
)
from mmrl.app.planning.plan import Plan, draw_up
from mmrl.app.plugins.resolve import listing
from mmrl.app.plugins.resolve import load as load_plug_in
from mmrl.app.run.build import build
from mmrl.policies.shared.dry_run import size_of
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


@pytest.fixture
def own(empty_desk: None) -> None:
    """A reward of one's own."""
    Path("own.py").write_text("def own(group):\n    return [0.0 for _ in group.samples]\n")


@pytest.mark.usefixtures("own")
def test_equal_models_count_once_and_each_where_it_is_held(make: Make):
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


@pytest.mark.usefixtures("own")
def test_a_plan_adds_them_and_says_what_is_missing(make: Make):
    words = ("seed=0", "reward=[{use='pick_score'}, {use='./own.py'}]")
    without, with_them = (draw_up(make(word), on_card=True) for word in words)
    assert with_them.memory.peak - without.memory.peak == 2 * PICK
    assert plan.not_counted(without) == ["activations of text encoders"]
    assert plan.not_counted(with_them)[0].startswith("what ./own.py may load")


def test_shipped_rewards_that_hold_models_say_so():
    texts = {one.name: one.file.read_text() for one in listing("rewards")}
    signs = ("hold(", "encoder_of(", "    device: str = ")
    holding = [name for name, text in texts.items() if any(sign in text for sign in signs)]
    assert len(holding) >= 9
    assert [name for name in holding if not hasattr(load_plug_in(name, "rewards"), "models")] == []


def test_sandboxes_of_episodes_are_counted_and_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock, "missing", lambda: "")
    tools = ["environment.use=tools", 'environment.tools=["python"]', "environment.memory=100", "algorithm.group_size=4"]
    resolved = load("tiny/image", [*tools, "prompts_per_step=8", "evaluation.num_samples=1"])
    (name,), (size,) = zip(*sandbox_memory(resolved, 2).items(), strict=True)
    assert name == "sandboxes of 32 episodes, at most" and size == 32 * ((100 << 20) + OWN_BYTES)
    assert sandbox_memory(load("tiny/image", ["environment.use=zoom"]), 1) == sandbox_memory(load("tiny/image"), 1) == {}
    many = load("tiny/image", [*tools, f"prompts_per_step={MOST}"])
    with pytest.raises(ValueError, match=r"a sandbox for each of 1024 episodes at a time, and a process may run 256: lower"):
        worlds_of(many.config, read_plug_ins(many), (), "norm1000")


ALONE = Memory({"weights in 4 bits": 2 * GIB}, {"update": 3 * GIB}, parameters=2 * GIB)
"""A model that takes 4 GiB in bfloat16."""


def run(*words: str) -> Resolved:
    return one_line("grounding", "tiny:qwen3_vl", "digits_grounding", ["iou"], ["policy.dtype=bfloat16", *words])


def beside(card: int, *words: str) -> Memory:
    return add_server(ALONE, run(*words).config, card * GIB)


def test_a_server_takes_its_share_or_the_whole_model_and_its_cache():
    assert beside(16, "policy.engine={memory_share = 0.5}").stays[SERVER] == 8 * GIB
    assert beside(16, "policy.engine={cache_mb = 1024}").stays[SERVER] == 5 * GIB + CONTEXT
    assert beside(16, "policy.engine={cache_mb = 1024, dtype = 'float32'}").stays[SERVER] == 9 * GIB + CONTEXT
    asleep = beside(16, "policy.engine={memory_share = 0.5, sleep = true}")
    assert asleep.stays == ALONE.stays and asleep.phases[SERVER_WRITES] == 8 * GIB and asleep.peak == 10 * GIB
    assert without_server(asleep) == without_server(beside(16, "policy.engine={}")) == ALONE


ELSEWHERE = ("policy.engine={devices = '1'}", "policy.engine={url = ['http://127.0.0.1:9']}")


@pytest.mark.parametrize("words", [(), *((word,) for word in ELSEWHERE), ("policy.engine={}", "cluster={engines = 1}")])
def test_servers_on_other_cards_take_nothing(words: tuple[str, ...]):
    assert beside(16, *words) == ALONE


def test_a_share_that_does_not_hold_the_model_is_refused_with_both_numbers():
    said = r"is 0.25, which gives the server 4.00 GiB of the card, and tiny:qwen3_vl takes 4.00 GiB there in bfloat16, with 0.50"
    with pytest.raises(ValueError, match=rf"policy.engine.memory_share {said} GiB for CUDA: raise it, or give the server"):
        beside(16, "policy.engine={memory_share = 0.25}")


@pytest.mark.parametrize("engine", ["policy.engine={}", "policy.engine={devices = '1'}"])
def test_4_bits_are_chosen_beside_a_server_on_any_card(engine: str):
    found = in_4_bits(run("policy.lora.rank=4", engine), ModelFacts(10**9, parts=("language",)), target_device("8GB"), 9 * GIB)
    assert [choice.value for choices in found for choice in choices] == ["nf4"]


def test_what_a_server_would_give_back_is_among_the_remedies():
    """All of it on another card; with a small cache 16 GiB less 4 of weights, 1 of cache and what CUDA takes."""

    def remedies(*words: str) -> list[tuple[int, str]]:
        found = less_server(run(*words).config, beside(32, *words))
        return [(saves, words.partition(":")[0]) for saves, words in found]

    elsewhere, small = (
        'the server on another card (policy.engine.devices = "1"), or no engine',
        "a server with 1 GiB for keys and values",
    )
    assert remedies("policy.engine={memory_share = 0.5}") == [(16 * GIB, elsewhere), (11 * GIB - CONTEXT, small)]
    assert remedies("policy.engine={cache_mb = 512}") == [(4 * GIB + GIB // 2 + CONTEXT, elsewhere)]
    assert remedies() == []


TEXT = ["data.size=16", "algorithm.group_size=2", "prompts_per_step=2", "policy.sampling.max_new_tokens=4"]


def told(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[name].split()[0])


@pytest.mark.parametrize("words", [["policy.lora.rank=2"], ["checkpoint.asynchronous=false"]])
def test_a_plan_counts_what_lies_beside_a_card(words: list[str]):
    before = resident_now()
    memory = draw_up(load("tiny/image", [*TEXT, "steps=4", "save_every=2", *words])).memory
    assert 100 * 2**20 < memory.host[LIBRARIES] <= told("VmHWM")
    assert memory.host[LIBRARIES] >= before // 2
    shadows = sum("kept beside" in name for name in memory.stays)
    copied = memory.checkpoint(shadows) if "checkpoint.asynchronous=false" not in words else 0
    assert memory.host.get(WRITTEN, 0) == copied
    assert memory.resident == memory.peak + memory.host[LIBRARIES] + copied - memory.overlap
    assert 0 <= memory.overlap <= copied


def test_a_copy_counts_beside_sampling_where_steps_follow_it_and_else_instead_of_the_largest_phase():
    config = replace(load("tiny/image", [*TEXT, "steps=4"]).config, save_minutes=0.0)
    every = [overlap(50, 0, {"update": 30, "read": 20}, replace(config, save_every=steps)) for steps in (0, 1, 3, 4, 9)]
    assert every == [30, 10, 10, 30, 30]
    assert overlap(25, 0, {"update": 30}, config) == 25
    by_time = [overlap(25, 0, {"update": 30}, replace(config, save_minutes=10.0, steps=steps)) for steps in (1, 2)]
    assert by_time == [25, 25], "the clock may ask for a checkpoint after any step, and the last one is followed by none"
    sampling = {"rollout": 28, "update": 30, "optimizer step": 20}
    assert overlap(50, 0, sampling, replace(config, save_every=1)) == 2, "updates wait for it, and sampling does not"
    assert overlap(50, 7, sampling, replace(config, save_every=1)) == 9, "nor are there gradients while it samples"
    memory = Memory({"weights": 100}, {"update": 30, "read": 20}, host={WRITTEN: 50}, overlap=30)
    # weights and the copy, for the update's 30 are free again
    assert memory.resident == 100 + 50


def test_with_a_card_the_sum_is_that_of_the_card(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    made = draw_up(load("tiny/image", TEXT))
    monkeypatch.setattr(plan, "draw_up", lambda *_, **__: made)
    sums: list[str] = []
    for card in (None, "24GB"):
        assert plan.plan(PlanArguments(["tiny/image", *TEXT], card=card))
        [line] = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("at most")]
        sums.append(line.split("at most")[1].strip())
    assert sums == [size_text(made.memory.resident), size_text(made.memory.peak + CONTEXT)]


WORDS = ["cluster.samplers=2", "ahead=1", "policy.lora.rank=2"]


@pytest.fixture(scope="module")
def made() -> Plan:
    return draw_up(load("tiny/flow", WORDS), on_card=True)


def test_a_sampler_holds_the_weights_of_a_real_policy_and_no_more(made: Plan):
    policy: Any = build(load("tiny/flow", WORDS[-1:])).policy
    networks = [part for part in policy.pipeline.components.values() if isinstance(part, torch.nn.Module)]
    assert made.sampler is not None
    assert sum(made.sampler.stays.values()) == pytest.approx(sum(size_of(one.parameters()) for one in networks), rel=0.01)
    trained, trainer = size_of(policy.parameters()), made.memory
    # gradient, two of AdamW, and three copies of the steps in flight
    assert sum(trainer.stays.values()) - sum(made.sampler.stays.values()) == 6 * trained
    assert made.sampler.phases == {name: trainer.phases[name] for name in ("rollout", "decode")}
    assert made.sampler.peak < trainer.peak


def test_samplers_that_share_the_trainers_card_are_counted_there(made: Plan):
    drains = ["ahead_drain=true", "save_every=2"]
    shared = draw_up(load("tiny/flow", [*WORDS, "cluster.samplers_share=true", *drains]), on_card=True)
    assert made.sampler is not None and shared.sampler is not None
    assert shared.memory.peak - made.memory.peak == 2 * (made.sampler.peak + CONTEXT)
    assert shared.sampler.peak == made.sampler.peak
    weights = made.memory.stays["gradients"]
    assert made.memory.host[WRITTEN] - shared.memory.host[WRITTEN] == weights, "with no step in flight none is kept for one"


def test_a_plan_says_it(capsys: pytest.CaptureFixture[str]):
    def said(*words: str, card: str = "24GB", fits: bool = True, as_json: bool = False) -> str:
        assert plan.plan(PlanArguments(["tiny/flow", *words], card=card, as_json=as_json)) == fits
        return capsys.readouterr().out

    own = " ".join(said(*WORDS).split())
    assert own.count("gradients") == 1 and "memory of a sampler, on a card of its own" in own
    assert "2 sampler(s) that share it" in said(*WORDS, "cluster.samplers_share=true", card="1.2GB", fits=False)
    sampler = json.loads(said(*WORDS, as_json=True))["sampler"]
    assert 0 < sampler["peak"] < GIB and "gradients" not in sampler["stays"]
    assert "sampler" not in said()


@pytest.mark.parametrize(
    ("card", "gib"),
    [
        *(("RTX 4090", 24 * 0.98), ("nvidia geforce rtx 4090", 24 * 0.98), ("T4", 15), ("Tesla T4", 15), ("A100-40", 40 * 0.98)),
        *(("a100 80GB", 80 * 0.98), ("H100-80", 80 * 0.98), ("rtx4060ti-16gb", 16 * 0.98), ("H200", 141 * 0.98)),
    ],
)
def test_a_card_is_known_by_its_name(card: str, gib: float, caplog: pytest.LogCaptureFixture):
    assert gigabytes_of(card) == gib and room(card) == int(gib * GIB)
    assert ("T4 has no bfloat16 units" in caplog.text) == ("T4" in card)


@pytest.mark.parametrize(
    ("card", "told"),
    [
        ("A100", 'sold in 2 sizes: write "A100-40" or "A100-80"'),
        ("RTX 4091", r"not known here \(do you mean RTX 4090\?\): write its memory as in --card 24GB"),
        ("A100-60", "not known here.*A100-40"),
        ("", "write its memory as in --card 24GB"),
        ("a toaster", "write its memory as in --card 24GB"),
        ("0GB", "'0GB', which has no memory: write its memory as in --card 24GB"),
        ("0.0", "which has no memory"),
        ("1.2.3GB", "write its memory as in --card 24GB"),
    ],
)
def test_names_that_say_too_little_or_nothing_are_refused(card: str, told: str):
    with pytest.raises(ValueError, match=told):
        room(card)


def test_every_name_in_the_table_is_found():
    assert len({plain_name(name) for name in CARD_SIZES}) == len(CARD_SIZES)
    for name, sizes in CARD_SIZES.items():
        for size in sizes:
            assert 0.9 * size < gigabytes_of(name if len(sizes) == 1 else f"{name}-{size}") < size


@pytest.mark.usefixtures("empty_desk")
def test_copies_on_the_cpu_leave_the_card_and_are_told_of_the_host():
    words, kept = ["algorithm.preset=grpo", "data.size=8"], "weights kept beside: ref"
    near, far = (draw_up(load("tiny/image", [*words, f"policy.copies_on={at}"])).memory for at in ("device", "cpu"))
    size = near.stays[kept]
    assert size > 0 and kept not in far.stays and kept not in near.host
    assert far.host[kept] == size
    # the live weights are put aside there, too, while the reference is looked through
    assert near.phases["read"] - far.phases["read"] == size
    assert near.peak - far.peak >= size
