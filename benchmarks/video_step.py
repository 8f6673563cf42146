"""Cost of a clip in a GRPO step: frames decoded per second, one preparation per group against one per sample, memory.

    python benchmarks/video_step.py

Clips are H.264 files drawn here; the model is a Qwen3-VL of some 10 M random weights. "Per
sample" prepares and looks at a clip once for every completion, as trainers do that repeat the prompt in their batch.
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Prompt, Request, Video
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig, VideoSettings
from mmrl.policies.video.decode import fetch
from mmrl.policies.video.sampling import Budget, FrameRule

SIDE = 32
"""Pixels per token and side of Qwen3-VL."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32, help="max new tokens")
    parser.add_argument("--size", type=int, nargs=2, default=[640, 360], help="width and height of the files")
    parser.add_argument("--seconds", type=float, default=16.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--leak-steps", type=int, default=200)
    parser.add_argument("--only", choices=["decode", "group", "step", "leak"])
    return parser.parse_args()


def draw(path: Path, seed: int, size: Sequence[int], seconds: float, fps: int = 25) -> str:
    """Write a clip of a bright disc that wanders over noise."""
    import av

    width, height = size
    rng = np.random.RandomState(seed)
    ground = rng.randint(0, 120, (height, width, 3), dtype=np.uint8)
    rows, columns = np.mgrid[:height, :width]
    with av.open(str(path), "w", format="mp4") as file:
        stream: Any = file.add_stream("libx264", rate=Fraction(fps))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "23", "preset": "veryfast", "g": "50"}
        for i in range(round(seconds * fps)):
            x, y = width * (0.5 + 0.4 * np.sin(i / 40 + seed)), height * (0.5 + 0.4 * np.cos(i / 31))
            picture = ground.copy()
            picture[(columns - x) ** 2 + (rows - y) ** 2 < (height / 8) ** 2] = rng.randint(200, 255)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))
    return str(path)


def seconds_of(work: Callable[[], Any], repeats: int) -> float:
    """The median of several runs."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def model(folder: Path) -> str:
    """Qwen3-VL with 4 layers of width 256 and a vision tower of 4 layers, drawn at random."""
    from transformers import AutoProcessor, Qwen3VLConfig, Qwen3VLForConditionalGeneration

    from mmrl.lab.tiny.text.vlms import build, draw_weights

    torch.manual_seed(0)
    build("qwen3_vl", folder)
    config: Any = Qwen3VLConfig.from_pretrained(folder)
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers, text.layer_types = 256, 1024, 4, ["full_attention"] * 4
    text.num_attention_heads, text.num_key_value_heads, text.head_dim = 8, 2, 32
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [6, 5, 5]}
    vision.hidden_size, vision.intermediate_size, vision.depth, vision.num_heads = 256, 1024, 4, 4
    vision.out_hidden_size, vision.num_position_embeddings = 256, 2304
    built: Any = Qwen3VLForConditionalGeneration(config)
    draw_weights(built)
    built.save_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)
    processor.video_processor.size = {"shortest_edge": 4 * SIDE**2, "longest_edge": 10**9}
    processor.save_pretrained(folder)
    return str(folder)


def policy_of(
    folder: str, frames: int, tokens: int, workers: int = 0, cache_mb: int = 0, pixels: int = 6 * SIDE**2
) -> TextPolicy:
    """A text policy whose frames have so many `pixels`; clips are prepared anew unless a cache is given."""
    video = VideoSettings(workers=workers, cache_mb=cache_mb, max_pixels=pixels, max_frames=max(frames, 4), fps=1000.0)
    return TextPolicy(TextPolicyConfig(folder, video=video, sampling=Sampling(max_new_tokens=tokens), freeze=("vision",)))


def decoding(paths: list[str], frames: Sequence[int], repeats: int) -> None:
    print("| frames shown | decoder | seconds | frames/s |\n|---|---|---|---|")
    for number in frames:
        for backend in ("decord", "pyav"):
            plan = FrameRule(backend=backend, budget=Budget(SIDE, max_pixels=6.0 * SIDE**2))
            took = seconds_of(partial(fetch, Video(paths[0], frames=number), plan, hashed=False), repeats)
            print(f"| {number} | {backend} | {took:.3f} | {number / took:.0f} |", flush=True)


def per_group(folder: str, paths: list[str], frames: Sequence[int], group_size: int, repeats: int) -> None:
    print("\n| frames | part | once per sample, s | once per group, s | ratio |\n|---|---|---|---|---|")
    for number in frames:
        policy = policy_of(folder, number, 1)
        prompt = Prompt("p", "when?", (Video(paths[0], frames=number),))

        media = policy.encode(prompt).media

        def look(times: int, policy: TextPolicy = policy, media: Any = media) -> None:
            with torch.no_grad():
                policy.net.core.get_video_features(**policy.family.collate([media] * times), return_dict=True)

        def prepare(times: int, policy: TextPolicy = policy, prompt: Prompt = prompt) -> None:
            for _ in range(times):
                policy.encode(prompt)

        parts = {"decode + preprocess": prepare, "vision tower": look}
        for name, work in parts.items():
            many, one = (seconds_of(partial(work, times), repeats) for times in (group_size, 1))
            print(f"| {number} | {name} | {many:.3f} | {one:.3f} | {many / one:.1f} |", flush=True)


@dataclass
class Timed:
    """The policy's encoder, with a clock: waiting for frames, the processor, and all else before the model."""

    encode: Any
    seconds: float = 0.0

    @property
    def videos(self) -> Any:
        return self.encode.videos

    def __call__(self, prompt: Prompt, seed: int = 0) -> Any:
        started = time.perf_counter()
        encoded = self.encode(prompt, seed)
        self.seconds += time.perf_counter() - started
        return encoded


