"""A server that speaks vLLM's endpoints and runs a real tiny model, so its log-probabilities are true and its caches go stale.

`python -m tests.support.fake_vllm serve MODEL --port 8000 ...` takes the words that mmrl gives to `vllm serve`. What it remembers
is what vLLM remembers: keys and values of prompts, features of pictures, tensors of the processor; new weights clear none of it.
A failed update ends the process, as in vLLM. `/fake` tells tests what happened, and takes orders for what is to go wrong.
"""

import argparse
import hashlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from mmrl.engine.worker.weight_copy import copy_near, drop_copies, problem, problem_of_local
from mmrl.engine.worker.weight_group import Receiver, read_tensors
from tests.support.fake_vllm_model import Json, Model, RefusedError

VERSION = "0.32.0"


@dataclass
class Faults:
    """What is to go wrong, and how often."""

    abort: int = 0
    """Requests whose completions are given up."""
    hold: bool = False
    """Requests wait until the process dies, or until this is False again."""
    nan: int = 0
    wrong_version: int = 0
    banned: int = 0
    silent: list[str] = field(default_factory=list[str])
    """Caches whose resets answer, and clear nothing."""
    repeat: dict[str, int] = field(default_factory=dict[str, int])
    """Path -> the status with which calls are answered that say nothing but the Authorization header they came with."""
    break_reset: int = 0
    """The number of the reset, of whichever cache, that is answered 500 and clears nothing."""
    lose: int = 0
    """Requests with several completions of which one is lost."""
    refuse: int = 0
    """Transfers of weights that a worker gives up after the first tensor."""
    stall: bool = False
    """Transfers of weights stop after the first tensor, until this is False again."""
    other_prompt: int = 0
    """Answers that name a prompt of which one token is another."""
    other_tokens: int = 0
    """Completions of which one token is another than was drawn."""
    other_request: int = 0
    """Requests that get the answer to the one before."""
    other_text: int = 0
    """Requests that get the completions of the one before, and are told that they are their own."""
    told: Any = "honest"
    """In place of what is told of a prompt's last token, which stands for TOKEN; cut: nothing."""
    deaf: int = 0
    """Calls to join the trainer's group that are answered, and not followed."""


@dataclass
class State:
    """The server beside its model."""

    model: Model
    version: str = "default"
    paused: bool = False
    asleep: bool = False
    updating: bool = False
    dead: bool = False
    faults: Faults = field(default_factory=Faults)
    receivers: list[Receiver] = field(default_factory=list[Receiver])
    """The workers' ends of the trainer's group: one of each part of a model that is split."""
    received: list[str] = field(default_factory=list[str])
    """The hash of the last weights of each."""
    calls: list[str] = field(default_factory=list[str])
    wrote: list[str] = field(default_factory=list[str])
    """The model of every request that was answered."""
    last: Json = field(default_factory=dict[str, Any])
    """The answer to the last of them."""
    waiting: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Condition = field(default_factory=threading.Condition)


def take(faults: Faults, name: str) -> bool:
    """Is this fault due? Counts it."""
    left = getattr(faults, name)
    setattr(faults, name, max(0, left - 1))
    return left > 0


def generate(state: State, body: Json) -> Json:
    with state.changed:
        state.waiting += 1
        state.changed.notify_all()
        state.changed.wait_for(lambda: not state.paused and not state.faults.hold)
        state.waiting -= 1
    if state.dead:
        os._exit(3)
    if state.asleep:
        raise RuntimeError("the engine sleeps")
    name, params = body["model"], body["sampling_params"]
    if name != ARGUMENTS.served_model_name and name not in state.model.adapters:
        raise RefusedError(404, f"The model `{name}` does not exist.")
    if params["n"] > 1 and params["temperature"] == 0:
        raise RefusedError(400, "n must be 1 when using greedy sampling")
    with state.lock:
        asked = body["token_ids"], body.get("content_parts") or []
        ids, rows = state.model.generate(name, *asked, params)
        told = state.model.tell(*asked, params.get("prompt_logprobs"))
        state.wrote.append(name)
        faults = state.faults
        aborted, broken, other, banned = (take(faults, fault) for fault in ("abort", "nan", "wrong_version", "banned"))
        rows = rows[1:] if len(rows) > 1 and take(faults, "lose") else rows
    for row in rows:
        if aborted:
            row["finish_reason"], row["token_ids"], row["noted"] = "abort", row["token_ids"][:1], row["noted"][:1]
        noted = [-9999.0] * len(row["noted"]) if broken else row["noted"]
        row["token_ids"] = [int(next(iter(params["logit_bias"])))] * len(noted) if banned else row["token_ids"]
        row["logprobs"] = {"content": [{"token_id": t, "logprob": x} for t, x in zip(row["token_ids"], noted, strict=True)]}
        row["weight_versions"] = [{"version": "somebody-else" if other else state.version, "start": 0, "end": len(noted)}]
        del row["noted"]
    if told is not None and state.faults.told != "honest":
        lie, told[-1:] = state.faults.told, []
        told += [json.loads(json.dumps(lie).replace("TOKEN", str(ids[-1])))] if lie != "cut" else []
    known = {"prompt_token_ids": ids, "choices": rows, "prompt_logprobs": told}
    return mix_up(state, {"request_id": f"generate-tokens-{body['request_id']}", **known})


