"""A rollout by mmrl's own decoding and by a real vLLM server: tokens per second, new weights, gaps of log-probabilities.

    mmrl engine install
    python benchmarks/engine_step.py

The model and prompts of benchmarks/small_vlm.py, float32, random weights. mmrl starts the one server from the environment that
`mmrl engine install` made (`--environment`: another), with one thread per process, as mmrl has; where there is none, the table
says so. A rollout is `policy.rollout` on prompts that neither side has seen: preparing pictures, the requests and their answers
count on both sides, and the sides take turns. No completion ends early. New weights are `policy.rollout` of nothing after an
update: writing the file or the adapter, loading it, emptying the caches. A gap is |log-probability that the sampler gave a
token - that of a reading with the policy's own network|. All seconds are wall seconds, for most of the work is another process's.

vLLM is made for large models on cards: a tiny model on a CPU shows whether the two agree and what its protocol costs, and nothing
about which of them is faster on a GPU.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sides import markdown, write_json
from small_vlm import FRAME, TOKEN, build, prompts_of

GROUPS, GROUP_SIZE = 4, 8
ROWS = GROUPS * GROUP_SIZE
RANK = 8


@dataclass(frozen=True)
class Plan:
    """The amount of everything."""

    model: str
    environment: str
    """The folder of vLLM's environment."""
    shared: str
    """The folder of adapters on their way."""
    length: int
    """Tokens of a prompt."""
    tokens: tuple[int, ...]
    """Tokens of a completion."""
    rounds: int
    updates: int


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=300, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 128], help="new tokens of a completion")
    parser.add_argument("--rounds", type=int, default=3, help="timed rollouts per side and length")
    parser.add_argument("--updates", type=int, default=5, help="timed updates of each way")
    parser.add_argument("--environment", type=Path, help="folder of vLLM's environment; default: where mmrl makes it")
    parser.add_argument("--json", type=Path, help="file for all figures")
    return parser.parse_args()


def bounded_model(folder: Path, length: int) -> str:
    """The small model, whose processor makes pictures no larger than those of prompts of this length.

    vLLM tries the largest picture of a processor as it starts, and small_vlm's has a gigapixel: 15 GB of memory.
    """
    from transformers import AutoProcessor

    model = build(folder)
    processor = AutoProcessor.from_pretrained(model)
    processor.image_processor.size = {"shortest_edge": 4 * TOKEN**2, "longest_edge": (length - FRAME) * TOKEN**2}
    processor.save_pretrained(model)
    return model


def policy_of(plan: Plan, engine: Any = None, lora: Any = None) -> Any:
    """A policy whose completions have no early end."""
    from mmrl.engine.generator import text_parts
    from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig

    sampling = Sampling(max_new_tokens=max(plan.tokens))
    config = TextPolicyConfig(plan.model, dtype="float32", engine=engine, lora=lora, sampling=sampling)
    policy = TextPolicy(config, parts=text_parts(config))
    policy.banned |= set(policy.eos_token_ids)
    policy.net.banned[list(policy.eos_token_ids)] = True
    return policy


@contextmanager
def server(plan: Plan) -> Iterator[tuple[Any, float]]:
    """The policy that has started vLLM, and the seconds of that start; the server takes files and adapters."""
    from mmrl.policies.text.settings import EngineConfig

    words = ("--enable-lora", "--max-lora-rank", str(RANK), "--max-num-batched-tokens", "2048")
    words += ("--limit-mm-per-prompt", '{"image": 1, "video": 0}')
    engine = EngineConfig(environment=plan.environment, sync="file", cache_mb=256, max_length=2048, max_rows=ROWS, options=words)
    policy = policy_of(plan, engine)
    start = time.perf_counter()
    try:
        policy.rollout([])
        yield policy, time.perf_counter() - start
    finally:
        policy.generator.close()


@contextmanager
def adapter_policy(plan: Plan, owner: Any) -> Iterator[Any]:
    """A policy with an adapter on the server of another one, which is given the weights of its start again."""
    from mmrl.engine.facts import FIRST
    from mmrl.policies.shared.lora import LoraSettings
    from mmrl.policies.text.settings import EngineConfig

    client = owner.generator.fleet.members[0].client
    client.update({"path": f"{plan.model}/model.safetensors"}, FIRST)
    client.reset_caches()
    engine = EngineConfig(url=(owner.generator.server.url,), sync="lora", folder=plan.shared)
    policy = policy_of(plan, engine, LoraSettings(rank=RANK, alpha=2 * RANK))
    try:
        yield policy
    finally:
        policy.generator.close()


def requests_of(prompts: Sequence[Any], seed: int) -> list[Any]:
    from mmrl.core.types import Request

    return [Request(prompt, GROUP_SIZE, group_id=i, seed=seed) for i, prompt in enumerate(prompts)]


def gap(policy: Any, rollouts: Any) -> float:
    """The largest |log-probability of the sampler - that of a reading|."""
    from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS

    read = policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS].detach()
    return float((rollouts.recorded[ROLLOUT_LOGPROBS] - read).abs()[rollouts.action_mask].max())


