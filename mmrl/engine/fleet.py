"""The servers of a run together: they share the rows of a step, and when one dies its rows go to others or wait for it."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from mmrl.engine.facts import FIRST, ServerFacts
from mmrl.engine.server import EngineServer
from mmrl.engine.sync import Sync, Update
from mmrl.engine.wire.client import EngineClient, EngineDownError, EngineRefusedError
from mmrl.engine.wire.completions import (
    AbortedError,
    AnswerFacts,
    Ask,
    EngineMismatchError,
    Expected,
    WirePrompt,
    Written,
    read_answer,
    sampling_params,
)
from mmrl.engine.wire_prompts import wire_prompts
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.settings import EngineConfig, Sampling
from mmrl.policies.text.write.generate import LocalGenerator
from mmrl.runtime.blame import EngineUnavailableError

FIRST_TOKEN = Sampling(temperature=0.0, max_new_tokens=1)
FAR = {"float32": 0.01, "bfloat16": 0.5}
"""Largest difference in the log-probability of the most likely token, by the type that the server computes in: far above
rounding, and far below the effect of other weights."""


@dataclass(frozen=True)
class Probe:
    """A test question after every transfer of weights: the likeliest first token of an answer to a small grey picture.

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


log = logging.getLogger("mmrl")
T = TypeVar("T")
R = TypeVar("R")
POLL_S = 0.2
LOOK_S = 1.0
"""Pause between two looks at servers that may have been started again."""
THREADS = 64
"""Requests of one process that are under way at one server."""


@dataclass
class Member:
    """One server of a run."""

    client: EngineClient
    facts: ServerFacts
    alive: bool = True
    trouble: str = ""
    """Why it is not."""
    pushing: threading.Lock = field(default_factory=threading.Lock, repr=False)


