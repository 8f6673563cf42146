"""The demo's editor: real classes, losses that fall, instructions and sources as the pipeline reads them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.types import Prompt, Request
from mmrl.data.drawn.shape_edits import TRAIN, Edits, draw, jitter_of
from mmrl.data.drawn.shapes import to_bytes
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.lab.tiny.flow.editor import KIND, EditorStart, encode_texts
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig

SHORT = replace(EditorStart(), name="test", pool=128, batch_size=16, vae_steps=100, steps=40, layers=1, heads=2)


@pytest.fixture(scope="module")
def losses():
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory, losses):
    def note(step, steps, loss):
        losses.append((step, steps, loss))

    return KIND.warm_start(SHORT, tmp_path_factory.mktemp("editor") / "short", note)


@pytest.fixture(scope="module")
def pipeline(folder) -> Any:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    loaded: Any = DiffusionPipeline.from_pretrained(folder)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def test_both_losses_fall_in_a_pipeline_of_the_real_classes(pipeline, losses):
    assert type(pipeline).__name__ == "FluxKontextPipeline" and pipeline.vae_scale_factor == 8
    assert [step for step, _, _ in losses] == [*range(1, 141)] and {steps for _, steps, _ in losses} == {140}
    values = [loss for _, _, loss in losses]
    assert np.mean(values[95:100]) < 0.6 * np.mean(values[:5])
    assert np.mean(values[-5:]) < 0.9 * np.mean(values[100:105])


def test_instructions_are_read_as_the_pipeline_reads_them(pipeline):
    texts = ["make it blue", "move it to the top", ""]
    with torch.no_grad():
        embeds, pooled = encode_texts(pipeline, texts)
        expected, expected_pooled, _ = pipeline.encode_prompt(texts, None, max_sequence_length=SHORT.max_tokens)
    assert torch.allclose(embeds, expected, atol=1e-5) and torch.allclose(pooled, expected_pooled, atol=1e-5)
    assert len(pipeline.tokenizer_2("make the background dark").input_ids) == 5


def test_the_policy_draws_what_the_pipeline_draws(folder, pipeline):
    policy = FlowPolicy(FlowPolicyConfig(str(folder), height=32, width=32, guidance=1.0, max_prompt_tokens=SHORT.max_tokens))
    source = Image.fromarray(to_bytes(draw(TRAIN[0].state, jitter_of(np.random.default_rng(0)), 32)))
    (group,) = policy.rollout([Request(Prompt("p", "make it blue", (source,)), 1, 0, seed=3)], evaluation_plan(4)).groups
    own = pipeline(
        prompt="make it blue",
        image=source,
        height=32,
        width=32,
        max_area=32 * 32,
        _auto_resize=False,
        num_inference_steps=4,
        max_sequence_length=SHORT.max_tokens,
        generator=generator_of(3, 0, 0),
    ).images[0]
    assert np.abs(np.asarray(group.samples[0].image, int) - np.asarray(own, int)).max() <= 1


def test_examples_have_the_faults_that_they_are_said_to_have():
    sources, texts, targets = Edits(confused=0.0, stained=0.0).triples(np.random.default_rng(0), 64)
    assert sources.shape == targets.shape == (64, 32, 32, 3) and set(texts) <= {task.instruction.text for task in TRAIN}
    assert all((one != other).any() for one, other in zip(sources, targets, strict=True))
    wrong = Edits(confused=1.0, stained=0.0).triples(np.random.default_rng(0), 64)
    assert wrong[1] == texts and not np.array_equal(wrong[2], targets)
