"""Which rows of a step travel together, the request for them, and the answer, looked at before anything trains on it."""

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any

from mmrl.policies.text.settings import Sampling
from mmrl.runtime.net.fetch import words

MOST_ROWS = 16
"""Rows of one request; more of a prompt go in several, which read the prompt once if the same server gets them."""
NEVER = -100.0
"""The bias of a banned token, the lowest that vLLM takes: its probability is e^-100 of what it was."""
TOKEN_BYTES = 1024
"""Bytes of an answer per token with its log-probability: several times what vLLM uses."""
FINAL_ONLY = 2
"""vLLM's number for one answer at the end."""


@dataclass(frozen=True)
class Ask:
    """Rows of one prompt that one request asks for: row `rows[k]` is drawn with the seed `seed + k`."""

    prompt: int
    """Which of the prompts."""
    rows: tuple[int, ...]
    """Places in the step's list of rows."""
    seed: int

    def most_bytes(self, prompt: "WirePrompt", most: int, told: int = 1) -> int:
        """The size of the largest answer that can be right, for completions of at most `most` tokens, with so many numbers for
        every token of the prompt."""
        return 2**20 + TOKEN_BYTES * (told * len(prompt.expanded) + len(self.rows) * prompt.room(most))

    def body(self, prompt: "WirePrompt", model: str, sampling: Mapping[str, object], name: str = "") -> bytes:
        """The request as JSON; `name`: its own, by which the answer is known (empty: any)."""
        given = {"n": len(self.rows), "seed": self.seed, **sampling}
        given["max_tokens"] = prompt.room(int(str(sampling["max_tokens"])))
        body = {"request_id": name or uuid.uuid4().hex, "model": model, "return_token_ids": True, "sampling_params": given}
        return json.dumps(body | {"token_ids": list(prompt.token_ids)}).encode()[:-1] + prompt.tail


@dataclass(frozen=True)
class WirePrompt:
    """A prompt as it is sent: token ids with one placeholder per picture or clip, and the media beside them."""

    token_ids: Sequence[int]
    parts: Sequence[Mapping[str, str]] = ()
    """Pictures and clips, in their order."""
    expanded: Sequence[int] = ()
    """The ids that the server must have made of it."""
    name: str = ""
    """The prompt's id, for messages."""
    begun: int = 0
    """How many tokens of the completion are at its end already, and count as written."""

    def room(self, most: int) -> int:
        """Tokens that are still to be written of a completion of at most `most`."""
        return max(1, most - self.begun)

    @property
    def tail(self) -> bytes:
        """The end of the request's JSON, where the media stand."""
        return (b', "content_parts": ' + json.dumps(list(self.parts)).encode() if self.parts else b"") + b"}"


def share_rows(prompt_index: Sequence[int], seeds: Sequence[tuple[int, int]], most: int = MOST_ROWS) -> list[Ask]:
    """Requests for all rows. A row's seed follows from its own (seed, sample) alone, however rows are put together."""
    asks: list[Ask] = []
    order = sorted(range(len(seeds)), key=lambda i: (prompt_index[i], seeds[i], i))
    for i in order:
        seed = row_seed(*seeds[i])
        last = asks[-1] if asks else None
        if last is not None and last.prompt == prompt_index[i] and len(last.rows) < most and seed == last.seed + len(last.rows):
            asks[-1] = Ask(last.prompt, (*last.rows, i), last.seed)
        else:
            asks.append(Ask(prompt_index[i], (i,), seed))
    return asks


def row_seed(seed: int, sample: int) -> int:
    """A hash of the seed, plus the number of the sample.

    vLLM draws the k-th completion of a request as one with the seed `seed + k`, so neighbouring seeds of a run would give
    their prompts the same numbers; hashed ones lie far apart.
    """
    digest = hashlib.blake2b(str(seed).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 3) + sample


def sampling_params(sampling: Sampling, banned: Iterable[int], eos: Sequence[int]) -> dict[str, object]:
    """The sampling in vLLM's words, nothing left to the defaults that a model's own files may bring; ValueError for a rule."""
    if getattr(sampling, "rule", None) is not None:
        raise ValueError("servers draw no token at a temperature of its own: remove [policy.engine], or take another planner")
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": sampling.max_new_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(eos),
        "logit_bias": {str(token): NEVER for token in sorted(banned)},
        "logprobs": 0,
        "output_kind": FINAL_ONLY,
    }