def rollouts_of(plan: Plan, sides: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second of every side and length, in turns, and the largest gap of every side."""
    from dataclasses import replace

    fresh = prompts_of(plan.length, GROUPS * len(plan.tokens) * (1 + plan.rounds))
    speeds: dict[str, dict[int, list[float]]] = {name: {count: [] for count in plan.tokens} for name in sides}
    gaps = dict.fromkeys(sides, 0.0)
    for count in plan.tokens:
        for turn in range(1 + plan.rounds):
            requests = requests_of([fresh.pop() for _ in range(GROUPS)], seed=turn)
            for name, policy in sides.items():
                sampling = replace(policy.config.sampling, max_new_tokens=count)
                start = time.perf_counter()
                found = policy.rollout(requests, sampling)
                seconds, written = time.perf_counter() - start, int(found.action_mask.sum())
                if written != ROWS * count:
                    raise RuntimeError(f"{name} wrote {written} tokens, {ROWS * count} were asked for")
                gaps[name] = max(gaps[name], gap(policy, found))
                if turn > 0:
                    speeds[name][count].append(written / seconds)
    return {"tokens_per_s": speeds, "gap": gaps}


def updates_of(plan: Plan, policy: Any) -> dict[str, Any]:
    """Milliseconds of bringing new weights, their MiB, and gaps: after each update, and of the samples before it."""
    import torch

    generator = torch.Generator().manual_seed(0)
    requests = requests_of(prompts_of(plan.length, GROUPS), seed=7)
    ms, gaps, late = list[float](), list[float](), list[float]()
    policy.rollout([])
    for _ in range(plan.updates):
        before = policy.rollout(requests)
        with torch.no_grad():
            for weight in policy.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=generator)
        policy.advance()
        start = time.perf_counter()
        policy.rollout([])
        ms.append(1000 * (time.perf_counter() - start))
        late.append(gap(policy, before))
        gaps.append(gap(policy, policy.rollout(requests)))
    path = policy.generator.fleet.update.path
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return {"ms": ms, "mib": size / 2**20, "gap": max(gaps), "missed": min(late)}


def measure(plan: Plan) -> dict[str, Any]:
    with server(plan) as (owner, start_s):
        found = rollouts_of(plan, {"mmrl": policy_of(plan), "vllm": owner})
        by_file = updates_of(plan, owner)
        with adapter_policy(plan, owner) as adapter:
            return {**found, "start_s": start_s, "file": by_file, "lora": updates_of(plan, adapter)}


def tables(found: dict[str, Any]) -> str:
    """Markdown: tokens per second, then weights and gaps."""
    speeds = []
    for count, own in found["tokens_per_s"]["mmrl"].items():
        theirs = found["tokens_per_s"]["vllm"][count]
        median = [statistics.median(side) for side in (own, theirs)]
        spread = [f"{min(side):.0f} - {max(side):.0f}" for side in (own, theirs)]
        speeds.append([count, f"{median[0]:.0f}", spread[0], f"{median[1]:.0f}", spread[1], f"{median[1] / median[0]:.2f}"])
    head = ["new tokens", "mmrl: tokens/s", "least - most", "vLLM: tokens/s", "least - most", "vLLM / mmrl"]
    rows = [
        ["mmrl's own decoding", "", "", "", f"{found['gap']['mmrl']:.0e}", ""],
        [f"vLLM, the weights it starts with ({found['start_s']:.0f} s)", "", "", "", f"{found['gap']['vllm']:.0e}", ""],
    ]
    for name, key in (("vLLM, all weights by a file", "file"), (f"vLLM, an adapter of rank {RANK}", "lora")):
        way = found[key]
        spread = f"{min(way['ms']):.0f} - {max(way['ms']):.0f}"
        middle = [f"{way['mib']:.1f}", f"{statistics.median(way['ms']):.0f}", spread]
        rows.append([name, *middle, f"{way['gap']:.0e}", f"{way['missed']:.0e}"])
    second = ["weights", "MiB", "ms until they are served", "least - most", "largest gap", "had the update been missed"]
    return markdown(head, speeds) + "\n\n" + markdown(second, rows)


def not_measured(folder: Path, error: ValueError) -> str:
    """A table of one cell that says why; the place is a name, since the page is for all machines."""
    return markdown(["engine"], [[f"not measured: {str(error).replace(str(folder), folder.name)}"]])


def main() -> None:
    args = arguments()
    # before torch: the server inherits it
    os.environ["OMP_NUM_THREADS"] = "1"
    from mmrl.engine.venv import engine_folder, find_venv

    folder = args.environment or engine_folder()
    try:
        find_venv(folder)
    except ValueError as error:
        print(not_measured(folder, error))
        return
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        model = bounded_model(Path(place) / "model", args.length)
        shared = str(Path(place) / "shared")
        plan = Plan(model, str(folder), shared, args.length, tuple(args.tokens), args.rounds, args.updates)
        found = measure(plan)
    write_json(args.json, found)
    print(tables(found))


if __name__ == "__main__":
    main()
