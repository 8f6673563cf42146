"""A small Hugging Face hub on this machine: repositories are made, files come in as git blobs and by LFS, commits keep them."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_right"
OWNER = "me"


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    commits: list[str] = field(default_factory=list[str])
    """Their messages."""


@dataclass
class Hub:
    """The repositories by name, and the requests in their order."""

    address: str
    repositories: dict[str, Repository] = field(default_factory=dict[str, Repository])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: list[str] = field(default_factory=list[str])
    refuses_blobs: bool = False


class Handler(BaseHTTPRequestHandler):
    """The part of the hub's HTTP that HfApi speaks when it uploads a folder."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def answer(self, status: int, body: object = None, text: str = "") -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if text:
            self.send_header("X-Error-Message", text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts: list[bytes] = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def is_known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def do_HEAD(self) -> None:
        self.answer(200)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.asked.append(f"GET {path}")
        if path == "/api/whoami-v2":
            self.answer(200, {"name": OWNER, "type": "user"}) if self.is_known() else self.answer(401, text="no such token")
        elif (name := path.removeprefix("/api/models/")) in self.hub.repositories and self.is_known():
            self.answer(200, {"id": name, "private": self.hub.repositories[name].private, "sha": "0" * 40})
        else:
            self.answer(404, text="Repository not found")

    def do_PUT(self) -> None:
        data = self.body()
        self.hub.asked.append("PUT blob")
        if self.hub.refuses_blobs:
            self.answer(403, text="the storage is full")
            return
        self.hub.blobs[self.path.rpartition("/")[2]] = data
        self.answer(200)

    def do_POST(self) -> None:
        data, path = self.body(), self.path.partition("?")[0]
        self.hub.asked.append(f"POST {path}")
        if not self.is_known():
            self.answer(401, text="no such token")
        elif path == "/api/repos/create":
            self.create(json.loads(data))
        elif path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = json.loads(data)["files"]
            modes = ["lfs" if file["path"].endswith(".safetensors") else "regular" for file in files]
            told = [
                {"path": file["path"], "uploadMode": mode, "shouldIgnore": False} for file, mode in zip(files, modes, strict=True)
            ]
            self.answer(200, {"files": told})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                one | {"actions": {"upload": {"href": f"{self.hub.address}/blobs/{one['oid']}"}}}
                for one in json.loads(data)["objects"]
            ]
            self.answer(200, {"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            self.commit(path.removeprefix("/api/models/").partition("/commit/")[0], data)
        else:
            self.answer(404, text="nothing of the kind")

    def create(self, wanted: dict[str, Any]) -> None:
        owner = wanted.get("organization") or OWNER
        name = f"{owner}/{wanted['name']}"
        if owner != OWNER:
            self.answer(403, text=f"you may not write to {owner}")
        elif name in self.hub.repositories:
            self.answer(409, {"url": f"{self.hub.address}/{name}"}, text="You already created this model repo")
        else:
            private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
            self.hub.repositories[name] = Repository(private)
            self.answer(200, {"url": f"{self.hub.address}/{name}", "name": name, "id": name})

    def commit(self, name: str, data: bytes) -> None:
        repository = self.hub.repositories[name]
        for line in map(json.loads, data.decode().splitlines()):
            value = line["value"]
            if line["key"] == "header":
                repository.commits.append(value["summary"])
            elif line["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repository.files[value["path"]] = self.hub.blobs[value["oid"]]
        self.answer(200, {"commitUrl": f"{self.hub.address}/{name}/commit/{'0' * 40}", "commitOid": "0" * 40, "success": True})


@contextmanager
def small_hub() -> Iterator[Hub]:
    """A hub that listens on 127.0.0.1 for the time of a block."""
    handler = type("OwnHandler", (Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
        handler.hub = hub  # type: ignore[attr-defined]
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
