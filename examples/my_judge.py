"""A judge of your own: your words, any vision-language model behind an OpenAI-compatible server (vLLM, SGLang, ...).

Use it with `--reward ./examples/my_judge.py` once a model listens on port 8000. Run this file to see it work against a stand-in
that judges by brightness: what travels is real, only the judge is not.
"""

import base64
import io
import json
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from PIL import Image, ImageStat

from mmrl import Group, Prompt, Sample, Scored
from mmrl.serving.judges.judge import Endpoint, Question, Reply, ask_for_scores
from mmrl.serving.judges.verdicts import number

__all__ = ["Cosy"]

ASK = "A picture for {prompt!r}. How cosy is the light in it? One number from 0 to 10, nothing else."


@dataclass(frozen=True)
class Cosy:
    """score = the judge's number / 10. An answer without a number in 0..10 counts as failed, never as 0."""

    server: Endpoint = field(default_factory=Endpoint)

    def __call__(self, group: Group) -> list[float | Scored | None]:
        text = ASK.format(prompt=group.prompt.text)
        return list(ask_for_scores(self.server, [Question(text, [sample.image]) for sample in group.samples], self.read))

    def read(self, reply: Reply) -> Scored:
        return Scored(number(reply, 0.0, 10.0) / 10)


class StandIn(BaseHTTPRequestHandler):
    """A server that answers as an OpenAI-compatible one does; brighter is cosier."""

    def do_GET(self) -> None:
        self.reply({"data": [{"id": "stand-in"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        url = body["messages"][0]["content"][0]["image_url"]["url"]
        picture = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
        verdict = round(ImageStat.Stat(picture.convert("L")).mean[0] / 25.5, 1)
        self.reply({"choices": [{"message": {"content": f"{verdict}"}, "finish_reason": "stop"}]})

    def reply(self, answer: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal for the result."""


if __name__ == "__main__":
    stand_in = HTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=stand_in.serve_forever, daemon=True).start()
    judge = Cosy()
    judge = replace(judge, server=replace(judge.server, url=f"http://127.0.0.1:{stand_in.server_port}/v1"))
    pictures = [Image.new("RGB", (64, 64), (level, level, level)) for level in (0, 128, 255)]
    answers = judge(Group(0, Prompt("7", "a room at night"), tuple(Sample(image=picture) for picture in pictures)))
    scores = [answer.value for answer in answers if isinstance(answer, Scored)]
    assert scores == [0.0, 0.5, 1.0], scores
    print("cosy scores dark, grey and bright:", scores)
