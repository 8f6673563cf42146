"""What episodes of several turns cost: tokens that are prefilled, and CPU seconds of a rollout over those of one reading of it.

    python benchmarks/turns.py

A small Qwen3-VL with random weights (benchmarks/small_vlm.py) plays `--rows` episodes of one prompt with a picture; every turn
writes `--tokens` tokens, and the world answers each with some forty. `again` reads every turn from its beginning
(policy.episode_cache_mib = 0), `kept` goes on where the last turn ended; they take turns in one process, on one thread.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from sides import in_turns, machine, markdown, over, write_json
from small_vlm import build, prompts_of

from mmrl.core.episodes import Limits
from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Observation, Request
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.policy import Sampling, TextPolicyConfig
from tests.support.worlds import Inline, player

KEPT = "episode_cache_mib"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--length", type=int, default=300, help="tokens of the prompt")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    return parser.parse_args()


def ways() -> dict[str, dict[str, Any]]:
    """Ways to play, and their settings: those that this version of mmrl has."""
    known = any(one.name == KEPT for one in fields(TextPolicyConfig))
    return {"again": {KEPT: 0} if known else {}} | ({"kept": {}} if known else {})


@contextmanager
def prefilled() -> Iterator[list[int]]:
    """A list of the tokens of every forward that reads more than one new token of each row."""
    seen, methods = list[int](), (TextNet.prefill, TextNet.extend)

    def prefill(net: TextNet, prompts: Any, *rest: Any, **more: Any) -> Any:
        seen.append(int(prompts.attention.sum()))
        return methods[0](net, prompts, *rest, **more)

    def extend(net: TextNet, cache: Any, token_ids: torch.Tensor, *rest: Any, **more: Any) -> Any:
        seen.append(token_ids.numel() if token_ids.shape[1] > 1 else 0)
        return methods[1](net, cache, token_ids, *rest, **more)

    TextNet.prefill, TextNet.extend = prefill, extend  # type: ignore[method-assign] - counted for a while
    try:
        yield seen
    finally:
        TextNet.prefill, TextNet.extend = methods  # type: ignore[method-assign] - as above


def measure(model: str, turns: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each way to play so many turns."""
    limits = Limits(turns=turns, tokens=8192, pictures=16)
    world = Inline(lambda prompt, said, seed: Observation("go on with it " * 3), limits=limits)
    sampling = Sampling(max_new_tokens=args.tokens)
    policies = {name: player(model, world, sampling=sampling, **how) for name, how in ways().items()}
    asked = [Request(prompts_of(args.length, 1)[0], args.rows, group_id=0, seed=0, turns=turns)]
    tokens: dict[str, int] = {}
    for name, policy in policies.items():
        with prefilled() as seen:
            policy.rollout(asked)
        tokens[name] = sum(seen)
    rollouts = policies["again"].rollout(asked)

    def read() -> None:
        with torch.no_grad():
            reader.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)

    reader = policies["again"]
    plays = {name: lambda policy=policy: policy.rollout(asked) for name, policy in policies.items()}
    found = in_turns({**plays, "read": read}, args.rounds)
    return [
        {"turns": turns, "way": name, "prefilled": tokens[name], "cpu_s": found[name], "over_read": over(found, name, "read")}
        | {"over_again": over(found, name, "again")}
        for name in policies
    ]


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    model = build(Path(tempfile.mkdtemp()) / "model")
    rows = [row for turns in args.turns for row in measure(model, turns, args)]
    cells = [
        (
            f"{row['turns']}, {row['way']}",
            row["prefilled"],
            f"{min(row['cpu_s']):.2f}",
            f"{row['over_read']:.1f}",
            f"{row['over_again']:.2f}",
        )
        for row in rows
    ]
    head = ("turns", "tokens prefilled", "CPU s of a rollout", "over a reading", "over reading again")
    print(f"{machine()}\n\n{markdown(head, cells)}")
    write_json(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
