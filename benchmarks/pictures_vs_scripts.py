"""Losses and gradients of the stages `sft` and `dpo` of image generators against the training loops of diffusers and flow_grpo.

    python benchmarks/pictures_vs_scripts.py --diffusers DIFFUSERS --flow-grpo FLOW_GRPO

Both are clones of the repositories. From each script the lines between noising and the backward pass are run as they stand, on
the tiny pipelines' own networks, with mmrl's latents, noise and times in the place of what they draw. Without a clone the
numbers of tests/numerics/vectors/stages.json are compared by the test suite. A difference of gradients is relative to their norm.

What stands around these lines is handed to them: encoded prompts, the scheduler, adapters that are off for the reference.
"""

import argparse
import contextlib
import copy
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sides import markdown
from torch import Tensor

from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.objectives.forward import DenoisingPreference, Matching
from mmrl.lab.tiny.flow import pipelines
from mmrl.policies.flow.policy import FlowPolicy, FlowTrace
from tests.policies.flow.write.test_given import PROMPTS, TOKENS, gradient_of, inputs_of, loss_of, make, plan_of
from tests.support.flow_policies import stir

BETA = 200.0
BOUND = 2e-5


@dataclass(frozen=True)
class Script:
    """A training loop of someone else's, and the lines of it that make the loss."""

    repository: str
    path: str
    family: str
    kind: str
    begin: str
    """The first line, and `end` the first one behind the last, without their indents."""
    end: str = "accelerator.backward(loss)"
    half: bool = True
    """Has its beta the factor 1/2 of the paper, as mmrl's?"""


SCRIPTS = (
    Script("diffusers", "examples/research_projects/diffusion_dpo/train_diffusion_dpo.py", "sd15", "dpo",
           "noise = torch.randn_like(latents).chunk(2)[0].repeat(2, 1, 1, 1)", half=False),
    Script("diffusers", "examples/text_to_image/train_text_to_image.py", "sd15", "sft", "noise = torch.randn_like(latents)",
           "# Gather the losses across all processes for logging (if we use distributed training)."),
    Script("flow_grpo", "scripts/train_sd3_dpo.py", "sd3", "dpo", "bsz = model_input.shape[0] // 2"),
    Script("flow_grpo", "scripts/train_sd3_sft.py", "sd3", "sft", "noise = torch.randn_like(model_input)"),
)  # fmt: skip


def lines_of(script: Script, clone: Path) -> str:
    """The lines of the script that make the loss.

    Raises:
        SystemExit: the script does not have them: it is another version.
    """
    lines = (clone / script.path).read_text().splitlines()
    bare = [line.strip() for line in lines]
    if script.begin not in bare or script.end not in bare[bare.index(script.begin) :]:
        raise SystemExit(f"{clone / script.path} has no line {script.begin!r} before {script.end!r}: it is another version")
    first = bare.index(script.begin)
    return textwrap.dedent("\n".join(lines[first : bare.index(script.end, first)]))


class Drawn:
    """torch, but for what the scripts draw: mmrl's own noise and times."""

    def __init__(self, noise: Tensor, times: Tensor) -> None:
        self.noise, self.times = noise, times

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def randn_like(self, latents: Tensor) -> Tensor:
        assert latents.shape == self.noise.shape
        return self.noise

    def randint(self, low: int, high: int, size: tuple[int], **_: Any) -> Tensor:
        assert bool(((low <= self.times) & (self.times < high)).all())
        return self.times[: size[0]]


class Switched:
    """A network whose adapters can be switched off: it is the reference then."""

    def __init__(self, live: Any, ref: Any) -> None:
        self.live, self.ref, self.now = live, ref, live
        self.config = live.config

    def disable_adapters(self) -> None:
        self.now = self.ref

    def enable_adapters(self) -> None:
        self.now = self.live

    def set_adapter(self, name: str) -> None:
        self.now = self.ref if name == "ref" else self.live

    def __call__(self, *words: Any, **named: Any) -> Any:
        return self.now(*words, **named)