NO_NUMBER = -9000.0
"""vLLM writes -9999 for a log-probability that is no number, or minus infinity."""
OTHER_VERSION = "use the version of vLLM that mmrl was tried with"


class AbortedError(Exception):
    """The server gave up a completion: what it wrote so far is not a sample, and must be drawn again."""


class EngineMismatchError(RuntimeError):
    """The server's answer shows another model, other weights or other settings."""


@dataclass(frozen=True)
class Written:
    """One completion."""

    tokens: Sequence[int]
    """The token or the text that ended it included."""
    logprobs: Sequence[float]
    stopped: bool
    """False where max_new_tokens cut it."""
    told: Sequence[Mapping[int, float]] = ()
    """Token -> log-probability, at every place of the beginning that the prompt ends with: what is there, and likely ones."""


@dataclass(frozen=True)
class AnswerFacts:
    """The facts that every answer must agree with, whoever gives it."""

    banned: frozenset[int]
    vocabulary: int
    """Tokens that there are."""
    most: int
    """Tokens of a completion."""
    likely: int | None = None
    """Likeliest tokens that are told at every place of the prompt besides the one that is there; None: nothing is told."""


@dataclass(frozen=True)
class Expected:
    """The facts that the answer of one server must agree with."""

    limits: AnswerFacts
    version: str
    """The name of the weights."""
    longest: int = 0
    """Tokens of a prompt and its completion together; 0: no bound."""
    request: str = ""
    """The name of the request, which the server puts at the end of its own; empty: not compared."""


def read_answer(answer: Mapping[str, Any], prompt: WirePrompt, count: int, expected: Expected, url: str) -> list[Written]:
    """The completions of one request, in the order of their seeds; AbortedError where the server gave one of them up.

    Raises EngineMismatchError where prompt, weights or a token are not what they must be, or the answer is none of vLLM's.
    """
    try:
        if not str(answer.get("request_id")).endswith(expected.request):
            raise EngineMismatchError(f"{url} gave prompt {prompt.name!r} the answer to another request: {OTHER_VERSION}")
        compare_prompts(answer.get("prompt_token_ids"), prompt, url)
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        if [choice["index"] for choice in choices] != list(range(count)):
            raise EngineMismatchError(
                f"{url} answered {len(choices)} completions of prompt {prompt.name!r}, {count} were asked for: {OTHER_VERSION}"
            )
        told = read_told(answer.get("prompt_logprobs"), prompt, expected.limits, url)
        return [replace(read_choice(choice, prompt, expected, url), told=told) for choice in choices]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        said = words(f"{type(error).__name__}: {error}")
        raise EngineMismatchError(
            f"{url} answered a request for completions of prompt {prompt.name!r} with what is none ({said}): {OTHER_VERSION}"
        ) from None


def compare_prompts(found: object, prompt: WirePrompt, url: str) -> None:
    """Raise EngineMismatchError unless the server put the placeholders where the policy's own processor puts them."""
    if not isinstance(found, list):
        raise EngineMismatchError(f"{url} does not say which prompt it read: {OTHER_VERSION}")
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
    reason = str(choice["finish_reason"])
    if reason not in ("stop", "length"):
        raise AbortedError(f"{url} ended a completion of prompt {prompt.name!r} with {words(reason)!r}")
    versions = {str(span["version"]) for span in choice.get("weight_versions") or ()}
    if versions != {expected.version}:
        found = words(" and ".join(sorted(versions))) or "none that it names"
        raise EngineMismatchError(
            f"{url} wrote with the weights {found}, and those of the step are {expected.version}: "
            "let no other run update this server, and start one for every run"
        )
    tokens, noted = choice["token_ids"], choice["logprobs"]["content"]
    logprobs = [entry["logprob"] for entry in noted]
    most = prompt.room(expected.limits.most)
    if not tokens or len(tokens) != len(logprobs) or len(tokens) > most:
        raise EngineMismatchError(
            f"{url} answered {len(tokens)} tokens and {len(logprobs)} log-probabilities for prompt {prompt.name!r}, and at "
            f"most {most} of each were asked for: {OTHER_VERSION}"
        )
    is_full = 0 < expected.longest <= len(prompt.expanded) + len(tokens)
    if reason == "length" and len(tokens) < most and not is_full:
        raise EngineMismatchError(
            f"{url} cut a completion of prompt {prompt.name!r} after {len(tokens)} of {most} tokens, which would train as one "
            f"that is too long: {OTHER_VERSION}"
        )
    check_tokens(tokens, expected.limits, prompt, url)
    if [entry["token_id"] for entry in noted] != tokens:
        raise EngineMismatchError(
            f"{url} answered a completion of prompt {prompt.name!r} with log-probabilities of other tokens: {OTHER_VERSION}"
        )
    check_logprobs(logprobs, prompt, url)
    return Written(tokens, [float(x) for x in logprobs], reason == "stop")