def steps(folder: str, paths: list[str], frames: Sequence[int], options: argparse.Namespace) -> None:
    """Time rollout, reading and backward pass; the next step's clips are asked for after the rollout."""
    print("\n| frames | workers | step, s | preparation in the way, s | share |\n|---|---|---|---|---|")
    for number in frames:
        for workers in (0, options.workers):
            policy = policy_of(folder, number, options.tokens, workers)
            batches = [
                [Prompt(str(i), "when?", (Video(paths[(k + i) % len(paths)], frames=number),)) for i in range(options.prompts)]
                for k in range(options.repeats + 2)
            ]
            timed: Any = Timed(policy.encode)
            policy.encode = timed
            taken, shares = [], []
            for k, batch in enumerate(batches[:-1]):
                timed.seconds = 0.0
                started = time.perf_counter()
                rollouts = policy.rollout([Request(prompt, options.group_size, i, seed=k) for i, prompt in enumerate(batch)])
                policy.prefetch(batches[k + 1])
                policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS].sum().backward()
                taken.append(time.perf_counter() - started)
                shares.append(timed.seconds)
            step, wait = statistics.median(taken[1:]), statistics.median(shares[1:])
            print(f"| {number} | {workers} | {step:.2f} | {wait:.3f} | {100 * wait / step:.1f} % |", flush=True)


def resident() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def leak(folder: str, paths: list[str], number_of_steps: int) -> None:
    """Take steps with clips never seen before, so that the cache fills and forgets."""
    policy = policy_of(folder, 16, 8, workers=1, cache_mb=4)
    looks: list[tuple[float, float]] = []
    for step in range(number_of_steps + 1):
        clips = [Video(paths[(step + i) % len(paths)], frames=16, start=round(0.01 * (step % 700), 2)) for i in range(2)]
        rollouts = policy.rollout([Request(Prompt(str(i), "?", (clip,)), 2, i, seed=step) for i, clip in enumerate(clips)])
        policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS].sum().backward()
        policy.net.zero_grad()
        if step % (number_of_steps // 8) == 0:
            gc.collect()
            looks.append((resident(), policy.encode.videos.cache.num_bytes / 2**20))
    print("\n| steps | resident memory, MiB | cache, MiB |\n|---|---|---|")
    memory, cache = zip(*looks, strict=True)
    print(f"| {number_of_steps} | {min(memory):.0f} - {max(memory):.0f} | {min(cache):.1f} - {max(cache):.1f} |", flush=True)


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        paths = [draw(Path(name) / f"{i}.mp4", i, options.size, options.seconds) for i in range(max(3, options.prompts))]
        folder = model(Path(name) / "model")
        wanted = options.only
        print(f"clips of {options.seconds:g} s, {options.size[0]} x {options.size[1]}, 25 frames a second, one thread\n")
        if wanted in (None, "decode"):
            decoding(paths, options.frames, options.repeats)
        if wanted in (None, "group"):
            per_group(folder, paths, options.frames, options.group_size, options.repeats)
        if wanted in (None, "step"):
            steps(folder, paths, options.frames, options)
        if wanted in (None, "leak"):
            leak(folder, paths, options.leak_steps)


if __name__ == "__main__":
    main()
