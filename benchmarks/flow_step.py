"""Time of a Flow-GRPO step, by its parts and against a straightforward loop written after the official script's structure.

    python benchmarks/flow_step.py --rounds 3 --steps 3
    python benchmarks/flow_step.py --layers 6 --heads 6 --patch 2 --prompts 4 --group-size 8 --rows 32

Both sides train the same small Stable Diffusion 3 (the architecture of `mmrl demo t2i`, random weights; --layers, --heads of
32 numbers each and smaller patches make it larger) with LoRA on the same
prompts: 10 denoising steps of which 9 train, KL to the model without its adapter, 2 updates, a constant reward plus the parity of
the sample (no time is spent on scoring, and advantages are not 0). The loop encodes the prompt of every image again, samples
every image from noise of its own in micro-batches, keeps all latents and trains step after step of a micro-batch. Each side runs
in a process of its own and reports its own peak memory; the sides take turns. The share is that of wall time inside the
transformer: forwards by hooks, backwards from the moment the gradient reaches its output until autograd is done.
"""

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

SIDES = ("mmrl", "loop")
T, TRAINED, ETA, CLIP, BETA, LR = 10, 9, 0.7, 1e-3, 0.004, 1e-4
WARM_UP = 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes per side")
    parser.add_argument("--steps", type=int, default=3, help="timed steps per process")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=12)
    parser.add_argument("--rows", type=int, default=96, help="latents of a forward of mmrl")
    parser.add_argument("--micro-batch", type=int, nargs="+", default=[8, 96], help="images of the loop's batches")
    parser.add_argument("--guidance", type=float, default=1.0)
    parser.add_argument("--layers", type=int, help="of the transformer; the demo's by default")
    parser.add_argument("--heads", type=int, help="of the transformer, 32 numbers wide each; the demo's by default")
    parser.add_argument("--patch", type=int, help="latents per token along a side; fewer make more tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="print where mmrl's time goes, by function, and stop")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    return parser.parse_args()


class Inside:
    """Seconds inside a transformer."""

    def __init__(self, transformer: torch.nn.Module) -> None:
        self.forward = self.backward = 0.0
        self.start = self.reached = 0.0
        transformer.register_forward_pre_hook(self.enter)
        transformer.register_forward_hook(self.leave)

    def enter(self, *_: Any) -> None:
        self.start = time.perf_counter()

    def leave(self, _: Any, __: Any, output: Any) -> None:
        self.forward += time.perf_counter() - self.start
        if output[0].requires_grad:
            output[0].register_hook(self.reach)

    def reach(self, _: torch.Tensor) -> None:
        self.reached = time.perf_counter()

    def note_end(self) -> None:
        """Note that the backward is over."""
        self.backward += time.perf_counter() - self.reached

    def reset(self) -> None:
        self.forward = self.backward = 0.0


def parity(group: Any) -> list[float]:
    return [float(i % 2) for i in range(len(group.samples))]


def run_mmrl(args: argparse.Namespace) -> dict[str, Any]:
    from dataclasses import replace

    from mmrl.algorithms.objectives.surrogates import Clip
    from mmrl.algorithms.presets import PRESETS
    from mmrl.algorithms.samplers.base import Shuffled
    from mmrl.app.plugins.resolve import load
    from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
    from mmrl.policies.shared.lora import LoraSettings
    from mmrl.training.optim import OptimizerSettings
    from mmrl.training.rewards.runner import NamedReward, RewardRunner
    from mmrl.training.settings import TrainSettings
    from mmrl.training.trainer import Trainer

    preset = PRESETS["flow_grpo"]
    objective = ((1.0, Clip(low=CLIP, high=CLIP)), preset.objective[1])
    algorithm = replace(preset, objective=objective, group_size=args.group_size)
    sizes = {"height": 32, "width": 32, "max_prompt_tokens": 0, "forward_rows": args.rows, "decode_rows": args.rows}
    config = FlowPolicyConfig(args.model, guidance=args.guidance, lora=LoraSettings(rank=8, alpha=16), **sizes)
    policy = FlowPolicy(config, ["ref"])
    settings = TrainSettings(prompts_per_step=args.prompts, micro_batch=args.rows, optimizer=OptimizerSettings(lr=LR))
    prompts = load("shapes", "datasets")()
    trainer = Trainer(policy, algorithm, Shuffled(prompts, seed=0), RewardRunner([NamedReward("parity", parity)]), settings)
    inside = Inside(policy.net.transformer)
    backward = trainer.ranks.backward

    def time_backward(loss: torch.Tensor, last: bool = True) -> None:
        backward(loss, last)
        inside.note_end()

    object.__setattr__(trainer.ranks, "backward", time_backward)
    found = []
    for i in range(WARM_UP + args.steps):
        inside.reset()
        if args.profile and i == WARM_UP:
            profile_step(trainer.step)
            sys.exit()
        start = time.perf_counter()
        metrics = trainer.step()
        seconds = time.perf_counter() - start
        split = {name: metrics[f"time/{name}_s"] for name in ("rollout", "reward", "read", "update")}
        found.append({"seconds": seconds, "inside": inside.forward + inside.backward, "split": split})
    return {"steps": found[WARM_UP:]}


def profile_step(step: Any) -> None:
    """Print the cumulative seconds of mmrl's own functions and of what they call outside the transformer."""
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.runcall(step)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("cumtime").print_stats(
        "mmrl|diffusers.*(encode_prompt|image_processor|decode|wrapper)|optimizer"
    )


def transition(x: torch.Tensor, v: torch.Tensor, sigma: float, after: float, second: float) -> tuple[torch.Tensor, float]:
    """Mean and deviation of a step of Flow-SDE."""
    s = ETA * math.sqrt(sigma / (1 - (second if sigma == 1 else sigma)))
    dt = after - sigma
    return x * (1 + s * s * dt / (2 * sigma)) + v * (1 + s * s * (1 - sigma) / (2 * sigma)) * dt, s * math.sqrt(-dt)


def logprob(x: torch.Tensor, mean: torch.Tensor, std: float) -> torch.Tensor:
    return (-((x - mean) ** 2) / (2 * std**2) - math.log(std) - 0.5 * math.log(2 * math.pi)).flatten(1).mean(1)


class Loop:
    """A training loop as a script has it: sample, score, train."""

    def __init__(self, args: argparse.Namespace) -> None:
        from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import StableDiffusion3Pipeline
        from peft import LoraConfig

        from mmrl.app.plugins.resolve import load
        from mmrl.policies.flow.families.sd3 import StableDiffusion3

        self.args, self.micro = args, args.micro_batch[0]
        self.pipe: Any = StableDiffusion3Pipeline.from_pretrained(args.model, text_encoder_3=None, tokenizer_3=None)
        self.net = self.pipe.transformer
        for part in (self.pipe.vae, self.pipe.text_encoder, self.pipe.text_encoder_2, self.net):
            part.requires_grad_(False)
        targets = list(StableDiffusion3.lora_targets)
        self.net.add_adapter(LoraConfig(r=8, lora_alpha=16, init_lora_weights="gaussian", target_modules=targets))
        self.weights = [weight for weight in self.net.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(self.weights, lr=LR)
        self.prompts = [prompt.text for prompt in load("shapes", "datasets")()]
        self.pipe.scheduler.set_timesteps(T)
        self.sigmas = [float(sigma) for sigma in self.pipe.scheduler.sigmas]
        self.inside = Inside(self.net)
        self.scale = self.pipe.vae_scale_factor
        self.count = 0

    def encode(self, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        embeds, _, pooled, _ = self.pipe.encode_prompt(
            texts, None, None, do_classifier_free_guidance=False, max_sequence_length=0
        )
        return embeds, pooled

    def velocity(self, x: torch.Tensor, sigma: float, text: tuple[torch.Tensor, torch.Tensor], empty: Any) -> torch.Tensor:
        def call(x: torch.Tensor, embeds: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
            time_ = torch.full((len(x),), sigma * 1000)
            return self.net(
                hidden_states=x, timestep=time_, encoder_hidden_states=embeds, pooled_projections=pooled, return_dict=False
            )[0]

        if self.args.guidance == 1:
            return call(x, *text)
        pairs = [torch.cat([nothing.expand_as(own), own]) for nothing, own in zip(empty, text, strict=True)]
        without, with_prompt = call(torch.cat([x, x]), *pairs).chunk(2)
        return without + self.args.guidance * (with_prompt - without)

    @torch.no_grad()
    def sample(self, texts: list[str]) -> dict[str, Any]:
        text, empty = self.encode(texts), self.encode([""])
        x = torch.randn(len(texts), self.net.config.in_channels, 32 // self.scale, 32 // self.scale)
        states, found = [x], []
        for i in range(T):
            v = self.velocity(x, self.sigmas[i], text, empty)
            mean, std = transition(x, v, self.sigmas[i], self.sigmas[i + 1], self.sigmas[1])
            x = mean + std * torch.randn_like(x)
            found.append(logprob(x, mean, std))
            states.append(x)
        return {"states": states, "logprobs": torch.stack(found, 1), "text": text, "empty": empty, "images": self.decode(x)}

    def decode(self, x: torch.Tensor) -> list[Any]:
        """Pictures of latents, as diffusers' pipeline makes them."""
        config = self.pipe.vae.config
        pixels = self.pipe.vae.decode(x / config.scaling_factor + config.shift_factor, return_dict=False)[0]
        return self.pipe.image_processor.postprocess(pixels, output_type="pil")

    def step(self) -> None:
        args = self.args
        chosen = [self.prompts[(self.count + i) % len(self.prompts)] for i in range(args.prompts)]
        self.count += args.prompts
        texts = [text for text in chosen for _ in range(args.group_size)]
        batches = [self.sample(texts[i : i + self.micro]) for i in range(0, len(texts), self.micro)]
        rewards = torch.tensor([float(i % 2) for i in range(len(texts))]).view(args.prompts, -1)
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, correction=0, keepdim=True) + 1e-4)).flatten()
        half = max(1, len(batches) // 2)
        for k, batch in enumerate(batches):
            own = advantages[k * self.micro : (k + 1) * self.micro]
            for i in range(TRAINED):
                self.train(batch, own, i, half)
            if (k + 1) % half == 0:
                torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()

    def train(self, batch: dict[str, Any], advantages: torch.Tensor, i: int, accumulated: int) -> None:
        x, x_next = batch["states"][i], batch["states"][i + 1]
        sigma, after = self.sigmas[i], self.sigmas[i + 1]
        v = self.velocity(x, sigma, batch["text"], batch["empty"])
        mean, std = transition(x, v, sigma, after, self.sigmas[1])
        with torch.no_grad():
            self.net.disable_adapters()
            reference, _ = transition(x, self.velocity(x, sigma, batch["text"], batch["empty"]), sigma, after, self.sigmas[1])
            self.net.enable_adapters()
        ratio = (logprob(x_next, mean, std) - batch["logprobs"][:, i]).exp()
        policy = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        kl = ((mean - reference) ** 2).flatten(1).mean(1).mean() / (2 * std**2)
        ((policy + BETA * kl) / (accumulated * TRAINED)).backward()
        self.inside.note_end()


def run_loop(args: argparse.Namespace) -> dict[str, Any]:
    loop = Loop(args)
    found = []
    for _ in range(WARM_UP + args.steps):
        loop.inside.reset()
        start = time.perf_counter()
        loop.step()
        found.append({"seconds": time.perf_counter() - start, "inside": loop.inside.forward + loop.inside.backward, "split": {}})
    return {"steps": found[WARM_UP:]}


def side(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = (run_mmrl if args.side == "mmrl" else run_loop)(args)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.write(json.dumps(found | {"peak_mb": peak / 1024, "base_mb": base / 1024}) + "\n")


def small_model(folder: Path, layers: int | None = None, heads: int | None = None, patch: int | None = None) -> str:
    """The demo's architecture, perhaps of another size, with random weights."""
    from mmrl.data.drawn.shapes import Sketches
    from mmrl.lab.tiny.flow.generator import KIND, WarmStart

    asked: dict[str, Any] = {"layers": layers, "heads": heads, "patch": patch}
    sizes = {name: value for name, value in asked.items() if value is not None}
    pipeline = KIND.build(WarmStart(data=Sketches(), **sizes))
    weights = sum(weight.numel() for weight in pipeline.transformer.parameters()) / 1e6
    config = pipeline.transformer.config
    tokens = (config.sample_size // config.patch_size) ** 2
    sys.stdout.write(f"transformer of {weights:.1f} M weights, {config.num_layers} layers, {tokens} tokens a picture\n\n")
    with torch.no_grad():
        for weight in pipeline.transformer.proj_out.parameters():
            weight.normal_(std=0.02)
    pipeline.save_pretrained(folder)
    return str(folder)


def main() -> None:
    args = arguments()
    if args.side:
        side(args)
        return
    model = args.model or small_model(Path(tempfile.mkdtemp()) / "model", args.layers, args.heads, args.patch)
    sides = [("mmrl", args.micro_batch[0]), *(("loop", size) for size in args.micro_batch)]
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {which: [] for which in sides}
    shared = [
        f"--{name}={getattr(args, name.replace('-', '_'))}" for name in ("steps", "prompts", "group-size", "rows", "threads")
    ]
    shared += [f"--guidance={args.guidance}", f"--model={model}", *(["--profile"] if args.profile else [])]
    for _ in range(args.rounds):
        for name, size in sides:
            command = [sys.executable, __file__, f"--side={name}", f"--micro-batch={size}", *shared]
            text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            if args.profile:
                return
            runs[name, size].append(json.loads(text.splitlines()[-1]))
    sys.stdout.write("\n".join(table(runs)) + "\n")


def table(runs: dict[tuple[str, int], list[dict[str, Any]]]) -> list[str]:
    """Markdown: a row for every side."""
    lines = [
        "| side | s/step (median) | least - most | share inside the transformer | peak MB | where the time goes (median s) |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for (name, size), found in runs.items():
        steps = [step for run in found for step in run["steps"]]
        seconds = [step["seconds"] for step in steps]
        shares = [step["inside"] / step["seconds"] for step in steps]
        label = "mmrl" if name == "mmrl" else f"loop, micro-batch {size}"
        split = {key: statistics.median(step["split"][key] for step in steps) for key in steps[0]["split"]}
        where = ", ".join(f"{key} {value:.2f}" for key, value in split.items())
        peak = statistics.median(run["peak_mb"] for run in found)
        lines.append(
            f"| {label} | {statistics.median(seconds):.2f} | {min(seconds):.2f} - {max(seconds):.2f} | "
            f"{statistics.median(shares):.3f} | {peak:.0f} | {where} |"
        )
    return lines


if __name__ == "__main__":
    main()