@dataclass
class Fleet:
    """All servers of a run, as one process of it sees them."""

    members: list[Member]
    sync: Sync
    settings: EngineConfig
    rank: int = 0
    own: Callable[[], EngineServer | None] = lambda: None
    """The server that this very process started, if it did."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held by the thread that looks whether a server is back."""
    update: Update | None = None
    """The weights of the step."""
    is_left: bool = False
    """Nothing waits any more for the completions that are written."""
    pushed: Update | None = None
    """The weights that the servers were given last."""
    is_over: threading.Event = field(default_factory=threading.Event, repr=False)
    """The run is over."""
    probe: Probe | None = None
    """The test question, with the policy's answer under these weights; None: the servers have weights of their own."""

    @property
    def alive(self) -> list[Member]:
        """The servers that are well."""
        return [member for member in self.members if member.alive]

    def push(self) -> None:
        """Give all servers the weights of the step; ValueError where one says that it cannot read them.

        Raises EngineUnavailableError where none took them, EngineMismatchError where one answers as if it had others.
        """
        for member, trouble in zip(self.members, self._together(self._push_to, self.members, len(self.members)), strict=True):
            member.alive, member.trouble = not trouble, trouble
        self.pushed = self.update
        self._wait_for_one()

    def look_after_all(self) -> None:
        """Give the weights of the step to servers that lost them, until the run is over.

        A thread of the main process does so where there are others: they wait for a server that only this process can give
        weights, and it may itself wait for them and ask nothing.
        """
        refused = set[tuple[str, str]]()
        while not self.is_over.wait(LOOK_S):
            update = self.update
            if update is None or self.pushed is not update or self.is_left:
                continue
            for member in self.members:
                tried = update.name, member.client.url
                if tried not in refused and member.client.is_healthy() and not self._has_weights(member):
                    try:
                        self._revive(member)
                    except EngineUnavailableError as error:
                        refused.add(tried)
                        log.warning("%s", error)

    def _push_to(self, member: Member) -> str:
        """Give one server the weights of the step, compare its first answer, and say why it cannot be used."""
        with member.pushing:
            assert self.update is not None
            try:
                self.sync.push(member.client, self.update)
                held = self.sync.holds(member.client, self.update)
            except EngineDownError as error:
                return str(error)
            except EngineRefusedError as error:
                raise EngineRefusedError(f"{error}. {self.sync.advice(self.update)}") from None
            return self._compare(member) if held else f"{member.client.url} does not have the weights that it was given"

    def _compare(self, member: Member) -> str:
        """Compare a server's first answer with the policy's, and say why there is none."""
        if self.probe is None:
            return ""
        try:
            self.probe.ask(member.client, self._model(member), self._version(member), member.facts.dtype)
        except (EngineDownError, AbortedError) as error:
            return str(error)
        except (EngineRefusedError, EngineMismatchError) as error:
            if not self._was_started_again(member):
                raise
            return str(error)
        return ""

    def write(
        self, asks: Sequence[Ask], prompts: Sequence[WirePrompt], params: dict[str, object], limits: AnswerFacts
    ) -> list[list[Written]]:
        """The completions of all requests, in their order.

        Raises EngineUnavailableError where no server answers, or requests are given up again and again; EngineMismatchError for
        an answer that is not what the policy's own network would have been asked for.
        """
        if not asks:
            return []

        def ask(place: int) -> list[Written]:
            return self._ask(place, asks[place], prompts[asks[place].prompt], params, limits)

        return self._together(ask, range(len(asks)), min(len(asks), THREADS * len(self.members)))

    def _together(self, work: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
        """All answers; after an error, or when the run is asked to stop, the other calls are given up and not waited for."""
        pool = ThreadPoolExecutor(threads)
        try:
            return list(pool.map(work, items))
        except BaseException:
            self.leave()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def begin(self) -> None:
        """Allow calls again after `leave`."""
        if self.is_left:
            self.is_left = False
            for member in self.members:
                member.client.reopen()

    def leave(self) -> None:
        """Give up what is written or pushed: its threads end at once, and not when servers answer, and no call goes out."""
        self.is_left = True
        for member in self.members:
            member.client.close()

    def _ask(self, place: int, ask: Ask, prompt: WirePrompt, params: dict[str, object], limits: AnswerFacts) -> list[Written]:
        """One request, sent until it is answered; the same seeds give the same completions, wherever and whenever."""
        assert self.update is not None
        aborted = failed = 0
        while True:
            if self.is_left:
                raise EngineUnavailableError("nothing waits for its completions any more")
            member = self._pick(place)
            name = uuid.uuid4().hex
            expected = Expected(limits, self._version(member), member.facts.max_length, name)
            try:
                body = ask.body(prompt, self._model(member), params, name)
                answer = member.client.generate(body, ask.most_bytes(prompt, limits.most, 2 + (limits.likely or 0)))
                return read_answer(answer, prompt, len(ask.rows), expected, member.client.url)
            except AbortedError as error:
                aborted += 1
                if aborted > self.settings.retries:
                    raise EngineUnavailableError(f"{error}, {aborted} times: look into its log") from None
            except EngineDownError as error:
                failed += 1
                if self.is_left:
                    continue
                if failed > self.settings.retries + 1:
                    raise EngineUnavailableError(f"{error}, {failed} times: look into its log") from None
                self._lose(member, str(error))
            except (EngineRefusedError, EngineMismatchError) as error:
                if not self._was_started_again(member):
                    raise
                self._lose(member, str(error))

    def _model(self, member: Member) -> str:
        """The model that requests ask a server for."""
        assert self.update is not None
        return self.sync.model(member.facts.served, self.update)

    def _version(self, member: Member) -> str:
        """The version of weights that a server's answers name."""
        assert self.update is not None
        return self.sync.version(member.facts.weight_version, self.update)

    def _has_weights(self, member: Member) -> bool:
        assert self.update is not None
        try:
            return self.sync.holds(member.client, self.update)
        except (EngineDownError, EngineRefusedError):
            return False

    def _was_started_again(self, member: Member) -> bool:
        """True if it has the weights that it started with instead of those it was given."""
        try:
            return not self._has_weights(member) and member.client.weight_version() in (FIRST, member.facts.weight_version)
        except (EngineDownError, EngineRefusedError):
            return True

    def _lose(self, member: Member, trouble: str) -> None:
        if member.alive:
            rest = len(self.alive) - 1
            log.warning("%s: %s", trouble, f"its rows go to {rest} other server(s)" if rest else "waiting for it")
        member.alive, member.trouble = False, trouble

    def _pick(self, place: int) -> Member:
        """A server for the request of this number: the same one for the same number, as long as all are well."""
        alive = self.alive or self._wait_for_one()
        return alive[(place + self.rank) % len(alive)]

    def _wait_for_one(self) -> list[Member]:
        """The servers that are well, once one is; EngineUnavailableError where none will be, or is not within `timeout_s`."""
        until = time.monotonic() + self.settings.timeout_s
        while not (alive := self.alive):
            own = self.own()
            if self.is_left:
                raise EngineUnavailableError("nothing waits for its completions any more")
            if own is not None and own.failed:
                raise EngineUnavailableError(own.failed)
            if time.monotonic() > until:
                troubles = "; ".join(member.trouble for member in self.members)
                raise EngineUnavailableError(
                    f"no engine answers ({troubles}): start it again, with the same model, or name others in policy.engine.url"
                )
            with self.lock:
                for member in self.members:
                    member.alive = member.alive or self._revive(member)
            time.sleep(POLL_S)
        return alive

    def _revive(self, member: Member) -> bool:
        """True if the server is well again, with the weights of the step and caches free of others.

        The main process empties its caches and gives it the weights; others wait until it names them.
        """
        if not member.client.is_healthy():
            return False
        if self.rank > 0:
            return self._has_weights(member)
        log.warning("%s is back: it is given the weights of this step", member.client.url)
        try:
            member.trouble = self._push_to(member)
        except (EngineRefusedError, EngineMismatchError) as error:
            member.trouble = f"the engine was started again, and could not be given its weights ({error})"
            raise EngineUnavailableError(member.trouble) from None
        return not member.trouble
