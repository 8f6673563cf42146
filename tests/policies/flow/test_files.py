"""Files of generators: one .safetensors file in its makers' layout, whose weights are the folder's, and damaged configs."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.core.types import Prompt, Request
from mmrl.flow.schedules import Full
from mmrl.policies.flow.dry_run import load_meta
from mmrl.policies.flow.loading import load
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.prompt.embedding_cache import open_cache
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.single_file import SURE, SingleFile, pipeline_of
from mmrl.policies.shared.lora import LoraSettings
from tests.support import original_layout
from tests.support.refused import refused

LORA: dict[str, Any] = {"dtype": "bfloat16", "lora": LoraSettings(rank=2)}
HUB_NAME = "stable-diffusion-v1-5/stable-diffusion-v1-5"


def settings(model: Path | str, base: Path | str | None = None, **more: Any) -> FlowPolicyConfig:
    given = {"height": 16, "width": 16, "base": None if base is None else str(base)} | more
    return FlowPolicyConfig(str(model), **given)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def sd15(root: Path) -> tuple[Any, Path, Path]:
    return original_layout.make("sd15", root)


def parts(pipeline: Any) -> dict[str, dict[str, Tensor]]:
    return {name: dict(part.named_parameters()) for name, part in pipeline.components.items() if isinstance(part, nn.Module)}


@pytest.mark.parametrize("family", original_layout.LAYOUTS)
def test_all_weights_and_their_types_are_those_of_the_folder(family: str, root: Path):
    _, base, file = original_layout.make(family, root)
    own, other = (parts(load(config).pipeline) for config in (settings(file, base, **LORA), settings(base, **LORA)))
    assert own.keys() == other.keys() and own["vae"]
    for name, weights in own.items():
        assert weights.keys() == other[name].keys()
        for key, weight in weights.items():
            assert weight.dtype == other[name][key].dtype, key
            assert "lora" in key or torch.equal(weight, other[name][key]), key


def test_what_is_in_the_file_is_not_asked_of_the_pipeline(sd15: tuple[Any, Path, Path], tmp_path: Path):
    """A base of configs alone is enough for a whole file, and for a plan."""
    pipeline, base, file = sd15
    configs = shutil.copytree(base, tmp_path / "configs", ignore=shutil.ignore_patterns("*.safetensors"))
    weights = parts(load(settings(file, configs)).pipeline)["unet"]
    assert all(torch.equal(weight, weights[name]) for name, weight in pipeline.unet.named_parameters())
    meta = load_meta(settings(file, configs))
    assert sum(x.numel() for x in meta.network.parameters()) == sum(x.numel() for x in weights.values())


def test_the_pipeline_that_diffusers_knows_is_taken_from_the_hubs_cache(
    sd15: tuple[Any, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, base, file = sd15
    known = save(tmp_path, {**load_file(file), SURE: torch.zeros(1)})
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    wanted = f"goes with the configs of {HUB_NAME}, which are not on this machine: get them with `hf download {HUB_NAME} "
    refused(wanted, pipeline_of, settings(known), error=FileNotFoundError)
    stored = tmp_path / "hub" / f"models--{HUB_NAME.replace('/', '--')}"
    shutil.copytree(base, stored / "snapshots" / "abc")
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("abc")
    assert pipeline_of(settings(known)).model == HUB_NAME
    assert parts(load(settings(known)).pipeline)["unet"]


def save(folder: Path, weights: Mapping[str, Tensor], name: str = "other.safetensors") -> Path:
    save_file({key: weight.contiguous() for key, weight in weights.items()}, folder / name)
    return folder / name


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"mystery": (1,)}, "is no checkpoint that diffusers recognises: set policy.base to the folder or hub name of the pipe"),
        (
            {"txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1.bias": (1,)},
            "is of the kind that diffusers calls 'hunyuan-video', which does not train here from one file: take one of Stable",
        ),
        ({"a.weight": (2, 2), "a.scale_weight": (1,)}, r"holds quantised weights \(a.scale_weight\), which do not train here"),
    ],
    ids=["unknown", "another family", "quantised"],
)
def test_a_file_that_cannot_train_says_why(weights: dict[str, tuple[int, ...]], words: str, tmp_path: Path):
    file = save(tmp_path, {name: torch.zeros(shape) for name, shape in weights.items()})
    refused(words, pipeline_of, settings(file))


def test_paths_that_lead_nowhere(sd15: tuple[Any, Path, Path], tmp_path: Path):
    _, base, file = sd15
    with pytest.raises(FileNotFoundError, match=r"there is no file '.*sd16.safetensors' \(near: .*sd15.safetensors.*\): check"):
        pipeline_of(settings(file.with_name("sd16.safetensors"), base))
    with pytest.raises(FileNotFoundError, match=r"policy.base: there is no folder '.*sd155' \(near: .*sd15"):
        pipeline_of(settings(file, base.with_name("sd155")))
    refused(r"policy.base: the folder .* has no model_index.json: give that of a pipeline", pipeline_of, settings(file, tmp_path))
    refused("HF_HUB_OFFLINE is set", load, settings(file, "nobody/nothing"), error=FileNotFoundError)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(file.read_bytes()[:-100])
    refused(r"its file .*cut.safetensors is cut short or broken", load, settings(cut, base))


def test_a_file_without_all_weights_and_one_for_another_pipeline(sd15: tuple[Any, Path, Path], root: Path, tmp_path: Path):
    _, base, file = sd15
    weights = load_file(file)
    few = {name: x for name, x in weights.items() if not name.startswith("model.diffusion_model.middle")}
    with pytest.raises(
        ValueError, match=r"\(unet\) lacks weights of the UNet2DConditionModel that .*sd15 describes: take a whole file"
    ):
        load(settings(save(tmp_path, few), base))
    broken = {**weights, "model.diffusion_model.input_blocks.0.0.bias": torch.full((8,), float("nan"))}
    refused(r"\(unet\) holds NaN or infinity in 1 tensors \(conv_in.bias", load, settings(save(tmp_path, broken), base))
    told = save(tmp_path, {**weights, "v_pred": torch.zeros(1)})
    refused("predicts v, and the scheduler of its pipeline says 'epsilon'", load, settings(told, base))
    _, other, _ = original_layout.make("sdxl", root)
    refused(r"policy.model .*other.safetensors'", load, settings(save(tmp_path, weights), other))


def test_a_pipeline_of_two_networks_is_a_folder(root: Path, tmp_path: Path):
    _, base, file = original_layout.make("wan", root)
    two = shutil.copytree(base, tmp_path / "two")
    shutil.copytree(base / "transformer", two / "transformer_2")
    index = json.loads((two / "model_index.json").read_text())
    index |= {"transformer_2": index["transformer"], "boundary_ratio": 0.5}
    (two / "model_index.json").write_text(json.dumps(index))
    refused("has the networks transformer and transformer_2: give the folder of the pipeline", load, settings(file, two))


def test_a_base_that_lacks_what_the_file_lacks(root: Path, tmp_path: Path):
    _, base, file = original_layout.make("flux", root)
    configs = shutil.copytree(base, tmp_path / "configs", ignore=shutil.ignore_patterns("*.safetensors"))
    refused("text_encoder", load, settings(file, configs), error=OSError)


def test_another_file_of_the_same_name_is_not_resumed_on(sd15: tuple[Any, Path, Path], tmp_path: Path):
    _, base, file = sd15
    own = tmp_path / "own.safetensors"
    shutil.copyfile(file, own)
    policy = FlowPolicy(settings(own, base, **LORA))
    state = policy.state_dict()
    FlowPolicy(settings(file, base, **LORA)).load_state_dict(state)
    weights = load_file(own)
    name = "first_stage_model.decoder.conv_out.bias"
    save(tmp_path, {**weights, name: weights[name] + 1}, own.name)
    with pytest.raises(ValueError, match=r"own.safetensors' is another file than the one that the run was trained with"):
        FlowPolicy(settings(own, base, **LORA)).load_state_dict(state)
    refused("another file", FlowPolicy(settings(base, **LORA)).load_state_dict, state)


def test_embeddings_are_kept_by_file(sd15: tuple[Any, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Text encoders inside another file write other embeddings."""
    _, base, file = sd15
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    other = save(tmp_path, {name: 2 * x if "cond_stage" in name else x for name, x in load_file(file).items()})
    asked = [settings(one, base, embeddings="disk") for one in (file, file, other)]
    first, again, changed = (open_cache(config, load(config)) for config in asked)
    assert first is not None and again is not None and changed is not None
    assert first.folder == again.folder != changed.folder
    assert SingleFile(asked[0]).fingerprint() != SingleFile(asked[2]).fingerprint()


