"""A judge that speaks what rewards ask of OpenAI's endpoints: its score is a hash of the question. Imports no torch.

`python -m tests.support.fake_judge serve MODEL --port 8200 ...` takes the words that mmrl gives to `vllm serve`.
"""

import argparse
import json
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def answer(path: str, body: bytes) -> Any:
    """The answer to a call."""
    if not path.endswith("/chat/completions"):
        return {"data": [{"id": ARGUMENTS.model}]}
    time.sleep(ARGUMENTS.thinks_s)
    said = str(zlib.crc32(json.dumps(json.loads(body)["messages"]).encode()) % 11)
    return {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        content = json.dumps(answer(self.path, self.rfile.read(int(self.headers.get("Content-Length", 0))))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8200)
    parser.add_argument("--thinks-s", type=float, default=0.05)
    ARGUMENTS, _ = parser.parse_known_args()
    ThreadingHTTPServer(("127.0.0.1", ARGUMENTS.port), Handler).serve_forever()
