"""A test question to a server after every transfer of weights; the policy knows the answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from mmrl.engine.wire.answer import AnswerFacts, EngineMismatchError, Expected, read_answer
from mmrl.engine.wire.client import EngineClient
from mmrl.engine.wire.request import Ask, WirePrompt, sampling_params
from mmrl.engine.wire_prompts import wire_prompts
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.write.generate import LocalGenerator

FIRST_TOKEN = Sampling(temperature=0.0, max_new_tokens=1)
FAR = {"float32": 0.01, "bfloat16": 0.5}
"""Largest difference in the log-probability of the most likely token, by the type that the server computes in: far above
rounding, and far below the effect of other weights."""


@dataclass(frozen=True)
class Probe:
    """The most likely first token of an answer to a small grey picture.

    It is always the same question, so a server with a stale cache of it from other weights is found out.
    """

    prompt: WirePrompt
    params: Mapping[str, object]
    limits: AnswerFacts
    logprob: float
    """The policy's own, with the weights of the step."""

    @classmethod
    def of(cls, host: TextHost) -> "Probe":
        """Let the policy answer; every process calls it."""
        asked = host.stand_in
        own = LocalGenerator(host).write([asked], [0], [(0, 0)], FIRST_TOKEN).logprobs[0, 0]
        params = sampling_params(FIRST_TOKEN, host.banned, host.eos_token_ids)
        return cls(wire_prompts(host, [asked])[0], params, limits_of(host, FIRST_TOKEN), float(own))

    def ask(self, client: EngineClient, model: str, version: str, dtype: str) -> None:
        """Let a server answer; AbortedError or EngineDownError where it does not.

        Raises EngineMismatchError where it reads the picture differently, or has other weights.
        """
        answer = client.generate(Ask(0, (0,), 0).body(self.prompt, model, self.params))
        (written,) = read_answer(answer, self.prompt, 1, Expected(self.limits, version), client.url)
        (found,) = written.logprobs
        if abs(found - self.logprob) > FAR[dtype]:
            raise EngineMismatchError(
                f"the server at {client.url} gives the first token of a test prompt the log-probability {found:.4f}, the policy "
                f"{self.logprob:.4f}: it has other weights, or remembers what it computed with others, so serve policy.model as "
                "it is, and start the server anew"
            )


def limits_of(host: TextHost, sampling: Sampling) -> AnswerFacts:
    """The facts that every completion of this policy must agree with."""
    return AnswerFacts(host.banned, len(host.net.banned), sampling.max_new_tokens)
