"""Attacks of an engine on the run that it writes for: a server that is rude, repeats its key, lies, or keeps old caches."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.engine.facts import ask_facts
from mmrl.engine.generator import VllmGenerator, text_parts
from mmrl.engine.wire.client import EngineClient
from mmrl.engine.wire.completions import AnswerFacts, Ask, EngineMismatchError, Expected, WirePrompt, read_answer
from mmrl.lab.tiny.text.vlms import build
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import EngineConfig
from tests.attacks.attack import Attack
from tests.attacks.client import DEADLINE_S, expect_error, keep_quiet, outcome_of, withstand
from tests.support.fake_engines import engines
from tests.support.rude_servers import RUDE, answers, echoes, rude
from tests.support.text_policies import logprobs, mixed

PROMPT = WirePrompt([1, 9, 2], expanded=[1, 9, 9, 2], name="p")
LIMITS = AnswerFacts(frozenset({9}), vocabulary=20, most=4)
NEEDED = Qwen2_5_VLForConditionalGeneration
"""Imported before the threads that attack: transformers fails where two ask for a class at once."""
PATIENT_S = 40.0
"""The deadline of calls that are answered at once: on a busy machine they must be sent, too."""
CLOSE = 1e-4
"""Largest |log ratio| that rounding makes."""


def called(use: Callable[[EngineClient], object], url: str, seconds: float = DEADLINE_S) -> object:
    """One call of a server, with the key and a short deadline."""
    client = EngineClient(url, seconds, "ATTACK_KEY")
    try:
        return use(client)
    finally:
        client.close()


def completions(client: EngineClient) -> object:
    """Ask for two completions and read them."""
    ask = Ask(0, (0, 1), 0)
    body = ask.body(PROMPT, "policy", {"max_tokens": LIMITS.most})
    answer = client.generate(body, ask.most_bytes(PROMPT, LIMITS.most))
    return read_answer(answer, PROMPT, 2, Expected(LIMITS, "run-3", 100), client.url)


CALLS: dict[str, Callable[..., object]] = {
    "completions": partial(called, completions),
    "the weights' name": partial(called, EngineClient.weight_version),
    "adapters": partial(called, EngineClient.model_names),
    "workers": partial(called, lambda client: client.ask_workers("tensors_problem", "[]")),
    "facts": partial(called, ask_facts),
}
"""What is asked of a server, by name."""


def pause(client: EngineClient) -> object:
    """Calls whose answers hold nothing: what is said in them goes nowhere."""
    client.pause()
    client.reset_caches()
    client.update({"path": "/nowhere"}, "run-3")
    return "done"


def choice(index: object, tokens: list[Any], reason: object = "stop", **other: Any) -> dict[str, Any]:
    """One completion as vLLM answers it."""
    noted = [{"token_id": token, "logprob": -0.5} for token in tokens]
    honest = {"index": index, "token_ids": tokens, "finish_reason": reason, "logprobs": {"content": noted}}
    return honest | {"weight_versions": [{"version": "run-3"}]} | other


def answer(*choices: object, prompt: object = (1, 9, 9, 2), **other: object) -> bytes:
    return json.dumps({"prompt_token_ids": prompt, "choices": list(choices)} | other).encode()


GOOD = choice(1, [5, 6, 7])
LIES: dict[str, bytes] = {
    "a token beyond the vocabulary": answer(choice(0, [20]), GOOD),
    "a token below 0": answer(choice(0, [-1]), GOOD),
    "a token of 4,000 digits": answer(choice(0, [10**3999]), GOOD),
    "tokens with a point": answer(choice(0, [3.0]), GOOD),
    "tokens that are lists": answer(choice(0, [[3]]), GOOD),
    "tokens that are texts": answer(choice(0, ["3"]), GOOD),
    "tokens that are true": answer(choice(0, [True]), GOOD),
    "no tokens": answer(choice(0, []), GOOD),
    "tokens as a text": answer(choice(0, [3], token_ids="3"), GOOD),
    "a token that no completion may hold": answer(choice(0, [9]), GOOD),
    "more tokens than were asked for": answer(choice(0, [3] * 5), GOOD),
    "a cut after 1 of 4 tokens": answer(choice(0, [3], "length"), GOOD),
    "no log-probability": answer(choice(0, [3], logprobs={"content": [{}]}), GOOD),
    "fewer log-probabilities than tokens": answer(choice(0, [3, 4], logprobs={"content": [{"logprob": -1}]}), GOOD),
    "a log-probability that is a text": answer(choice(0, [3], logprobs={"content": [{"logprob": "-1"}]}), GOOD),
    "a log-probability that is NaN": answer(choice(0, [3], logprobs={"content": [{"logprob": float("nan")}]}), GOOD),
    "a log-probability of -1e999": answer(choice(0, [3], logprobs={"content": [{"logprob": float("-inf")}]}), GOOD),
    "a log-probability of 5": answer(choice(0, [3], logprobs={"content": [{"logprob": 5}]}), GOOD),
    "log-probabilities that are null": answer(choice(0, [3], logprobs=None), GOOD),
    "no index": answer({key: value for key, value in choice(0, [3]).items() if key != "index"}, GOOD),
    "an index that is a text": answer(choice("0", [3]), GOOD),
    "an index twice": answer(GOOD, GOOD),
    "one completion too few": answer(GOOD),
    "one completion too many": answer(choice(0, [3]), GOOD, choice(2, [3])),
    "completions that are numbers": answer(0, 1),
    "no completions": answer(choices=None),
    "the weights of another update": answer(choice(0, [3], weight_versions=[{"version": "run-2"}]), GOOD),
    "weights that changed on the way": answer(choice(0, [3], weight_versions=[{"version": "run-3"}, {"version": "run-4"}]), GOOD),
    "weights without a name": answer(choice(0, [3], weight_versions=[{}]), GOOD),
    "another prompt": answer(choice(0, [3]), GOOD, prompt=[1, 9, 2]),
    "no prompt": answer(choice(0, [3]), GOOD, prompt=None),
    "nesting of 100,000": b"[" * 100_000,
    "half of an answer": answer(choice(0, [3]), GOOD)[:-5],
    "an answer of 3 MiB": answer(choice(0, [3]), GOOD, padding="x" * (3 << 20)),
    "escape sequences in the weights' name": answer(choice(0, [3], weight_versions=[{"version": "\x1b[2J"}]), GOOD),
    "escape sequences as an end": answer(choice(0, [3], "\x1b[2J"), GOOD),
}
"""Answers to a request for two completions of at most 4 tokens, of 20 that there are."""
ENDS = ("escape sequences as an end",)
"""Those that are taken for completions that were given up, and asked for again."""


def entry(**logprobs: object) -> dict[str, object]:
    """What a teacher tells of a place."""
    return {name.removeprefix("t"): {"logprob": value, "rank": 1} for name, value in logprobs.items()}


def told(*places: object, **other: object) -> bytes:
    """A teacher's answer: these places behind those of the prompt."""
    known = {"prompt_logprobs": [None, *[entry(t1=-0.5)] * 3, *places]} | other
    return answer(choice(0, [3]), prompt=TAUGHT.expanded, **known)


