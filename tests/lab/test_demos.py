"""The demos: what one says while it runs, and the models that are taught for them, their lessons, chats, pictures and frames."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmrl.algorithms.planners.taught import Taught, dialogue_at
from mmrl.app.commands import train
from mmrl.app.config import run as configs
from mmrl.app.plugins.resolve import load
from mmrl.core.samples import MediaSize, Prompt, Sample, Turn
from mmrl.core.types import Group, Video
from mmrl.data.drawn.moving import draw, plan_clip, style_of
from mmrl.data.drawn.scenes import draw_scene, question
from mmrl.data.drawn.small_digits import SIDE
from mmrl.data.files.mp4 import write_mp4
from mmrl.lab import demos, models
from mmrl.lab.tiny.taught import BOXES, FPS, LOOKS, SERIES, SPANS, STYLE
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig
from mmrl.policies.text.write.episodes import observe
from mmrl.policies.video.sampling import VideoSettings


def test_parts_are_counted_apart_and_a_short_demo_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def teach(kind: str, name: str, seed: int, note: Any, short: bool) -> Path:
        for steps in (2, 3):
            for step in range(1, steps + 1):
                note(step, steps, 0.5)
        return tmp_path

    monkeypatch.setattr(models, "teach_once", teach)
    monkeypatch.setattr(train, "run_training", lambda resolved: SimpleNamespace(path=tmp_path))
    demos.run("grounding", tmp_path / "run", short=True)
    said = " ".join("".join(capsys.readouterr()).split())
    assert "part 1, step 2/2 loss 0.50" in said and "part 2, step 3/3 loss 0.50" in said
    assert "each part ran for a few steps, which teach nothing" in said
    demos.run("grounding", tmp_path / "run")
    assert "teach nothing" not in "".join(capsys.readouterr())


def lessons(written: str, size: int = 40, seed: int = 3) -> list[Prompt]:
    return [*load("small_digits", "datasets")(size=size, seed=seed, written=written)]


def asked_again(prompt: Prompt) -> list[dict[str, Any]]:
    """The completion of people who looked."""
    found = prompt.columns["completion"]
    return found if isinstance(found, list) else []


@pytest.fixture(scope="module")
def looker(tmp_path_factory: pytest.TempPathFactory) -> TextPolicy:
    folder = LOOKS.build(tmp_path_factory.mktemp("tiny") / "model", 1)
    return TextPolicy(TextPolicyConfig(model=str(folder)))


def test_what_is_taught_is_what_the_environment_shows_token_by_token(looker: TextPolicy):
    prompt = next(one for one in lessons("hurried") if asked_again(one))
    call, answer = dialogue_at(prompt, "")
    observation = load("zoom", "environments")().open(prompt, 0).step(Turn(call.text, (0, 1)))
    assert observation is not None and observation.facts["tool"] == 1.0
    assert call.observation is not None and call.observation.text == observation.text
    assert call.observation.media[0].tobytes() == observation.media[0].tobytes()
    written = looker.tokenizer(call.text + looker.tokenizer.eos_token).input_ids
    shown = observe(looker.encode, observation, looker.tokenizer.eos_token).token_ids.tolist()
    said = looker.tokenizer(answer.text + looker.tokenizer.eos_token).input_ids
    rows = looker.rollout(Taught().first([prompt], 1, 0, 0))
    assert rows.groups[0].samples[0].token_ids == tuple(written + shown + said)
    mask = [1] * len(written) + [0] * len(shown) + [1] * len(said)
    assert rows.action_mask[0, : len(mask)].tolist() == mask and rows.action_mask.sum() == sum(mask)
    assert len(written) <= 26, "a call is longer than a turn of the demo"


def test_tags_are_tokens_of_their_own_which_decoding_keeps(looker: TextPolicy):
    ids = looker.tokenizer("<tool_call>[1]</tool_call>").input_ids
    assert [looker.tokenizer.decode(one) for one in (ids[:1], ids[-1:])] == ["<tool_call>", "</tool_call>"]
    assert looker.tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>[1]</tool_call>"


def test_the_two_skills_are_to_read_a_part_and_to_cut_it():
    for read, point in zip(lessons("read", 8), lessons("point", 8), strict=True):
        call = point.columns["completion"]
        shown = load("zoom", "environments")().open(point, 0).step(Turn(call, (0, 1)))
        assert shown.media[0].tobytes() == read.media[0].tobytes() and read.columns["completion"] == str(read.answer)
        sample = Sample(call, media_sizes=(MediaSize(*[SIDE] * 4),))
        [iou] = load("iou", "rewards")(space="norm1000")(Group(0, point, (sample,)))
        assert iou.value == pytest.approx(1)


def test_the_hurried_are_as_sloppy_as_they_say():
    shown = lessons("hurried", 300)
    looked = [one for one in shown if asked_again(one)]
    at_once = [one.columns["completion"] for one in shown if not asked_again(one)]
    assert 0.25 < len(looked) / len(shown) < 0.41 and 0.7 < at_once.count("1") / len(at_once) < 0.85
    right = [one.columns["completion"][-1]["content"] == str(one.answer) for one in looked]
    assert 0.45 < sum(right) / len(right) < 0.8
    assert shown[7].columns["completion"] == lessons("hurried", 300)[7].columns["completion"]


def test_what_is_taught_is_not_what_is_scored_or_trained_on():
    resolved = configs.load(LOOKS.config, LOOKS.words(5, short=False))
    seeds = {table["seed"] for table in [*resolved.table.values["data"], *resolved.table.values["stage"][1]["data"]]}
    assert seeds == {SERIES + 5} and configs.load("tiny/look_twice").config.data.args.get("seed", 0) != SERIES + 5
    assert Path("configs", f"{LOOKS.config}.toml").is_file()


@pytest.fixture(scope="module")
def untaught(tmp_path_factory) -> tuple[Any, Any]:
    """The model that is shown pictures and its processor, as they come back from the disk."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = BOXES.build(tmp_path_factory.mktemp("tiny") / "untaught", 1)
    return AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)


