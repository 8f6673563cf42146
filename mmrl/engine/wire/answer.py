"""A server's answer, looked at before anything trains on it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.engine.wire.request import WirePrompt

NO_NUMBER = -9000.0
"""vLLM writes -9999 for a log-probability that is no number, or minus infinity."""


class AbortedError(Exception):
    """The server gave up a completion: what it wrote so far is no sample, and must be drawn again."""


class EngineMismatchError(RuntimeError):
    """The server answers as one with another model, other weights or other settings would."""


@dataclass(frozen=True)
class Written:
    """One completion."""

    tokens: Sequence[int]
    """The token or the text that ended it included."""
    logprobs: Sequence[float]
    stopped: bool
    """False where max_new_tokens cut it."""


@dataclass(frozen=True)
class Expected:
    """The facts that an answer must agree with."""

    version: str
    """The name of the weights."""
    banned: frozenset[int]
    most: int
    """Tokens of a completion."""


def read_answer(answer: Mapping[str, Any], prompt: WirePrompt, count: int, expected: Expected, url: str) -> list[Written]:
    """The completions of one request, in the order of their seeds.

    Raises:
        AbortedError: the server gave one of them up.
        EngineMismatchError: the prompt, the weights or a token is not what it must be.
    """
    compare_prompts(answer.get("prompt_token_ids"), prompt, url)
    choices = sorted(answer.get("choices") or [], key=lambda choice: choice["index"])
    if [choice["index"] for choice in choices] != list(range(count)):
        raise EngineMismatchError(
            f"{url} answered {len(choices)} completions of prompt {prompt.name!r}, {count} were asked for: "
            "use the version of vLLM that mmrl was tried with"
        )
    return [read_choice(choice, prompt, expected, url) for choice in choices]


def compare_prompts(found: object, prompt: WirePrompt, url: str) -> None:
    """Raise EngineMismatchError unless the server put the placeholders where the policy's own processor puts them."""
    if not isinstance(found, Sequence):
        raise EngineMismatchError(f"{url} does not say which prompt it read: use the version of vLLM that mmrl was tried with")
    ids, wanted = list(found), list(prompt.expanded)
    if ids == wanted:
        return
    place = next((i for i, (a, b) in enumerate(zip(ids, wanted, strict=False)) if a != b), min(len(ids), len(wanted)))
    raise EngineMismatchError(
        f"{url} read prompt {prompt.name!r} as {len(ids)} tokens, the policy as {len(wanted)}, and they differ from place "
        f"{place} on: give the server the policy's own model, processor, min_pixels and max_pixels"
    )


def read_choice(choice: Mapping[str, Any], prompt: WirePrompt, expected: Expected, url: str) -> Written:
    """One completion; raises as `read_answer`."""
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise AbortedError(f"{url} ended a completion of prompt {prompt.name!r} with {reason!r}")
    versions = {str(span["version"]) for span in choice.get("weight_versions") or ()}
    if versions != {expected.version}:
        found = " and ".join(sorted(versions)) or "none that it names"
        raise EngineMismatchError(
            f"{url} wrote with the weights {found}, and those of the step are {expected.version}: "
            "let no other run update this server, and start one for every run"
        )
    tokens = list(choice.get("token_ids") or ())
    logprobs = [entry["logprob"] for entry in ((choice.get("logprobs") or {}).get("content") or ())]
    if not tokens or len(tokens) != len(logprobs) or len(tokens) > expected.most:
        raise EngineMismatchError(
            f"{url} answered {len(tokens)} tokens and {len(logprobs)} log-probabilities for prompt {prompt.name!r}, and at "
            f"most {expected.most} of each were asked for: use the version of vLLM that mmrl was tried with"
        )
    wrong = [x for x in logprobs if not isinstance(x, float | int) or math.isnan(x) or x <= NO_NUMBER or x > 1e-3]
    if wrong:
        raise EngineMismatchError(
            f"{url} gave a token of prompt {prompt.name!r} the log-probability {wrong[0]}, which is none: look for weights "
            'that are infinite or NaN, or serve the model with policy.engine.dtype = "float32"'
        )
    forbidden = sorted(expected.banned.intersection(tokens))
    if forbidden:
        raise EngineMismatchError(
            f"{url} wrote the tokens {forbidden[:3]} for prompt {prompt.name!r}, which no completion may hold: "
            "use the version of vLLM that mmrl was tried with, and the policy's own tokenizer"
        )
    return Written(tokens, [float(x) for x in logprobs], reason == "stop")