TAUGHT = WirePrompt([1, 9, 2, 4, 5], expanded=[1, 9, 9, 2, 4, 5], name="p", begun=2)
TELLING = replace(LIMITS, most=1, likely=1)
TRUE = entry(t4=-2.5, t7=-0.5), entry(t5=-0.25)
LIES_OF_TEACHERS: dict[str, bytes] = {
    "no places": told(prompt_logprobs=None),
    "places that are a text": told(prompt_logprobs="123456"),
    "one place too few": told(TRUE[0]),
    "one place too many": told(*TRUE, TRUE[1]),
    "a place that is nothing": told(TRUE[0], None),
    "a place that is a list": told(TRUE[0], [-0.25]),
    "an empty place": told(TRUE[0], {}),
    "another token in place of its own": told(TRUE[0], entry(t4=-0.25)),
    "its own token alone where likely ones are asked for": told(entry(t4=-2.5), {}),
    "more tokens than were asked for": told(entry(t4=-2.5, t7=-0.5, t8=-3.0), TRUE[1]),
    "its own token twice": told(TRUE[0], entry(t5=-0.25, t05=-0.25)),
    "a token beyond the vocabulary": told(entry(t4=-2.5, t20=-0.5), TRUE[1]),
    "a token of 4,000 digits": told({**entry(t4=-2.5), "1" * 4000: {"logprob": -0.5}}, TRUE[1]),
    "a token that is a word": told(entry(t4=-2.5, tx=-0.5), TRUE[1]),
    "a likely token that is less likely than its own": told(entry(t4=-0.5, t7=-2.5), TRUE[1]),
    "more than all probability": told(entry(t4=-0.1, t7=-0.1), TRUE[1]),
    "a log-probability that is NaN": told(TRUE[0], entry(t5=float("nan"))),
    "a log-probability of -1e999": told(TRUE[0], entry(t5=float("-inf"))),
    "a log-probability of 5": told(TRUE[0], entry(t5=5)),
    "a log-probability that is a text": told(TRUE[0], entry(t5="-1")),
    "a log-probability that is true": told(TRUE[0], entry(t5=True)),
    "a log-probability that is null": told(TRUE[0], entry(t5=None)),
    "a number in place of an entry": told(TRUE[0], {"5": -0.25}),
    "another prompt": told(*TRUE, prompt_token_ids=[1, 9, 2, 4, 5]),
    "other weights": answer(
        choice(0, [3], weight_versions=[{"version": "run-2"}]),
        prompt=TAUGHT.expanded,
        prompt_logprobs=[None, *[entry(t1=-0.5)] * 3, *TRUE],
    ),
    "an answer of 3 MiB": told(*TRUE, padding="x" * (3 << 20)),
}
"""A teacher's answers about two tokens, with the likeliest one at each place."""


