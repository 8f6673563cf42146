"""Which card a published model trains on, and how: the table of docs/how_to/cards.md, counted by the plans of one-line runs.

`python -m benchmarks.cards [NAME ...]` needs no weights. Every figure is that of `mmrl plan --task ... --model ... --card ...`
with the smallest sizes, which a card must hold at least; the run then grows into what is left.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

from mmrl.app.config.run import Resolved, with_values
from mmrl.app.config.tasks import one_line
from mmrl.app.planning.choices import CHOSEN, ModelFacts, in_4_bits, usual_choices, with_choices
from mmrl.app.planning.fit import free_sizes, least_sizes
from mmrl.app.planning.known import with_settings
from mmrl.app.planning.memory import CONTEXT, GIB, reward_memory, target_device, usable
from mmrl.app.planning.plan import Estimates, prompts_of
from mmrl.policies.flow.dry_run import encoders_of
from mmrl.policies.flow.families.known import family_of
from mmrl.policies.flow.loading import load_index
from mmrl.policies.flow.settings import FlowPolicyConfig, FlowQuantizedSettings
from mmrl.policies.shared.lora import LoraSettings

CARDS = (8, 12, 16, 24, 48, 80)
PICTURES = ("policy.height=512", "policy.width=512", "policy.rest_text_encoders=true")
WAYS = ("bf16", "nf4", "nf4, all parts", "nf4, all parts, embeddings on the host")


@dataclass(frozen=True)
class Shape:
    """A run of one line: `Shape("FLUX.1-dev", "t2i", "black-forest-labs/FLUX.1-dev", ("policy.height=512",))`."""

    name: str
    task: str
    model: str
    words: tuple[str, ...] = ()

    @property
    def data(self) -> str:
        """Data that come with mmrl, or four prompts."""
        if self.task == "grounding":
            return "digits_grounding"
        file = Path(mkdtemp()) / "prompts.txt"
        file.write_text("\n".join(f"a red fox, {i}" for i in range(16)))
        return str(file)

    def resolve(self) -> Resolved:
        reward = {"grounding": "iou", "t2i": "jpeg_size", "t2v": "jpeg_size"}[self.task]
        return one_line(self.task, self.model, self.data, [reward], list(self.words))


SPACE = ("policy.box_space=norm1000",)
SHAPES = (
    Shape("Qwen2.5-VL-7B", "grounding", "Qwen/Qwen2.5-VL-7B-Instruct"),
    Shape("Qwen3-VL-8B", "grounding", "Qwen/Qwen3-VL-8B-Instruct"),
    Shape("Qwen3.5-9B", "grounding", "Qwen/Qwen3.5-9B", SPACE),
    Shape("Gemma 3 4B", "grounding", "google/gemma-3-4b-it", SPACE),
    Shape("Gemma 4 E4B", "grounding", "google/gemma-4-E4B-it", SPACE),
    Shape("FLUX.1-dev", "t2i", "black-forest-labs/FLUX.1-dev", PICTURES),
    Shape("SD3.5-L", "t2i", "stabilityai/stable-diffusion-3.5-large", PICTURES),
    Shape("Qwen-Image", "t2i", "Qwen/Qwen-Image", PICTURES),
    Shape("Wan 2.1 14B, 33 frames", "t2v", "Wan-AI/Wan2.1-T2V-14B-Diffusers", (*PICTURES, "policy.frames=33")),
)
ENCODERS = {"T5-XXL": ("FLUX.1-dev", "text_encoder_2"), "UMT5-XXL": ("Wan 2.1 14B, 33 frames", "text_encoder")}
"""Text encoder -> the run that has it, and its name there."""


def peaks(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """Way of keeping weights, bytes of them, and bytes of a run with the smallest sizes beside what CUDA takes."""
    resolved, device = shape.resolve(), target_device("80GB")
    prompts = prompts_of(resolved)
    facts = ModelFacts.of(with_settings(resolved.config).policy, prompts)
    chosen = with_choices(resolved, usual_choices(resolved, facts))
    estimates = Estimates(1, prompts, reward_memory(chosen, on_card=True))
    least = free_sizes(chosen, least_sizes(chosen.config, 1))
    for way, choices in zip(WAYS, [[], *in_4_bits(chosen, facts, device, 0)], strict=False):
        memory = estimates.of(with_values(with_choices(chosen, choices), least, CHOSEN)).memory
        held = sum(size for name, size in memory.stays.items() if "weights in" in name)
        yield way, held, memory.peak


def row(shape: Shape) -> str:
    """A line of the table: the cheapest way that fits each card."""
    found = list(peaks(shape))
    cells = [next((way for way, _, peak in found if peak <= usable(card * GIB * 98 // 100)), "no") for card in CARDS]
    figures = [f"{(peak + CONTEXT) / GIB:.1f}" for _, _, peak in found]
    held = [f"{size / GIB:.1f}" for _, size, _ in found[:2]]
    return "| " + " | ".join([shape.name, *held, *figures, *[""] * (len(WAYS) - len(found)), *cells]) + " |"


def encoder_row(name: str) -> str:
    """A line of the table: what a text encoder weighs."""
    user, part = ENCODERS[name]
    [shape] = [shape for shape in SHAPES if shape.name == user]
    policy = with_settings(shape.resolve().config).policy
    assert isinstance(policy, FlowPolicyConfig)
    whole = replace(policy, dtype="bfloat16", lora=LoraSettings(4, 4))
    small = replace(whole, weights="nf4", quantized=FlowQuantizedSettings(("text_encoders",)))
    family = family_of(load_index(policy.model), policy.model)
    held = [f"{encoders_of(one, family)[part] / GIB:.1f}" for one in (whole, small)]
    return "| " + " | ".join([name, *held, *[""] * (len(WAYS) + len(CARDS))]) + " |"


def main() -> None:
    wanted = sys.argv[1:]
    heads = ["model", "weights in bf16", "in nf4", *(f"a run in {way}" for way in WAYS), *(f"{card} GB" for card in CARDS)]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for shape in SHAPES:
        if not wanted or shape.name in wanted:
            print(row(shape), flush=True)
    for name in ENCODERS:
        if not wanted or name in wanted:
            print(encoder_row(name), flush=True)


if __name__ == "__main__":
    main()
