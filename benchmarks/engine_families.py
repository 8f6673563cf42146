"""Which families does vLLM serve as mmrl reads them: the largest difference of log-probabilities, or the reason why not.

    python benchmarks/engine_families.py qwen3_vl glm46v --folder ENVIRONMENT

A tiny model of each family (real class and processor, random weights, heads of 32 as vLLM on a CPU wants them) is served by a
vLLM of its own, which writes eight completions of each prompt; the policy reads them again with its own network. The table
printed here stands in docs/how_to/engine.md.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from mmrl.core.types import Prompt, Request
from mmrl.lab.tiny.text.vlms import FAMILIES
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import EngineConfig
from tests.engine.servers import ENVIRONMENT, build_wide, environment, gap, policy_of, prompts, server_of


def row(family: str, folder: Path, options: Sequence[str]) -> Iterator[str]:
    """The cells of a family."""
    engine = EngineConfig(
        environment=str(environment()), sync="file", cache_mb=256, max_length=2048, folder=str(folder), options=tuple(options)
    )
    policy = policy_of(build_wide(family, folder / family), engine)
    try:
        for prompt in prompts(folder):
            yield cell(policy, prompt)
    finally:
        server_of(policy).close()


def cell(policy: TextPolicy, prompt: Prompt) -> str:
    try:
        return f"{gap(policy, policy.rollout([Request(prompt, 8, group_id=0, seed=5)])):.0e}"
    except (ValueError, RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[-1].strip()[:160]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="+", choices=FAMILIES)
    parser.add_argument("--folder", help="of vLLM's environment")
    parser.add_argument("--options", default="", help="more options of vllm serve, with spaces between them")
    args = parser.parse_args()
    if args.folder:
        os.environ[ENVIRONMENT] = args.folder
    print("| family | text | picture | two pictures | clip |\n|---|---|---|---|---|")
    for family in args.families:
        with tempfile.TemporaryDirectory() as folder:
            print(f"| `{family}` | " + " | ".join(row(family, Path(folder), args.options.split())) + " |", flush=True)


if __name__ == "__main__":
    main()
