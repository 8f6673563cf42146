"""CPU milliseconds of a decoded token: mmrl's ways to decode beside transformers' own `generate`.

    python benchmarks/decode.py

A small Qwen3-VL with random weights (benchmarks/small_vlm.py) writes `--tokens` tokens of `--rows` completions of one prompt with
a picture, reading it included. `generate` is given the prompt once per row, as it knows no groups. All take turns in one
process, on one thread, after what is compiled was compiled.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from sides import in_turns, machine, markdown, over, write_json
from small_vlm import build, prompts_of

from mmrl.core.episodes import Limits
from mmrl.core.types import Observation, Request
from mmrl.policies.text.dry_run import TextDryRun
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from tests.support.worlds import Inline, player


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=300, help="tokens of the prompt")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--turns", type=int, default=1, help="of an episode; above 1 without `generate`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    return parser.parse_args()


WAYS: dict[str, dict[str, Any]] = {
    "plain": {"decode": "plain"},
    "shared": {"decode": "shared"},
    "shared, compiled": {"decode": "shared", "compile": True},
}
"""mmrl's ways to decode, and their settings."""


def built(model: str, how: dict[str, Any], args: argparse.Namespace) -> TextPolicy:
    world = Inline(lambda *_: Observation("go on with it " * 3), limits=Limits(turns=args.turns, tokens=8192))
    settings = {"sampling": Sampling(max_new_tokens=args.tokens), **how}
    policy = player(model, world, **settings) if args.turns > 1 else TextPolicy(TextPolicyConfig(model, **settings))
    policy.prepare(Accelerator(cpu=True))
    return policy


def held(model: str, how: dict[str, Any], args: argparse.Namespace) -> float:
    """MiB of keys and values of all rows at the end of a turn, as `mmrl plan` counts them."""
    dry = TextDryRun(TextPolicyConfig(model, sampling=Sampling(max_new_tokens=args.tokens), **how))
    dry.policy.rollout([Request(prompts_of(args.length, 1)[0], args.rows, group_id=0, seed=0)])
    dry.activations()
    return dry.cache_bytes / 2**20


def writer(policy: TextPolicy, args: argparse.Namespace) -> Callable[[], object]:
    asked = [Request(prompts_of(args.length, 1)[0], args.rows, group_id=0, seed=0, turns=args.turns)]
    policy.eos_token_ids = (policy.net.num_tokens - 1,)
    return lambda: policy.rollout(asked)


def generate(policy: TextPolicy, args: argparse.Namespace) -> Callable[[], object]:
    """transformers' own loop, with as many tokens of every row."""
    (picture,) = prompts_of(args.length, 1)
    words = [{"type": "image", "image": picture.media[0]}, {"type": "text", "text": picture.text}]
    how: dict[str, Any] = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    fed = policy.processor.apply_chat_template([{"role": "user", "content": words}], **how)
    length: dict[str, Any] = {"min_new_tokens": args.tokens, "max_new_tokens": args.tokens}
    return lambda: policy.net.model.generate(**fed, do_sample=True, num_return_sequences=args.rows, **length)


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    model = build(Path(tempfile.mkdtemp()) / "model")
    policies = {name: built(model, how, args) for name, how in WAYS.items()}
    work = {name: writer(policy, args) for name, policy in policies.items()}
    start = time.process_time()
    work["shared, compiled"]()
    took = time.process_time() - start
    if args.turns == 1:
        work["generate"] = generate(policies["plain"], args)
    found, count = in_turns(work, args.rounds), args.tokens * args.turns
    rows = [
        (
            name,
            f"{1000 * statistics.median(s) / count:.1f}",
            f"{over(found, name, 'plain'):.2f}",
            f"{held(model, WAYS[name], args):.1f}" if name in WAYS else "",
        )
        for name, s in found.items()
    ]
    print(f"{machine()}; the first compiled rollout: {took:.0f} CPU s of this process\n")
    print(markdown(("decoding", "CPU ms a token", "over plain", "MiB of keys and values"), rows))
    write_json(args.json, {"seconds": found, "first": took})


if __name__ == "__main__":
    main()