def mix_up(state: State, told: Json) -> Json:
    """An answer with what is to be wrong in it."""
    before, state.last = state.last, told
    if take(state.faults, "other_request"):
        return before
    if take(state.faults, "other_text"):
        return {**told, "choices": before["choices"]}
    if take(state.faults, "other_prompt"):
        return {**told, "prompt_token_ids": [*told["prompt_token_ids"][:-1], told["prompt_token_ids"][-1] - 1]}
    if take(state.faults, "other_tokens"):
        row = told["choices"][0]
        return {**told, "choices": [{**row, "token_ids": [row["token_ids"][0] ^ 1, *row["token_ids"][1:]]}, *told["choices"][1:]]}
    return told


def update(state: State, body: Json) -> Json:
    info = body["update_info"]
    try:
        with state.lock:
            if "path" in info:
                state.model.load_weights(info["path"])
            else:
                with ThreadPoolExecutor(len(state.receivers)) as pool:
                    taken = list(pool.map(lambda worker: take_tensors(state, worker, info), state.receivers))
                state.received = [hash_of(tensors) for tensors in taken]
                state.model.load_tensors(taken[0])
    except Exception:
        state.dead = True
        raise
    state.dead = False
    return {"message": "Weights updated"}


def take_tensors(state: State, worker: Receiver, info: Json) -> dict[str, torch.Tensor]:
    """All tensors of a transfer, as one worker gets them."""
    found: dict[str, torch.Tensor] = {}
    try:
        for name, tensor in worker.tensors(info["group"], read_tensors(info["tensors"])):
            found[name] = tensor
            if take(state.faults, "refuse"):
                raise RuntimeError(f"no room for {name}")
            with state.changed:
                state.changed.wait_for(lambda: not state.faults.stall)
    except BaseException:
        worker.leave()
        raise
    return found


