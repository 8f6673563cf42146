"""A reward in a process, environment or machine of its own: write a spec, serve it, use its address in a config.

    mmrl reward serve spec.toml          where the reward's packages are installed
    use = "http://127.0.0.1:8500/calm"   in the run's config, in place of a name or file

Run this file to see both sides: it serves itself on a free port, scores a group over HTTP and stops the server.
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageFilter, ImageStat

from mmrl import Group, Prompt, Sample

__all__ = ["Calm"]

SPEC = """
port = {port}
max_samples = 64
[[reward]]
use = "{file}"
name = "calm"
scale = 20.0
"""


@dataclass(frozen=True)
class Calm:
    """score = 1 / (1 + mean edge strength / scale): smooth pictures score near 1."""

    scale: float = 10.0

    def __call__(self, group: Group) -> list[float]:
        edges = [sample.image.convert("L").filter(ImageFilter.FIND_EDGES) for sample in group.samples]
        return [1 / (1 + ImageStat.Stat(picture).mean[0] / self.scale) for picture in edges]


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    from mmrl.serving.reward_client import RemoteReward

    smooth = Image.linear_gradient("L").convert("RGB")
    noisy = Image.effect_noise((256, 256), 80.0).convert("RGB")
    group = Group(0, Prompt("7", "a calm sea"), (Sample(image=smooth), Sample(image=noisy)))
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.toml"
        spec.write_text(SPEC.format(port=free_port(), file=Path(__file__).resolve()))
        command = [sys.executable, "-u", "-m", "mmrl", "reward", "serve", str(spec)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                address = re.findall(r'"(http.*)"', server.stdout.readline())[0]
                served = RemoteReward(address).connect(wait_s=60.0).score(group)
            finally:
                server.terminate()
    local = Calm(scale=20.0)(group)
    assert all(isinstance(s, float) and abs(s - x) < 1e-6 for s, x in zip(served, local, strict=True)), (served, local)
    assert local[0] > 0.8 > 0.4 > local[1], local
    print("calm scores a gradient and noise:", [round(x, 3) for x in local], "here and over HTTP alike")


if __name__ == "__main__":
    main()