def around(script: Script, policy: FlowPolicy, trace: FlowTrace, texts: Sequence[str], ref: Any) -> dict[str, Any]:
    """What a script's lines find when they are run: latents, prompts and settings, the winners first."""
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
    from diffusers.training_utils import compute_loss_weighting_for_sd3

    latents, noise, sigmas = inputs_of(trace)
    pair = script.kind == "dpo"
    order = [*range(0, len(latents), 2), *range(1, len(latents), 2)] if pair else list(range(len(latents)))
    latents, noise, sigmas, texts = latents[order], noise[order], sigmas[order], [texts[i] for i in order]
    pipeline: Any = policy.pipeline
    settings = {"beta_dpo": BETA if script.half else BETA / 2, "loss_type": "sigmoid", "prediction_type": None}
    settings |= dict.fromkeys(("noise_offset", "input_perturbation", "dream_training", "snr_gamma"))
    train, silent = SimpleNamespace(beta=BETA), SimpleNamespace(append=lambda value: None)
    accelerator = SimpleNamespace(device="cpu", unwrap_model=lambda model: model)
    log = type("Log", (), {"__getitem__": lambda self, name: silent})()
    found: dict[str, Any] = {"torch": Drawn(noise, torch.zeros(len(noise))), "F": torch.nn.functional, "info": log}
    found |= {"accelerator": accelerator, "batch": {"input_ids": 0}, "autocast": contextlib.nullcontext}
    found |= {"args": SimpleNamespace(**settings), "config": SimpleNamespace(train=train)}
    if script.family == "sd15":
        scheduler: Any = DDPMScheduler.from_config(pipeline.scheduler.config)
        signal = scheduler.alphas_cumprod.sqrt()
        table = (1 - signal**2).sqrt() / (signal + (1 - signal**2).sqrt())
        found["torch"].times = (table - sigmas[:, None]).abs().argmin(1)
        embeds, _ = pipeline.encode_prompt(texts[: len(texts) // 2] if pair else texts, "cpu", 1, False)
        unet = Switched(pipeline.unet, ref)
        found |= {"latents": latents, "noise_scheduler": scheduler, "unet": unet}
        return found | {"encode_prompt": lambda *_: embeds, "text_encoder": lambda *_, **__: (embeds,)}
    embeds, _, pooled, _ = pipeline.encode_prompt(
        texts, None, None, device="cpu", do_classifier_free_guidance=False, max_sequence_length=TOKENS["sd3"]
    )
    transformer = Switched(pipeline.transformer, ref)
    # u is the place in the scheduler's table, whose entries are mmrl's own times
    scheduler = SimpleNamespace(config=SimpleNamespace(num_train_timesteps=len(sigmas)), timesteps=sigmas * 1000)
    shape = (-1, *[1] * (latents.ndim - 1))
    sample = {"latents": latents, "advantages": torch.ones(len(latents))}

    def places(batch_size: int, **_: Any) -> Tensor:
        return (torch.arange(batch_size) + 0.5) / len(sigmas)

    found |= {"sample": sample, "model_input": latents, "embeds": embeds, "pooled_embeds": pooled, "transformer": transformer}
    found |= {"pipeline": SimpleNamespace(transformer=transformer), "noise_scheduler": scheduler}
    found |= {"compute_density_for_timestep_sampling": places, "get_sigmas": lambda *_, **__: sigmas.reshape(shape)}
    return found | {"compute_loss_weighting_for_sd3": compute_loss_weighting_for_sd3}


def compare(script: Script, clone: Path, model: str) -> list[str]:
    """The loss of both, and how far losses and gradients are apart."""
    kind, error = f"{script.kind}_of_pictures", "noise" if script.family == "sd15" else "velocity"
    policy = make(model, ("ref",) if script.kind == "dpo" else ())
    stir(policy)
    term = DenoisingPreference(BETA, error) if script.kind == "dpo" else Matching(error)
    algorithm = replace(KINDS[kind], objective=((1.0, term),))
    rollouts = policy.rollout(algorithm.planner.first(PROMPTS, algorithm.group_size, 0, 5), plan_of(kind))
    trace = rollouts.trace
    assert isinstance(trace, FlowTrace)
    ours = loss_of(policy, algorithm, rollouts)
    gradient = gradient_of(ours, policy)
    pipeline: Any = policy.pipeline
    with policy.weights.swapped_in("ref") if script.kind == "dpo" else contextlib.nullcontext():
        ref = copy.deepcopy(pipeline.unet if script.family == "sd15" else pipeline.transformer)
    texts = [prompt.text for prompt in PROMPTS for _ in range(algorithm.group_size)]
    names = around(script, policy, trace, texts, ref)
    exec(compile(lines_of(script, clone), script.path, "exec"), names)
    theirs = names["loss"]
    wanted = gradient_of(theirs, policy)
    apart = float((gradient - wanted).norm() / wanted.norm())
    label = f"{script.family}, {script.kind}: {script.repository}/{script.path.rpartition('/')[2]}"
    return [label, f"{float(theirs.detach()):.4f}", f"{abs(float((ours - theirs).detach())):.1e}", f"{apart:.1e}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--diffusers", type=Path, help="a clone of huggingface/diffusers")
    parser.add_argument("--flow-grpo", type=Path, help="a clone of yifan123/flow_grpo")
    args = parser.parse_args()
    torch.set_num_threads(1)
    clones = {"diffusers": args.diffusers, "flow_grpo": args.flow_grpo}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for script in SCRIPTS:
            clone = clones[script.repository]
            if clone is None:
                print(f"no clone of {script.repository}: its numbers are compared by `pytest tests/numerics`")
                continue
            where = Path(folder) / script.family
            model = str(where if where.exists() else pipelines.build(script.family, where))
            rows.append(compare(script, clone, model))
    if not rows:
        return
    print(markdown(("generator, loss", "script's loss", "loss apart", "gradient apart"), rows))
    if any(max(float(row[2]), float(row[3])) > BOUND for row in rows):
        raise SystemExit("mmrl and a script differ")


if __name__ == "__main__":
    main()
