"""A server's account of itself, and why a policy may not be able to use it; asked before anything is loaded."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mmrl.core.episodes import Limits
from mmrl.engine.server import EXTENSION, engine_dtype, free_port, resolve_sync, serve_command, serving_rank
from mmrl.engine.venv import TRIED, VERSION
from mmrl.engine.wire.client import EngineClient, EngineDownError, EngineRefusedError
from mmrl.engine.worker.weight_copy import problem_of_local
from mmrl.policies.text.loading import server_model
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.net.fetch import words
from mmrl.runtime.net.secrets import Json

PROBE = "Where is the 7? <|im_start|> [0, 1]; l'été, 数え, 12.5 s\n"
"""A text that tokenizers of different models cut differently."""
FIRST = "default"
"""The name of the weights of a server that has just been started."""
TAKES = {"file": ("file", "broadcast"), "broadcast": ("broadcast",)}
"""Way of new weights -> the backends of mmrl's extension that know it."""
SERVE = "start it as docs/how_to/engine.md says"


@dataclass(frozen=True)
class ServerFacts:
    """A server's own account: `ServerFacts("0.32.0", "policy", "Qwen/Qwen2.5-VL-3B-Instruct", "bfloat16")`."""

    version: str
    """Of vLLM."""
    served: str
    """The name that requests give the model."""
    model: str
    """Its folder or hub name."""
    dtype: str
    max_length: int = 0
    max_lora_rank: int = 0
    """0: it takes no adapters."""
    transfer: str = ""
    """How it takes new weights: mmrl's file or broadcast, another way, or not at all."""
    weight_version: str = ""
    clip_fps: float = 1.0
    """The frames per second that it takes clips to have."""
    clip_frames: int = 32
    """Frames of a clip beyond which it drops the rest; -1 = none."""
    tokens: tuple[int, ...] = ()
    """The ids of `PROBE`."""
    most_pictures: int | None = None
    """Pictures of one prompt; None: it says no bound."""
    most_likely: int = 20
    """Likely tokens that it tells of at a place; -1: all."""
    missing: tuple[str, ...] = ()
    """Options that mmrl needs, and that it was started without."""


def ask_facts(client: EngineClient) -> ServerFacts:
    """The server's account of itself; EngineDownError where it does not answer, ValueError where mmrl cannot use it."""
    try:
        version, served = str(client.get("/version")["version"]), client.get("/v1/models")["data"][0]
    except (AttributeError, EngineRefusedError, LookupError, TypeError):
        raise ValueError(f"policy.engine.url: at {client.url} is no vLLM server: check the address and its port") from None
    if not TRIED.fullmatch(version):
        raise ValueError(
            f"policy.engine.url: {client.url} runs vLLM {words(version)}, and mmrl was tried with {VERSION}: install "
            "that version there"
        )
    try:
        config, name = client.get("/server_info?config_format=json", seconds=client.timeout_s)["vllm_config"], served["id"]
        weights = client.weight_version()
        tokens = client.post("/tokenize", {"model": name, "prompt": PROBE, "add_special_tokens": False})["tokens"]
        return read_facts(version, served, config, weights, tokens)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"policy.engine.url: {client.url} does not open what updates of its weights need ({error}): {SERVE}, with "
            "VLLM_SERVER_DEV_MODE=1 and --enable-scale-out"
        ) from None


def read_facts(version: str, served: Json, config: Json, weights: str, tokens: Sequence[int]) -> ServerFacts:
    """The facts in a server's answers, which may be anything."""
    model = config["model_config"]
    lora, transfer = config.get("lora_config") or {}, config.get("weight_transfer_config") or {}
    clips = (dig(model, "multimodal_config", "media_io_kwargs") or {}).get("video", {})
    needed = {
        "--logprobs-mode processed_logprobs": model.get("logprobs_mode") == "processed_logprobs",
        "--no-mm-device-do-normalize": dig(model, "multimodal_config", "mm_device_do_normalize") is not True,
    }
    fps = float(clips.get("fps", ServerFacts.clip_fps))
    if not 0 < fps < math.inf:
        raise ValueError(f"it takes clips to have {fps:g} frames per second")
    return ServerFacts(
        version=version,
        served=str(served["id"]),
        model=str(served.get("root") or model["model"]),
        dtype=str(model["dtype"]).removeprefix("torch."),
        max_length=int(model.get("max_model_len") or 0),
        max_lora_rank=int(lora.get("max_lora_rank") or 0),
        transfer=str(transfer.get("backend") or ""),
        weight_version=weights,
        clip_fps=fps,
        clip_frames=int(clips.get("num_frames", ServerFacts.clip_frames)),
        tokens=tuple(map(int, tokens)),
        most_pictures=most_pictures(model),
        most_likely=int(model.get("max_logprobs", ServerFacts.most_likely)),
        missing=tuple(option for option, held in needed.items() if not held),
    )


