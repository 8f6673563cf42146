"""Teachers that vLLM servers hold: the policy's rows are sent as an engine gets prompts, and they say what tokens are worth."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from mmrl.core.episodes import Limits
from mmrl.engine.facts import LOOK_S, ServerFacts, Wanted, ask_facts, look_at, refuse_other, tokens_of_probe
from mmrl.engine.fleet import FIRST_TOKEN, Fleet, Member, limits_of
from mmrl.engine.sync import Sync, Update
from mmrl.engine.wire.client import EngineClient
from mmrl.engine.wire.completions import Ask, EngineMismatchError, sampling_params
from mmrl.engine.wire_prompts import untold_clip, wire_prompts
from mmrl.policies.text.dry_run import load_meta
from mmrl.policies.text.families import family_of
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.loading import load_config, read_processor
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.settings import EngineConfig, TextPolicyConfig, TextTeacher
from mmrl.policies.text.teachers import config_of, named, unserved
from mmrl.runtime.blame import EngineUnavailableError

KEY = EngineConfig.token_env
"""The environment variable with the servers' --api-key."""


@contextmanager
def about(number: int) -> Iterator[None]:
    """A block whose errors about policy.engine, or policy.model, are about the servers of a teacher, or its model."""
    try:
        with named(number):
            yield
    except (ValueError, EngineMismatchError, EngineUnavailableError) as error:
        said = re.sub(r"policy\.engine\b(\.url)?(?!\.)", f"policy.teachers.{number}.url", str(error))
        raise (ValueError if isinstance(error, ValueError) else type(error))(said) from None


def wanted_of(config: TextPolicyConfig, tokenizer: Any, facts: ServerFacts) -> Wanted:
    """The facts that are needed of a server of the model of these settings; None: which tokens it has is not asked."""
    # a tiny model is made later, and the folder that it is put into has another name
    model = facts.model if config.model.startswith("tiny:") else config.model
    tokens = facts.tokens if tokenizer is None else tokens_of_probe(tokenizer)
    return Wanted(model, facts.dtype, tokens, "none", longest=config.sampling.max_new_tokens)


def look_at_teachers(policy: TextPolicyConfig, episodes: Limits | None = None, likely: int = 0) -> None:
    """Check, before anything is loaded, that servers of teachers hold them, and tell of so many likely tokens.

    Raises ValueError where one does not, or does not answer, and for pictures that are not sent: those within episodes.
    """
    for number, one in enumerate(policy.teachers):
        if one.url and episodes is not None and episodes.pictures:
            raise unserved(one.name, "insets")
        for url in one.url:
            config, tokenizer = config_of(policy, one), None
            with about(number):
                if not config.model.startswith("tiny:"):
                    tokenizer = read_processor(config, family_of(load_config(config))).tokenizer
                facts = look_at(EngineClient(url, LOOK_S, KEY), partial(wanted_of, config, tokenizer))
                if 0 <= facts.most_likely < likely:
                    raise ValueError(
                        f"policy.engine.url: {url} tells of {facts.most_likely} likely tokens, and FollowTeacher.top is {likely}"
                        f": start it with --max-logprobs {likely}, or lower top"
                    )


@dataclass(frozen=True)
class StillSync(Sync):
    """In place of transfers of weights: servers keep those that they have."""

    wanted: Callable[[ServerFacts], Wanted]

    def save(self, host: TextHost, update: Update) -> None:
        """Nothing is sent."""

    def push(self, client: EngineClient, update: Update) -> None:
        """Nothing is sent."""

    def holds(self, client: EngineClient, update: Update) -> bool:
        """Does it still hold the teacher?"""
        try:
            facts = ask_facts(client)
            refuse_other(facts, self.wanted(facts), client.url)
        except ValueError:
            return False
        return True

    def advice(self, update: Update) -> str:
        return ""

    def version(self, start: str, update: Update) -> str:
        return start


class AskedTeacher:
    """See Asked. Nothing is asked before the first rows are.

    Raises, when rows are: ValueError for a server that does not hold the teacher, or media that it would misread;
    EngineMismatchError for an answer that cannot be right; EngineUnavailableError where no server answers in time.
    """

    def __init__(self, config: TextPolicyConfig, one: TextTeacher, number: int) -> None:
        self.config, self.one, self.number = config, one, number
        self.host = TextPolicy(config, parts=TextParts(load=partial(load_meta, frozen=True)))

    @cached_property
    def fleet(self) -> Fleet:
        """Its servers, looked at."""
        one, wanted = self.one, partial(wanted_of, self.config, self.host.tokenizer)
        clients = [EngineClient(url, one.timeout_s, KEY) for url in one.url]
        settings = EngineConfig(url=one.url, timeout_s=one.timeout_s, sync="broadcast")
        members = [Member(client, look_at(client, wanted)) for client in clients]
        return Fleet(members, StillSync(wanted), settings, update=Update("teacher", Path()))

    def tell(self, rows: Sequence[Encoded], likely: int) -> list[Sequence[Mapping[int, float]]]:
        if not rows:
            return []
        with about(self.number):
            self.fleet.begin()
            for row in rows:
                if reason := untold_clip(self.host, row, [member.facts for member in self.fleet.members]):
                    raise ValueError(f"prompt {row.prompt_id!r} cannot be shown to the servers of policy.engine: {reason}")
            params = sampling_params(FIRST_TOKEN, self.host.banned, self.host.eos_token_ids) | {"prompt_logprobs": likely}
            limits = replace(limits_of(self.host, FIRST_TOKEN), likely=likely)
            asks = [Ask(i, (i,), 0) for i in range(len(rows))]
            return [one.told for (one,) in self.fleet.write(asks, wire_prompts(self.host, rows), params, limits)]