@pytest.fixture(scope="module")
def watcher(tmp_path_factory) -> TextPolicy:
    folder = SPANS.build(tmp_path_factory.mktemp("tiny") / "untaught", 1)
    return TextPolicy(TextPolicyConfig(model=str(folder), video=VideoSettings(fps=FPS, workers=0, cache_mb=0)))


def test_real_classes_below_a_million_weights(untaught, watcher):
    for model, processor in (untaught, (watcher.net.model, watcher.processor)):
        assert type(model).__name__ == "Qwen3VLForConditionalGeneration" and type(processor).__name__ == "Qwen3VLProcessor"
        assert type(processor.tokenizer).__name__ == "Qwen2Tokenizer"
        assert sum(weight.numel() for weight in model.parameters()) < 1_000_000


def test_chat_is_written_as_qwen3_vl_writes_it(untaught):
    _, processor = untaught
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where is the 7?"}]}]
    text = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Where is the 7?<|im_end|>\n<|im_start|>assistant\n"
    assert processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == text
    plain = processor.apply_chat_template([{"role": "system", "content": "Be brief."}], tokenize=False)
    assert plain == "<|im_start|>system\nBe brief.<|im_end|>\n"


def test_questions_have_equal_lengths_and_digits_are_single_tokens(untaught):
    tokenizer = untaught[1].tokenizer
    assert len({len(tokenizer(question(digit)).input_ids) for digit in range(10)}) == 1
    assert len(tokenizer("1000").input_ids) == 4
    for text in ('[{"bbox_2d": [125, 125, 625, 625]}]', "any other text: é, 漢"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    specials = [tokenizer(mark).input_ids for mark in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|image_pad|>")]
    assert all(len(ids) == 1 for ids in specials)


def test_a_picture_moves_the_answer(untaught):
    model, processor = untaught
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question(7)}]}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    fed = [processor(text=[text], images=[[draw_scene(0, i).image]], return_tensors="pt") for i in (0, 1)]
    with torch.no_grad():
        first, second = (model(**one).logits for one in fed)
    assert (first - second).abs().max() > 0.01


def test_a_clip_is_four_tokens_and_a_time_stamp_per_second(watcher, tmp_path):
    clip = plan_clip(0, 0, "held_out", STYLE, ("when",))
    file = write_mp4(tmp_path / "clip.mp4", draw(clip), STYLE.fps)
    prompt = watcher.encode(Prompt("p", clip.text, (Video(str(file)),)))
    text = watcher.tokenizer.decode(prompt.token_ids)
    # pairs of frames at 0.0 and 0.5, 1.0 and 1.5, ... seconds
    stamps = "".join(f"<{k}.2 seconds><|vision_start|>{'<|video_pad|>' * 4}<|vision_end|>" for k in range(6))
    assert f"{stamps}" in text and text.count("<|video_pad|>") == 24
    assert "When is the 7 visible?<|im_end|>" in text
    assert prompt.media["video_grid_thw"].tolist() == [[6, 4, 4]]


def test_borders_of_spans_lie_off_the_model_s_seconds():
    assert STYLE.time_grid == 1.0
    for clip in (plan_clip(3, i, "train", STYLE, ("when",)) for i in range(50)):
        for border in (clip.answer.start, clip.answer.end):
            assert 0.2 - 1e-6 <= border % 1 <= 0.8 + 1e-6


def test_pixels_have_about_mean_0_and_spread_1(watcher, tmp_path):
    clips = [plan_clip(0, i, "train", STYLE, ("when", "which")) for i in range(24)]
    files = [write_mp4(tmp_path / f"{i}.mp4", draw(clip), STYLE.fps) for i, clip in enumerate(clips)]
    encoded = [watcher.encode(Prompt(str(file), clip.text, (Video(str(file)),))) for clip, file in zip(clips, files, strict=True)]
    pixels = torch.cat([one.media["pixel_values_videos"] for one in encoded])
    assert abs(float(pixels.mean())) < 0.3 and 0.7 < float(pixels.std()) < 1.3


@pytest.mark.parametrize("config", ["tiny/video", "tiny/hurried_spans"])
def test_the_demo_s_clips_are_those_that_the_model_is_made_for(config: str):
    values = configs.load(config).table.values
    for data in (values["data"], values["evaluation"]["data"]):
        assert style_of(data["clip"]) == STYLE
    assert values["policy"]["video"]["fps"] == FPS