def most_pictures(model: Mapping[str, Any]) -> int | None:
    """The bound on the pictures of a prompt, a number or an entry `count`; None where the server names none."""
    limit = (dig(model, "multimodal_config", "limit_per_prompt") or {}).get("image")
    limit = limit.get("count") if isinstance(limit, Mapping) else limit
    return None if limit is None else int(limit)


def dig(config: Mapping[str, Any], part: str, name: str) -> Any:
    """A value of a config, at its top level or in one of its parts."""
    inner = config.get(part)
    return inner[name] if isinstance(inner, Mapping) and name in inner else config.get(name)


@dataclass(frozen=True)
class Wanted:
    """The facts that a policy needs of its server."""

    model: str
    dtype: str
    tokens: tuple[int, ...]
    """The ids of `PROBE`."""
    sync: str
    lora_rank: int = 0
    longest: int = 0
    """Tokens of the longest turn."""
    episodes: Limits | None = None
    """Of a run with an environment."""


def refuse_other(facts: ServerFacts, wanted: Wanted, url: str) -> None:
    """Raise ValueError unless the server has the policy's model, vocabulary and type, and takes weights as it will get them."""
    place = f"policy.engine: the server at {url}"
    if last_name(facts.model) != last_name(wanted.model):
        raise ValueError(
            f"{place} serves {facts.model!r}, and the run needs {wanted.model!r}: serve that model there, or name its server"
        )
    if facts.tokens != wanted.tokens:
        raise ValueError(
            f"{place} has another vocabulary than policy.model {wanted.model!r} (a test text is {len(facts.tokens)} tokens, "
            f"{len(wanted.tokens)} here): serve the policy's own model and tokenizer"
        )
    if facts.dtype != wanted.dtype:
        raise ValueError(
            f"{place} computes in {facts.dtype}, and the run wants {wanted.dtype}: start it with --dtype {wanted.dtype}, or set "
            f'policy.engine.dtype = "{facts.dtype}"'
        )
    if facts.missing:
        named = ", ".join(facts.missing)
        raise ValueError(f"{place} was started without {named}, so its log-probabilities would not be the policy's: add that")
    if facts.max_length and facts.max_length <= wanted.longest:
        raise ValueError(
            f"{place} takes {facts.max_length} tokens of prompt and completion, and policy.sampling.max_new_tokens alone is "
            f"{wanted.longest}: start it with a larger --max-model-len"
        )
    if wanted.episodes is not None:
        refuse_short(facts, wanted.episodes, place)
    refuse_other_sync(facts, wanted, place)


def refuse_short(facts: ServerFacts, episodes: Limits, place: str) -> None:
    """Raise ValueError unless the longest episode fits into the server's prompts; those before the first turn are not known."""
    if facts.max_length and facts.max_length <= episodes.tokens:
        raise ValueError(
            f"{place} takes {facts.max_length} tokens in all, and environment.limits.tokens alone is {episodes.tokens}: start it "
            "with a larger --max-model-len, or lower the limit"
        )
    if facts.most_pictures is not None and facts.most_pictures < (episodes.pictures or 0):
        raise ValueError(
            f"{place} takes {facts.most_pictures} pictures in a prompt, and environment.limits.pictures is {episodes.pictures}: "
            f"start it with --limit-mm-per-prompt '{{\"image\": {episodes.pictures} or more}}', or lower the limit"
        )


def refuse_other_sync(facts: ServerFacts, wanted: Wanted, place: str) -> None:
    """Raise ValueError unless new weights can reach the server in the way that was chosen."""
    if wanted.sync == "lora" and facts.max_lora_rank < wanted.lora_rank:
        rank = serving_rank(wanted.lora_rank)
        held = f"adapters up to rank {facts.max_lora_rank}" if facts.max_lora_rank else "no adapters"
        raise ValueError(
            f"{place} takes {held}, and the run's have rank {wanted.lora_rank}: start it with --enable-lora "
            f"--max-lora-rank {rank} and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        )
    if wanted.sync == "lora" and facts.weight_version != FIRST:
        raise ValueError(
            f"{place} has other weights than those of {wanted.model!r}, which adapters are added to (it was given "
            f"{facts.weight_version}): start it anew"
        )
    if facts.transfer not in TAKES.get(wanted.sync, (facts.transfer,)):
        raise ValueError(
            f"{place} takes new weights by {facts.transfer or 'nothing'}, and the run sends them by {wanted.sync}: start it with "
            f'--weight-transfer-config \'{{"backend": "{wanted.sync}"}}\' and mmrl\'s extension ({SERVE})'
        )


def tokens_of_probe(tokenizer: Any) -> tuple[int, ...]:
    """The ids of `PROBE` by a tokenizer of transformers."""
    return tuple(tokenizer(PROBE, add_special_tokens=False)["input_ids"])


def last_name(model: str) -> str:
    """The last part of a folder or a hub name: servers on other machines may keep a model elsewhere."""
    return model.rstrip("/").rsplit("/", 1)[-1]


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