def hash_of(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def call_workers(state: State, method: str, told: str) -> Json:
    """What mmrl's extension answers inside each worker."""
    calls: dict[str, Any] = {
        "weights_problem": lambda _: state.model.problem_of(told),
        "tensors_problem": lambda _: state.model.problem_of_shapes({one.name: one.shape for one in read_tensors(told)}),
        "local_problem": lambda _: problem_of_local(*json.loads(told)),
        "copy_near": lambda _: problem(copy_near, *json.loads(told)),
        "drop_copies": lambda _: drop_copies(told),
        "meet_trainer": lambda worker: worker.meet(told),
        "join_trainer": lambda worker: "" if take(state.faults, "deaf") else worker.join(told),
        "not_in_group": lambda worker: "" if worker.is_in(told) else "it is not",
    }
    with ThreadPoolExecutor(len(state.receivers)) as pool:
        return {"results": list(pool.map(calls[method], state.receivers))}


def change(state: State, **values: object) -> Json:
    """Set fields of the state, and wake those who wait for them."""
    with state.changed:
        for name, value in values.items():
            setattr(state, name, value)
        state.changed.notify_all()
    return {"message": "done"}


def reset(state: State, name: str, memory: dict[Any, Any]) -> Json:
    if take(state.faults, "break_reset") and not state.faults.break_reset:
        raise RuntimeError(f"no reset of the {name} cache")
    if name not in state.faults.silent:
        memory.clear()
    return {"success": True}


def load_adapter(state: State, body: Json) -> str:
    name = body["lora_name"]
    if name in state.model.adapters:
        raise RefusedError(400, f"The lora adapter '{name}' has already been loaded.")
    if not (Path(body["lora_path"]) / "adapter_config.json").is_file():
        raise RefusedError(404, f"No adapter found for {name}")
    with state.lock:
        state.model.load_adapter(name, body["lora_path"])
    return f"Success: LoRA adapter '{name}' added successfully."


def models(state: State) -> Json:
    served = {"id": ARGUMENTS.served_model_name, "root": ARGUMENTS.model, "max_model_len": ARGUMENTS.max_model_len}
    return {"data": [served, *({"id": name, "root": name} for name in state.model.adapters)]}


def server_info() -> Json:
    told = ARGUMENTS
    return {
        "vllm_config": {
            "model_config": {
                "model": told.model,
                "dtype": f"torch.{told.dtype}",
                "max_model_len": told.max_model_len,
                "logprobs_mode": told.logprobs_mode,
                "multimodal_config": {"mm_device_do_normalize": not told.no_norm, "media_io_kwargs": told.media_io_kwargs},
            },
            "lora_config": {"max_lora_rank": told.max_lora_rank} if told.enable_lora else None,
            "weight_transfer_config": told.weight_transfer_config,
        }
    }


def tell(state: State) -> Json:
    """What happened so far."""
    own = state.model
    memory = {"prefixes": len(own.prefixes), "features": len(own.features), "tensors": len(own.tensors)}
    return {
        "pid": os.getpid(),
        "calls": state.calls,
        "wrote": state.wrote,
        "waiting": state.waiting,
        "received": state.received,
        **memory,
    }


def answer(state: State, path: str, body: Json) -> Any:
    """The answer to a call; what the path does not name is no endpoint of vLLM's."""
    memories = {"prefix": state.model.prefixes, "encoder": state.model.features, "mm": state.model.tensors}
    calls: dict[str, Any] = {
        "/health": lambda: "",
        "/version": lambda: {"version": ARGUMENTS.version},
        "/v1/models": lambda: models(state),
        "/server_info": server_info,
        "/weight_info": lambda: {"weight_version": state.version},
        "/tokenize": lambda: {"tokens": state.model.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]},
        "/inference/v1/generate": lambda: generate(state, body),
        "/collective_rpc": lambda: call_workers(state, body["method"], *body["args"]),
        "/pause": lambda: change(state, paused=True),
        "/resume": lambda: change(state, paused=False),
        "/start_weight_update": lambda: change(state, updating=True),
        "/update_weights": lambda: update(state, body),
        "/finish_weight_update": lambda: change(state, updating=False, version=body["weight_version"]),
        "/v1/load_lora_adapter": lambda: load_adapter(state, body),
        "/v1/unload_lora_adapter": lambda: state.model.adapters.pop(body["lora_name"]) and "Success",
        "/sleep": lambda: change(state, asleep=True),
        "/wake_up": lambda: change(state, asleep=False),
        "/fake": lambda: change(state, faults=Faults(**body)) if body else tell(state),
    }
    for name, memory in memories.items():
        calls[f"/reset_{name}_cache"] = lambda name=name, memory=memory: reset(state, name, memory)
    if path not in calls:
        raise RefusedError(404, "Not Found")
    return calls[path]()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def do_POST(self) -> None:
        path, body = self.path.partition("?")[0], self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if path != "/fake" and path != "/health":
            self.state.calls.append(self.path)
        try:
            status, told = 200, answer(self.state, path, json.loads(body or b"{}"))
            if path in self.state.faults.repeat:
                status, told = self.state.faults.repeat[path], {"error": {"message": self.headers.get("Authorization")}}
        except RefusedError as error:
            status, told = error.status, {"error": {"message": str(error)}}
        except Exception as error:  # noqa: BLE001 - a server answers whatever went wrong
            status, told = 500, {"error": {"message": f"{type(error).__name__}: {error}"}}
        content = told.encode() if isinstance(told, str) else json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("model")
    for name, usual in (("host", "127.0.0.1"), ("served-model-name", "policy"), ("dtype", "float32"), ("version", VERSION)):
        parser.add_argument(f"--{name}", default=usual)
    parser.add_argument("--logprobs-mode", default="raw_logprobs")
    for name, number in (("port", 8000), ("max-model-len", 4096), ("max-lora-rank", 16), ("tensor-parallel-size", 1)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--no-mm-device-do-normalize", dest="no_norm", action="store_true")
    parser.add_argument("--enable-lora", action="store_true")
    for name in ("media-io-kwargs", "weight-transfer-config"):
        parser.add_argument(f"--{name}", type=json.loads, default={})
    found, _ = parser.parse_known_args(words)
    found.clip_fps = found.media_io_kwargs.get("video", {}).get("fps", 1.0)
    return found


if __name__ == "__main__":
    ARGUMENTS = arguments(sys.argv[1:])
    torch.set_num_threads(1)
    workers = ARGUMENTS.tensor_parallel_size
    Handler.state = State(Model(ARGUMENTS.model, ARGUMENTS.dtype, ARGUMENTS.clip_fps))
    Handler.state.receivers = [Receiver(rank, workers, torch.device("cpu")) for rank in range(workers)]
    ThreadingHTTPServer((ARGUMENTS.host, ARGUMENTS.port), Handler).serve_forever()
