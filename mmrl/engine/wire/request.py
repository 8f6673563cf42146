"""Which rows of a step travel together, and the request that asks for them."""

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mmrl.policies.text.settings import Sampling

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
    """The sampling in vLLM's words, with nothing left to the defaults that a model's own files may bring."""
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