def readings(client: EngineClient) -> object:
    """Ask a teacher."""
    ask = Ask(0, (0,), 0)
    body = ask.body(TAUGHT, "policy", {"max_tokens": 1, "prompt_logprobs": 1})
    found = client.generate(body, ask.most_bytes(TAUGHT, 1, 3))
    return read_answer(found, TAUGHT, 1, Expected(TELLING, "run-3", 100), client.url)


def lie(said: bytes, is_end: bool, folder: Path, use: Callable[[EngineClient], object] = completions) -> str:
    with rude(answers(200, said)) as server:
        outcome = outcome_of(lambda: called(use, server.url, PATIENT_S))
    if is_end:
        assert type(outcome).__name__ == "AbortedError" and str(outcome).isprintable(), f"the outcome is {outcome!r}"
        return "asked again"
    return expect_error(outcome)


def honest(said: bytes, use: Callable[[EngineClient], object], folder: Path) -> str:
    """The answer whose variants are the lies is read."""
    with rude(answers(200, said)) as server:
        outcome = outcome_of(lambda: called(use, server.url, PATIENT_S))
    assert isinstance(outcome, list), f"the outcome is {outcome!r}"
    return "read"


def stale(fault: dict[str, object], updates: int, folder: Path) -> str:
    """A fault of the caches at an update: the rows after it are the new weights', or the run stops."""
    build("qwen2_5_vl", folder / "model")
    with ExitStack() as stack:
        (engine,) = stack.enter_context(engines(str(folder / "model")))
        settings = EngineConfig(url=(engine.url,), timeout_s=60.0)
        config = TextPolicyConfig(str(folder / "model"), engine=settings, sampling=Sampling(max_new_tokens=5))
        policy = TextPolicy(config, parts=text_parts(config))
        assert isinstance(policy.generator, VllmGenerator)
        stack.callback(policy.generator.close)
        policy.rollout(mixed())
        engine.order(**fault)
        draw = torch.Generator().manual_seed(3)
        for _ in range(updates):
            with torch.no_grad():
                for weight in policy.parameters():
                    weight += 0.1 * torch.randn(weight.shape, generator=draw)
            policy.advance()
            try:
                rollouts = policy.rollout(mixed())
            except EngineMismatchError:
                return "the run stops"
            difference = rollouts.recorded[ROLLOUT_LOGPROBS] - logprobs(policy, rollouts).detach()
            worst = float(difference.abs()[rollouts.action_mask].max())
            assert worst <= CLOSE, f"|log ratio| is {worst:.2g}"
    return "caches emptied again"


ATTACKS = [
    *(
        Attack("engine", f"{what}: {name}", partial(withstand, CALLS[what], script))
        for what in ("completions", "the weights' name")
        for name, script in RUDE.items()
    ),
    *(
        Attack("engine", f"{what}: {name}", partial(withstand, CALLS[what], RUDE[name]))
        for what in ("adapters", "workers", "facts")
        for name in ("headers that drip", "endless 102s", "silence", "an endless body", "control characters")
    ),
    *(
        Attack("engine", f"{what}: the key comes back with {status}{' in escapes' * escape}", partial(keep_quiet, call, script))
        for what, call in ({**CALLS, "a pause": partial(called, pause)}).items()
        for status in (200, 302, 401, 500)
        for escape in (False, True)
        for script in (echoes(status, escape),)
    ),
    Attack("engine", "an honest answer", partial(honest, answer(choice(0, [3]), GOOD), completions)),
    Attack("engine", "an honest teacher", partial(honest, told(*TRUE), readings)),
    *(Attack("engine", f"a teacher tells {name}", partial(lie, x, False, use=readings)) for name, x in LIES_OF_TEACHERS.items()),
    *(Attack("engine", f"answers {name}", partial(lie, said, name in ENDS)) for name, said in LIES.items()),
    *(Attack("engine", f"reset number {n} of its caches fails", partial(stale, {"break_reset": n}, 2)) for n in (1, 2)),
    Attack("engine", "it says that it emptied its cache of prompts, and did not", partial(stale, {"silent": ["prefix"]}, 1)),
]
