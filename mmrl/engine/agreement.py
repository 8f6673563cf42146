"""A first question to every server, whose answer the policy knows: adapters are worth nothing on top of other weights."""

from collections.abc import Callable
from dataclasses import replace

from mmrl.engine.fleet import Fleet
from mmrl.engine.wire.answer import Expected, read_answer
from mmrl.engine.wire.request import Ask, sampling_params
from mmrl.engine.wire_prompts import wire_prompt
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.write.generate import LocalGenerator

FIRST_TOKEN = Sampling(temperature=0.0, max_new_tokens=1)
FAR = {"float32": 0.01, "bfloat16": 0.5}
"""The log-probability of the most likely token may differ by so much, by the type that the server computes in: far beyond
rounding, and far below what other weights do."""


def first_logprobs(host: TextHost, fleet: Fleet) -> list[float]:
    """The log-probability that each server gives the most likely first token of an answer to a small grey picture.

    Raises:
        EngineDownError, EngineMismatchError: a server does not answer, or reads the picture otherwise.
    """
    assert fleet.update is not None
    prompt = wire_prompt(host, host.stand_in())
    params = sampling_params(FIRST_TOKEN, host.banned, host.eos_token_ids)
    found: list[float] = []
    for member in fleet.members:
        body = Ask(0, (0,), 0).body(prompt, fleet.sync.model(member.facts.served, fleet.update), params)
        version = fleet.sync.version(member.facts.weight_version, fleet.update)
        (written,) = read_answer(member.client.generate(body), prompt, 1, Expected(version, host.banned, 1), member.client.url)
        found.append(written.logprobs[0])
    return found


def compare_with_policy(host: TextHost, fleet: Fleet, ask: Callable[[Callable[[], list[float]]], list[float]]) -> None:
    """Let the policy answer the same; every process calls it, and `ask` gives all of them the main one's answer.

    Raises:
        ValueError: a server has other weights.
    """
    answers = ask(lambda: first_logprobs(host, fleet))
    own = float(LocalGenerator(host).write([host.stand_in()], [0], [(0, 0)], replace(FIRST_TOKEN)).logprobs[0, 0])
    for member, value in zip(fleet.members, answers, strict=True):
        if abs(value - own) > FAR[member.facts.dtype]:
            raise ValueError(
                f"policy.engine: the server at {member.client.url} gives the first token of a test prompt the log-probability "
                f"{value:.4f}, the policy {own:.4f}: it has other weights, so serve policy.model {host.config.model!r} as it is"
            )
