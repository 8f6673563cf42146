"""Weights in several variants: which there are, and what is said where the wanted one is missing."""

from pathlib import Path

import pytest

from mmrl.policies.shared.published import refuse_variant, variants_in


def test_names_of_files_tell_variants(tmp_path: Path):
    names = ("model.safetensors", "model.fp16.safetensors", "model-00001-of-00002.int8.safetensors")
    others = (
        "diffusion_pytorch_model.ema-00001-of-00002.bin",
        "config.json",
        "model.safetensors.index.json",
        "adapter.fp8.safetensors",
    )
    for name in (*names, *others):
        (tmp_path / name).touch()
    assert variants_in(tmp_path) == {"", "fp16", "int8", "ema"}
    assert variants_in(tmp_path / "nowhere") == set()


@pytest.mark.parametrize(
    ("parts", "variant", "words"),
    [
        ({"unet": {"", "fp16"}}, "fp17", r"M has no weights of policy.variant 'fp17': set it to \"fp16\", or leave it out"),
        ({"unet": {""}}, "fp16", "M has no weights of policy.variant 'fp16': leave it out, for the plain ones are all there is"),
        (
            {"unet": {"fp16", "ema"}},
            None,
            r"M: its part 'unet' has weights of the variant ema, fp16 alone: set policy.variant = ",
        ),
        ({"": {"fp16"}}, None, r"M: it has weights of the variant fp16 alone: set policy.variant = \"fp16\""),
        ({"unet": {"fp16"}, "vae": {"ema"}}, "fp16", "M: its part 'vae' has weights of the variant ema alone"),
    ],
)
def test_a_missing_variant_names_those_that_exist(parts: dict[str, set[str]], variant: str | None, words: str):
    with pytest.raises(ValueError, match=words):
        refuse_variant(parts, variant, "M")


def test_parts_without_the_variant_have_plain_weights_and_configs_alone_have_none():
    refuse_variant({"unet": {"fp16"}, "vae": {""}, "scheduler": set()}, "fp16", "M")
    refuse_variant({"unet": {"", "fp16"}}, None, "M")
    refuse_variant({"unet": set()}, "fp16", "M")
