"""One vLLM server as its client sees it: JSON over HTTP, and errors that say whether asking again may help."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mmrl.runtime.net.fetch import (
    BUSY,
    CONNECT_S,
    AnswerError,
    DeadlineError,
    HttpRequest,
    UnreachableError,
    close_client,
    fetch,
    open_client,
    words,
)
from mmrl.runtime.net.secrets import Json, hide, hide_in_json, read_secret

T = TypeVar("T")
ASK_S = 60.0
"""Timeout in seconds for calls that a server answers at once."""
IDLE_S = 2.0
"""Seconds after which an idle connection is not used again: the server hangs up after 5."""
GENERATE = "/inference/v1/generate"
MOST_BYTES = 4 * 2**20
"""The largest answer that is read, but for completions, which come with their tokens and what these were worth."""
CACHES = ("prefix", "encoder", "mm")
"""What a server remembers of weights or pictures: keys and values, features of the vision tower, tensors of the processor."""


class EngineDownError(Exception):
    """No answer came, or one that says the server is broken: the same request may be answered later, or elsewhere."""


class EngineRefusedError(ValueError):
    """The server understood and refused: the same request will be refused again."""


@dataclass(frozen=True)
class EngineClient:
    """The calls of one server. Threads may share it.

    Every call raises EngineDownError where no whole answer comes in time, or the server answers that it is busy or with a number
    from 500 on, and EngineRefusedError for other numbers from 300 on.
    """

    url: str
    timeout_s: float = 600.0
    """The longest that a call may take: requests for completions and updates of weights do, others are to be quicker."""
    token_env: str = ""
    connections: int = 128
    _open: list[Any] = field(default_factory=list[Any], init=False, repr=False, compare=False)
    """httpx's client, which keeps connections open, from the first call on."""
    _gone: threading.Event = field(default_factory=threading.Event, init=False, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @property
    def http(self) -> Any:
        """httpx's client; EngineDownError where calls were given up."""
        with self._lock:
            if self._gone.is_set():
                raise EngineDownError(f"calls to {self.url} were given up")
            self._open[:] = self._open or [open_client(self.url, self.connections, IDLE_S)]
            return self._open[0]

    def call(self, method: str, path: str, body: object = None, seconds: float = ASK_S, most_bytes: int = 0) -> Json:
        """The answer as JSON, or as text where it is none; `most_bytes`: 0 is MOST_BYTES."""
        seconds = min(seconds, self.timeout_s)
        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        # vLLM hangs up after an error of its own, and a later call on the same connection would look like a server that is gone.
        headers |= {} if path == GENERATE else {"Connection": "close"}
        token, address = read_secret(self.token_env), f"{self.url.rstrip('/')}{path}"
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        try:
            answer = fetch(HttpRequest(method, address, headers, content), seconds, most_bytes or MOST_BYTES, self.http)
        except DeadlineError:
            raise EngineDownError(f"{self.url}{path} gave no answer within {seconds:.0f} s") from None
        except UnreachableError as error:
            raise EngineDownError(f"{self.url}{path} cannot be reached ({error})") from None
        except AnswerError as error:
            raise EngineDownError(f"{self.url}{path} {error}") from None
        text = answer.content.decode(errors="replace")
        if answer.status >= 300:
            refused = EngineDownError if answer.status >= 500 or answer.status in BUSY else EngineRefusedError
            raise refused(f"{self.url}{path} answered {answer.status}: {words_of(text)}")
        try:
            return hide_in_json(json.loads(text))
        except (ValueError, RecursionError):
            return hide(text)

    def post(self, path: str, body: object = None, seconds: float = ASK_S) -> Json:
        return self.call("POST", path, {} if body is None else body, seconds)

    def get(self, path: str, seconds: float = ASK_S) -> Json:
        return self.call("GET", path, None, seconds)

    def is_healthy(self) -> bool:
        """True if the server reports that it is healthy."""
        try:
            self.get("/health", CONNECT_S)
        except (EngineDownError, EngineRefusedError):
            return False
        return True

    def look(self, path: str, read: Callable[[Json], T]) -> T:
        """Read something from an answer; EngineDownError also when it is not there."""
        answer = self.get(path)
        try:
            return read(answer)
        except (AttributeError, LookupError, TypeError, ValueError):
            raise EngineDownError(f"{self.url}{path} answered {words(str(answer))!r}, as no vLLM would") from None

    def generate(self, body: bytes, most_bytes: int = 0) -> Mapping[str, Json]:
        """The server's answer to a request for completions."""
        answer = self.call("POST", GENERATE, body, self.timeout_s, most_bytes)
        if not isinstance(answer, Mapping):
            raise EngineDownError(f"{self.url} answered a request for completions with {words(str(answer))!r}")
        return answer

    def weight_version(self) -> str:
        """The name that the server gives its weights."""
        return self.look("/weight_info", lambda answer: str(answer["weight_version"]))

    def model_names(self) -> list[str]:
        """The models and adapters that the server answers for."""
        return self.look("/v1/models", lambda answer: [str(entry["id"]) for entry in answer["data"]])

    def reset_caches(self) -> None:
        """Let the server forget what it computed with earlier weights.

        Raises EngineDownError also when requests are still running, which hold what should be forgotten.
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

    def ask_workers(self, method: str, argument: str) -> list[str]:
        """The complaints of the server's workers when mmrl's extension inside them is called; empty: none has one."""
        answer = self.post("/collective_rpc", {"method": method, "args": [argument]}, self.timeout_s)
        found = answer.get("results") if isinstance(answer, Mapping) else None
        if not isinstance(found, list):
            raise EngineDownError(f"{self.url} answered a call of its workers with {words(str(answer))!r}, as no vLLM would")
        return [words(str(problem)) for problem in found if problem]

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
        """Give up calls that are under way, and all later ones until `reopen`."""
        with self._lock:
            self._gone.set()
            found = self._open.copy()
            self._open.clear()
        for http in found:
            close_client(http)

    def reopen(self) -> None:
        """Allow calls again."""
        self._gone.clear()


def words_of(text: str) -> str:
    """The sentence inside a refusal."""
    try:
        found = json.loads(text)
        error = found.get("error", found.get("detail", found))
        text = str(error.get("message", error) if isinstance(error, Mapping) else error)
    except (ValueError, RecursionError, AttributeError):
        pass
    return words(text)