FILES = ("config.json", "model_index.json", "scheduler_config.json")
VALUES: tuple[Any, ...] = (None, "x", 0, -1, [], {}, 10**9, float("nan"), [1], True)
SIZES: dict[str, dict[str, Any]] = {"wan": {"height": 32, "width": 32, "frames": 5}}
Load = Callable[[FlowPolicyConfig], object]
UNBUILT: dict[str, object] = {"num_hidden_layers": 10**9, "hidden_size": "x", "num_attention_heads": 0}
UNREAD: dict[str, object] = {"layer_norm_eps": None, "eos_token_id": []}


def damaged(folder: Path, file: str, key: str, value: object) -> None:
    config = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(config | {key: value}))


def copy_of(tiny: Callable[[str], str], family: str, folder: Path) -> Path:
    return Path(shutil.copytree(tiny(family), folder / family))


def draw(config: FlowPolicyConfig) -> object:
    """Load a pipeline and draw a prompt with it."""
    return FlowPolicy(config).rollout([Request(Prompt("p", text="a fox"), 2, 0, seed=1)], Full(num_steps=2).at(0))


@pytest.mark.parametrize(
    ("key", "value", "use", "said"),
    [
        *((key, value, load, r"policy\.model .*\(text_encoder\)") for key, value in UNBUILT.items()),
        *((key, value, draw, "its text encoders cannot read a prompt") for key, value in UNREAD.items()),
    ],
)
def test_a_damaged_text_encoder_is_named(tiny, tmp_path, key: str, value: object, use: Load, said: str):
    """Before it is built, or once it cannot read."""
    folder = copy_of(tiny, "sd3", tmp_path)
    damaged(folder, "text_encoder/config.json", key, value)
    refused(said, use, settings(folder))


def test_an_endless_chat_template_of_a_pipeline_is_refused(tiny, tmp_path):
    folder = copy_of(tiny, "z_image", tmp_path)
    (file,) = folder.rglob("chat_template.jinja")
    file.write_text("{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}")
    with pytest.raises(ValueError, match=r"\(tokenizer\): its chat template takes more than 200,000 turns"):
        load(settings(folder, **SIZES.get(folder.name, {})))


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
            use(settings(folder, **SIZES.get(folder.name, {})))
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
