"""CPU milliseconds of a decoded token: mmrl's ways to decode beside transformers' own `generate`.

    python benchmarks/decode.py

A small Qwen3-VL with random weights (benchmarks/small_vlm.py) writes `--tokens` tokens of `--rows` completions of one prompt with
a picture, reading it included. `generate` is given the prompt once per row, as it knows no groups. mmrl's ways are those of
policy.decode, where this version has it, and plain. All take turns in one process, on one thread.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from sides import in_turns, machine, markdown, over, write_json
from small_vlm import build, prompts_of

from mmrl.core.types import Request
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=300, help="tokens of the prompt")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    return parser.parse_args()


def ways() -> dict[str, dict[str, Any]]:
    """mmrl's ways to decode, and their settings."""
    if not any(one.name == "decode" for one in fields(TextPolicyConfig)):
        return {"plain": {}}
    return {word: {"decode": word} for word in get_args(get_type_hints(TextPolicyConfig)["decode"]) if word != "auto"}


def writer(policy: TextPolicy, args: argparse.Namespace) -> Callable[[], object]:
    asked = [Request(prompts_of(args.length, 1)[0], args.rows, group_id=0, seed=0)]
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
    model, sampling = build(Path(tempfile.mkdtemp()) / "model"), Sampling(max_new_tokens=args.tokens)
    policies = {name: TextPolicy(TextPolicyConfig(model, sampling=sampling, **how)) for name, how in ways().items()}
    work = {name: writer(policy, args) for name, policy in policies.items()}
    found = in_turns({**work, "generate": generate(policies["plain"], args)}, args.rounds)
    rows = [
        (name, f"{1000 * statistics.median(s) / args.tokens:.1f}", f"{over(found, name, 'plain'):.2f}")
        for name, s in found.items()
    ]
    print(f"{machine()}\n\n{markdown(('decoding', 'CPU ms a token', 'over plain'), rows)}")
    write_json(args.json, {"seconds": found})


if __name__ == "__main__":
    main()
