"""Checks the engine of a policy before anything is loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from mmrl.core.episodes import Limits
from mmrl.engine.command import EXTENSION, engine_dtype, resolve_sync, serve_command
from mmrl.engine.facts import ServerFacts, Wanted, ask_facts, refuse_other
from mmrl.engine.server import free_port
from mmrl.engine.wire.client import EngineClient, EngineDownError, EngineRefusedError
from mmrl.engine.worker.weight_copy import problem_of_local
from mmrl.policies.text.loading import server_model
from mmrl.policies.text.settings import TextPolicyConfig

OTHER_FOLDER = "name a disk or memory of that machine's own, or leave it empty"
LOOK_S = 30.0
"""Seconds that a server may take to say what it is."""


def look_at_engine(policy: TextPolicyConfig, episodes: Limits | None = None) -> None:
    """Check that the servers a policy names can serve it, and its episodes of several turns, or that one can be started.

    What needs the policy's own files, such as its vocabulary, is compared when the first rows are sampled.

    Raises:
        ValueError: no environment of vLLM, one that was not tried, a port that is taken, a server that does not answer, or one
            with another model, type or way to take weights.
    """
    engine = policy.engine
    if engine is None:
        return
    rank = 0 if policy.lora is None else policy.lora.rank
    # a tiny model is made later, and the folder that it is put into has another name
    model = None if policy.model.startswith("tiny:") else server_model(policy)
    if engine.is_own:
        serve_command(policy, engine, free_port(engine.port), rank)
        if engine.local and (problem := problem_of_local(absolute(engine.folder), engine.local)):
            raise ValueError(f"policy.engine.local: {problem}: {OTHER_FOLDER}")
        return
    dtype, sync, longest = engine_dtype(policy, engine), resolve_sync(policy, engine), policy.sampling.max_new_tokens
    for url in engine.url:
        client = EngineClient(url, LOOK_S, engine.token_env)
        look_at(client, lambda facts: Wanted(model or facts.model, dtype, facts.tokens, sync, rank, longest, episodes))
        if engine.local:
            refuse_local(client, absolute(engine.folder), engine.local)


def refuse_local(client: EngineClient, folder: str, local: str) -> None:
    """Raise ValueError where a server's machine cannot keep a copy of the weights."""
    try:
        problems = client.ask_workers("local_problem", json.dumps([folder, local]))
    except (EngineDownError, EngineRefusedError) as error:
        raise ValueError(
            f"policy.engine.local: the server at {client.url} makes no copies ({error}): start it with --worker-extension-cls "
            f"{EXTENSION} of this version of mmrl, or leave policy.engine.local empty"
        ) from None
    finally:
        client.close()
    if problems:
        raise ValueError(f"policy.engine.local: {problems[0]}: {OTHER_FOLDER}")


def absolute(folder: str) -> str:
    """A folder as servers are told of it."""
    return str(Path(folder).expanduser().absolute())


def look_at(client: EngineClient, wanted: Callable[[ServerFacts], Wanted]) -> ServerFacts:
    """A server's account of itself, before any other call; ValueError where it does not answer, or is not what is wanted."""
    try:
        facts = ask_facts(client)
    except EngineDownError as error:
        host = urlsplit(client.url).netloc
        raise ValueError(
            f"policy.engine.url: nothing answers at {host} ({error}): start the server first, or leave it out"
        ) from None
    finally:
        client.close()
    client.reopen()
    refuse_other(facts, wanted(facts), client.url)
    return facts
