"""One vLLM server as its client sees it: JSON over HTTP, and errors that say whether asking again may help."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from mmrl.policies.text.engine_settings import HERE

CONNECT_S = 5.0
ASK_S = 60.0
"""Seconds for what a server answers at once."""
IDLE_S = 2.0
"""Seconds after which an idle connection is not used again: the server hangs up after 5."""
GENERATE = "/inference/v1/generate"
MOST_WORDS = 300
"""Characters of a server's words in a message."""
CACHES = ("prefix", "encoder", "mm")
"""What a server remembers of weights or pictures: keys and values, features of the vision tower, tensors of the processor."""


class EngineDownError(Exception):
    """No answer came, or one that says the server is broken: the same request may be answered later, or elsewhere."""


class EngineRefusedError(ValueError):
    """The server understood and refused: the same request will be refused again."""


@dataclass(frozen=True)
class EngineClient:
    """The calls of one server. Threads may share it.

    Raises:
        EngineDownError: from every call, when no whole answer comes in time, or the server answers with a number from 500 on.
        EngineRefusedError: from every call, when the server answers with a number from 300 to 499.
    """

    url: str
    timeout_s: float = 600.0
    """Of a request for completions, and of an update of weights."""
    token_env: str = ""
    connections: int = 128

    @cached_property
    def http(self) -> Any:
        """httpx's client, which keeps connections open; proxies of the environment are for other machines only."""
        import httpx

        token = os.environ.get(self.token_env, "") if self.token_env else ""
        return httpx.Client(
            base_url=self.url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            limits=httpx.Limits(
                max_connections=self.connections, max_keepalive_connections=self.connections, keepalive_expiry=IDLE_S
            ),
            trust_env=urlsplit(self.url).hostname not in HERE,
        )

    def call(self, method: str, path: str, body: object = None, seconds: float = ASK_S) -> Any:
        """The answer as JSON, or as text where it is none."""
        import httpx

        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        # vLLM hangs up after an error of its own, and a later call on the same connection would look like a server that is gone.
        headers |= {} if path == GENERATE else {"Connection": "close"}
        limits = httpx.Timeout(seconds, connect=min(CONNECT_S, seconds))
        try:
            answer = self.http.request(method, path, content=content, headers=headers, timeout=limits)
        except httpx.TimeoutException:
            raise EngineDownError(f"{self.url}{path} gave no answer within {seconds:.0f} s") from None
        except httpx.TransportError as error:
            raise EngineDownError(f"{self.url}{path} cannot be reached ({type(error).__name__}: {shorten(str(error))})") from None
        if answer.status_code >= 500:
            raise EngineDownError(f"{self.url}{path} answered {answer.status_code}: {words_of(answer.text)}")
        if answer.status_code >= 300:
            raise EngineRefusedError(f"{self.url}{path} answered {answer.status_code}: {words_of(answer.text)}")
        try:
            return json.loads(answer.content)
        except ValueError:
            return answer.text

    def post(self, path: str, body: object = None, seconds: float = ASK_S) -> Any:
        return self.call("POST", path, {} if body is None else body, seconds)

    def get(self, path: str, seconds: float = ASK_S) -> Any:
        return self.call("GET", path, None, seconds)

    def is_healthy(self) -> bool:
        """Does it answer that it is well?"""
        try:
            self.get("/health", CONNECT_S)
        except (EngineDownError, EngineRefusedError):
            return False
        return True

    def generate(self, body: bytes) -> Mapping[str, Any]:
        """The server's answer to a request for completions."""
        answer = self.post(GENERATE, body, self.timeout_s)
        if not isinstance(answer, Mapping):
            raise EngineDownError(f"{self.url} answered a request for completions with {shorten(str(answer))!r}")
        return answer

    def weight_version(self) -> str:
        """The name that the server gives its weights."""
        return str(self.get("/weight_info")["weight_version"])

    def reset_caches(self) -> None:
        """Let the server forget what it computed with earlier weights.

        Raises:
            EngineDownError: besides, when requests are still running, which hold what should be forgotten.
        """
        for name in CACHES:
            answer = self.post(f"/reset_{name}_cache")
            if isinstance(answer, Mapping) and answer.get("success") is False:
                raise EngineDownError(f"{self.url} did not reset its {name} cache, which running requests hold")

    def pause(self) -> None:
        """Let running requests end, and begin no other until `resume`."""
        self.post("/pause?mode=wait", seconds=self.timeout_s)

    def resume(self) -> None:
        self.post("/resume")

    def load_adapter(self, name: str, folder: str) -> None:
        """Serve the LoRA adapter of a folder under a name that was never used before."""
        self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}, self.timeout_s)

    def unload_adapter(self, name: str) -> None:
        self.post("/v1/unload_lora_adapter", {"lora_name": name})

    def ask_workers(self, method: str, told: str) -> list[str]:
        """The complaints of the server's workers when mmrl's extension inside them is called; empty: none has one."""
        answer = self.post("/collective_rpc", {"method": method, "args": [told]}, self.timeout_s)
        found = answer.get("results", []) if isinstance(answer, Mapping) else []
        return [str(problem) for problem in found if problem]

    def update(self, info: Mapping[str, object], version: str) -> None:
        """Replace all weights and name them."""
        self.post("/start_weight_update", seconds=self.timeout_s)
        self.post("/update_weights", {"update_info": dict(info)}, self.timeout_s)
        self.post("/finish_weight_update", {"weight_version": version}, self.timeout_s)

    def sleep(self) -> None:
        """Give the card's memory back; the weights rest in the machine's memory."""
        self.post("/sleep?level=1&mode=wait", seconds=self.timeout_s)

    def wake(self) -> None:
        self.post("/wake_up", seconds=self.timeout_s)

    def close(self) -> None:
        if "http" in self.__dict__:
            self.http.close()


def words_of(text: str) -> str:
    """The sentence inside a refusal."""
    try:
        found = json.loads(text)
        error = found.get("error", found.get("detail", found))
        text = str(error.get("message", error) if isinstance(error, Mapping) else error)
    except (ValueError, AttributeError):
        pass
    return shorten(text)


def shorten(text: str) -> str:
    """A server's words as one printable line of a message."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 8 * MOST_WORDS]).split())
    return line if len(line) <= MOST_WORDS else line[: MOST_WORDS - 4] + " ..."
