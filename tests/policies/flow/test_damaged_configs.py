"""Pipelines whose config files are damaged, a key at a time: refused in a sentence, or drawn as if nothing were."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.types import Prompt, Request
from mmrl.flow.schedules import Full
from mmrl.policies.flow.dry_run import load_meta
from mmrl.policies.flow.loading import load
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig

FILES = ("config.json", "model_index.json", "scheduler_config.json")
VALUES: tuple[Any, ...] = (None, "x", 0, -1, [], {}, 10**9, float("nan"), [1], True)
SIZES = {"wan": {"height": 32, "width": 32, "frames": 5}}
Load = Callable[[FlowPolicyConfig], object]


def damaged(folder: Path, file: str, key: str, value: object) -> None:
    config = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(config | {key: value}))


def copy_of(tiny: Callable[[str], str], family: str, folder: Path) -> Path:
    return Path(shutil.copytree(tiny(family), folder / family))


def settings(folder: Path) -> FlowPolicyConfig:
    sizes: dict[str, Any] = {"height": 16, "width": 16} | SIZES.get(folder.name, {})
    return FlowPolicyConfig(str(folder), **sizes)


@pytest.mark.parametrize(("key", "value"), [("num_hidden_layers", 10**9), ("hidden_size", "x"), ("num_attention_heads", 0)])
def test_a_damaged_text_encoder_is_named_before_it_is_built(tiny, tmp_path, key: str, value: object):
    folder = copy_of(tiny, "sd3", tmp_path)
    damaged(folder, "text_encoder/config.json", key, value)
    with pytest.raises(ValueError, match=r"policy\.model .*\(text_encoder\)"):
        load(settings(folder))


@pytest.mark.parametrize(("key", "value"), [("layer_norm_eps", None), ("eos_token_id", [])])
def test_a_text_encoder_that_cannot_read_is_named(tiny, tmp_path, key: str, value: object):
    folder = copy_of(tiny, "sd3", tmp_path)
    damaged(folder, "text_encoder/config.json", key, value)
    with pytest.raises(ValueError, match="its text encoders cannot read a prompt"):
        draw(settings(folder))


def test_an_endless_chat_template_of_a_pipeline_is_refused(tiny, tmp_path):
    folder = copy_of(tiny, "z_image", tmp_path)
    (file,) = folder.rglob("chat_template.jinja")
    file.write_text("{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}")
    with pytest.raises(ValueError, match=r"\(tokenizer\): its chat template takes more than 200,000 turns"):
        load(settings(folder))


def draw(config: FlowPolicyConfig) -> object:
    """Load a pipeline and draw a prompt with it."""
    return FlowPolicy(config).rollout([Request(Prompt("p", text="a fox"), 2, 0, seed=1)], Full(num_steps=2).at(0))


def damages(folder: Path) -> Iterator[tuple[Path, str, object]]:
    """Every key of every config file of a pipeline, with every value."""
    for file in sorted(file for name in FILES for file in folder.rglob(name)):
        for key in json.loads(file.read_text()):
            if key == "_class_name" or not key.startswith("_"):
                yield from ((file, key, value) for value in VALUES)


def walk(folder: Path, every: int, first: int, use: Load) -> list[str]:
    """The damages that end in anything but a drawn picture or a sentence, of each `every`-th."""
    bad: list[str] = []
    for file, key, value in list(damages(folder))[first::every]:
        whole = file.read_text()
        damaged(folder, str(file.relative_to(folder)), key, value)
        try:
            use(settings(folder))
        except (ValueError, FileNotFoundError):
            pass
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            bad.append(f"{file.relative_to(folder)} {key}={value!r}: {type(error).__name__}: {error}")
        file.write_text(whole)
    return bad


@pytest.mark.parametrize("family", ["sd3", "wan"])
def test_damages_of_every_part_end_in_a_sentence(tiny, tmp_path, family: str):
    """Each 37th, which meets every value in turn and every part."""
    assert walk(copy_of(tiny, family, tmp_path), 37, 3, load_meta) == []


@pytest.mark.evidence
@pytest.mark.parametrize("family", ["sd3", "flux", "qwen_image", "z_image", "wan", "sana", "sd15", "sdxl", "flux2"])
def test_damages_of_every_part_end_in_a_sentence_or_a_picture(tiny, tmp_path, family: str):
    bad = walk(copy_of(tiny, family, tmp_path), 7, 0, draw)
    assert not bad, "\n".join(bad)
