"""One-line runs fit model and card: by counted bytes, with a reason for each choice, or are refused with what would help."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.shapes import QUESTION, change, stable_diffusion, vlm
from mmrl.app.commands import train as training
from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.config.tasks import one_line
from mmrl.app.planning import memory as devices
from mmrl.app.planning.choices import CHOSEN, FEW_WEIGHTS, PlannedSetting, area_of, with_choices
from mmrl.app.planning.fit import Fit, fit_lines, fit_to
from mmrl.app.planning.memory import GIB, Device, Memory, advice, machine_memory, target_device
from mmrl.app.planning.plan import draw_up
from mmrl.core.samples import Audio, Prompt, Video


def card(size: float) -> Device:
    return target_device(f"{size}GB")


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with pictures of the size that most of COCO's have, and a large one at the end."""
    folder = tmp_path_factory.mktemp("boxes")
    row = {"question": QUESTION, "box": [10, 20, 200, 180]}
    for i in range(16):
        Image.new("RGB", (1400, 900) if i == 15 else (640, 480), (i, 0, 0)).save(folder / f"{i}.png")
    rows = [json.dumps({"image": f"{i}.png", **row}) for i in range(16)]
    (folder / "train.jsonl").write_text("\n".join(rows[4:]))
    (folder / "test.jsonl").write_text("\n".join(rows[:4]))
    return folder / "train.jsonl"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as wide as Qwen2.5-VL-3B and two layers deep: most of its weights are those of its vocabulary."""
    folder = vlm(tmp_path_factory.mktemp("wide") / "wide", "qwen25_3b")
    towers: dict[str, object] = {"vision_config__depth": 2, "vision_config__fullatt_block_indexes": [1]}
    change(folder / "config.json", text_config__num_hidden_layers=2, **towers)
    return folder


def fitted(model: Path | str, boxes: Path, device: Device, *words: str, task: str = "grounding") -> Fit:
    return fit_to(one_line(task, str(model), str(boxes), ["iou", "format=0.1"], words), device)


def test_a_tiny_model_trains_whole_in_float32(boxes: Path):
    fit = fitted("tiny:qwen3_vl", boxes, target_device(None), "policy.sampling.max_new_tokens=8", "prompts_per_step=2")
    policy: Any = fit.resolved.config.policy
    assert (policy.dtype, policy.lora, policy.gradient_checkpointing) == ("float32", None, False) and fit.weights <= FEW_WEIGHTS
    assert fit.resolved.config.algorithm.label == "grpo" and fit.plan.memory.parameters == fit.plan.memory.trained
    assert fit.resolved.origin(("policy", "dtype")) == CHOSEN
    assert "float32" in "\n".join(fit_lines(fit)) and "test.jsonl" in fit_lines(fit)[-2]


@pytest.fixture(scope="module")
def small(wide: Path, boxes: Path) -> Fit:
    """The wide model on a small card."""
    return fitted(wide, boxes, card(5))


@pytest.mark.slow
def test_a_real_model_gets_adapters_and_fits(small: Fit):
    fit, size = small, 5
    config, policy, memory = fit.resolved.config, fit.resolved.config.policy, fit.plan.memory
    assert policy.dtype == "bfloat16" and policy.lora is not None and policy.gradient_checkpointing
    assert not config.algorithm.algorithm.shadows and not any("beside" in name for name in memory.stays)
    assert policy.max_pixels == 1_003_520 and config.optimizer.lr == 1e-5 and config.algorithm.algorithm.old == "reread"  # type: ignore[union-attr]
    assert advice(memory, size * GIB, is_text=True) is None and fit.device.fits(memory)
    assert config.saves_by_time and config.evaluate_every == 10 and config.evaluation.data is not None


@pytest.mark.evidence
def test_sizes_grow_with_the_card(small: Fit, wide: Path, boxes: Path):
    large = fitted(wide, boxes, card(80))
    less: Any = small.resolved.config
    more: Any = large.resolved.config
    assert less.micro_batch < more.micro_batch and less.policy.rollout_rows <= more.policy.rollout_rows
    assert draw_up(large.resolved, on_card=True).memory.stays == large.plan.memory.stays


@pytest.mark.slow
def test_weights_rest_in_4_bits_only_on_a_card_that_is_too_small_for_more(small: Fit, wide: Path, boxes: Path):
    fit = fitted(wide, boxes, card(2.2))
    [choice] = [choice for choice in fit.choices if choice.key == "policy.weights"]
    assert choice.value == "nf4" and re.search(r"[\d.]+ GiB would be needed of [\d.]+ GiB with weights in bfloat16", choice.why)
    kept, plain = fit.plan.memory.stays, small.plan.memory.stays
    assert not any(choice.key == "policy.weights" for choice in small.choices) and fit.weights == small.weights
    saved = plain["weights in bfloat16"] - kept["weights in bfloat16"]
    assert kept["weights in 4 bits"] + kept["scales of weights in 4 bits"] == pytest.approx(saved * 0.516 / 2, rel=0.01)


@pytest.mark.slow
def test_every_choice_is_told_with_its_reason(small: Fit):
    lines = "\n".join(fit_lines(small))
    assert re.search(r"micro_batch +\d+ +positions in one forward and backward pass: [\d.]+ GiB beside what stays", lines)
    assert re.search(r"takes [\d.]+ GiB of it at most, as mmrl plan counts", lines) and "a card of 5.0 GiB (from --card)" in lines


@pytest.mark.evidence
def test_what_the_command_line_says_stays(wide: Path, boxes: Path):
    words = ["policy.lora.rank=4", "micro_batch=3000", "algorithm.preset=grpo", "save_every=7", "policy.max_pixels=200704"]
    fit = fitted(wide, boxes, card(24), *words)
    config: Any = fit.resolved.config
    assert (config.policy.lora.rank, config.micro_batch, config.save_every, config.policy.max_pixels) == (4, 3000, 7, 200704)
    assert config.algorithm.algorithm.shadows == {"ref"} and config.algorithm.label == "grpo"
    assert not {"policy.lora", "micro_batch", "algorithm.objective"} & {choice.key for choice in fit.choices}


def refused(fit: Callable[[], object]) -> tuple[str, list[tuple[float, str]]]:
    """The error, and the remedies that it names, as GiB and words."""
    with pytest.raises(ValueError) as caught:
        fit()
    found = re.findall(r"^  -([\d.]+) (GiB|MiB): (.*)$", str(caught.value), re.MULTILINE)
    return str(caught.value), [(float(size) / (1 if unit == "GiB" else 1024), words) for size, unit, words in found]


@pytest.mark.slow
@pytest.mark.usefixtures("what_stays")
def test_what_does_not_fit_is_refused_with_the_three_changes_that_help_most(wide: Path, boxes: Path, monkeypatch):
    monkeypatch.setattr(training, "run_job", lambda *args, **kwargs: pytest.fail("weights were loaded"))
    text, remedies = refused(lambda: train(TrainArguments([], "grounding", str(wide), str(boxes), ["iou"], card="1GB")))
    assert "does not fit: with the smallest sizes it needs" in text and "weights in bfloat16" in text
    assert 2 <= len(remedies) <= 3 and [size for size, _ in remedies] == sorted((size for size, _ in remedies), reverse=True)


@pytest.mark.slow
@pytest.mark.usefixtures("what_stays")
def test_a_card_too_small_for_4_bits_is_told_of_what_helps_there(wide: Path, boxes: Path):
    """Shards are no help beside 4 bits; 4 bits are, where a config says that the weights are to stay as they are."""
    said, remedies = refused(lambda: fitted(wide, boxes, card(1)))
    assert "weights in 4 bits" in said
    assert remedies and not any("share the weights" in words for _, words in remedies)
    _, others = refused(lambda: fitted(wide, boxes, card(1.5), "policy.weights=float"))
    assert any(words == "weights in 4 bits: policy.weights=nf4" for _, words in others)


@pytest.mark.evidence
def test_the_bytes_of_a_remedy_are_those_of_the_changed_plan(wide: Path, boxes: Path):
    _, remedies = refused(lambda: fitted(wide, boxes, card(1), "policy.lora=none"))
    said = next(size for size, words in remedies if words.startswith("adapters in bfloat16"))
    least = ["micro_batch=2048", "policy.rollout_rows=8", "policy.gradient_checkpointing=true", "policy.max_pixels=1003520"]
    words = [*least, "policy.dtype=bfloat16", "algorithm.old=reread", "algorithm.objective=[{kind='Clip', low=0.2, high=0.2}]"]
    resolved = one_line("grounding", str(wide), str(boxes), ["iou", "format=0.1"], words)
    adapters = with_choices(resolved, [PlannedSetting("policy.lora", {"rank": 8}, "")])
    whole, small = (draw_up(one, on_card=True).memory.peak for one in (resolved, adapters))
    assert said == pytest.approx((whole - small) / GIB, rel=0.02)


def test_a_run_is_not_begun_with_a_task_and_continued(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="--resume continues a run as it was begun: leave --task grounding out"):
        train(TrainArguments([], "grounding", "m", "digits_grounding", ["iou"], resume=tmp_path))


def test_the_device_is_the_card_or_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told = target_device("24GB")
    assert told.is_card and told.size == 24 * GIB and told.usable < 24 * GIB - GIB
    monkeypatch.setattr(devices, "room", lambda card: None)
    limit = tmp_path / "memory.max"
    limit.write_text(f"{3 * GIB}\n")
    monkeypatch.setattr(devices, "LIMITS", (limit, tmp_path / "gone"))
    assert machine_memory() == 3 * GIB
    share = target_device(None, processes=3)
    assert share.size == GIB and not share.is_card and "no card" in share.name
    resident = Memory({"weights": GIB // 2}, {"update": GIB // 4}, host={"libraries": GIB // 4})
    assert share.use_of(resident) == GIB and not share.fits(resident) and told.use_of(resident) == 3 * GIB // 4
    limit.write_text("max\n")
    assert machine_memory() > 3 * GIB


@pytest.mark.evidence
def test_a_generator_is_fitted_with_its_encoders_and_rewards(tmp_path: Path):
    """Stable Diffusion 3.5's shape with two blocks: T5 is the heaviest part, and rests in the host's memory where it must."""
    folder = stable_diffusion(tmp_path / "sd35")
    change(folder / "transformer" / "config.json", num_layers=2, dual_attention_layers=[0])
    (tmp_path / "prompts.txt").write_text("\n".join(f"a red fox, {i}" for i in range(16)))
    resolved = one_line("t2i", str(folder), str(tmp_path / "prompts.txt"), ["pick_score", "clip_score=0"], [])
    said, remedies = refused(lambda: fit_to(resolved, card(3)))
    assert "of a card of 3" in said and "rewards in a process of their own" in remedies[0][1]
    fit = fit_to(resolved, card(10))
    policy, stays = fit.resolved.config.policy, fit.plan.memory.stays
    assert policy.rest_text_encoders and policy.equal_forwards and policy.lora is not None  # type: ignore[union-attr]
    assert sum(size for name, size in stays.items() if name.startswith("reward ")) == 2 * (986_109_441 + 427_616_513)
    assert fit.resolved.config.algorithm.label == "flow_grpo_fast" and fit.device.fits(fit.plan.memory)
    lines = "\n".join(fit_lines(fit))
    assert "text encoders come to the card only for new prompts" in lines and "held out" in lines


@pytest.mark.evidence
def test_the_whole_of_a_published_generator_fits_the_cards_people_have(tmp_path: Path):
    """All 24 blocks of Stable Diffusion 3.5 medium, three encoders and PickScore's model."""
    (tmp_path / "prompts.txt").write_text("\n".join(f"a red fox, {i}" for i in range(16)))
    folder = stable_diffusion(tmp_path / "sd35")
    resolved = one_line("t2i", str(folder), str(tmp_path / "prompts.txt"), ["pick_score"], [])
    for size in (8, 24, 80):
        fit = fit_to(resolved, card(size))
        memory, policy = fit.plan.memory, fit.resolved.config.policy
        assert (policy.weights == "nf4") == (size == 8)  # type: ignore[union-attr]
        assert memory.parameters - memory.trained == pytest.approx(2.243e9, rel=0.02)
        assert advice(memory, size * GIB, is_text=False) is None
    said, remedies = refused(lambda: fit_to(resolved, card(4)))
    assert re.search(r"needs \d\.\d\d GiB of a card of 4\.0 GiB", said) and len(remedies) == 2


@pytest.mark.evidence
@pytest.mark.parametrize(("name", "size"), [("qwen25_3b", 24), ("qwen25_3b", 80), ("qwen25_7b", 80)])
def test_published_sizes_fit_the_cards_people_have(name: str, size: int, boxes: Path, tmp_path: Path):
    fit = fitted(vlm(tmp_path / name, name), boxes, card(size))
    assert advice(fit.plan.memory, size * GIB, is_text=True) is None


@pytest.mark.evidence
def test_seven_billion_weights_on_eight_gigabytes_are_refused(boxes: Path, tmp_path: Path):
    text, remedies = refused(lambda: fitted(vlm(tmp_path / "qwen25_7b", "qwen25_7b"), boxes, card(8)))
    assert "(8.29 billion weights) does not fit" in text and len(remedies) == 3
    assert any("a smaller model" in words for _, words in remedies) and any("cards that share" in words for _, words in remedies)


def test_pictures_alone_have_an_area():
    """A model that hears is fitted by its rows of sounds as well."""
    mixed = (Image.new("RGB", (8, 4)), Audio("a.wav"), "b.wav", Video("c.mp4"))
    assert area_of(Prompt("1", "?", mixed)) == 32 and area_of(Prompt("2", "?", mixed[1:])) == 0