def read_told(found: object, prompt: WirePrompt, limits: AnswerFacts, url: str) -> Sequence[Mapping[int, float]]:
    """The log-probabilities that are told at each token of the beginning a prompt ends with; raises as `read_answer`."""
    if limits.likely is None:
        return ()
    if not isinstance(found, list) or len(found) != len(prompt.expanded):
        raise EngineMismatchError(
            f"{url} does not tell what tokens are worth at each of the {len(prompt.expanded)} places of prompt {prompt.name!r}: "
            f"{OTHER_VERSION}"
        )
    told, behind = list[Mapping[int, float]](), len(found) - prompt.begun
    for token, entry in zip(prompt.expanded[behind:], found[behind:], strict=True):
        logprobs = {int(key): known["logprob"] for key, known in entry.items()}
        others = [one for one in logprobs if one != token]
        check_tokens(others, replace(limits, banned=frozenset()), prompt, url)
        check_logprobs(logprobs.values(), prompt, url)
        own = logprobs.get(token)
        faults = {
            "not what the token there is worth": own is None,
            f"of {len(entry)} tokens": not limits.likely <= len(entry) == len(logprobs) <= limits.likely + 1,
            "of others than the likeliest tokens": len(others) == limits.likely > 0
            and min(logprobs[one] for one in others) < (own or 0) - 1e-3,
            "more than all probability": sum(map(exp, logprobs.values())) > 1.01,
        }
        if wrong := next((name for name, held in faults.items() if held), ""):
            raise EngineMismatchError(
                f"{url} told {wrong} at a place of prompt {prompt.name!r}, where {limits.likely} likely ones were asked for: "
                f"{OTHER_VERSION}"
            )
        told.append(logprobs)
    return told


def check_logprobs(found: Iterable[object], prompt: WirePrompt, url: str) -> None:
    """Raise EngineMismatchError unless all are log-probabilities."""
    wrong = [x for x in found if type(x) not in (int, float) or not NO_NUMBER < x <= 1e-3]  # type: ignore[operator] - `or` saw the type
    if wrong:
        raise EngineMismatchError(
            f"{url} gave a token of prompt {prompt.name!r} the log-probability {words(str(wrong[0]))}, which is none: look for "
            'weights that are infinite or NaN, or serve the model with --dtype float32 (policy.engine.dtype = "float32")'
        )


def check_tokens(tokens: Sequence[object], limits: AnswerFacts, prompt: WirePrompt, url: str) -> None:
    """Raise EngineMismatchError unless all are ids of tokens that a completion may hold."""
    odd = [x for x in tokens if type(x) is not int or not 0 <= x < limits.vocabulary]
    if odd:
        raise EngineMismatchError(
            f"{url} wrote {words(str(odd[:3]))} for prompt {prompt.name!r}, and tokens are whole numbers from 0 to "
            f"{limits.vocabulary - 1}: {OTHER_VERSION}, and the policy's own model"
        )
    forbidden = sorted(limits.banned.intersection(tokens))
    if forbidden:
        raise EngineMismatchError(
            f"{url} wrote the tokens {forbidden[:3]} for prompt {prompt.name!r}, which no completion may hold: "
            f"{OTHER_VERSION}, and the policy's own tokenizer"
        )
